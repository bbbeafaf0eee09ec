//! Rule 6: from in step to behind and back, whatever part of a tick the kernel takes.
//!
//! One shard, a few viewers whose sockets take as many bytes as the dice say. The twin of a viewer is the stream that
//! its socket took, read as a client reads it: frames come whole, stored events in their order, and what is missing was
//! told by a gap before anything later; and the account counts as written exactly the frames that came whole.

use std::cell::Cell;
use std::collections::BTreeMap;

use ringcast::base::{Class, ClientId};
use ringcast::fanout::score::OutboxOptions;
use ringcast::shard::{Action, ShardOptions};
use ringcast::wire::event::EventKind;

use super::stage::Stage;
use super::{Rng, for_seeds};

/// A viewer as its socket sees it.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// What was read of them.
    at: usize,
    blocked: bool,
    last_seq: u64,
    /// The highest seq that a gap told of.
    told_seq: u64,
    /// Frames that came whole, by what their class is.
    ordered: u64,
    mergeable: u64,
    gaps: u64,
}

impl Stream {
    /// Reads the frames that came whole since.
    fn read(&mut self) {
        if self.at == 0 {
            let Some(end) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return };
            assert!(self.bytes.starts_with(b"HTTP/1.1 101 "), "the answer to the upgrade comes first");
            self.at = end + 4;
        }
        while let Some((text, end)) = frame(&self.bytes[self.at..]) {
            let value: serde_json::Value = serde_json::from_slice(text).expect("a whole frame is JSON");
            self.at += end;
            let number = |name: &str| value[name].as_u64().unwrap_or(0);
            match value["type"].as_str().expect("a type") {
                "gap" => {
                    self.gaps += 1;
                    // A gap of ephemeral events names no seqs.
                    self.told_seq = self.told_seq.max(number("to_seq"));
                    let from = number("from_seq");
                    assert!(from == 0 || from > self.last_seq, "a gap stands in the place of what was lost");
                }
                "message.new" => {
                    let seq = number("seq");
                    assert!(seq > self.last_seq, "{seq} after {}", self.last_seq);
                    let follows = seq == self.last_seq + 1 || seq - 1 <= self.told_seq;
                    assert!(follows, "{seq} after {}, told to {}", self.last_seq, self.told_seq);
                    self.last_seq = seq;
                    self.ordered += 1;
                }
                "typing.start" => self.ordered += 1,
                "viewers.updated" => self.mergeable += 1,
                "connection.ready" => {}
                other => panic!("{other}"),
            }
        }
    }
}

/// The text of the first frame, if it is there whole, and where it ends.
fn frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    assert_eq!(bytes.first().copied().unwrap_or(0x81), 0x81, "the stream is torn");
    let (length, begins) = match *bytes.get(1)? {
        126 => (usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize, 10),
        length => (usize::from(length), 2),
    };
    Some((bytes.get(begins..begins + length)?, begins + length))
}

struct World {
    stage: Stage,
    seq: u64,
    shorts: u64,
    streams: BTreeMap<ClientId, Stream>,
}

/// What the shard wants of sockets.
fn hear(streams: &mut BTreeMap<ClientId, Stream>) -> impl FnMut(&Action) {
    |action| match action {
        Action::Install { client, .. } => {
            streams.insert(*client, Stream::default());
        }
        Action::WantWritable(client) => streams.get_mut(client).expect("a client").blocked = true,
        Action::Ask(_) => {}
        other => panic!("{other:?}"),
    }
}

impl World {
    fn new(outbox: OutboxOptions, sends_per_submit: u32) -> Self {
        let stage = Stage::new(ShardOptions { outbox, sends_per_submit, ..ShardOptions::default() });
        Self { stage, seq: 0, shorts: 0, streams: BTreeMap::new() }
    }

    fn join(&mut self) {
        self.stage.join(&mut hear(&mut self.streams));
    }

