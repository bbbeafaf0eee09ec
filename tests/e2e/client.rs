//! A WebSocket client made of a blocking socket and nothing else, so that it can say what no library would, and an HTTP
//! client of the same kind.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::node::write_all;

/// How long anything that must come may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// The key of RFC 6455 §1.3 and its answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The handshake as most clients send it.
pub(crate) fn handshake(path: &str, fields: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {KEY}\r\n\
         Sec-WebSocket-Version: 13\r\n{fields}\r\n"
    )
}

/// The type is one that tells who is there, or how many.
pub(crate) fn is_presence(kind: &str) -> bool {
    matches!(kind, "viewers.updated" | "member.joined" | "member.left" | "presence.changed")
}

/// A frame of a client, with the mask 00 00 00 00 so that payloads read plainly.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        n @ 0..=125 => out.push(0x80 | n as u8),
        n @ 126..=65_535 => {
            out.push(0xFE);
            out.extend_from_slice(&(n as u16).to_be_bytes());
        }
        n => {
            out.push(0xFF);
            out.extend_from_slice(&(n as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

pub(crate) fn text(payload: &str) -> Vec<u8> {
    frame(0x81, payload.as_bytes())
}

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) opcode: u8,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn text(&self) -> &str {
        assert_eq!(self.opcode, TEXT, "{self:?}");
        std::str::from_utf8(&self.payload).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// The code of a Close.
    pub(crate) fn code(&self) -> u16 {
        assert_eq!(self.opcode, CLOSE, "{self:?}");
        if self.payload.is_empty() { 1005 } else { u16::from_be_bytes([self.payload[0], self.payload[1]]) }
    }

    /// The reason of a Close.
    pub(crate) fn reason(&self) -> &str {
        assert_eq!(self.opcode, CLOSE, "{self:?}");
        std::str::from_utf8(self.payload.get(2..).unwrap_or_default()).expect("UTF-8")
    }
}

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
}

impl Client {
    /// A connection on which nothing was said.
    pub(crate) fn raw(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).expect("the node listens");
        Self::over(stream)
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, buffer: Vec::new(), at: 0 }
    }

    /// A connection whose handshake is done.
    pub(crate) fn open(addr: SocketAddr, path: &str) -> Self {
        Self::open_with(addr, path, "")
    }

    /// With further header fields, each with its line end.
    pub(crate) fn open_with(addr: SocketAddr, path: &str, fields: &str) -> Self {
        let mut client = Self::raw(addr);
        client.send(handshake(path, fields).as_bytes());
        client.expect_101();
        client
    }

    /// With a small receive buffer, set before the window is agreed on.
    pub(crate) fn open_narrow(addr: SocketAddr, path: &str, receive_bytes: usize) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(receive_bytes).unwrap();
        socket.connect(&addr.into()).expect("the node listens");
        let mut client = Self::over(socket.into());
        client.send(handshake(path, "").as_bytes());
        client.expect_101();
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        write_all(&mut self.stream, bytes);
    }

    /// One byte a segment.
    pub(crate) fn send_by_byte(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if !write_all(&mut self.stream, &[*byte]) {
                return;
            }
        }
    }

    pub(crate) fn say(&mut self, command: &Value) {
        self.send(&text(&command.to_string()));
    }

    pub(crate) fn patience(&self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// More bytes; false at the end, be it a FIN or a reset.
    fn more(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => {
                    if self.at > 64 * 1024 {
                        self.buffer.drain(..self.at);
                        self.at = 0;
                    }
                    self.buffer.extend_from_slice(&chunk[..n]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("nothing came in time; unread: {:?}", String::from_utf8_lossy(&self.buffer[self.at..]))
                }
                Err(_) => return false,
            }
        }
    }

    /// A response head, and nothing of what is behind it.
    pub(crate) fn head(&mut self) -> Option<String> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8(unread[..end + 4].to_vec()).expect("a head is text");
                self.at += end + 4;
                return Some(head);
            }
            if !self.more() {
                return None;
            }
        }
    }

    pub(crate) fn expect_101(&mut self) -> String {
        let head = self.head().expect("an answer to the handshake");
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}{}", String::from_utf8_lossy(&self.rest_until_end()));
        assert!(head.contains(ACCEPT), "{head}");
        head
    }

    /// Everything until the end of the connection.
    pub(crate) fn rest_until_end(&mut self) -> Vec<u8> {
        while self.more() {}
        let rest = self.buffer[self.at..].to_vec();
        self.at = self.buffer.len();
        rest
    }

    /// Waits until this text has come.
    pub(crate) fn wait_for(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.buffer[self.at..]).contains(text) {
            assert!(self.more(), "the connection ended without {text:?}");
        }
    }

    /// A refusal: status, head and document.
    pub(crate) fn refusal(&mut self) -> Answer {
        let head = self.head().expect("an answer");
        let body = String::from_utf8(self.rest_until_end()).expect("text");
        Answer { status: head[9..12].parse().expect("a status"), head, body }
    }

    /// The next frame; `None` at the end. Checks what holds of every frame of a server.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        loop {
            let unread = &self.buffer[self.at..];
            if unread.len() >= 2 {
                assert_eq!(unread[0] & 0x70, 0, "a reserved bit is set: {unread:x?}");
                assert_eq!(unread[0] & 0x80, 0x80, "a server does not fragment: {unread:x?}");
                assert_eq!(unread[1] & 0x80, 0, "a server does not mask: {unread:x?}");
                let header = match unread[1] {
                    126 => 4,
                    127 => 10,
                    _ => 2,
                };
                if unread.len() >= header {
                    let length = match header {
                        4 => usize::from(u16::from_be_bytes([unread[2], unread[3]])),
                        10 => u64::from_be_bytes(unread[2..10].try_into().unwrap()) as usize,
                        _ => usize::from(unread[1]),
                    };
                    if unread.len() >= header + length {
                        let opcode = unread[0] & 0x0F;
                        assert!(matches!(opcode, TEXT | BINARY | CLOSE | PING | PONG), "{opcode}");
                        let payload = unread[header..header + length].to_vec();
                        self.at += header + length;
                        return Some(Frame { opcode, payload });
                    }
                }
            }
            if !self.more() {
                assert_eq!(self.at, self.buffer.len(), "the connection ended within a frame");
                return None;
            }
        }
    }

    /// Throws away so many bytes.
    pub(crate) fn skip(&mut self, bytes: usize) {
        while self.buffer.len() - self.at < bytes {
            assert!(self.more(), "the end came before {bytes} bytes");
        }
        self.at += bytes;
    }

    /// Throws away what comes; false at the end.
    pub(crate) fn try_skip(&mut self) -> bool {
        let more = self.more();
        self.at = self.buffer.len();
        more
    }

    pub(crate) fn next(&mut self) -> Frame {
        self.frame().expect("a frame, not the end of the connection")
    }

    /// The next event that says nothing of who is there, which comes when it comes.
    pub(crate) fn event(&mut self) -> Value {
        loop {
            let json = self.next().json();
            if !is_presence(json["type"].as_str().unwrap_or_default()) {
                return json;
            }
        }
    }

    /// The next event of this type, or, where `kind` ends with a dot, of one that begins so; others are passed over.
    pub(crate) fn next_of(&mut self, kind: &str) -> Value {
        loop {
            let json = self.next().json();
            let its = json["type"].as_str().unwrap_or_default();
            if its == kind || (kind.ends_with('.') && its.starts_with(kind)) {
                return json;
            }
        }
    }

    /// `connection.ready`.
    pub(crate) fn ready(&mut self) -> Value {
        let ready = self.next().json();
        assert_eq!(ready["type"], "connection.ready", "the first frame is always ready");
        ready
    }

    /// Everything that was sent so far is behind us: asks for a pong and returns what came before it.
    pub(crate) fn settle(&mut self) -> Vec<Value> {
        self.say(&serde_json::json!({"type": "ping", "id": "settle"}));
        let mut before = Vec::new();
        loop {
            let event = self.event();
            if event["type"] == "pong" && event["id"] == "settle" {
                return before;
            }
            before.push(event);
        }
    }

    /// A Close with this code, and then the end.
    pub(crate) fn expect_close(&mut self, code: u16) {
        let close = self.next();
        assert_eq!(close.code(), code, "{:?}", close.reason());
        self.expect_end();
    }

    /// The end of the connection, and nothing before it.
    pub(crate) fn expect_end(&mut self) {
        let frame = self.frame();
        assert!(frame.is_none(), "the end was due, not {frame:?}");
    }

    /// Takes leave as RFC 6455 wants it.
    pub(crate) fn close(mut self) {
        self.send(&frame(0x88, &1000_u16.to_be_bytes()));
        while self.frame().is_some() {}
    }

    pub(crate) fn shutdown_write(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Nothing comes for so long.
    pub(crate) fn expect_silence(&mut self, for_so_long: Duration) {
        self.stream.set_read_timeout(Some(for_so_long)).unwrap();
        assert_eq!(self.at, self.buffer.len(), "unread: {:?}", &self.buffer[self.at..]);
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            other => panic!("silence was due, not {other:?} {byte:?}"),
        }
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
}

