//! One thread's viewers: an epoll set, their sockets, and one buffer for all of them.
//!
//! A plan, orders and socket events flow in, gauges and an outcome flow out; what is always true is that a socket is
//! read until it is dry when it turns readable (unless its viewer pauses), and that no viewer holds a buffer of its own.

use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError};

use super::audit::{ChannelTarget, Side};
use super::desk::Desk;
use super::foreign::Join;
use super::kernel::{self, Epoll, now_ns};
use super::plan::{COMPLAINTS_MAX, Order, Outcome, Plan, Schedule, channel_name};
use super::viewer::{Ending, Phase, Viewer};

/// One buffer a thread; large enough that a whole tick of a busy channel is one read.
const READ_BYTES: usize = 128 << 10;
/// A join that takes longer has failed.
const HANDSHAKE_NS: u64 = 15_000_000_000;
/// How often to look for orders, in ms.
const ORDERS_MS: i32 = 10;
/// The receive buffer of a slow viewer: little, so that lag shows at the node and not in our kernel.
const SLOW_RECEIVE_BYTES: usize = 4 << 10;

/// What a thread shows of itself while it runs; written by it alone.
#[derive(Default)]
pub(super) struct Gauges {
    /// Viewers that were greeted.
    pub(super) joined: AtomicU64,
    /// Viewers that were not.
    pub(super) failed: AtomicU64,
    /// Deliveries of any kind.
    pub(super) delivered: AtomicU64,
    /// 1 when nothing more is to come.
    pub(super) arrived: AtomicU32,
}

/// What a thread leaves when it is told to stop.
pub(super) struct Settled {
    /// What it found.
    pub(super) outcome: Outcome,
    /// Connections that are open still: the first to be closed would change what viewers of other threads are told.
    pub(super) open: Vec<TcpStream>,
}

/// One thread's viewers.
pub(super) struct Deck {
    plan: Plan,
    orders: Receiver<Order>,
    gauges: Arc<Gauges>,
    epoll: Epoll,
    desk: Desk,
    /// The upgrade, with `{channel}` in it.
    request: String,
    /// What is said instead of an upgrade.
    said_at_once: Option<String>,
    viewers: Vec<Viewer>,
    sockets: Vec<Option<TcpStream>>,
    begun_ns: u64,
    /// Viewers whose join was begun.
    begun: u32,
    joined: u64,
    failed: u64,
    /// Handshakes under way began at or after the one of this viewer.
    oldest: u32,
    schedule: Option<Schedule>,
    /// Everybody was cut off and comes back.
    returning: bool,
    paused: bool,
    targets: Option<Vec<ChannelTarget>>,
    /// All viewers before this one have arrived.
    arrived: usize,
    outcome: Outcome,
}

impl Deck {
    /// The viewers of `plan`, none of them joined.
    pub(super) fn new(plan: Plan, orders: Receiver<Order>, gauges: Arc<Gauges>) -> io::Result<Self> {
        let key = tungstenite::handshake::client::generate_key();
        let token = plan.token.as_ref().map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        let join = plan.foreign.as_ref().map(|foreign| &foreign.join);
        let path = match join {
            Some(Join::Websocket { path, .. }) => path.clone(),
            _ => format!("/v1/{}/channels/{{channel}}/ws{{position}}", plan.app),
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{token}\r\n",
            plan.host
        );
        let said_at_once = match join {
            Some(Join::Tcp { say }) => Some(say.concat()),
            _ => None,
        };
        Ok(Self {
            orders,
            gauges,
            epoll: Epoll::new()?,
            desk: Desk::new(&plan, &key),
            request,
            said_at_once,
            viewers: (plan.first..plan.first + plan.count).map(|number| Viewer::new(&plan, number)).collect(),
            sockets: (0..plan.count).map(|_| None).collect(),
            begun_ns: now_ns(),
            begun: 0,
            joined: 0,
            failed: 0,
            oldest: 0,
            schedule: None,
            returning: false,
            paused: false,
            targets: None,
            arrived: 0,
            outcome: Outcome::default(),
            plan,
        })
    }

