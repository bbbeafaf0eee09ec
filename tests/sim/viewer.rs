//! One viewer: what it asks, what it was promised, and what it may be told after that.

use std::collections::{BTreeMap, BTreeSet};

use ringcast::wire::sealed::ArchivedEventV1;
use serde_json::{Value, json};

use crate::stream::Said;
use crate::truth::Truth;

/// How it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Fast,
    /// So many bytes a step.
    Slow(usize),
    /// Nothing until this step, then fast.
    Pausing(u64),
    Never,
}

/// How far its connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has none.
    Away,
    /// It asked for an upgrade.
    Waiting,
    /// It has its 101; what comes next is `connection.ready`.
    Upgraded,
    Open,
    /// It has closed, or was closed: what still comes is whole, and means nothing.
    Leaving,
}

/// A position to resume from.
pub(crate) type Since = Option<(String, u64)>;

/// What an answer is owed to.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Ping,
    Subscribe { channel: String, since: Since, filter: &'static str },
    Unsubscribe { channel: String },
    Message { channel: String },
    Event,
    Auth { user: usize },
    Nonsense,
}

/// What it knows of a channel that it watches.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    epoch: String,
    /// The last stored event that it has, or was told of.
    pub(crate) seq: u64,
    pub(crate) filter: &'static str,
    /// Where the partition put the last ordered event that is not stored.
    place: Option<u64>,
    critical_place: Option<u64>,
}

/// What stands before a user where a channel could stand; no channel is named so.
pub(crate) const OF_USER: &str = "user ";

/// One viewer, over all its connections.
pub(crate) struct Viewer {
    pub(crate) no: usize,
    pub(crate) socket: usize,
    /// The life of the node that its connection is to.
    pub(crate) life: u64,
    pub(crate) user: Option<usize>,
    pub(crate) rkyv: bool,
    pub(crate) reader: Reader,
    /// It has not always read fast on this connection: it may be left without a word.
    pub(crate) was_slow: bool,
    pub(crate) phase: Phase,
    pub(crate) conn: String,
    pub(crate) first: Option<(String, Since, &'static str)>,
    pub(crate) watching: BTreeMap<String, Known>,
    /// Channels that it left before it was let in.
    left_early: BTreeSet<String>,
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// Commands that are answered only if they are refused.
    pub(crate) mentioned: BTreeSet<u64>,
    /// Critical events, by channel (or [`OF_USER`] and its user) and number, that it must get.
    pub(crate) owed: BTreeSet<(String, u64)>,
    pub(crate) positions: BTreeMap<String, (String, u64)>,
    pub(crate) closed_with: Option<u16>,
    /// It owes a pong.
    pub(crate) pinged: bool,
}

/// The archive of a `ringcast.rkyv` frame as JSON.
pub(crate) fn unpack(archive: &[u8]) -> Value {
    let event = rkyv::access::<ArchivedEventV1, rkyv::rancor::Error>(archive).expect("rules 1 and 2: a whole archive");
    let data = event.data.as_ref().map(|data| serde_json::from_str::<Value>(data.as_str()).expect("JSON"));
    let id = ringcast::base::Ulid(u128::from_be_bytes(event.id)).to_string();
    json!({
        "type": event.type_name.as_str(),
        "channel": if event.scope == 0 { Some(event.target.as_str()) } else { None },
        "seq": event.seq.to_native(),
        "id": id,
        "text": event.text.as_ref().map(rkyv::string::ArchivedString::as_str),
        "data": data,
    })
}

/// The filter lets messages through.
pub(crate) fn takes_messages(filter: &str) -> bool {
    filter.is_empty() || filter.contains("message")
}

fn text<'a>(json: &'a Value, member: &str) -> &'a str {
    json[member].as_str().unwrap_or_else(|| panic!("no {member} in {json}"))
}

impl Viewer {
    pub(crate) fn new(no: usize) -> Self {
        Self {
            no,
            socket: usize::MAX,
            life: 0,
            user: None,
            rkyv: false,
            reader: Reader::Fast,
            was_slow: false,
            phase: Phase::Away,
            conn: String::new(),
            first: None,
            watching: BTreeMap::new(),
            left_early: BTreeSet::new(),
            asked: BTreeMap::new(),
            mentioned: BTreeSet::new(),
            owed: BTreeSet::new(),
            positions: BTreeMap::new(),
            closed_with: None,
            pinged: false,
        }
    }

