//! A delivery costs the same memory operations whatever the audience: the tick is built once, and an idle viewer that
//! keeps up costs none.

#![allow(missing_docs, reason = "a test, not a library")]
#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringcast::admission::{AppOptions, Apps};
use ringcast::base::{ChannelKey, Given, Name, Now, RoomId, ShardId};
use ringcast::post::letters::{Page, ToOrchestrator, ToShard};
use ringcast::shard::{Action, Origin, SendBatch, Shard, ShardOptions};
use ringcast::wire::event::EventKind;
use ringcast::wire::http::{Head, parse_head};
use ringcast::wire::sealed::{Event, Sealed};
use ringcast::wire::topic::{Scope, TopicHasher};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting what this thread asks of it.
struct Counting;

// SAFETY: every call is handed to the system's allocator as it is; counting touches a thread-local of plain data.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's own.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HEAD: &[u8] =
    b"GET /v1/demo/channels/race/ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A shard whose orchestrator says yes to everything and whose sockets take everything.
struct Stage {
    shard: Shard,
    batch: SendBatch,
    now: Now,
    seats: u64,
    sends: u64,
}

impl Stage {
    fn new(hasher: &TopicHasher) -> Self {
        let app = AppOptions { anonymous_read: true, ..AppOptions::new(Name::new("demo").unwrap(), [0; 32]) };
        let options = ShardOptions { room_capacity: u32::MAX, ..ShardOptions::default() };
        let now = Now::default();
        let shard = Shard::new(options, Apps::new(vec![app]), hasher.clone(), now);
        Self { shard, batch: SendBatch::default(), now, seats: 0, sends: 0 }
    }

    /// Does what the shard wants done, until it wants nothing.
    fn settle(&mut self) {
        loop {
            while let Some(action) = self.shard.poll_action() {
                let answer = match action {
                    Action::Ask(ToOrchestrator::AskSeat { ticket, channel, .. }) => {
                        assert!(channel.is_some());
                        self.seats += 1;
                        let room = RoomId { shard: ShardId(0), n: 0 };
                        ToShard::SeatAnswer { ticket, answer: Ok(Some(Given { room, number: self.seats, viewers: 1 })) }
                    }
                    Action::Ask(ToOrchestrator::AskPage { ticket, .. }) => ToShard::PageAnswer {
                        ticket,
                        answer: Ok(Page { epoch: 1, head: 0, first_kept: 1, events: Vec::new() }),
                    },
                    _ => continue,
                };
                self.shard.on_letter(self.now, answer);
            }
            self.shard.poll_fanout(self.now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            self.sends += self.batch.sends().len() as u64;
            self.shard.on_sent(self.now, &mut self.batch, &mut []);
        }
    }

    fn join(&mut self) {
        let Head::Upgrade(upgrade) = parse_head(HEAD).unwrap() else { panic!() };
        self.shard.on_upgrade(self.now, &upgrade, Origin { address: None, loopback: true }).unwrap();
        self.settle();
    }
}

/// How many allocations one delivery to `viewers` takes.
fn allocations(viewers: u64) -> u64 {
    let hasher = TopicHasher::new(7);
    let key = ChannelKey::new(Name::new("demo").unwrap(), Name::new("race").unwrap());
    let topic = hasher.topic(Scope::Channel, &key.app, &key.channel);
    let mut stage = Stage::new(&hasher);
    for _ in 0..viewers {
        stage.join();
    }
    assert_eq!(u64::from(stage.shard.connections()), viewers);
    let event = |seq| {
        let event = Event {
            seq,
            epoch: 1,
            text: Some("hello".into()),
            ..Event::new(EventKind::MessageNew, topic.clone(), 1_796_050_000_123)
        };
        Sealed::seal(&event).unwrap()
    };
    let mut counts = Vec::new();
    for seq in 1..=100 {
        let sealed = event(seq);
        let (sends, before) = (stage.sends, COUNT.with(Cell::get));
        stage.shard.on_sealed(stage.now, &sealed);
        stage.settle();
        let after = COUNT.with(Cell::get);
        assert_eq!(stage.sends - sends, viewers, "each viewer gets one send");
        counts.push(after - before);
    }
    // The first deliveries grow buffers that stay, and the tail of the channel until it has its length.
    let last = counts[99];
    assert!(counts[70..].iter().all(|count| *count == last), "{viewers}: {counts:?}");
    last
}

#[test]
fn a_delivery_allocates_as_often_for_ten_thousand_as_for_a_thousand() {
    let (few, many) = (allocations(1_000), allocations(10_000));
    assert_eq!(few, many);
    assert!(few <= 6, "{few} allocations for one event");
}
