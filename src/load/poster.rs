//! The poster: one thread that posts at the intended times over a few keep-alive connections.
//!
//! A pace flows in, posts flow to the node, acknowledged numbers a channel flow out; what is always true is that the
//! pace does not wait for the node (an open loop): a post that could not leave in time is late, is reported as late,
//! and its deliveries are timed from when it should have left.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::audit::{ChannelTarget, add_counts};
use super::foreign::Post;
use super::http;
use super::kernel::{self, now_ns};
use super::latency::Latency;
use super::pace::{Pace, put_request};
use super::probe;

/// Posts of events on one connection's way at a time. A channel's events stay on one connection, which keeps their order; if
/// each waited for the answer to the one before, none could ever share a write with another.
const IN_FLIGHT_MAX: usize = 256;

/// What became of the posts.
#[derive(Debug, Default)]
pub(super) struct Posted {
    /// Posts that left.
    pub(super) posts: u64,
    /// Posts that never left because all connections were busy for too long.
    pub(super) unsent: u64,
    /// Posts without the right answer, by status; 0 is a connection that ended or an answer that did not come.
    pub(super) errors: BTreeMap<u16, u64>,
    /// The first few errors in words.
    pub(super) complaints: Vec<String>,
    /// One a channel.
    pub(super) acked: Vec<ChannelTarget>,
    /// How much later than intended the posts left.
    pub(super) late: Latency,
    /// From leaving to the answer.
    pub(super) answers: Latency,
}

impl Posted {
    /// Adds another poster's; of events that nobody keeps, `acked` counts for no viewer's account.
    pub(super) fn add(&mut self, other: &Self, stored: bool) {
        self.posts += other.posts;
        self.unsent += other.unsent;
        add_counts(&mut self.errors, &other.errors);
        let room = super::plan::COMPLAINTS_MAX.saturating_sub(self.complaints.len());
        self.complaints.extend(other.complaints.iter().take(room).cloned());
        self.late.add(&other.late.recorded());
        self.answers.add(&other.answers.recorded());
        if !stored {
            return;
        }
        self.acked.resize(self.acked.len().max(other.acked.len()), ChannelTarget::default());
        for (mine, theirs) in self.acked.iter_mut().zip(&other.acked) {
            mine.acked += theirs.acked;
            mine.last = mine.last.max(theirs.last);
        }
    }
}

struct Lane {
    stream: Option<TcpStream>,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// The posts on their way, in order: their numbers and when they left.
    busy: VecDeque<(u64, u64)>,
}

/// The poster's state; made and run inside one thread.
pub(super) struct Poster {
    pace: Pace,
    lanes: Vec<Lane>,
    /// Posts that are due. One queue for messages, whose order the node gives; one a lane for events, whose order is
    /// that of the posts, so that a channel's events stay on one connection.
    queues: Vec<VecDeque<u64>>,
    /// Posts on one lane's way at a time.
    in_flight_max: usize,
    /// The request that is being built.
    request: Vec<u8>,
    posted: Posted,
    progress: Arc<AtomicU64>,
}

impl Poster {
    /// A poster that shows in `progress` how many posts were answered.
    pub(super) fn new(pace: Pace, progress: Arc<AtomicU64>) -> Self {
        let lanes = pace.connections.max(1);
        let lane = || Lane { stream: None, out: Vec::new(), sent: 0, input: Vec::new(), busy: VecDeque::new() };
        Self {
            lanes: (0..lanes).map(|_| lane()).collect(),
            queues: vec![VecDeque::new(); if pace.say.is_stored() { 1 } else { lanes }],
            posted: Posted {
                acked: vec![ChannelTarget::default(); (pace.first_channel + pace.channels) as usize],
                ..Posted::default()
            },
            in_flight_max: if pace.say.is_stored() { 1 } else { IN_FLIGHT_MAX },
            request: Vec::new(),
            progress,
            pace,
        }
    }

