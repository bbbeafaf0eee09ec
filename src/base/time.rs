//! Time as a value: state machines are given it, they never read it.

/// One reading of both clocks, taken outside and handed to every `on_*` call.
///
/// `mono_us` never steps back and orders deadlines; `wall_ms` is what people and tokens see and may jump.
///
/// Everything that waits, limits or measures goes by `mono_us`: pings and closes, queues sized in time, rates, slow mode,
/// reports, retries. By `wall_ms` go the ends of tokens and bans, the moments of alarms, the ages of messages and of
/// idempotency keys, and `ts` and `id` of a message. When it steps back, those ends come later by as much; numbers
/// (`seq`) still rise by one, ids are still unique though no longer in the order of their making, an alarm that has rung
/// does not ring again and none rings before the wall says so. When it steps forward, what is due is due at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Microseconds since the process's own zero, monotonic.
    pub mono_us: u64,
    /// Unix time in milliseconds.
    pub wall_ms: u64,
}

impl Now {
    /// Monotonic milliseconds.
    #[must_use]
    pub const fn mono_ms(self) -> u64 {
        self.mono_us / 1_000
    }

    /// Monotonic whole seconds; what coarse wheels and liveness stamps use.
    #[must_use]
    pub const fn mono_s(self) -> u64 {
        self.mono_us / 1_000_000
    }

    /// The same moment `ms` milliseconds later on both clocks.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self { mono_us: self.mono_us + ms * 1_000, wall_ms: self.wall_ms + ms }
    }
}
