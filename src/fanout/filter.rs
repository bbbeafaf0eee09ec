//! A cuckoo filter over topic hashes: a hint in front of the index, of one byte and a little for each topic.
//!
//! Hashes that begin and cease to be wanted flow in; "maybe" and "surely not" flow out. Always true: it never says no
//! to a hash that was added and not removed. Its owner holds the truth and tells each hash once when it begins to be
//! wanted and once when it ceases; whenever the table could go wrong it is thrown away and built again from the
//! owner's keys.
//!
//! **Why a rebuild and never a retry:** an add that fails has put the new hash in and a random older one out. So the
//! table grows at 85 % load, before adds fail, and a failed add is answered by a table of twice the size. If a table
//! four doublings bigger than the number of keys asks for fails too, the keys themselves do not fit (nine with equal
//! fingerprint and place fit no table), and the filter says "maybe" to everything until there are half as many keys as
//! when it gave up. So a table never has more than 64 slots a key.
//!
//! **Cost:** a probe looks at two cache lines. A rebuild is done at once, at about 25 ns a key: 2.5 ms at 100,000
//! topics, once a doubling. Which place a hash is kicked to is random, so two runs can differ in their false "maybe";
//! they never differ in a "no" that matters.

use cuckoofilter::CuckooFilter;
use std::hash::Hasher;

/// The smallest table, in slots of one byte.
const SLOTS_MIN: usize = 256;
/// Above this load the table grows, in percent. Adds begin to fail at 92 %.
const GROW_PERCENT: usize = 85;
/// Below this load the table shrinks, in percent.
const SHRINK_PERCENT: usize = 12;
/// So many doublings beyond what the number of keys asks for may fail before the filter gives up.
const DOUBLINGS_MAX: u32 = 4;

/// Lets a topic's hash through as it is: it is already made with the process's secret, so nobody outside can choose
/// hashes that collide.
#[derive(Default)]
struct Prehashed(u64);

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// The crate hashes its one-byte fingerprints with this too, to find their second place, and looks at the low
    /// bits; the high half of a product is well mixed, so it is brought down.
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.wrapping_add(u64::from(byte) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
        }
    }

    /// A fingerprint has one length only; it need not be mixed in.
    fn write_usize(&mut self, _length: usize) {}
}

/// What a filter says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterStats {
    /// Hashes that are wanted.
    pub len: u64,
    /// Slots of the table; one byte each.
    pub slots: u64,
    /// How often the table was built again.
    pub rebuilds: u64,
    /// It says "maybe" to everything because its keys fit no table.
    pub saturated: bool,
    /// It says "maybe" to everything because it is switched off.
    pub off: bool,
}

/// The hint itself.
pub struct Filter {
    table: CuckooFilter<Prehashed>,
    slots: usize,
    /// Hashes told and not taken back, whether or not the table holds them.
    len: usize,
    /// How many there were when the table was last built.
    built_for: usize,
    /// They fit no table.
    saturated: bool,
    enabled: bool,
    rebuilds: u64,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

impl Filter {
    /// An empty one. If not `enabled` it keeps no table and says "maybe" to everything.
    #[must_use]
    pub fn new(enabled: bool) -> Self {
        let slots = if enabled { SLOTS_MIN } else { 0 };
        let table = CuckooFilter::with_capacity(slots);
        Self { table, slots, len: 0, built_for: 0, saturated: false, enabled, rebuilds: 0 }
    }

    /// False only if nobody wants `hash`.
    #[must_use]
    pub fn contains(&self, hash: u64) -> bool {
        !self.enabled || self.saturated || self.table.contains(&hash)
    }

    /// `hash` begins to be wanted. `keys` are all hashes that are wanted, each once, `hash` among them; they are asked
    /// for only if the table is built again.
    pub fn add<K: Iterator<Item = u64>>(&mut self, hash: u64, keys: impl Fn() -> K) {
        self.len += 1;
        if !self.enabled || self.saturated {
            return;
        }
        let too_full = self.len * 100 > self.slots * GROW_PERCENT;
        if too_full || self.table.add(&hash).is_err() {
            self.rebuild(self.slots * 2, keys);
        }
    }

