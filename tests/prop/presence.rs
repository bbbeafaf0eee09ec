//! Presence over several shards: holdings, mailboxes that are full now and then, and rosters, against a twin that keeps
//! one plain list of connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{Rng, for_seeds};
use ringcast::base::{ChannelKey, Name, Now, ShardId};
use ringcast::post::presence::{Holding, Stated};
use ringcast::presence::{Holdings, Presence, PresenceOptions, Watcher};
use ringcast::wire::event::EventKind;
use ringcast::wire::presence::{PresenceState, Status};
use ringcast::wire::sealed::Event;
use ringcast::wire::topic::{Scope, Topic, TopicHasher};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn channel(n: u64) -> Topic {
    TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &name(&format!("c{n}")))
}

fn key(topic: &Topic) -> ChannelKey {
    ChannelKey::new(topic.app.clone(), topic.name.clone())
}

/// One subscription of one connection.
#[derive(Clone)]
struct Watch {
    shard: usize,
    topic: Topic,
    user: Option<Name>,
}

/// What is true, and nothing clever about it.
#[derive(Default)]
struct Twin {
    watches: Vec<Watch>,
    /// Since when a user has no connection in a channel in which it was.
    gone_since_ms: BTreeMap<(Name, Name), u64>,
    /// Channels that tell no members.
    counted: BTreeSet<Name>,
    said: VecDeque<String>,
}

impl Twin {
    fn connections(&self, topic: &Topic) -> u64 {
        self.watches.iter().filter(|watch| watch.topic == *topic).count() as u64
    }

    fn of_user(&self, topic: &Topic, user: &Name) -> u32 {
        let same = |watch: &&Watch| watch.topic == *topic && watch.user.as_ref() == Some(user);
        self.watches.iter().filter(same).count() as u32
    }

    /// Those who are there and those who may come back.
    fn users(&self, topic: &Topic) -> BTreeSet<Name> {
        let there = self.watches.iter().filter(|watch| watch.topic == *topic).filter_map(|watch| watch.user.clone());
        let gone = self.gone_since_ms.keys().filter(|(of, _)| *of == topic.name).map(|(_, user)| user.clone());
        there.chain(gone).collect()
    }

    fn mode(&mut self, topic: &Topic, limit: u32) {
        let size = self.connections(topic).max(self.users(topic).len() as u64);
        if size > u64::from(limit) {
            self.counted.insert(topic.name.clone());
        } else if size * 10 <= u64::from(limit) * 8 {
            self.counted.remove(&topic.name);
        }
    }

    fn say(&mut self, what: &str, topic: &Topic, user: &Name) {
        if !self.counted.contains(&topic.name) {
            self.said.push_back(format!("{what} {} {user}", topic.name));
        }
    }

    fn join(&mut self, watch: Watch, limit: u32) {
        let (topic, user) = (watch.topic.clone(), watch.user.clone());
        let new = user.clone().filter(|user| !self.users(&topic).contains(user));
        self.watches.push(watch);
        self.mode(&topic, limit);
        if let Some(user) = user {
            self.gone_since_ms.remove(&(topic.name.clone(), user));
        }
        if let Some(user) = new {
            self.say("member.joined", &topic, &user);
        }
    }

    fn leave(&mut self, at: usize, now_ms: u64, limit: u32) -> Watch {
        let watch = self.watches.swap_remove(at);
        if let Some(user) = watch.user.as_ref().filter(|user| self.of_user(&watch.topic, user) == 0) {
            self.gone_since_ms.insert((watch.topic.name.clone(), user.clone()), now_ms);
        }
        self.mode(&watch.topic, limit);
        watch
    }

    fn expire(&mut self, now_ms: u64, grace_ms: u64, limit: u32) {
        let over = self.gone_since_ms.iter().filter(|(_, since_ms)| *since_ms + grace_ms <= now_ms);
        let mut over: Vec<_> = over.map(|(who, since_ms)| (*since_ms, who.clone())).collect();
        over.sort();
        for (_, (of, user)) in over {
            self.gone_since_ms.remove(&(of.clone(), user.clone()));
            let topic = TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &of);
            self.say("member.left", &topic, &user);
            self.mode(&topic, limit);
        }
    }
}

struct World {
    rng: Rng,
    now: Now,
    options: PresenceOptions,
    shards: Vec<Holdings>,
    /// Letters on their way to the one partition, in order.
    mailbox: VecDeque<Holding>,
    room: usize,
    presence: Presence,
    twin: Twin,
    channels: u64,
    users: u64,
    watches_max: usize,
}

