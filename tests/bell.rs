//! The wake protocol of `src/post/bell.rs` under a model checker that tries schedules: no wake is lost.
//!
//! The very same source is compiled here against the checker's atomics. The checker runs one thread at a time and
//! switches at every atomic access, so it covers interleavings; that is the whole question, for the protocol uses
//! sequentially consistent orderings only.

#![allow(missing_docs, reason = "a test, not a library")]
#![allow(unreachable_pub, reason = "the source is a module of the library")]

use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::sync::Arc;

use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

#[path = "../src/post/bell.rs"]
mod bell;

mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, Ordering};
}

use bell::Bell;

const BRINGERS: u64 = 2;
const LETTERS_EACH: u64 = 2;
const SCHEDULES: usize = 12_000;

/// What the core that sleeps and those that wake it share.
#[derive(Default)]
struct Door {
    bell: Bell,
    mailbox: Mutex<VecDeque<u64>>,
    /// The waker: a wake that comes before the sleep is not forgotten.
    woken: Mutex<bool>,
    wakes: Condvar,
}

/// Letters come from all bringers while the owner reads and sleeps by turns. Without its last look the owner may sleep
/// on a letter; then nobody ever wakes it, which the checker reports as a deadlock.
fn exchange(looks_again: bool) {
    let door = Arc::new(Door::default());
    let bringers: Vec<_> = (0..BRINGERS)
        .map(|who| {
            let door = Arc::clone(&door);
            thread::spawn(move || {
                for n in 0..LETTERS_EACH {
                    door.mailbox.lock().unwrap().push_back(who * LETTERS_EACH + n);
                    if door.bell.announce() {
                        *door.woken.lock().unwrap() = true;
                        door.wakes.notify_one();
                    }
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    loop {
        while let Some(letter) = door.mailbox.lock().unwrap().pop_front() {
            taken.push(letter);
        }
        if taken.len() as u64 == BRINGERS * LETTERS_EACH {
            break;
        }
        door.bell.prepare();
        if !looks_again || door.mailbox.lock().unwrap().is_empty() {
            let mut woken = door.woken.lock().unwrap();
            while !*woken {
                woken = door.wakes.wait(woken).unwrap();
            }
            *woken = false;
        }
        door.bell.awake();
    }
    for bringer in bringers {
        bringer.join().unwrap();
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..BRINGERS * LETTERS_EACH).collect::<Vec<_>>());
}

#[test]
fn no_wake_is_lost() {
    shuttle::check_random(|| exchange(true), SCHEDULES);
    shuttle::check_pct(|| exchange(true), SCHEDULES, 3);
}

#[test]
fn one_ring_wakes_once() {
    shuttle::check_random(
        || {
            let bell = Arc::new(Bell::new());
            bell.prepare();
            assert!(bell.is_asleep());
            let bringers: Vec<_> = (0..3)
                .map(|_| {
                    let bell = Arc::clone(&bell);
                    thread::spawn(move || bell.announce())
                })
                .collect();
            let wakes = bringers.into_iter().map(|bringer| usize::from(bringer.join().unwrap())).sum::<usize>();
            assert_eq!(wakes, 1, "one bringer wakes the owner, and only one");
            assert!(!bell.is_asleep(), "who was rung for is not asleep");
        },
        SCHEDULES,
    );
}

#[test]
fn without_the_last_look_a_wake_is_lost() {
    // The proof that the model can fail at all.
    assert!(catch_unwind(|| shuttle::check_random(|| exchange(false), SCHEDULES)).is_err());
}
