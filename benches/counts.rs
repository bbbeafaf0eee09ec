//! The path of an event as a count of instructions: run under callgrind, where a run counts the same every time, whatever
//! the machine does beside it. `perf/counts` runs it with no rounds and with many, and takes the difference.
//!
//! `counts in-step ROUNDS`: one event to 1,000 viewers who keep up: probe, lookup, tick, walk.
//! `counts behind ROUNDS`: 60 events to 1,000 viewers whose sockets take nothing, of which most are merged or evicted, and
//! then all that waits.
//! `counts seal ROUNDS`: an event into its sealed form, frame included.

#![allow(missing_docs, reason = "a bench, not a library")]

use std::hint::black_box;
use std::process::ExitCode;

use ringcast::base::ClientId;
use ringcast::shard::{Action, ShardOptions};
use ringcast::wire::event::EventKind;
use stage::Stage;

#[path = "../tests/stage/mod.rs"]
mod stage;

const VIEWERS: u64 = 1_000;

fn audience() -> Stage {
    let mut stage = Stage::new(ShardOptions { room_capacity: u32::MAX, ..ShardOptions::default() });
    for _ in 0..VIEWERS {
        stage.join(&mut |_| {});
        stage.settle();
    }
    stage
}

fn in_step(rounds: u64) {
    let mut stage = audience();
    for seq in 1..=rounds {
        let sealed = stage.event(EventKind::MessageNew, seq, "a message as people write them, of some length");
        stage.shard.on_sealed(stage.now, &sealed);
        assert_eq!(stage.settle(), VIEWERS);
    }
}

fn behind(rounds: u64) {
    let mut stage = audience();
    let mut seq = 0;
    for _ in 0..rounds {
        let mut blocked: Vec<ClientId> = Vec::new();
        for number in 0..60 {
            let kind = if number % 3 == 0 { EventKind::ViewersUpdated } else { EventKind::MessageNew };
            let stored = kind == EventKind::MessageNew;
            seq += u64::from(stored);
            let sealed = stage.event(kind, if stored { seq } else { 0 }, if stored { "a message" } else { "" });
            stage.shard.on_sealed(stage.now, &sealed);
            let mut hear = |action: &Action| {
                if let Action::WantWritable(client) = action {
                    blocked.push(*client);
                }
            };
            while stage.submit(&mut hear, |_, _| 0) {}
        }
        assert_eq!(blocked.len() as u64, VIEWERS, "everybody is behind");
        for client in blocked {
            stage.shard.on_writable(stage.now, client);
        }
        assert!(stage.settle() >= VIEWERS);
        assert_eq!(stage.shard.queued(), [0; 3]);
    }
}

fn seal(rounds: u64) {
    let stage = audience();
    for seq in 1..=rounds {
        black_box(stage.event(EventKind::MessageNew, black_box(seq), "a message as people write them, of some length"));
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let rounds = words.get(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    match words.first().map(String::as_str) {
        Some("in-step") => in_step(rounds),
        Some("behind") => behind(rounds),
        Some("seal") => seal(rounds),
        // A plain `cargo bench` shows that the stages do what they say.
        _ => [in_step, behind, seal].iter().for_each(|stage| stage(2)),
    }
    ExitCode::SUCCESS
}
