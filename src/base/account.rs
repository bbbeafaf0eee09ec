//! The account of deliveries: for each class, what was published to subscribers is found again, exactly.
//!
//! `published = written + merged + evicted + stale + filtered + excluded + lost + queued`, where `queued` is what
//! waits at the moment of reading. Always true: whoever takes a delivery off one column puts it into another.

/// How an event behaves when a client cannot keep up. There is no default: the registry names one for every type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Never evicted, never stale, goes first.
    Critical = 0,
    /// Keeps its order; the lowest score is evicted.
    Ordered = 1,
    /// A newer one with the same merge key replaces the queued one.
    Mergeable = 2,
}

impl Class {
    /// All three, in the order of their discriminants.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Ordered, Self::Mergeable];

    /// The word for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Ordered => "ordered",
            Self::Mergeable => "mergeable",
        }
    }
}

/// The deliveries of one class: one delivery is one event to one subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassAccount {
    /// Deliveries owed: events × subscribers at the moment the event was appended.
    pub published: u64,
    /// Taken whole by the kernel.
    pub written: u64,
    /// Replaced by a newer event with the same merge key.
    pub merged: u64,
    /// Lost to a full queue, told by a gap.
    pub evicted: u64,
    /// Too old when their turn came.
    pub stale: u64,
    /// Not asked for by the client's filter, or older than the position it joined at.
    pub filtered: u64,
    /// The client was named in `exclude`.
    pub excluded: u64,
    /// Still unwritten when the connection closed.
    pub lost: u64,
}

impl ClassAccount {
    /// What must still be waiting somewhere if no delivery went missing.
    #[must_use]
    pub const fn open(&self) -> i128 {
        self.published as i128
            - (self.written + self.merged + self.evicted + self.stale + self.filtered + self.excluded + self.lost)
                as i128
    }

    /// Adds `other`, column by column.
    pub fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.written += other.written;
        self.merged += other.merged;
        self.evicted += other.evicted;
        self.stale += other.stale;
        self.filtered += other.filtered;
        self.excluded += other.excluded;
        self.lost += other.lost;
    }
}

/// The account of all three classes, indexed by [`Class`], and what waits in queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    classes: [ClassAccount; 3],
    /// Bytes that wait in the outboxes this account is kept for. Kept as they come and go, for a walk through all clients
    /// would take milliseconds.
    pub outbox_bytes: u64,
}

impl Account {
    /// The account of `class`.
    #[must_use]
    pub const fn of(&self, class: Class) -> &ClassAccount {
        &self.classes[class as usize]
    }

    /// The account of `class`, to be written.
    pub const fn of_mut(&mut self, class: Class) -> &mut ClassAccount {
        &mut self.classes[class as usize]
    }

    /// An outbox held `before` bytes and holds `after`.
    pub const fn moved(&mut self, before: u64, after: u64) {
        self.outbox_bytes = self.outbox_bytes + after - before;
    }

    /// Adds `other`, class by class.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.classes.iter_mut().zip(&other.classes) {
            mine.add(theirs);
        }
        self.outbox_bytes += other.outbox_bytes;
    }
}