    fn publish(&mut self, rng: &mut Rng) {
        let kind = rng.pick(&[
            EventKind::MessageNew,
            EventKind::MessageNew,
            EventKind::TypingStart,
            EventKind::ViewersUpdated,
        ]);
        let stored = kind == EventKind::MessageNew;
        self.seq += u64::from(stored);
        let text = "x".repeat(if stored { 1 + rng.below(300) as usize } else { 0 });
        let sealed = self.stage.event(kind, if stored { self.seq } else { 0 }, &text);
        self.stage.shard.on_sealed(self.stage.now, &sealed);
        self.stage.act(&mut hear(&mut self.streams));
    }

    /// One submit, of which each socket takes what the dice say; `short_percent` of them not all.
    fn submit(&mut self, rng: &mut Rng, short_percent: u64) -> bool {
        let mut blocked = Vec::new();
        let more = self.stage.submit(
            &mut |action| match action {
                Action::WantWritable(client) => blocked.push(*client),
                Action::Ask(_) => {}
                other => panic!("{other:?}"),
            },
            |client, bytes| {
                let stream = self.streams.get_mut(&client).expect("a client");
                assert!(!stream.blocked, "who has no room is not written to");
                let mut taken = bytes.len();
                if rng.chance(short_percent) {
                    taken = rng.below(bytes.len() as u64) as usize;
                    self.shorts += 1;
                }
                stream.bytes.extend_from_slice(&bytes[..taken]);
                taken
            },
        );
        for client in blocked {
            self.streams.get_mut(&client).expect("a client").blocked = true;
        }
        self.check();
        more
    }

    fn let_write(&mut self, client: ClientId) {
        if std::mem::take(&mut self.streams.get_mut(&client).expect("a client").blocked) {
            self.stage.shard.on_writable(self.stage.now, client);
        }
    }

    fn check(&mut self) {
        let (account, queued) = (*self.stage.shard.account(), self.stage.shard.queued());
        for class in Class::ALL {
            let column = account.of(class);
            assert_eq!(column.open(), i128::from(queued[class as usize]), "{} {column:?}", class.name());
        }
        let (mut ordered, mut mergeable) = (0, 0);
        for stream in self.streams.values_mut() {
            stream.read();
            ordered += stream.ordered;
            mergeable += stream.mergeable;
        }
        assert_eq!(account.of(Class::Ordered).written, ordered, "written counts frames that came whole");
        assert_eq!(account.of(Class::Mergeable).written, mergeable, "written counts frames that came whole");
    }
}

#[test]
fn rule_06_a_broken_frame_is_finished_first_and_only_whole_frames_are_written() {
    let (gaps, shorts) = (Cell::new(0), Cell::new(0));
    for_seeds(0..300, |rng| {
        let small = OutboxOptions { events_min: 4, events_max: 8, ..OutboxOptions::default() };
        // With few sends a submit, a tick's walk ends in another one than it begins.
        let sends = rng.pick(&[1, 2, 3, ShardOptions::default().sends_per_submit]);
        let mut world = World::new(rng.pick(&[small, OutboxOptions::default()]), sends);
        for _ in 0..=rng.below(4) {
            world.join();
        }
        while world.submit(rng, 0) {}
        for _ in 0..60 {
            for _ in 0..rng.below(8) {
                world.publish(rng);
            }
            world.submit(rng, 40);
            for client in world.streams.keys().copied().collect::<Vec<_>>() {
                if rng.chance(30) {
                    world.let_write(client);
                }
            }
        }
        // Everybody reads to the end.
        loop {
            for client in world.streams.keys().copied().collect::<Vec<_>>() {
                world.let_write(client);
            }
            if !world.submit(rng, 0) {
                break;
            }
        }
        for stream in world.streams.values() {
            assert_eq!(stream.at, stream.bytes.len(), "the stream ends with a whole frame");
            assert!(stream.last_seq.max(stream.told_seq) == world.seq, "the last one came, or its loss was told");
        }
        assert_eq!(world.stage.shard.queued(), [0; 3]);
        gaps.set(gaps.get() + world.streams.values().map(|stream| stream.gaps).sum::<u64>());
        shorts.set(shorts.get() + world.shorts);
    });
    let (gaps, shorts) = (gaps.get(), shorts.get());
    assert!(gaps > 100 && shorts > 1_000, "{gaps} gaps, {shorts} short writes: the dice tried nothing");
}

