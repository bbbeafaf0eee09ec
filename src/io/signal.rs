//! SIGTERM and SIGINT, as a flag and a ring at the orchestrator's door; SIGHUP, as a call.
//!
//! Always true: what a signal asks for is done on the thread that waits for signals, so it may read files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::post::mailbox::Doorbell;

/// Somebody asked the node to end.
#[derive(Debug, Default)]
pub struct EndAsked(AtomicBool);

impl EndAsked {
    /// It was asked.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Listens for the signals on a thread of its own, which calls `reload` at each SIGHUP.
///
/// # Errors
/// Whatever the kernel says.
pub fn listen(door: Arc<Doorbell>, mut reload: impl FnMut() + Send + 'static) -> std::io::Result<Arc<EndAsked>> {
    let asked = Arc::new(EndAsked::default());
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let flag = Arc::clone(&asked);
    Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                reload();
                continue;
            }
            flag.0.store(true, Ordering::Release);
            door.ring();
        }
    })?;
    Ok(asked)
}

/// Calls `end` with the number of the first SIGTERM or SIGINT that comes, on a thread of its own; for a program that has no
/// loop which could be rung.
///
/// # Errors
/// Whatever the kernel says.
pub fn on_end(end: impl FnOnce(i32) + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    Builder::new().name("signals".into()).spawn(move || {
        if let Some(number) = signals.forever().next() {
            end(number);
        }
    })?;
    Ok(())
}
