//! Where the head of a request ends.
//!
//! The bytes of a connection flow in as they come, the index after the empty line flows out. Always true: each byte is
//! looked at once, and what no line of a head may hold is refused as soon as it has come.

use super::http::HEAD_BYTES_MAX;
use super::problem::Problem;

/// Bytes that are looked at in one step.
const TEXT_BLOCK: usize = 16;

/// Looks for the end of a head in a buffer that grows, each byte once however they arrive, and sees what no line of a
/// head may hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadScan {
    scanned: usize,
}

impl HeadScan {
    /// Where the head ends (the index after its empty line), if it has come.
    ///
    /// # Errors
    /// 400 for a CR or LF that stands alone and for other control characters, 431 beyond [`HEAD_BYTES_MAX`]; each as
    /// soon as the byte has come.
    pub fn find(&mut self, buffer: &[u8]) -> Result<Option<usize>, Problem> {
        loop {
            self.skip_text(buffer);
            let Some(&byte) = buffer.get(self.scanned) else { return Ok(None) };
            if self.scanned >= HEAD_BYTES_MAX {
                let detail = format!("a request head has at most {HEAD_BYTES_MAX} bytes");
                return Err(Problem::new(431, "head_too_large", detail));
            }
            let after_cr = self.scanned > 0 && buffer[self.scanned - 1] == b'\r';
            match byte {
                b'\n' if after_cr => {
                    if self.scanned >= 3 && buffer[self.scanned - 3..self.scanned] == *b"\r\n\r" {
                        return Ok(Some(self.scanned + 1));
                    }
                }
                b'\n' => {
                    return Err(Problem::bad("bare_line_end", "a line of a head ends with CR LF, not with LF alone"));
                }
                _ if after_cr => return Err(Problem::bad("bare_line_end", "a CR in a head is followed by LF")),
                b'\r' | b'\t' | 0x20..=0x7E | 0x80.. => {}
                _ => return Err(Problem::bad("control_character", format!("a head holds no character {byte:#04x}"))),
            }
            self.scanned += 1;
        }
    }

    /// Passes over what may stand anywhere in a line, a block at a time: nearly all of a head is that.
    fn skip_text(&mut self, buffer: &[u8]) {
        // What follows a CR is not free.
        while self.scanned + TEXT_BLOCK <= HEAD_BYTES_MAX
            && (self.scanned == 0 || buffer[self.scanned - 1] != b'\r')
            && let Some(block) = buffer.get(self.scanned..).and_then(|rest| rest.first_chunk::<TEXT_BLOCK>())
            && block.iter().fold(0, |found, byte| found | u8::from(byte.is_ascii_control())) == 0
        {
            self.scanned += TEXT_BLOCK;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_comes_at_once_and_one_that_comes_byte_by_byte_are_read_alike() {
        // Byte by byte there is never a block to pass over.
        let byte_by_byte = |head: &[u8]| {
            let mut scan = HeadScan::default();
            let steps = (1..=head.len()).map(|cut| scan.find(&head[..cut]));
            steps.into_iter().find(|step| !matches!(step, Ok(None))).unwrap_or(Ok(None))
        };
        let line = [&b"GET / HTTP/1.1\r\nHost: h\r\nX: "[..], &[b'x'; 50], b"\r\n\r\nand more"].concat();
        for at in 0..line.len() {
            for byte in 0..=255 {
                let mut head = line.clone();
                head[at] = byte;
                assert_eq!(HeadScan::default().find(&head), byte_by_byte(&head), "{byte:#04x} at {at}");
            }
        }
        for bytes in HEAD_BYTES_MAX - 40..HEAD_BYTES_MAX + 40 {
            let head = vec![b'x'; bytes];
            assert_eq!(HeadScan::default().find(&head), byte_by_byte(&head), "{bytes} bytes");
        }
    }

    #[test]
    fn the_end_is_told_as_soon_as_it_has_come() {
        let mut scan = HeadScan::default();
        let head = b"GET / HTTP/1.1\r\nHost: h\r\n\r\nrest";
        for cut in 0..head.len() {
            assert_eq!(scan.find(&head[..cut]).unwrap(), (cut >= 27).then_some(27), "{cut}");
        }
    }
}