/// The end of a walk and the next tick of the same channel in one submit: whose write of the first is short would find the
/// second in its queue already, before what the first left over.
#[test]
fn a_tick_never_overtakes_the_end_of_the_one_before() {
    let mut stage = Stage::new(ShardOptions { sends_per_submit: 2, ..ShardOptions::default() });
    let mut bytes: BTreeMap<ClientId, Vec<u8>> = BTreeMap::new();
    for _ in 0..3 {
        stage.join(&mut |_| {});
    }
    while stage.submit(&mut |_| {}, |client, send| {
        bytes.entry(client).or_default().extend_from_slice(send);
        send.len()
    }) {}
    let last = *bytes.keys().last().expect("a viewer");
    let before = bytes[&last].len();
    let publish = |stage: &mut Stage, seq| {
        let sealed = stage.event(EventKind::MessageNew, seq, "hello");
        stage.shard.on_sealed(stage.now, &sealed);
    };
    // One tick of two events; the first submit has room for two viewers, who take nothing of it.
    publish(&mut stage, 1);
    publish(&mut stage, 2);
    stage.submit(&mut |_| {}, |client, _| {
        assert_ne!(client, last);
        0
    });
    // The second has room for the third viewer, and for the next tick of those three.
    publish(&mut stage, 3);
    let mut take = |stage: &mut Stage, most: usize| {
        stage.submit(&mut |_| {}, |client, send| {
            let taken = send.len().min(most);
            bytes.entry(client).or_default().extend_from_slice(&send[..taken]);
            taken
        })
    };
    take(&mut stage, 10);
    for _ in 0..4 {
        stage.shard.on_writable(stage.now, last);
        take(&mut stage, usize::MAX);
    }
    let (mut at, mut seqs) = (before, Vec::new());
    while let Some((text, end)) = bytes[&last].get(at..).filter(|rest| !rest.is_empty()).and_then(frame) {
        let value: serde_json::Value = serde_json::from_slice(text).expect("a whole frame is JSON");
        seqs.push(value["seq"].as_u64().expect("a seq"));
        at += end;
    }
    assert_eq!(seqs, [1, 2, 3]);
}

/// One viewer whose socket takes so many bytes of each send; what the shard wants of it.
struct Stuck {
    stage: Stage,
    client: ClientId,
    bytes: Vec<u8>,
    seq: u64,
    ended: bool,
}

impl Stuck {
    fn new(options: ShardOptions) -> Self {
        let mut stage = Stage::new(options);
        let mut client = None;
        stage.join(&mut |action| {
            if let Action::Install { client: installed, .. } = action {
                client = Some(*installed);
            }
        });
        let client = client.expect("a client");
        stage.settle();
        Self { stage, client, bytes: Vec::new(), seq: 0, ended: false }
    }

    fn publish(&mut self, kind: EventKind, bytes: usize) {
        let stored = kind == EventKind::MessageNew;
        self.seq += u64::from(stored);
        let sealed = self.stage.event(kind, if stored { self.seq } else { 0 }, &"x".repeat(bytes));
        self.stage.shard.on_sealed(self.stage.now, &sealed);
    }

    /// Submits until nothing waits; each send is taken up to `most` bytes.
    fn submit(&mut self, most: usize) {
        let (bytes, ended) = (&mut self.bytes, &mut self.ended);
        let mut hear = |action: &Action| *ended |= matches!(action, Action::End(_));
        while self.stage.submit(&mut hear, |_, send| {
            let taken = send.len().min(most);
            bytes.extend_from_slice(&send[..taken]);
            taken
        }) {}
    }

