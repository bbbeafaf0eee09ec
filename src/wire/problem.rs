//! RFC 9457 problem documents: every refusal over HTTP is one, with a stable `code`.

use std::fmt::Write;

use super::json::{put_number, put_string};

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// Stable, for programs.
    pub code: &'static str,
    /// For people: what was wrong and what is right.
    pub detail: String,
    /// Seconds after which to try again.
    pub retry_after_s: Option<u32>,
    /// One further header that the status asks for, such as `Sec-WebSocket-Version`. In a box, as the next: both are rare,
    /// and a refusal goes through many hands.
    pub header: Option<Box<(&'static str, String)>>,
    /// One further member of the document, for programs.
    pub member: Option<Box<(&'static str, String)>>,
    /// The page of another origin that may read it, where a stream is refused. Answers to requests get theirs where all do.
    pub page: Option<Box<str>>,
}

impl Problem {
    /// A refusal without further headers.
    #[must_use]
    pub fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        // RFC 9110 §15.5.2: every 401 says how.
        let header = (status == 401).then(|| Box::new(("www-authenticate", "Bearer".to_owned())));
        Self { status, code, detail: detail.into(), retry_after_s: None, header, member: None, page: None }
    }

    /// The asker's own fault: 400.
    #[must_use]
    pub fn bad(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(400, code, detail)
    }

    /// The same, to be tried again after `seconds`.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The same, with one more header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.header = Some(Box::new((name, value.into())));
        self
    }

    /// The same, with one more member in its document.
    #[must_use]
    pub fn with_member(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.member = Some(Box::new((name, value.into())));
        self
    }

    /// The same, for this page of another origin to read, if there is one.
    #[must_use]
    pub fn for_page(mut self, origin: Option<String>) -> Self {
        self.page = origin.map(String::into_boxed_str);
        self
    }

    /// The document.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.body_with(&[])
    }

    /// The document with further members (RFC 9457 §3.2), for programs that want the numbers of the detail.
    #[must_use]
    pub fn body_with(&self, numbers: &[(&str, u64)]) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        out.extend_from_slice(b"{\"type\":\"about:blank\",\"title\":");
        put_string(&mut out, status_text(self.status));
        out.extend_from_slice(b",\"status\":");
        put_number(&mut out, u64::from(self.status));
        out.extend_from_slice(b",\"code\":");
        put_string(&mut out, self.code);
        out.extend_from_slice(b",\"detail\":");
        put_string(&mut out, &self.detail);
        if let Some(seconds) = self.retry_after_s {
            out.extend_from_slice(b",\"retry_after_s\":");
            put_number(&mut out, u64::from(seconds));
        }
        if let Some((name, value)) = self.member.as_deref() {
            out.push(b',');
            put_string(&mut out, name);
            out.push(b':');
            put_string(&mut out, value);
        }
        for (name, number) in numbers {
            out.push(b',');
            put_string(&mut out, name);
            out.push(b':');
            put_number(&mut out, *number);
        }
        out.push(b'}');
        out
    }

    /// The whole HTTP/1.1 response, after which the connection is closed.
    #[must_use]
    pub fn response(&self) -> Vec<u8> {
        let body = self.body();
        let mut head = format!(
            "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n",
            self.status,
            status_text(self.status),
            body.len()
        );
        if let Some(seconds) = self.retry_after_s {
            let _ = write!(head, "retry-after: {seconds}\r\n");
        }
        if let Some((name, value)) = self.header.as_deref() {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if let Some(page) = &self.page {
            let _ = write!(head, "access-control-allow-origin: {page}\r\nvary: origin\r\n");
        }
        head.push_str("\r\n");
        let mut out = head.into_bytes();
        out.extend_from_slice(&body);
        out
    }
}

/// The reason phrase of the statuses this node answers with.
#[must_use]
pub const fn status_text(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_a_whole_http_message_with_a_document() {
        let problem =
            Problem::new(429, "room_full", "every room was \"full\"").retry_after(2).with_member("where", "\"");
        let bytes = problem.response();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 429 Too Many Requests\r\n"));
        assert!(head.contains("retry-after: 2"));
        assert!(head.contains(&format!("content-length: {}", body.len())));
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(json["code"], "room_full");
        assert_eq!(json["status"], 429);
        assert_eq!(json["where"], "\"");
        let json: serde_json::Value = serde_json::from_slice(&problem.body_with(&[("rooms", 7), ("b", 0)])).unwrap();
        assert_eq!((&json["retry_after_s"], &json["rooms"], &json["b"]), (&2.into(), &7.into(), &0.into()));
    }
}
