//! The loop of a socket core: letters, sockets and time in; sends, letters and endings out.
//!
//! Always true: the shard is borrowed, called and let go before anything is awaited; after each call it is polled dry;
//! and between two submits the mailboxes, the sockets and the timers have their turn. How a connection becomes a viewer
//! stands in `entrance`, what the shard wants done in `actions`.

mod actions;
mod entrance;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use glommio::yield_if_needed;

use super::clock::Clock;
use super::descriptors;
use super::door::{Door, Waiting};
use super::executor::HttpQueue;
use super::handoff::{EventDoors, OrchestratorDoors, ShardDoors, ShardInbox};
use super::life::Life;
use super::proxies::Proxies;
use super::requests::Requests;
use super::ring::{Greeting, RingEvent, SendOutcome, SocketId, SocketRing};
use super::socket::{self, SocketOptions};
use super::wait::{LocalBell, sleep_until_work};
use super::web_server::{After, WebOptions};
use super::{machine, ring};
use crate::base::{ClientId, Gauge, Now, ShardId};
use crate::bus::Unwanted;
use crate::post::letters::ToOrchestrator;
use crate::post::report::Turns;
use crate::shard::{Interest, SendBatch, SendResult, Shard};

/// Letters of each kind that one turn takes.
const LETTERS_A_TURN: usize = 256;
/// Completions that one turn of the ring takes.
const COMPLETIONS_A_TURN: u32 = 512;
/// How long accepting rests when no descriptor is left, in milliseconds.
const ACCEPT_REST_MS: u64 = 100;
/// How soon a full mailbox is tried again, in milliseconds.
const RETRY_MS: u64 = 1;

/// What a socket core is made of.
pub struct ShardCoreParts {
    /// Its state machine.
    pub shard: Shard,
    /// Its mailboxes.
    pub inbox: ShardInbox,
    /// To all shards, itself among them.
    pub shards: Vec<ShardDoors>,
    /// To the orchestrator.
    pub orchestrator: OrchestratorDoors,
    /// Its listening socket.
    pub listener: OwnedFd,
    /// How its ring is made.
    pub ring: ring::RingOptions,
    /// What runs its HTTP connections.
    pub http: HttpQueue,
    /// How viewers' sockets behave.
    pub socket: SocketOptions,
    /// What HTTP connections may take.
    pub web: WebOptions,
    /// Places in an events mailbox that are kept for events with a credit.
    pub reserve: usize,
    /// Sockets between accept and seat.
    pub guests_max: usize,
    /// How long a head may take, in milliseconds.
    pub head_ms_max: u32,
    /// Who in front of the node is believed.
    pub proxies: Proxies,
    /// The node's clock.
    pub clock: Clock,
    /// The node's life.
    pub life: Arc<Life>,
    /// Told when its ring is made and its socket listens.
    pub begun: Sender<()>,
}

struct Core {
    id: ShardId,
    shard: Rc<RefCell<Shard>>,
    inbox: ShardInbox,
    shards: Vec<ShardDoors>,
    orchestrator: OrchestratorDoors,
    listener: Option<OwnedFd>,
    ring: SocketRing,
    web: WebOptions,
    reserve: usize,
    door: Door,
    proxies: Rc<Proxies>,
    clock: Clock,
    life: Arc<Life>,
    bell: Rc<LocalBell>,
    requests: Rc<Requests>,
    http_connections: Rc<Cell<usize>>,
    /// HTTP connections that the library is done with, with what is left to do.
    returned: Rc<RefCell<Vec<Returned>>>,
    http_max: usize,
    http: HttpQueue,
    unwanted: Unwanted,
    batch: SendBatch,
    short: Vec<(u32, SendOutcome)>,
    results: Vec<(u32, SendResult)>,
    unsent: VecDeque<ToOrchestrator>,
    rung: Vec<bool>,
    ring_orchestrator: bool,
    placed: u64,
    accept_at_ms: Option<u64>,
    memory_at_ms: u64,
    turns: Turns,
    /// The last report told of somebody at the door or of an HTTP connection.
    told_standing: bool,
}

/// An HTTP connection on which an upgrade or a bad head came, and who is at its other end.
type Returned = (OwnedFd, After, Option<IpAddr>);

