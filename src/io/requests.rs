//! HTTP requests that wait for the orchestrator's answer: a promise a ticket.
//!
//! Always true: a connection that goes away takes its promise with it, so an answer that comes then finds nobody.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::web_server::WholeRequest;
use crate::shard::{ApiAnswer, ApiRequest, Origin};

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

/// The answer to a browser that asks whether its page may call (WHATWG Fetch, CORS-preflight).
pub(super) fn preflight(origin: &str) -> ApiAnswer {
    let fields = vec![
        ("access-control-allow-origin", origin.to_owned()),
        ("access-control-allow-methods", "GET, POST, PUT, PATCH, DELETE".to_owned()),
        ("access-control-allow-headers", "authorization, content-type, idempotency-key, last-event-id".to_owned()),
        ("access-control-max-age", "600".to_owned()),
        ("vary", "origin".to_owned()),
    ];
    ApiAnswer { status: 204, content_type: "text/plain", body: Vec::new(), fields }
}

/// A request as the shard takes it.
pub(super) fn api_request(request: &WholeRequest, from: Origin) -> ApiRequest<'_> {
    ApiRequest {
        method: request.head.method.as_str(),
        path: request.head.uri.path(),
        query: request.head.uri.query().unwrap_or_default(),
        authorization: request.field("authorization"),
        idempotency_key: request.field("idempotency-key"),
        origin: request.field("origin"),
        body: &request.body,
        from,
    }
}
