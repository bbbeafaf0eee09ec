//! Long searches in what comes from outside, and the one place that names the searching library.

use memchr::memchr;
use memchr::memmem::Finder;

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
    fn lines_end_with_either_or_both() {
        let all: Vec<&[u8]> = lines(b"a\nb\r\nc\rd").collect();
        assert_eq!(all, [&b"a"[..], b"b", b"c", b"d"]);
        assert_eq!(lines(b"one").count(), 1);
        assert_eq!(lines(b"").count(), 1);
    }
}
