//! Rouses cores that may sleep on their own work (see [`super::executor`]).
//!
//! The doorbells of the cores, their beats and the kernel's account of their threads flow in, wakes flow out. Always true: a
//! core that takes no turn although it is awake, was rung for or serves HTTP is roused at the next look, and then time and
//! again; so is, within a moment, one that ran without a turn; one that sleeps is woken once a while after each turn, for
//! what it did in its sleep before it was looked at is not known.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::life::Life;
use crate::post::mailbox::Doorbell;

/// How often the rouser looks while a core takes turns, in milliseconds.
const LOOK_MS: u32 = 10;
/// How often while none does, and how often a core that may sleep on its work is roused; a wake costs 130 µs. At 200 and 400 ms, with four busy neighbours, cores slept on their work for so
/// long that in 5 of 170 runs of `all_viewers_of_all_shards_see_one_order` events were lost.
const QUIET_MS: u32 = 100;
/// How often one is roused that has no reason to be awake. A loop takes a turn as often by itself.
const REST_MS: u32 = 1_000;

/// A core, as the rouser sees it.
#[derive(Debug)]
pub struct Sleeper {
    door: Arc<Doorbell>,
    waker: OnceLock<Waker>,
    /// The kernel's account of its thread; `None` where the kernel keeps none.
    schedstat: OnceLock<Option<File>>,
    serves: AtomicUsize,
}

/// An HTTP connection is being served until this is dropped.
#[derive(Debug)]
pub struct Served(Arc<Sleeper>);

impl Sleeper {
    /// The core behind this door, which has not begun.
    #[must_use]
    pub fn of(door: &Arc<Doorbell>) -> Arc<Self> {
        let door = Arc::clone(door);
        Arc::new(Self { door, waker: OnceLock::new(), schedstat: OnceLock::new(), serves: AtomicUsize::new(0) })
    }

    /// Called on the core itself; `waker` reaches it from another thread, also if the task behind it is awake already.
    pub fn begins(&self, waker: &Waker) {
        self.schedstat.get_or_init(|| File::open("/proc/thread-self/schedstat").ok());
        self.waker.get_or_init(|| waker.clone());
    }

    /// The core serves an HTTP connection.
    #[must_use]
    pub fn serve(self: &Arc<Self>) -> Served {
        self.serves.fetch_add(1, Ordering::Relaxed);
        Served(Arc::clone(self))
    }

    fn see(&self, beat: u64) -> Seen {
        Seen {
            beat,
            runs: self.schedstat.get().and_then(Option::as_ref).and_then(runs),
            asleep: self.door.is_asleep(),
            serves: self.serves.load(Ordering::Relaxed) > 0,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.serves.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often the thread was given a CPU: the third number of its `schedstat` (Documentation/scheduler/sched-stats.rst of
/// the kernel). `None` if it is not kept.
fn runs(schedstat: &File) -> Option<u64> {
    let mut text = [0; 96];
    let bytes = schedstat.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..bytes]).ok()?.split_ascii_whitespace().nth(2)?.parse().ok().filter(|runs| *runs > 0)
}

/// What one look sees of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    beat: u64,
    runs: Option<u64>,
    asleep: bool,
    serves: bool,
}

/// How long a core has taken no turn.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    seen: Seen,
    ms: u32,
    /// It ran without a turn since it was last roused.
    ran: bool,
    /// The last look roused it.
    roused: bool,
    /// It was roused since its last turn.
    checked: bool,
}

impl Quiet {
    /// Looks at the core, so long after the last look. True if it shall be roused.
    fn look(&mut self, seen: Seen, since_ms: u32) -> bool {
        let before = std::mem::replace(&mut self.seen, seen);
        if seen.beat != before.beat {
            *self = Self { seen, ..Self::default() };
            return false;
        }
        // A rouse makes the thread run, and its loop take a turn only if it slept on its work.
        self.ran |= seen.runs.is_none_or(|runs| runs > before.runs.unwrap_or(0) + u64::from(self.roused));
        let before_ms = self.ms;
        self.ms = before_ms.wrapping_add(since_ms);
        let passes = |each_ms| self.ms / each_ms != before_ms / each_ms;
        let suspect = self.ran || seen.serves || !seen.asleep;
        // When it has just stopped, what it did in its sleep before this look is not known.
        let now = suspect && (before_ms == 0 || passes(QUIET_MS));
        self.roused = now || (!self.checked && passes(QUIET_MS)) || passes(REST_MS);
        self.checked |= self.roused;
        self.ran &= !self.roused;
        self.roused
    }
}

