//! The watch over the cores: each beats once a turn, and one that does not for too long has stalled.
//!
//! The times of the last beats flow in; lines of the log, the node's readiness and the service manager's keep-alive flow
//! out. Always true: the keep-alive is sent only while every core takes its turns, so a manager restarts a node one of
//! whose cores is stuck; a stall is told of once, with what its thread does, and once when it is over; and the watch is
//! a thread of its own that waits for no core.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::clock::Clock;
use super::life::Life;
use super::machine;

/// The longest pause between two looks.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// What a look found out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    /// This core has taken no turn for so many milliseconds.
    Stalls(usize, u64),
    /// This core takes turns again, after so many milliseconds.
    Turns(usize, u64),
}

/// The beats of all cores, as a value: no clock, no thread.
#[derive(Debug)]
struct Watch {
    stall_ms: u64,
    /// When the watch began, in monotonic milliseconds: a core that has not begun by then is measured from it.
    began_ms: u64,
    /// The last beat of each core that stalls.
    stalls: Vec<Option<u64>>,
}

impl Watch {
    fn new(stall_ms: u64, cores: usize, began_ms: u64) -> Self {
        Self { stall_ms, began_ms, stalls: vec![None; cores] }
    }

    /// Looks at the last beat of each core.
    fn look(&mut self, now_ms: u64, beats: impl Iterator<Item = u64>) -> Vec<Change> {
        let mut changes = Vec::new();
        for (core, (stall, beat_ms)) in self.stalls.iter_mut().zip(beats).enumerate() {
            let beat_ms = beat_ms.max(self.began_ms);
            let silent_ms = now_ms.saturating_sub(beat_ms);
            match *stall {
                None if silent_ms >= self.stall_ms => {
                    *stall = Some(beat_ms);
                    changes.push(Change::Stalls(core, silent_ms));
                }
                Some(last_ms) if beat_ms > last_ms => {
                    *stall = None;
                    changes.push(Change::Turns(core, beat_ms - last_ms));
                }
                _ => {}
            }
        }
        changes
    }

    /// The first core that stalls.
    fn stalled(&self) -> Option<usize> {
        self.stalls.iter().position(Option::is_some)
    }
}

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Begins. A core has stalled that has not beaten for `stall_ms` milliseconds.
    ///
    /// # Errors
    /// No thread is left.
    pub fn start(life: Arc<Life>, clock: Clock, stall_ms: u32) -> io::Result<Self> {
        let keep_alive = machine::keep_alive();
        // Twice as often as the manager asks, as its manual advises, and often enough to see a stall in time.
        let pause = keep_alive.map_or(LOOK_MAX, |period| period / 2).min(LOOK_MAX);
        let pause = pause.min(Duration::from_millis(u64::from(stall_ms) / 4));
        let over = Arc::new(AtomicBool::new(false));
        let its_over = Arc::clone(&over);
        let mut watch = Watch::new(stall_ms.into(), life.beats().count(), clock.now().mono_ms());
        let thread = thread::Builder::new().name("watchdog".into()).spawn(move || {
            while !its_over.load(Ordering::Acquire) {
                for change in watch.look(clock.now().mono_ms(), life.beats()) {
                    say(&change, life.shards());
                }
                life.set_stalled(watch.stalled());
                if keep_alive.is_some() && watch.stalled().is_none() {
                    machine::notify_alive();
                }
                thread::park_timeout(pause);
            }
        })?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// The name of a core, as people and its thread bear it.
#[must_use]
pub fn name_of(core: usize, shards: usize) -> String {
    if core < shards { format!("shard-{core}") } else { "orchestrator".to_owned() }
}

fn say(change: &Change, shards: usize) {
    match *change {
        Change::Stalls(core, silent_ms) => {
            let name = name_of(core, shards);
            let doing = doing(&name).unwrap_or("is gone");
            eprintln!(
                "ringcast: {name} has taken no turn for {silent_ms} ms: its thread {doing}; until it does, /readyz says \
                 no, and the service manager is not told that all is well"
            );
        }
        Change::Turns(core, after_ms) => {
            eprintln!("ringcast: {} takes turns again, after {after_ms} ms", name_of(core, shards));
        }
    }
}

/// What the thread of a core does, as the kernel sees it.
fn doing(name: &str) -> Option<&'static str> {
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // The runtime puts a number of its own behind the name.
        let comm = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if !comm.strip_prefix(name).is_some_and(|rest| rest.trim_end().is_empty() || rest.starts_with('-')) {
            continue;
        }
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        return Some(match state {
            'R' => "runs, or waits for a CPU: something keeps it from its next turn",
            'S' => "sleeps: nothing woke it",
            'D' => "waits for a device or a file system",
            'T' | 't' => "was stopped from outside",
            _ => "is in a state that is not known",
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_told_at_its_begin_and_at_its_end() {
        let mut watch = Watch::new(1_000, 2, 500);
        assert!(watch.look(1_499, [0, 0].into_iter()).is_empty(), "who has not begun is measured from the start");
        assert_eq!(watch.look(1_500, [1_400, 0].into_iter()), [Change::Stalls(1, 1_000)]);
        assert_eq!(watch.stalled(), Some(1));
        assert!(watch.look(2_000, [1_900, 0].into_iter()).is_empty(), "it is told once");
        assert_eq!(watch.look(3_000, [1_900, 2_950].into_iter()), [Change::Stalls(0, 1_100), Change::Turns(1, 2_450)]);
        assert_eq!(watch.look(3_100, [3_050, 3_050].into_iter()), [Change::Turns(0, 1_150)]);
        assert_eq!(watch.stalled(), None);
        // A beat from behind the look, as another core may write it at any time.
        assert!(watch.look(3_100, [3_200, 3_200].into_iter()).is_empty());
    }

    #[test]
    fn the_state_of_a_thread_is_found_by_its_name() {
        let (started, waits) = std::sync::mpsc::channel();
        let thread = thread::Builder::new().name("shard-777-1".into()).spawn(move || {
            started.send(()).unwrap();
            thread::park();
        });
        waits.recv().unwrap();
        assert!(doing("shard-777").is_some() && doing("shard-77").is_none() && doing("nobody").is_none());
        let thread = thread.unwrap();
        thread.thread().unpark();
        thread.join().unwrap();
    }
}
