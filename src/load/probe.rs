//! The probe: what a posted text carries so that its deliveries can be recognised, counted and timed.
//!
//! Numbers flow in and come back out of delivered bytes; what is always true is that a probe is plain ASCII without a
//! character that JSON would escape, so a node hands it on byte for byte.

use std::io::Write;

/// What the bytes of a probe begin with.
pub(super) const MARK: &[u8] = b"probe=";

/// One posted event: `probe=RUN.NUMBER.IN_CHANNEL.DUE;` and padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// Tells this run's events from those of another run on the same channel.
    pub(super) run: u32,
    /// Its number within the run, from 0.
    pub(super) number: u64,
    /// Its number within its channel, from 1; takes the place of the seq where nothing is stored.
    pub(super) in_channel: u64,
    /// When it was to be sent, in nanoseconds of the monotonic clock. Latency counts from here, so that a poster who
    /// is held up by a slow node does not hide that (coordinated omission).
    pub(super) due_ns: u64,
}

impl Probe {
    /// Appends the probe, padded to `bytes`; it is never cut, so a small `bytes` gives the bare probe.
    pub(super) fn put(&self, out: &mut Vec<u8>, bytes: usize) {
        let begin = out.len();
        // A Vec takes every byte.
        let _ = write!(out, "probe={:08x}.{}.{}.{};", self.run, self.number, self.in_channel, self.due_ns);
        let end = out.len().max(begin + bytes);
        out.resize(end, b'x');
    }

    /// Reads what follows the [`MARK`]; `None` if it is not a probe.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (run, rest) = bytes.split_at_checked(8)?;
        let run = u32::from_str_radix(std::str::from_utf8(run).ok()?, 16).ok()?;
        let (number, rest) = digits(rest.strip_prefix(b".")?)?;
        let (in_channel, rest) = digits(rest.strip_prefix(b".")?)?;
        let (due_ns, rest) = digits(rest.strip_prefix(b".")?)?;
        rest.starts_with(b";").then_some(Self { run, number, in_channel, due_ns })
    }
}

/// Reads the decimal number at the front; `None` if there is none or it does not fit.
pub(super) fn digits(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    let mut length = 0;
    while let Some(digit) = bytes.get(length).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        length += 1;
    }
    (length > 0).then(|| (value, &bytes[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_comes_back_from_its_text() {
        for probe in [
            Probe { run: 0, number: 0, in_channel: 1, due_ns: 0 },
            Probe { run: u32::MAX, number: u64::MAX, in_channel: u64::MAX, due_ns: u64::MAX },
            Probe { run: 0xAB, number: 41, in_channel: 7, due_ns: 1_234_567_890 },
        ] {
            for bytes in [0, 1, 64, 512] {
                let mut text = Vec::new();
                probe.put(&mut text, bytes);
                assert!(text.len() >= bytes && text.starts_with(MARK));
                assert!(text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"=.;".contains(byte)));
                assert_eq!(Probe::read(&text[MARK.len()..]), Some(probe));
            }
        }
        let mut text = Vec::new();
        Probe { run: 1, number: 2, in_channel: 3, due_ns: 4 }.put(&mut text, 100);
        assert_eq!(text.len(), 100);
    }

    #[test]
    fn what_is_no_probe_is_none() {
        for text in ["", "0000000", "00000000", "0000000g.1.2.3;", "00000000.1.2.3", "00000000.1..3;", "00000000.1.2;"]
        {
            assert_eq!(Probe::read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Probe::read(b"00000000.99999999999999999999.1.1;"), None, "beyond 64 bits");
    }
}
