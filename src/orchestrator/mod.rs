//! The dedicated core as a pure state machine: seating, posts, addresses.
//!
//! Letters of shards, results of the store and the time flow in; answers, batches to commit, pages to read and events to
//! publish flow out. Never async, never blocking, never reading a clock. The one rule of use: after any `on_*`,
//! poll [`Orchestrator::poll_action`] until dry. Always true: nothing is acknowledged before it is durable, and no more
//! stored events are admitted than have room on their way to every shard.

mod alarm;
mod ban;
mod gathering;
mod join;
mod limits;
mod publish;
mod report;
mod upkeep;

pub use upkeep::RetentionRule;

use std::collections::{BTreeMap, VecDeque};

use crate::admission::rate::{FixedWindow, RateOptions};
use crate::base::{AppId, ChannelKey, Gauge, Now, RoomChange, RoomId, ShardId, Ulid};
use crate::post::letters::{AddressKey, Ban, ToOrchestrator, ToShard};
use crate::post::report::Report;
use crate::seating::{Seating, SeatingOptions};
use crate::store::PageAsk;
use crate::store::chore::Chore;
use crate::store::group::{Batch, Group, GroupOptions};
use crate::wire::sealed::Sealed;
use crate::wire::topic::{Topic, TopicHasher};

/// Everything about the orchestrator that may be chosen.
#[derive(Clone, Debug)]
pub struct OrchestratorOptions {
    /// How many shards there are.
    pub shards: u16,
    /// How viewers are seated.
    pub seating: SeatingOptions,
    /// How posts are gathered into commits.
    pub group: GroupOptions,
    /// Stored and critical events that may be on their way, from admission to the mailbox of every shard.
    pub credits_max: u32,
    /// Connections of one address.
    pub address_connections_max: u32,
    /// Requests of one user.
    pub user_rate: RateOptions,
    /// What is kept of each app's messages; an app without a rule keeps all.
    pub retention: Vec<RetentionRule>,
    /// A source of what makes message ids unique; fresh at every start.
    pub seed: u64,
}

impl Default for OrchestratorOptions {
    fn default() -> Self {
        Self {
            shards: 1,
            seating: SeatingOptions::default(),
            group: GroupOptions::default(),
            credits_max: 4_096,
            address_connections_max: 1_000,
            user_rate: RateOptions { requests_max: 120, window_s: 60, keys_max: 100_000 },
            retention: Vec::new(),
            seed: 0,
        }
    }
}

/// What the orchestrator wants done outside.
#[derive(Debug)]
pub enum Action {
    /// To a shard, whose mailbox always has room for its answers.
    Answer {
        /// Which.
        shard: ShardId,
        /// What.
        letter: ToShard,
    },
    /// To the store; [`Orchestrator::on_committed`] follows.
    Commit(Batch),
    /// To the store's reader; [`Orchestrator::on_page`] follows.
    Read {
        /// For the answer.
        read: u64,
        /// Of this channel.
        key: ChannelKey,
        /// Which rows.
        ask: PageAsk,
    },
    /// To the store's reader; [`Orchestrator::on_found`] follows.
    Find {
        /// For the answer.
        read: u64,
        /// In this channel.
        key: ChannelKey,
        /// The event with this id.
        id: Ulid,
    },
    /// To the store; [`Orchestrator::on_ban_saved`] follows.
    SaveBan {
        /// For the answer.
        number: u64,
        /// Whom.
        ban: Ban,
        /// It is lifted.
        lift: bool,
    },
    /// To the store; [`Orchestrator::on_chore`] follows.
    Chore(Chore),
    /// To the partition that gives this event its order.
    Publish {
        /// Which.
        partition: ShardId,
        /// What.
        sealed: Sealed,
    },
    /// To the store, when it has time.
    SaveRooms(Vec<RoomChange>),
}

/// Who waits for a post.
#[derive(Debug)]
struct PostTag {
    asker: ShardId,
    ticket: u64,
    topic: Topic,
    /// It is a message of a user, who waits for the next one where slow mode says so.
    slowed: bool,
}

/// Who waits for a page.
#[derive(Debug)]
struct Reader {
    asker: ShardId,
    ticket: u64,
    topic: Topic,
}

/// The orchestrator.
#[derive(Debug)]
pub struct Orchestrator {
    options: OrchestratorOptions,
    hasher: TopicHasher,
    seating: Seating,
    group: Group<PostTag>,
    user_rate: FixedWindow<(AppId, String)>,
    addresses: BTreeMap<AddressKey, u32>,
    readers: BTreeMap<u64, Reader>,
    finders: BTreeMap<u64, publish::Finder>,
    bans: ban::Bans,
    alarms: alarm::Alarms,
    upkeep: upkeep::Upkeep,
    limits: limits::Limits,
    gatherings: gathering::Gatherings,
    next_read: u64,
    next_id: u64,
    /// Events with a credit that were sent to each partition, and that it has placed in every mailbox.
    published: Vec<u64>,
    placed: Vec<u64>,
    reports: Vec<Option<Report>>,
    actions: VecDeque<Action>,
    lost_before_fanout: u64,
    tick_at_ms: u64,
    draining: bool,
}