/// Rouses the cores until it is dropped.
#[derive(Debug)]
pub struct Rouser {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rouser {
    /// Begins; `cores` lie in the order in which `life` has their beats.
    ///
    /// # Errors
    /// No thread is left.
    pub fn start(cores: Vec<Arc<Sleeper>>, life: Arc<Life>) -> std::io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let its_over = Arc::clone(&over);
        let thread = thread::Builder::new().name("rouser".into()).spawn(move || {
            let mut quiet = vec![Quiet::default(); cores.len()];
            let mut wait_ms = QUIET_MS;
            while !its_over.load(Ordering::Acquire) {
                thread::park_timeout(Duration::from_millis(wait_ms.into()));
                let since_ms = std::mem::replace(&mut wait_ms, QUIET_MS);
                for ((quiet, beat), core) in quiet.iter_mut().zip(life.beats()).zip(&cores) {
                    if quiet.look(core.see(beat), since_ms) {
                        core.waker.get().into_iter().for_each(Waker::wake_by_ref);
                    }
                    if quiet.ms == 0 {
                        wait_ms = LOOK_MS;
                    }
                }
            }
        })?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Rouser {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Seen = Seen { beat: 1, runs: Some(7), asleep: true, serves: false };

    /// A core that has taken a turn and was looked at.
    fn after_a_turn(seen: Seen) -> Quiet {
        let mut quiet = Quiet::default();
        assert!(!quiet.look(seen, LOOK_MS), "it took a turn");
        quiet
    }

    fn roused(quiet: &mut Quiet, seen: Seen, since_ms: u32, looks: usize) -> Vec<usize> {
        (0..looks).filter(|_| quiet.look(seen, since_ms)).collect()
    }

    #[test]
    fn who_ought_to_be_awake_and_takes_no_turn_is_roused_at_once_and_then_each_tenth_of_a_second() {
        for seen in [Seen { asleep: false, ..CALM }, Seen { serves: true, ..CALM }, Seen { runs: None, ..CALM }] {
            let mut quiet = after_a_turn(seen);
            assert_eq!(roused(&mut quiet, seen, LOOK_MS, 25), [0, 9, 19], "{seen:?}");
            assert!(!quiet.look(Seen { beat: 2, ..seen }, LOOK_MS), "it turns again");
        }
    }

    #[test]
    fn who_sleeps_is_woken_once_and_then_each_second() {
        let mut quiet = after_a_turn(CALM);
        assert_eq!(roused(&mut quiet, CALM, QUIET_MS, 1), [0]);
        // That it ran for it is no sign of work.
        let after = Seen { runs: Some(8), ..CALM };
        assert_eq!(roused(&mut quiet, after, QUIET_MS, 25), [8, 18]);
        // Its next turn is one.
        let mut quiet = after_a_turn(Seen { beat: 2, ..after });
        assert_eq!(roused(&mut quiet, Seen { beat: 2, ..after }, QUIET_MS, 5), [0]);
    }

    #[test]
    fn who_rests_shortly_between_its_turns_is_left_alone() {
        let mut quiet = Quiet::default();
        for beat in 1..100 {
            let seen = Seen { beat, runs: Some(beat), ..CALM };
            assert_eq!(roused(&mut quiet, seen, LOOK_MS, 5), [0; 0]);
        }
    }

    #[test]
    fn who_ran_and_took_no_turn_is_roused() {
        let mut quiet = after_a_turn(CALM);
        assert_eq!(roused(&mut quiet, CALM, QUIET_MS, 1), [0]);
        let ran = |runs| Seen { runs: Some(runs), ..CALM };
        assert!(!quiet.look(ran(8), QUIET_MS), "for it was roused");
        assert!(quiet.look(ran(9), QUIET_MS), "within a tenth of a second");
        assert!(quiet.look(ran(11), QUIET_MS), "its CPU was taken away while it woke");
        assert!(!quiet.look(ran(12), QUIET_MS), "it woke, and had nothing to do");
        // Seen between two looks, and said at the next that rouses.
        assert!(!quiet.look(ran(13), LOOK_MS));
        assert_eq!(roused(&mut quiet, ran(13), LOOK_MS, 9), [8]);
    }

    #[test]
    fn who_is_rung_for_is_not_asleep() {
        let door = Doorbell::new();
        let sleeper = Sleeper::of(&door);
        assert!(!sleeper.see(1).asleep, "it has not begun");
        door.prepare(Waker::noop());
        assert!(sleeper.see(1).asleep);
        door.ring();
        assert!(!sleeper.see(1).asleep);
    }

    #[test]
    fn the_kernel_counts_how_often_a_thread_runs() {
        let schedstat = File::open("/proc/thread-self/schedstat").expect("the kernel's account");
        let before = runs(&schedstat).expect("a count");
        for _ in 0..3 {
            thread::park_timeout(Duration::from_millis(1));
        }
        assert!(runs(&schedstat).expect("a count") >= before + 3);
    }

    #[test]
    fn a_core_serves_until_the_last_connection_is_let_go() {
        let sleeper = Sleeper::of(&Doorbell::new());
        let (first, second) = (sleeper.serve(), sleeper.serve());
        drop(first);
        assert!(sleeper.see(1).serves);
        drop(second);
        assert!(!sleeper.see(1).serves);
    }
}