    /// Time passes by seconds, and each send is taken up to `most` bytes.
    fn pass(&mut self, seconds: u64, most: usize) {
        for _ in 0..seconds {
            self.stage.now = self.stage.now.plus_ms(1_000);
            self.stage.shard.on_alarm(self.stage.now);
            self.submit(most);
        }
    }
}

/// A client that takes nothing while something waits is closed after `max_stall`; one whose kernel has not told of room, and
/// that yet takes a little whenever it is asked, is slow and not stuck.
#[test]
fn rule_11_who_takes_a_little_is_not_taken_for_one_who_takes_nothing() {
    let options =
        || ShardOptions { max_stall_ms: 3_000, ping_after_s: 3_600, close_after_s: 7_200, ..ShardOptions::default() };
    let mut stuck = Stuck::new(options());
    stuck.publish(EventKind::MessageNew, 4_000);
    stuck.submit(100);
    // Nobody says that there is room; yet some bytes are taken at each last try.
    stuck.pass(20, 100);
    assert!(!stuck.ended && stuck.bytes.len() > 300, "{} bytes were taken", stuck.bytes.len());
    // From now on nothing is taken; the time since the last try is a third of what a first silence has.
    let taken = stuck.bytes.len();
    stuck.pass(3, 0);
    assert!(stuck.ended && stuck.bytes.len() == taken);
    assert_eq!(stuck.stage.shard.stages().closed_slow, 1);
    assert_eq!(stuck.stage.shard.queued(), [0; 3]);
    // One who takes nothing from the beginning, for the time and no longer.
    let mut stuck = Stuck::new(options());
    stuck.publish(EventKind::MessageNew, 4_000);
    stuck.submit(0);
    stuck.pass(3, 0);
    assert!(!stuck.ended);
    stuck.pass(3, 0);
    assert!(stuck.ended);
    // One whose kernel has room for a few bytes once, and no reader: they cost a third of the time and not all of it.
    let mut stuck = Stuck::new(ShardOptions { max_stall_ms: 6_000, ..options() });
    stuck.publish(EventKind::MessageNew, 4_000);
    stuck.submit(0);
    stuck.pass(7, 100);
    assert!(!stuck.ended && stuck.bytes.len() == 100, "the last try put {} bytes there", stuck.bytes.len());
    stuck.pass(1, 0);
    assert!(!stuck.ended, "not before that third has passed");
    stuck.pass(3, 0);
    assert!(stuck.ended && stuck.bytes.len() == 100);
    assert_eq!(stuck.stage.shard.stages().closed_slow, 1);
}

/// Whose queue overflows with what must not be lost is closed; if its socket takes more within the linger time, it is told.
#[test]
fn who_is_overrun_and_reads_again_gets_its_close() {
    let outbox = OutboxOptions { events_min: 4, events_max: 4, ..OutboxOptions::default() };
    let overrun = || {
        let mut stuck = Stuck::new(ShardOptions { outbox, linger_ms: 2_000, ..ShardOptions::default() });
        stuck.publish(EventKind::MessageNew, 1_000);
        stuck.submit(10);
        for _ in 0..6 {
            stuck.publish(EventKind::AccessRevoked, 0);
        }
        stuck.submit(0);
        assert_eq!(stuck.stage.shard.stages().closed_slow, 1);
        assert!(!stuck.ended, "it may still read");
        stuck
    };
    let mut stuck = overrun();
    stuck.stage.shard.on_writable(stuck.stage.now, stuck.client);
    stuck.submit(usize::MAX);
    let (text, end) = frame(&stuck.bytes).expect("the broken frame is finished first");
    assert!(text.starts_with(b"{\"type\":\"message.new\""));
    assert_eq!(stuck.bytes[end], 0x88, "and then comes the Close");
    assert_eq!(u16::from_be_bytes([stuck.bytes[end + 2], stuck.bytes[end + 3]]), 4_508);
    assert_eq!(stuck.stage.shard.queued(), [0; 3]);
    // Who takes nothing more is let go when the linger time is over.
    let mut stuck = overrun();
    stuck.pass(5, 0);
    assert!(stuck.ended);
}