    /// It has a connection no more; where it was it remembers.
    pub(crate) fn leave(&mut self) {
        self.watching.clear();
        self.left_early.clear();
        self.asked.clear();
        self.mentioned.clear();
        self.owed.clear();
        self.phase = Phase::Leaving;
    }

    /// Something came whole.
    pub(crate) fn on_said(&mut self, said: Said, truth: &mut Truth) {
        match said {
            Said::Answer { .. } if self.phase == Phase::Leaving => {}
            Said::Answer { status: 101, text } => {
                assert_eq!(self.phase, Phase::Waiting, "a join is answered once");
                assert!(text.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{text}");
                self.phase = Phase::Upgraded;
            }
            Said::Answer { status, text } => {
                assert!(matches!(status, 429 | 503), "a good upgrade is answered by {text}");
                self.leave();
            }
            Said::Close(code) => {
                self.closed_with = Some(code);
                self.leave();
            }
            Said::Ping => self.pinged = true,
            Said::Pong => {}
            _ if self.phase == Phase::Leaving => {}
            Said::Text(json) => self.on_json(&json, truth),
            Said::Binary(archive) => {
                assert!(self.rkyv, "a binary frame for one who speaks JSON");
                self.on_event(&unpack(&archive), truth);
            }
        }
    }

    fn on_json(&mut self, json: &Value, truth: &mut Truth) {
        let kind = text(json, "type");
        if self.phase == Phase::Upgraded {
            assert_eq!(kind, "connection.ready", "the first frame");
            self.phase = Phase::Open;
            text(json, "conn").clone_into(&mut self.conn);
            let first = self.first.clone();
            if let Some((channel, ..)) = first.as_ref().filter(|_| json["room"].is_null()) {
                self.left_early.insert(channel.clone());
            } else if let Some((channel, since, filter)) = first {
                self.enter(&channel, &since, filter, json, truth);
            }
            return;
        }
        match kind {
            "subscribed" => match self.answered(json) {
                Asked::Subscribe { channel, since, filter } => {
                    assert_eq!(text(json, "channel"), channel);
                    self.enter(&channel, &since, filter, json, truth);
                }
                other => panic!("{other:?} is answered by {json}"),
            },
            "unsubscribed" => match self.answered(json) {
                Asked::Unsubscribe { channel } => {
                    assert_eq!(text(json, "channel"), channel);
                    let watched = self.watching.remove(&channel).is_some() || self.left_early.remove(&channel);
                    assert!(watched, "unsubscribed from what it does not watch");
                    self.owed.retain(|(of, _)| *of != channel);
                }
                other => panic!("{other:?} is answered by {json}"),
            },
            "ack" => match self.answered(json) {
                Asked::Message { channel } => {
                    truth.acked(&channel, json["seq"].as_u64().expect("a seq"), text(json, "message"));
                }
                Asked::Event => {}
                other => panic!("{other:?} is answered by {json}"),
            },
            "authenticated" => match self.answered(json) {
                Asked::Auth { user } => self.user = Some(user),
                other => panic!("{other:?} is answered by {json}"),
            },
            "pong" => assert!(matches!(self.answered(json), Asked::Ping)),
            "error" if json["id"].as_u64().is_some_and(|id| self.mentioned.remove(&id)) => {}
            "error" => {
                if let Asked::Subscribe { channel, .. } = self.answered(json)
                    && json["code"] == "unsubscribed"
                {
                    self.left_early.insert(channel);
                }
            }
            "health.check" | "draining" => {}
            "gap" => self.on_gap(json),
            _ => {
                assert!(!self.rkyv, "an event as JSON for one who speaks ringcast.rkyv: {json}");
                self.on_event(json, truth);
            }
        }
    }

    fn answered(&mut self, json: &Value) -> Asked {
        let asked = json["id"].as_u64().and_then(|id| self.asked.remove(&id));
        asked.unwrap_or_else(|| panic!("each command is answered once: {json}"))
    }

    /// `connection.ready` or `subscribed`: its position in the channel is certain from here on (rule 4).
    fn enter(&mut self, channel: &str, since: &Since, filter: &'static str, json: &Value, truth: &Truth) {
        let room = text(json, "room");
        assert!(room.starts_with(&format!("{channel}/")), "{room} is no room of {channel}");
        let (epoch, head) = (text(json, "epoch").to_owned(), json["seq"].as_u64().expect("a seq"));
        assert!(head <= truth.head(channel), "ready.seq {head} of {channel} is not durable");
        let seq = match (since, json["recovered"].as_bool()) {
            (None, None) => head,
            (Some((of, seq)), Some(true)) => {
                assert!(*of == epoch && *seq <= head, "a position that cannot be honoured");
                *seq
            }
            (Some((of, seq)), Some(false)) => {
                let kept = seq + 1 >= truth.first_kept.get(channel).copied().unwrap_or(1);
                assert!(*of != epoch || *seq > head || !kept, "a good position {seq} of {channel} is not honoured");
                head
            }
            other => panic!("{other:?}: recovered says the wrong thing"),
        };
        let known = Known { epoch, seq, filter, place: None, critical_place: None };
        self.positions.insert(channel.to_owned(), (known.epoch.clone(), known.seq));
        let before = self.watching.insert(channel.to_owned(), known);
        assert!(before.is_none(), "a client sits in one room of {channel}: it is told twice that it came");
    }

    fn on_gap(&mut self, json: &Value) {
        let channel = text(json, "channel");
        let Some(from) = json["from_seq"].as_u64() else { return };
        let to = json["to_seq"].as_u64().expect("both or none");
        let no = self.no;
        let known = self.watching.get_mut(channel).unwrap_or_else(|| panic!("a gap of {channel}, not watched"));
        if takes_messages(known.filter) {
            assert_eq!(from, known.seq + 1, "rule 3: viewer {no} is told of a gap {from}–{to} in {channel}");
            assert!(to >= from);
            known.seq = to;
            self.positions.insert(channel.to_owned(), (known.epoch.clone(), known.seq));
        }
    }

    fn on_event(&mut self, json: &Value, truth: &Truth) {
        let (kind, number) = (text(json, "type"), json["data"]["n"].as_u64());
        if let Some(number) = number {
            let excluded = truth.excluded.get(&number);
            assert_ne!(excluded, Some(&self.conn), "event {number} names this connection in exclude");
            assert!(truth.order.contains_key(&number), "event {number} passed no partition");
        }
        let Some(channel) = json["channel"].as_str() else {
            if kind == "access.revoked" {
                self.owed.retain(|(of, owed)| !of.starts_with(OF_USER) || Some(*owed) != number);
            }
            return;
        };
        let no = self.no;
        let known = self.watching.get_mut(channel);
        let known = known.unwrap_or_else(|| panic!("viewer {no} does not watch {channel} and gets {json}"));
        let critical = kind == "access.revoked";
        let wanted = known.filter.is_empty()
            || critical
            || known
                .filter
                .split(',')
                .any(|part| part == kind || part.strip_suffix('*').is_some_and(|p| kind.starts_with(p)));
        assert!(wanted, "viewer {no} filters {} and gets {json}", known.filter);
        if kind == "message.new" {
            let seq = json["seq"].as_u64().expect("a seq");
            let before = known.seq;
            assert_eq!(seq, before + 1, "rule 3: {channel} goes on with {seq} after {before} for viewer {no}");
            let stored = truth.stored.get(&(channel.to_owned(), seq)).expect("delivered means durable");
            assert_eq!((text(json, "id"), text(json, "text")), (stored.id.as_str(), stored.text.as_str()));
            known.seq = seq;
            self.positions.insert(channel.to_owned(), (known.epoch.clone(), seq));
            return;
        }
        let Some(number) = number else { return };
        let place = Some(truth.order[&number]);
        if critical {
            assert!(place > known.critical_place, "critical event {number} of {channel} comes twice or too late");
            known.critical_place = place;
            self.owed.remove(&(channel.to_owned(), number));
        } else if kind.starts_with("custom.") {
            assert!(place > known.place, "ordered events swap: {number} of {channel} for viewer {no}");
            known.place = place;
        }
    }
}
