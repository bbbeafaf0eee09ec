//! One seed: a node, its viewers and posters, and the trouble they make, step by step in virtual time.

use ringcast::base::Now;
use ringcast::shard::{ApiRequest, Origin, Outcome};
use ringcast::store::Memory;

use crate::checks;
use crate::mutant::Mutant;
use crate::node::Node;
use crate::plan::{APP, CHANNELS, Plan, SERVER_KEY, USERS, WALL_MS};
use crate::rng::Rng;
use crate::shard_core::Scene;
use crate::socket::Network;
use crate::trace::Trace;
use crate::truth::{Request, Truth};
use crate::viewer::{Phase, Reader, Viewer};

/// Steps of the end, each of [`REST_US`].
const REST_STEPS: u64 = 220;
/// Steps without an end of a connection after which all reports have come.
const QUIET_STEPS: u64 = 50;
/// Microseconds of a step at the end.
const REST_US: u64 = 50_000;

/// Everything there is.
pub(crate) struct World<'t> {
    pub(crate) now: Now,
    pub(crate) random: Rng,
    pub(crate) plan: Plan,
    pub(crate) network: Network,
    pub(crate) truth: Truth,
    pub(crate) viewers: Vec<Viewer>,
    pub(crate) tokens: &'t [String],
    pub(crate) step: u64,
    /// Which life of the node it is.
    pub(crate) life: u64,
    pub(crate) calm: bool,
    /// What is broken on purpose.
    pub(crate) mutant: Mutant,
    /// Sockets of peers that speak no protocol.
    pub(crate) hostile: Vec<usize>,
    /// How far the wall clock is off, in milliseconds.
    skew_ms: i64,
    node: Option<Node>,
    store: Option<Memory>,
    /// Last, so that it is dropped after a panic of anything above.
    pub(crate) trace: Trace,
}

macro_rules! scene {
    ($world:expr) => {
        Scene {
            now: $world.now,
            random: &mut $world.random,
            network: &mut $world.network,
            truth: &mut $world.truth,
            trace: &mut $world.trace,
            plan: &$world.plan,
            mutant: $world.mutant,
            calm: $world.calm,
            step: $world.step,
        }
    };
}

impl<'t> World<'t> {
    pub(crate) fn new(seed: u64, tokens: &'t [String], mutant: Mutant) -> Self {
        let mut random = Rng(seed);
        let plan = Plan::new(&mut random);
        let viewers = (0..plan.viewers).map(Viewer::new).collect();
        let store = Memory::new(random.next_u64());
        Self {
            now: Now { mono_us: 1_000_000, wall_ms: WALL_MS },
            random,
            plan,
            network: Network::default(),
            truth: Truth::default(),
            viewers,
            tokens,
            step: 0,
            life: 0,
            calm: false,
            mutant,
            hostile: Vec::new(),
            skew_ms: 0,
            node: None,
            store: Some(store),
            trace: Trace::new(seed),
        }
    }

    /// The whole seed.
    pub(crate) fn run(&mut self) {
        while self.step < self.plan.steps {
            self.trouble();
            self.people();
            self.hostile();
            self.pass(self.plan.step_us_max);
        }
        self.calm_down();
        let mut unflushed: Vec<usize> = (0..self.plan.channels).collect();
        for step in 0..REST_STEPS {
            // A last message a channel shows what was stored while nobody was told.
            if step % 10 == 9
                && let Some(channel) = unflushed.pop()
                && !self.post_message(0, CHANNELS[channel], SERVER_KEY, None, "the last".to_owned())
            {
                unflushed.push(channel);
            }
            self.pass(REST_US);
        }
        // Who never answers is closed late; after the last end the reports have their time.
        let mut quiet = 0;
        while quiet < QUIET_STEPS {
            let before = left(self.node.as_ref());
            self.pass(REST_US);
            quiet = if left(self.node.as_ref()) == before { quiet + 1 } else { 0 };
            if quiet < QUIET_STEPS {
                continue;
            }
            // Pings go on for ever: rest is the first moment without one under way, if nobody has ended until then.
            for _ in 0..40 {
                if self.node.as_ref().is_some_and(|node| node.shards.iter().all(|core| !core.shard.has_fanout())) {
                    break;
                }
                self.pass(1_000);
            }
            quiet = if left(self.node.as_ref()) == before { quiet } else { 0 };
        }
        let mut node = self.node.take().expect("a node that is not asked to end goes on");
        checks::at_rest(&mut node, &self.viewers, &mut scene!(self));
    }

