//! Sockets between accept and seat: heads that are coming, upgrades that wait, refusals that are on their way out.
//!
//! Accepted descriptors flow in; checked upgrades, HTTP connections and closed sockets flow out. Always true: a head has
//! a limit in bytes and in time, and so has everything that stands here; each descriptor stands in one place; and a
//! PROXY header is read where a listed proxy must send one, and refused everywhere else.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::proxies::Proxies;
use super::socket;
use crate::base::{Gauge, Now};
use crate::wire::head::HeadScan;
use crate::wire::http::{Head, parse_head};
use crate::wire::problem::Problem;
use crate::wire::proxy;

/// How long a refused socket is kept so that its peer can read why, in milliseconds.
const FAREWELL_MS: u64 = 1_000;

/// A socket whose head is coming.
#[derive(Debug)]
struct Guest {
    fd: OwnedFd,
    /// The other end, or whom its PROXY header names.
    source: Option<IpAddr>,
    /// A PROXY header must come first.
    owes_header: bool,
    buffer: Vec<u8>,
    scan: HeadScan,
    deadline_ms: u64,
}

impl Guest {
    /// Reads the PROXY header, if one must come and has come.
    fn take_proxy_header(&mut self) -> Result<(), Problem> {
        if !self.owes_header {
            if proxy::is_marked(&self.buffer) {
                let detail = "a PROXY header is taken from the networks that proxies.networks lists, and from them only \
                              with proxies.proxy_protocol = true";
                return Err(Problem::new(400, "proxy_header_not_believed", detail));
            }
            return Ok(());
        }
        let header = proxy::parse(&self.buffer).map_err(|why| {
            let detail = format!("connections from this address begin with a PROXY header, version 1 or 2: {why}");
            Problem::new(400, "bad_proxy_header", detail)
        })?;
        if let Some(header) = header {
            self.owes_header = false;
            self.source = header.client.or(self.source);
            self.buffer.drain(..header.length);
        }
        Ok(())
    }
}

/// A socket that waits for its seat.
#[derive(Debug)]
pub struct Waiting {
    /// The socket.
    pub fd: OwnedFd,
    /// What came behind its head.
    pub leftover: Vec<u8>,
}

/// A head that came whole.
#[derive(Debug)]
pub struct Arrived {
    /// What it asks.
    pub head: Head,
    /// The socket, with what came behind the head; for [`Head::Other`] with the head too.
    pub waiting: Waiting,
    /// The other end of the connection, or whom its PROXY header names.
    pub source: Option<IpAddr>,
}

/// Everything between accept and seat.
#[derive(Debug)]
pub struct Door {
    guests: BTreeMap<u32, Guest>,
    waiting: BTreeMap<u64, Waiting>,
    leaving: VecDeque<(u64, OwnedFd)>,
    next_key: u32,
    guests_max: usize,
    head_ms_max: u64,
    proxies: Rc<Proxies>,
    swept_ms: u64,
}

impl Door {
    /// A door for `guests_max` sockets at once, whose heads come within `head_ms_max` milliseconds.
    #[must_use]
    pub fn new(guests_max: usize, head_ms_max: u32, proxies: Rc<Proxies>) -> Self {
        Self {
            guests: BTreeMap::new(),
            waiting: BTreeMap::new(),
            leaving: VecDeque::new(),
            next_key: 1,
            guests_max,
            head_ms_max: u64::from(head_ms_max),
            proxies,
            swept_ms: 0,
        }
    }