/// An answer of the API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// It is a problem document with this status and code.
    pub(crate) fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.field("www-authenticate").is_some(), status == 401, "{self:?}");
        let json = self.json();
        assert_eq!((json["status"].as_u64(), json["code"].as_str()), (Some(u64::from(status)), Some(code)), "{json}");
        assert!(json["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{json}");
    }
}

/// A connection to the API, kept alive.
pub(crate) struct Http {
    stream: TcpStream,
    /// What came behind the last answer.
    unread: Vec<u8>,
}

impl Http {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).expect("the node listens")
    }

    pub(crate) fn try_connect(addr: SocketAddr) -> Option<Self> {
        Some(Self::over(TcpStream::connect_timeout(&addr, PATIENCE).ok()?))
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, unread: Vec::new() }
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// One GET on a connection of its own; `None` if nobody answers.
    pub(crate) fn try_get(addr: SocketAddr, path: &str) -> Option<Answer> {
        Self::try_connect(addr)?.try_request("GET", path, "", "")
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.request("GET", path, "", "")
    }

    pub(crate) fn post(&mut self, path: &str, credential: &str, body: &str) -> Answer {
        self.request("POST", path, &format!("Authorization: Bearer {credential}\r\n"), body)
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        self.try_request(method, path, fields, body).expect("an answer")
    }

    /// `None` if the connection ends before the answer is whole.
    pub(crate) fn try_request(&mut self, method: &str, path: &str, fields: &str, body: &str) -> Option<Answer> {
        let length = body.len();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n{fields}\r\n{body}");
        // A node that refuses a large body does not read it to its end; its answer is there all the same.
        let _ = self.stream.write_all(request.as_bytes());
        self.read_answer_to(method)
    }

    pub(crate) fn read_answer(&mut self) -> Option<Answer> {
        self.read_answer_to("GET")
    }

    fn read_answer_to(&mut self, method: &str) -> Option<Answer> {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = std::mem::take(&mut self.unread);
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8(bytes[..end + 4].to_vec()).ok()?;
                let mut answer = Answer { status: head[9..12].parse().ok()?, head, body: String::new() };
                let length: usize = match answer.field("content-length") {
                    _ if method == "HEAD" => 0,
                    None if answer.status == 204 => 0,
                    field => field?.parse().ok()?,
                };
                if bytes.len() >= end + 4 + length {
                    answer.body = String::from_utf8(bytes[end + 4..end + 4 + length].to_vec()).ok()?;
                    self.unread = bytes.split_off(end + 4 + length);
                    return Some(answer);
                }
            }
            if Instant::now() > deadline {
                return None;
            }
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            }
        }
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}
