//! What really happened, as the simulation saw it from outside: what was committed, in which order the partitions put
//! what is not stored, who was promised what.

use std::collections::{BTreeMap, BTreeSet};

use ringcast::store::{Appended, NewEvent};
use ringcast::wire::event::EventKind;
use ringcast::wire::sealed::Sealed;

/// A committed event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) id: String,
    pub(crate) text: String,
}

/// An HTTP request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) channel: String,
    pub(crate) key: Option<String>,
    pub(crate) is_post: bool,
    /// The number of the event that it publishes.
    pub(crate) event: Option<u64>,
}

/// All that is known for certain.
#[derive(Default)]
pub(crate) struct Truth {
    pub(crate) stored: BTreeMap<(String, u64), Stored>,
    pub(crate) heads: BTreeMap<String, u64>,
    /// The lowest seq that retention has left.
    pub(crate) first_kept: BTreeMap<String, u64>,
    /// Where a partition put an event with this number.
    pub(crate) order: BTreeMap<u64, u64>,
    /// The connection that must not get the event with this number.
    pub(crate) excluded: BTreeMap<u64, String>,
    /// Numbers of events that a full mailbox turned away.
    pub(crate) turned_away: BTreeSet<u64>,
    pub(crate) acked: Vec<(String, u64, String)>,
    /// What the first post with an idempotency key was answered.
    pub(crate) first_answers: BTreeMap<String, (u64, String)>,
    /// By shard and ticket.
    pub(crate) requests: BTreeMap<(usize, u64), Request>,
    /// Batches that the store failed to write, or did not say of whether it had.
    pub(crate) failed_commits: u64,
    /// Events that were put into a partition's mailbox, and those that it turned away, of this process.
    pub(crate) entered: u64,
    pub(crate) dropped_on_the_way: u64,
    /// Stored events that a shard got twice, of this process.
    pub(crate) came_twice: u64,
    pub(crate) recovered_asked: bool,
    /// Who was said to have come to a channel and not to have left since.
    members: BTreeSet<(String, String)>,
    /// Members are told one by one whatever happens, so nobody comes or leaves without a word.
    pub(crate) tells_members: bool,
    /// Who types where, as the partitions ordered it.
    typing: BTreeSet<(String, String)>,
    next_number: u64,
}

impl Truth {
    /// A number that no other event has.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(crate) fn head(&self, channel: &str) -> u64 {
        self.heads.get(channel).copied().unwrap_or(0)
    }

    /// A batch is on disk: seq rises by one.
    pub(crate) fn committed(&mut self, events: &[NewEvent], results: &[Appended]) {
        assert_eq!(events.len(), results.len());
        for (event, result) in events.iter().zip(results) {
            let channel = event.key.channel.as_str().to_owned();
            if let Appended::New { position } = result {
                let head = self.heads.entry(channel.clone()).or_default();
                assert_eq!(position.seq, *head + 1, "seq rises by one in {channel}");
                *head = position.seq;
                let stored = Stored { id: event.id.to_string(), text: event.text.clone().unwrap_or_default() };
                self.stored.insert((channel, position.seq), stored);
            }
        }
    }

    /// Someone was told that a message is durable.
    pub(crate) fn acked(&mut self, channel: &str, seq: u64, id: &str) {
        let stored = self.stored.get(&(channel.to_owned(), seq));
        assert_eq!(stored.map(|s| s.id.as_str()), Some(id), "acked means durable: {channel} {seq}");
        self.acked.push((channel.to_owned(), seq, id.to_owned()));
    }

    /// A request has its answer, the only one.
    pub(crate) fn answered(&mut self, shard: usize, ticket: u64, status: u16, body: &[u8]) {
        let request = self.requests.remove(&(shard, ticket));
        let request = request.unwrap_or_else(|| panic!("ticket {ticket} of shard {shard} is answered, nobody asks"));
        if let Some(number) = request.event.filter(|_| status != 202) {
            self.turned_away.insert(number);
        }
        if !request.is_post || status != 201 {
            assert!(
                matches!(status, 200 | 201 | 202 | 409 | 422 | 429 | 503),
                "status {status}: {}",
                String::from_utf8_lossy(body)
            );
            return;
        }
        let json: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        let (seq, id) = (json["seq"].as_u64().expect("a seq"), json["id"].as_str().expect("an id"));
        self.acked(&request.channel, seq, id);
        if let Some(key) = request.key {
            let first = self.first_answers.entry(key).or_insert_with(|| (seq, id.to_owned()));
            assert_eq!((first.0, first.1.as_str()), (seq, id), "a repeat gets the first answer");
        }
    }

    /// A partition gives an event its place.
    pub(crate) fn ordered(&mut self, sealed: &Sealed) {
        let writer = || (sealed.topic().name.to_string(), sealed.event().user_id.as_str().to_owned());
        match sealed.kind() {
            EventKind::TypingStart => _ = self.typing.insert(writer()),
            EventKind::TypingStop => _ = self.typing.remove(&writer()),
            _ => {}
        }
        if let Some(number) = number_of(sealed) {
            let place = self.order.len() as u64;
            let before = self.order.insert(number, place);
            assert_eq!(before, None, "event {number} passes its partition once");
        }
    }
}

impl Truth {
    /// A partition shard says something of members: each comes before it leaves, and leaves before it comes again.
    pub(crate) fn said_of_members(&mut self, sealed: &Sealed) {
        let channel = sealed.topic().name.to_string();
        let user = sealed.event().user_id.as_str().to_owned();
        match sealed.kind() {
            EventKind::MemberJoined => {
                let new = self.members.insert((channel.clone(), user.clone()));
                assert!(new || !self.tells_members, "{user} joins {channel} twice");
            }
            EventKind::MemberLeft => {
                let was = self.members.remove(&(channel.clone(), user.clone()));
                assert!(was || !self.tells_members, "{user} leaves {channel} without having joined it");
            }
            _ => {}
        }
    }

    /// A process has ended, and with it all that it knew of who is there.
    pub(crate) fn forget_people(&mut self) {
        self.members.clear();
        self.typing.clear();
    }

    /// Of everybody who was said to type it was said that this ended.
    pub(crate) fn assert_nobody_types(&self) {
        assert!(self.typing.is_empty(), "the end of typing is told: {:?}", self.typing);
    }
}

/// The number that an event of the simulation carries in its data.
pub(crate) fn number_of(sealed: &Sealed) -> Option<u64> {
    let data = sealed.event().data.as_ref()?;
    data.as_str().strip_prefix("{\"n\":")?.split('}').next()?.parse().ok()
}
