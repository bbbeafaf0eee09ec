//! Where one HTTP request ends and the next begins, read so strictly that nobody in front of the node can have cut the
//! same bytes in another place.
//!
//! The bytes of a connection flow in as they come; out flow whole heads with the bytes of their bodies, or why nothing
//! more flows. Always true: a head leaves here only whole and checked, so nothing is run that stands behind a refused
//! one; a length is said once, by one field; and lines end with CRLF and nothing else (RFC 9112 §2.2, §6.3, §11.2).
//!
//! It does not matter how the bytes were cut on their way: the same bytes give the same heads, bodies and end.

use super::chunks::{Chunks, Verdict};
use super::head::HeadScan;
use super::http::{HEAD_FIELDS_MAX, begins_upgrade, has_token};
use super::problem::Problem;

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes, perhaps none.
    Length(u64),
    /// Chunks.
    Chunked,
}

/// Reads the lines of a whole head.
///
/// # Errors
/// 400, 431 or 505.
pub fn read_request<'f, 'h>(
    head: &'h [u8],
    fields: &'f mut [httparse::Header<'h>; HEAD_FIELDS_MAX],
) -> Result<httparse::Request<'f, 'h>, Problem> {
    let mut request = httparse::Request::new(fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => Ok(request),
        Ok(httparse::Status::Partial) => Err(Problem::bad("head_incomplete", "the request head is not complete")),
        Err(httparse::Error::TooManyHeaders) => {
            let detail = format!("a request has at most {HEAD_FIELDS_MAX} header fields");
            Err(Problem::new(431, "too_many_fields", detail))
        }
        Err(httparse::Error::Version) => Err(Problem::new(505, "http_version", "this node speaks HTTP/1.1")),
        Err(error) => Err(Problem::bad("head_malformed", format!("the request head is malformed: {error}"))),
    }
}

/// Finds out what follows a head, if its fields leave no doubt.
///
/// # Errors
/// 400 where two readers could differ: a length said twice, even alike; a length beside an encoding; an encoding other
/// than `chunked`; a missing or a second `Host` in HTTP/1.1.
pub fn body_of(request: &httparse::Request<'_, '_>) -> Result<Body, Problem> {
    let (mut length, mut encoding, mut hosts) = (None, None, 0);
    for field in request.headers.iter() {
        let place = if field.name.eq_ignore_ascii_case("content-length") {
            &mut length
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            &mut encoding
        } else {
            hosts += u32::from(field.name.eq_ignore_ascii_case("host"));
            continue;
        };
        if place.replace(field.value).is_some() {
            return Err(Problem::bad("field_twice", format!("the {} field stands more than once", field.name)));
        }
    }
    match hosts {
        0 if request.version == Some(1) => return Err(Problem::bad("no_host", "the Host field is missing")),
        0 | 1 => {}
        _ => return Err(Problem::bad("field_twice", "the host field stands more than once")),
    }
    match (length, encoding) {
        (None, None) => Ok(Body::Length(0)),
        (Some(length), None) => digits(length).map(Body::Length).ok_or_else(|| {
            Problem::bad("bad_content_length", "Content-Length is one number of bytes, in digits and nothing else")
        }),
        (None, Some(encoding)) if encoding.eq_ignore_ascii_case(b"chunked") && request.version == Some(1) => {
            Ok(Body::Chunked)
        }
        (None, Some(_)) => Err(Problem::bad(
            "bad_transfer_encoding",
            "the only Transfer-Encoding here is `chunked`, once and in HTTP/1.1",
        )),
        (Some(_), Some(_)) => {
            Err(Problem::bad("length_and_encoding", "a request has Content-Length or Transfer-Encoding, not both"))
        }
    }
}

/// A number of at most 18 digits, which 64 bits hold.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Why nothing more flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The head of an upgrade came, whole; with what came behind it.
    Upgrade(Vec<u8>),
    /// A head that is refused.
    Refused(Problem),
    /// A body whose chunks are none.
    Torn,
    /// The client said that the request before this was its last.
    Over,
}

#[derive(Debug)]
enum State {
    Head,
    Length(u64),
    Chunked(Chunks),
    Stopped(Stop),
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Framing {
    state: State,
    head: Vec<u8>,
    scan: HeadScan,
    out: Vec<u8>,
    heads: u64,
    /// No request follows the one whose body is read.
    last: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self { state: State::Head, head: Vec::new(), scan: HeadScan::default(), out: Vec::new(), heads: 0, last: false }
    }
}