    /// Posts until all posts were answered, or until its patience ends.
    pub(super) fn run(mut self) -> Posted {
        kernel::wake_sharply();
        for index in 0..self.lanes.len() {
            self.connect(index);
        }
        let mut next = 0;
        let deadline = self.pace.due_ns(self.pace.posts) + self.pace.patience_ns;
        let mut sockets = Vec::new();
        loop {
            let now = now_ns();
            while next < self.pace.posts && self.pace.due_ns(next) <= now {
                let queue = self.pace.channel(next) as usize % self.queues.len();
                self.queues[queue].push_back(next);
                next += 1;
            }
            self.send_due();
            let busy = self.lanes.iter().any(|lane| !lane.busy.is_empty());
            let waiting = self.queues.iter().any(|queue| !queue.is_empty());
            if (next == self.pace.posts && !busy && !waiting) || now >= deadline {
                return self.finish(next);
            }
            let until = if next < self.pace.posts { self.pace.due_ns(next) } else { deadline };
            self.wait(until.min(deadline), &mut sockets);
        }
    }

    fn finish(mut self, next: u64) -> Posted {
        let queued: usize = self.queues.iter().map(VecDeque::len).sum();
        self.posted.unsent = self.pace.posts - next + queued as u64;
        for index in 0..self.lanes.len() {
            if !self.lanes[index].busy.is_empty() {
                self.fail(index, 0, "a post was not answered in time");
            }
        }
        self.posted
    }

