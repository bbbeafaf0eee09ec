//! The index and its filters against ordered maps.

use crate::{Rng, for_seeds};
use ringcast::base::Name;
use ringcast::fanout::filter::Filter;
use ringcast::fanout::index::{Index, IndexOptions, Subscribed, TOMBSTONE, TopicNo};
use ringcast::fanout::tick_no::TickNo;
use ringcast::wire::topic::{Scope, Topic, TopicHasher};
use std::collections::{BTreeMap, BTreeSet};

const SCOPES: [Scope; 3] = [Scope::Channel, Scope::User, Scope::Tag];

/// Topics of all scopes. `hash_bits` below 64 make different topics with equal hashes.
fn topics(random: &mut Rng, names: usize, hash_bits: u32) -> Vec<Topic> {
    let (hasher, app) = (TopicHasher::new(random.next_u64()), Name::new("demo").unwrap());
    let mask = u64::MAX >> (64 - hash_bits);
    (0..names)
        .map(|i| {
            let topic = hasher.topic(SCOPES[i % 3], &app, &Name::new(&format!("t{}", i / 3)).unwrap());
            // Drawn apart again, so that the filter is not saturated and would notice a wrong account of them.
            Topic { hash: Rng(topic.hash & mask).next_u64(), ..topic }
        })
        .collect()
}

/// For each topic that has any, its members: client to room, first tick and position.
#[derive(Default)]
struct Twin(BTreeMap<usize, BTreeMap<u32, (u32, u32, u32)>>);

struct World {
    index: Index,
    twin: Twin,
    topics: Vec<Topic>,
    numbers: BTreeMap<usize, TopicNo>,
}

impl World {
    fn new(random: &mut Rng, names: usize, hash_bits: u32, options: IndexOptions) -> Self {
        let topics = topics(random, names, hash_bits);
        Self { index: Index::new(options), twin: Twin::default(), topics, numbers: BTreeMap::new() }
    }

    fn subscribe(&mut self, which: usize, room: u32, client: u32, first_tick: u32) {
        let members = self.twin.0.entry(which).or_default();
        if members.contains_key(&client) {
            return;
        }
        let Subscribed { topic, position, new_topic } =
            self.index.subscribe(&self.topics[which], room, client, TickNo(first_tick)).expect("far below the limit");
        assert_eq!(new_topic, members.is_empty());
        assert!(members.values().all(|&(.., taken)| taken != position), "a place is given to one member");
        members.insert(client, (room, first_tick, position));
        assert_eq!(self.numbers.insert(which, topic).unwrap_or(topic), topic, "a number holds while there are members");
    }

    fn unsubscribe(&mut self, which: usize, client: u32) {
        let Some(members) = self.twin.0.get_mut(&which) else { return };
        let Some((room, _, position)) = members.remove(&client) else { return };
        let left = self.index.unsubscribe(self.numbers[&which], position);
        assert_eq!(left.topic_gone, members.is_empty());
        assert_eq!(left.room_left as usize, members.values().filter(|&&(other, ..)| other == room).count());
        if left.topic_gone {
            self.twin.0.remove(&which);
            self.numbers.remove(&which);
        }
    }

    fn compact(&mut self, which: usize) {
        let (Some(members), Some(&number)) = (self.twin.0.get_mut(&which), self.numbers.get(&which)) else { return };
        if self.index.should_compact(number) {
            self.index.compact(number, |client, position| {
                members.get_mut(&client).expect("only members move").2 = position;
            });
            assert_eq!(self.index.members(number).len(), members.len());
        }
    }

    /// The filter says "maybe" to what is there, and the index finds it; and finds nothing else.
    fn look(&mut self, which: usize) {
        let topic = &self.topics[which];
        let maybe = self.index.may_have(topic.scope, topic.hash);
        assert!(maybe || !self.twin.0.contains_key(&which), "a wrong no to {topic:?}");
        let found = self.index.wanted(topic.scope, topic.hash, || (topic.app.as_str(), topic.name.as_str()));
        assert_eq!(found, self.numbers.get(&which).copied());
    }

    fn compare_all(&mut self) {
        for which in 0..self.topics.len() {
            self.look(which);
        }
        for (which, members) in &self.twin.0 {
            let number = self.numbers[which];
            let live = self.index.members(number).iter().enumerate().filter(|(_, member)| member.client != TOMBSTONE);
            let found: BTreeMap<_, _> =
                live.map(|(at, member)| (member.client, (member.room, member.first_tick.0, at as u32))).collect();
            assert_eq!(&found, members);
            assert_eq!(self.index.live(number) as usize, members.len());
            let mut rooms = BTreeMap::new();
            for &(room, ..) in members.values() {
                *rooms.entry(room).or_insert(0) += 1;
            }
            assert!(self.index.rooms(number).eq(rooms));
        }
        for scope in SCOPES {
            let here: BTreeSet<_> = self.index.topics(scope).map(|(_, topic)| topic.clone()).collect();
            let there =
                self.twin.0.keys().map(|&which| self.topics[which].clone()).filter(|topic| topic.scope == scope);
            assert_eq!(here, there.collect());
            assert_eq!(self.index.gauge(scope).used as usize, here.len());
        }
        let hashes = |of_users: bool| {
            let here = self.twin.0.keys().map(|&which| &self.topics[which]);
            let hashes = here.filter(|topic| (topic.scope == Scope::User) == of_users).map(|topic| topic.hash);
            hashes.collect::<BTreeSet<u64>>().len() as u64
        };
        let stats = self.index.stats();
        assert_eq!((stats.channels_and_tags.len, stats.users.len), (hashes(false), hashes(true)));
        assert!(!stats.channels_and_tags.saturated && !stats.users.saturated);
    }
}

