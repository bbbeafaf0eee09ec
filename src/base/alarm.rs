//! The alarm table of one actor, and the coarse wheel that looks after its many connections.
//!
//! Keys and deadlines flow in, keys that are due flow out. Always true: one slot a key (a new deadline replaces the
//! old one), nothing is due early, and what is due at the same moment comes out in the order of its keys, so that a
//! simulation replays.

use std::collections::{BTreeMap, BTreeSet};

/// Named deadlines, one slot a key.
#[derive(Debug, Clone)]
pub struct AlarmTable<K: Ord + Clone> {
    due: BTreeSet<(u64, K)>,
    of_key: BTreeMap<K, u64>,
}

impl<K: Ord + Clone> Default for AlarmTable<K> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), of_key: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> AlarmTable<K> {
    /// Sets the alarm of `key` to `at`, in whatever unit the owner keeps; replaces what was set.
    pub fn set(&mut self, key: K, at: u64) {
        self.clear(&key);
        self.due.insert((at, key.clone()));
        self.of_key.insert(key, at);
    }

    /// Takes the alarm of `key` away, if there is one.
    pub fn clear(&mut self, key: &K) {
        if let Some(at) = self.of_key.remove(key) {
            self.due.remove(&(at, key.clone()));
        }
    }

    /// When the alarm of `key` is due, if it is set.
    #[must_use]
    pub fn at(&self, key: &K) -> Option<u64> {
        self.of_key.get(key).copied()
    }

    /// When the soonest is due.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes out one alarm that is due at `now`.
    pub fn pop_due(&mut self, now: u64) -> Option<K> {
        let (at, key) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (at, key) = (*at, key.clone());
        self.due.remove(&(at, key.clone()));
        self.of_key.remove(&key);
        Some(key)
    }

    /// How many are set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of_key.len()
    }

    /// None is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of_key.is_empty()
    }
}

/// How many seconds ahead a [`Wheel`] can look; a later deadline is looked at early and put off again by its owner.
pub const WHEEL_SECONDS: usize = 128;

/// A coarse wheel: buckets of one second, four bytes an entry, for checks that every connection needs now and then.
///
/// An entry may be stale when its turn comes (its owner left or moved its deadline): the owner looks and decides.
/// 100,000 separate timers cost 12 µs each where this was measured; a wheel costs a push and a pop.
#[derive(Debug)]
pub struct Wheel {
    buckets: Vec<Vec<u32>>,
    /// The second whose bucket is taken next.
    cursor_s: u64,
}

impl Wheel {
    /// An empty wheel that begins at `now_s`, in seconds.
    #[must_use]
    pub fn new(now_s: u64) -> Self {
        Self { buckets: vec![Vec::new(); WHEEL_SECONDS], cursor_s: now_s }
    }

    /// Asks that `entry` be looked at when second `at_s` has come: never before it, unless it lies further ahead than
    /// the wheel is wide.
    pub fn add(&mut self, entry: u32, at_s: u64) {
        let at_s = at_s.clamp(self.cursor_s, self.cursor_s + WHEEL_SECONDS as u64 - 1);
        self.buckets[(at_s % WHEEL_SECONDS as u64) as usize].push(entry);
    }

    /// Moves what is due at `now_s` into `out`.
    pub fn take_due(&mut self, now_s: u64, out: &mut impl Extend<u32>) {
        // After a long stall one turn of the wheel visits every bucket; more turns would find nothing.
        let turns = (now_s + 1).saturating_sub(self.cursor_s).min(WHEEL_SECONDS as u64);
        for _ in 0..turns {
            out.extend(self.buckets[(self.cursor_s % WHEEL_SECONDS as u64) as usize].drain(..));
            self.cursor_s += 1;
        }
        self.cursor_s = self.cursor_s.max(now_s + 1);
    }

    /// The next second whose bucket is worth taking.
    #[must_use]
    pub fn next_s(&self) -> u64 {
        self.cursor_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slot_a_key_and_nothing_early() {
        let mut alarms = AlarmTable::default();
        alarms.set("a", 10);
        alarms.set("b", 5);
        alarms.set("a", 7);
        assert_eq!(alarms.len(), 2);
        assert_eq!((alarms.next(), alarms.at(&"a"), alarms.at(&"c")), (Some(5), Some(7), None));
        assert_eq!(alarms.pop_due(4), None);
        assert_eq!(alarms.pop_due(7), Some("b"));
        assert_eq!(alarms.pop_due(7), Some("a"));
        assert_eq!(alarms.pop_due(100), None);
        alarms.set("c", 1);
        alarms.clear(&"c");
        assert!(alarms.is_empty());
    }

    #[test]
    fn the_wheel_gives_each_entry_once_and_not_early() {
        let mut wheel = Wheel::new(100);
        wheel.add(1, 100);
        wheel.add(2, 103);
        wheel.add(3, 90);
        let mut out = Vec::new();
        wheel.take_due(102, &mut out);
        assert_eq!(out, [1, 3]);
        out.clear();
        wheel.take_due(103, &mut out);
        assert_eq!(out, [2]);
        wheel.add(4, 110);
        out.clear();
        wheel.take_due(10_000, &mut out);
        assert_eq!(out, [4]);
        assert_eq!(wheel.next_s(), 10_001);
    }
}