    /// Time goes on and everybody has a turn.
    fn pass(&mut self, us_max: u64) {
        self.step += 1;
        let us = if self.calm { us_max } else { self.random.between(50, us_max) };
        self.now.mono_us += us;
        self.now.wall_ms = (WALL_MS + self.now.mono_us / 1_000).saturating_add_signed(self.skew_ms);
        self.trace.at(self.now.mono_us);
        if self.node.is_none() {
            let store = self.store.take().expect("a store without a node");
            self.life += 1;
            self.network.ordered = 0;
            self.network.mergeable = 0;
            self.trace.say(|| "the node starts".to_owned());
            self.node = Some(Node::start(&mut scene!(self), store));
        }
        let node = self.node.as_mut().expect("it was started");
        let over = node.turn(&mut scene!(self));
        checks::at_every_step(node);
        self.read();
        if over {
            self.drained();
        }
    }

    fn trouble(&mut self) {
        if self.node.is_none() {
            return;
        }
        if self.plan.crash_at == Some(self.step) {
            self.trace.say(|| "the node crashes".to_owned());
            let node = self.node.take().expect("a node");
            self.store = Some(node.end(&mut scene!(self)));
            return;
        }
        let node = self.node.as_mut().expect("a node");
        if self.plan.drain_at == Some(self.step) {
            self.trace.say(|| "the node is asked to end".to_owned());
            node.orchestrator.drain(self.now, self.plan.drain_ms);
        }
        if self.plan.jumps > 0 && self.random.below(1_000) < self.plan.jumps {
            // Up to an hour, forwards or back: less than a token of this world lives.
            self.skew_ms = self.random.between(0, 7_200_000) as i64 - 3_600_000;
            self.trace.say(|| format!("the wall clock is now off by {} ms", self.skew_ms));
        }
        if self.plan.stalls && self.random.chance(5) {
            let store = &mut node.orchestrator.disk.store;
            let stalled = !store.is_stalled();
            store.set_stalled(stalled);
            self.trace.say(|| format!("the disk hangs: {stalled}"));
        }
    }

    /// The node has ended in good order: everybody who reads was told when to come back.
    fn drained(&mut self) {
        self.trace.say(|| "the node has ended".to_owned());
        self.read();
        for viewer in &self.viewers {
            let told = viewer.was_slow || viewer.phase != Phase::Open;
            assert!(told, "drain: viewer {} reads and got no Close", viewer.no);
        }
        let node = self.node.take().expect("it has ended");
        self.store = Some(node.end(&mut scene!(self)));
    }

    fn calm_down(&mut self) {
        self.trace.say(|| "everything calms down".to_owned());
        self.calm = true;
        self.plan.faults = 0;
        self.plan.losses = 0;
        self.plan.repeats = 0;
        self.plan.outage = None;
        self.plan.retention = false;
        self.plan.hook_trouble = false;
        self.plan.letters_a_turn = 256;
        if let Some(node) = &mut self.node {
            node.orchestrator.disk.store.set_stalled(false);
        }
        self.network.widen();
        self.dismiss_hostile();
        for viewer in &mut self.viewers {
            if viewer.reader != Reader::Never {
                viewer.reader = Reader::Fast;
            }
        }
    }

