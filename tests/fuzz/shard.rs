//! A whole shard behind a hostile client's socket and behind the HTTP API, with a ring that is made of dice: it never
//! panics, holds nothing of who has left, its account balances, and a neighbour gets everything all the while.

use ringcast::admission::auth::{TokenKey, hash_server_key, make_token};
use ringcast::admission::rate::RateOptions;
use ringcast::admission::{AppOptions, Apps};
use ringcast::base::{Class, ClientId, Given, Name, Now, RoomId, ShardId, Ulid};
use ringcast::bus::Outgoing;
use ringcast::fanout::index::IndexOptions;
use ringcast::fanout::score::OutboxOptions;
use ringcast::post::connections::Connections;
use ringcast::post::letters::{Page, Posted, Range, ToOrchestrator, ToShard};
use ringcast::post::presence::{PresenceDoors, ToPresence};
use ringcast::presence::PresenceOptions;
use ringcast::shard::{Action, ApiRequest, Origin, Outcome, SendBatch, SendResult, Shard, ShardOptions};
use ringcast::wire::event::EventKind;
use ringcast::wire::http::{Head, parse_head};
use ringcast::wire::problem::Problem;
use ringcast::wire::sealed::{Event, Sealed};
use ringcast::wire::socket::SocketLimits;
use ringcast::wire::topic::{Scope, Topic, TopicHasher};

use crate::rng::Rng;
use crate::{Target, run};

const SECRET: &[u8] = b"a secret of at least 32 bytes, yes";
const EPOCH: u64 = 0xFF;

/// A shard, its orchestrator's answers by dice, and its two clients.
struct Bench {
    shard: Shard,
    now: Now,
    topic: Topic,
    /// Stored events of the channel.
    stored: Vec<Sealed>,
    seats: u64,
    batch: SendBatch,
    installed: Vec<ClientId>,
    /// Whose sockets take nothing until they are told to.
    blocked: Vec<ClientId>,
    paused: Vec<ClientId>,
    ended: Vec<ClientId>,
    witness: Option<ClientId>,
    heard: Vec<u8>,
    answered: Vec<u64>,
}

/// Mailboxes of the only shard.
#[derive(Default)]
struct Doors {
    events: Vec<Sealed>,
    presence: Vec<ToPresence>,
    answers: Vec<ToShard>,
}

impl Outgoing for Doors {
    fn offer(&mut self, _: ShardId, sealed: &Sealed) -> bool {
        self.events.push(sealed.clone());
        true
    }
}

impl PresenceDoors for Doors {
    fn tell(&mut self, _: ShardId, letter: ToPresence) -> Result<(), ToPresence> {
        self.presence.push(letter);
        Ok(())
    }

    fn answer(&mut self, _: ShardId, letter: ToShard) -> Result<(), ToShard> {
        self.answers.push(letter);
        Ok(())
    }
}