    /// `hash` ceases to be wanted; it was added before. `keys` are the hashes that are still wanted, each once.
    pub fn remove<K: Iterator<Item = u64>>(&mut self, hash: u64, keys: impl Fn() -> K) {
        debug_assert!(self.len > 0, "a hash is taken back that was never told");
        self.len = self.len.saturating_sub(1);
        if !self.enabled {
            return;
        }
        // Keys that needed a bigger table than their number does must not shrink it and grow it again at every step.
        let halved = self.len <= self.built_for / 2;
        let too_empty = self.slots > SLOTS_MIN && self.len * 100 < self.slots * SHRINK_PERCENT;
        if self.saturated {
            if halved {
                self.rebuild(Self::slots_for(self.len), keys);
            }
        } else if !self.table.delete(&hash) {
            // It was taken back twice, and then another one's byte may be gone.
            debug_assert!(false, "a hash is taken back that the table does not hold");
            self.rebuild(self.slots, keys);
        } else if halved && too_empty {
            self.rebuild(Self::slots_for(self.len), keys);
        }
    }

    /// Counts for metrics.
    #[must_use]
    pub const fn stats(&self) -> FilterStats {
        FilterStats {
            len: self.len as u64,
            slots: self.slots as u64,
            rebuilds: self.rebuilds,
            saturated: self.saturated,
            off: !self.enabled,
        }
    }

    /// The table that `len` hashes load by half at most, so that it neither grows nor shrinks again soon.
    fn slots_for(len: usize) -> usize {
        (len * 2).next_power_of_two().max(SLOTS_MIN)
    }

    /// Builds the table again, with `slots` or more, but never beyond what [`DOUBLINGS_MAX`] allows.
    fn rebuild<K: Iterator<Item = u64>>(&mut self, slots: usize, keys: impl Fn() -> K) {
        self.rebuilds += 1;
        self.built_for = self.len;
        self.saturated = false;
        let slots_max = Self::slots_for(self.len) << DOUBLINGS_MAX;
        self.slots = slots;
        while self.slots <= slots_max {
            self.table = CuckooFilter::with_capacity(self.slots);
            if keys().all(|hash| self.table.add(&hash).is_ok()) {
                return;
            }
            self.slots *= 2;
        }
        self.table = CuckooFilter::with_capacity(SLOTS_MIN);
        self.slots = SLOTS_MIN;
        self.saturated = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Hashes as a good hash function makes them.
    fn hash(i: u64) -> u64 {
        let mixed = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9).rotate_left(31)
    }

    struct Told {
        filter: Filter,
        keys: BTreeSet<u64>,
    }

    impl Told {
        fn new(enabled: bool) -> Self {
            Self { filter: Filter::new(enabled), keys: BTreeSet::new() }
        }

        fn add(&mut self, hash: u64) {
            assert!(self.keys.insert(hash));
            self.filter.add(hash, || self.keys.iter().copied());
        }

        fn remove(&mut self, hash: u64) {
            assert!(self.keys.remove(&hash));
            self.filter.remove(hash, || self.keys.iter().copied());
        }

        fn holds_all(&self) -> bool {
            self.keys.iter().all(|&hash| self.filter.contains(hash))
        }
    }

    #[test]
    fn it_grows_and_shrinks_and_never_says_a_wrong_no() {
        let mut told = Told::new(true);
        for i in 0..10_000 {
            told.add(hash(i));
            assert!(told.filter.contains(hash(i)));
        }
        assert!(told.holds_all());
        assert_eq!(told.filter.stats().slots, 16_384);
        let maybes = (10_000..20_000).filter(|&i| told.filter.contains(hash(i))).count();
        assert!((1..400).contains(&maybes), "about two in a hundred, got {maybes} of 10,000");
        for i in 0..9_990 {
            told.remove(hash(i));
        }
        assert!(told.holds_all());
        let stats = told.filter.stats();
        assert_eq!((stats.len, stats.slots, stats.saturated), (10, SLOTS_MIN as u64, false));
    }

    #[test]
    fn keys_that_fit_no_table_saturate_it_until_half_are_gone() {
        let mut told = Told::new(true);
        // They differ only in bits that neither fingerprint nor place is made of.
        for i in 0..12 {
            told.add(i << 32);
        }
        assert!(told.filter.stats().saturated && told.holds_all() && told.filter.contains(hash(1)));
        // The ninth did not fit any more; at four, half of nine, it tries again.
        for i in 0..7 {
            told.remove(i << 32);
            assert!(told.filter.stats().saturated);
        }
        told.remove(7 << 32);
        assert!(!told.filter.stats().saturated && told.holds_all() && !told.filter.contains(hash(1)));
    }

    #[test]
    fn switched_off_it_says_maybe() {
        let mut told = Told::new(false);
        told.add(hash(1));
        told.remove(hash(1));
        assert!(told.filter.contains(hash(1)) && told.filter.contains(hash(2)));
        assert!(told.filter.stats().off);
    }
}
