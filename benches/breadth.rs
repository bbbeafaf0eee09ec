//! What an event costs on a shard where nobody watches its channel, with the filter and without it: a node of many
//! channels sees most of its events on cores that do not want them.
//!
//! Target: ≤ 100 ns an event with the filter, so that a million of them a second take a tenth of a core.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ringcast::base::Name;
use ringcast::bus::Unwanted;
use ringcast::fanout::index::IndexOptions;
use ringcast::shard::{Interest, ShardOptions};
use ringcast::wire::event::EventKind;
use ringcast::wire::sealed::{Event, Sealed};
use ringcast::wire::topic::{Scope, TopicHasher};
use stage::Stage;

#[path = "../tests/stage/mod.rs"]
mod stage;

/// Channels that are watched here.
const WATCHED: usize = 20_000;
/// Events, each of another channel; together some 40 MB, so that few lie in a cache when their turn comes. Each is taken
/// out of a mailbox and let go, as a core does: what is counted is the whole of what it costs there.
const EVENTS: usize = 65_536;

fn events() -> Vec<Sealed> {
    let name = |text: &str| Name::new(text).expect("a name");
    let (hasher, demo) = (TopicHasher::new(7), name("demo"));
    let event = |number| {
        let topic = hasher.topic(Scope::Channel, &demo, &name(&format!("elsewhere-{number}")));
        let event = Event {
            seq: 1,
            epoch: 1,
            text: Some("x".repeat(128)),
            ..Event::new(EventKind::MessageNew, topic, 1_796_050_000_123)
        };
        Sealed::seal(&event).expect("an event")
    };
    (0..EVENTS).map(event).collect()
}

fn breadth(criterion: &mut Criterion) {
    let events = events();
    let mut group = criterion.benchmark_group("breadth");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, filter) in [("with the filter", true), ("without the filter", false)] {
        let index = IndexOptions { filter, ..IndexOptions::default() };
        let mut stage = Stage::new(ShardOptions { index, room_capacity: u32::MAX, ..ShardOptions::default() });
        for number in 0..WATCHED {
            stage.join_channel(&format!("here-{number}"), &mut |_| {});
            stage.settle();
        }
        let mut unwanted = Unwanted::default();
        group.bench_function(format!("65,536 events that nobody here wants, {name}"), |bencher| {
            let mailbox = || events.clone();
            bencher.iter_batched(
                mailbox,
                |mailbox| {
                    for sealed in mailbox {
                        if stage.shard.on_sealed(stage.now, &sealed) == Interest::Nobody {
                            unwanted.push(sealed);
                        }
                    }
                    unwanted.let_go();
                    assert!(!stage.shard.has_fanout(), "nobody is owed anything");
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, breadth);
criterion_main!(benches);
