//! The sealed event: archived once, checked once, shared between cores as one `Arc`, read without copying.
//!
//! An [`Event`] flows in, a [`Sealed`] flows out. Always true: whoever holds a [`Sealed`] holds a valid archive, for
//! both ways into the type (sealing, and [`Sealed::from_wire`] for bytes of a relay) check it; and the complete
//! `ringcast.json` frame, header and text, lies inside the archive, so a tick of one event is sent straight from it.
//!
//! Outside the process an archive travels behind a header of 16 bytes: rkyv finds its root from the end and knows
//! no schema evolution, so length, version and checksum stand in front of it. A changed field is a new version.

#![allow(unsafe_code, reason = "reads an archive that was checked when it came in, without checking it again")]

use std::fmt;
use std::sync::Arc;

use rkyv::rancor::Error as RkyvError;
use rkyv::{Archive, Serialize};

use super::event::EventKind;
use super::frame::{HEADER_BYTES_MAX, Opcode, put_header};
use super::json::put_json;
use super::topic::{Scope, Topic, TopicHasher};
use crate::base::{Name, Ulid};

/// The largest archive that is accepted from outside, in bytes: a post of 16 KiB, its JSON form with every character
/// escaped, and names.
pub const ARCHIVE_BYTES_MAX: usize = 256 * 1024;
/// The bytes in front of an archive that leaves the process.
pub const WIRE_HEADER_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"RCEV";
const VERSION: u16 = 1;

/// A value beside the common fields of an event, such as `connections` of `viewers.updated`.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize)]
pub enum Member {
    /// A string.
    Text(String),
    /// A whole number.
    Number(u64),
    /// Any JSON, as text that was checked.
    Json(String),
}

/// What an event says, before it is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its type.
    pub kind: EventKind,
    /// The whole type name of a custom event (`custom.goal`); empty for the others.
    pub custom_name: String,
    /// To whom.
    pub topic: Topic,
    /// Its number in its channel; 0 if it is not stored.
    pub seq: u64,
    /// The numbering that `seq` belongs to; 0 if it is not stored.
    pub epoch: u64,
    /// Unix milliseconds.
    pub ts_ms: u64,
    /// The message's id; `None` for events that have none.
    pub id: Option<Ulid>,
    /// Who caused it, or of whom it speaks; empty if nobody.
    pub user_id: String,
    /// The name to show for that user; may be empty.
    pub user_name: String,
    /// What was posted as `text`.
    pub text: Option<String>,
    /// What was posted as `data`: JSON text that was checked.
    pub data: Option<String>,
    /// Further members, in the order they are shown.
    pub members: Vec<(String, Member)>,
    /// The connection that shall not get it; 0 is nobody.
    pub exclude: u64,
}

impl Event {
    /// An event with nothing in it but its type, target and time.
    #[must_use]
    pub fn new(kind: EventKind, topic: Topic, ts_ms: u64) -> Self {
        Self {
            kind,
            custom_name: String::new(),
            topic,
            seq: 0,
            epoch: 0,
            ts_ms,
            id: None,
            user_id: String::new(),
            user_name: String::new(),
            text: None,
            data: None,
            members: Vec::new(),
            exclude: 0,
        }
    }

    /// The type name as clients see it.
    #[must_use]
    pub fn type_name(&self) -> &str {
        if self.custom_name.is_empty() { self.kind.row().name } else { &self.custom_name }
    }
}

/// The archived form, version 1. Fields are only ever added by a new version.
#[derive(Archive, Serialize, Debug)]
pub struct EventV1 {
    /// Number of the [`EventKind`].
    pub kind: u8,
    /// Number of the [`Scope`].
    pub scope: u8,
    /// The tenant.
    pub app: String,
    /// The channel, user or tag.
    pub target: String,
    /// The type name as clients see it.
    pub type_name: String,
    /// See [`Event::seq`].
    pub seq: u64,
    /// See [`Event::epoch`].
    pub epoch: u64,
    /// Unix milliseconds.
    pub ts_ms: u64,
    /// The ULID's 16 bytes, big-endian; all zero if there is none.
    pub id: [u8; 16],
    /// See [`Event::user_id`].
    pub user_id: String,
    /// See [`Event::user_name`].
    pub user_name: String,
    /// See [`Event::text`].
    pub text: Option<String>,
    /// See [`Event::data`].
    pub data: Option<String>,
    /// See [`Event::members`].
    pub members: Vec<(String, Member)>,
    /// See [`Event::exclude`].
    pub exclude: u64,
    /// The complete WebSocket text frame of `ringcast.json`; empty in what a `ringcast.rkyv` client gets.
    pub json_frame: Vec<u8>,
}

