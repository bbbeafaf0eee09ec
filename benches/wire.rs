//! What an event costs before it meets a viewer: sealing, reading the archive, building and joining frames. Each bench
//! asserts what it measures.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ringcast::base::{Name, Ulid};
use ringcast::fanout::tick::Tick;
use ringcast::fanout::tick_no::TickNo;
use ringcast::wire::event::EventKind;
use ringcast::wire::sealed::{Event, Sealed};
use ringcast::wire::socket::{Codec, ContextPool, Fed, SocketLimits};
use ringcast::wire::topic::{Scope, TopicHasher};

fn message() -> Event {
    let name = |text| Name::new(text).expect("a name");
    let topic = TopicHasher::new(7).topic(Scope::Channel, &name("demo"), &name("race-42"));
    Event {
        seq: 1_201,
        epoch: 77,
        id: Some(Ulid::new(1_796_050_000_123, 5)),
        user_id: "ann".into(),
        text: Some("x".repeat(128)),
        ..Event::new(EventKind::MessageNew, topic, 1_796_050_000_123)
    }
}

fn sealed(c: &mut Criterion) {
    let event = message();
    let sealed = Sealed::seal(&event).expect("it fits");
    c.bench_function("sealed: seal a message of 128 bytes", |b| {
        b.iter(|| {
            let sealed = Sealed::seal(black_box(&event)).expect("it fits");
            assert_eq!(sealed.seq(), 1_201);
            sealed
        });
    });
    c.bench_function("sealed: access the archive and read three fields", |b| {
        b.iter(|| {
            let event = black_box(&sealed).event();
            assert_eq!(
                (event.seq.to_native(), event.user_id.len(), event.kind),
                (1_201, 3, EventKind::MessageNew as u8)
            );
        });
    });
    c.bench_function("sealed: the JSON frame, and a clone", |b| {
        b.iter(|| {
            let clone = black_box(&sealed).clone();
            assert_eq!(clone.json_frame()[0], 0x81);
            clone
        });
    });
}

fn tick(c: &mut Criterion) {
    let sealed = Sealed::seal(&message()).expect("it fits");
    for events in [1_usize, 8] {
        c.bench_function(&format!("tick: append {events} and freeze"), |b| {
            let mut tick = Tick::default();
            b.iter(|| {
                for _ in 0..events {
                    tick.append(black_box(&sealed), 0, 0, true, 128 * 1_024);
                }
                let frozen = tick.freeze(TickNo::FIRST, "race-42", &[]);
                assert_eq!(frozen.json.ends.len(), events);
                frozen
            });
        });
    }
}

fn inbound(c: &mut Criterion) {
    let mut frame = vec![0x81, 0x80 | 15, 0, 0, 0, 0];
    frame.extend_from_slice(br#"{"type":"ping"}"#);
    let mut pool = ContextPool::new(SocketLimits::default());
    let (mut codec, mut output) = (Codec::default(), Vec::new());
    c.bench_function("socket: read a command of 15 bytes", |b| {
        b.iter(|| {
            let mut seen = 0;
            let fed = codec.feed(&mut pool, black_box(&frame), &mut output, |_, _| seen += 1);
            assert_eq!((fed, seen), (Fed::Open, 1));
        });
    });
}

criterion_group!(benches, sealed, tick, inbound);
criterion_main!(benches);
