//! One socket core as a pure state machine: rooms, clients, fan-out.
//!
//! Seats, bytes, sealed events, answers and the time flow in; sends, asks and endings flow out. Never async, never
//! blocking, never reading a clock. The one rule of use: after any `on_*`, poll until dry ([`Shard::poll_action`],
//! [`Shard::poll_fanout`] with [`Shard::on_sent`]). Always true: a client sits in one room of a channel, no room is above
//! its cap, and the account of deliveries balances.

mod alarm;
mod audience;
mod channel;
mod compose;
mod connections;
mod deliver;
mod drain;
mod join;
mod limits;
mod presence;
mod receive;
mod request;
mod subscribe;
mod sweep;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use join::Origin;
pub use request::{ApiAnswer, ApiRequest, Outcome};
pub use write::{Send, SendBatch, SendResult, Source};

use crate::admission::Apps;
use crate::admission::blocklist::Blocklist;
use crate::admission::rate::{FixedWindow, RateOptions};
use crate::base::alarm::Wheel;
use crate::base::{Account, AppId, ChannelKey, Class, ClientId, Gauge, Now, RoomCount, RoomReport, ShardId, SlotSet};
use crate::bus::Partition;
use crate::fanout::client::{Client, Phase};
use crate::fanout::index::{Index, IndexOptions, TopicNo};
use crate::fanout::score::OutboxOptions;
use crate::post::letters::{AddressKey, JoinSpec, Seat, ToOrchestrator};
use crate::post::report::{Report, Stages};
use crate::presence::PresenceOptions;
use crate::wire::close::Closing;
use crate::wire::dialect::Dialect;
use crate::wire::problem::Problem;
use crate::wire::sealed::Sealed;
use crate::wire::socket::{ContextPool, SocketLimits};
use crate::wire::topic::TopicHasher;

use channel::Channel;

/// Everything about a shard that may be chosen.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// Which one this is.
    pub id: ShardId,
    /// How many there are.
    pub shards: u16,
    /// Connections here at the most.
    pub clients_max: u32,
    /// Questions to the orchestrator that wait for an answer, at the most.
    pub asks_max: u32,
    /// Connections of one room at the most.
    pub room_capacity: u32,
    /// Rooms that may refuse one viewer before it is told to come back.
    pub attempts_max: u8,
    /// Channels that one connection may watch.
    pub channels_per_client: u16,
    /// The queue of a client that is behind.
    pub outbox: OutboxOptions,
    /// An open tick's frames, in bytes.
    pub tick_bytes_max: u32,
    /// Sends in one submit: more take the core away from reads and timers (20,000 took it for 130 ms).
    pub sends_per_submit: u32,
    /// What one write of a client that is behind takes out of its queue, in bytes.
    pub write_bytes: u32,
    /// Stored events kept in memory a channel.
    pub tail_events: u32,
    /// After so much silence a client is pinged, in seconds.
    pub ping_after_s: u32,
    /// After so much silence it is closed, in seconds.
    pub close_after_s: u32,
    /// A client that takes nothing for so long while something waits is closed, in milliseconds.
    pub max_stall_ms: u32,
    /// How long the peer's end is awaited after a Close, in milliseconds.
    pub linger_ms: u32,
    /// Between two reports, in milliseconds.
    pub report_ms: u32,
    /// Requests of one address.
    pub address_rate: RateOptions,
    /// Commands of one connection in a minute that may be refused for their rate; one more and it is closed.
    pub over_rate_max: u16,
    /// What clients send.
    pub socket: SocketLimits,
    /// The subscription index.
    pub index: IndexOptions,
    /// Patterns of one app's list of texts that are not allowed.
    pub patterns_max: u32,
    /// Who is there, in the channels whose partition this shard is.
    pub presence: PresenceOptions,
    /// The echo endpoint of conformance tests is there.
    pub echo: bool,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            id: ShardId(0),
            shards: 1,
            clients_max: 1_000_000,
            asks_max: 4_096,
            room_capacity: 500,
            attempts_max: 10,
            channels_per_client: 128,
            outbox: OutboxOptions::default(),
            tick_bytes_max: 64 * 1024,
            sends_per_submit: 64,
            write_bytes: 16 * 1024,
            tail_events: 64,
            ping_after_s: 60,
            close_after_s: 90,
            max_stall_ms: 30_000,
            linger_ms: 2_000,
            report_ms: 5_000,
            address_rate: RateOptions { requests_max: 600, window_s: 60, keys_max: 100_000 },
            over_rate_max: 300,
            socket: SocketLimits::default(),
            index: IndexOptions::default(),
            patterns_max: 10_000,
            presence: PresenceOptions::default(),
            echo: false,
        }
    }
}