impl Framing {
    /// Bytes have come. What holds stands in [`Framing::checked`] then.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Head => self.take_head(bytes),
                State::Length(left) => {
                    let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= taken as u64;
                    self.out.extend_from_slice(&bytes[..taken]);
                    if *left == 0 {
                        self.body_ends();
                    }
                    taken
                }
                State::Chunked(chunks) => {
                    let (taken, verdict) = chunks.take(bytes);
                    self.out.extend_from_slice(&bytes[..taken]);
                    match verdict {
                        Verdict::More => {}
                        Verdict::End => self.body_ends(),
                        Verdict::Torn => {
                            self.state = State::Stopped(Stop::Torn);
                            return;
                        }
                    }
                    taken
                }
                State::Stopped(Stop::Upgrade(head)) => {
                    head.extend_from_slice(bytes);
                    return;
                }
                State::Stopped(_) => return,
            };
            bytes = &bytes[taken..];
        }
    }

    fn take_head(&mut self, bytes: &[u8]) -> usize {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let end = match self.scan.find(&self.head) {
            Ok(Some(end)) => end,
            Ok(None) => return bytes.len(),
            Err(problem) => {
                self.stop(Stop::Refused(problem));
                return bytes.len();
            }
        };
        self.head.truncate(end);
        self.scan = HeadScan::default();
        let head = std::mem::take(&mut self.head);
        // An empty line before a request line is no fault (RFC 9112 §2.2).
        if begins_upgrade(head.strip_prefix(b"\r\n").unwrap_or(&head)) {
            self.stop(Stop::Upgrade(head));
        } else {
            match check(&head) {
                Ok((body, last)) => {
                    self.out.extend_from_slice(&head);
                    self.heads += 1;
                    self.last = last;
                    match body {
                        Body::Length(0) => self.body_ends(),
                        Body::Length(bytes) => self.state = State::Length(bytes),
                        Body::Chunked => self.state = State::Chunked(Chunks::default()),
                    }
                }
                Err(problem) => self.stop(Stop::Refused(problem)),
            }
        }
        end - before
    }

    fn body_ends(&mut self) {
        self.state = if self.last { State::Stopped(Stop::Over) } else { State::Head };
    }

    fn stop(&mut self, stop: Stop) {
        self.state = State::Stopped(stop);
    }

    /// Checked bytes that nobody has taken yet.
    #[must_use]
    pub fn checked(&self) -> &[u8] {
        &self.out
    }

    /// The first `bytes` of the checked ones were taken.
    pub fn advance(&mut self, bytes: usize) {
        self.out.drain(..bytes);
    }

    /// How many heads were let through.
    #[must_use]
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// Why nothing more flows, once nothing does.
    #[must_use]
    pub fn stopped(&self) -> Option<&Stop> {
        match &self.state {
            State::Stopped(stop) => Some(stop),
            _ => None,
        }
    }

    /// The same, to be dealt with.
    #[must_use]
    pub fn into_stop(self) -> Option<Stop> {
        match self.state {
            State::Stopped(stop) => Some(stop),
            _ => None,
        }
    }
}