    /// Descriptors that stand here, and how many may.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge::new((self.guests.len() + self.waiting.len() + self.leaving.len()) as u64, self.guests_max as u64)
    }

    /// A connection was accepted. Returns the key under which its first bytes are awaited; `None` if the door is full:
    /// then the connection is closed at once, which costs less than an answer.
    pub fn enter(&mut self, now: Now, fd: OwnedFd) -> Option<u32> {
        let source = socket::peer(&fd);
        let owes_header = self.proxies.expects_header(source);
        self.admit(now, fd, source, owes_header)
    }

    /// The same for a connection that was here before: its PROXY header, if it had to send one, is read.
    pub fn enter_again(&mut self, now: Now, fd: OwnedFd, source: Option<IpAddr>) -> Option<u32> {
        self.admit(now, fd, source, false)
    }

    fn admit(&mut self, now: Now, fd: OwnedFd, source: Option<IpAddr>, owes_header: bool) -> Option<u32> {
        if self.gauge().is_full() {
            return None;
        }
        let key = self.next_key;
        self.next_key = self.next_key.wrapping_add(1).max(1);
        let deadline_ms = now.mono_ms() + self.head_ms_max;
        let (buffer, scan) = (Vec::new(), HeadScan::default());
        self.guests.insert(key, Guest { fd, source, owes_header, buffer, scan, deadline_ms });
        Some(key)
    }

    /// The descriptor of a guest, to await more on.
    #[must_use]
    pub fn fd(&self, key: u32) -> Option<&OwnedFd> {
        self.guests.get(&key).map(|guest| &guest.fd)
    }

    /// Bytes came from a guest. `Ok(None)`: more must come.
    ///
    /// # Errors
    /// The head was refused; the socket is on its way out already.
    pub fn on_bytes(&mut self, now: Now, key: u32, bytes: &[u8]) -> Result<Option<Arrived>, Problem> {
        let Some(guest) = self.guests.get_mut(&key) else { return Ok(None) };
        guest.buffer.extend_from_slice(bytes);
        if let Err(problem) = guest.take_proxy_header() {
            self.refuse_guest(now, key, &problem);
            return Err(problem);
        }
        if guest.owes_header {
            return Ok(None);
        }
        let found = guest.scan.find(&guest.buffer);
        let parsed = match found {
            Ok(None) => return Ok(None),
            Ok(Some(end)) => parse_head(&guest.buffer[..end]).map(|head| (head, end)),
            Err(problem) => Err(problem),
        };
        match parsed {
            Ok((head, end)) => {
                let Some(guest) = self.guests.remove(&key) else { return Ok(None) };
                let mut leftover = guest.buffer;
                if head != Head::Other {
                    leftover.drain(..end);
                }
                Ok(Some(Arrived { head, waiting: Waiting { fd: guest.fd, leftover }, source: guest.source }))
            }
            Err(problem) => {
                self.refuse_guest(now, key, &problem);
                Err(problem)
            }
        }
    }

    fn refuse_guest(&mut self, now: Now, key: u32, problem: &Problem) {
        if let Some(guest) = self.guests.remove(&key) {
            self.refuse(now, guest.fd, problem);
        }
    }

    /// The guest is gone.
    pub fn forget(&mut self, key: u32) {
        self.guests.remove(&key);
    }

    /// Answers a socket with a refusal; it is closed a moment later.
    pub fn refuse(&mut self, now: Now, fd: OwnedFd, problem: &Problem) {
        socket::send_last(&fd, &problem.response());
        let _ = socket::discard(&fd);
        self.leaving.push_back((now.mono_ms() + FAREWELL_MS, fd));
    }

    /// A socket waits for its seat.
    pub fn wait(&mut self, ticket: u64, waiting: Waiting) {
        self.waiting.insert(ticket, waiting);
    }

    /// The socket that waits under this ticket.
    pub fn take(&mut self, ticket: u64) -> Option<Waiting> {
        self.waiting.remove(&ticket)
    }

    /// Time has passed: closes those who left, and returns the keys of those whose head is late. Their wait must be
    /// cancelled before [`Door::refuse_late`].
    pub fn sweep(&mut self, now: Now) -> Vec<u32> {
        while self.leaving.front().is_some_and(|(at_ms, _)| *at_ms <= now.mono_ms()) {
            if let Some((_, fd)) = self.leaving.pop_front() {
                let _ = socket::discard(&fd);
            }
        }
        // Once a second is exact enough for a limit of many.
        if now.mono_ms() < self.swept_ms + 1_000 {
            return Vec::new();
        }
        self.swept_ms = now.mono_ms();
        self.guests.iter().filter(|(_, guest)| guest.deadline_ms <= now.mono_ms()).map(|(key, _)| *key).collect()
    }

    /// The head of this guest did not come in time.
    pub fn refuse_late(&mut self, now: Now, key: u32) {
        let problem = Problem::new(408, "head_too_slow", "the request head did not come in time");
        self.refuse_guest(now, key, &problem);
    }

    /// When [`Door::sweep`] has something to do, in monotonic milliseconds.
    #[must_use]
    pub fn next_alarm_ms(&self) -> Option<u64> {
        let guests = (!self.guests.is_empty()).then_some(self.swept_ms + 1_000);
        let leaving = self.leaving.front().map(|(at_ms, _)| *at_ms);
        [guests, leaving].into_iter().flatten().min()
    }
}
