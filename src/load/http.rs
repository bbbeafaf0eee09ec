//! The little HTTP/1.1 a load generator needs: a request as bytes, and the answer to it.
//!
//! Bytes flow both ways; what is always true is that an answer is read only when it is whole and says its length.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer answers are taken for an error.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// One answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The status.
    pub(super) status: u16,
    /// Where the body begins and where the answer ends.
    pub(super) body: usize,
    /// See above.
    pub(super) end: usize,
    /// The node will close the connection behind it.
    pub(super) closes: bool,
}

/// Reads the answer at the front of `bytes`; `None` until it is whole.
pub(super) fn answer(bytes: &[u8]) -> Result<Option<Answer>, &'static str> {
    let Some(head) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
        return if bytes.len() > ANSWER_BYTES_MAX { Err("an answer without an end") } else { Ok(None) };
    };
    let text = std::str::from_utf8(&bytes[..head]).map_err(|_| "a head that is not text")?;
    let mut lines = text.split("\r\n");
    let status: u16 = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|status| status.parse().ok())
        .ok_or("an answer without a status")?;
    let (mut length, mut closes) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().map_err(|_| "a content-length that is no number")?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes |= value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("an answer in chunks");
        }
    }
    let length = match (length, status) {
        (Some(length), _) => length,
        (None, 204) => 0,
        (None, _) => return Err("an answer without a content-length"),
    };
    if length > ANSWER_BYTES_MAX {
        return Err("an answer that is too long");
    }
    let body = head + 4;
    Ok((bytes.len() >= body + length).then_some(Answer { status, body, end: body + length, closes }))
}

/// One GET on a connection of its own, for questions that are not part of the load.
pub(super) fn get(addr: SocketAddr, path: &str, bound: Duration) -> io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&addr, bound)?;
    stream.set_read_timeout(Some(bound))?;
    stream.set_write_timeout(Some(bound))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    let mut part = [0; 1_024];
    // Only the status matters, so the answer need not be whole.
    while memchr::memmem::find(&bytes, b"\r\n").is_none() {
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
    let status = bytes.strip_prefix(b"HTTP/1.1 ").and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok());
    status.and_then(|status| status.parse().ok()).ok_or_else(|| io::Error::other("an answer without a status"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_when_it_is_whole_and_not_before() {
        let bytes =
            b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\ncontent-LENGTH: 9\r\n\r\n{\"seq\":1}HTTP/1.1 2";
        let whole = answer(bytes).unwrap().unwrap();
        assert_eq!((whole.status, &bytes[whole.body..whole.end], whole.closes), (201, &b"{\"seq\":1}"[..], false));
        for cut in 0..whole.end {
            assert_eq!(answer(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let closing = b"HTTP/1.1 503 x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert!(answer(closing).unwrap().unwrap().closes);
        assert_eq!(answer(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap().status, 204);
    }

    #[test]
    fn answers_without_a_length_or_status_are_errors() {
        for bytes in
            ["HTTP/1.1 200 OK\r\n\r\n", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
        {
            assert!(answer(bytes.as_bytes()).is_err(), "{bytes}");
        }
    }
}
