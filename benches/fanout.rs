//! What one event costs on a shard before any byte is written: the filter's no, the index's yes, and the outbox of a
//! client that is behind. Every stage asserts its result, so a fast wrong answer is a failure.
//!
//! Targets: filter no ≤ 10 ns, index yes ≤ 25 ns, push to an idle outbox ≤ 40 ns, push that merges or evicts ≤ 100 ns.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ringcast::base::{Account, Class, Name};
use ringcast::fanout::index::{Index, IndexOptions, TopicNo};
use ringcast::fanout::outbox::{Entry, Outbox, Popped, Verdict};
use ringcast::fanout::score::OutboxOptions;
use ringcast::fanout::tick_no::TickNo;
use ringcast::wire::event::EventKind;
use ringcast::wire::topic::{Scope, Topic, TopicHasher};
use std::hint::black_box;
use std::sync::Arc;

/// Messages pushed into an outbox that was made for them.
const PUSHES: u64 = 40;
/// Topics of one shard, and as many again that nobody here wants.
const TOPICS: usize = 50_000;

fn topics(from: usize) -> Vec<Topic> {
    let (hasher, app) = (TopicHasher::new(42), Name::new("demo").unwrap());
    (from..from + TOPICS)
        .map(|i| hasher.topic(Scope::Channel, &app, &Name::new(&format!("race-{i}")).unwrap()))
        .collect()
}

fn index(criterion: &mut Criterion) {
    let (here, elsewhere) = (topics(0), topics(TOPICS));
    let mut index = Index::new(IndexOptions::default());
    let numbers: Vec<TopicNo> = here
        .iter()
        .enumerate()
        .map(|(i, topic)| index.subscribe(topic, 0, i as u32, TickNo::FIRST).unwrap().topic)
        .collect();
    let mut group = criterion.benchmark_group("index");
    group.throughput(Throughput::Elements(1));

    // As in life the hashes come from the event and lie in the cache; the filter's 64 KiB need not.
    let absent: Vec<u64> = elsewhere.iter().take(4_096).map(|topic| topic.hash).collect();
    let mut maybes = 0_u64;
    let mut probes = 0_u64;
    group.bench_function("filter says no, 50,000 topics", |bencher| {
        bencher.iter(|| {
            probes += 1;
            let hash = absent[probes as usize & 4_095];
            maybes += u64::from(index.may_have(Scope::Channel, black_box(hash)));
        });
    });
    assert!(maybes * 100 <= probes * 4 + 100, "{maybes} of {probes} are too many false ones");
    assert!(here.iter().all(|topic| index.may_have(topic.scope, topic.hash)));

    for (name, span) in [("one hot channel", 1), ("100 channels", 100), ("50,000 channels, cold caches", TOPICS)] {
        let mut at = 0;
        group.bench_function(format!("index says yes, {name}"), |bencher| {
            bencher.iter(|| {
                at = if at + 1 >= span { 0 } else { at + 1 };
                let topic = &here[at];
                let found = index.find(topic.scope, black_box(topic.hash), topic.app.as_str(), topic.name.as_str());
                assert_eq!(found, Some(numbers[at]));
            });
        });
    }
    let mut at = 0;
    group.bench_function("filter and index say yes, 100 channels", |bencher| {
        bencher.iter(|| {
            at = (at + 1) % 100;
            let topic = &here[at];
            let found = index.wanted(topic.scope, black_box(topic.hash), || (topic.app.as_str(), topic.name.as_str()));
            assert_eq!(found, Some(numbers[at]));
        });
    });
    group.finish();
}

