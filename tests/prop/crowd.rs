//! Presence through whole shards: connections that come, watch, change their minds and vanish while their questions are
//! on the way; and what a storm of joins costs.
//!
//! The orchestrator and the sockets are stubs: the one says yes, sooner or later and in any order; the others take all.

use std::collections::{BTreeMap, VecDeque};

use crate::{Rng, for_seeds};
use ringcast::admission::auth::{TokenKey, make_token};
use ringcast::admission::{AppOptions, Apps};
use ringcast::base::{ChannelKey, Class, ClientId, Given, Name, Now, RoomId, ShardId};
use ringcast::bus::Outgoing;
use ringcast::post::letters::{Page, ToOrchestrator, ToShard};
use ringcast::post::presence::{Audience, PresenceDoors, ToPresence};
use ringcast::presence::PresenceOptions;
use ringcast::shard::{Action, ApiRequest, Origin, Outcome, SendBatch, Shard, ShardOptions};
use ringcast::wire::event::EventKind;
use ringcast::wire::http::{Head, Upgrade, parse_head};
use ringcast::wire::sealed::Sealed;
use ringcast::wire::topic::{Scope, TopicHasher, partition};

const SECRET: &[u8] = b"a secret of at least 32 bytes, yes";
const WALL_MS: u64 = 1_796_000_000_000;

/// The mailboxes between shards.
#[derive(Default)]
struct Post {
    presence: Vec<VecDeque<ToPresence>>,
    /// Letters that one of them holds.
    room: usize,
    events: Vec<VecDeque<Sealed>>,
    answers: Vec<VecDeque<ToShard>>,
}

impl Outgoing for Post {
    fn offer(&mut self, shard: ShardId, sealed: &Sealed) -> bool {
        self.events[usize::from(shard.0)].push_back(sealed.clone());
        true
    }
}

impl PresenceDoors for Post {
    fn tell(&mut self, to: ShardId, letter: ToPresence) -> Result<(), ToPresence> {
        let mailbox = &mut self.presence[usize::from(to.0)];
        if mailbox.len() >= self.room {
            return Err(letter);
        }
        mailbox.push_back(letter);
        Ok(())
    }

    fn answer(&mut self, to: ShardId, letter: ToShard) -> Result<(), ToShard> {
        self.answers[usize::from(to.0)].push_back(letter);
        Ok(())
    }
}

struct Stage {
    now: Now,
    shards: Vec<Shard>,
    post: Post,
    /// Questions to the orchestrator under way, by the shard that asks.
    asks: Vec<(usize, ToOrchestrator)>,
    batch: SendBatch,
    numbers: BTreeMap<usize, u64>,
    /// Connections, with the shard that they are on.
    clients: Vec<(usize, ClientId)>,
    said: BTreeMap<EventKind, u64>,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn upgrade(channel: Option<&str>, user: Option<&str>) -> Upgrade {
    let path = channel.map_or_else(|| "/v1/demo/ws".to_owned(), |channel| format!("/v1/demo/channels/{channel}/ws"));
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let Ok(Head::Upgrade(mut upgrade)) = parse_head(head.as_bytes()) else { panic!("a good upgrade") };
    upgrade.token = user.map(|user| make_token(SECRET, user, None, WALL_MS / 1_000 + 100_000).unwrap());
    *upgrade
}

/// A command as a frame with the mask 00 00 00 00.
fn command(kind: &str, channel: &str) -> Vec<u8> {
    let text = format!(r#"{{"type":"{kind}","channel":"{channel}"}}"#);
    [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0], text.as_bytes()].concat()
}

impl Stage {
    fn new(shards: u16, room: usize, presence: PresenceOptions) -> Self {
        let app = AppOptions {
            token_keys: vec![TokenKey::hs256(None, SECRET).unwrap()],
            anonymous_read: true,
            ..AppOptions::new(name("demo"), [0; 32])
        };
        let now = Now { mono_us: 1_000_000, wall_ms: WALL_MS };
        let shard = |id| {
            let id = ShardId(id);
            let options = ShardOptions { id, shards, presence, room_capacity: u32::MAX, ..ShardOptions::default() };
            Shard::new(options, Apps::new(vec![app.clone()]), TopicHasher::new(7), now)
        };
        let count = usize::from(shards);
        Self {
            now,
            shards: (0..shards).map(shard).collect(),
            post: Post {
                presence: vec![VecDeque::new(); count],
                room,
                events: vec![VecDeque::new(); count],
                answers: (0..count).map(|_| VecDeque::new()).collect(),
            },
            asks: Vec::new(),
            batch: SendBatch::default(),
            numbers: BTreeMap::new(),
            clients: Vec::new(),
            said: BTreeMap::new(),
        }
    }

