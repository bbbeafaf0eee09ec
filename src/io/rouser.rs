//! Rouses cores that may sleep on their own work (see [`super::executor`]).
//!
//! The beats of the cores and whether they serve HTTP flow in, wakes flow out. Always true: a core that takes no turns is
//! woken time and again, often while it serves HTTP and seldom else; and one that takes turns is left alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::life::Life;

/// How often the rouser looks while a core that serves HTTP takes turns, in milliseconds.
const LOOK_MS: u32 = 10;
/// How often it looks else, and how often a core that serves HTTP and takes no turns is roused. Beside four busy
/// neighbours, cores that were roused each 200 or 400 ms slept on their work for so long that in 5 of 170 runs of
/// `all_viewers_of_all_shards_see_one_order` events were lost.
const QUIET_MS: u32 = 100;
/// How often one that serves none is roused. Only a core that stood still for an hour could need it, as one does whose
/// machine was suspended; a wake costs 130 µs.
const REST_MS: u32 = 1_000;

/// A core, as the rouser sees it.
#[derive(Debug, Default)]
pub struct Sleeper {
    waker: OnceLock<Waker>,
    serves: AtomicUsize,
}

/// An HTTP connection is being served until this is dropped.
#[derive(Debug)]
pub struct Served(Arc<Sleeper>);

impl Sleeper {
    /// What wakes the core from another thread, also if the task behind it is awake already.
    pub fn is_woken_by(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// The core serves an HTTP connection.
    #[must_use]
    pub fn serve(self: &Arc<Self>) -> Served {
        self.serves.fetch_add(1, Ordering::Relaxed);
        Served(Arc::clone(self))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.serves.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a core has taken no turn.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    beat: u64,
    ms: u32,
}

impl Quiet {
    /// Looks at the core's last beat, so long after the last look. True if it shall be roused: one that serves HTTP when it
    /// has just stopped, and each of them time and again.
    fn look(&mut self, beat: u64, since_ms: u32, serves: bool) -> bool {
        if beat != self.beat {
            *self = Self { beat, ms: 0 };
            return false;
        }
        let (before_ms, each_ms) = (self.ms, if serves { QUIET_MS } else { REST_MS });
        self.ms = before_ms.wrapping_add(since_ms);
        (serves && before_ms == 0) || self.ms / each_ms != before_ms / each_ms
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
                    let serves = core.serves.load(Ordering::Relaxed) > 0;
                    if quiet.look(beat, since_ms, serves) {
                        core.waker.get().into_iter().for_each(Waker::wake_by_ref);
                    }
                    if serves && quiet.ms == 0 {
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

    fn roused(quiet: &mut Quiet, beat: u64, since_ms: u32, looks: usize, serves: bool) -> Vec<usize> {
        let roused = (0..looks).map(|_| quiet.look(beat, since_ms, serves)).collect::<Vec<_>>();
        (0..looks).filter(|at| roused[*at]).collect()
    }

    #[test]
    fn a_core_that_serves_is_roused_when_it_has_just_stopped_and_then_each_tenth_of_a_second() {
        let mut quiet = Quiet::default();
        assert!((1..100).all(|beat| !quiet.look(beat, LOOK_MS, true)), "it takes turns");
        assert_eq!(roused(&mut quiet, 99, LOOK_MS, 25, true), [0, 9, 19]);
        assert!(!quiet.look(100, LOOK_MS, true), "it turns again");
        assert!(quiet.look(100, QUIET_MS, true) && quiet.look(100, QUIET_MS, true), "also where looks are rare");
    }

    #[test]
    fn a_core_that_serves_nobody_is_roused_once_a_second() {
        let mut quiet = Quiet::default();
        assert!(!quiet.look(1, QUIET_MS, false));
        assert_eq!(roused(&mut quiet, 1, QUIET_MS, 25, false), [9, 19]);
        assert!(quiet.look(1, QUIET_MS, true), "as soon as it serves, more often");
    }

    #[test]
    fn a_core_serves_until_the_last_connection_is_let_go() {
        let sleeper = Arc::new(Sleeper::default());
        let (first, second) = (sleeper.serve(), sleeper.serve());
        drop(first);
        assert_eq!(sleeper.serves.load(Ordering::Relaxed), 1);
        drop(second);
        assert_eq!(sleeper.serves.load(Ordering::Relaxed), 0);
    }
}
