//! What one shard holds of each channel, and what of that its partition shards do not know yet.
//!
//! Joins and leaves flow in, letters flow out as far as mailboxes have room. Always true: a letter is made when it can
//! be sent, so it says what is true then; what was changed and changed back before that is not told at all; and what
//! waits is never more than what is held here or was told, so a mailbox that stays full costs no more memory than that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::base::{ChannelKey, Name, ShardId};
use crate::post::presence::{Holding, Stated, UserHolding};
use crate::wire::topic::Topic;

/// A connection's user, as it counts in a channel.
#[derive(Clone, Copy, Debug)]
pub struct Watcher<'a> {
    /// Who.
    pub user: &'a Name,
    /// The name to show; may be empty.
    pub name: &'a str,
    /// What it said of itself before it came.
    pub stated: Option<&'a Stated>,
}

/// What there is to tell of a channel. A letter for a user tells the channel's connections too, so users go first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    User(Name),
    Connections,
}

type Untold = (ChannelKey, What);

/// All holdings of one shard.
#[derive(Debug)]
pub struct Holdings {
    shard: ShardId,
    channels: BTreeMap<ChannelKey, Channel>,
    untold: BTreeSet<Untold>,
    /// What was tried last: the next flush goes on behind it, so that a channel that is always busy starves no other.
    last: Option<Untold>,
}

#[derive(Debug)]
struct Channel {
    topic: Topic,
    connections: u32,
    told: u32,
    users: BTreeMap<Name, User>,
}

#[derive(Debug, Default)]
struct User {
    name: String,
    connections: u32,
    told: u32,
    stated: Option<Box<Stated>>,
    /// Its name or what it says of itself is new.
    news: bool,
}

impl User {
    fn is_untold(&self) -> bool {
        self.connections != self.told || (self.news && self.connections > 0)
    }
}

impl Holdings {
    /// Nothing.
    #[must_use]
    pub fn new(shard: ShardId) -> Self {
        Self { shard, channels: BTreeMap::new(), untold: BTreeSet::new(), last: None }
    }

    /// A connection watches a channel from now on.
    pub fn join(&mut self, topic: &Topic, watcher: Option<Watcher<'_>>) {
        let key = ChannelKey::new(topic.app.clone(), topic.name.clone());
        let channel = self.channels.entry(key.clone()).or_insert_with(|| Channel {
            topic: topic.clone(),
            connections: 0,
            told: 0,
            users: BTreeMap::new(),
        });
        channel.connections += 1;
        if let Some(watcher) = watcher {
            let user = channel.users.entry(watcher.user.clone()).or_default();
            user.connections += 1;
            if user.name != watcher.name {
                watcher.name.clone_into(&mut user.name);
                user.news = true;
            }
            user.state(watcher.stated);
        }
        self.note(key, watcher.map(|watcher| watcher.user));
    }

    /// A connection watches a channel no more. `user` is who it counted for.
    pub fn leave(&mut self, topic: &Topic, user: Option<&Name>) {
        let key = ChannelKey::new(topic.app.clone(), topic.name.clone());
        let Some(channel) = self.channels.get_mut(&key) else {
            debug_assert!(false, "who leaves {key} had joined it");
            return;
        };
        debug_assert!(channel.connections > 0, "who leaves {key} had joined it");
        channel.connections = channel.connections.saturating_sub(1);
        if let Some(user) = user.and_then(|user| channel.users.get_mut(user)) {
            debug_assert!(user.connections > 0, "who leaves {key} had joined it");
            user.connections = user.connections.saturating_sub(1);
        }
        self.note(key, user);
    }

    /// A user says something of itself.
    pub fn state(&mut self, topic: &Topic, user: &Name, stated: &Stated) {
        let key = ChannelKey::new(topic.app.clone(), topic.name.clone());
        if let Some(user) = self.channels.get_mut(&key).and_then(|channel| channel.users.get_mut(user)) {
            user.state(Some(stated));
        }
        self.note(key, Some(user));
    }

    /// Something is to be told.
    #[must_use]
    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// How many letters would tell all.
    #[must_use]
    pub fn untold(&self) -> usize {
        self.untold.len()
    }

    /// Nothing is held, and nothing is to be told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.untold.is_empty()
    }

    /// Tells what is untold, in at most `letters_max` letters. `offer` is false where a mailbox is full: what would have
    /// gone there stays untold.
    pub fn flush(&mut self, letters_max: usize, mut offer: impl FnMut(Holding) -> bool) {
        // What is refused now would be refused again: each has one try.
        for _ in 0..self.untold.len().min(letters_max) {
            let Some(untold) = self.behind_last() else { return };
            match self.holding(&untold) {
                Some(holding) => {
                    if offer(holding) {
                        self.told(&untold);
                    }
                }
                // Nothing is held there, and nothing was told of it.
                None => _ = self.untold.remove(&untold),
            }
            self.last = Some(untold);
        }
    }

    fn behind_last(&self) -> Option<Untold> {
        let behind = self
            .last
            .as_ref()
            .and_then(|last| self.untold.range::<Untold, _>((Bound::Excluded(last), Bound::Unbounded)).next());
        behind.or_else(|| self.untold.first()).cloned()
    }

    fn holding(&self, (key, what): &Untold) -> Option<Holding> {
        let channel = self.channels.get(key)?;
        let user = match what {
            What::Connections => None,
            What::User(name) => channel.users.get(name).map(|user| UserHolding {
                user: name.clone(),
                name: user.name.clone(),
                connections: user.connections,
                stated: user.stated.as_deref().cloned(),
            }),
        };
        Some(Holding { shard: self.shard, topic: channel.topic.clone(), connections: channel.connections, user })
    }

    /// A letter is in the mailbox, so it will be read.
    fn told(&mut self, (key, what): &Untold) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        channel.told = channel.connections;
        let name = match what {
            What::Connections => None,
            What::User(name) => Some(name),
        };
        if let Some(user) = name.and_then(|name| channel.users.get_mut(name)) {
            (user.told, user.news) = (user.connections, false);
        }
        self.note(key.clone(), name);
    }

    /// Brings the list of what is untold up to date after a change, and forgets what is neither held nor known.
    fn note(&mut self, key: ChannelKey, name: Option<&Name>) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        let mut user_untold = false;
        if let Some((name, user)) = name.and_then(|name| Some((name, channel.users.get(name)?))) {
            user_untold = user.is_untold();
            if user.connections == 0 && user.told == 0 {
                channel.users.remove(name);
            }
            let untold = (key.clone(), What::User(name.clone()));
            if user_untold {
                self.untold.insert(untold);
            } else {
                self.untold.remove(&untold);
            }
        }
        let untold = (key, What::Connections);
        if channel.connections == channel.told {
            self.untold.remove(&untold);
            if channel.connections == 0 && channel.users.is_empty() {
                self.channels.remove(&untold.0);
            }
        } else if !user_untold {
            self.untold.insert(untold);
        }
    }
}