    /// Does what shard `at` wants done; its questions stay under way.
    fn act(&mut self, at: usize) {
        loop {
            while let Some(action) = self.shards[at].poll_action() {
                match action {
                    Action::Ask(ask @ (ToOrchestrator::AskSeat { .. } | ToOrchestrator::AskPage { .. })) => {
                        self.asks.push((at, ask));
                    }
                    Action::Install { client, .. } => self.clients.push((at, client)),
                    Action::End(client) => {
                        self.clients.retain(|other| *other != (at, client));
                        self.shards[at].on_closed(client);
                    }
                    // There are no sockets whose other end would go.
                    Action::ShutdownWrite(client) => self.shards[at].on_hangup(self.now, client),
                    _ => {}
                }
            }
            self.shards[at].poll_fanout(self.now, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            self.shards[at].on_sent(self.now, &mut self.batch, &mut []);
        }
        while let Some(sealed) = self.shards[at].poll_news() {
            *self.said.entry(sealed.kind()).or_default() += 1;
            self.shards[at].publish_news(&sealed, &mut self.post);
        }
        self.shards[at].flush_presence(self.now, &mut self.post);
    }

    /// A turn of shard `at` with at most so many letters.
    fn turn(&mut self, at: usize, letters_max: usize) {
        let shard = &mut self.shards[at];
        for _ in 0..letters_max {
            let Some(letter) = self.post.answers[at].pop_front() else { break };
            shard.on_letter(self.now, letter);
        }
        for _ in 0..letters_max {
            let Some(letter) = self.post.presence[at].pop_front() else { break };
            shard.on_presence(self.now, letter);
        }
        for _ in 0..letters_max {
            let Some(sealed) = self.post.events[at].pop_front() else { break };
            shard.on_sealed(self.now, &sealed);
        }
        if shard.next_alarm_ms().is_some_and(|at_ms| at_ms <= self.now.mono_ms()) {
            shard.on_alarm(self.now);
        }
        self.act(at);
    }

    /// The orchestrator answers the question at this place.
    fn answer(&mut self, place: usize) {
        let (at, ask) = self.asks.swap_remove(place);
        let letter = match ask {
            ToOrchestrator::AskSeat { ticket, channel, .. } => {
                let number = self.numbers.entry(at).or_default();
                *number += 1;
                let room = RoomId { n: 1, shard: ShardId(at as u16) };
                let answer = Ok(channel.map(|_| Given { room, number: *number, viewers: 1 }));
                ToShard::SeatAnswer { ticket, answer }
            }
            ToOrchestrator::AskPage { ticket, .. } => {
                let page = Page { epoch: 1, head: 0, first_kept: 1, events: Vec::new() };
                ToShard::PageAnswer { ticket, answer: Ok(page) }
            }
            other => panic!("{other:?}"),
        };
        self.shards[at].on_letter(self.now, letter);
        self.act(at);
    }

    fn come(&mut self, at: usize, upgrade: &Upgrade) {
        let origin = Origin { address: None, loopback: false };
        if self.shards[at].on_upgrade(self.now, upgrade, origin).is_ok() {
            self.act(at);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    /// Everything under way arrives, and so much time passes.
    fn settle(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            self.pass(20);
            while !self.asks.is_empty() {
                self.answer(0);
            }
            for at in 0..self.shards.len() {
                self.turn(at, usize::MAX);
            }
        }
    }

    fn audience(&self, channel: &str) -> Audience {
        let home = partition(Scope::Channel, "demo", channel, self.shards.len() as u16);
        self.shards[usize::from(home.0)].presence().0.audience(&ChannelKey::new(name("demo"), name(channel)), false)
    }

    fn mergeable_published(&self) -> u64 {
        self.shards.iter().map(|shard| shard.account().of(Class::Mergeable).published).sum()
    }
}

/// One million commands and vanishings in any order, while answers are late.
#[test]
fn case_d3_a_million_races_of_watching_leaving_and_vanishing_end_with_nobody() {
    const STEPS: u64 = 50_000;
    const CHANNELS: [&str; 3] = ["a", "b", "c"];
    for_seeds(0..20, |rng: &mut Rng| {
        let presence = PresenceOptions { grace_ms: 50, roster_limit: 10_000, ..PresenceOptions::default() };
        let mut stage = Stage::new(1 + rng.below(3) as u16, 1 + rng.below(4) as usize, presence);
        let shards = stage.shards.len() as u64;
        let upgrades = [
            upgrade(None, Some("ann")),
            upgrade(None, Some("bob")),
            upgrade(Some("a"), Some("ann")),
            upgrade(Some("b"), Some("cid")),
            upgrade(Some("b"), None),
            upgrade(None, None),
        ];
        let commands: Vec<Vec<u8>> = ["subscribe", "subscribe", "unsubscribe"]
            .iter()
            .flat_map(|kind| CHANNELS.map(|channel| command(kind, channel)))
            .collect();
        for _ in 0..STEPS {
            let client =
                (!stage.clients.is_empty()).then(|| stage.clients[rng.below(stage.clients.len() as u64) as usize]);
            match (rng.below(100), client) {
                (0..8, _) if stage.clients.len() < 12 => {
                    let at = rng.below(shards) as usize;
                    stage.come(at, &upgrades[rng.below(upgrades.len() as u64) as usize]);
                }
                (8..14, Some((at, client))) => {
                    stage.shards[at].on_hangup(stage.now, client);
                    stage.act(at);
                }
                (14..70, Some((at, client))) => {
                    let bytes = &commands[rng.below(commands.len() as u64) as usize];
                    stage.shards[at].on_bytes(stage.now, client, bytes);
                    stage.act(at);
                }
                (70..85, _) if !stage.asks.is_empty() => {
                    let place = rng.below(stage.asks.len() as u64) as usize;
                    stage.answer(place);
                }
                _ => {
                    stage.pass(rng.below(12));
                    let at = rng.below(shards) as usize;
                    stage.turn(at, 1 + rng.below(4) as usize);
                }
            }
        }
        stage.settle(200);
        let mut expected = BTreeMap::new();
        for (shard, (_, client)) in stage.shards.iter().flat_map(|shard| shard.clients().map(move |c| (shard, c))) {
            for channel in client.subs().filter_map(|sub| shard.channel_of(sub)) {
                *expected.entry(channel.to_string()).or_insert(0_u64) += 1;
            }
        }
        for channel in CHANNELS {
            let connections = expected.get(channel).copied().unwrap_or(0);
            assert_eq!(stage.audience(channel).connections, connections, "connections of {channel}");
        }
        for (at, client) in stage.clients.clone() {
            stage.shards[at].on_hangup(stage.now, client);
            stage.act(at);
        }
        stage.settle(400);
        for shard in &stage.shards {
            let (presence, holdings) = shard.presence();
            assert!(holdings.is_empty(), "nothing is held: {holdings:?}");
            assert_eq!((presence.channels(), presence.gauges()[0].1.used), (0, 0), "no ghost member");
            assert_eq!((shard.connections(), shard.rooms().iter().map(|room| room.viewers).sum::<u32>()), (0, 0));
        }
        let of = |kind| stage.said.get(&kind).copied().unwrap_or(0);
        assert!(of(EventKind::MemberJoined) > 100, "something happened");
        assert_eq!(of(EventKind::MemberJoined), of(EventKind::MemberLeft), "one join, one leave");
    });
}

/// A question to a partition that does not answer, and answers that come when nobody waits any more.
#[test]
fn a_question_of_who_is_there_is_answered_once_and_in_time() {
    let mut stage = Stage::new(2, 1, PresenceOptions::default());
    stage.come(0, &upgrade(Some("race"), Some("ann")));
    stage.settle(100);
    let home = usize::from(partition(Scope::Channel, "demo", "race", 2).0);
    let ask = |stage: &mut Stage| {
        let request = ApiRequest {
            method: "GET",
            path: "/v1/demo/channels/race/presence",
            query: "",
            authorization: None,
            idempotency_key: None,
            origin: None,
            body: b"",
            from: Origin { address: None, loopback: false },
        };
        let asker = &mut stage.shards[1 - home];
        let Outcome::Wait(ticket) = asker.on_request(stage.now, &request) else { panic!("it crosses cores") };
        asker.flush_presence(stage.now, &mut stage.post);
        ticket
    };
    let answers = |stage: &mut Stage| {
        let shard = &mut stage.shards[1 - home];
        if shard.next_alarm_ms().is_some_and(|at_ms| at_ms <= stage.now.mono_ms()) {
            shard.on_alarm(stage.now);
        }
        let mut answers = Vec::new();
        while let Some(action) = shard.poll_action() {
            if let Action::Answer { ticket, answer } = action {
                answers.push((ticket, answer.status, String::from_utf8(answer.body).unwrap()));
            }
        }
        answers
    };
    // The mailbox holds one letter: the second question waits on its own shard, and the third goes away again.
    let (first, second, third) = (ask(&mut stage), ask(&mut stage), ask(&mut stage));
    assert_eq!(stage.post.presence[home].len(), 1);
    stage.shards[1 - home].on_request_gone(third);
    stage.pass(1_999);
    assert!(answers(&mut stage).is_empty());
    stage.pass(1);
    let late = answers(&mut stage);
    assert_eq!(
        late.iter().map(|(ticket, status, _)| (*ticket, *status)).collect::<Vec<_>>(),
        [(first, 503), (second, 503)]
    );
    assert!(late.iter().all(|(.., body)| body.contains(r#""code":"presence_late""#)), "{late:?}");
    // The partition shard wakes up; its answer to the first question finds nobody, and nobody asks a second time.
    stage.turn(home, usize::MAX);
    stage.shards[1 - home].flush_presence(stage.now, &mut stage.post);
    assert_eq!((stage.post.answers[1 - home].len(), stage.post.presence[home].len()), (1, 0));
    let letter = stage.post.answers[1 - home].pop_front().unwrap();
    let now = stage.now;
    stage.shards[1 - home].on_letter(now, letter);
    assert!(answers(&mut stage).is_empty());
    // Asked again, it is answered.
    let ticket = ask(&mut stage);
    stage.turn(home, usize::MAX);
    let letter = stage.post.answers[1 - home].pop_front().unwrap();
    stage.shards[1 - home].on_letter(now, letter);
    let members = r#"{"connections":1,"users":1,"members":[{"user":{"id":"ann"},"connections":1,"state":"online"}]}"#;
    assert_eq!(answers(&mut stage), [(ticket, 200, members.to_owned())]);
}

/// 20,000 users come to one channel within 20 seconds and leave it again.
#[test]
fn a_storm_of_joins_costs_deliveries_that_grow_with_the_audience() {
    const VIEWERS: u64 = 20_000;
    let mut stage = Stage::new(2, 4_096, PresenceOptions::default());
    for n in 0..VIEWERS {
        stage.come((n % 2) as usize, &upgrade(Some("storm"), Some(&format!("u{n}"))));
        while !stage.asks.is_empty() {
            stage.answer(0);
        }
        // A thousand a second.
        if n % 20 == 19 {
            stage.settle(20);
        }
    }
    stage.settle(6_000);
    let audience = stage.audience("storm");
    assert_eq!((audience.connections, audience.users), (VIEWERS, VIEWERS));
    let joins = stage.mergeable_published();
    let of = |stage: &Stage, kind| stage.said.get(&kind).copied().unwrap_or(0);
    assert!(of(&stage, EventKind::MemberJoined) <= 500, "members are told while few watch");
    assert!(of(&stage, EventKind::ViewersUpdated) <= 21, "and then a number, once a second at the most");
    // Each told to each would be 200,000,000.
    assert!(joins < VIEWERS * 20, "{joins} deliveries for {VIEWERS} joins");

    let clients = stage.clients.clone();
    for (n, (at, client)) in clients.into_iter().enumerate() {
        stage.shards[at].on_hangup(stage.now, client);
        if n % 20 == 19 {
            stage.settle(20);
        }
    }
    stage.settle(12_000);
    let leaves = stage.mergeable_published() - joins;
    assert!(of(&stage, EventKind::MemberLeft) <= 500, "of those who left the crowd nobody is told one by one");
    assert!(leaves < VIEWERS * 20, "{leaves} deliveries for {VIEWERS} leaves");
    assert_eq!(stage.shards.iter().map(|shard| shard.presence().0.channels()).sum::<usize>(), 0);
    eprintln!("{VIEWERS} joins: {joins} deliveries; as many leaves: {leaves}; said: {:?}", stage.said);
}