    /// Carries the viewers until it is told to stop, or until there is nobody to tell.
    pub(super) fn run(mut self) -> Settled {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            loop {
                match self.orders.try_recv() {
                    Ok(Order::Go(schedule)) => self.go(schedule),
                    Ok(Order::Finish(targets)) => self.targets = Some(targets),
                    // Without a conductor there is nobody to report to.
                    Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return self.settle(),
                    Err(TryRecvError::Empty) => break,
                }
            }
            let now = now_ns();
            self.drop_when_due(now);
            let may_join = self.schedule.is_none() || self.returning;
            let joining = may_join && self.joined + self.failed < u64::from(self.plan.count);
            if joining {
                self.begin_joins(now);
                self.end_stale_joins(now);
            }
            self.pause_or_resume(now);
            self.look_who_arrived();
            match self.epoll.wait(self.patience_ms(joining)) {
                Ok(ready) => {
                    for number in 0..ready {
                        let (key, flags) = self.epoll.event(number);
                        self.on_event(key as usize, flags, &mut buffer);
                    }
                }
                Err(error) => self.complain(format!("epoll: {error}")),
            }
            self.gauges.joined.store(self.joined, Relaxed);
            self.gauges.failed.store(self.failed, Relaxed);
            self.gauges.delivered.store(self.desk.delivered, Relaxed);
        }
    }

    /// How long to wait for the sockets, in ms: until the next join is due, or until an order should be looked for, for orders
    /// have no descriptor. A million viewers are carried by more than fifty processes: had each looked every millisecond, they
    /// would wake 55,000 times a second.
    fn patience_ms(&self, joining: bool) -> i32 {
        let answers = u64::from(self.begun) - self.joined - self.failed;
        if !joining || answers >= u64::from(self.plan.handshakes) || self.begun >= self.plan.count {
            return ORDERS_MS;
        }
        let due_ms = f64::from(self.begun) / self.plan.join_rate * 1e3;
        let passed_ms = (now_ns() - self.begun_ns) as f64 / 1e6;
        ((due_ms - passed_ms).ceil() as i32).clamp(1, ORDERS_MS)
    }

    // Joining

    fn begin_joins(&mut self, now: u64) {
        let due = (now - self.begun_ns) as f64 / 1e9 * self.plan.join_rate;
        let due = (due as u64 + 1).min(u64::from(self.plan.count)) as u32;
        while self.begun < due && u64::from(self.begun) - self.joined - self.failed < u64::from(self.plan.handshakes) {
            let index = self.begun as usize;
            self.begun += 1;
            // Who never joined does not return.
            if self.viewers[index].phase != Phase::Idle {
                continue;
            }
            self.outcome.first_connect_ns.get_or_insert(now);
            self.viewers[index].phase = Phase::Connecting(now_ns());
            match self.connect(index) {
                Ok(socket) => self.sockets[index] = Some(socket),
                Err(error) => self.end(index, Err(error)),
            }
        }
    }

    fn connect(&self, index: usize) -> io::Result<TcpStream> {
        let domain = if self.plan.addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?;
        socket.set_tcp_nodelay(true)?;
        if self.viewers[index].slow {
            // Before the connect: the window that is offered there is what the node may fill.
            socket.set_recv_buffer_size(SLOW_RECEIVE_BYTES)?;
        }
        if let Some(source) = self.plan.source(self.plan.first + index as u32) {
            kernel::choose_port_late(socket.as_fd())?;
            socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
        }
        match socket.connect(&SockAddr::from(self.plan.addr)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        self.epoll.add(socket.as_fd(), index as u64, kernel::READABLE | kernel::WRITABLE)?;
        Ok(socket.into())
    }

    /// TCP stands, or does not: asks for the upgrade.
    fn ask(&mut self, index: usize, since: u64) -> io::Result<()> {
        let position = self.position(index);
        let Some(socket) = &mut self.sockets[index] else { return Ok(()) };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        let channel = channel_name(self.viewers[index].channel);
        let request = match &self.said_at_once {
            Some(say) => say.replace("{channel}", &channel),
            None => self.request.replace("{channel}", &channel).replace("{position}", &position),
        };
        // A few hundred bytes into an empty buffer of a new socket always fit.
        if socket.write(request.as_bytes())? < request.len() {
            return Err(io::Error::other("the request did not fit into a new socket"));
        }
        self.viewers[index].phase = Phase::Upgrading(since);
        if self.said_at_once.is_some() {
            self.viewers[index].open(now_ns(), since, &mut self.desk);
            self.joined += 1;
        }
        Ok(())
    }

    /// Where a viewer that returns goes on, as the query of its request.
    fn position(&self, index: usize) -> String {
        let viewer = &self.viewers[index];
        let epoch = self.desk.channels[viewer.channel as usize].epoch.as_deref().filter(|_| self.returning);
        epoch.map_or(String::new(), |epoch| format!("?epoch={}&since={}", epoch.trim_matches('"'), viewer.tally.last))
    }

    /// Cuts all connections at once.
    fn drop_when_due(&mut self, now: u64) {
        let due = self.schedule.and_then(|schedule| schedule.drop_ns).is_some_and(|at| at <= now);
        if !due || self.returning {
            return;
        }
        self.returning = true;
        (self.begun, self.begun_ns, self.oldest) = (0, now, 0);
        for (viewer, socket) in self.viewers.iter_mut().zip(&mut self.sockets) {
            if viewer.cut() {
                *socket = None;
                self.joined -= 1;
            }
        }
    }

    fn end_stale_joins(&mut self, now: u64) {
        // Joins begin in the order of the viewers, so the first that is still young ends the search.
        while self.oldest < self.begun {
            let index = self.oldest as usize;
            match self.viewers[index].phase {
                Phase::Connecting(since) | Phase::Upgrading(since) | Phase::Greeting(since) => {
                    if now.saturating_sub(since) < HANDSHAKE_NS {
                        return;
                    }
                    self.end(index, Err(io::Error::new(io::ErrorKind::TimedOut, "the join took too long")));
                }
                Phase::Idle | Phase::Open | Phase::Ended | Phase::Failed => {}
            }
            self.oldest += 1;
        }
    }

    // The run

    fn go(&mut self, schedule: Schedule) {
        for index in 0..self.viewers.len() {
            match self.viewers[index].phase {
                Phase::Open | Phase::Ended | Phase::Failed => {}
                Phase::Idle | Phase::Connecting(_) | Phase::Upgrading(_) | Phase::Greeting(_) => {
                    self.end(index, Err(io::Error::new(io::ErrorKind::TimedOut, "not joined before the posts")));
                }
            }
        }
        self.desk.measure_from_ns = schedule.measure_from_ns;
        self.schedule = Some(schedule);
    }

    fn pause_or_resume(&mut self, now: u64) {
        let Some(schedule) = self.schedule else { return };
        let pause = self.plan.slow_share > 0.0 && (schedule.pause_ns..schedule.resume_ns).contains(&now);
        if pause == self.paused {
            return;
        }
        self.paused = pause;
        let interest = if pause { 0 } else { kernel::READABLE };
        for (index, viewer) in self.viewers.iter().enumerate().filter(|(_, viewer)| viewer.slow) {
            if let (Phase::Open, Some(socket)) = (viewer.phase, &self.sockets[index]) {
                // Only a descriptor outside the set could fail here.
                let _ = self.epoll.change(socket.as_fd(), index as u64, interest);
            }
        }
    }

    fn look_who_arrived(&mut self) {
        let Some(targets) = &self.targets else { return };
        while let Some(viewer) = self.viewers.get(self.arrived) {
            let target = targets.get(viewer.channel as usize).copied().unwrap_or_default();
            if viewer.is_away() || (viewer.phase == Phase::Open && !viewer.tally.reached(target.last)) {
                return;
            }
            self.arrived += 1;
        }
        self.gauges.arrived.store(1, Relaxed);
    }

    fn on_event(&mut self, index: usize, flags: u32, buffer: &mut [u8]) {
        if let Phase::Connecting(since) = self.viewers[index].phase
            && let Err(error) = self.ask(index, since)
        {
            self.end(index, Err(error));
            return;
        }
        if flags & (kernel::READABLE | kernel::ENDED) != 0 && !(self.paused && self.viewers[index].slow) {
            self.read(index, flags & kernel::ENDED != 0, buffer);
        }
    }

    fn read(&mut self, index: usize, to_the_end: bool, buffer: &mut [u8]) {
        while let Some(socket) = &mut self.sockets[index] {
            let ending = match socket.read(buffer) {
                // An end without a Close has this code (RFC 6455 §7.1.5).
                Ok(0) => Ok(Ending::Closed(1006)),
                Ok(bytes) => {
                    let viewer = &mut self.viewers[index];
                    let greeting = viewer.phase;
                    let result = viewer.on_bytes(now_ns(), &buffer[..bytes], &mut self.desk);
                    self.joined += u64::from(viewer.phase == Phase::Open && greeting != Phase::Open);
                    if !self.desk.pongs.is_empty() {
                        // A Pong that does not fit is lost like on a bad line; the node pings again.
                        let _ = socket.write(&self.desk.pongs);
                        self.desk.pongs.clear();
                    }
                    match result {
                        // A short read has emptied the socket; what comes later comes with an event of its own.
                        Ok(()) if bytes < buffer.len() && !to_the_end => return,
                        Ok(()) => continue,
                        Err(ending) => Ok(ending),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            self.end(index, ending);
        }
    }

    /// The connection of a viewer is over, before or after its join.
    fn end(&mut self, index: usize, ending: io::Result<Ending>) {
        self.sockets[index] = None;
        let viewer = &mut self.viewers[index];
        let side = if viewer.slow { &mut self.outcome.slow } else { &mut self.outcome.healthy };
        let (code, status) = match &ending {
            Ok(Ending::Refused(status)) => (1006, *status),
            Ok(Ending::Closed(code)) => (*code, 0),
            Ok(Ending::Misbehaved(_)) | Err(_) => (1006, 0),
        };
        if viewer.phase == Phase::Open {
            viewer.phase = Phase::Ended;
            *side.closes.entry(code).or_default() += 1;
        } else {
            viewer.phase = Phase::Failed;
            self.failed += 1;
            *self.outcome.join_failures.entry(status).or_default() += 1;
        }
        match ending {
            Ok(Ending::Misbehaved(what)) => self.complain(what),
            Ok(Ending::Refused(status)) => self.complain(format!("an upgrade was answered with {status}")),
            Ok(Ending::Closed(code)) => self.complain(format!("the node closed a connection with {code}")),
            Err(error) => self.complain(error.to_string()),
        }
    }

    fn complain(&mut self, what: String) {
        if self.outcome.complaints.len() < COMPLAINTS_MAX && !self.outcome.complaints.contains(&what) {
            self.outcome.complaints.push(what);
        }
    }

    // The end

    fn settle(self) -> Settled {
        let Self { desk, viewers, sockets, targets, mut outcome, .. } = self;
        let targets = targets.unwrap_or_default();
        let slow = std::mem::take(&mut outcome.slow);
        outcome.slow = Side { closes: slow.closes, ..Side::slow() };
        outcome.channels = desk.channels;
        for viewer in &viewers {
            if viewer.is_away() {
                // Cut off, and never back.
                *outcome.join_failures.entry(0).or_default() += 1;
            }
            let ended = viewer.phase == Phase::Ended;
            if !ended && viewer.phase != Phase::Open {
                continue;
            }
            let channel = &mut outcome.channels[viewer.channel as usize];
            channel.open += u64::from(!ended);
            channel.ended += u64::from(ended);
            let target = targets.get(viewer.channel as usize).copied().unwrap_or_default();
            let side = if viewer.slow { &mut outcome.slow } else { &mut outcome.healthy };
            viewer.tally.settle(target, ended, side);
        }
        outcome.healthy.latency = desk.healthy.recorded();
        outcome.slow.latency = desk.slow.recorded();
        outcome.join_latency = desk.joins.recorded();
        outcome.last_greeting_ns = desk.last_greeting_ns;
        outcome.foreign = desk.foreign;
        outcome.others = desk.others;
        outcome.heard = desk.heard;
        outcome.epoch_changes = desk.epoch_changes;
        Settled { outcome, open: sockets.into_iter().flatten().collect() }
    }
}
