//! What it costs to look for 2,000 texts that are not allowed in what was posted. Each bench asserts what it finds, and
//! that a message of 200 bytes takes less than a microsecond.

#![allow(clippy::disallowed_methods, reason = "a bench measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ringcast::admission::blocklist::Blocklist;

/// The promise for a message of 200 bytes.
const PROMISE: Duration = Duration::from_micros(1);
/// Searches that are timed together.
const BATCH: u64 = 500;

/// 2,000 words that look like words: syllables, so that they begin as ordinary text does.
fn patterns() -> String {
    const SYLLABLES: [&str; 16] =
        ["ba", "co", "de", "fi", "gu", "ha", "lo", "me", "ni", "po", "ra", "se", "ti", "vo", "we", "za"];
    let word = |n: usize| [n % 16, n / 16 % 16, n / 256 % 16, n * 7 % 16].map(|at| SYLLABLES[at]).concat();
    (0..2_000).map(|n| word(n) + "\n").collect()
}

fn blocklist(c: &mut Criterion) {
    let list = Blocklist::new(&patterns(), 10_000).expect("a list");
    assert_eq!(list.patterns(), 2_000);
    let clean = "What a race that was, the last lap had it all: nobody saw it coming, and then she went past both of them \
                 on the outside! I had to stand up and shout. Did you see the faces in the pit? Unbelievable, best ever.";
    let clean = &clean[..200];
    let wide: String = clean.chars().map(|c| if c == 'W' { 'Ｗ' } else { c }).collect();
    let json = serde_json::json!({ "text": clean, "lines": "a\nb" }).to_string();
    let guilty = format!("{}BaDeBaBa", &clean[..192]);
    let ideographs = "这是一场多么精彩的比赛，最后一圈什么都有。".repeat(4);
    let ideographs = &ideographs[..198];
    let texts = [("clean", clean, false), ("wide", &wide, false), ("ideographs", ideographs, false)];
    for (name, text, found) in texts.into_iter().chain([("guilty at its end", guilty.as_str(), true)]) {
        // The best of many: a busy neighbour takes time from the others.
        let mut best = Duration::MAX;
        c.bench_function(&format!("blocklist: 200 bytes against 2,000 patterns, {name}"), |b| {
            b.iter_custom(|times| {
                let mut took = Duration::ZERO;
                let mut left = times;
                while left > 0 {
                    let some = left.min(BATCH);
                    let began = Instant::now();
                    for _ in 0..some {
                        assert_eq!(list.finds(black_box(text)), found);
                    }
                    let batch = began.elapsed();
                    if some == BATCH {
                        best = best.min(batch / BATCH as u32);
                    }
                    took += batch;
                    left -= some;
                }
                took
            });
        });
        // Without a whole batch nothing was measured: the bench was only tried out.
        assert!(best < PROMISE || best == Duration::MAX, "{name}: {best:?}");
    }
    c.bench_function("blocklist: JSON with an escape against 2,000 patterns", |b| {
        b.iter(|| assert!(!list.finds_in_json(black_box(&json))));
    });
}

criterion_group!(benches, blocklist);
criterion_main!(benches);