/// What the ring said in one turn, to be dealt with after it.
enum Heard {
    Accepted(OwnedFd),
    AcceptFailed(i32),
    NotListening,
    Greeted(u32, Option<Vec<u8>>),
}

/// Runs a socket core until the node stops.
///
/// # Errors
/// The ring could not be made.
pub async fn run(parts: ShardCoreParts) -> Result<(), std::io::Error> {
    let eventfd = descriptors::eventfd()?;
    let ring = SocketRing::new(parts.ring, eventfd.as_raw_fd())?;
    let bell = Rc::new(LocalBell::default());
    descriptors::watch(&eventfd, &bell)?;
    let shards = parts.shards.len();
    let proxies = Rc::new(parts.proxies);
    let mut core = Core {
        id: parts.shard.options().id,
        shard: Rc::new(RefCell::new(parts.shard)),
        inbox: parts.inbox,
        shards: parts.shards,
        orchestrator: parts.orchestrator,
        listener: Some(parts.listener),
        ring,
        web: parts.web,
        reserve: parts.reserve,
        door: Door::new(parts.guests_max, parts.head_ms_max, Rc::clone(&proxies)),
        proxies,
        clock: parts.clock,
        life: parts.life,
        bell,
        requests: Rc::default(),
        http_connections: Rc::default(),
        returned: Rc::default(),
        http_max: parts.guests_max,
        http: parts.http,
        unwanted: Unwanted::default(),
        batch: SendBatch::default(),
        short: Vec::new(),
        results: Vec::new(),
        unsent: VecDeque::new(),
        rung: vec![false; shards],
        ring_orchestrator: false,
        placed: 0,
        accept_at_ms: None,
        memory_at_ms: 0,
        turns: Turns::default(),
        told_standing: false,
    };
    if let Some(listener) = &core.listener {
        socket::prepare(listener, &parts.socket)?;
        core.ring.listen(listener.as_raw_fd(), 0);
    }
    // Who waits for it may have given up by now.
    let _ = parts.begun.send(());
    let result = core.run_loop().await;
    // The reader of the eventfd ends when it reads the last time.
    descriptors::add_one(&eventfd);
    result
}

impl Core {
    async fn run_loop(&mut self) -> std::io::Result<()> {
        let mut began_us: Option<u64> = None;
        loop {
            let now = self.clock.now();
            if let Some(began_us) = began_us.replace(now.mono_us) {
                self.turns.count(now.mono_us - began_us);
            }
            self.life.beat(usize::from(self.id.0), now.mono_ms());
            let mut more = self.take_letters(now);
            more |= self.turn_ring(now)?;
            self.take_returned(now);
            self.on_time(now);
            self.act(now);
            more |= self.send(now)?;
            self.act(now);
            self.ring_doors();
            if self.life.is_stopping() {
                return Ok(());
            }
            if more {
                yield_if_needed().await;
            } else {
                self.turns.count(self.clock.now().mono_us - now.mono_us);
                self.sleep(now).await;
                began_us = None;
            }
        }
    }

    async fn sleep(&mut self, now: Now) {
        let alarm_ms = [
            self.shard.borrow().next_alarm_ms(),
            self.door.next_alarm_ms(),
            self.accept_at_ms,
            (!self.unsent.is_empty() || self.shard.borrow().partition().is_holding()).then(|| now.mono_ms() + RETRY_MS),
            Some(now.mono_ms() + 1_000),
        ];
        let until_ms = alarm_ms.into_iter().flatten().min().unwrap_or(u64::MAX);
        let timeout = Duration::from_micros((until_ms * 1_000).saturating_sub(now.mono_us));
        if timeout.is_zero() {
            return yield_if_needed().await;
        }
        let (inbox, ring, life) = (&self.inbox, &mut self.ring, &self.life);
        // An error here is told again by the next turn of the ring.
        let look = || !inbox.is_empty() || !ring.prepare_park().unwrap_or(false) || life.is_stopping();
        sleep_until_work(&inbox.door, &self.bell, Some(timeout), look).await;
        self.ring.unpark();
    }