    /// Viewers read what has come and answer pings and closes.
    fn read(&mut self) {
        for viewer in &mut self.viewers {
            if viewer.phase == Phase::Away {
                continue;
            }
            let socket = self.network.get(viewer.socket);
            let most = match viewer.reader {
                Reader::Fast => usize::MAX / 2,
                Reader::Slow(bytes) => bytes,
                Reader::Pausing(until) if until <= self.step => usize::MAX / 2,
                Reader::Pausing(_) | Reader::Never => 0,
            };
            let reset = socket.reset;
            let said = if reset { Vec::new() } else { socket.read(most) };
            let ended = reset || socket.is_read_to_the_end();
            for said in said {
                self.trace.say(|| brief(viewer.no, &said));
                viewer.on_said(said, &mut self.truth);
            }
            let socket = self.network.get(viewer.socket);
            if std::mem::take(&mut viewer.pinged) && !socket.fin {
                socket.up.extend(crate::stream::client_frame(10, b"", [1, 2, 3, 4]));
            }
            if viewer.closed_with.is_some() && !socket.fin {
                socket.up.extend(crate::stream::client_frame(8, &[3, 0xE8], [9, 9, 9, 9]));
                socket.fin = true;
            }
            if ended {
                // Who reads and did nothing wrong is told before it is left alone.
                let told = reset || viewer.phase == Phase::Leaving || viewer.life != self.life;
                assert!(told || viewer.was_slow, "viewer {} is left in {:?}", viewer.no, viewer.phase);
                socket.fin = true;
                viewer.leave();
                viewer.phase = Phase::Away;
            }
        }
    }

    /// Posts a message over HTTP; true if it was taken in.
    pub(crate) fn post_message(
        &mut self,
        shard: usize,
        channel: &str,
        authorization: &str,
        key: Option<String>,
        text: String,
    ) -> bool {
        let author = self.random.pick(&USERS);
        let body = if authorization == SERVER_KEY {
            serde_json::json!({"user": author, "text": text})
        } else {
            serde_json::json!({"text": text})
        };
        let path = format!("/v1/{APP}/channels/{channel}/messages");
        let request = Request { channel: channel.to_owned(), key, is_post: true, event: None };
        self.request(shard, "POST", &path, Some(authorization), body.to_string().as_bytes(), request) == 0
    }

    /// A request comes in on a shard; its status, or 0 if it waits.
    pub(crate) fn request(
        &mut self,
        shard: usize,
        method: &str,
        path: &str,
        authorization: Option<&str>,
        body: &[u8],
        waiting: Request,
    ) -> u16 {
        let Some(node) = &mut self.node else { return 503 };
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let from = Origin { address: None, loopback: false };
        let idempotency_key = waiting.key.as_deref();
        let request = ApiRequest { method, path, query, authorization, idempotency_key, origin: None, body, from };
        let answer = node.shards[shard].shard.on_request(self.now, &request);
        match answer {
            Outcome::Done(answer) => {
                let status = answer.status;
                self.trace.say(|| format!("{method} {path} is answered {status}"));
                assert!(matches!(status, 202 | 429 | 503), "{path}: {}", String::from_utf8_lossy(&answer.body));
                status
            }
            Outcome::Wait(ticket) => {
                self.trace.say(|| format!("{method} {path} waits as ticket {ticket} of shard {shard}"));
                let before = self.truth.requests.insert((shard, ticket), waiting);
                assert!(before.is_none(), "a ticket is given out twice");
                0
            }
        }
    }

    /// A socket arrives at a shard.
    pub(crate) fn arrive(&mut self, shard: usize, socket: usize) -> bool {
        let Some(node) = &mut self.node else { return false };
        let core = &mut node.shards[shard];
        if core.listening {
            core.guests.push_back(socket);
        }
        core.listening
    }

    pub(crate) fn shards(&self) -> usize {
        usize::from(self.plan.shard.shards)
    }
}

/// Connections that have ended, of this process, and subscriptions that there are: who leaves a channel late, or all of
/// them, has a grace in which it still counts.
fn left(node: Option<&Node>) -> (u64, usize) {
    let shards = node.into_iter().flat_map(|node| &node.shards).map(|core| &core.shard);
    shards.fold((0, 0), |(left, subscriptions), shard| {
        let here: usize = shard.clients().map(|(_, client)| client.subs().count()).sum();
        (left + shard.stages().left, subscriptions + here)
    })
}

fn brief(no: usize, said: &crate::stream::Said) -> String {
    let mut text = match said {
        crate::stream::Said::Text(json) => json.to_string(),
        crate::stream::Said::Binary(archive) => format!("archive {}", crate::viewer::unpack(archive)),
        other => format!("{other:?}"),
    };
    let mut end = text.len().min(170);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    format!("viewer {no} reads {text}")
}
