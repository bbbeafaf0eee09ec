//! Where a reader is in a channel: a numbering, and the last number that it has.
//!
//! Text from a query or a header flows in, a position flows out, and an epoch as text back. Always true: what is shown
//! is what is read.

use super::problem::Problem;

/// Where a reader was when it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The numbering.
    pub epoch: u64,
    /// The last seq it has.
    pub seq: u64,
}

/// Reads `epoch:seq`, the id of an event in a stream.
///
/// # Errors
/// 400 if it is none.
pub(super) fn parse_position(text: &str) -> Result<Since, Problem> {
    let parsed =
        text.trim().split_once(':').and_then(|(epoch, seq)| Some((parse_epoch(epoch).ok()?, seq.parse().ok()?)));
    match parsed {
        Some((epoch, seq)) => Ok(Since { epoch, seq }),
        None => Err(Problem::bad("bad_position", format!("Last-Event-ID {text:?} is not `epoch:seq`"))),
    }
}

/// Reads an epoch as [`show_epoch`] writes it.
///
/// # Errors
/// 400 if it is not 1 to 16 hexadecimal digits.
pub fn parse_epoch(text: &str) -> Result<u64, Problem> {
    // A sign would be read, too, and is no digit.
    let digits = text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(text, 16) {
        Ok(epoch) if digits => Ok(epoch),
        _ => Err(Problem::bad("bad_epoch", format!("epoch {text:?} is not 16 hexadecimal digits"))),
    }
}

/// An epoch as clients see it: opaque text, for a number of 64 bits does not survive JavaScript.
#[must_use]
pub fn show_epoch(epoch: u64) -> String {
    format!("{epoch:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_that_is_shown_is_read_again() {
        for epoch in [0, 1, 0xFF, u64::MAX] {
            assert_eq!(parse_epoch(&show_epoch(epoch)), Ok(epoch));
            assert_eq!(parse_position(&format!("{}:7", show_epoch(epoch))), Ok(Since { epoch, seq: 7 }));
        }
        for no_epoch in ["", "g", "00000000000000001", "+f", "-1", "0x1"] {
            assert_eq!(parse_epoch(no_epoch).unwrap_err().code, "bad_epoch", "{no_epoch:?}");
        }
        for no_position in ["", "1", "1:", ":1", "1:x", "1:-1", "1:2:3"] {
            assert_eq!(parse_position(no_position).unwrap_err().code, "bad_position", "{no_position:?}");
        }
    }
}
