//! One shard without a core: its orchestrator says yes to everything, and its sockets take what they are told to.
//!
//! For tests and benches of the path of an event that need no kernel, no other core and no time.

#![allow(dead_code, unreachable_pub, reason = "each user needs a part of it")]

use ringcast::admission::{AppOptions, Apps};
use ringcast::base::{ClientId, Given, Name, Now, RoomId, ShardId};
use ringcast::post::letters::{Page, ToOrchestrator, ToShard};
use ringcast::shard::{Action, Origin, SendBatch, SendResult, Shard, ShardOptions};
use ringcast::wire::event::EventKind;
use ringcast::wire::http::{Head, parse_head};
use ringcast::wire::problem::Problem;
use ringcast::wire::sealed::{Event, Sealed};
use ringcast::wire::topic::{Scope, Topic, TopicHasher};

const FIELDS: &str = "Host: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// The shard, and the channel that everybody watches.
pub(crate) struct Stage {
    pub(crate) shard: Shard,
    pub(crate) now: Now,
    pub(crate) topic: Topic,
    batch: SendBatch,
    results: Vec<(u32, SendResult)>,
    seats: u64,
    /// Pages are not answered while this is some: their tickets are gathered here.
    pub(crate) withheld: Option<Vec<u64>>,
}

impl Stage {
    pub(crate) fn new(options: ShardOptions) -> Self {
        let name = |name| Name::new(name).expect("a name");
        let app = AppOptions { anonymous_read: true, ..AppOptions::new(name("demo"), [0; 32]) };
        let hasher = TopicHasher::new(7);
        let topic = hasher.topic(Scope::Channel, &name("demo"), &name("race"));
        let now = Now::default();
        let shard = Shard::new(options, Apps::new(vec![app]), hasher, now);
        Self { shard, now, topic, batch: SendBatch::default(), results: Vec::new(), seats: 0, withheld: None }
    }

    /// A viewer asks to join the channel that everybody watches.
    pub(crate) fn join(&mut self, heard: &mut impl FnMut(&Action)) {
        self.join_channel("race", heard);
    }

    /// A viewer asks to join a channel.
    pub(crate) fn join_channel(&mut self, channel: &str, heard: &mut impl FnMut(&Action)) {
        self.knock(channel).expect("a ticket");
        self.act(heard);
    }

    /// A viewer asks, and is not answered yet.
    pub(crate) fn knock(&mut self, channel: &str) -> Result<u64, Problem> {
        let head = format!("GET /v1/demo/channels/{channel}/ws HTTP/1.1\r\n{FIELDS}");
        let Ok(Head::Upgrade(upgrade)) = parse_head(head.as_bytes()) else { panic!("the head is an upgrade") };
        self.shard.on_upgrade(self.now, &upgrade, Origin { address: None, loopback: true })
    }

    /// Answers what the shard asks; whatever else it wants done is told.
    pub(crate) fn act(&mut self, heard: &mut impl FnMut(&Action)) {
        while let Some(action) = self.shard.poll_action() {
            let answer = match action {
                Action::Ask(ToOrchestrator::AskSeat { ticket, channel, .. }) => {
                    assert!(channel.is_some());
                    self.seats += 1;
                    let room = RoomId { shard: ShardId(0), n: 0 };
                    ToShard::SeatAnswer { ticket, answer: Ok(Some(Given { room, number: self.seats, viewers: 1 })) }
                }
                Action::Ask(ToOrchestrator::AskPage { ticket, .. }) => match &mut self.withheld {
                    Some(tickets) => {
                        tickets.push(ticket);
                        continue;
                    }
                    None => empty_page(ticket),
                },
                other => {
                    heard(&other);
                    continue;
                }
            };
            self.shard.on_letter(self.now, answer);
        }
    }

    /// An event of the channel; a stored one has a seq.
    pub(crate) fn event(&self, kind: EventKind, seq: u64, text: &str) -> Sealed {
        let event = Event {
            seq,
            epoch: u64::from(seq > 0),
            text: (!text.is_empty()).then(|| text.into()),
            ..Event::new(kind, self.topic.clone(), 1_796_050_000_123)
        };
        Sealed::seal(&event).expect("an event")
    }

    /// One submit: `take` says how many bytes of a send its socket takes. True while more waits.
    pub(crate) fn submit(
        &mut self,
        heard: &mut impl FnMut(&Action),
        mut take: impl FnMut(ClientId, &[u8]) -> usize,
    ) -> bool {
        let more = self.shard.poll_fanout(self.now, &mut self.batch);
        self.results.clear();
        for (at, send) in self.batch.sends().iter().enumerate() {
            let bytes = self.shard.bytes_of(&self.batch, send);
            let taken = take(send.client, bytes);
            if taken < bytes.len() {
                self.results.push((at as u32, SendResult::Short(taken)));
            }
        }
        let any = !self.batch.is_empty();
        self.shard.on_sent(self.now, &mut self.batch, &mut self.results);
        self.act(heard);
        more || any
    }

    /// Submits until nothing waits; every socket takes everything. Returns the number of sends.
    pub(crate) fn settle(&mut self) -> u64 {
        let mut sends = 0;
        let mut count = |_: ClientId, bytes: &[u8]| {
            sends += 1;
            bytes.len()
        };
        while self.submit(&mut |_| {}, &mut count) {}
        sends
    }
}

/// What the store says of a channel in which nothing was ever said.
pub(crate) fn empty_page(ticket: u64) -> ToShard {
    ToShard::PageAnswer { ticket, answer: Ok(Page { epoch: 1, head: 0, first_kept: 1, events: Vec::new() }) }
}
