//! The hooks of apps over HTTP/1.1, from the orchestrator's core: each question is a task of its own beside the loop.
//!
//! Questions flow in, verdicts flow out through [`Hooks::take`], and the loop's bell is rung for each. Always true: a
//! question has exactly one outcome, within the app's longest wait; nothing is looked up, and nothing waits but the
//! task; and connections that were of use are kept, a bounded number for each app.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::{AsyncRead, AsyncWrite, FutureExt};
use glommio::net::TcpStream;
use glommio::timer::Timer;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper::rt::{Read, ReadBufCursor, Write};

use super::descriptors;
use super::executor::HttpQueue;
use super::socket;
use super::wait::LocalBell;
use crate::admission::HookOptions;
use crate::base::{AppId, Gauge, Name};
use crate::wire::hook::{ANSWER_BYTES_MAX, HookUrl, Verdict, verdict};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// All hooks of a node.
pub struct Hooks {
    targets: Vec<Option<Target>>,
    kept_max: usize,
    verdicts: RefCell<VecDeque<(u64, Verdict)>>,
    bell: LocalBell,
    queue: HttpQueue,
}

struct Target {
    app: Name,
    url: HookUrl,
    wait_max: Duration,
    kept: RefCell<Vec<Line>>,
}

impl Hooks {
    /// The hooks of the apps, by their place in the configuration. Of the connections of each, `kept_max` are kept for the
    /// next question.
    #[must_use]
    pub fn new(apps: Vec<(Name, Option<HookOptions>)>, kept_max: usize, queue: HttpQueue) -> Rc<Self> {
        let target = |(app, hook): (Name, Option<HookOptions>)| {
            let hook = hook?;
            let wait_max = Duration::from_millis(u64::from(hook.late_ms));
            Some(Target { app, url: hook.url, wait_max, kept: RefCell::default() })
        };
        let targets = apps.into_iter().map(target).collect();
        Rc::new(Self { targets, kept_max, verdicts: RefCell::default(), bell: LocalBell::default(), queue })
    }

    /// What is rung for each verdict.
    #[must_use]
    pub fn bell(&self) -> &LocalBell {
        &self.bell
    }

    /// Connections that are kept, of each app with a hook.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, Name, Gauge)> {
        let gauge = |target: &Target| Gauge::new(target.kept.borrow().len() as u64, self.kept_max as u64);
        let targets = self.targets.iter().flatten();
        targets.map(|target| ("app_hook_connections", target.app.clone(), gauge(target))).collect()
    }

    /// Asks; the verdict comes by [`Hooks::take`].
    pub fn ask(self: &Rc<Self>, number: u64, app: AppId, body: Vec<u8>) {
        let hooks = Rc::clone(self);
        let question = async move {
            let verdict = hooks.verdict_of(app, body.into()).await;
            hooks.tell(number, verdict);
        };
        if self.queue.spawn(question).is_err() {
            self.tell(number, Verdict::None);
        }
    }

    /// The next verdict that has come, with the number of its question.
    pub fn take(&self) -> Option<(u64, Verdict)> {
        self.verdicts.borrow_mut().pop_front()
    }

    /// No verdict has come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.verdicts.borrow().is_empty()
    }

    fn tell(&self, number: u64, verdict: Verdict) {
        self.verdicts.borrow_mut().push_back((number, verdict));
        self.bell.ring();
    }

    async fn verdict_of(&self, app: AppId, body: Bytes) -> Verdict {
        let Some(Some(target)) = self.targets.get(usize::from(app.0)) else { return Verdict::None };
        let asked = async {
            target.ask(body, self.kept_max).await.map_or(Verdict::None, |(status, body)| verdict(status, &body))
        };
        let silent = async {
            Timer::new(target.wait_max).await;
            Verdict::None
        };
        asked.or(silent).await
    }
}

impl Target {
    async fn ask(&self, body: Bytes, kept_max: usize) -> Result<(u16, Bytes), Error> {
        // A connection that was kept may have been closed at the other end meanwhile: then there is a new one.
        let kept = self.kept.borrow_mut().pop();
        if let Some(mut line) = kept
            && let Ok(answer) = line.post(&self.url, body.clone()).await
        {
            self.keep(line, kept_max);
            return Ok(answer);
        }
        let mut line = Line::open(self.url.address).await?;
        let answer = line.post(&self.url, body).await?;
        self.keep(line, kept_max);
        Ok(answer)
    }

    fn keep(&self, line: Line, kept_max: usize) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < kept_max {
            kept.push(line);
        }
    }
}

/// One connection. What drives it is polled while there is a question, and never beside one; so whoever drops it closes
/// it, and no task is left behind.
struct Line {
    sender: SendRequest<Full<Bytes>>,
    driver: Pin<Box<Connection<Plain, Full<Bytes>>>>,
}

impl Line {
    async fn open(address: SocketAddr) -> Result<Self, Error> {
        // Connecting goes on while the request waits to be written.
        let stream = descriptors::stream(socket::connect(address)?);
        let (sender, driver) = handshake(Plain(stream)).await?;
        Ok(Self { sender, driver: Box::pin(driver) })
    }

    async fn post(&mut self, url: &HookUrl, body: Bytes) -> Result<(u16, Bytes), Error> {
        let Self { sender, driver } = self;
        let request = Request::post(&url.target)
            .header("host", &url.host)
            .header("content-type", "application/json")
            .header("user-agent", concat!("ringcast/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))?;
        let exchange = async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await?.to_bytes();
            Ok((status, body))
        };
        let mut exchange = pin!(exchange);
        let mut driven = true;
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(answer) = exchange.as_mut().poll(cx) {
                    return Poll::Ready(answer);
                }
                // Once the connection has ended, the exchange says how.
                if !driven || driver.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                driven = false;
            }
        })
        .await
    }
}

/// A stream of this core as the HTTP library wants it.
struct Plain(TcpStream);

impl Read for Plain {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut scratch = [0_u8; 4_096];
        let most = scratch.len().min(buffer.remaining());
        Pin::new(&mut self.0).poll_read(cx, &mut scratch[..most]).map_ok(|bytes| buffer.put_slice(&scratch[..bytes]))
    }
}

impl Write for Plain {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }
}
