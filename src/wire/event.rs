//! The registry: one row for every event type, and no default class.
//!
//! A new type is a new row here; the compiler then lists the matches that are left. What is not in the table cannot be
//! built, and an unknown built-in name from outside is refused. `custom.*` is the one open name space.

pub use crate::base::account::Class;

/// What a mergeable event replaces: the queued one of the same type ([`EventKind::merges_as`]) that agrees in this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeKey {
    /// Never merges.
    None,
    /// The channel.
    Channel,
    /// The user it speaks of.
    User,
    /// The channel and the user it speaks of.
    ChannelAndUser,
}

/// Who may cause an event of a type; a set, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources(u8);

impl Sources {
    /// The node itself.
    pub const NODE: Self = Self(1);
    /// A connected or posting user.
    pub const USER: Self = Self(2);
    /// An app's backend, by its server key.
    pub const SERVER: Self = Self(4);
    /// A user or an app's backend.
    pub const USER_OR_SERVER: Self = Self(2 | 4);

    /// Every source of `other` is one of these.
    #[must_use]
    pub const fn allow(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What the registry says of one event type.
#[derive(Debug)]
pub struct Row {
    /// The type.
    pub kind: EventKind,
    /// Its name on the wire.
    pub name: &'static str,
    /// How it behaves in a full queue.
    pub class: Class,
    /// 0–255; the lowest is evicted first, 255 never is.
    pub priority: u8,
    /// What it replaces in a queue.
    pub merge: MergeKey,
    /// How long after it was queued it is worth nothing any more, in milliseconds; `None` is never.
    pub stale_after_ms: Option<u32>,
    /// It has a seq and lies in the store.
    pub stored: bool,
    /// Who may cause it.
    pub from: Sources,
}

macro_rules! registry {
    ($($kind:ident $name:literal $class:ident $priority:literal $merge:ident $stale:expr, $stored:literal $from:ident;)*) => {
        /// Every event type there is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum EventKind {
            $(#[doc = concat!("`", $name, "`")] $kind,)*
        }

        /// One row a type, in the order of [`EventKind`].
        pub static REGISTRY: &[Row] = &[
            $(Row {
                kind: EventKind::$kind,
                name: $name,
                class: Class::$class,
                priority: $priority,
                merge: MergeKey::$merge,
                stale_after_ms: $stale,
                stored: $stored,
                from: Sources::$from,
            },)*
        ];
    };
}

const NEVER: Option<u32> = None;

registry! {
    ConnectionReady  "connection.ready"  Critical  255 None           NEVER,        false NODE;
    Subscribed       "subscribed"        Critical  255 None           NEVER,        false NODE;
    Unsubscribed     "unsubscribed"      Critical  255 None           NEVER,        false NODE;
    Authenticated    "authenticated"     Critical  255 None           NEVER,        false NODE;
    Ack              "ack"               Critical  255 None           NEVER,        false NODE;
    Error            "error"             Critical  255 None           NEVER,        false NODE;
    Pong             "pong"              Critical  255 None           NEVER,        false NODE;
    History          "history"           Critical  255 None           NEVER,        false NODE;
    HealthCheck      "health.check"      Critical  255 None           NEVER,        false NODE;
    UserBanned       "user.banned"       Critical  255 None           NEVER,        false SERVER;
    AccessRevoked    "access.revoked"    Critical  255 None           NEVER,        false SERVER;
    TokenExpiring    "token.expiring"    Critical  255 None           NEVER,        false SERVER;
    Gap              "gap"               Critical  255 None           NEVER,        false NODE;
    Draining         "draining"          Critical  255 None           NEVER,        false NODE;
    MessageRetracted "message.retracted" Ordered   255 None           NEVER,        true  SERVER;
    MessageNew       "message.new"       Ordered   200 None           NEVER,        true  USER_OR_SERVER;
    MessageDeleted   "message.deleted"   Ordered   190 None           NEVER,        true  USER_OR_SERVER;
    MessageUpdated   "message.updated"   Ordered   180 None           NEVER,        true  USER_OR_SERVER;
    ReactionNew      "reaction.new"      Ordered   90  None           NEVER,        true  USER;
    ReactionDeleted  "reaction.deleted"  Ordered   90  None           NEVER,        true  USER;
    Custom           "custom.*"          Ordered   60  None           Some(10_000), false USER_OR_SERVER;
    TypingStart      "typing.start"      Ordered   20  None           Some(5_000),  false USER;
    TypingStop       "typing.stop"       Ordered   20  None           Some(5_000),  false USER;
    ChannelUpdated   "channel.updated"   Mergeable 80  Channel        NEVER,        false SERVER;
    ViewersUpdated   "viewers.updated"   Mergeable 70  Channel        NEVER,        false NODE;
    UserUpdated      "user.updated"      Mergeable 50  User           NEVER,        false SERVER;
    PresenceChanged  "presence.changed"  Mergeable 40  ChannelAndUser NEVER,        false NODE;
    MemberJoined     "member.joined"     Mergeable 30  ChannelAndUser Some(10_000), false NODE;
    MemberLeft       "member.left"       Mergeable 30  ChannelAndUser Some(10_000), false NODE;
}

/// Why a name from outside is no event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownKind {
    /// No row has this name, and it does not begin with `custom.`.
    NotInRegistry,
    /// It begins with `custom.`, and what follows is not a name.
    BadCustomName,
}

impl EventKind {
    /// The row of this type.
    #[must_use]
    pub fn row(self) -> &'static Row {
        &REGISTRY[self as usize]
    }

