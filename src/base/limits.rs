//! The one shape in which a bound is exported: how much is used, how much there is.

/// `used` of `limit`, in whatever unit the owner's name says; one alert rule serves all: `used / limit > 0.7`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// How much is taken now.
    pub used: u64,
    /// How much may be taken.
    pub limit: u64,
}

impl Gauge {
    /// A gauge of `used` out of `limit`.
    #[must_use]
    pub const fn new(used: u64, limit: u64) -> Self {
        Self { used, limit }
    }

    /// How much is taken now.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// How much may be taken.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Nothing more fits.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.used >= self.limit
    }
}