struct Inner {
    archive: Box<[u8]>,
    topic: Topic,
    kind: EventKind,
    seq: u64,
    epoch: u64,
    exclude: u64,
    frame_at: usize,
    frame_bytes: usize,
}

/// A sealed event. Cloning it is counting.
///
/// To whom it goes lies beside the pointer: a shard that nobody wants it on says so without reading a line of memory that
/// another core wrote.
#[derive(Clone)]
pub struct Sealed {
    inner: Arc<Inner>,
    hash: u64,
    scope: Scope,
}

/// Why bytes from outside are no sealed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSealed {
    /// Shorter than its header, or not as long as the header says.
    Length,
    /// Longer than [`ARCHIVE_BYTES_MAX`].
    TooLarge,
    /// It does not begin with our magic number.
    Magic,
    /// A version this build does not read.
    Version(u16),
    /// The checksum does not fit.
    Checksum,
    /// The archive's own structure is broken.
    Archive,
    /// A number that names no event type or scope, a name that is none, or a frame that is not the archive's own.
    Field,
}

impl fmt::Display for BadSealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("the sealed event is not as long as its header says"),
            Self::TooLarge => write!(f, "the sealed event is larger than {ARCHIVE_BYTES_MAX} bytes"),
            Self::Magic => f.write_str("these bytes are no sealed event"),
            Self::Version(v) => write!(f, "the sealed event has version {v}, this node reads {VERSION}"),
            Self::Checksum => f.write_str("the sealed event was damaged on its way: its checksum does not fit"),
            Self::Archive => f.write_str("the sealed event's archive is not valid"),
            Self::Field => f.write_str("a field of the sealed event is out of its range"),
        }
    }
}

impl std::error::Error for BadSealed {}

impl Sealed {
    /// Seals `event`: writes its JSON frame and archives the whole.
    ///
    /// # Errors
    /// [`BadSealed::TooLarge`] beyond [`ARCHIVE_BYTES_MAX`]; what passed admission never is.
    pub fn seal(event: &Event) -> Result<Self, BadSealed> {
        let archive = archive(event, json_frame(event))?;
        Self::checked(archive.into_vec().into(), |_, _, _| Ok(event.topic.clone()))
    }

    /// Reads what [`Sealed::to_wire`] wrote. The topic's hash is computed anew: each process has its own secret.
    ///
    /// # Errors
    /// See [`BadSealed`]; a peer that sends such bytes is faulty.
    pub fn from_wire(bytes: &[u8], hasher: &TopicHasher) -> Result<Self, BadSealed> {
        let (header, archive) = bytes.split_at_checked(WIRE_HEADER_BYTES).ok_or(BadSealed::Length)?;
        if header[..4] != MAGIC {
            return Err(BadSealed::Magic);
        }
        let version = u16::from_le_bytes([header[4], header[5]]);
        if version != VERSION {
            return Err(BadSealed::Version(version));
        }
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        if length > ARCHIVE_BYTES_MAX {
            return Err(BadSealed::TooLarge);
        }
        if length != archive.len() {
            return Err(BadSealed::Length);
        }
        if u32::from_le_bytes([header[12], header[13], header[14], header[15]]) != crc32fast::hash(archive) {
            return Err(BadSealed::Checksum);
        }
        Self::checked(archive.into(), |scope, app, target| {
            let name = |text: &str| Name::new(text).map_err(|_| BadSealed::Field);
            Ok(hasher.topic(scope, &name(app)?, &name(target)?))
        })
    }

