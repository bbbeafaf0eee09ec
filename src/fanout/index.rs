//! Who on this shard wants which topic.
//!
//! Subscriptions flow in; members to walk over flow out, or, for nearly all topics of a big node, a quick no. Always
//! true: a topic is here exactly as long as it has members; the filters say "maybe" to every topic that is here, from
//! the moment a subscription returns to the moment its last member has left; and two topics with equal hashes are two.
//!
//! **Positions and walks.** A member keeps its position until it leaves or [`Index::compact`] says otherwise. Who
//! leaves becomes a tombstone that a walk passes by, and its place may go to a later member at once, even while a walk
//! is under way: that member carries the first tick that concerns it, and the tick being walked is an earlier one.
//! Only two things end a walk early: when `unsubscribe` says that the topic is gone, its number may mean another topic
//! soon; and compacting is for the time between walks.
//!
//! **Growth.** The memory for all topics that the bounds allow is asked for at the start and touched only as it fills,
//! because one subscription that has to move 100,000 topics waits some 20 ms. What remains is the filter that is built
//! again at each doubling: some 25 ns a topic for the one subscription at which that happens.

use super::filter::{Filter, FilterStats};
use super::members::Members;
pub use super::members::{Member, TOMBSTONE};
use super::tick_no::TickNo;
use crate::base::Gauge;
use crate::wire::topic::{Scope, Topic};
use hashbrown::HashTable;

/// Bounds beyond this many topics are taken to mean "no bound"; memory for more is asked for when it is needed.
const RESERVED_MAX: usize = 1 << 20;

/// The bounds of one shard's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexOptions {
    /// Channels that may be watched here. Default 65,536.
    pub channels_max: u32,
    /// Users that may be connected here. Default 262,144.
    pub users_max: u32,
    /// Tags that connections here may carry. Default 65,536.
    pub tags_max: u32,
    /// Probe the cuckoo filters before the table. Default true; off, the filters say "maybe" to everything.
    pub filter: bool,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self { channels_max: 65_536, users_max: 1_000_000, tags_max: 65_536, filter: true }
    }
}

impl IndexOptions {
    const fn limit(&self, scope: Scope) -> u32 {
        match scope {
            Scope::Channel => self.channels_max,
            Scope::User => self.users_max,
            Scope::Tag => self.tags_max,
        }
    }
}

/// The number of a topic that has members here: dense, and used again for another topic after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicNo(pub u32);

/// Where a new member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    /// The topic's number.
    pub topic: TopicNo,
    /// The member's place in [`Index::members`].
    pub position: u32,
    /// Nobody here wanted the topic before.
    pub new_topic: bool,
}

/// What is left after a member went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribed {
    /// It was the last one: the topic's number is void.
    pub topic_gone: bool,
    /// Members left in its room.
    pub room_left: u32,
}

/// No further topic of this scope fits; topics that are already here take members without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// What there are too many of.
    pub scope: Scope,
    /// How many.
    pub topics: Gauge,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "this shard holds {} of {} topics of scope {:?}", self.topics.used, self.topics.limit, self.scope)
    }
}

impl std::error::Error for Full {}

/// Counts since the start, and how the filters stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Topics that were asked for at a filter.
    pub probes: u64,
    /// Probes to which a filter said no.
    pub noes: u64,
    /// Look-ups of the table by [`Index::wanted`], after a filter said "maybe".
    pub lookups: u64,
    /// Look-ups that found nothing: the filter's false "maybe".
    pub misses: u64,
    /// The filter of channels and tags.
    pub channels_and_tags: FilterStats,
    /// The filter of users.
    pub users: FilterStats,
}

#[derive(Debug)]
struct Wanted {
    topic: Topic,
    members: Members,
    /// The filter was told of the hash for this topic. Of several topics with equal hashes in one filter, one tells.
    tells: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u64,
    topic: TopicNo,
}

/// The subscription index of one shard.
#[derive(Debug)]
pub struct Index {
    options: IndexOptions,
    table: HashTable<Place>,
    topics: Vec<Option<Wanted>>,
    free: Vec<TopicNo>,
    /// Topics by scope.
    used: [u32; 3],
    filters: [Filter; 2],
    stats: IndexStats,
}

/// The place of a scope's filter.
const fn filter_of(scope: Scope) -> usize {
    match scope {
        Scope::Channel | Scope::Tag => 0,
        Scope::User => 1,
    }
}