/// What the shard wants done outside.
#[derive(Debug)]
pub enum Action {
    /// To the orchestrator.
    Ask(ToOrchestrator),
    /// To the partition that gives this event its order.
    Publish(Sealed),
    /// Pass the waiting socket of this ticket to the shard that owns its room.
    HandOver {
        /// The socket.
        ticket: u64,
        /// Where to.
        to: ShardId,
        /// What goes with it.
        seat: Box<Seat>,
    },
    /// Answer the waiting socket of this ticket with a refusal and close it.
    Refuse {
        /// The socket.
        ticket: u64,
        /// Why.
        problem: Problem,
    },
    /// The waiting socket of this ticket is now that of this client.
    Install {
        /// The socket.
        ticket: u64,
        /// Its client.
        client: ClientId,
    },
    /// Answer the waiting HTTP request of this ticket.
    Answer {
        /// The request.
        ticket: u64,
        /// The answer.
        answer: ApiAnswer,
    },
    /// Read nothing more from this client for now.
    PauseReads(ClientId),
    /// Read from it again.
    ResumeReads(ClientId),
    /// Say when this client's socket takes more.
    WantWritable(ClientId),
    /// Shut our side of the socket; the peer's end is awaited.
    ShutdownWrite(ClientId),
    /// Take the socket down; [`Shard::on_closed`] follows.
    End(ClientId),
    /// Accept nobody any more.
    StopListening,
}

/// A question that waits for the orchestrator's answer.
#[derive(Debug)]
enum Pending {
    /// A socket that waits for a seat.
    Join(Box<JoinSpec>),
    /// A socket that went away while it waited, with the app and the address that the answer will tell to be counted or not.
    Left(AppId, Option<AddressKey>),
    /// A connection that subscribes to a further channel.
    Subscribe { client: ClientId, want: Box<subscribe::Want> },
    /// A message that a client posted.
    Message { client: ClientId, id: Option<String>, client_id: Option<String> },
    /// A page that a client asked for.
    History { client: ClientId, id: Option<String>, channel: crate::base::Name },
    /// An HTTP request.
    Request(request::Waiting),
    /// The head of a channel that is new here, or the hole in its numbers; the channel knows the ticket.
    Head(TopicNo),
    /// The next page of a client that resumes.
    Resume { client: ClientId, topic: TopicNo },
}

/// One place in the client table.
#[derive(Debug, Default)]
struct Place {
    generation: u32,
    flags: u8,
    client: Option<Box<Client>>,
}

/// Of so many deliveries a report counts whether they wait. Some 0.05 µs each.
const COUNTED_MAX: u64 = 10_000;

/// The client gets a tick's slice as it is: it is open, in step, speaks JSON, filters nothing, and all its channels are
/// live. The walk looks at this one byte and at nothing else of the client.
const EASY: u8 = 1;
/// A send of the client is in the batch that is being filled (rule 2).
const BUSY: u8 = 2;

/// Generations are told apart by so many bits.
const GENERATION_MASK: u32 = 0x00FF_FFFF;

