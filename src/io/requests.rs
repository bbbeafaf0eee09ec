//! HTTP requests as a shard takes them, and those that wait for an answer of another core: a promise a ticket.
//!
//! Always true: a connection that goes away takes its promise with it, so an answer that comes then finds nobody.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::shard::ApiAnswer;

/// The promises of one core, and the tickets of those who gave up.
#[derive(Debug, Default)]
pub struct Requests {
    waiting: RefCell<BTreeMap<u64, State>>,
    gone: RefCell<Vec<u64>>,
}

#[derive(Debug, Default)]
struct State {
    answer: Option<ApiAnswer>,
    waker: Option<Waker>,
}

impl Requests {
    /// A promise of the answer with this ticket.
    pub fn promise(self: &Rc<Self>, ticket: u64) -> Promise {
        self.waiting.borrow_mut().insert(ticket, State::default());
        Promise { requests: Rc::clone(self), ticket }
    }

    /// The answer has come.
    pub fn answer(&self, ticket: u64, answer: ApiAnswer) {
        if let Some(state) = self.waiting.borrow_mut().get_mut(&ticket) {
            state.answer = Some(answer);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }

    /// The tickets of those who gave up since the last call.
    pub fn take_gone(&self) -> Vec<u64> {
        std::mem::take(&mut self.gone.borrow_mut())
    }
}

/// The answer to come.
#[derive(Debug)]
pub struct Promise {
    requests: Rc<Requests>,
    ticket: u64,
}

impl Future for Promise {
    type Output = ApiAnswer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ApiAnswer> {
        let mut waiting = self.requests.waiting.borrow_mut();
        let state = waiting.entry(self.ticket).or_default();
        if let Some(answer) = state.answer.take() {
            Poll::Ready(answer)
        } else {
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.requests.waiting.borrow_mut().remove(&self.ticket).is_some() {
            self.requests.gone.borrow_mut().push(self.ticket);
        }
    }
}