/// A few topics are asked for often, most hardly ever.
fn popular(random: &mut Rng, topics: usize) -> usize {
    let end = if random.below(4) == 0 { 8 } else { topics as u64 };
    random.below(end) as usize
}

#[test]
fn rule_04_filter_knows_before_the_index_answers() {
    for_seeds(0..10, |random| {
        let hash_bits = random.pick(&[64, 64, 10, 8]);
        let options = IndexOptions { filter: random.below(5) != 0, ..IndexOptions::default() };
        let names = random.pick(&[60, 2_000, 6_000]);
        let mut world = World::new(random, names, hash_bits, options);
        for step in 0..120_000_u32 {
            // Tides, so that the filters grow and shrink several times.
            let joining = if (step / 15_000) % 2 == 0 { 75 } else { 20 };
            let which = popular(random, world.topics.len());
            let client = random.below(200) as u32;
            match random.below(100) {
                roll if roll < joining => world.subscribe(which, random.below(3) as u32, client, step),
                95.. => world.compact(which),
                _ => {
                    // Mostly somebody who is there, else leaving would hardly ever happen.
                    let present = world.twin.0.range(which..).next().map_or(which, |(&which, _)| which);
                    let client = world
                        .twin
                        .0
                        .get(&present)
                        .and_then(|members| members.range(client..).next().or(members.iter().next()))
                        .map_or(client, |(&client, _)| client);
                    world.unsubscribe(present, client);
                }
            }
            world.look(which);
            world.look(random.below(world.topics.len() as u64) as usize);
            if step % 20_000 == 0 {
                world.compare_all();
            }
        }
        world.compare_all();
        // Everybody leaves, and nothing is left behind.
        for (which, members) in std::mem::take(&mut world.twin.0) {
            world.twin.0.insert(which, members.clone());
            for &client in members.keys() {
                world.unsubscribe(which, client);
            }
        }
        world.compare_all();
        let stats = world.index.stats();
        assert_eq!((stats.channels_and_tags.len, stats.users.len), (0, 0));
        assert!(!options.filter || stats.users.slots == 256, "an empty filter is a small one: {stats:?}");
    });
}

#[test]
fn rule_04_a_filter_never_says_a_wrong_no() {
    for_seeds(0..8, |random| {
        let mut filter = Filter::new(true);
        let (mut keys, mut list) = (BTreeSet::new(), Vec::new());
        // Some worlds have keys that hardly differ in what the table looks at.
        let mask = random.pick(&[u64::MAX, u64::MAX, 0x03FF_FFFF_0000_03FF, 0x0000_0000_FFFF_FFFF]);
        for step in 0..150_000_u32 {
            let joining = if (step / 30_000) % 2 == 0 { 80 } else { 15 };
            if random.below(100) < joining || list.is_empty() {
                let hash = random.next_u64() & mask;
                if keys.insert(hash) {
                    list.push(hash);
                    filter.add(hash, || keys.iter().copied());
                }
            } else {
                let hash = list.swap_remove(random.below(list.len() as u64) as usize);
                keys.remove(&hash);
                filter.remove(hash, || keys.iter().copied());
            }
            if let Some(&hash) = list.last() {
                assert!(filter.contains(hash));
                assert!(filter.contains(random.pick(&list)));
            }
            if step % 10_000 == 0 {
                assert!(list.iter().all(|&hash| filter.contains(hash)));
            }
            assert_eq!(filter.stats().len as usize, keys.len());
        }
        assert!(list.iter().all(|&hash| filter.contains(hash)) && filter.stats().rebuilds > 0);
    });
}

#[test]
fn rule_05_a_walk_meets_everybody_it_concerns_once_and_nobody_else() {
    for_seeds(0..300, |random| {
        let options = IndexOptions { channels_max: 1, users_max: 0, tags_max: 0, filter: true };
        let mut world = World::new(random, 1, 64, options);
        // One that stays, so that the topic does.
        world.subscribe(0, 0, 1_000, 0);
        for tick in 1..30 {
            for _ in 0..random.below(60) {
                world.subscribe(0, 0, random.below(150) as u32, tick);
                world.unsubscribe(0, random.below(150) as u32);
            }
            world.compact(0);
            let number = world.numbers[&0];
            let concerned: BTreeSet<u32> = world.twin.0[&0].keys().copied().collect();
            let (mut met, mut left) = (BTreeSet::new(), BTreeSet::new());
            let end = world.index.members(number).len();
            for position in 0..end {
                let member = world.index.members(number)[position];
                if member.client != TOMBSTONE && !member.first_tick.is_after(TickNo(tick)) {
                    assert!(met.insert(member.client) && concerned.contains(&member.client));
                }
                // Between two slices of the walk clients come, of whom the next tick is the first, and go.
                if random.below(3) == 0 {
                    let client = random.below(150) as u32;
                    world.unsubscribe(0, client);
                    left.insert(client);
                    world.subscribe(0, 0, random.below(150) as u32, tick + 1);
                }
            }
            assert!(concerned.iter().all(|client| met.contains(client) || left.contains(client)));
        }
    });
}