/// One shard.
#[derive(Debug)]
pub struct Shard {
    options: ShardOptions,
    apps: Apps,
    hasher: TopicHasher,
    places: Vec<Place>,
    free: Vec<u32>,
    clients: u32,
    index: Index,
    channels: Vec<Option<Box<Channel>>>,
    /// How many of them are full.
    full: u32,
    /// Channels whose ticks are walked in turn.
    queue: VecDeque<TopicNo>,
    /// Clients that are behind and may write.
    ready: VecDeque<u32>,
    batch_number: u64,
    pool: ContextPool,
    wheel: Wheel,
    partition: Partition,
    attendance: presence::Attendance,
    pending: BTreeMap<u64, Pending>,
    next_ticket: u64,
    next_conn: u64,
    actions: VecDeque<Action>,
    retry_heads: Vec<TopicNo>,
    retry_resumes: Vec<(ClientId, TopicNo)>,
    released: BTreeMap<AddressKey, u32>,
    released_apps: BTreeMap<AppId, u32>,
    processed: Vec<u64>,
    emptied: BTreeSet<(ChannelKey, u32)>,
    report_at_ms: Option<u64>,
    address_rate: FixedWindow<AddressKey>,
    draining: Option<drain::Plan>,
    busy_outside: bool,
    memory_full: bool,
    /// Those who have something unwritten of their own.
    behind: SlotSet,
    account: Account,
    stages: Stages,
    due: Vec<u32>,
}

impl Shard {
    /// An empty shard.
    #[must_use]
    pub fn new(options: ShardOptions, apps: Apps, hasher: TopicHasher, now: Now) -> Self {
        Self {
            index: Index::new(options.index),
            pool: ContextPool::new(options.socket),
            wheel: Wheel::new(now.mono_s()),
            partition: Partition::new(options.shards),
            attendance: presence::Attendance::new(options.id, options.presence),
            processed: vec![0; usize::from(options.shards)],
            address_rate: FixedWindow::new(options.address_rate),
            options,
            apps,
            hasher,
            places: Vec::new(),
            free: Vec::new(),
            clients: 0,
            channels: Vec::new(),
            full: 0,
            queue: VecDeque::new(),
            ready: VecDeque::new(),
            batch_number: 0,
            pending: BTreeMap::new(),
            next_ticket: 1,
            next_conn: 1,
            actions: VecDeque::new(),
            retry_heads: Vec::new(),
            retry_resumes: Vec::new(),
            released: BTreeMap::new(),
            released_apps: BTreeMap::new(),
            emptied: BTreeSet::new(),
            // The first says at once what there is room for.
            report_at_ms: Some(now.mono_ms()),
            draining: None,
            busy_outside: false,
            memory_full: false,
            behind: SlotSet::default(),
            account: Account::default(),
            stages: Stages::default(),
            due: Vec::new(),
        }
    }

    /// The next thing to do outside.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The orchestrator's mailbox is full, or is not any more: meanwhile joins and posts are refused with 503.
    pub fn set_busy_outside(&mut self, busy: bool) {
        self.busy_outside = busy;
    }

    /// The process uses as much memory as it may, or does not any more: meanwhile nobody comes in.
    pub fn set_memory_full(&mut self, full: bool) {
        self.memory_full = full;
    }

    /// Lists of texts that are not allowed were read again.
    pub fn set_blocklists(&mut self, lists: &[(AppId, Blocklist)]) {
        self.apps.set_blocklists(lists);
    }

