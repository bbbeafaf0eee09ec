//! What kind of node and what kind of trouble a seed gets.

use ringcast::admission::auth::{TokenKey, hash_server_key, make_token};
use ringcast::admission::quota::Quota;
use ringcast::admission::rate::RateOptions;
use ringcast::admission::{AppOptions, Apps};
use ringcast::base::{Name, ShardId};
use ringcast::fanout::index::IndexOptions;
use ringcast::fanout::score::OutboxOptions;
use ringcast::io::handoff::MailboxSizes;
use ringcast::orchestrator::{HookRule, OrchestratorOptions};
use ringcast::presence::PresenceOptions;
use ringcast::seating::SeatingOptions;
use ringcast::shard::ShardOptions;
use ringcast::store::GroupOptions;
use ringcast::wire::socket::SocketLimits;

use crate::rng::Rng;

pub(crate) const APP: &str = "demo";
pub(crate) const SERVER_KEY: &str = "Bearer rk_simulated";
pub(crate) const CHANNELS: [&str; 4] = ["race", "lobby", "news", "goal"];
pub(crate) const USERS: [&str; 5] = ["ann", "bob", "cid", "dan", "eve"];
/// Where wall time begins, in Unix milliseconds.
pub(crate) const WALL_MS: u64 = 1_796_000_000_000;
const SECRET: &[u8] = b"a secret of at least 32 bytes, yes";

/// Chances are in a hundred, and where it says so in a thousand.
pub(crate) struct Plan {
    pub(crate) shard: ShardOptions,
    pub(crate) orchestrator: OrchestratorOptions,
    pub(crate) sizes: MailboxSizes,
    pub(crate) seats: usize,
    pub(crate) channels: usize,
    pub(crate) viewers: usize,
    pub(crate) steps: u64,
    /// Microseconds of a step at the most.
    pub(crate) step_us_max: u64,
    pub(crate) letters_a_turn: u64,
    /// In a thousand steps of one viewer.
    pub(crate) commands: u64,
    pub(crate) leaves: u64,
    /// In a hundred steps.
    pub(crate) posts: u64,
    pub(crate) events: u64,
    /// In a thousand jobs of the store.
    pub(crate) faults: u64,
    pub(crate) stalls: bool,
    /// The hook is silent, late, or says no.
    pub(crate) hook_trouble: bool,
    /// A stored event does not reach a shard; in a thousand.
    pub(crate) losses: u64,
    /// Cores take no events while a tick is half full, as the node's do.
    pub(crate) waits_for_ticks: bool,
    /// A stored event comes twice to a shard, or late; in a thousand.
    pub(crate) repeats: u64,
    /// Steps between which the store fails whatever it is asked to write.
    pub(crate) outage: Option<(u64, u64)>,
    /// Wall time jumps, in a thousand steps.
    pub(crate) jumps: u64,
    /// Peers that speak no protocol, in a thousand steps.
    pub(crate) hostile: u64,
    pub(crate) retention: bool,
    pub(crate) resumes: bool,
    pub(crate) rkyv: bool,
    pub(crate) slow: u64,
    pub(crate) big_texts: bool,
    pub(crate) crash_at: Option<u64>,
    pub(crate) drain_at: Option<u64>,
    pub(crate) drain_ms: u32,
}

