//! What it costs to look for 2,000 texts that are not allowed in what was posted. Each bench asserts what it finds, and
//! that a message of 200 bytes takes less than a microsecond.

#![allow(clippy::disallowed_methods, reason = "a bench measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ringcast::admission::blocklist::Blocklist;

/// The promise for a message of 200 bytes.
const PROMISE: Duration = Duration::from_micros(1);

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
    for (name, text, found) in [("clean", clean, false), ("wide", &wide, false), ("guilty at its end", &guilty, true)] {
        c.bench_function(&format!("blocklist: 200 bytes against 2,000 patterns, {name}"), |b| {
            b.iter_custom(|times| {
                let began = Instant::now();
                for _ in 0..times {
                    assert_eq!(list.finds(black_box(text)), found);
                }
                let took = began.elapsed();
                // A sample of a few tells nothing; those that count are long.
                assert!(times < 10_000 || took / (times as u32) < PROMISE, "{times} times took {took:?}");
                took
            });
        });
    }
    c.bench_function("blocklist: JSON with an escape against 2,000 patterns", |b| {
        b.iter(|| assert!(!list.finds_in_json(black_box(&json))));
    });
}

criterion_group!(benches, blocklist);
criterion_main!(benches);
