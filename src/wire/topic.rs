//! What an event is sent to: a channel, a user, or a tag of one app; and the one hash of it that every table shares.
//!
//! The hash is computed once, where the topic is made, with a secret of the process: a person outside cannot choose
//! names that collide in a filter (nine such names were found in 110 ms against an unseeded one).

use crate::base::{Name, ShardId};
use rapidhash::v3::{RapidSecrets, rapidhash_v3, rapidhash_v3_seeded};

/// The three kinds of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Scope {
    /// Everybody who watches a channel.
    Channel = 0,
    /// Every connection of a user.
    User = 1,
    /// Every connection that carries a tag.
    Tag = 2,
}

impl Scope {
    /// The scope behind a number, as archives keep it.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Channel),
            1 => Some(Self::User),
            2 => Some(Self::Tag),
            _ => None,
        }
    }
}

/// One target, with its hash. Equal if scope, app and name are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topic {
    /// What the name names.
    pub scope: Scope,
    /// The tenant.
    pub app: Name,
    /// The channel, user or tag.
    pub name: Name,
    /// [`TopicHasher::hash`] of the three above.
    pub hash: u64,
}

/// Hashes topics with the process's secret.
#[derive(Clone)]
pub struct TopicHasher {
    secrets: RapidSecrets,
}

impl std::fmt::Debug for TopicHasher {
    /// Shows nothing: the secret does not belong into a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TopicHasher")
    }
}

impl TopicHasher {
    /// A hasher from the process's secret; a simulation gives its seed.
    #[must_use]
    pub const fn new(secret: u64) -> Self {
        Self { secrets: RapidSecrets::seed(secret) }
    }

    /// The hash that filter, index and tables of this process share.
    #[must_use]
    pub fn hash(&self, scope: Scope, app: &str, name: &str) -> u64 {
        with_key(scope, app, name, |key| rapidhash_v3_seeded(key, &self.secrets))
    }

    /// A topic with its hash.
    #[must_use]
    pub fn topic(&self, scope: Scope, app: &Name, name: &Name) -> Topic {
        Topic { scope, app: app.clone(), name: name.clone(), hash: self.hash(scope, app.as_str(), name.as_str()) }
    }

    /// A hash of any bytes with the process's secret, for merge keys and the like.
    #[must_use]
    pub fn hash_bytes(&self, bytes: &[u8]) -> u64 {
        rapidhash_v3_seeded(bytes, &self.secrets)
    }
}

/// The shard that gives the events of this target their order. Stable over processes and machines: it is written
/// down nowhere, but every node of a cluster must agree on it.
#[must_use]
pub fn partition(scope: Scope, app: &str, name: &str, shards: u16) -> ShardId {
    let hash = with_key(scope, app, name, rapidhash_v3);
    // The high half times the count: even for any count, without a division.
    ShardId((((hash >> 32) * u64::from(shards)) >> 32) as u16)
}

/// Calls `f` with `scope app NUL name`; names hold no NUL, so different topics have different keys.
fn with_key<R>(scope: Scope, app: &str, name: &str, f: impl FnOnce(&[u8]) -> R) -> R {
    const ROOM: usize = 2 * crate::base::ids::NAME_BYTES_MAX + 2;
    let mut key = [0_u8; ROOM];
    let len = app.len() + name.len() + 2;
    if len > ROOM {
        // Only a caller that goes round `Name` comes here; it gets a right answer, not a fast one.
        let long = [&[scope as u8], app.as_bytes(), &[0], name.as_bytes()].concat();
        return f(&long);
    }
    key[0] = scope as u8;
    key[1..=app.len()].copy_from_slice(app.as_bytes());
    key[app.len() + 2..len].copy_from_slice(name.as_bytes());
    f(&key[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_app_and_name_all_count() {
        let hasher = TopicHasher::new(7);
        let hash = hasher.hash(Scope::Channel, "demo", "race");
        assert_ne!(hash, hasher.hash(Scope::User, "demo", "race"));
        assert_ne!(hash, hasher.hash(Scope::Channel, "demor", "ace"));
        assert_ne!(hash, TopicHasher::new(8).hash(Scope::Channel, "demo", "race"));
        assert_eq!(hash, hasher.topic(Scope::Channel, &Name::new("demo").unwrap(), &Name::new("race").unwrap()).hash);
    }

    #[test]
    fn partitions_are_in_range_and_spread() {
        let mut seen = [0_u32; 4];
        for i in 0..4_000 {
            seen[usize::from(partition(Scope::Channel, "demo", &format!("c{i}"), 4).0)] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1_200).contains(&n)), "{seen:?}");
        assert_eq!(partition(Scope::User, "a", "b", 1), ShardId(0));
    }
}