impl Bench {
    fn new() -> Self {
        let name = |text| Name::new(text).expect("a name");
        let app = AppOptions {
            anonymous_read: true,
            token_keys: vec![TokenKey::hs256(None, SECRET).expect("a key")],
            ..AppOptions::new(name("demo"), hash_server_key("rk_fuzz"))
        };
        let options = ShardOptions {
            clients_max: 8,
            channels_per_client: 3,
            asks_max: 64,
            outbox: OutboxOptions { events_min: 4, bytes_max: 16 * 1024, ..OutboxOptions::default() },
            socket: SocketLimits { message_bytes_max: 8 * 1024, fragments_max: 16, contexts_max: 4 },
            address_rate: RateOptions { requests_max: 600, window_s: 60, keys_max: 64 },
            index: IndexOptions { channels_max: 64, users_max: 64, tags_max: 16, filter: true },
            presence: PresenceOptions { members_max: 64, typing_max: 64, ..PresenceOptions::default() },
            ..ShardOptions::default()
        };
        let now = Now { mono_us: 1_000_000, wall_ms: 1_796_000_000_000 };
        let hasher = TopicHasher::new(7);
        let topic = hasher.topic(Scope::Channel, &name("demo"), &name("race"));
        Self {
            shard: Shard::new(options, Apps::new(vec![app]), hasher, now),
            now,
            topic,
            stored: Vec::new(),
            seats: 0,
            batch: SendBatch::default(),
            installed: Vec::new(),
            blocked: Vec::new(),
            paused: Vec::new(),
            ended: Vec::new(),
            witness: None,
            heard: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// A viewer joins; `None` if it is refused.
    fn join(&mut self, query: &str, rng: &mut Rng) -> Option<ClientId> {
        let head = format!(
            "GET /v1/demo/channels/race/ws{query} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        let Ok(Head::Upgrade(upgrade)) = parse_head(head.as_bytes()) else { panic!("the head is an upgrade") };
        self.installed.clear();
        self.shard.on_upgrade(self.now, &upgrade, Origin { address: None, loopback: true }).ok()?;
        self.settle(rng);
        self.installed.first().copied()
    }

    fn pass(&mut self, us: u64) {
        self.now.mono_us += us;
        self.now.wall_ms += us / 1_000;
        if self.shard.next_alarm_ms().is_some_and(|at| at <= self.now.mono_ms()) {
            self.shard.on_alarm(self.now);
        }
    }

    /// Everything that is wanted is done, until nothing is.
    fn settle(&mut self, rng: &mut Rng) {
        for turn in 0.. {
            assert!(turn < 10_000, "the shard comes to rest");
            let mut idle = true;
            while let Some(action) = self.shard.poll_action() {
                idle = false;
                self.act(action, rng);
            }
            let mut doors = Doors::default();
            while let Some(sealed) = self.shard.poll_news() {
                self.shard.publish_news(&sealed, &mut doors);
            }
            self.shard.flush_presence(self.now, &mut doors);
            for letter in doors.presence {
                idle = false;
                self.shard.on_presence(self.now, letter);
            }
            for letter in doors.answers {
                idle = false;
                self.shard.on_letter(self.now, letter);
            }
            for sealed in doors.events {
                idle = false;
                self.shard.on_sealed(self.now, &sealed);
            }
            idle &= !self.send(rng);
            self.check();
            if idle && !self.shard.has_fanout() {
                return;
            }
        }
    }

    fn order(&mut self, sealed: &Sealed) {
        let mut doors = Doors::default();
        self.shard.order(self.now, sealed, &mut doors);
        for sealed in doors.events {
            self.shard.on_sealed(self.now, &sealed);
        }
    }

    fn act(&mut self, action: Action, rng: &mut Rng) {
        match action {
            Action::Ask(letter) => self.ask(letter, rng),
            Action::Publish(sealed) => self.order(&sealed),
            Action::Install { client, .. } => self.installed.push(client),
            Action::Answer { ticket, .. } => self.answered.push(ticket),
            Action::WantWritable(client) => self.blocked.push(client),
            Action::PauseReads(client) => self.paused.push(client),
            Action::ResumeReads(client) => self.paused.retain(|paused| *paused != client),
            Action::End(client) => {
                self.ended.push(client);
                self.shard.on_closed(client);
            }
            Action::Refuse { .. } | Action::ShutdownWrite(_) | Action::StopListening => {}
            Action::HandOver { .. } => panic!("there is one shard"),
        }
    }

    fn ask(&mut self, letter: ToOrchestrator, rng: &mut Rng) {
        let no = rng.chance(15);
        let refusal = || Problem::new(503, "busy", "the dice say no").retry_after(1);
        let witness_joins = self.witness.is_none();
        let answer = match letter {
            ToOrchestrator::AskSeat { ticket, .. } if no && !witness_joins => {
                ToShard::SeatAnswer { ticket, answer: Err(refusal()) }
            }
            ToOrchestrator::AskSeat { ticket, channel, .. } => {
                self.seats += 1;
                let given = Given { room: RoomId { shard: ShardId(0), n: 1 }, number: self.seats, viewers: 1 };
                ToShard::SeatAnswer { ticket, answer: Ok(channel.map(|_| given)) }
            }
            ToOrchestrator::AskPage { ticket, .. } if no && !witness_joins => {
                ToShard::PageAnswer { ticket, answer: Err(refusal()) }
            }
            ToOrchestrator::AskPage { ticket, topic, range, limit, .. } => {
                ToShard::PageAnswer { ticket, answer: Ok(self.page(&topic, range, limit as usize)) }
            }
            ToOrchestrator::Post { ticket, .. } if no => ToShard::PostAnswer { ticket, answer: Err(refusal()) },
            ToOrchestrator::Post { ticket, draft, .. } => {
                let seq = if draft.topic == self.topic { self.stored.len() as u64 + 1 } else { 1 };
                let posted = Posted { id: Ulid(7), seq, epoch: EPOCH, created_at_ms: self.now.wall_ms };
                if draft.topic == self.topic {
                    let event = Event {
                        seq,
                        epoch: EPOCH,
                        text: draft.text.clone(),
                        data: draft.data.clone(),
                        user_id: draft.user_id.clone(),
                        ..Event::new(EventKind::MessageNew, draft.topic.clone(), self.now.wall_ms)
                    };
                    let sealed = Sealed::seal(&event).expect("what passed admission is never too large");
                    self.stored.push(sealed.clone());
                    self.order(&sealed);
                }
                ToShard::PostAnswer { ticket, answer: Ok(posted) }
            }
            ToOrchestrator::Publish { ticket, sealed, .. } => {
                if !no {
                    self.order(&sealed);
                }
                ToShard::Done { ticket, answer: if no { Err(refusal()) } else { Ok(()) } }
            }
            ToOrchestrator::Ban { ticket, .. }
            | ToOrchestrator::AskWord { ticket, .. }
            | ToOrchestrator::ChangeAlarm { ticket, .. }
            | ToOrchestrator::SetLimits { ticket, .. } => {
                ToShard::Done { ticket, answer: if no { Err(refusal()) } else { Ok(()) } }
            }
            ToOrchestrator::AskConnections { ticket, ask, .. } => {
                self.shard.on_letter(self.now, ToShard::ListConnections { number: 1, ask });
                ToShard::ConnectionsAnswer { ticket, answer: Ok(Connections::default()) }
            }
            ToOrchestrator::GiveBack { .. }
            | ToOrchestrator::Released { .. }
            | ToOrchestrator::AskBans { .. }
            | ToOrchestrator::ConnectionsPart { .. } => return,
        };
        self.shard.on_letter(self.now, answer);
    }

    fn page(&self, topic: &Topic, range: Range, limit: usize) -> Page {
        let all: &[Sealed] = if *topic == self.topic { &self.stored } else { &[] };
        let events = match range {
            Range::Latest => &all[all.len().saturating_sub(limit)..],
            Range::Before(seq) => {
                let end = all.len().min(usize::try_from(seq.saturating_sub(1)).unwrap_or(usize::MAX));
                &all[end.saturating_sub(limit)..end]
            }
            Range::Since(seq) => {
                let from = all.len().min(usize::try_from(seq).unwrap_or(usize::MAX));
                &all[from..all.len().min(from.saturating_add(limit))]
            }
        };
        Page { epoch: EPOCH, head: all.len() as u64, first_kept: 1, events: events.to_vec() }
    }

    /// One submit; true if there was one. The witness's socket takes everything, others take what the dice say.
    fn send(&mut self, rng: &mut Rng) -> bool {
        self.shard.poll_fanout(self.now, &mut self.batch);
        let mut results = Vec::new();
        for (at, send) in self.batch.sends().iter().enumerate() {
            let bytes = self.shard.bytes_of(&self.batch, send);
            let witness = self.witness == Some(send.client);
            assert!(witness || !self.blocked.contains(&send.client), "who has no room is not written to");
            let taken = if !witness && self.witness.is_some() && rng.chance(20) {
                rng.below(bytes.len() as u64 + 1) as usize
            } else {
                bytes.len()
            };
            if taken < bytes.len() {
                results.push((at as u32, SendResult::Short(taken)));
            }
            if witness {
                self.heard.extend_from_slice(&bytes[..taken]);
            }
        }
        let any = !self.batch.is_empty();
        self.shard.on_sent(self.now, &mut self.batch, &mut results);
        any
    }

    /// Some sockets that took too little take more.
    fn make_room(&mut self, rng: &mut Rng) {
        for client in std::mem::take(&mut self.blocked) {
            if rng.chance(70) { self.shard.on_writable(self.now, client) } else { self.blocked.push(client) }
        }
    }

    fn check(&self) {
        let (account, queued) = (self.shard.account(), self.shard.queued());
        for class in Class::ALL {
            assert_eq!(account.of(class).open(), i128::from(queued[class as usize]), "{}", class.name());
        }
    }

    /// The neighbour still gets what is told to all.
    fn neighbour_is_served(&mut self, rng: &mut Rng) {
        let seq = self.stored.len() as u64 + 1;
        let text = format!("for all {seq}");
        let event = Event {
            seq,
            epoch: EPOCH,
            text: Some(text.clone()),
            ..Event::new(EventKind::MessageNew, self.topic.clone(), self.now.wall_ms)
        };
        let sealed = Sealed::seal(&event).expect("an event");
        self.stored.push(sealed.clone());
        self.heard.clear();
        self.order(&sealed);
        self.settle(rng);
        let heard = String::from_utf8_lossy(&self.heard);
        assert!(heard.contains(&text), "the neighbour hears {heard:?}, not {text:?}");
    }

    /// Everybody leaves, and nothing of them stays.
    fn everybody_leaves(&mut self, rng: &mut Rng) {
        let clients: Vec<ClientId> = self.shard.clients().map(|(id, _)| id).collect();
        for client in clients {
            self.shard.on_hangup(self.now, client);
        }
        self.settle(rng);
        for _ in 0..40 {
            self.pass(500_000);
            self.settle(rng);
        }
        assert_eq!(self.shard.connections(), 0);
        assert_eq!(self.shard.queued(), [0; 3]);
        assert_eq!(self.shard.clients().count(), 0);
        self.now.mono_us += 60_000_000;
        if let Some(report) = self.shard.take_report(self.now) {
            for (what, gauge) in report.gauges {
                assert!(gauge.used <= gauge.limit, "{what}: {gauge:?}");
                let stays = matches!(what, "addresses" | "patterns");
                assert!(gauge.used == 0 || stays, "{what}: {gauge:?} of who has left");
            }
        }
    }
}

const SOCKET_WORDS: &[&str] = &[
    "{\"type\":\"ping\",\"id\":1}",
    "\"type\":\"subscribe\"",
    "\"type\":\"unsubscribe\"",
    "\"channel\":\"race\"",
    "\"channel\":\"lobby\"",
    "\"type\":\"message\"",
    "\"type\":\"typing\"",
    "\"epoch\":\"ff\",\"since\":0",
];

#[test]
fn client() {
    let token = make_token(SECRET, "eve", None, 1_796_000_100).expect("a token");
    run(&Target { name: "client", words: SOCKET_WORDS, cost: 8 }, |input, rng| {
        let mut bench = Bench::new();
        bench.witness = bench.join("", rng);
        bench.settle(rng);
        let query = rng.pick(&["", "?filter=message.*", "?epoch=ff&since=0", "?heartbeat=1"]);
        let query = if rng.chance(50) {
            format!("{query}{}token={token}", if query.is_empty() { "?" } else { "&" })
        } else {
            query.to_owned()
        };
        let hostile = (0..10).find_map(|_| bench.join(&query, rng));
        let Some(hostile) = hostile else { return };
        let mut rest = input;
        while !rest.is_empty() && !bench.ended.contains(&hostile) {
            bench.pass(rng.pick(&[10, 1_000, 300_000, 3_000_000]));
            if !bench.paused.contains(&hostile) {
                let (piece, behind) = rest.split_at((1 + rng.below(400) as usize).min(rest.len()));
                bench.shard.on_bytes(bench.now, hostile, piece);
                rest = behind;
            } else if bench.blocked.is_empty() {
                bench.settle(rng);
                assert!(!bench.paused.contains(&hostile), "who is paused is read from again, or waits for room");
            }
            bench.settle(rng);
            bench.make_room(rng);
            bench.settle(rng);
            // The neighbour says something now and then, as every browser does.
            if let Some(witness) = bench.witness {
                bench.shard.on_bytes(bench.now, witness, &[0x8A, 0x80, 0, 0, 0, 0]);
            }
        }
        bench.neighbour_is_served(rng);
        bench.everybody_leaves(rng);
    });
}

const API_WORDS: &[&str] = &[
    "POST /v1/demo/channels/race/messages\n",
    "GET ",
    "PUT ",
    "DELETE ",
    "PATCH ",
    "server\n",
    "user\n",
    "/alarm",
    "/limits",
    "/events",
    "/v1/demo/bans/",
    "/v1/demo/connections?",
    "?before=1&since=2&limit=",
    "{\"text\":\"x\"}",
    "\"type\":\"custom.x\"",
    "%00",
    "%ff",
];

#[test]
fn api() {
    let token = make_token(SECRET, "eve", None, 1_796_000_100).expect("a token");
    run(&Target { name: "api", words: API_WORDS, cost: 8 }, |input, rng| {
        // Method and target, who speaks, and the body.
        let mut lines = input.splitn(3, |&byte| byte == b'\n');
        let mut line = || lines.next().unwrap_or_default();
        let (first, who, body) = (String::from_utf8_lossy(line()), line(), line());
        let (method, target) = first.split_once(' ').unwrap_or(("GET", &first));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let authorization = match who {
            b"server" => Some("Bearer rk_fuzz".to_owned()),
            b"user" => Some(format!("Bearer {token}")),
            b"" => None,
            other => Some(String::from_utf8_lossy(other).into_owned()),
        };
        let mut bench = Bench::new();
        bench.witness = bench.join("", rng);
        bench.settle(rng);
        for key in [None, Some("k"), Some("")] {
            let from = Origin { address: None, loopback: true };
            let (authorization, idempotency_key) = (authorization.as_deref(), key);
            let request = ApiRequest { method, path, query, authorization, idempotency_key, origin: None, body, from };
            match bench.shard.on_request(bench.now, &request) {
                Outcome::Done(answer) => {
                    assert!((200..=599).contains(&answer.status));
                    if answer.status >= 400 {
                        let document: serde_json::Value = serde_json::from_slice(&answer.body).expect("a document");
                        assert!(document["code"].is_string() && document["detail"].is_string(), "{document}");
                    }
                }
                Outcome::Wait(ticket) if rng.chance(20) => {
                    bench.shard.on_request_gone(ticket);
                    bench.settle(rng);
                }
                Outcome::Wait(ticket) => {
                    bench.settle(rng);
                    for _ in 0..20 {
                        bench.pass(500_000);
                        bench.settle(rng);
                    }
                    let answers = bench.answered.iter().filter(|answered| **answered == ticket).count();
                    assert_eq!(answers, 1, "each request is answered once");
                }
            }
        }
        bench.neighbour_is_served(rng);
        bench.everybody_leaves(rng);
    });
}
