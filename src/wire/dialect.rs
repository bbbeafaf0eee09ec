//! What the bytes of a connection look like: one event or one reply flows in, a frame in the connection's own form
//! flows out.
//!
//! Always true: `ringcast.json` is the form that events are sealed in, and costs nothing here; the others are built once
//! a shard that needs them; a reply is made as a JSON text frame and recast for who speaks otherwise.

use std::borrow::Cow;

use super::close::Closing;
use super::json::put_number;
use super::position::show_epoch;
use super::scan::lines;
use super::sealed::Sealed;

/// The forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `ringcast.json`: text frames.
    #[default]
    Json,
    /// `ringcast.rkyv`: events as binary archives; replies stay JSON text.
    Rkyv,
    /// Server-Sent Events (WHATWG HTML §9.2): the same JSON in `data:` lines.
    Sse,
}

/// A comment that an `EventSource` does not show: it makes the kernel write, and so find out who is gone.
pub const SSE_HEARTBEAT: &[u8] = b": heartbeat\n\n";
/// How long an `EventSource` waits before it comes back, if nothing else was said, in milliseconds.
const SSE_RETRY_MS: u64 = 2_000;

impl Dialect {
    /// Its subprotocol name; SSE has none.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "ringcast.json",
            Self::Rkyv => "ringcast.rkyv",
            Self::Sse => "",
        }
    }

    /// The frame of an event.
    #[must_use]
    pub fn event(self, sealed: &Sealed) -> Cow<'_, [u8]> {
        match self {
            Self::Json => Cow::Borrowed(sealed.json_frame()),
            Self::Rkyv => Cow::Owned(sealed.rkyv_frame().unwrap_or_default()),
            Self::Sse => {
                let position = (sealed.seq() != 0).then(|| (sealed.epoch(), sealed.seq()));
                let kind = sealed.event().type_name.as_str();
                Cow::Owned(sse(kind, position, text_of(sealed.json_frame())))
            }
        }
    }

    /// A reply, made as a JSON text frame, in this form. `position` is what a reader that leaves now comes back with.
    #[must_use]
    pub fn reply(self, frame: Vec<u8>, position: Option<(u64, u64)>) -> Vec<u8> {
        match self {
            Self::Json | Self::Rkyv => frame,
            Self::Sse => {
                let text = text_of(&frame);
                sse(type_of(text), position, text)
            }
        }
    }

    /// The last words of a connection.
    #[must_use]
    pub fn closing(self, closing: Closing) -> Vec<u8> {
        let Self::Sse = self else { return closing.frame() };
        let mut out = Vec::with_capacity(96);
        if let Closing::Draining { retry_after_ms } = closing {
            out.extend_from_slice(b"retry: ");
            put_number(&mut out, u64::from(retry_after_ms));
            out.push(b'\n');
        }
        let advice = closing.advice();
        out.extend_from_slice(b"event: close\ndata: {\"code\":");
        put_number(&mut out, u64::from(advice.code));
        out.extend_from_slice(b",\"reason\":");
        super::json::put_string(&mut out, &advice.reason);
        out.extend_from_slice(b"}\n\n");
        out
    }
}

/// The head of an SSE answer. The body has no length: it ends with the connection.
#[must_use]
pub fn sse_head(origin: Option<&str>) -> Vec<u8> {
    let mut out = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n\
        x-accel-buffering: no\r\nconnection: close\r\n"
        .to_vec();
    if let Some(origin) = origin {
        out.extend_from_slice(b"access-control-allow-origin: ");
        out.extend_from_slice(origin.as_bytes());
        out.extend_from_slice(b"\r\nvary: origin\r\n");
    }
    out.extend_from_slice(b"\r\nretry: ");
    put_number(&mut out, SSE_RETRY_MS);
    out.extend_from_slice(b"\n\n");
    out
}

/// The payload of one of our own text frames.
fn text_of(frame: &[u8]) -> &[u8] {
    let header = match frame.get(1) {
        Some(126) => 4,
        Some(127) => 10,
        _ => 2,
    };
    frame.get(header..).unwrap_or_default()
}

/// The type in one of our own JSON texts, whose first member it is.
fn type_of(text: &[u8]) -> &str {
    let name = text.strip_prefix(b"{\"type\":\"").unwrap_or_default();
    let end = name.iter().position(|&byte| byte == b'"').unwrap_or(0);
    std::str::from_utf8(&name[..end]).unwrap_or_default()
}

fn sse(kind: &str, position: Option<(u64, u64)>, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 96);
    if let Some((epoch, seq)) = position {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(show_epoch(epoch).as_bytes());
        out.push(b':');
        put_number(&mut out, seq);
        out.push(b'\n');
    }
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(kind.as_bytes());
    out.push(b'\n');
    // JSON that was posted with line breaks in it keeps them; each line of it is a line of data.
    for line in lines(text) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::wire::event::EventKind;
    use crate::wire::reply;
    use crate::wire::sealed::Event;
    use crate::wire::topic::{Scope, TopicHasher};

    #[test]
    fn an_event_has_id_type_and_every_line_of_its_data() {
        let name = Name::new("x").unwrap();
        let topic = TopicHasher::new(1).topic(Scope::Channel, &name, &name);
        let event = Event {
            seq: 7,
            epoch: 255,
            data: Some("{\n\"a\":1}".into()),
            ..Event::new(EventKind::MessageNew, topic, 5)
        };
        let sealed = Sealed::seal(&event).unwrap();
        let text = String::from_utf8(Dialect::Sse.event(&sealed).into_owned()).unwrap();
        assert!(
            text.starts_with("id: 00000000000000ff:7\nevent: message.new\ndata: {\"type\":\"message.new\""),
            "{text}"
        );
        assert!(text.ends_with("\ndata: \"a\":1}}\n\n"), "{text}");
        assert_eq!(Dialect::Json.event(&sealed).as_ptr(), sealed.json_frame().as_ptr());
    }

    #[test]
    fn replies_and_closes_are_recast() {
        let text = String::from_utf8(Dialect::Sse.reply(reply::pong(None), None)).unwrap();
        assert_eq!(text, "event: pong\ndata: {\"type\":\"pong\"}\n\n");
        let long = reply::error(None, "code", &"x".repeat(300));
        assert!(
            String::from_utf8(Dialect::Sse.reply(long, Some((1, 2)))).unwrap().starts_with("id: 0000000000000001:2\n")
        );
        let close = String::from_utf8(Dialect::Sse.closing(Closing::Draining { retry_after_ms: 9 })).unwrap();
        assert!(close.starts_with("retry: 9\nevent: close\ndata: {\"code\":1012,"), "{close}");
    }
}
