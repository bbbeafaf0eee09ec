#![allow(unsafe_code, reason = "poll(2) and the flags of a descriptor have no safe call in the standard library")]
#![allow(clippy::disallowed_methods, reason = "peers of a ring are threads that wait and read a clock")]
#![allow(missing_docs, reason = "a test, not a library")]
//! The ring against the real kernel, rule by rule.

mod burst;
mod door;
mod ends;
mod moves;
mod park;
mod sends;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringcast::io::descriptors;
use ringcast::io::ring::{Greeting, Progress, RingEvent, RingOptions, SocketId, SocketRing};

/// What happened, owned.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    HangUp(SocketId, Option<i32>),
    Writable(SocketId),
    Closed(SocketId),
    AcceptFailed(u64, i32),
    NotListening(u64),
    Greeting(u32, Result<Vec<u8>, i32>),
    GreetingCancelled(u32),
}

/// A ring with its eventfd, and all it has told.
struct Bench {
    ring: SocketRing,
    eventfd: File,
    bytes: BTreeMap<SocketId, Vec<u8>>,
    seen: Vec<Seen>,
    accepted: Vec<OwnedFd>,
    moved: Vec<(SocketId, OwnedFd)>,
}

fn small() -> RingOptions {
    RingOptions { sockets_max: 10_000, files_per_ring: 10_000, ..RingOptions::default() }
}

impl Bench {
    fn new(options: RingOptions) -> Self {
        let eventfd = descriptors::eventfd().expect("an eventfd");
        let ring = SocketRing::new(options, eventfd.as_raw_fd()).expect("a ring");
        Self { ring, eventfd, bytes: BTreeMap::new(), seen: Vec::new(), accepted: Vec::new(), moved: Vec::new() }
    }

    fn turn(&mut self, budget: u32) -> Progress {
        let Self { ring, bytes, seen, accepted, moved, .. } = self;
        ring.turn(budget, &mut |event| match event {
            RingEvent::Bytes(id, came) => bytes.entry(id).or_default().extend_from_slice(came),
            RingEvent::HangUp(id, errno) => seen.push(Seen::HangUp(id, errno)),
            RingEvent::Writable(id) => seen.push(Seen::Writable(id)),
            RingEvent::Closed(id) => seen.push(Seen::Closed(id)),
            RingEvent::Moved(id, fd) => moved.push((id, fd)),
            RingEvent::Accepted(_, fd) => accepted.push(fd),
            RingEvent::AcceptFailed(tag, errno) => seen.push(Seen::AcceptFailed(tag, errno)),
            RingEvent::NotListening(tag) => seen.push(Seen::NotListening(tag)),
            RingEvent::Greeting(key, Greeting::Bytes(came)) => seen.push(Seen::Greeting(key, Ok(came.to_vec()))),
            RingEvent::Greeting(key, Greeting::Eof) => seen.push(Seen::Greeting(key, Ok(Vec::new()))),
            RingEvent::Greeting(key, Greeting::Failed(errno)) => seen.push(Seen::Greeting(key, Err(errno))),
            RingEvent::Greeting(key, Greeting::Cancelled) => seen.push(Seen::GreetingCancelled(key)),
        })
        .expect("a turn")
    }

    /// Takes turns, parking between them as the owner does, until `done` or ten seconds have passed.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let more = self.turn(256).more;
            if done(self) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {:?}, seen {:?}", self.ring.gauges(), self.seen.len());
            if !more {
                self.park(100);
            }
        }
    }

    /// Parks for at most `ms`; `false` if nothing woke it.
    fn park(&mut self, ms: i32) -> bool {
        if !self.ring.prepare_park().expect("a park") {
            return true;
        }
        let mut wait = libc::pollfd { fd: self.eventfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd of ours, for the length of the call.
        let woken = unsafe { libc::poll(&raw mut wait, 1, ms) };
        if woken > 0 {
            self.eventfd.read_exact(&mut [0; 8]).expect("a count");
        }
        self.ring.unpark();
        woken > 0
    }

    fn install(&mut self, slot: u32, generation: u32, socket: impl Into<OwnedFd>) -> SocketId {
        let id = SocketId { slot, generation };
        self.ring.install(id, socket.into()).expect("a free slot");
        id
    }

    fn has(&self, event: &Seen) -> bool {
        self.seen.contains(event)
    }
}

/// A non-blocking end for the ring, a blocking one for the peer.
fn unix_pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("non-blocking");
    (ours, theirs)
}

fn tcp_pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let theirs = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (ours, _) = listener.accept().expect("accepts");
    ours.set_nonblocking(true).expect("non-blocking");
    ours.set_nodelay(true).expect("nodelay");
    (ours, theirs)
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("binds")
}

/// A small generator of numbers that repeats with its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
