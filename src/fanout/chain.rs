//! Numbered slots that hang on several chains at once.
//!
//! Values flow in and get a number; the numbers of their neighbours flow out. Always true: a slot stands at most once
//! on a chain of each kind, every step costs the same however long the chains are, and a freed slot is used again
//! before the memory grows, so it is bounded by the most that ever waited together.

/// No slot. It lies outside every slab, so looking it up finds nothing.
pub(super) const NONE: u32 = u32::MAX;

/// With its second slot a slab gets room for so many.
const SLOTS_MIN: usize = 16;

/// The kinds of chain a slot can hang on.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// The order in which a lane leaves.
    Lane = 0,
    /// The events of one priority, the oldest first.
    Age = 1,
    /// The stored events and the gaps of one channel, in the order of the lane.
    Channel = 2,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// The two ends of one chain; its owner keeps them, the slab keeps the links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The first slot, or [`NONE`].
    pub(super) first: u32,
    /// The last slot, or [`NONE`].
    pub(super) last: u32,
}

impl Ends {
    /// A chain on which nothing hangs.
    pub(super) const EMPTY: Self = Self { first: NONE, last: NONE };

    /// Nothing hangs on it.
    pub(super) const fn is_empty(self) -> bool {
        self.first == NONE
    }
}

#[derive(Debug)]
struct Slot<V> {
    /// `None` while the slot is free; then its lane link leads to the next free one.
    value: Option<V>,
    links: [Link; 3],
}

/// The slots of all chains of one owner.
#[derive(Debug)]
pub(super) struct Slab<V> {
    slots: Vec<Slot<V>>,
    free: u32,
}

impl<V> Slab<V> {
    /// No slots and no memory.
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: NONE }
    }

    /// Gives `value` a slot; it hangs on no chain yet.
    pub(super) fn insert(&mut self, value: V) -> u32 {
        let links = [Link { before: NONE, after: NONE }; 3];
        if let Some(slot) = self.slots.get_mut(self.free as usize) {
            let at = self.free;
            self.free = slot.links[By::Lane as usize].after;
            *slot = Slot { value: Some(value), links };
            return at;
        }
        match self.slots.len() {
            // One event waits for everybody at once when a node goes away.
            0 => self.slots.reserve_exact(1),
            // Who falls behind by two mostly falls behind by more: the small steps of growth are left out.
            1 => self.slots.reserve(SLOTS_MIN - 1),
            _ => {}
        }
        self.slots.push(Slot { value: Some(value), links });
        (self.slots.len() - 1) as u32
    }

    /// Frees the slot, which the caller has taken off every chain before, and gives its value back.
    pub(super) fn remove(&mut self, at: u32) -> Option<V> {
        let slot = self.slots.get_mut(at as usize)?;
        let value = slot.value.take()?;
        slot.links[By::Lane as usize].after = self.free;
        self.free = at;
        Some(value)
    }

    /// The value in slot `at`.
    pub(super) fn get(&self, at: u32) -> Option<&V> {
        self.slots.get(at as usize)?.value.as_ref()
    }

    /// The value in slot `at`, to be written.
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut V> {
        self.slots.get_mut(at as usize)?.value.as_mut()
    }

    /// The neighbour before `at` on its chain of kind `by`.
    pub(super) fn before(&self, by: By, at: u32) -> u32 {
        self.slots.get(at as usize).map_or(NONE, |slot| slot.links[by as usize].before)
    }

    /// The neighbour after `at` on its chain of kind `by`.
    pub(super) fn after(&self, by: By, at: u32) -> u32 {
        self.slots.get(at as usize).map_or(NONE, |slot| slot.links[by as usize].after)
    }

    /// Hangs `at` to the end of `chain`.
    pub(super) fn push_last(&mut self, chain: &mut Ends, by: By, at: u32) {
        self.slots[at as usize].links[by as usize] = Link { before: chain.last, after: NONE };
        match self.slots.get_mut(chain.last as usize) {
            Some(last) => last.links[by as usize].after = at,
            None => chain.first = at,
        }
        chain.last = at;
    }

    /// Takes `at` off `chain`, on which it hangs.
    pub(super) fn unlink(&mut self, chain: &mut Ends, by: By, at: u32) {
        let Link { before, after } = self.slots[at as usize].links[by as usize];
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.links[by as usize].after = after,
            None => chain.first = after,
        }
        match self.slots.get_mut(after as usize) {
            Some(slot) => slot.links[by as usize].before = before,
            None => chain.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(slab: &Slab<char>, chain: Ends, by: By) -> String {
        std::iter::successors(Some(chain.first), |&at| Some(slab.after(by, at)))
            .take_while(|&at| at != NONE)
            .filter_map(|at| slab.get(at))
            .collect()
    }

    #[test]
    fn a_slot_leaves_one_chain_and_stays_on_the_other() {
        let mut slab = Slab::new();
        let (mut lane, mut age) = (Ends::EMPTY, Ends::EMPTY);
        let slots = ['a', 'b', 'c'].map(|c| slab.insert(c));
        for at in slots {
            slab.push_last(&mut lane, By::Lane, at);
            slab.push_last(&mut age, By::Age, at);
        }
        slab.unlink(&mut lane, By::Lane, slots[1]);
        assert_eq!((walk(&slab, lane, By::Lane).as_str(), walk(&slab, age, By::Age).as_str()), ("ac", "abc"));
        slab.unlink(&mut age, By::Age, slots[1]);
        assert_eq!(slab.remove(slots[1]), Some('b'));
        assert_eq!(slab.remove(slots[1]), None);
        assert_eq!(slab.insert('d'), slots[1], "a freed slot is used again");
        slab.unlink(&mut lane, By::Lane, slots[0]);
        slab.unlink(&mut lane, By::Lane, slots[2]);
        assert!(lane.is_empty() && lane.last == NONE);
        assert_eq!(slab.before(By::Age, slots[2]), slots[0]);
        assert!(slab.get(NONE).is_none());
    }
}
