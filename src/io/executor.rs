//! One pinned executor a core: what the runtime must be told so that a letter from another core is served within a
//! millisecond under load, and what keeps a core from sleeping on its own work.
//!
//! **The runtime may sleep on runnable tasks.** glommio 0.9.0 takes "preempted before anything ran" for "there is nothing
//! to run" (glommio/glommio#53, fixed there and not released): where the kernel takes the CPU away just between the
//! arming of the preemption timer and the first look at it, the core parks, and neither a letter nor a socket wakes a
//! task that is awake already. Under two busy neighbours one start in forty hung for ever. So the main future, before
//! which nothing could help, runs under a timer too long to expire there, and a [`super::rouser::Rouser`] wakes from
//! outside whoever ought to be awake.

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

/// The preemption timer of a core's first task. Nobody else runs then, so its length matters to nobody.
const FIRST_TASK: Duration = Duration::from_millis(500);
/// How long the loop runs on, while it has work, before the reactor has its turn: sockets of HTTP and timers wait for it.
const REACTOR: Duration = Duration::from_millis(3);

/// Runs HTTP connections of a core beside its loop, those to hooks included.
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

/// Starts a thread pinned to `cpu` that runs `main` until it ends. `sleeper` is told what rouses it.
///
/// # Errors
/// Says why the runtime does not start, such as too little locked memory.
pub fn start<F, G>(
    name: &str,
    cpu: usize,
    spin_us: u64,
    sleeper: Arc<Sleeper>,
    main: G,
) -> Result<ExecutorJoinHandle<()>, String>
where
    F: Future<Output = ()> + 'static,
    G: FnOnce(HttpQueue) -> F + Send + 'static,
{
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name(name)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(1_024)
        .preempt_timer(FIRST_TASK)
        .spin_before_park(Duration::from_micros(spin_us))
        // The default would pin the blocking pool to the same core.
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
        .spawn(move || async move {
            let its = Arc::clone(&sleeper);
            spawn_local(poll_fn(move |cx| {
                its.begins(cx.waker());
                Poll::<()>::Pending
            }))
            .detach();
            match spawn_local_into(main(HttpQueue { queue: http_queue(), sleeper }), loop_queue()) {
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

fn http_queue() -> TaskQueueHandle {
    executor().create_task_queue(Shares::Static(200), Latency::Matters(Duration::from_millis(1)), "http")
}