    /// Connections here.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.clients
    }

    /// Something waits to be written now.
    #[must_use]
    pub fn has_fanout(&self) -> bool {
        !self.queue.is_empty() || !self.ready.is_empty()
    }

    /// There is room for more events in every open tick. Else they wait in their mailbox, and pressure reaches who posts
    /// instead of viewers who keep up.
    #[must_use]
    pub fn takes_events(&self) -> bool {
        self.full == 0
    }

    /// An ephemeral event of this shard found its partition's mailbox full and was dropped.
    pub fn count_lost_before_fanout(&mut self) {
        self.stages.lost_before_fanout += 1;
    }

    /// The bus partition of this shard.
    pub fn partition_mut(&mut self) -> &mut Partition {
        &mut self.partition
    }

    /// The bus partition of this shard.
    #[must_use]
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The account of deliveries.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The options it runs with.
    #[must_use]
    pub fn options(&self) -> &ShardOptions {
        &self.options
    }

    /// The same as [`Self::queued`] where counting is short. Where it is long, as with many in the middle of a tick, it would
    /// hold the core up for milliseconds: then what must wait is taken from the account.
    fn queued_shortly(&self) -> [u64; 3] {
        let moving = self.channels.iter().flatten().filter(|channel| channel.is_moving());
        let owed: u64 = moving.map(|channel| channel.audience(&self.index)).sum();
        if owed + self.behind.len() as u64 <= COUNTED_MAX {
            return self.queued();
        }
        Class::ALL.map(|class| u64::try_from(self.account.of(class).open()).unwrap_or(0))
    }

    /// Deliveries that wait in ticks, outboxes and unfinished writes, by class, counted one by one.
    #[must_use]
    pub fn queued(&self) -> [u64; 3] {
        let (mut counts, mut bytes) = ([0; 3], 0);
        for channel in self.channels.iter().flatten() {
            channel.count_queued(&self.index, &self.places, &mut counts);
        }
        for client in self.behind.iter().filter_map(|slot| self.places[slot as usize].client.as_ref()) {
            if let Some(behind) = &client.behind {
                behind.rest.count(&mut counts);
                bytes += behind.outbox.bytes() as u64;
                for class in Class::ALL {
                    counts[class as usize] += behind.outbox.waiting(class) as u64;
                }
            }
        }
        debug_assert_eq!(bytes, self.account.outbox_bytes, "what outboxes hold is kept as it comes and goes");
        counts
    }

    /// The report that is due, if one is.
    pub fn take_report(&mut self, now: Now) -> Option<Report> {
        if self.report_at_ms.is_none_or(|at| at > now.mono_ms()) {
            return None;
        }
        let report = self.report();
        self.emptied.clear();
        // An empty shard says so once and falls silent.
        self.report_at_ms = (self.clients > 0).then(|| now.mono_ms() + u64::from(self.options.report_ms));
        Some(report)
    }

    fn report(&self) -> Report {
        Report {
            rooms: RoomReport {
                shard: self.options.id,
                processed: self.processed.clone(),
                rooms: self.rooms(),
                connections: self.clients,
            },
            account: self.account,
            queued: self.queued_shortly(),
            stages: self.stages(),
            turns: crate::post::report::Turns::default(),
            gauges: self.gauges(),
        }
    }

    /// The viewers of each room that is not empty, and of each that became so since the last report.
    #[must_use]
    pub fn rooms(&self) -> Vec<RoomCount> {
        let mut counts = Vec::new();
        for (no, topic) in self.index.topics(crate::wire::topic::Scope::Channel) {
            let key = ChannelKey::new(topic.app.clone(), topic.name.clone());
            let rooms = self.index.rooms(no);
            counts.extend(rooms.map(|(n, viewers)| RoomCount { key: key.clone(), n, viewers }));
        }
        for (key, n) in &self.emptied {
            // Somebody may sit there again since.
            if self.viewers_of(key, *n) == 0 {
                counts.push(RoomCount { key: key.clone(), n: *n, viewers: 0 });
            }
        }
        counts
    }

    /// The counters.
    #[must_use]
    pub fn stages(&self) -> Stages {
        let index = self.index.stats();
        Stages {
            filter_noes: index.noes,
            lookups: index.lookups,
            false_positives: index.misses,
            lost_before_fanout: self.stages.lost_before_fanout + self.partition.lost_before_fanout(),
            ..self.stages
        }
    }

    fn gauges(&self) -> Vec<(&'static str, Gauge)> {
        use crate::wire::topic::Scope;
        let subscriptions_max = u64::from(self.options.clients_max) * u64::from(self.options.channels_per_client);
        let mut gauges = vec![
            ("connections", Gauge::new(u64::from(self.clients), u64::from(self.options.clients_max))),
            ("channels", self.index.gauge(Scope::Channel)),
            ("users", self.index.gauge(Scope::User)),
            ("tags", self.index.gauge(Scope::Tag)),
            ("outbox_bytes", self.outbox_bytes()),
            ("contexts", self.pool.gauge()),
            ("asks", Gauge::new(self.pending.len() as u64, u64::from(self.options.asks_max))),
            ("addresses", self.address_rate.gauge()),
            ("patterns", Gauge::new(self.apps.blocklist_patterns() as u64, u64::from(self.options.patterns_max))),
        ];
        let channels_max = u64::from(self.options.shards) * u64::from(self.options.index.channels_max);
        gauges.extend(self.attendance.gauges(subscriptions_max, channels_max));
        gauges
    }

    /// What waits in the outboxes of all clients.
    fn outbox_bytes(&self) -> Gauge {
        let limit = u64::from(self.options.clients_max) * u64::from(self.options.outbox.bytes_max);
        Gauge::new(self.account.outbox_bytes, limit)
    }

    fn viewers_of(&self, key: &ChannelKey, room: u32) -> u32 {
        let (app, channel) = (key.app.as_str(), key.channel.as_str());
        let hash = self.hasher.hash(crate::wire::topic::Scope::Channel, app, channel);
        let no = self.index.find(crate::wire::topic::Scope::Channel, hash, app, channel);
        no.map_or(0, |no| self.index.room_count(no, room))
    }

    /// A report is due within the interval, if none is already.
    pub fn schedule_report(&mut self, now: Now) {
        self.report_at_ms.get_or_insert(now.mono_ms() + u64::from(self.options.report_ms));
    }

    fn ticket(&mut self, pending: Pending) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.pending.insert(ticket, pending);
        ticket
    }

    fn asks_are_full(&self) -> bool {
        self.busy_outside || self.pending.len() >= self.options.asks_max as usize
    }

    fn client(&self, id: ClientId) -> Option<&Client> {
        let place = self.places.get(id.slot as usize)?;
        if place.generation == id.generation { place.client.as_deref() } else { None }
    }

    fn client_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        let place = self.places.get_mut(id.slot as usize)?;
        if place.generation == id.generation { place.client.as_deref_mut() } else { None }
    }

    fn dialect_of(&self, id: ClientId) -> Dialect {
        self.client(id).map(|client| client.dialect).unwrap_or_default()
    }

    fn id_of(&self, slot: u32) -> ClientId {
        ClientId { slot, generation: self.places[slot as usize].generation }
    }

    fn channel_mut(&mut self, topic: TopicNo) -> Option<&mut Channel> {
        self.channels.get_mut(topic.0 as usize)?.as_deref_mut()
    }

    /// Recomputes the byte that the walk looks at, and whether the client is one of those behind.
    fn refresh(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize];
        self.behind.set(slot, place.client.as_ref().is_some_and(|client| client.behind.is_some()));
        let easy = place.client.as_ref().is_some_and(|client| {
            client.phase == Phase::Open
                && client.behind.is_none()
                && client.dialect == Dialect::Json
                && client.subs().all(crate::fanout::client::Sub::is_plain)
        });
        place.flags = if easy { place.flags | EASY } else { place.flags & !EASY };
    }

    /// Begins the end of a client, if it has not begun.
    fn close(&mut self, now: Now, id: ClientId, closing: Closing) {
        let Some(client) = self.client_mut(id) else { return };
        if client.phase != Phase::Open {
            return;
        }
        client.phase = Phase::Closing;
        client.closing = Some(Box::new(closing));
        match closing {
            Closing::TooSlow => self.stages.closed_slow += 1,
            Closing::Silent => self.stages.closed_silent += 1,
            Closing::Protocol(_) | Closing::NotUtf8 | Closing::TooBig | Closing::Policy(_) => {
                self.stages.closed_protocol += 1;
            }
            _ => {}
        }
        self.leave_all(now, id);
        self.say_last(now, id, closing);
    }
}
