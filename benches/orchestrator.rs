//! What the orchestrator's core and the store's thread can do: a seat among 10,000 rooms, and rows a second through
//! group commit onto a real file with full syncs.
//!
//! Every measurement asserts its result, so a fast wrong answer is no figure.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ringcast::base::{ChannelKey, Name, Now, RoomCount, RoomReport, ShardId, Ulid};
use ringcast::seating::{Ask, Seating, SeatingOptions};
use ringcast::store::{Appended, Group, GroupOptions, NewEvent, OpenOptions, PageAsk, Pages, Sqlite, Store};
use ringcast::wire::event::EventKind;
use std::hint::black_box;
use std::time::Duration;

const ROOMS: u32 = 10_000;
const SHARDS: u16 = 4;

fn channel(name: &str) -> ChannelKey {
    ChannelKey::new(Name::new("demo").unwrap(), Name::new(name).unwrap())
}

fn report(key: &ChannelKey, shard: u16, processed: u64, viewers: impl Fn(u32) -> u32) -> RoomReport {
    let mine = (1..=ROOMS).filter(|n| n % u32::from(SHARDS) == u32::from(shard));
    let rooms = mine.map(|n| RoomCount { key: key.clone(), n, viewers: viewers(n) }).collect();
    let processed = vec![processed; usize::from(SHARDS)];
    RoomReport { shard: ShardId(shard), processed, rooms, connections: 1_000_000 }
}

/// One channel with 10,000 rooms, all full but the last; and a thousand other channels beside it.
fn crowded(key: &ChannelKey) -> Seating {
    let options = SeatingOptions { shards: SHARDS, room_capacity: 500_000, ..SeatingOptions::default() };
    let mut seating = Seating::new(options);
    for other in 0..1_000 {
        let key = channel(&format!("other-{other}"));
        let ask = Ask { topic: &key, asker: ShardId(0), attempt: 1, refused: None, on_shard: None };
        seating.seat(Now::default(), &ask).unwrap();
    }
    for shard in 0..SHARDS {
        let full_but_last = |n| if n == ROOMS { 1 } else { 500_000 };
        seating.on_report(Now::default(), &report(key, shard, 0, full_but_last));
    }
    seating
}

fn seats(c: &mut Criterion) {
    let key = channel("race-42");
    let mut group = c.benchmark_group("seating");
    group.bench_function("seat_in_the_last_of_10000_rooms", |b| {
        let mut seating = crowded(&key);
        assert_eq!(seating.rooms(&key).len(), ROOMS as usize);
        let ask = Ask { topic: &key, asker: ShardId(1), attempt: 1, refused: None, on_shard: None };
        let mut given = 0;
        b.iter(|| {
            let seat = seating.seat(Now::default(), black_box(&ask)).unwrap();
            assert_eq!(seat.room.n, ROOMS);
            given += 1;
            // A report after every 100,000 seats, as the node has them; it is not what is measured and weighs nothing.
            if given % 100_000 == 0 {
                seating
                    .on_report(Now::default(), &report(&key, 0, seat.number, |n| if n == ROOMS { 1 } else { 500_000 }));
            }
        });
    });
    group.bench_function("seat_and_give_back_across_10000_rooms", |b| {
        // The one seat left is taken and given back: the room leaves and enters the sets with space in every step.
        let mut seating = crowded(&key);
        let full = |n: u32| if n == 5_000 { 499_999 } else { 500_000 };
        for shard in 0..SHARDS {
            seating.on_report(Now::default(), &report(&key, shard, 0, full));
        }
        let ask = Ask { topic: &key, asker: ShardId(1), attempt: 1, refused: None, on_shard: None };
        b.iter(|| {
            let seat = seating.seat(Now::default(), black_box(&ask)).unwrap();
            assert_eq!(seat.room.n, 5_000);
            seating.give_back(ShardId(1), seat.number);
        });
    });
    group.bench_function("report_of_2500_rooms", |b| {
        let mut seating = crowded(&key);
        let report = report(&key, 1, 0, |n| if n == 1 { 1 } else { 500_000 });
        b.iter(|| seating.on_report(Now::default(), black_box(&report)));
        assert_eq!(seating.gauge().used, u64::from(ROOMS) + 1_000);
    });
    group.finish();
}

/// An event of 300 bytes as a row, with an idempotency key like every post of a careful client.
fn event(key: &ChannelKey, n: u64, idempotent: bool) -> NewEvent {
    NewEvent {
        key: key.clone(),
        kind: EventKind::MessageNew,
        id: Ulid::new(n, u128::from(n)),
        ts_ms: n,
        user_id: Some("user-000001".to_owned()),
        user_name: Some("Ann Example".to_owned()),
        text: Some("x".repeat(220)),
        data: None,
        target: None,
        detail: None,
        client_id: Some("c0000001".to_owned()),
        idempotency_key: idempotent.then(|| format!("demo user-000001 {n:020}")),
    }
}

fn commits(c: &mut Criterion) {
    let mut bench = c.benchmark_group("group_commit");
    bench.measurement_time(Duration::from_secs(3)).sample_size(20);
    let keys: Vec<_> = (0..8).map(|n| channel(&format!("race-{n}"))).collect();
    for (batch, idempotent) in [(1_u32, false), (16, false), (256, false), (256, true)] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("bench.db");
        let mut store = Sqlite::open(&path, &OpenOptions { fresh_epoch_seed: 1, ..OpenOptions::default() }).unwrap();
        let mut group = Group::new(GroupOptions { batch_max: batch, ..GroupOptions::default() });
        let mut n = 0;
        bench.throughput(Throughput::Elements(u64::from(batch)));
        let name = format!("batch_{batch}{}", if idempotent { "_with_keys" } else { "" });
        bench.bench_function(name, |b| {
            b.iter_batched(
                || {
                    let next = n..n + u64::from(batch);
                    n = next.end;
                    next.map(|n| event(&keys[(n % 8) as usize], n, idempotent)).collect::<Vec<_>>()
                },
                |events| {
                    for event in events {
                        assert!(group.push(Now::default(), event, ()).is_ok());
                    }
                    let sent = group.next_batch(Now::default()).unwrap();
                    let result = store.commit(1, sent.events());
                    drop(sent);
                    let new = |(_, (), answer): &(_, _, _)| matches!(answer, Ok(Appended::New { .. }));
                    assert_eq!(group.on_committed(result).filter(new).count(), batch as usize);
                },
                BatchSize::PerIteration,
            );
        });
        let heads = keys.iter().map(|key| store.page(key, PageAsk::Latest { limit: 1 }).unwrap().head);
        assert_eq!(heads.sum::<u64>(), n, "all that was answered is stored");
        let mut reader = Sqlite::reader(&path, &OpenOptions::default()).unwrap();
        if batch == 256 && !idempotent {
            bench.throughput(Throughput::Elements(100));
            bench.bench_function("page_of_the_latest_100", |b| {
                b.iter(|| {
                    let page = reader.page(&keys[0], PageAsk::Latest { limit: 100 }).unwrap();
                    assert_eq!(page.events.len(), 100);
                    page
                });
            });
        }
    }
    bench.finish();
}

criterion_group!(benches, seats, commits);
criterion_main!(benches);
