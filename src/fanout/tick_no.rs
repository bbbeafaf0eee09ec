//! The number of a tick among those of its channel.
//!
//! A channel that lives for long counts further than 32 bits reach, at a thousand ticks a second in fifty days, so its
//! numbers go round; which of two is later flows out. Always true: two that are compared are less than 2³¹ ticks apart,
//! for nobody keeps a number for longer than a tick but the members of a channel, and they get a new one at every
//! milestone.

/// Ticks between two milestones; a divisor of 2³².
const MILESTONE: u32 = 1 << 30;

/// The number of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TickNo(pub u32);

impl TickNo {
    /// Of the first tick of a channel. The numbers go round soon after it, so that whoever tests anything for a while
    /// tests that, too.
    pub const FIRST: Self = Self(u32::MAX - 63);

    /// Of the tick behind this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// This tick comes later than `other`.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }

    /// What is kept of older ticks is to be renewed when this one is the next.
    #[must_use]
    pub const fn is_milestone(self) -> bool {
        self.0.is_multiple_of(MILESTONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_tick_is_later_where_the_numbers_go_round() {
        let mut tick = TickNo(u32::MAX - 2);
        for _ in 0..6 {
            assert!(tick.next().is_after(tick) && !tick.is_after(tick.next()) && !tick.is_after(tick));
            tick = tick.next();
        }
        assert_eq!(tick, TickNo(3));
        let far = TickNo(3_u32.wrapping_add(MILESTONE * 2 - 1));
        assert!(far.is_after(tick) && !tick.is_after(far));
    }

    #[test]
    fn a_milestone_comes_soon_and_then_before_numbers_are_too_far_apart() {
        assert!((0..64).all(|ticks| !TickNo(TickNo::FIRST.0 + ticks).is_milestone()));
        assert!(TickNo(TickNo::FIRST.0.wrapping_add(64)).is_milestone());
        let milestones = (0..4).map(|round| TickNo(MILESTONE.wrapping_mul(round)));
        assert!(milestones.into_iter().all(TickNo::is_milestone));
    }
}