/// The hashes that a filter must know, each once.
fn told(topics: &[Option<Wanted>], filter: usize) -> impl Iterator<Item = u64> {
    let wanted = topics.iter().flatten();
    wanted.filter(move |wanted| wanted.tells && filter_of(wanted.topic.scope) == filter).map(|wanted| wanted.topic.hash)
}

impl Index {
    /// An empty one.
    #[must_use]
    pub fn new(options: IndexOptions) -> Self {
        let limits = [Scope::Channel, Scope::User, Scope::Tag].map(|scope| options.limit(scope) as usize);
        let reserved = limits.iter().sum::<usize>().min(RESERVED_MAX);
        Self {
            options,
            table: HashTable::with_capacity(reserved),
            topics: Vec::with_capacity(reserved),
            free: Vec::new(),
            used: [0; 3],
            filters: [Filter::new(options.filter), Filter::new(options.filter)],
            stats: IndexStats::default(),
        }
    }

    /// The filter's word alone: false only if nobody here wants a topic of this scope and hash.
    pub fn may_have(&mut self, scope: Scope, hash: u64) -> bool {
        self.stats.probes += 1;
        let maybe = self.filters[filter_of(scope)].contains(hash);
        self.stats.noes += u64::from(!maybe);
        maybe
    }

    /// The topic of an event that arrives, if anybody here wants it: the filter first, then the table. Counts both. `names`
    /// are app and name; they are asked for only behind the filter, for they lie where another core wrote them.
    pub fn wanted<'a>(
        &mut self,
        scope: Scope,
        hash: u64,
        names: impl FnOnce() -> (&'a str, &'a str),
    ) -> Option<TopicNo> {
        if !self.may_have(scope, hash) {
            return None;
        }
        let (app, name) = names();
        self.stats.lookups += 1;
        let found = self.find(scope, hash, app, name);
        self.stats.misses += u64::from(found.is_none());
        found
    }

    /// The number of a topic. Goes past the filter and counts nothing.
    #[must_use]
    pub fn find(&self, scope: Scope, hash: u64, app: &str, name: &str) -> Option<TopicNo> {
        let is_it = |place: &Place| {
            place.hash == hash
                && self.topic(place.topic).is_some_and(|topic| {
                    topic.scope == scope && topic.name.as_str() == name && topic.app.as_str() == app
                })
        };
        self.table.find(hash, is_it).map(|place| place.topic)
    }

    /// Lets `client`, which is no member of the topic yet, join it from tick `first_tick` on.
    ///
    /// When this returns, filter and index know the topic both.
    ///
    /// # Errors
    /// The topic is new here and no further topic of its scope fits.
    pub fn subscribe(&mut self, topic: &Topic, room: u32, client: u32, first_tick: TickNo) -> Result<Subscribed, Full> {
        let found = self.find(topic.scope, topic.hash, topic.app.as_str(), topic.name.as_str());
        let number = match found {
            Some(number) => number,
            None => self.insert(topic)?,
        };
        let position = match &mut self.topics[number.0 as usize] {
            Some(wanted) => wanted.members.join(Member { client, first_tick, room }),
            None => unreachable!("a topic in the table has members"),
        };
        Ok(Subscribed { topic: number, position, new_topic: found.is_none() })
    }

    /// Lets the member at `position` leave; nobody else's position changes. If nobody stands there, nothing happens
    /// and zero members are said to be left.
    pub fn unsubscribe(&mut self, topic: TopicNo, position: u32) -> Unsubscribed {
        let Some(Some(wanted)) = self.topics.get_mut(topic.0 as usize) else {
            debug_assert!(false, "a member leaves a topic that is not here");
            return Unsubscribed { topic_gone: false, room_left: 0 };
        };
        let room_left = wanted.members.leave(position);
        debug_assert!(room_left.is_some(), "nobody stands where a member leaves");
        let topic_gone = wanted.members.living() == 0;
        if topic_gone {
            self.remove(topic);
        }
        Unsubscribed { topic_gone, room_left: room_left.unwrap_or(0) }
    }

    /// No walk is under way and `tick` is the next: what members keep of older ticks is replaced by it.
    pub fn renew(&mut self, topic: TopicNo, tick: TickNo) {
        if let Some(Some(wanted)) = self.topics.get_mut(topic.0 as usize) {
            wanted.members.renew(tick);
        }
    }

    /// The places of a topic, tombstones included, for a walk; empty if the number is void.
    #[must_use]
    pub fn members(&self, topic: TopicNo) -> &[Member] {
        self.get(topic).map_or(&[], |wanted| wanted.members.places())
    }

    /// How many members a topic has.
    #[must_use]
    pub fn live(&self, topic: TopicNo) -> u32 {
        self.get(topic).map_or(0, |wanted| wanted.members.living())
    }

    /// The rooms of a topic that have members here, with their counts, in the order of their numbers.
    pub fn rooms(&self, topic: TopicNo) -> impl Iterator<Item = (u32, u32)> {
        self.get(topic).map_or(&[][..], |wanted| wanted.members.rooms()).iter().copied()
    }

    /// How many members of a topic sit in `room`.
    #[must_use]
    pub fn room_count(&self, topic: TopicNo, room: u32) -> u32 {
        self.get(topic).map_or(0, |wanted| wanted.members.room_count(room))
    }

    /// The topic behind a number; `None` if the number is void.
    #[must_use]
    pub fn topic(&self, topic: TopicNo) -> Option<&Topic> {
        self.get(topic).map(|wanted| &wanted.topic)
    }

    /// Every topic of `scope`, in the order of the numbers.
    pub fn topics(&self, scope: Scope) -> impl Iterator<Item = (TopicNo, &Topic)> {
        let numbered = self.topics.iter().enumerate();
        numbered.filter_map(move |(number, wanted)| match wanted {
            Some(wanted) if wanted.topic.scope == scope => Some((TopicNo(number as u32), &wanted.topic)),
            _ => None,
        })
    }

    /// At least half of a topic's places are empty, and there are enough of them to care.
    #[must_use]
    pub fn should_compact(&self, topic: TopicNo) -> bool {
        self.get(topic).is_some_and(|wanted| wanted.members.should_compact())
    }

    /// Closes the holes among a topic's members, between two walks of it, and tells `moved` the client and the new
    /// position of each member that stands elsewhere now.
    pub fn compact(&mut self, topic: TopicNo, moved: impl FnMut(u32, u32)) {
        if let Some(Some(wanted)) = self.topics.get_mut(topic.0 as usize) {
            wanted.members.compact(moved);
        }
    }

    /// How many topics of `scope` are here, and how many may be.
    #[must_use]
    pub const fn gauge(&self, scope: Scope) -> Gauge {
        Gauge::new(self.used[scope as usize] as u64, self.options.limit(scope) as u64)
    }

    /// Counts for metrics.
    #[must_use]
    pub const fn stats(&self) -> IndexStats {
        IndexStats { channels_and_tags: self.filters[0].stats(), users: self.filters[1].stats(), ..self.stats }
    }

    fn get(&self, topic: TopicNo) -> Option<&Wanted> {
        self.topics.get(topic.0 as usize)?.as_ref()
    }

    /// Gives a topic without members a number; the caller lets the first one join before anybody else looks.
    fn insert(&mut self, topic: &Topic) -> Result<TopicNo, Full> {
        let topics = self.gauge(topic.scope);
        if topics.is_full() {
            return Err(Full { scope: topic.scope, topics });
        }
        let filter = filter_of(topic.scope);
        let tells = self.with_equal_hash(topic).is_none();
        let wanted = Some(Wanted { topic: topic.clone(), members: Members::new(), tells });
        let number = if let Some(number) = self.free.pop() {
            self.topics[number.0 as usize] = wanted;
            number
        } else {
            self.topics.push(wanted);
            TopicNo((self.topics.len() - 1) as u32)
        };
        self.used[topic.scope as usize] += 1;
        // Before the table, so that a filter which is built again here already has it among its keys.
        if tells {
            self.filters[filter].add(topic.hash, || told(&self.topics, filter));
        }
        self.table.insert_unique(topic.hash, Place { hash: topic.hash, topic: number }, |place| place.hash);
        Ok(number)
    }

    /// Removes a topic that has lost its last member.
    fn remove(&mut self, number: TopicNo) {
        let Some(gone) = self.topics[number.0 as usize].take() else { return };
        let (hash, scope) = (gone.topic.hash, gone.topic.scope);
        if let Ok(place) = self.table.find_entry(hash, |place| place.topic == number) {
            place.remove();
        }
        self.free.push(number);
        self.used[scope as usize] -= 1;
        if !gone.tells {
            return;
        }
        let heir = self.with_equal_hash(&gone.topic).and_then(|heir| self.topics[heir.0 as usize].as_mut());
        if let Some(heir) = heir {
            // The filter holds a hash once however many topics have it; one of the others answers for it now.
            heir.tells = true;
            return;
        }
        let filter = filter_of(scope);
        self.filters[filter].remove(hash, || told(&self.topics, filter));
    }

    /// Another topic of the same filter that has the same hash. In practice there is none: it takes some four billion
    /// topics until two hashes of 64 bits agree.
    fn with_equal_hash(&self, topic: &Topic) -> Option<TopicNo> {
        let has = |place: &Place| {
            place.hash == topic.hash
                && self.topic(place.topic).is_some_and(|other| filter_of(other.scope) == filter_of(topic.scope))
        };
        self.table.find(topic.hash, has).map(|place| place.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;

    fn topic(scope: Scope, name: &str, hash: u64) -> Topic {
        Topic { scope, app: Name::new("demo").unwrap(), name: Name::new(name).unwrap(), hash }
    }

    #[test]
    fn a_topic_lives_as_long_as_it_has_members() {
        let mut index = Index::new(IndexOptions::default());
        let race = topic(Scope::Channel, "race", 11);
        let first = index.subscribe(&race, 4, 100, TickNo(1)).unwrap();
        let second = index.subscribe(&race, 5, 101, TickNo(2)).unwrap();
        assert_eq!((first.new_topic, second.new_topic, second.position), (true, false, 1));
        assert_eq!(index.wanted(Scope::Channel, 11, || ("demo", "race")), Some(first.topic));
        assert_eq!(index.wanted(Scope::User, 11, || ("demo", "race")), None);
        assert_eq!(index.rooms(first.topic).collect::<Vec<_>>(), [(4, 1), (5, 1)]);
        let left = index.unsubscribe(first.topic, first.position);
        assert_eq!(left, Unsubscribed { topic_gone: false, room_left: 0 });
        assert_eq!(index.members(first.topic)[0].client, TOMBSTONE);
        assert_eq!(index.members(first.topic)[1], Member { client: 101, first_tick: TickNo(2), room: 5 });
        assert!(index.unsubscribe(first.topic, second.position).topic_gone);
        assert_eq!(index.wanted(Scope::Channel, 11, || ("demo", "race")), None);
        assert!(index.members(first.topic).is_empty() && index.topic(first.topic).is_none());
        let stats = index.stats();
        assert_eq!((stats.probes, stats.noes, stats.lookups, stats.misses), (3, 2, 1, 0));
        let other = topic(Scope::Channel, "other", 12);
        assert_eq!(index.subscribe(&other, 0, 100, TickNo(3)).unwrap().topic, first.topic, "numbers are used again");
    }

    #[test]
    fn equal_hashes_are_told_once_and_stay_known_until_the_last() {
        let mut index = Index::new(IndexOptions::default());
        let places: Vec<_> = (0..20)
            .map(|i| index.subscribe(&topic(Scope::Channel, &format!("c{i}"), 77), 0, i, TickNo(0)).unwrap())
            .collect();
        index.subscribe(&topic(Scope::User, "c0", 77), 0, 1, TickNo(0)).unwrap();
        assert_eq!(index.stats().channels_and_tags.len, 1);
        for (i, place) in places.iter().enumerate() {
            let name = format!("c{i}");
            assert_eq!(index.wanted(Scope::Channel, 77, || ("demo", &name)), Some(place.topic));
            assert!(index.unsubscribe(place.topic, place.position).topic_gone);
        }
        assert!(!index.may_have(Scope::Channel, 77) && index.may_have(Scope::User, 77));
    }

    #[test]
    fn each_scope_has_its_bound() {
        let mut index = Index::new(IndexOptions { channels_max: 1, ..IndexOptions::default() });
        let race = topic(Scope::Channel, "race", 1);
        let place = index.subscribe(&race, 0, 1, TickNo(0)).unwrap();
        index.subscribe(&race, 0, 2, TickNo(0)).unwrap();
        let full = index.subscribe(&topic(Scope::Channel, "more", 2), 0, 1, TickNo(0)).unwrap_err();
        assert_eq!(full.to_string(), "this shard holds 1 of 1 topics of scope Channel");
        index.subscribe(&topic(Scope::Tag, "more", 3), 0, 1, TickNo(0)).unwrap();
        index.unsubscribe(place.topic, place.position);
        assert!(
            index.subscribe(&topic(Scope::Channel, "more", 2), 0, 1, TickNo(0)).is_err(),
            "the other member is still here"
        );
        assert_eq!(index.topics(Scope::Channel).map(|(_, topic)| topic.name.as_str()).collect::<Vec<_>>(), ["race"]);
    }
}
