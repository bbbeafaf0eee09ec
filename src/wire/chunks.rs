//! Where a body in chunks ends (RFC 9112 §7.1).
//!
//! Bytes flow in as they come, how many of them belong to the body flows out. Always true: what is not exactly a chunk,
//! a last chunk or a trailer tears the body, so that nobody in front of the node can have seen its end elsewhere.

use super::http::HEAD_BYTES_MAX;

/// What one chunk's size may be followed by, in bytes; nobody who is known sends any.
const EXTENSION_BYTES_MAX: u16 = 256;
/// Hexadecimal digits of a chunk's size: 4 GiB, which no body may have by far.
const SIZE_DIGITS_MAX: u8 = 8;

/// Where in a chunked body the next byte stands (RFC 9112 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Size { digits: u8 },
    Extension { bytes: u16 },
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerLine { empty: bool },
    TrailerLf { empty: bool },
}

/// A body in chunks that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    at: At,
    /// Of the chunk, still to come.
    left: u64,
    trailer_bytes: usize,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { at: At::Size { digits: 0 }, left: 0, trailer_bytes: 0 }
    }
}

/// What the bytes of a body said.
pub(super) enum Verdict {
    /// It goes on.
    More,
    /// It has ended.
    End,
    /// These are no chunks.
    Torn,
}

impl Chunks {
    /// Reads on; how many bytes are good, and what then.
    pub(super) fn take(&mut self, bytes: &[u8]) -> (usize, Verdict) {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            if self.at == At::Data {
                let data = (bytes.len() - taken).min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= data as u64;
                taken += data;
                if self.left == 0 {
                    self.at = At::DataCr;
                }
                continue;
            }
            let Some(next) = self.step(byte) else { return (taken, Verdict::Torn) };
            taken += 1;
            if self.at == (At::TrailerLf { empty: true }) {
                return (taken, Verdict::End);
            }
            self.at = next;
        }
        (taken, Verdict::More)
    }

    fn step(&mut self, byte: u8) -> Option<At> {
        Some(match (self.at, byte) {
            (At::Size { digits }, _) if byte.is_ascii_hexdigit() && digits < SIZE_DIGITS_MAX => {
                let digit = u64::from(char::from(byte).to_digit(16)?);
                self.left = self.left * 16 + digit;
                At::Size { digits: digits + 1 }
            }
            (At::Size { digits: 1.. } | At::Extension { .. }, b'\r') => At::SizeLf,
            (At::Size { digits: 1.. }, b';') => At::Extension { bytes: 0 },
            (At::Extension { bytes }, b'\t' | 0x20..=0x7E) if bytes < EXTENSION_BYTES_MAX => {
                At::Extension { bytes: bytes + 1 }
            }
            (At::SizeLf, b'\n') if self.left == 0 => At::TrailerLine { empty: true },
            (At::SizeLf, b'\n') => At::Data,
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size { digits: 0 },
            (At::TrailerLine { empty }, b'\r') => At::TrailerLf { empty },
            (At::TrailerLine { .. }, b'\t' | 0x20..=0x7E | 0x80..) if self.trailer_bytes < HEAD_BYTES_MAX => {
                self.trailer_bytes += 1;
                At::TrailerLine { empty: false }
            }
            (At::TrailerLf { .. }, b'\n') => At::TrailerLine { empty: true },
            _ => return None,
        })
    }
}
