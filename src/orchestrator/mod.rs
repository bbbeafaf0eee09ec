//! The dedicated core as a pure state machine: seating, posts, addresses.
//!
//! Letters of shards, results of the store and the time flow in; answers, batches to commit, pages to read and events to
//! publish flow out. Never async, never blocking, never reading a clock. The one rule of use: after any `on_*`,
//! poll [`Orchestrator::poll_action`] until dry. Always true: nothing is acknowledged before it is durable, and no more
//! stored events are admitted than have room on their way to every shard.

mod alarm;
mod ban;
mod gathering;
mod hook;
mod join;
mod limits;
mod publish;
mod repeat;
mod report;
mod upkeep;

pub use hook::HookRule;
pub use limits::LimitsOptions;
pub use upkeep::RetentionRule;

use std::collections::{BTreeMap, VecDeque};

use crate::admission::quota::{Quota, Quotas};
use crate::admission::rate::{FixedWindow, RateOptions};
use crate::base::{AppId, ChannelKey, Gauge, Name, Now, RoomChange, RoomId, ShardId, Ulid};
use crate::metrics::render::Own;
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
    /// The apps by their place in the configuration, and how much of the node each may take.
    pub quotas: Vec<(Name, Quota)>,
    /// How the messages of each app are judged, by its place in the configuration.
    pub hooks: Vec<Option<HookRule>>,
    /// Messages of one app that are being judged at a time.
    pub hooks_max: u32,
    /// Bans in force.
    pub bans_max: u32,
    /// How many channels have limits at a time, and how many users wait.
    pub limits: LimitsOptions,
    /// Between the end of a round of housekeeping and the next, in milliseconds.
    pub upkeep_ms: u32,
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
            quotas: Vec::new(),
            hooks: Vec::new(),
            hooks_max: 256,
            bans_max: 1_000_000,
            limits: LimitsOptions::default(),
            upkeep_ms: 60_000,
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
    /// To the store's reader; [`Orchestrator::on_answered`] follows.
    FindAnswer {
        /// For the answer.
        read: u64,
        /// What was answered to the first call with this idempotency key.
        key: String,
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
    /// To the hook of an app; [`Orchestrator::on_verdict`] follows, once.
    AskHook {
        /// For the verdict.
        number: u64,
        /// Whose hook.
        app: AppId,
        /// The message as JSON.
        body: Vec<u8>,
    },
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

/// Who waits for a post, and what follows it.
#[derive(Debug)]
struct PostTag {
    /// The shard and its ticket; nobody waits for a retraction of the node's own.
    waits: Option<(ShardId, u64)>,
    sequel: publish::Sequel,
    app: AppId,
    topic: Topic,
    /// Text and data, which are counted under the app.
    bytes: u32,
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
    repeats: repeat::Repeats,
    bans: ban::Bans,
    alarms: alarm::Alarms,
    upkeep: upkeep::Upkeep,
    limits: limits::Limits,
    gatherings: gathering::Gatherings,
    hooks: hook::Hooks,
    quotas: Quotas,
    next_read: u64,
    next_id: u64,
    /// Events with a credit that were sent to each partition, and that it has placed in every mailbox.
    published: Vec<u64>,
    placed: Vec<u64>,
    reports: Vec<Option<Report>>,
    actions: VecDeque<Action>,
    lost_before_fanout: u64,
    pages_read: u64,
    commits_failed: u64,
    tick_at_ms: u64,
    /// What the process uses of its bound, if it has one.
    memory: Gauge,
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
            repeats: repeat::Repeats::default(),
            bans: ban::Bans::new(options.bans_max, bans),
            alarms: alarm::Alarms::default(),
            upkeep: upkeep::Upkeep::new(now, options.upkeep_ms),
            limits: limits::Limits::new(options.limits),
            gatherings: gathering::Gatherings::default(),
            hooks: hook::Hooks::default(),
            quotas: Quotas::new(options.quotas.iter().map(|(_, quota)| *quota)),
            next_read: 1,
            next_id: 1,
            published: vec![0; shards],
            placed: vec![0; shards],
            reports: vec![None; shards],
            actions: VecDeque::new(),
            lost_before_fanout: 0,
            pages_read: 0,
            commits_failed: 0,
            tick_at_ms: now.mono_ms() + report::TICK_MS,
            memory: Gauge::default(),
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
        self.drive_hooks(now);
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.group.next_batch(now).map(Action::Commit)
    }

    /// A letter of a shard came.
    pub fn on_letter(&mut self, now: Now, letter: ToOrchestrator) {
        match letter {
            ToOrchestrator::AskSeat { ticket, asker, app, first, channel, user, address, attempt, refused, here } => {
                let ask = join::SeatAsk { asker, app, first, channel, user, address, attempt, refused, here };
                let answer = self.seat(now, &ask);
                self.answer(asker, ToShard::SeatAnswer { ticket, answer });
            }
            ToOrchestrator::GiveBack { asker, number } => self.seating.give_back(asker, number),
            ToOrchestrator::Released { addresses, apps } => self.release(&addresses, &apps),
            ToOrchestrator::Post { ticket, asker, draft } => self.post(now, ticket, asker, *draft),
            ToOrchestrator::Publish { ticket, asker, sealed } => {
                let answer = self.publish_critical(sealed);
                self.answer(asker, ToShard::Done { ticket, answer });
            }
            ToOrchestrator::AskWord { ticket, asker, app, channel, user } => {
                let answer = self.may_say(now, app, &channel, &user);
                self.answer(asker, ToShard::Done { ticket, answer });
            }
            ToOrchestrator::Ban { ticket, asker, ban, lift } => self.ban(ticket, asker, ban, lift),
            ToOrchestrator::AskBans { asker, client, app, user } => self.tell_bans_of(now, asker, client, &app, &user),
            ToOrchestrator::AskPage { ticket, asker, topic, range, limit } => {
                self.pages_read += 1;
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

    /// What the process uses of its bound, in MiB.
    pub fn set_memory(&mut self, memory: Gauge) {
        self.memory = memory;
    }

    /// Nothing that was taken waits for the store any more.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let asks_nothing = self.finders.is_empty() && self.repeats.is_quiet();
        self.group.gauge().used == 0 && asks_nothing && self.alarms.is_quiet() && self.hooks.is_quiet()
    }

    /// When [`Orchestrator::on_alarm`] or [`Orchestrator::poll_action`] has something to do, in monotonic milliseconds.
    #[must_use]
    pub fn next_alarm_ms(&self) -> u64 {
        let group = self.group.next_alarm().map(|us| us.div_ceil(1_000));
        let (alarms, upkeep) = (self.alarms.wake_at_ms(), self.upkeep.wake_at_ms());
        [group, alarms, upkeep, self.gatherings.wake_at_ms(), self.hooks.wake_at_ms()]
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
            ("bans", self.bans.gauge()),
        ];
        gauges.extend(self.limits.gauges());
        gauges.extend((self.memory.limit > 0).then_some(("memory_mib", self.memory)));
        gauges
    }

    /// What it says of itself on the page of metrics.
    #[must_use]
    pub fn own_metrics(&self) -> Own {
        let [asked, unjudged, retracted] = self.hooks.counts();
        let [rung, given_up] = self.alarm_counts();
        Own {
            gauges: self.gauges(),
            of_apps: self.app_gauges(),
            counters: vec![
                ("pages_read", "Pages of stored events that shards asked the store for", self.pages_read),
                ("commits_failed", "Batches of messages that the store did not take", self.commits_failed),
                ("alarms_rung", "Alarms whose event was published", rung),
                ("alarms_given_up", "Alarms that were cleared although nobody may have been told", given_up),
                ("hook_asked", "Messages that a hook was asked about", asked),
                ("hook_unjudged", "Messages that got no verdict within their budget", unjudged),
                ("hook_retracted", "Messages retracted for a verdict behind their budget", retracted),
            ],
            lost_before_fanout: self.lost_before_fanout,
        }
    }

    fn app_gauges(&self) -> Vec<(&'static str, Name, Gauge)> {
        let apps = self.options.quotas.iter().map(|(name, _)| name).enumerate();
        let rows = apps.flat_map(|(at, name)| {
            let app = AppId(at as u16);
            let judges = self.options.hooks.get(at).is_some_and(Option::is_some);
            let judged = judges.then(|| ("app_hooks", self.hooks.gauge(app, self.options.hooks_max)));
            let gauges = self.quotas.gauges(at, self.seating.channels_of(name)).chain(judged);
            gauges.map(|(what, gauge)| (what, name.clone(), gauge)).collect::<Vec<_>>()
        });
        rows.collect()
    }

    fn credits(&self) -> Gauge {
        let on_their_way: u64 = self.published.iter().zip(&self.placed).map(|(sent, placed)| sent - placed).sum();
        Gauge::new(
            self.group.gauge().used + self.finders.len() as u64 + self.hooks.waiting() + on_their_way,
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
