//! One pinned executor a core: what the runtime must be told so that a letter from another core is served within a
//! millisecond under load, and so that no core sleeps on its own work.
//!
//! **The runtime may sleep on runnable tasks.** glommio 0.9.0 takes "preempted before anything ran" for "there is nothing
//! to run" (glommio/glommio#53, fixed there and not released): where the kernel takes the CPU away just between the
//! arming of the preemption timer and the first look at it, for as long as that timer, the core parks, and neither a
//! letter nor a socket wakes a task that is awake already. Under two busy neighbours one start in forty hung for ever. So
//! a core's loop runs under a timer too long to expire there, and keeps the pace by itself ([`super::pace`]). Only while
//! it serves HTTP is the timer short; then a [`super::rouser::Rouser`] wakes it from outside where it takes no turns.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use glommio::{
    ExecutorJoinHandle, Latency, LocalExecutorBuilder, Placement, PoolPlacement, Shares, TaskQueueHandle, executor,
    spawn_local, spawn_local_into,
};

use super::rouser::Sleeper;

/// Registered memory for direct I/O, which nobody does here; the runtime's default of 10 MiB would only fill memlock.
const IO_MEMORY_BYTES: usize = 64 * 1024;

/// The preemption timer of a core's loop. Nobody else waits for it to end, so its length matters to nobody.
const LOOP: Duration = Duration::from_hours(1);
/// How long HTTP connections may run before the loop has its turn.
const HTTP: Duration = Duration::from_millis(1);

/// Runs HTTP connections of a core beside its loop.
#[derive(Clone, Debug)]
pub struct HttpQueue {
    queue: TaskQueueHandle,
    sleeper: Arc<Sleeper>,
}

impl HttpQueue {
    /// Runs `task` until it ends or the core does.
    ///
    /// # Errors
    /// The queue is gone.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) -> Result<(), String> {
        let served = self.sleeper.serve();
        let counted = async move {
            task.await;
            drop(served);
        };
        spawn_local_into(counted, self.queue).map(|task| drop(task.detach())).map_err(|error| error.to_string())
    }
}

/// Starts a thread pinned to `cpu` that runs `main` until it ends. What rouses it is added to `sleepers`.
///
/// # Errors
/// Says why the runtime does not start, such as too little locked memory.
pub fn start<F, G>(
    name: &str,
    cpu: usize,
    spin_us: u64,
    sleepers: &mut Vec<Arc<Sleeper>>,
    main: G,
) -> Result<ExecutorJoinHandle<()>, String>
where
    F: Future<Output = ()> + 'static,
    G: FnOnce(HttpQueue) -> F + Send + 'static,
{
    let sleeper = Arc::new(Sleeper::default());
    sleepers.push(Arc::clone(&sleeper));
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name(name)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(1_024)
        .preempt_timer(LOOP)
        .spin_before_park(Duration::from_micros(spin_us))
        // The default would pin the blocking pool to the same core.
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
        .spawn(move || async move {
            let its = Arc::clone(&sleeper);
            spawn_local(poll_fn(move |cx| {
                its.is_woken_by(cx.waker());
                Poll::<()>::Pending
            }))
            .detach();
            let http = HttpQueue { queue: http_queue(), sleeper };
            match spawn_local_into(main(http), loop_queue()) {
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

/// The queue of the loop that serves mailboxes and sockets.
fn loop_queue() -> TaskQueueHandle {
    executor().create_task_queue(Shares::Static(1_000), Latency::NotImportant, "loop")
}

fn http_queue() -> TaskQueueHandle {
    executor().create_task_queue(Shares::Static(200), Latency::Matters(HTTP), "http")
}
