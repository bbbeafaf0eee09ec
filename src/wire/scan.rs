//! Long searches in what comes from outside, and the one place that names the searching library.

use memchr::memchr;
use memchr::memmem::Finder;

/// Looks for the end of an HTTP head in a buffer that grows, in linear time however it arrives: a head that comes
/// byte by byte is not read again from its start.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadEnd {
    searched: usize,
}

impl HeadEnd {
    /// Where the head ends (the index after its empty line), if it has come.
    pub fn find(&mut self, buffer: &[u8]) -> Option<usize> {
        let from = self.searched.saturating_sub(3).min(buffer.len());
        let found = Finder::new(b"\r\n\r\n").find(&buffer[from..]).map(|at| from + at + 4);
        self.searched = buffer.len();
        found
    }
}

/// Where the first line of `text` ends: the index of its CRLF.
#[must_use]
pub fn line_end(text: &[u8]) -> Option<usize> {
    Finder::new(b"\r\n").find(text)
}

/// The lines of a text, without their ends (LF, CR or both).
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        // A carriage return ends a line too, and is rare: it is looked for within the line only.
        let end = memchr(b'\n', text).unwrap_or(text.len());
        let end = memchr(b'\r', &text[..end]).unwrap_or(end);
        let skip = if text.get(end) == Some(&b'\r') && text.get(end + 1) == Some(&b'\n') { 2 } else { 1 };
        rest = (end < text.len()).then(|| &text[(end + skip).min(text.len())..]);
        Some(&text[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_end_wherever_the_bytes_are_cut() {
        let head = b"GET / HTTP/1.1\r\nHost: h\r\n\r\nrest";
        for cut in 0..head.len() {
            let mut end = HeadEnd::default();
            let first = end.find(&head[..cut]);
            assert_eq!(first.is_some(), cut >= 27, "{cut}");
            if first.is_none() {
                assert_eq!(end.find(head), Some(27));
            }
        }
    }

    #[test]
    fn lines_end_with_either_or_both() {
        let all: Vec<&[u8]> = lines(b"a\nb\r\nc\rd").collect();
        assert_eq!(all, [&b"a"[..], b"b", b"c", b"d"]);
        assert_eq!(lines(b"one").count(), 1);
        assert_eq!(lines(b"").count(), 1);
    }
}
