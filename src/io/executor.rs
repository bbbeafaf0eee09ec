//! One pinned executor a core: what the runtime must be told so that a letter from another core is served within a
//! millisecond under load.

use std::future::Future;
use std::time::Duration;

use glommio::{
    ExecutorJoinHandle, Latency, LocalExecutorBuilder, Placement, PoolPlacement, Shares, TaskQueueHandle, executor,
    spawn_local_into,
};

/// Registered memory for direct I/O, which nobody does here; the runtime's default of 10 MiB would only fill memlock.
const IO_MEMORY_BYTES: usize = 64 * 1024;

/// Starts a thread pinned to `cpu` that runs `main` until it ends.
///
/// # Errors
/// Says why the runtime does not start, such as too little locked memory.
pub fn start<F, G>(name: &str, cpu: usize, spin_us: u64, main: G) -> Result<ExecutorJoinHandle<()>, String>
where
    F: Future<Output = ()> + 'static,
    G: FnOnce() -> F + Send + 'static,
{
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name(name)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(1_024)
        // Foreign wakes are seen when the reactor runs; with the default of 100 ms their median was 89 ms under load.
        .preempt_timer(Duration::from_micros(250))
        .spin_before_park(Duration::from_micros(spin_us))
        // The default would pin the blocking pool to the same core.
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
        .spawn(move || async move {
            // The first future of an executor runs in a queue without a latency class; the loop must not.
            match spawn_local_into(main(), loop_queue()) {
                Ok(task) => task.await,
                Err(error) => eprintln!("ringcast: a core has no queue for its loop: {error}"),
            }
        })
        .map_err(|error| error.to_string())
}

/// Runs `task` on this core, beside everything else, until it ends or the core does.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    drop(glommio::spawn_local(task).detach());
}

/// The queue of the loop that serves mailboxes and sockets.
fn loop_queue() -> TaskQueueHandle {
    executor().create_task_queue(Shares::Static(1_000), Latency::Matters(Duration::from_micros(250)), "loop")
}

/// The queue of HTTP connections.
#[must_use]
pub fn http_queue() -> TaskQueueHandle {
    executor().create_task_queue(Shares::Static(200), Latency::Matters(Duration::from_millis(1)), "http")
}