/// What follows this head, and whether it is the last of its connection.
fn check(head: &[u8]) -> Result<(Body, bool), Problem> {
    let mut fields = [httparse::EMPTY_HEADER; HEAD_FIELDS_MAX];
    let request = read_request(head, &mut fields)?;
    let body = body_of(&request)?;
    let connection = |token| has_token(request.headers, "connection", token);
    Ok((body, connection("close") || (request.version == Some(0) && !connection("keep-alive"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http::HEAD_BYTES_MAX;

    /// What leaves, and why it stops.
    fn through(bytes: &[u8]) -> (Vec<u8>, Option<Stop>) {
        let mut whole = Framing::default();
        whole.feed(bytes);
        let mut by_byte = Framing::default();
        for byte in bytes {
            by_byte.feed(&[*byte]);
        }
        assert_eq!((&whole.out, whole.heads), (&by_byte.out, by_byte.heads), "however the bytes are cut");
        let out = std::mem::take(&mut whole.out);
        let stop = whole.into_stop();
        assert_eq!(stop, by_byte.into_stop());
        (out, stop)
    }

    fn refused(fields: &str) -> &'static str {
        let behind = "GET /behind HTTP/1.1\r\nHost: h\r\n\r\n";
        match through(format!("POST /a HTTP/1.1\r\n{fields}\r\n\r\n0\r\n\r\n{behind}").as_bytes()) {
            (out, Some(Stop::Refused(problem))) if out.is_empty() => problem.code,
            other => panic!("{fields:?}: {other:?}"),
        }
    }

    #[test]
    fn good_requests_pass_as_they_are() {
        for good in [
            "GET /a HTTP/1.1\r\nHost: h\r\n\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
            "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n\r\n\r\n\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
            "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n3;a=\"b\"\r\n\r\n0\r\n0000A\r\n0123456789\r\n0\r\n\
             Field: x\r\n\r\nGET /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /c HTTP/1.1\r\nHost:\r\n\r\n",
            "POST /a HTTP/1.1\r\nhOST: h\r\ncontent-length:\t07 \r\n\r\nGET /\r\n",
        ] {
            let (out, stop) = through(good.as_bytes());
            assert_eq!((String::from_utf8(out).unwrap().as_str(), stop), (good, None));
        }
    }

    #[test]
    fn a_length_that_two_readers_could_read_in_two_ways_is_refused() {
        for (fields, code) in [
            ("Host: h\r\nContent-Length: 5\r\nContent-Length: 5", "field_twice"),
            ("Host: h\r\nContent-Length: 5\r\nContent-Length: 6", "field_twice"),
            ("Host: h\r\nContent-Length: 5, 5", "bad_content_length"),
            ("Host: h\r\nContent-Length: +5", "bad_content_length"),
            ("Host: h\r\nContent-Length: 0x5", "bad_content_length"),
            ("Host: h\r\nContent-Length:", "bad_content_length"),
            ("Host: h\r\nContent-Length: 9999999999999999999", "bad_content_length"),
            ("Host: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", "length_and_encoding"),
            ("Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", "length_and_encoding"),
            ("Host: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "field_twice"),
            ("Host: h\r\nTransfer-Encoding: chunked, chunked", "bad_transfer_encoding"),
            ("Host: h\r\nTransfer-Encoding: xchunked", "bad_transfer_encoding"),
            ("Host: h\r\nTransfer-Encoding: gzip, chunked", "bad_transfer_encoding"),
            ("Host: h\r\nTransfer-Encoding: identity", "bad_transfer_encoding"),
            ("Host: h\r\nTransfer-Encoding : chunked", "head_malformed"),
            ("Host: h\r\n Transfer-Encoding: chunked", "head_malformed"),
            ("Host: h\r\nContent-Length: 5\nX: y", "bare_line_end"),
            ("Host: h\r\nX: y\rContent-Length: 5", "bare_line_end"),
            ("Host: h\r\nX: a\0b", "control_character"),
            ("Host: h\r\nX: a\x0bb", "control_character"),
            ("Host: h\r\nHost: g", "field_twice"),
            ("X: y", "no_host"),
        ] {
            assert_eq!(refused(fields), code, "{fields:?}");
        }
        let (out, stop) = through(b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
        assert!(out.is_empty() && matches!(stop, Some(Stop::Refused(_))));
    }

    #[test]
    fn chunks_that_are_none_end_the_connection() {
        let head = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        for torn in [
            "x\r\n",
            "\r\n",
            "5\nabcde\r\n",
            "5\r\nabcdef\r\n",
            "5\r\nabcde\n",
            "100000000\r\n",
            "-1\r\n",
            "0x1\r\n",
            "1 \r\n",
            "1;\x01\r\n",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
        ] {
            let (out, stop) = through(format!("{head}{torn}").as_bytes());
            assert_eq!(stop, Some(Stop::Torn), "{torn:?}");
            assert!(out.starts_with(head.as_bytes()));
        }
        let long = format!("{head}1;{}\r\na\r\n0\r\n\r\n", "x".repeat(257));
        assert_eq!(through(long.as_bytes()).1, Some(Stop::Torn));
        let trailer = format!("{head}0\r\nA: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(through(trailer.as_bytes()).1, Some(Stop::Torn));
    }

    #[test]
    fn an_upgrade_comes_out_whole_and_nothing_follows_a_last_request() {
        let before = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
        let upgrade = "GET /v1/demo/ws HTTP/1.1\r\nHost: h\r\n\r\nframes\r\n\r\n";
        let (out, stop) = through(format!("{before}{upgrade}").as_bytes());
        assert_eq!(out, before.as_bytes());
        assert_eq!(stop, Some(Stop::Upgrade(upgrade.into())));
        for last in ["GET /a HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n", "GET /a HTTP/1.0\r\n\r\n"] {
            let (out, stop) = through(format!("{last}{before}").as_bytes());
            assert_eq!((out, stop), (last.into(), Some(Stop::Over)));
        }
    }

    #[test]
    fn a_head_has_a_limit() {
        let mut framing = Framing::default();
        framing.feed(&[b'x'; HEAD_BYTES_MAX]);
        assert!(framing.stopped().is_none());
        framing.feed(b"x");
        assert!(matches!(framing.stopped(), Some(Stop::Refused(problem)) if problem.status == 431));
    }
}