    /// True if more letters may wait.
    fn take_letters(&mut self, now: Now) -> bool {
        let mut shard = self.shard.borrow_mut();
        for ticket in self.requests.take_gone() {
            shard.on_request_gone(ticket);
        }
        let mut taken = 0;
        while let Some(letter) = pop_some(&mut taken, || self.inbox.answers.pop()) {
            shard.on_letter(now, letter);
        }
        let mut more = taken >= LETTERS_A_TURN;
        taken = 0;
        while let Some(handoff) = pop_some(&mut taken, || self.inbox.seats.pop()) {
            let ticket = shard.on_seat(now, handoff.seat);
            self.door.wait(ticket, Waiting { fd: handoff.fd, leftover: handoff.leftover });
        }
        more |= taken >= LETTERS_A_TURN;
        let mut doors = EventDoors { doors: &self.shards, reserve: self.reserve, rung: &mut self.rung };
        shard.partition_mut().retry(&mut doors);
        taken = 0;
        while let Some(sealed) = pop_some(&mut taken, || self.inbox.partition.pop()) {
            shard.order(now, &sealed, &mut doors);
        }
        more |= taken >= LETTERS_A_TURN;
        taken = 0;
        while let Some(letter) = pop_some(&mut taken, || self.inbox.presence.pop()) {
            shard.on_presence(now, letter);
        }
        more |= taken >= LETTERS_A_TURN;
        taken = 0;
        while shard.takes_events()
            && let Some(sealed) = pop_some(&mut taken, || self.inbox.events.pop())
        {
            if shard.on_sealed(now, &sealed) == Interest::Nobody {
                self.unwanted.push(sealed);
            }
        }
        self.unwanted.let_go();
        more |= taken >= LETTERS_A_TURN;
        if let Some(lists) = self.inbox.blocklists.pop() {
            shard.set_blocklists(&lists);
        }
        let placed = shard.partition().placed();
        if placed != self.placed {
            self.placed = placed;
            self.orchestrator.placed.replace(placed);
            self.ring_orchestrator = true;
        }
        more
    }

    fn turn_ring(&mut self, now: Now) -> std::io::Result<bool> {
        let mut heard = Vec::new();
        let shard = &self.shard;
        let progress = self.ring.turn(COMPLETIONS_A_TURN, &mut |event| {
            let mut shard = shard.borrow_mut();
            match event {
                RingEvent::Bytes(id, bytes) => shard.on_bytes(now, client(id), bytes),
                RingEvent::HangUp(id, _) => shard.on_hangup(now, client(id)),
                RingEvent::Writable(id) => shard.on_writable(now, client(id)),
                // Nobody is moved yet: a socket that comes out is closed here.
                RingEvent::Closed(id) | RingEvent::Moved(id, _) => shard.on_closed(client(id)),
                RingEvent::Accepted(_, fd) => heard.push(Heard::Accepted(fd)),
                RingEvent::AcceptFailed(_, errno) => heard.push(Heard::AcceptFailed(errno)),
                RingEvent::NotListening(_) => heard.push(Heard::NotListening),
                RingEvent::Greeting(key, Greeting::Bytes(bytes)) => heard.push(Heard::Greeted(key, Some(bytes.into()))),
                RingEvent::Greeting(key, Greeting::Cancelled) => heard.push(Heard::Greeted(key, Some(Vec::new()))),
                RingEvent::Greeting(key, Greeting::Eof | Greeting::Failed(_)) => {
                    heard.push(Heard::Greeted(key, None));
                }
            }
        })?;
        for heard in heard {
            match heard {
                Heard::Accepted(fd) => self.on_accepted(now, fd),
                // A stale cancellation is no fault of the listener: it goes on at once.
                Heard::AcceptFailed(libc::ETIMEDOUT | libc::ECONNABORTED | libc::EINTR) => self.ring.accept_again(0),
                Heard::AcceptFailed(_) => self.accept_at_ms = Some(now.mono_ms() + ACCEPT_REST_MS),
                Heard::NotListening => self.listener = None,
                Heard::Greeted(key, None) => self.door.forget(key),
                Heard::Greeted(key, Some(bytes)) if bytes.is_empty() => self.door.refuse_late(now, key),
                Heard::Greeted(key, Some(bytes)) => self.on_greeting(now, key, &bytes),
            }
        }
        Ok(progress.more)
    }

