//! Who types where, on the channel's partition shard: whoever vanishes while typing is stopped.
//!
//! Typing events, the ends of connections and the time flow in; `typing.stop` flows out. Always true: of every
//! `typing.start` that was told the end is told too, at the latest when its time is over (so it is for who posts over HTTP,
//! or was gone before its coming was told); so one more than the table holds is not told at all.

use std::collections::{BTreeMap, VecDeque};

use super::PresenceOptions;
use crate::base::alarm::AlarmTable;
use crate::base::{ChannelKey, Gauge, Name, Now};
use crate::wire::event::EventKind;
use crate::wire::sealed::{Event, Sealed};
use crate::wire::topic::Topic;

type Key = (ChannelKey, Name);

/// See [`self`].
#[derive(Debug)]
pub(super) struct Typing {
    time_ms: u32,
    writers_max: u32,
    ends: AlarmTable<Key>,
    /// Where, and the name to show.
    writers: BTreeMap<Key, (Topic, String)>,
}

impl Typing {
    pub(super) fn new(options: PresenceOptions) -> Self {
        Self {
            time_ms: options.typing_ms,
            writers_max: options.typing_max,
            ends: AlarmTable::default(),
            writers: BTreeMap::new(),
        }
    }

    /// Somebody types, or goes on typing; false if no more can.
    pub(super) fn begin(&mut self, now: Now, sealed: &Sealed) -> bool {
        // Without a user there is nobody who could vanish.
        let Some(key) = key_of(sealed) else { return true };
        if !self.writers.contains_key(&key) {
            if self.gauge().is_full() {
                return false;
            }
            let name = sealed.event().user_name.as_str().to_owned();
            self.writers.insert(key.clone(), (sealed.topic().clone(), name));
        }
        self.ends.set(key, now.mono_ms() + u64::from(self.time_ms));
        true
    }

    /// It says itself that it has stopped.
    pub(super) fn ended(&mut self, sealed: &Sealed) {
        if let Some(key) = key_of(sealed) {
            self.ends.clear(&key);
            self.writers.remove(&key);
        }
    }

    /// It is gone: the event that says so, if it was typing.
    pub(super) fn end(&mut self, now: Now, channel: ChannelKey, user: Name) -> Option<Event> {
        let key = (channel, user);
        let (topic, name) = self.writers.remove(&key)?;
        self.ends.clear(&key);
        Some(stop(now, key.1, topic, name))
    }

    pub(super) fn on_alarm(&mut self, now: Now, news: &mut VecDeque<Event>) {
        while let Some(key) = self.ends.pop_due(now.mono_ms()) {
            if let Some((topic, name)) = self.writers.remove(&key) {
                news.push_back(stop(now, key.1, topic, name));
            }
        }
    }

    pub(super) fn next_alarm_ms(&self) -> Option<u64> {
        self.ends.next()
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::new(self.writers.len() as u64, u64::from(self.writers_max))
    }
}

fn key_of(sealed: &Sealed) -> Option<Key> {
    let topic = sealed.topic();
    let user = Name::new(sealed.event().user_id.as_str()).ok()?;
    Some((ChannelKey::new(topic.app.clone(), topic.name.clone()), user))
}

fn stop(now: Now, user: Name, topic: Topic, user_name: String) -> Event {
    Event { user_id: user.as_str().to_owned(), user_name, ..Event::new(EventKind::TypingStop, topic, now.wall_ms) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::topic::{Scope, TopicHasher};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn start(user: &str) -> Sealed {
        let topic = TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &name("race"));
        let event = Event { user_id: user.into(), ..Event::new(EventKind::TypingStart, topic, 0) };
        Sealed::seal(&event).unwrap()
    }

    fn typing() -> Typing {
        Typing::new(PresenceOptions { typing_ms: 6_000, typing_max: 2, ..PresenceOptions::default() })
    }

    fn at(ms: u64) -> Now {
        Now::default().plus_ms(ms)
    }

    fn due(typing: &mut Typing, ms: u64) -> Vec<String> {
        let mut news = VecDeque::new();
        typing.on_alarm(at(ms), &mut news);
        news.into_iter().map(|event| format!("{} {}", event.type_name(), event.user_id)).collect()
    }

    #[test]
    fn whoever_says_nothing_more_is_stopped_once() {
        let mut typing = typing();
        assert!(typing.begin(at(0), &start("ann")));
        assert!(typing.begin(at(4_000), &start("ann")));
        assert_eq!(due(&mut typing, 9_999), [""; 0], "it has said so again");
        assert_eq!(due(&mut typing, 10_000), ["typing.stop ann"]);
        assert_eq!((due(&mut typing, 99_999), typing.next_alarm_ms()), (vec![], None));
    }

    #[test]
    fn who_stops_or_goes_is_not_stopped_again() {
        let (mut typing, key) = (typing(), ChannelKey::new(name("demo"), name("race")));
        typing.begin(at(0), &start("ann"));
        typing.begin(at(0), &start("bob"));
        typing.ended(&start("ann"));
        assert_eq!(typing.end(at(1), key.clone(), name("bob")).unwrap().user_id, "bob");
        assert_eq!(typing.end(at(1), key, name("bob")), None);
        assert_eq!(due(&mut typing, 99_999), [""; 0]);
    }

    #[test]
    fn a_start_that_could_not_be_ended_is_not_told() {
        let mut typing = typing();
        assert!(typing.begin(at(0), &start("ann")) && typing.begin(at(0), &start("bob")));
        assert!(typing.gauge().is_full() && !typing.begin(at(0), &start("cid")));
        assert!(typing.begin(at(1), &start("ann")), "it is in the table");
        assert_eq!(due(&mut typing, 6_000), ["typing.stop bob"]);
        assert!(typing.begin(at(6_000), &start("cid")));
    }
}
