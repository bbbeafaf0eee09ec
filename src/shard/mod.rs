//! One socket core as a pure state machine: rooms, clients, fan-out.
//!
//! Seats, bytes, sealed events, answers and the time flow in; sends, asks and endings flow out. Never async, never
//! blocking, never reading a clock. The one rule of use: after any `on_*`, poll until dry ([`Shard::poll_action`],
//! [`Shard::poll_fanout`] with [`Shard::on_sent`]). Always true: a client sits in one room of a channel, no room is above
//! its cap, and the account of deliveries balances.

mod access;
mod alarm;
mod audience;
mod batch;
mod changing;
mod channel;
mod compose;
mod connections;
mod deliver;
mod drain;
mod join;
mod limits;
mod options;
mod pings;
mod posting;
mod presence;
mod receive;
mod report;
mod request;
mod sent;
mod subscribe;
mod sweep;
mod walks;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use batch::{Send, SendBatch, SendResult, Source};
pub use deliver::Interest;
pub use join::Origin;
pub use options::ShardOptions;
pub use request::{ApiAnswer, ApiRequest, Outcome};

use crate::admission::Apps;
use crate::admission::blocklist::Blocklist;
use crate::admission::rate::FixedWindow;
use crate::base::alarm::Wheel;
use crate::base::{Account, AppId, ChannelKey, ClientId, Now, ShardId, SlotSet};
use crate::bus::Partition;
use crate::fanout::client::{Client, Phase};
use crate::fanout::index::{Index, TopicNo};
use crate::post::letters::{AddressKey, JoinSpec, Seat, ToOrchestrator};
use crate::post::report::Stages;
use crate::wire::close::Closing;
use crate::wire::dialect::Dialect;
use crate::wire::problem::Problem;
use crate::wire::sealed::Sealed;
use crate::wire::socket::ContextPool;
use crate::wire::topic::TopicHasher;

use channel::Channel;
use walks::Walks;

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
    History { client: ClientId, id: Option<String>, channel: crate::base::Name, latest: bool },
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
    walks: Walks,
    /// Clients that are behind and may write.
    ready: VecDeque<u32>,
    /// Clients that keep up and are to be pinged.
    pings: VecDeque<ClientId>,
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
    /// Clients that the wheel says are to be looked at.
    due: VecDeque<u32>,
    /// Those of them that one call looks at; empty between calls, kept for its room.
    looks: Vec<u32>,
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
            walks: Walks::default(),
            ready: VecDeque::new(),
            pings: VecDeque::new(),
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
            due: VecDeque::new(),
            looks: Vec::new(),
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
        !self.walks.is_empty() || !self.ready.is_empty() || !self.pings.is_empty()
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
                && client.subs().all(crate::fanout::sub::Sub::is_plain)
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