impl User {
    fn state(&mut self, stated: Option<&Stated>) {
        let Some(stated) = stated else { return };
        if self.stated.as_ref().is_none_or(|known| known.at_us < stated.at_us) {
            self.stated = Some(Box::new(stated.clone()));
            self.news = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::topic::{Scope, TopicHasher};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn topic(channel: &str) -> Topic {
        TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &name(channel))
    }

    /// Channel, connections, and of which user how many.
    type Told = (String, u32, Option<(String, u32)>);

    fn flush(holdings: &mut Holdings) -> Vec<Told> {
        let mut told = Vec::new();
        holdings.flush(usize::MAX, |holding| {
            let user = holding.user.map(|user| (user.user.to_string(), user.connections));
            told.push((holding.topic.name.to_string(), holding.connections, user));
            true
        });
        told
    }

    #[test]
    fn the_newest_is_told_once_and_what_was_undone_is_not_told() {
        let (ann, race) = (name("ann"), topic("race"));
        let watcher = Some(Watcher { user: &ann, name: "Ann", stated: None });
        let mut holdings = Holdings::new(ShardId(0));
        holdings.join(&race, watcher);
        holdings.leave(&race, Some(&ann));
        assert!(holdings.is_empty(), "nobody knew of it");
        holdings.join(&race, watcher);
        holdings.join(&race, watcher);
        holdings.join(&race, None);
        assert_eq!(flush(&mut holdings), [("race".into(), 3, Some(("ann".into(), 2)))]);
        assert!(!holdings.has_untold());
        holdings.leave(&race, None);
        assert_eq!(flush(&mut holdings), [("race".into(), 2, None)]);
        holdings.leave(&race, Some(&ann));
        holdings.leave(&race, Some(&ann));
        assert!(!holdings.is_empty(), "somebody has to be told");
        assert_eq!(flush(&mut holdings), [("race".into(), 0, Some(("ann".into(), 0)))]);
        assert!(holdings.is_empty());
    }

    #[test]
    fn a_full_mailbox_keeps_what_it_was_to_be_told_and_others_are_told() {
        let mut holdings = Holdings::new(ShardId(0));
        for channel in ["a", "b", "c"] {
            holdings.join(&topic(channel), None);
        }
        let mut told = Vec::new();
        holdings.flush(usize::MAX, |holding| {
            told.push(holding.topic.name.to_string());
            holding.topic.name.as_str() != "a"
        });
        assert_eq!((told, holdings.untold()), (vec!["a".into(), "b".into(), "c".into()], 1));
        holdings.leave(&topic("a"), None);
        assert!(!holdings.has_untold(), "it is as it was told");
        holdings.leave(&topic("b"), None);
        assert_eq!(flush(&mut holdings), [("b".into(), 0, None)]);
        assert_eq!(holdings.channels.len(), 1);
    }

    #[test]
    fn letters_are_bounded_and_everybody_has_a_turn() {
        let mut holdings = Holdings::new(ShardId(0));
        for channel in ["a", "b", "c"] {
            holdings.join(&topic(channel), None);
        }
        let mut told = Vec::new();
        for _ in 0..3 {
            holdings.flush(1, |holding| {
                told.push(holding.topic.name.to_string());
                true
            });
            holdings.join(&topic("a"), None);
        }
        assert_eq!(told, ["a", "b", "c"]);
        assert_eq!(flush(&mut holdings), [("a".into(), 4, None)]);
    }

    #[test]
    fn the_newest_status_is_told_with_its_user() {
        let (ann, race) = (name("ann"), topic("race"));
        let stated = |at_us| Stated { status: crate::wire::presence::Status::default(), at_us };
        let mut holdings = Holdings::new(ShardId(0));
        holdings.state(&race, &ann, &stated(1));
        assert!(holdings.is_empty(), "nobody of that name watches");
        holdings.join(&race, Some(Watcher { user: &ann, name: "", stated: Some(&stated(5)) }));
        assert_eq!(flush(&mut holdings).len(), 1);
        holdings.state(&race, &ann, &stated(4));
        assert!(!holdings.has_untold(), "an older one changes nothing");
        holdings.state(&race, &ann, &stated(6));
        holdings.flush(9, |holding| {
            assert_eq!(holding.user.unwrap().stated.unwrap().at_us, 6);
            true
        });
    }
}