    /// The archive behind its header, for another process.
    #[must_use]
    pub fn to_wire(&self) -> Vec<u8> {
        let archive = &self.inner.archive;
        let mut out = Vec::with_capacity(WIRE_HEADER_BYTES + archive.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(archive.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(archive).to_le_bytes());
        out.extend_from_slice(archive);
        out
    }

    fn checked(
        archive: Box<[u8]>,
        topic: impl FnOnce(Scope, &str, &str) -> Result<Topic, BadSealed>,
    ) -> Result<Self, BadSealed> {
        let event = rkyv::access::<ArchivedEventV1, RkyvError>(&archive).map_err(|_| BadSealed::Archive)?;
        let kind = EventKind::from_number(event.kind).ok_or(BadSealed::Field)?;
        let scope = Scope::from_number(event.scope).ok_or(BadSealed::Field)?;
        let topic = topic(scope, event.app.as_str(), event.target.as_str())?;
        let (seq, epoch, exclude) = (event.seq.to_native(), event.epoch.to_native(), event.exclude.to_native());
        if kind.row().stored != (seq != 0) {
            return Err(BadSealed::Field);
        }
        let frame = event.json_frame.as_slice();
        let frame_at = frame.as_ptr() as usize - archive.as_ptr() as usize;
        let frame_bytes = frame.len();
        if frame_bytes == 0 {
            return Err(BadSealed::Field);
        }
        let (hash, scope) = (topic.hash, topic.scope);
        let inner = Arc::new(Inner { archive, topic, kind, seq, epoch, exclude, frame_at, frame_bytes });
        Ok(Self { inner, hash, scope })
    }

    /// How many hold this event, on all cores; another may let go meanwhile.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    /// The archived event.
    #[must_use]
    pub fn event(&self) -> &ArchivedEventV1 {
        // SAFETY: `checked` validated these very bytes as this type, at this place in memory and of this length, from which
        // the root is found. The box is private and nothing writes to it afterwards; moving it moves no byte of the archive.
        unsafe { rkyv::access_unchecked::<ArchivedEventV1>(&self.inner.archive) }
    }

    /// The complete `ringcast.json` frame.
    #[must_use]
    pub fn json_frame(&self) -> &[u8] {
        &self.inner.archive[self.inner.frame_at..self.inner.frame_at + self.inner.frame_bytes]
    }

    /// Builds the complete `ringcast.rkyv` frame: a binary frame whose payload is this archive without its JSON
    /// frame. A shard builds it once an event, and only if it has a viewer that speaks it.
    ///
    /// # Errors
    /// None that a sealed event can cause; the type says so because archiving is fallible.
    pub fn rkyv_frame(&self) -> Result<Vec<u8>, BadSealed> {
        let payload = archive(&self.to_event(), Vec::new())?;
        let mut frame = Vec::with_capacity(HEADER_BYTES_MAX + payload.len());
        put_header(&mut frame, Opcode::Binary, payload.len());
        frame.extend_from_slice(&payload);
        Ok(frame)
    }

    /// The event as it was before it was sealed.
    #[must_use]
    pub fn to_event(&self) -> Event {
        let e = self.event();
        let id = u128::from_be_bytes(e.id);
        Event {
            kind: self.inner.kind,
            custom_name: if self.inner.kind == EventKind::Custom { e.type_name.as_str().into() } else { String::new() },
            topic: self.inner.topic.clone(),
            seq: self.inner.seq,
            epoch: self.inner.epoch,
            ts_ms: e.ts_ms.to_native(),
            id: (id != 0).then_some(Ulid(id)),
            user_id: e.user_id.as_str().into(),
            user_name: e.user_name.as_str().into(),
            text: e.text.as_ref().map(|t| t.as_str().into()),
            data: e.data.as_ref().map(|d| d.as_str().into()),
            members: e
                .members
                .iter()
                .map(|pair| {
                    let member = match &pair.1 {
                        ArchivedMember::Text(t) => Member::Text(t.as_str().into()),
                        ArchivedMember::Number(n) => Member::Number(n.to_native()),
                        ArchivedMember::Json(j) => Member::Json(j.as_str().into()),
                    };
                    (pair.0.as_str().into(), member)
                })
                .collect(),
            exclude: self.inner.exclude,
        }
    }

    /// What its topic names.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// The hash of its topic.
    #[must_use]
    pub const fn topic_hash(&self) -> u64 {
        self.hash
    }

    /// To whom.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        &self.inner.topic
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.inner.kind
    }

    /// Its number in its channel; 0 if it is not stored.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.inner.seq
    }

    /// The numbering of `seq`; 0 if it is not stored.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    /// The connection that shall not get it; 0 is nobody.
    #[must_use]
    pub fn exclude(&self) -> u64 {
        self.inner.exclude
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Sealed({} {}/{} seq {})",
            self.inner.kind.row().name,
            self.inner.topic.app,
            self.inner.topic.name,
            self.inner.seq
        )
    }
}