    fn connect(&mut self, index: usize) {
        let connected = TcpStream::connect_timeout(&self.pace.addr, Duration::from_secs(2)).and_then(|stream| {
            stream.set_nodelay(true)?;
            if let Some(Post::Tcp { hello, .. }) = self.pace.foreign.as_ref().map(|foreign| &foreign.post) {
                (&stream).write_all(hello.as_bytes())?;
            }
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let lane = &mut self.lanes[index];
        lane.input.clear();
        match connected {
            Ok(stream) => lane.stream = Some(stream),
            Err(error) => {
                lane.stream = None;
                self.complain(&format!("a poster cannot connect: {error}"));
            }
        }
    }

    fn send_due(&mut self) {
        for index in 0..self.lanes.len() {
            let queue = index % self.queues.len();
            let before = self.lanes[index].busy.len();
            while self.lanes[index].busy.len() < self.in_flight_max {
                let Some(number) = self.queues[queue].pop_front() else { break };
                self.prepare(index, number);
            }
            // What is due together leaves together.
            if self.lanes[index].busy.len() > before {
                self.write(index);
            }
        }
    }

    fn prepare(&mut self, index: usize, number: u64) {
        if self.lanes[index].stream.is_none() {
            self.connect(index);
        }
        let mut request = std::mem::take(&mut self.request);
        put_request(&mut request, &self.pace, number);
        let now = now_ns();
        self.posted.posts += 1;
        self.posted.late.record(now.saturating_sub(self.pace.due_ns(number)));
        let lane = &mut self.lanes[index];
        if lane.sent == lane.out.len() {
            lane.out.clear();
            lane.sent = 0;
        }
        lane.out.extend_from_slice(&request);
        lane.busy.push_back((number, now));
        self.request = request;
    }

    fn write(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        let Some(stream) = &mut lane.stream else {
            self.fail(index, 0, "a post without a connection");
            return;
        };
        while lane.sent < lane.out.len() {
            match stream.write(&lane.out[lane.sent..]) {
                Ok(bytes) => lane.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let what = format!("a post could not be written: {error}");
                    self.fail(index, 0, &what);
                    return;
                }
            }
        }
    }

    fn wait(&mut self, until_ns: u64, sockets: &mut Vec<libc::pollfd>) {
        sockets.clear();
        sockets.extend(self.lanes.iter().map(|lane| libc::pollfd {
            // A negative descriptor is passed over.
            fd: lane.stream.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            events: if lane.sent < lane.out.len() { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN },
            revents: 0,
        }));
        let timeout = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
        if let Err(error) = kernel::wait_any(sockets, timeout) {
            self.complain(&format!("ppoll: {error}"));
        }
        for (index, socket) in sockets.iter().enumerate() {
            if socket.revents & libc::POLLOUT != 0 {
                self.write(index);
            }
            if socket.revents & !libc::POLLOUT != 0 {
                self.read(index);
            }
        }
    }

    fn read(&mut self, index: usize) {
        let mut buffer = [0; 4_096];
        loop {
            let lane = &mut self.lanes[index];
            let Some(stream) = &mut lane.stream else { return };
            match stream.read(&mut buffer) {
                Ok(0) => return self.lost(index, "the node closed a poster's connection"),
                Ok(bytes) => {
                    lane.input.extend_from_slice(&buffer[..bytes]);
                    while !self.lanes[index].input.is_empty() {
                        match self.take_answer(index) {
                            Ok(true) => {}
                            Ok(false) => break,
                            Err(what) => return self.lost(index, what),
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lost(index, &error.to_string()),
            }
        }
    }

    /// Takes the first answer that has come whole; false if none has.
    fn take_answer(&mut self, index: usize) -> Result<bool, &'static str> {
        let lane = &mut self.lanes[index];
        if let Some(Post::Tcp { ack, .. }) = self.pace.foreign.as_ref().map(|foreign| &foreign.post) {
            let Some(at) = memchr::memmem::find(&lane.input, ack.as_bytes()) else { return Ok(false) };
            lane.input.drain(..at + ack.len());
            // A greeting may be acknowledged too.
            if !lane.busy.is_empty() {
                let right = self.pace.right_status();
                self.answered(index, right, &[]);
            }
            return Ok(true);
        }
        let Some(answer) = http::answer(&lane.input)? else { return Ok(false) };
        let rest = lane.input.split_off(answer.end);
        let whole = std::mem::replace(&mut lane.input, rest);
        self.answered(index, answer.status, &whole[answer.body..]);
        if answer.closes {
            self.lost(index, "the node closed a poster's connection");
        }
        Ok(true)
    }

    /// The connection is over. An idle one may be closed by the node at any time: that is no error.
    fn lost(&mut self, index: usize, what: &str) {
        if !self.lanes[index].busy.is_empty() {
            self.fail(index, 0, what);
        }
        self.lanes[index].stream = None;
    }

    fn answered(&mut self, index: usize, status: u16, body: &[u8]) {
        let Some((number, since)) = self.lanes[index].busy.pop_front() else {
            // A node tells a connection that never asked anything why it is closed (408): that is no answer.
            if status != 408 {
                self.complain("an answer to nothing");
            }
            return;
        };
        self.progress.fetch_add(1, Relaxed);
        self.posted.answers.record(now_ns().saturating_sub(since));
        let right = self.pace.right_status();
        let position = if self.pace.say.is_stored() { seq_of(body) } else { Some(self.pace.in_channel(number)) };
        if let (true, Some(position)) = (status == right, position) {
            let target = &mut self.posted.acked[self.pace.channel(number) as usize];
            target.acked += 1;
            target.last = target.last.max(position);
            return;
        }
        *self.posted.errors.entry(status).or_default() += 1;
        let body = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        self.complain(&format!("a post was answered with {status}: {body}"));
    }

    /// The first post on a lane's way has failed, and with it the connection and the posts behind it.
    fn fail(&mut self, index: usize, status: u16, what: &str) {
        let lane = &mut self.lanes[index];
        let lost = lane.busy.len() as u64;
        lane.busy.clear();
        lane.out.clear();
        lane.sent = 0;
        lane.stream = None;
        *self.posted.errors.entry(status).or_default() += lost;
        self.progress.fetch_add(lost, Relaxed);
        self.complain(what);
    }

    fn complain(&mut self, what: &str) {
        let complaints = &mut self.posted.complaints;
        if complaints.len() < super::plan::COMPLAINTS_MAX && !complaints.iter().any(|known| known == what) {
            complaints.push(what.to_owned());
        }
    }
}

/// The seq in the answer to a post.
fn seq_of(body: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"seq\":";
    let at = memchr::memmem::find(body, KEY)? + KEY.len();
    probe::digits(body[at..].trim_ascii_start()).map(|(seq, _)| seq)
}