    fn on_time(&mut self, now: Now) {
        for key in self.door.sweep(now) {
            // The end of the wait is told as a greeting; if it was told before, it is about to be dealt with.
            self.ring.cancel_greet(key);
        }
        if self.accept_at_ms.is_some_and(|at| at <= now.mono_ms()) {
            self.accept_at_ms = None;
            self.ring.accept_again(0);
        }
        let mut shard = self.shard.borrow_mut();
        shard.set_memory_full(self.life.is_memory_full());
        if shard.next_alarm_ms().is_some_and(|at| at <= now.mono_ms()) {
            shard.on_alarm(now);
        }
        // Without a viewer too, what stands here counts for whether the node is ready; and once it is told, so is its end.
        let stands = self.door.gauge().used > 0 || self.http_connections.get() > 0;
        if stands || self.told_standing {
            shard.schedule_report(now);
        }
        if let Some(mut report) = shard.take_report(now) {
            self.told_standing = stands;
            report.turns = self.turns;
            let ring = self.ring.gauges();
            report.gauges.extend([
                ("ring_sockets", ring.sockets),
                ("recv_buffers", ring.recv_buffers),
                ("door", self.door.gauge()),
                ("http_connections", Gauge::new(self.http_connections.get() as u64, self.http_max as u64)),
                ("mailbox_answers", self.inbox.answers.gauge()),
                ("mailbox_seats", self.inbox.seats.gauge()),
                ("mailbox_events", self.inbox.events.gauge()),
                ("mailbox_partition", self.inbox.partition.gauge()),
                ("mailbox_presence", self.inbox.presence.gauge()),
                ("partition_held", Gauge::new(shard.partition().held(), self.reserve as u64)),
            ]);
            let queue = self.listener.as_ref().and_then(socket::accept_queue);
            report.gauges.extend(queue.map(|queue| ("accept_queue", queue)));
            self.orchestrator.report.replace(report);
            self.ring_orchestrator = true;
        }
        if now.mono_ms() >= self.memory_at_ms {
            self.memory_at_ms = now.mono_ms() + 1_000;
            machine::give_back_memory();
        }
        if shard.is_drained() {
            self.life.set_drained(usize::from(self.id.0));
            self.ring_orchestrator = true;
        }
    }

    /// Submits once what is to be written; true if more waits.
    ///
    /// One submit a turn: its 64 sends take 0.3 to 0.7 ms, so that a letter waits no longer than a millisecond while the core
    /// does nothing but send. With two of them seven turns of eight took longer.
    fn send(&mut self, now: Now) -> std::io::Result<bool> {
        let more = self.shard.borrow_mut().poll_fanout(now, &mut self.batch);
        if self.batch.is_empty() {
            return Ok(more);
        }
        self.short.clear();
        {
            let shard = self.shard.borrow();
            let batch = &self.batch;
            let sends = batch.sends().iter().map(|send| (socket_id(send.client), shard.bytes_of(batch, send)));
            self.ring.send_all(sends, &mut self.short)?;
        }
        self.results.clear();
        self.results.extend(self.short.iter().map(|(at, outcome)| {
            let result = match outcome {
                SendOutcome::Short(bytes) => SendResult::Short(*bytes as usize),
                SendOutcome::Gone(_) => SendResult::Gone,
            };
            (*at, result)
        }));
        self.shard.borrow_mut().on_sent(now, &mut self.batch, &mut self.results);
        Ok(self.shard.borrow().has_fanout())
    }

    fn ring_doors(&mut self) {
        for (at, rung) in self.rung.iter_mut().enumerate() {
            if std::mem::take(rung) {
                self.shards[at].events.ring();
            }
        }
        if std::mem::take(&mut self.ring_orchestrator) {
            self.orchestrator.letters.ring();
        }
    }
}

fn pop_some<T>(taken: &mut usize, pop: impl FnOnce() -> Option<T>) -> Option<T> {
    if *taken >= LETTERS_A_TURN {
        return None;
    }
    let letter = pop();
    *taken += usize::from(letter.is_some());
    letter
}

fn socket_id(id: ClientId) -> SocketId {
    SocketId { slot: id.slot, generation: id.generation }
}

fn client(id: SocketId) -> ClientId {
    ClientId { slot: id.slot, generation: id.generation }
}
