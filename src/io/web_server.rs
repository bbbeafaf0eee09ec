//! HTTP/1.1 over a socket of this core: what is no upgrade is replayed into the HTTP library.
//!
//! A stream with the bytes already read flows in; requests, whole and bounded, flow out to a handler. Always true: a
//! body has a limit in bytes and in time, a connection that is idle or slow ends, read errors stay errors, and the
//! library sees no byte that `wire::framing` has not passed, so it never meets a head of which there could be two opinions.
//!
//! A proxy that keeps connections to its upstreams sends an upgrade behind other requests. Its head does not reach the
//! library: the connection ends for the library there, once all before it is answered, and comes back to the caller with
//! the bytes of that head. In the same way a head that is refused comes back with the refusal.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::{AsyncRead, AsyncWrite, FutureExt};
use glommio::net::TcpStream;
use glommio::timer::Timer;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};

use crate::shard::ApiAnswer;
use crate::wire::framing::{Framing, Stop};
use crate::wire::http::HEAD_BYTES_MAX;
use crate::wire::problem::Problem;

/// What an HTTP connection may take.
#[derive(Clone, Copy, Debug)]
pub struct WebOptions {
    /// The largest body, in bytes.
    pub body_bytes_max: usize,
    /// How long a head or a body may take to come, and an answer to be made, in milliseconds.
    pub request_ms_max: u32,
    /// How long a connection may lie idle, in milliseconds.
    pub idle_ms_max: u32,
}

/// A request that came in whole.
#[derive(Debug)]
pub struct WholeRequest {
    /// Method, target and fields.
    pub head: hyper::http::request::Parts,
    /// The body.
    pub body: Bytes,
}

impl WholeRequest {
    /// The method. HEAD is GET whose body the library keeps back (RFC 9110, section 9.3.2).
    #[must_use]
    pub fn method(&self) -> &str {
        let method = &self.head.method;
        if *method == hyper::Method::HEAD { "GET" } else { method.as_str() }
    }

    /// A field's value, if there is one.
    ///
    /// # Errors
    /// 400 if it stands more than once, or is not text.
    pub fn field(&self, name: &str) -> Result<Option<&str>, Problem> {
        let mut values = self.head.headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Problem::new(400, "field_twice", format!("the {name} field stands more than once")));
        }
        let text = std::str::from_utf8(value.as_bytes());
        text.map(Some).map_err(|_| Problem::new(400, "field_not_text", format!("the {name} field is not text")))
    }

    /// All lines of `X-Forwarded-For`, joined by commas; empty if there is none.
    #[must_use]
    pub fn forwarded_for(&self) -> String {
        let lines = self.head.headers.get_all("x-forwarded-for").iter();
        lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect::<Vec<_>>().join(",")
    }
}

/// What is left to do with a connection that the library is done with.
#[derive(Debug)]
pub enum After {
    /// An upgrade came; this was read of it, its whole head first.
    Upgrade(Vec<u8>),
    /// A head is refused; nothing behind it was looked at.
    Refuse(Problem),
}

/// Serves one connection until it ends, or until an upgrade or a head comes that is refused: then the stream is given
/// back. `prefix` was read already.
pub async fn serve<H, F>(
    stream: TcpStream,
    prefix: Vec<u8>,
    options: WebOptions,
    handler: H,
) -> Option<(TcpStream, After)>
where
    H: Fn(WholeRequest) -> F + Clone + 'static,
    F: Future<Output = ApiAnswer> + 'static,
{
    let busy = Rc::new(Cell::new(false));
    let mut framing = Framing::default();
    framing.feed(&prefix);
    drop(prefix);
    let shared = Rc::new(Shared {
        stream: RefCell::new(stream),
        framing: RefCell::new(framing),
        answered: Cell::new(0),
        told: Cell::new(0),
        waits: Cell::new(None),
    });
    let service = {
        let (busy, shared) = (Rc::clone(&busy), Rc::clone(&shared));
        service_fn(move |request: Request<Incoming>| {
            let (handler, busy, shared) = (handler.clone(), Rc::clone(&busy), Rc::clone(&shared));
            async move {
                busy.set(true);
                let answer = match read_whole(request, options).await {
                    Ok(request) => handler(request).await,
                    Err(problem) => problem.into(),
                };
                busy.set(false);
                shared.answered.set(shared.answered.get() + 1);
                Ok::<_, Infallible>(respond(answer))
            }
        })
    };
    let io = Stream { shared: Rc::clone(&shared) };
    let connection =
        http1::Builder::new().header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).serve_connection(io, service);
    // The library's own timers want `Send`; a watch beside the connection does not.
    let watch = async {
        let mut seen = u64::MAX;
        loop {
            Timer::new(Duration::from_millis(u64::from(options.idle_ms_max))).await;
            if seen == shared.answered.get() && !busy.get() {
                return;
            }
            seen = shared.answered.get();
        }
    };
    let connection = async {
        // How an HTTP connection ends says nothing that its peer does not know.
        let _ = connection.await;
    };
    connection.or(watch).await;
    // The library has let go of its half.
    let shared = Rc::into_inner(shared)?;
    if !shared.gives_back() {
        return None;
    }
    let after = match shared.framing.into_inner().into_stop()? {
        Stop::Upgrade(head) => After::Upgrade(head),
        Stop::Refused(problem) => After::Refuse(problem),
        Stop::Torn | Stop::Over => return None,
    };
    Some((shared.stream.into_inner(), after))
}