fn growth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index");
    group.sample_size(10);
    let here = topics(0);
    group.throughput(Throughput::Elements(TOPICS as u64));
    group.bench_function("50,000 new topics", |bencher| {
        bencher.iter_batched(
            || Index::new(IndexOptions::default()),
            |mut index| {
                for (i, topic) in here.iter().enumerate() {
                    assert!(index.subscribe(topic, 0, i as u32, TickNo::FIRST).unwrap().new_topic);
                }
                assert_eq!(index.gauge(Scope::Channel).used, TOPICS as u64);
                index
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn entry(kind: EventKind, seq: u64, merge_key: u64, payload: &Arc<[u8]>) -> Entry<Arc<[u8]>> {
    Entry { kind, channel: 3, seq, merge_key, bytes: 200, at_ms: seq, payload: payload.clone() }
}

fn outbox(criterion: &mut Criterion) {
    let standard = OutboxOptions::default();
    let wide = OutboxOptions { events_min: 1_024, bytes_max: 1 << 30, ..standard };
    let payload: Arc<[u8]> = vec![0; 200].into();
    let mut group = criterion.benchmark_group("outbox");

    group.throughput(Throughput::Elements(PUSHES));
    group.bench_function("40 messages into a new one", |bencher| {
        let mut account = Account::default();
        bencher.iter_batched_ref(
            Outbox::new,
            |outbox| {
                for seq in 1..=PUSHES {
                    let verdict = outbox.push(&standard, &mut account, entry(EventKind::MessageNew, seq, 0, &payload));
                    assert_eq!(verdict, Verdict::Queued);
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("push and pop of a message", |bencher| {
        let (mut outbox, mut account, mut seq) = (Outbox::new(), Account::default(), 0);
        bencher.iter(|| {
            seq += 1;
            let verdict = outbox.push(&standard, &mut account, entry(EventKind::MessageNew, seq, 0, &payload));
            assert_eq!(verdict, Verdict::Queued);
            assert!(matches!(outbox.pop(seq, &mut account), Some(Popped::Entry(entry)) if entry.seq == seq));
        });
        assert!(outbox.is_empty());
    });

    for (name, options) in [("default", standard), ("1,024 events", wide)] {
        group.bench_function(format!("push merges, {name}"), |bencher| {
            let (mut outbox, mut account, mut turn) = (Outbox::new(), Account::default(), 0);
            let keys = options.capacity(Class::Mergeable) as u64;
            for key in 0..keys {
                outbox.push(&options, &mut account, entry(EventKind::PresenceChanged, 0, key, &payload));
            }
            bencher.iter(|| {
                turn += 1;
                let newer = entry(EventKind::PresenceChanged, 0, (turn * 7) % keys, &payload);
                assert_eq!(outbox.push(&options, &mut account, newer), Verdict::Merged);
            });
            assert_eq!(account.of(Class::Mergeable).merged, turn);
        });
        group.bench_function(format!("push evicts the oldest, {name}"), |bencher| {
            let (mut outbox, mut account, mut seq) = (Outbox::new(), Account::default(), 0);
            let capacity = options.capacity(Class::Ordered) as u64;
            while seq < capacity {
                seq += 1;
                outbox.push(&options, &mut account, entry(EventKind::MessageNew, seq, 0, &payload));
            }
            bencher.iter(|| {
                seq += 1;
                let newer = entry(EventKind::MessageNew, seq, 0, &payload);
                assert_eq!(outbox.push(&options, &mut account, newer), Verdict::Evicted(1));
            });
            assert_eq!(account.of(Class::Ordered).evicted, seq - capacity);
            let Some(Popped::Gap(gap)) = outbox.pop(seq, &mut account) else { panic!("the gap stands first") };
            assert_eq!((gap.from_seq, gap.to_seq), (1, seq - capacity));
        });
        group.bench_function(format!("push evicts behind a stuck one, {name}"), |bencher| {
            let (mut outbox, mut account, mut pushes) = (Outbox::new(), Account::default(), 0);
            outbox.push(&options, &mut account, entry(EventKind::MessageRetracted, 1, 0, &payload));
            for _ in 1..options.capacity(Class::Ordered) {
                outbox.push(&options, &mut account, entry(EventKind::Custom, 0, 0, &payload));
            }
            bencher.iter(|| {
                pushes += 1;
                let newer = entry(EventKind::Custom, 0, 0, &payload);
                assert_eq!(outbox.push(&options, &mut account, newer), Verdict::Evicted(1));
            });
            assert_eq!(account.of(Class::Ordered).evicted, pushes);
            assert_eq!(outbox.waiting(Class::Ordered), options.capacity(Class::Ordered));
        });
        group.bench_function(format!("push is refused, {name}"), |bencher| {
            let (mut outbox, mut account, mut pushes) = (Outbox::new(), Account::default(), 0);
            for seq in 1..=options.capacity(Class::Ordered) as u64 {
                outbox.push(&options, &mut account, entry(EventKind::MessageNew, seq, 0, &payload));
            }
            bencher.iter(|| {
                pushes += 1;
                let lower = entry(EventKind::TypingStart, 0, 0, &payload);
                assert_eq!(outbox.push(&options, &mut account, lower), Verdict::Refused);
            });
            assert_eq!(account.of(Class::Ordered).evicted, pushes);
        });
    }
    group.finish();
}

criterion_group!(benches, index, growth, outbox);
criterion_main!(benches);
