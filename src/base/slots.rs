//! A set of slot numbers: one bit each, for the few of many that need to be looked at.
//!
//! Slots that begin and cease to belong flow in, a walk through those that do flows out. Always true: `len` is the number
//! of bits that are set; a walk costs a word for 64 slots, so a million slots take microseconds when hardly any is set.

/// See the module.
#[derive(Debug, Default)]
pub struct SlotSet {
    words: Vec<u64>,
    len: usize,
}

impl SlotSet {
    /// Puts the slot in, or takes it out.
    pub fn set(&mut self, slot: u32, belongs: bool) {
        let (word, bit) = (slot as usize / 64, 1_u64 << (slot % 64));
        if word >= self.words.len() {
            if !belongs {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        match (self.words[word] & bit != 0, belongs) {
            (false, true) => self.len += 1,
            (true, false) => self.len -= 1,
            _ => return,
        }
        self.words[word] ^= bit;
    }

    /// How many belong.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// None does.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those that belong, in their order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.words.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(|(at, &word)| {
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| at as u32 * 64 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_what_a_plain_set_holds() {
        let (mut set, mut twin, mut state) = (SlotSet::default(), BTreeSet::new(), 9_u64);
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (slot, belongs) = ((state >> 40) as u32 % 1_000, state >> 63 == 0);
            set.set(slot, belongs);
            if belongs {
                twin.insert(slot);
            } else {
                twin.remove(&slot);
            }
            assert_eq!((set.len(), set.is_empty()), (twin.len(), twin.is_empty()));
        }
        assert!(set.iter().eq(twin.into_iter()));
        set.set(u32::MAX - 1, false);
        assert!(set.words.len() <= 16, "what never belonged takes no room");
    }
}