impl Orchestrator {
    /// An orchestrator that begins with the rooms of the last process, all empty, and with the bans in force.
    #[must_use]
    pub fn new(
        options: OrchestratorOptions,
        hasher: TopicHasher,
        rooms: impl IntoIterator<Item = (ChannelKey, RoomId)>,
        bans: impl IntoIterator<Item = Ban>,
        now: Now,
    ) -> Self {
        let shards = usize::from(options.shards);
        let mut seating = Seating::new(options.seating);
        seating.adopt(rooms);
        Self {
            group: Group::new(options.group),
            user_rate: FixedWindow::new(options.user_rate),
            hasher,
            seating,
            addresses: BTreeMap::new(),
            readers: BTreeMap::new(),
            finders: BTreeMap::new(),
            bans: ban::Bans::new(bans),
            alarms: alarm::Alarms::default(),
            upkeep: upkeep::Upkeep::new(now),
            limits: limits::Limits::default(),
            gatherings: gathering::Gatherings::default(),
            next_read: 1,
            next_id: 1,
            published: vec![0; shards],
            placed: vec![0; shards],
            reports: vec![None; shards],
            actions: VecDeque::new(),
            lost_before_fanout: 0,
            tick_at_ms: now.mono_ms() + report::TICK_MS,
            draining: false,
            options,
        }
    }

    /// The next thing to do outside.
    pub fn poll_action(&mut self, now: Now) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.drive_alarms(now);
        self.drive_upkeep(now);
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.group.next_batch(now).map(Action::Commit)
    }

    /// A letter of a shard came.
    pub fn on_letter(&mut self, now: Now, letter: ToOrchestrator) {
        match letter {
            ToOrchestrator::AskSeat { ticket, asker, channel, user, address, attempt, refused, here } => {
                let ask = join::SeatAsk { asker, channel, user, address, attempt, refused, here };
                let answer = self.seat(now, &ask);
                self.answer(asker, ToShard::SeatAnswer { ticket, answer });
            }
            ToOrchestrator::GiveBack { asker, number } => self.seating.give_back(asker, number),
            ToOrchestrator::Released(addresses) => self.release(&addresses),
            ToOrchestrator::Post { ticket, asker, draft } => self.post(now, ticket, asker, *draft),
            ToOrchestrator::Publish { ticket, asker, sealed } => {
                let answer = self.publish_critical(sealed);
                self.answer(asker, ToShard::Done { ticket, answer });
            }
            ToOrchestrator::Ban { ticket, asker, ban, lift } => self.ban(ticket, asker, ban, lift),
            ToOrchestrator::AskPage { ticket, asker, topic, range, limit } => {
                self.read(ticket, asker, topic, range, limit);
            }
            ToOrchestrator::ChangeAlarm { ticket, asker, key, set } => self.change_alarm(ticket, asker, key, set),
            ToOrchestrator::SetLimits { ticket, asker, key, limits } => {
                self.set_limits(now, ticket, asker, &key, limits);
            }
            ToOrchestrator::AskConnections { ticket, asker, ask } => self.gather(now, ticket, asker, &ask),
            ToOrchestrator::ConnectionsPart { number, shard, part } => self.on_part(number, shard, part),
        }
    }

    /// Events with a credit that lie in every mailbox, as the partition counts them from the start.
    pub fn on_placed(&mut self, partition: ShardId, placed: u64) {
        if let Some(mine) = self.placed.get_mut(usize::from(partition.0)) {
            *mine = (*mine).max(placed);
        }
    }

    /// The node goes away within `spread_ms`: every shard is told.
    pub fn on_drain(&mut self, spread_ms: u32) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        for shard in 0..self.options.shards {
            self.answer(ShardId(shard), ToShard::Drain { spread_ms });
        }
    }

    /// An ephemeral event found its partition's mailbox full and was dropped.
    pub fn count_lost_before_fanout(&mut self) {
        self.lost_before_fanout += 1;
    }

    /// Ephemeral events of the orchestrator that were dropped at a full mailbox.
    #[must_use]
    pub fn lost_before_fanout(&self) -> u64 {
        self.lost_before_fanout
    }

    /// Nothing that was taken waits for the store any more.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.group.gauge().used == 0 && self.finders.is_empty() && self.alarms.is_quiet()
    }

    /// When [`Orchestrator::on_alarm`] or [`Orchestrator::poll_action`] has something to do, in monotonic milliseconds.
    #[must_use]
    pub fn next_alarm_ms(&self) -> u64 {
        let group = self.group.next_alarm().map(|us| us.div_ceil(1_000));
        [group, self.alarms.wake_at_ms(), self.upkeep.wake_at_ms(), self.gatherings.wake_at_ms()]
            .into_iter()
            .flatten()
            .fold(self.tick_at_ms, u64::min)
    }

    /// The last report of each shard.
    #[must_use]
    pub fn reports(&self) -> &[Option<Report>] {
        &self.reports
    }

    /// The seating, for pages and tests.
    #[must_use]
    pub fn seating(&self) -> &Seating {
        &self.seating
    }

    /// Bounded things here: name, used, limit.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, Gauge)> {
        let mut gauges = vec![
            ("rooms", self.seating.gauge()),
            ("posts", self.group.gauge()),
            ("credits", self.credits()),
            ("user_rates", self.user_rate.gauge()),
            ("alarm_changes", self.alarms.gauge()),
            ("gatherings", self.gatherings.gauge()),
        ];
        gauges.extend(self.limits.gauges());
        gauges
    }

    fn credits(&self) -> Gauge {
        let on_their_way: u64 = self.published.iter().zip(&self.placed).map(|(sent, placed)| sent - placed).sum();
        Gauge::new(
            self.group.gauge().used + self.finders.len() as u64 + on_their_way,
            u64::from(self.options.credits_max),
        )
    }

    fn answer(&mut self, shard: ShardId, letter: ToShard) {
        self.actions.push_back(Action::Answer { shard, letter });
    }
}

fn key_of(topic: &Topic) -> ChannelKey {
    ChannelKey::new(topic.app.clone(), topic.name.clone())
}