impl World {
    fn new(seed: u64, options: PresenceOptions) -> Self {
        let mut rng = Rng(seed);
        let shards = 1 + rng.below(4) as u16;
        Self {
            now: Now::default().plus_ms(1_000),
            options,
            shards: (0..shards).map(|shard| Holdings::new(ShardId(shard))).collect(),
            mailbox: VecDeque::new(),
            room: 1 + rng.below(6) as usize,
            presence: Presence::new(options),
            twin: Twin::default(),
            channels: 1 + rng.below(3),
            users: 1 + rng.below(6),
            watches_max: 2 + rng.below(30) as usize,
            rng,
        }
    }

    fn join(&mut self) {
        let shard = self.rng.below(self.shards.len() as u64) as usize;
        let topic = channel(self.rng.below(self.channels));
        let user = self.rng.chance(75).then(|| name(&format!("u{}", self.rng.below(self.users))));
        let watcher = user.as_ref().map(|user| Watcher { user, name: "", stated: None });
        self.shards[shard].join(&topic, watcher);
        self.twin.join(Watch { shard, topic, user }, self.options.roster_limit);
    }

    fn leave(&mut self) {
        if self.twin.watches.is_empty() {
            return;
        }
        let at = self.rng.below(self.twin.watches.len() as u64) as usize;
        let watch = self.twin.leave(at, self.now.mono_ms(), self.options.roster_limit);
        self.shards[watch.shard].leave(&watch.topic, watch.user.as_ref());
    }

    fn flush(&mut self, shard: usize, letters_max: usize) {
        let (mailbox, room) = (&mut self.mailbox, self.room);
        self.shards[shard].flush(letters_max, |holding| {
            let fits = mailbox.len() < room;
            if fits {
                mailbox.push_back(holding);
            }
            fits
        });
    }

    fn read(&mut self, letters_max: usize) {
        for _ in 0..letters_max {
            let Some(holding) = self.mailbox.pop_front() else { return };
            self.presence.on_holding(self.now, &holding);
            if self.rng.chance(10) {
                self.presence.on_holding(self.now, &holding);
            }
        }
    }

    /// Everything that is to be told is told and read.
    fn settle(&mut self) {
        while !self.mailbox.is_empty() || self.shards.iter().any(Holdings::has_untold) {
            for shard in 0..self.shards.len() {
                self.flush(shard, usize::MAX);
            }
            self.read(usize::MAX);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        self.presence.on_alarm(self.now);
        self.twin.expire(self.now.mono_ms(), self.options.grace_ms.into(), self.options.roster_limit);
    }

    fn said(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.presence.poll_news()).collect()
    }

    /// The numbers are those of the twin.
    fn compare(&self) {
        for topic in (0..self.channels).map(channel) {
            let audience = self.presence.audience(&key(&topic), true);
            let users = self.twin.users(&topic);
            assert_eq!((audience.connections, audience.users), (self.twin.connections(&topic), users.len() as u64));
            assert_eq!(audience.roster.is_none(), self.twin.counted.contains(&topic.name));
            if let Some(roster) = audience.roster {
                let told: Vec<_> = roster.into_iter().map(|present| (present.user, present.connections)).collect();
                let true_ones: Vec<_> =
                    users.into_iter().map(|user| (user.clone(), self.twin.of_user(&topic, &user))).collect();
                assert_eq!(told, true_ones);
            }
        }
    }
}

#[test]
fn members_are_told_as_they_come_and_go() {
    for_seeds(0..300, |rng| {
        let options = PresenceOptions {
            roster_limit: 1 + rng.below(12) as u32,
            grace_ms: rng.pick(&[0, 40, 300]),
            ..PresenceOptions::default()
        };
        let mut world = World::new(rng.next_u64(), options);
        for _ in 0..300 {
            if world.rng.chance(55) {
                world.join();
            } else {
                world.leave();
            }
            // Told at once, so that the twin knows in which order.
            world.settle();
            world.compare();
            let ms = world.rng.below(60);
            world.pass(ms);
            let said = world.said().into_iter().filter(|event| event.kind != EventKind::ViewersUpdated);
            let said: Vec<_> =
                said.map(|event| format!("{} {} {}", event.type_name(), event.topic.name, event.user_id)).collect();
            assert_eq!(said, std::mem::take(&mut world.twin.said).into_iter().collect::<Vec<_>>());
        }
    });
}