    /// The type under which it is looked for when a newer event replaces a queued one. `member.left` takes back
    /// `member.joined` and the other way round: if each replaced only its own kind, in the place of the older one, who
    /// came, left and came again would be said to have come and then to have left.
    #[must_use]
    pub const fn merges_as(self) -> Self {
        match self {
            Self::MemberLeft => Self::MemberJoined,
            other => other,
        }
    }

    /// The type behind a number of [`EventKind`], as archives keep it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        REGISTRY.get(usize::from(number)).map(|row| row.kind)
    }

    /// The type behind a name from outside.
    ///
    /// # Errors
    /// An unknown built-in name, or a `custom.` name that is not made of name characters.
    pub fn parse(name: &str) -> Result<Self, UnknownKind> {
        if let Some(rest) = name.strip_prefix("custom.") {
            return match crate::base::Name::new(rest) {
                Ok(_) if name.len() <= crate::base::ids::NAME_BYTES_MAX => Ok(Self::Custom),
                _ => Err(UnknownKind::BadCustomName),
            };
        }
        REGISTRY.iter().find(|row| row.name == name).map(|row| row.kind).ok_or(UnknownKind::NotInRegistry)
    }
}

/// A set of event types, as bits in the order of [`EventKind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindSet(u64);

const _: () = assert!(REGISTRY.len() <= 64, "a KindSet has 64 bits");

impl KindSet {
    /// Every type.
    pub const ALL: Self = Self(u64::MAX);

    /// Adds `kind`.
    pub fn insert(&mut self, kind: EventKind) {
        self.0 |= 1 << kind as u8;
    }

    /// `kind` belongs to it.
    #[must_use]
    pub fn contains(self, kind: EventKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    /// Every type of `other` belongs to it.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_their_numbers_and_agree_with_their_class() {
        for (i, row) in REGISTRY.iter().enumerate() {
            assert_eq!(row.kind as usize, i, "{}", row.name);
            assert_eq!(EventKind::from_number(i as u8), Some(row.kind));
            assert_eq!(row.class == Class::Mergeable, row.merge != MergeKey::None, "{}", row.name);
            assert!(
                row.class != Class::Critical || (row.priority == 255 && row.stale_after_ms.is_none()),
                "{}",
                row.name
            );
            assert!(!row.stored || (row.class == Class::Ordered && row.stale_after_ms.is_none()), "{}", row.name);
        }
    }

    #[test]
    fn names_from_outside() {
        assert_eq!(EventKind::parse("message.new"), Ok(EventKind::MessageNew));
        assert_eq!(EventKind::parse("custom.goal"), Ok(EventKind::Custom));
        assert_eq!(EventKind::parse("custom."), Err(UnknownKind::BadCustomName));
        assert_eq!(EventKind::parse("custom.*"), Err(UnknownKind::BadCustomName));
        assert_eq!(EventKind::parse("message.newer"), Err(UnknownKind::NotInRegistry));
    }

    #[test]
    fn kind_sets() {
        let mut set = KindSet::default();
        set.insert(EventKind::MessageNew);
        assert!(set.contains(EventKind::MessageNew) && !set.contains(EventKind::Gap));
        assert!(KindSet::ALL.covers(set) && !set.covers(KindSet::ALL));
    }
}