async fn read_whole(request: Request<Incoming>, options: WebOptions) -> Result<WholeRequest, Problem> {
    let (head, body) = request.into_parts();
    let late = async {
        Timer::new(Duration::from_millis(u64::from(options.request_ms_max))).await;
        Err(Problem::new(408, "body_too_slow", "the body did not come in time"))
    };
    let read = async {
        match Limited::new(body, options.body_bytes_max).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                let detail = format!("a body has at most {} bytes", options.body_bytes_max);
                Err(Problem::new(413, "body_too_large", detail))
            }
            Err(_) => Err(Problem::new(400, "body_torn", "the body ends before its end, or its chunks are none")),
        }
    };
    read.or(late).await.map(|body| WholeRequest { head, body })
}

fn respond(answer: ApiAnswer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() =
        hyper::StatusCode::from_u16(answer.status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    let fields = response.headers_mut();
    let mut put = |name: &'static str, value: &str| {
        if let Ok(value) = hyper::header::HeaderValue::from_str(value) {
            fields.insert(name, value);
        }
    };
    put("content-type", answer.content_type);
    for (name, value) in &answer.fields {
        put(name, value);
    }
    response
}

/// A stream of this core as the HTTP library wants it.
struct Stream {
    shared: Rc<Shared>,
}

/// What stays when the library is done.
struct Shared {
    stream: RefCell<TcpStream>,
    framing: RefCell<Framing>,
    /// Requests that are answered.
    answered: Cell<u64>,
    /// Of those, whose answers have left the library.
    told: Cell<u64>,
    /// The library, while it waits for the end that comes behind its answers.
    waits: Cell<Option<Waker>>,
}

impl Shared {
    /// The library has answered all that it was given, and the connection is then somebody else's.
    fn gives_back(&self) -> bool {
        let framing = self.framing.borrow();
        matches!(framing.stopped(), Some(Stop::Upgrade(_) | Stop::Refused(_))) && self.told.get() == framing.heads()
    }
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut framing = self.shared.framing.borrow_mut();
            let bytes = framing.checked().len().min(buffer.remaining());
            if bytes > 0 {
                buffer.put_slice(&framing.checked()[..bytes]);
                framing.advance(bytes);
                return Poll::Ready(Ok(()));
            }
            match framing.stopped() {
                None => {}
                // For the library the connection ends here; what it still owes, it says first.
                Some(Stop::Upgrade(_) | Stop::Refused(_) | Stop::Over) if self.shared.told.get() < framing.heads() => {
                    self.shared.waits.set(Some(cx.waker().clone()));
                    return Poll::Pending;
                }
                Some(_) => return Poll::Ready(Ok(())),
            }
            let mut scratch = [0_u8; 4_096];
            let read = Pin::new(&mut *self.shared.stream.borrow_mut()).poll_read(cx, &mut scratch);
            match read {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(bytes)) => framing.feed(&scratch[..bytes]),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.shared.stream.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library flushes only what it has written whole. It flushes whenever it is polled; who waits is woken for an
        // answer only, for else the two would wake each other until there is one.
        let answered = self.shared.answered.get();
        if self.shared.told.replace(answered) != answered
            && let Some(waker) = self.shared.waits.take()
        {
            waker.wake();
        }
        Pin::new(&mut *self.shared.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.shared.gives_back() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut *self.shared.stream.borrow_mut()).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use futures_lite::future::poll_fn;
    use glommio::LocalExecutor;

    use super::*;
    use crate::io::descriptors;

    /// What stands behind a request ends the connection, so the library waits for its answer, and so does the reader.
    #[test]
    fn a_connection_that_ends_behind_a_request_waits_without_being_polled() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut theirs = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (ours, _) = listener.accept().expect("a connection");
        ours.set_nonblocking(true).expect("a socket");
        theirs.write_all(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/9\r\n\r\n").expect("writes");
        let polls = Rc::new(Cell::new(0));
        let its_polls = Rc::clone(&polls);
        let handler = move |_: WholeRequest| {
            let (polls, mut timer) = (Rc::clone(&its_polls), Timer::new(Duration::from_millis(50)));
            poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                Pin::new(&mut timer).poll(cx).map(|_| Problem::new(404, "nothing", "nothing is here").into())
            })
        };
        let options = WebOptions { body_bytes_max: 1_000, request_ms_max: 5_000, idle_ms_max: 5_000 };
        let back = LocalExecutor::default()
            .run(async move { serve(descriptors::stream(ours.into()), Vec::new(), options, handler).await.is_some() });
        assert!(back, "the second head is refused by whoever is given the connection");
        assert!(polls.get() <= 5, "it was polled {} times", polls.get());
        theirs.set_nonblocking(true).expect("a socket");
        let mut answer = [0; 12];
        theirs.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 404");
    }
}