impl Plan {
    pub(crate) fn new(random: &mut Rng) -> Self {
        let shards = random.between(1, 4) as u16;
        let asks_max = random.between(3, 30) as u32;
        let room_capacity = random.between(2, 8) as u32;
        let attempts_max = random.between(2, 10) as u8;
        let ping_after_s = random.between(2, 5) as u32;
        let tight = random.chance(60);
        let outbox = OutboxOptions {
            lag_budget_ms: if tight { 100 } else { 1_200 },
            events_min: if tight { random.between(4, 10) as u32 } else { 16 },
            bytes_max: if tight { random.between(3_000, 12_000) as u32 } else { 256 * 1024 },
            ..OutboxOptions::default()
        };
        let shard = ShardOptions {
            id: ShardId(0),
            shards,
            clients_max: if random.chance(20) { random.between(4, 12) as u32 } else { 1_000 },
            asks_max,
            room_capacity,
            attempts_max,
            channels_per_client: random.between(2, 4) as u16,
            outbox,
            tick_bytes_max: if random.chance(40) { random.between(500, 4_000) as u32 } else { 128 * 1024 },
            sends_per_submit: random.between(2, 12) as u32,
            write_bytes: random.between(200, 4_000) as u32,
            tail_events: random.pick(&[0, 2, 5, 20, 64]),
            ping_after_s,
            close_after_s: ping_after_s + random.between(2, 4) as u32,
            max_stall_ms: random.between(1_500, 4_000) as u32,
            linger_ms: random.between(200, 1_500) as u32,
            report_ms: random.between(100, 900) as u32,
            address_rate: RateOptions { requests_max: 1_000_000, window_s: 60, keys_max: 100 },
            over_rate_max: if random.chance(10) { 2 } else { 300 },
            socket: SocketLimits::default(),
            index: IndexOptions {
                channels_max: if random.chance(10) { 2 } else { 64 },
                users_max: 64,
                tags_max: 4,
                filter: true,
            },
            patterns_max: 100,
            presence: PresenceOptions {
                roster_limit: random.pick(&[0, 4, 500]),
                grace_ms: random.pick(&[0, 100, 2_000]),
                members_max: if random.chance(10) { random.between(1, 6) as u32 } else { 1_000 },
                typing_ms: random.between(300, 2_000) as u32,
                typing_max: if random.chance(20) { 2 } else { 100 },
                viewers_interval_ms: random.between(1_000, 3_000) as u32,
                viewers_deliveries_per_s_max: if random.chance(20) { 100 } else { 20_000 },
            },
            echo: false,
        };
        let credits_max = random.between(2, 40) as u32;
        let seating = SeatingOptions {
            room_capacity,
            shards,
            rooms_max: if random.chance(10) { random.between(4, 8) as u32 } else { 1_000 },
            attempts_max,
            outstanding_expiry_ms: 30_000,
        };
        let quota = Quota {
            connections_max: random.pick(&[0, 5, 1_000]),
            channels_max: random.pick(&[0, 0, 2]),
            ..Quota::default()
        };
        let hook = random
            .chance(25)
            .then(|| HookRule { budget_ms: random.between(1, 200) as u32, fails_open: random.chance(50) });
        let orchestrator = OrchestratorOptions {
            shards,
            seating,
            group: GroupOptions {
                batch_max: random.between(1, 8) as u32,
                wait_max_us: random.pick(&[0, 0, 3_000]),
                queued_max: random.between(4, 64) as u32,
            },
            credits_max,
            address_connections_max: random.pick(&[3, 1_000, 1_000]),
            user_rate: RateOptions { requests_max: random.pick(&[5, 1_000]), window_s: 2, keys_max: 100 },
            retention: Vec::new(),
            quotas: vec![(name(APP), quota)],
            hooks: vec![hook],
            hooks_max: random.between(1, 8) as u32,
            seed: random.next_u64(),
            ..OrchestratorOptions::default()
        };
        let sizes = MailboxSizes {
            answers: asks_max as usize * 2 + random.between(4, 64) as usize,
            seats: 1,
            events: credits_max as usize + random.between(1, 30) as usize,
            presence: random.pick(&[1, 3, 64]),
            orchestrator: random.between(2, 64) as usize,
        };
        let steps = random.between(150, 400);
        let ends = random.below(100);
        // Nobody retains yet while the node runs. When somebody does, a hole that the store can fill no more must be
        // told to those who watch; until then the two do not come together here.
        let retention = random.chance(15);
        Self {
            shard,
            orchestrator,
            sizes,
            seats: random.between(1, 6) as usize,
            channels: random.between(1, 4) as usize,
            viewers: random.between(3, 22) as usize,
            steps,
            step_us_max: random.pick(&[2_000, 10_000, 40_000]),
            letters_a_turn: random.pick(&[1, 3, 8, 256]),
            commands: random.pick(&[2, 10, 40]),
            leaves: random.pick(&[0, 2, 15]),
            posts: random.pick(&[3, 20, 60]),
            events: random.pick(&[0, 10, 50]),
            faults: if retention { 0 } else { random.pick(&[0, 0, 100]) },
            stalls: random.chance(30),
            waits_for_ticks: random.chance(50),
            hook_trouble: true,
            losses: if retention { 0 } else { random.pick(&[0, 0, 20]) },
            repeats: if retention { 0 } else { random.pick(&[0, 0, 30]) },
            outage: (!retention && random.chance(20)).then(|| {
                let from = random.between(20, steps);
                (from, from + random.between(10, 150))
            }),
            jumps: random.pick(&[0, 0, 10]),
            hostile: random.pick(&[0, 0, 20]),
            retention,
            resumes: random.chance(75),
            rkyv: random.chance(25),
            slow: random.pick(&[0, 20, 60]),
            big_texts: random.chance(30),
            crash_at: (ends < 25).then(|| random.between(50, steps)),
            drain_at: (ends >= 80).then(|| random.between(50, steps)),
            drain_ms: random.between(200, 3_000) as u32,
        }
    }
}

impl Plan {
    /// The store is out of order in this step.
    pub(crate) fn is_out(&self, step: u64) -> bool {
        self.outage.is_some_and(|(from, to)| (from..to).contains(&step))
    }
}

/// The one tenant.
pub(crate) fn apps() -> Apps {
    Apps::new(vec![AppOptions {
        token_keys: vec![TokenKey::hs256(None, SECRET).expect("a key")],
        anonymous_read: true,
        ..AppOptions::new(name(APP), hash_server_key("rk_simulated"))
    }])
}

/// The tokens of all users.
pub(crate) fn tokens() -> Vec<String> {
    USERS.iter().map(|user| make_token(SECRET, user, None, WALL_MS / 1_000 + 100_000).expect("a token")).collect()
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}