/// One million joins and leaves in any order, told whenever there is room for it.
#[test]
fn case_d3_after_a_million_joins_and_leaves_nobody_is_there() {
    const STEPS: u64 = 50_000;
    for_seeds(0..20, |rng| {
        let roster_limit = rng.pick(&[5, 1_000_000]);
        let grace_ms = rng.pick(&[0, 20]);
        let options = PresenceOptions { roster_limit, grace_ms, ..PresenceOptions::default() };
        let mut world = World::new(rng.next_u64(), options);
        let mut there: BTreeSet<(Name, String)> = BTreeSet::new();
        let mut told = |world: &mut World| {
            for event in world.said() {
                let who = (event.topic.name.clone(), event.user_id.clone());
                let right = match event.kind {
                    EventKind::MemberJoined => there.insert(who),
                    EventKind::MemberLeft => there.remove(&who),
                    _ => true,
                };
                // Who came or left while members were counted was not told.
                assert!(right || roster_limit == 5, "one join, one leave: {event:?}");
            }
            there.len()
        };
        for step in 0..STEPS {
            if world.twin.watches.len() < world.watches_max && world.rng.chance(50) {
                world.join();
            } else {
                world.leave();
            }
            if world.rng.chance(30) {
                let (shard, letters) =
                    (world.rng.below(world.shards.len() as u64) as usize, world.rng.below(4) as usize);
                world.flush(shard, letters);
            }
            if world.rng.chance(30) {
                let letters = world.rng.below(4) as usize;
                world.read(letters);
            }
            if world.rng.chance(10) {
                world.now = world.now.plus_ms(1);
                world.presence.on_alarm(world.now);
            }
            told(&mut world);
            let held: usize = world.shards.iter().map(Holdings::untold).sum();
            let most = world.shards.len() as u64 * world.channels * (world.users + 1);
            assert!(held as u64 <= most, "what waits is bounded by what is held");
            if step % 10_000 == 9_999 {
                world.settle();
                world.pass(100);
                world.twin.gone_since_ms.clear();
                world.twin.said.clear();
                for topic in (0..world.channels).map(channel) {
                    let audience = world.presence.audience(&key(&topic), false);
                    let users = world.twin.users(&topic).len() as u64;
                    assert_eq!((audience.connections, audience.users), (world.twin.connections(&topic), users));
                }
            }
        }
        while !world.twin.watches.is_empty() {
            world.leave();
        }
        world.settle();
        world.pass(100);
        assert!(told(&mut world) == 0 || roster_limit == 5, "who was said to have come was said to have left");
        assert!(world.shards.iter().all(Holdings::is_empty), "nothing is held");
        assert_eq!((world.presence.channels(), world.presence.gauges()[0].1.used), (0, 0), "nobody is there");
        for topic in (0..world.channels).map(channel) {
            let audience = world.presence.audience(&key(&topic), true);
            assert_eq!((audience.connections, audience.users), (0, 0), "no ghost in {}", topic.name);
        }
        assert_eq!(world.presence.next_alarm_ms(), None);
    });
}

#[test]
fn the_last_status_holds_over_all_shards() {
    for_seeds(0..200, |rng| {
        let mut world = World::new(rng.next_u64(), PresenceOptions::default());
        let (topic, user) = (channel(0), name("ann"));
        let shards = world.shards.len() as u64;
        for shard in &mut world.shards {
            shard.join(&topic, Some(Watcher { user: &user, name: "Ann", stated: None }));
        }
        let mut last = Status::default();
        for at_us in 1..40 {
            let state = world.rng.pick(&[PresenceState::Online, PresenceState::Away, PresenceState::Offline]);
            last = Status { state, text: format!("{}", world.rng.below(3)) };
            let shard = world.rng.below(shards) as usize;
            world.shards[shard].state(&topic, &user, &Stated { status: last.clone(), at_us });
            let (shard, letters) = (world.rng.below(shards) as usize, world.rng.below(3) as usize);
            world.flush(shard, letters);
            world.read(letters);
        }
        world.settle();
        let roster = world.presence.audience(&key(&topic), true).roster.unwrap();
        assert_eq!((roster.len(), &roster[0].status, roster[0].name.as_str()), (1, &last, "Ann"));
        let changed = world.said().into_iter().filter(|event| event.kind == EventKind::PresenceChanged).last();
        if let Some(changed) = changed {
            assert_eq!(changed.text.unwrap_or_default(), last.text, "the last that was told is the last that holds");
        }
    });
}