fn archive(event: &Event, json_frame: Vec<u8>) -> Result<rkyv::util::AlignedVec, BadSealed> {
    let archived = EventV1 {
        kind: event.kind as u8,
        scope: event.topic.scope as u8,
        app: event.topic.app.as_str().into(),
        target: event.topic.name.as_str().into(),
        type_name: event.type_name().into(),
        seq: event.seq,
        epoch: event.epoch,
        ts_ms: event.ts_ms,
        id: event.id.map_or([0; 16], |id| id.0.to_be_bytes()),
        user_id: event.user_id.clone(),
        user_name: event.user_name.clone(),
        text: event.text.clone(),
        data: event.data.clone(),
        members: event.members.clone(),
        exclude: event.exclude,
        json_frame,
    };
    let bytes = rkyv::to_bytes::<RkyvError>(&archived).map_err(|_| BadSealed::Archive)?;
    if bytes.len() > ARCHIVE_BYTES_MAX { Err(BadSealed::TooLarge) } else { Ok(bytes) }
}

fn json_frame(event: &Event) -> Vec<u8> {
    let mut text = Vec::with_capacity(256);
    put_json(&mut text, event);
    let mut frame = Vec::with_capacity(HEADER_BYTES_MAX + text.len());
    put_header(&mut frame, Opcode::Text, text.len());
    frame.extend_from_slice(&text);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Event {
        let hasher = TopicHasher::new(1);
        let name = |t| Name::new(t).unwrap();
        let topic = hasher.topic(Scope::Channel, &name("demo"), &name("race-42"));
        Event {
            seq: 1_201,
            epoch: 77,
            id: Some(Ulid::new(1_796_050_000_123, 5)),
            user_id: "u1".into(),
            user_name: "Ann \"A\"".into(),
            text: Some("hi\n".into()),
            data: Some("{\"a\":1}".into()),
            members: vec![("n".into(), Member::Number(3)), ("t".into(), Member::Text("x".into()))],
            ..Event::new(EventKind::MessageNew, topic, 1_796_050_000_123)
        }
    }

    #[test]
    fn seals_and_reads_back_the_same() {
        let event = message();
        let sealed = Sealed::seal(&event).unwrap();
        assert_eq!(sealed.to_event(), event);
        let frame = sealed.json_frame();
        let json: serde_json::Value = serde_json::from_slice(&frame[4..]).unwrap();
        assert_eq!(json["text"], "hi\n");
        assert_eq!(json["user"]["name"], "Ann \"A\"");
        assert_eq!(json["seq"], 1_201);
        assert_eq!(json["n"], 3);
        assert_eq!(json["data"]["a"], 1);
    }

    #[test]
    fn travels_between_processes_and_any_damage_is_seen() {
        let hasher = TopicHasher::new(99);
        let sealed = Sealed::seal(&message()).unwrap();
        let wire = sealed.to_wire();
        let back = Sealed::from_wire(&wire, &hasher).unwrap();
        assert_eq!(back.json_frame(), sealed.json_frame());
        assert_eq!(back.topic().hash, hasher.hash(Scope::Channel, "demo", "race-42"));
        for at in 0..wire.len() {
            // Bytes 6 and 7 are reserved.
            if at == 6 || at == 7 {
                continue;
            }
            let mut damaged = wire.clone();
            damaged[at] ^= 0x40;
            assert!(Sealed::from_wire(&damaged, &hasher).is_err(), "byte {at}");
        }
        assert_eq!(Sealed::from_wire(&wire[..wire.len() - 1], &hasher).unwrap_err(), BadSealed::Length);
    }

    #[test]
    fn a_stored_type_without_a_seq_is_no_event() {
        let mut event = message();
        event.seq = 0;
        assert_eq!(Sealed::seal(&event).unwrap_err(), BadSealed::Field);
    }

    #[test]
    fn the_rkyv_frame_holds_typed_fields_and_no_json() {
        let frame = Sealed::seal(&message()).unwrap().rkyv_frame().unwrap();
        assert_eq!(frame[0], 0x82);
        let payload = &frame[4..];
        let event = rkyv::access::<ArchivedEventV1, RkyvError>(payload).unwrap();
        assert_eq!(event.seq.to_native(), 1_201);
        assert!(event.json_frame.is_empty());
    }
}
