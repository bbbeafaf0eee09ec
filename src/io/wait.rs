//! How a core sleeps: until a letter comes, a socket stirs, a task of its own has work for it, or time is up.
//!
//! Always true: after everything that could wake the sleeper is armed, everything is looked at once more; so no wake is
//! lost, and what was there already costs no sleep.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use glommio::timer::Timer;

use crate::post::mailbox::Doorbell;

/// The bell that tasks of the same core ring.
#[derive(Debug, Default)]
pub struct LocalBell {
    rung: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl LocalBell {
    /// Wakes the core's loop, now or at its next sleep.
    pub fn ring(&self) {
        self.rung.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// Sleeps until something is there. `look` is the last look into everything else that may hold work; it is called
/// after the bells are armed.
pub async fn sleep_until_work(
    door: &Arc<Doorbell>,
    bell: &LocalBell,
    timeout: Option<Duration>,
    look: impl FnMut() -> bool,
) {
    let timer = timeout.map(Timer::new);
    Sleep { door, bell, timer, look }.await;
    door.awake();
}

struct Sleep<'a, L> {
    door: &'a Arc<Doorbell>,
    bell: &'a LocalBell,
    timer: Option<Timer>,
    look: L,
}

impl<L: FnMut() -> bool> Future for Sleep<'_, L> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.bell.rung.replace(false) {
            return Poll::Ready(());
        }
        *this.bell.waker.borrow_mut() = Some(cx.waker().clone());
        this.door.prepare(cx.waker());
        if (this.look)() {
            return Poll::Ready(());
        }
        match &mut this.timer {
            Some(timer) => Pin::new(timer).poll(cx).map(|_| ()),
            None => Poll::Pending,
        }
    }
}

// Nothing in it is pinned by itself: the timer is `Unpin`, and the rest are references and a closure.
impl<L> Unpin for Sleep<'_, L> {}
