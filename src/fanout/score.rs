//! Who goes first when a queue is full, and how much a queue holds.
//!
//! The registry's rows flow in, once, while this is compiled; levels flow out: small numbers that rise with the
//! priority, so that a queue finds its lowest score by one look at a bit mask. Always true: the two lanes that evict
//! share no level, so within a level the older event has the lower score and no other comparison is needed.

use crate::base::Class;
use crate::wire::event::{EventKind, REGISTRY};

/// The priority that is never evicted.
pub(super) const NEVER_EVICTED: u8 = 255;

/// The levels of all types that can stand in an evicting lane.
pub(super) struct Ladder {
    /// By the number of the type; [`NO_LEVEL`] for critical types.
    of_kind: [u8; REGISTRY.len()],
    /// The levels of a lane, as bits, by the number of the class.
    of_class: [u32; 3],
    /// The levels below [`NEVER_EVICTED`], as bits.
    evictable: u32,
    levels: usize,
}

const NO_LEVEL: u8 = u8::MAX;

impl Ladder {
    const fn build() -> Self {
        let mut ladder = Self { of_kind: [NO_LEVEL; REGISTRY.len()], of_class: [0; 3], evictable: 0, levels: 0 };
        let mut priority = 0;
        while priority <= NEVER_EVICTED as usize {
            let mut lane = None;
            let mut kind = 0;
            while kind < REGISTRY.len() {
                let row = &REGISTRY[kind];
                if row.priority as usize == priority && !matches!(row.class, Class::Critical) {
                    ladder.of_kind[kind] = ladder.levels as u8;
                    let class = row.class as usize;
                    assert!(
                        lane.is_none() || matches!(lane, Some(other) if other == class),
                        "an ordered and a mergeable type share a priority: which of them goes first would be open"
                    );
                    lane = Some(class);
                }
                kind += 1;
            }
            if let Some(class) = lane {
                let bit = 1 << ladder.levels;
                ladder.of_class[class] |= bit;
                if priority < NEVER_EVICTED as usize {
                    ladder.evictable |= bit;
                }
                ladder.levels += 1;
            }
            priority += 1;
        }
        assert!(ladder.levels < 32, "a mask of levels has 32 bits, one of them spare");
        ladder
    }
}

static LADDER: Ladder = Ladder::build();

/// How many levels there are.
pub(super) const LEVELS: usize = Ladder::build().levels;

/// The level of a type, 0 … [`LEVELS`] − 1; `None` for critical types.
pub(super) fn level(kind: EventKind) -> Option<usize> {
    let level = LADDER.of_kind[kind as usize];
    (level != NO_LEVEL).then_some(usize::from(level))
}

/// The levels, as bits, that may be evicted in the lane of `class`.
pub(super) fn evictable_in(class: Class) -> u32 {
    LADDER.of_class[class as usize] & LADDER.evictable
}

/// The levels, as bits, whose waiting events have a lower score than an arriving event of `kind`: lower priorities,
/// and its own, because what waits is older than what arrives.
pub(super) fn outscored_by(kind: EventKind) -> u32 {
    // A critical type outscores all that can be evicted.
    level(kind).map_or(LADDER.evictable, |level| LADDER.evictable & ((2 << level) - 1))
}

/// How much a client's queue holds. The lanes are sized in time: what arrives in `lag_budget_ms` at the expected rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxOptions {
    /// How far a client may lag before something is lost, in milliseconds. Default 1,200.
    pub lag_budget_ms: u32,
    /// Expected critical events a second. Default 64.
    pub critical_per_s: u32,
    /// Expected ordered events a second. Default 40.
    pub ordered_per_s: u32,
    /// Expected mergeable events a second. Default 20.
    pub mergeable_per_s: u32,
    /// No lane holds fewer events. Default 16.
    pub events_min: u32,
    /// No lane holds more events; wins over `events_min`. Default 1,024.
    pub events_max: u32,
    /// What all lanes together hold, in bytes of payload as the caller counts them. Default 256 KiB.
    pub bytes_max: u32,
}

impl Default for OutboxOptions {
    fn default() -> Self {
        Self {
            lag_budget_ms: 1_200,
            critical_per_s: 64,
            ordered_per_s: 40,
            mergeable_per_s: 20,
            events_min: 16,
            events_max: 1_024,
            bytes_max: 256 * 1_024,
        }
    }
}

impl OutboxOptions {
    /// How many events the lane of `class` holds: budget × rate, rounded up, within `events_min ..= events_max`.
    #[must_use]
    pub const fn capacity(&self, class: Class) -> usize {
        let per_s = match class {
            Class::Critical => self.critical_per_s,
            Class::Ordered => self.ordered_per_s,
            Class::Mergeable => self.mergeable_per_s,
        };
        let events = (self.lag_budget_ms as u64 * per_s as u64).div_ceil(1_000);
        let events = if events < self.events_min as u64 { self.events_min as u64 } else { events };
        if events > self.events_max as u64 { self.events_max as usize } else { events as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_with_the_priority_and_critical_types_have_none() {
        for a in REGISTRY {
            assert_eq!(level(a.kind).is_none(), a.class == Class::Critical, "{}", a.name);
            for b in REGISTRY {
                if let (Some(of_a), Some(of_b)) = (level(a.kind), level(b.kind)) {
                    assert_eq!(of_a.cmp(&of_b), a.priority.cmp(&b.priority), "{} {}", a.name, b.name);
                    let outscored = outscored_by(a.kind) & (1 << of_b) != 0;
                    assert_eq!(outscored, b.priority <= a.priority && b.priority < NEVER_EVICTED);
                }
            }
        }
        assert_eq!(outscored_by(EventKind::Pong), outscored_by(EventKind::MessageRetracted));
        assert_eq!(evictable_in(Class::Critical), 0);
    }

    #[test]
    fn lanes_are_sized_in_time() {
        let options = OutboxOptions::default();
        assert_eq!(Class::ALL.map(|class| options.capacity(class)), [77, 48, 24]);
        let short = OutboxOptions { lag_budget_ms: 1, ..options };
        assert_eq!(short.capacity(Class::Ordered), 16);
        let long = OutboxOptions { lag_budget_ms: u32::MAX, ordered_per_s: u32::MAX, ..options };
        assert_eq!(long.capacity(Class::Ordered), 1_024);
    }
}
