//! One pinned executor a core: what the runtime must be told so that a letter from another core is served within a
//! millisecond under load, and what keeps a core from sleeping on its own work.
//!
//! **The runtime may sleep on runnable tasks.** glommio 0.9.0 takes "preempted before anything ran" for "there is nothing
//! to run" (glommio/glommio#53, fixed there and not released): where the kernel takes the CPU away just between the
//! arming of the preemption timer and the first look at it, the core parks, and neither a letter nor a socket wakes a
//! task that is awake already. Under two busy neighbours one start in forty hung for ever. So the main future, before
//! which nothing could help, runs under a timer too long to expire there, and a [`Waker`] from outside rouses every
//! core that takes no turns so often that a sleep of this kind lasts milliseconds.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use glommio::{
    ExecutorJoinHandle, Latency, LocalExecutorBuilder, Placement, PoolPlacement, Shares, TaskQueueHandle, executor,
    spawn_local, spawn_local_into,
};

use super::life::Life;

/// Registered memory for direct I/O, which nobody does here; the runtime's default of 10 MiB would only fill memlock.
const IO_MEMORY_BYTES: usize = 64 * 1024;

/// The preemption timer of a core's first task. Nobody else runs then, so its length matters to nobody.
const FIRST_TASK: Duration = Duration::from_millis(500);
/// How long the loop runs on, while it has work, before the reactor has its turn: sockets of HTTP and timers wait for it.
const REACTOR: Duration = Duration::from_millis(3);
/// How often the rouser looks while a core takes turns.
const LOOK_MS: u32 = 10;
/// How often while none does, and how often a core that takes none is roused. At 20 ms two idle cores took 3 % of a core for
/// being woken. At 200 and 400 ms they took 0.15 % and not 0.40; but with four busy neighbours cores then slept on their work
/// for so long that in 5 of 170 runs of `all_viewers_of_all_shards_see_one_order` events were lost, and in none of 165 before.
const QUIET_MS: u32 = 100;

/// How long a core has taken no turn.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    beat: u64,
    ms: u32,
}

impl Quiet {
    /// Looks at the core's last beat, so long after the last look. True if it shall be roused: when it has just stopped, and
    /// then time and again. One that takes turns is awake.
    fn look(&mut self, beat: u64, since_ms: u32) -> bool {
        if beat != self.beat {
            *self = Self { beat, ms: 0 };
            return false;
        }
        let before_ms = self.ms;
        self.ms = before_ms.wrapping_add(since_ms);
        before_ms == 0 || self.ms / QUIET_MS != before_ms / QUIET_MS
    }
}

/// Rouses the cores until it is dropped.
#[derive(Debug)]
pub struct Rouser {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rouser {
    /// Begins; `cores` are those of [`start`], in the order in which `life` has their beats.
    ///
    /// # Errors
    /// No thread is left.
    pub fn start(cores: Vec<Arc<OnceLock<Waker>>>, life: Arc<Life>) -> std::io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let its_over = Arc::clone(&over);
        let thread = thread::Builder::new().name("rouser".into()).spawn(move || {
            let mut quiet = vec![Quiet::default(); cores.len()];
            let mut wait_ms = QUIET_MS;
            while !its_over.load(Ordering::Acquire) {
                thread::park_timeout(Duration::from_millis(wait_ms.into()));
                let since_ms = wait_ms;
                wait_ms = QUIET_MS;
                for ((quiet, beat), core) in quiet.iter_mut().zip(life.beats()).zip(&cores) {
                    if quiet.look(beat, since_ms) {
                        // A wake from another thread always reaches the core, also if the task behind it is awake already.
                        core.get().into_iter().for_each(Waker::wake_by_ref);
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

/// Starts a thread pinned to `cpu` that runs `main` until it ends. What rouses it is put into `rouse`, for a [`Rouser`].
///
/// # Errors
/// Says why the runtime does not start, such as too little locked memory.
pub fn start<F, G>(
    name: &str,
    cpu: usize,
    spin_us: u64,
    rouse: &mut Vec<Arc<OnceLock<Waker>>>,
    main: G,
) -> Result<ExecutorJoinHandle<()>, String>
where
    F: Future<Output = ()> + 'static,
    G: FnOnce() -> F + Send + 'static,
{
    let waker = Arc::new(OnceLock::new());
    rouse.push(Arc::clone(&waker));
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name(name)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(1_024)
        .preempt_timer(FIRST_TASK)
        .spin_before_park(Duration::from_micros(spin_us))
        // The default would pin the blocking pool to the same core.
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
        .spawn(move || async move {
            spawn_local(poll_fn(move |cx| {
                waker.get_or_init(|| cx.waker().clone());
                Poll::<()>::Pending
            }))
            .detach();
            match spawn_local_into(main(), loop_queue()) {
                Ok(task) => task.await,
                Err(error) => panic!("a queue that was just made is there: {error}"),
            }
        })
        .map_err(|error| error.to_string())
}

/// Runs `task` on this core, beside everything else, until it ends or the core does.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    drop(spawn_local(task).detach());
}

/// The queue of the loop that serves mailboxes and sockets. Foreign wakes are seen when the reactor runs; at the
/// runtime's default of 100 ms their median was 89 ms under load. A run of the reactor costs 30 µs: at 250 µs, which is less
/// than a submit takes, it was 4 % of what a core does that only sends.
fn loop_queue() -> TaskQueueHandle {
    executor().create_task_queue(Shares::Static(1_000), Latency::Matters(REACTOR), "loop")
}

/// The queue of HTTP connections.
#[must_use]
pub fn http_queue() -> TaskQueueHandle {
    executor().create_task_queue(Shares::Static(200), Latency::Matters(Duration::from_millis(1)), "http")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_roused_when_it_has_just_stopped_and_then_each_tenth_of_a_second() {
        let mut quiet = Quiet::default();
        let looks = |quiet: &mut Quiet, beat| (0..25).map(|_| quiet.look(beat, LOOK_MS)).collect::<Vec<_>>();
        assert!((1..100).all(|beat| !quiet.look(beat, LOOK_MS)), "it takes turns");
        let roused = looks(&mut quiet, 99);
        let at: Vec<_> = (0..25).filter(|at| roused[*at]).collect();
        assert_eq!(at, [0, 9, 19]);
        assert!(!quiet.look(100, LOOK_MS), "it turns again");
        assert!(quiet.look(100, QUIET_MS) && quiet.look(100, QUIET_MS), "also where looks are rare");
    }
}
