//! HTTP/1.1 over a socket of this core: what is no upgrade is replayed into the HTTP library.
//!
//! A stream with the bytes already read flows in; requests, whole and bounded, flow out to a handler. Always true: a
//! body has a limit in bytes and in time, a connection that is idle or slow ends, and read errors stay errors.
//!
//! A proxy that keeps connections to its upstreams sends an upgrade behind other requests. Its head does not reach the
//! library: the connection ends for the library there, and comes back to the caller with the bytes of that head.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::{AsyncRead, AsyncWrite, FutureExt};
use glommio::net::TcpStream;
use glommio::timer::Timer;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};

use crate::shard::ApiAnswer;
use crate::wire::http::{HEAD_BYTES_MAX, begins_upgrade};
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
    /// A field's value, if it stands once and is text.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// All lines of `X-Forwarded-For`, joined by commas; empty if there is none.
    #[must_use]
    pub fn forwarded_for(&self) -> String {
        let lines = self.head.headers.get_all("x-forwarded-for").iter();
        lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect::<Vec<_>>().join(",")
    }
}

/// Serves one connection until it ends, or until an upgrade comes: then the stream and what was read of the upgrade are
/// given back. `prefix` was read already.
pub async fn serve<H, F>(
    stream: TcpStream,
    prefix: Vec<u8>,
    options: WebOptions,
    handler: H,
) -> Option<(TcpStream, Vec<u8>)>
where
    H: Fn(WholeRequest) -> F + Clone + 'static,
    F: Future<Output = ApiAnswer> + 'static,
{
    let answered = Rc::new(Cell::new(0_u64));
    let busy = Rc::new(Cell::new(false));
    let shared =
        Rc::new(Shared { stream: RefCell::new(stream), between: Cell::new(false), upgrade: RefCell::default() });
    let service = {
        let (answered, busy, shared) = (Rc::clone(&answered), Rc::clone(&busy), Rc::clone(&shared));
        service_fn(move |request: Request<Incoming>| {
            let (handler, answered, busy) = (handler.clone(), Rc::clone(&answered), Rc::clone(&busy));
            let shared = Rc::clone(&shared);
            async move {
                busy.set(true);
                let answer = match read_whole(request, options).await {
                    Ok(request) => {
                        // Only behind a body that was read to its end does the next byte begin a head.
                        shared.between.set(true);
                        handler(request).await
                    }
                    Err(problem) => problem.into(),
                };
                busy.set(false);
                answered.set(answered.get() + 1);
                Ok::<_, Infallible>(respond(answer))
            }
        })
    };
    let io = Stream { prefix, at: 0, shared: Rc::clone(&shared) };
    let connection =
        http1::Builder::new().header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).serve_connection(io, service);
    // The library's own timers want `Send`; a watch beside the connection does not.
    let watch = async {
        let mut seen = u64::MAX;
        loop {
            Timer::new(Duration::from_millis(u64::from(options.idle_ms_max))).await;
            if seen == answered.get() && !busy.get() {
                return;
            }
            seen = answered.get();
        }
    };
    let connection = async {
        // How an HTTP connection ends says nothing that its peer does not know.
        let _ = connection.await;
    };
    connection.or(watch).await;
    // The library has let go of its half.
    let Shared { stream, upgrade, .. } = Rc::into_inner(shared)?;
    Some(upgrade.into_inner()).filter(|head| !head.is_empty()).map(|head| (stream.into_inner(), head))
}

async fn read_whole(request: Request<Incoming>, options: WebOptions) -> Result<WholeRequest, Problem> {
    let (head, body) = request.into_parts();
    let read = async {
        Limited::new(body, options.body_bytes_max).collect().await.map(http_body_util::Collected::to_bytes).ok()
    };
    let too_slow = async {
        Timer::new(Duration::from_millis(u64::from(options.request_ms_max))).await;
        None
    };
    let late = Cell::new(true);
    let read = async {
        let body = read.await;
        late.set(false);
        body
    };
    match read.or(too_slow).await {
        Some(body) => Ok(WholeRequest { head, body }),
        None if late.get() => Err(Problem::new(408, "body_too_slow", "the body did not come in time")),
        None => {
            let detail = format!("a body has at most {} bytes", options.body_bytes_max);
            Err(Problem::new(413, "body_too_large", detail))
        }
    }
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

/// A stream of this core as the HTTP library wants it, with the bytes that were read before it got it.
struct Stream {
    prefix: Vec<u8>,
    at: usize,
    shared: Rc<Shared>,
}

/// What stays when the library is done.
struct Shared {
    stream: RefCell<TcpStream>,
    /// A request was read whole, and of the next nothing yet.
    between: Cell<bool>,
    /// The beginning of an upgrade; once there is one, the library reads nothing more and does not close.
    upgrade: RefCell<Vec<u8>>,
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.at < self.prefix.len() {
            let bytes = (self.prefix.len() - self.at).min(buffer.remaining());
            buffer.put_slice(&self.prefix[self.at..self.at + bytes]);
            self.at += bytes;
            if self.at == self.prefix.len() {
                self.prefix = Vec::new();
                self.at = 0;
            }
            return Poll::Ready(Ok(()));
        }
        let shared = &self.shared;
        if !shared.upgrade.borrow().is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut scratch = [0_u8; 4_096];
        let most = scratch.len().min(buffer.remaining());
        match Pin::new(&mut *shared.stream.borrow_mut()).poll_read(cx, &mut scratch[..most]) {
            Poll::Ready(Ok(bytes)) => {
                // A full buffer may have more behind it in the stream's own, which could not be given back.
                let whole = bytes < most;
                if shared.between.replace(false) && whole && begins_upgrade(&scratch[..bytes]) {
                    *shared.upgrade.borrow_mut() = scratch[..bytes].to_vec();
                    return Poll::Ready(Ok(()));
                }
                buffer.put_slice(&scratch[..bytes]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.shared.stream.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.shared.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shared.upgrade.borrow().is_empty() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut *self.shared.stream.borrow_mut()).poll_close(cx)
    }
}
