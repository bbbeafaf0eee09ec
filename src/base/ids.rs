//! Names and numbers of things.
//!
//! A [`Name`] exists only if it was checked, so whoever holds one need not check again.

use std::fmt;
use std::sync::Arc;

/// The longest a name may be, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// An app, channel, user or tag: 1–128 characters of `A-Z a-z 0-9 . _ - : @`. Cheap to clone and to send.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadName {
    /// Nothing there.
    Empty,
    /// More than [`NAME_BYTES_MAX`] bytes.
    TooLong {
        /// How many bytes it has.
        bytes: usize,
    },
    /// A character outside the alphabet.
    Character(char),
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a name has 1 to 128 characters, this one is empty"),
            Self::TooLong { bytes } => write!(f, "a name has 1 to 128 characters, this one has {bytes}"),
            Self::Character(c) => write!(f, "a name is made of A-Z a-z 0-9 . _ - : @, not of {c:?}"),
        }
    }
}

impl std::error::Error for BadName {}

impl Name {
    /// Checks `text`.
    ///
    /// # Errors
    /// Says what is wrong with it: empty, too long, or the first character that does not belong.
    pub fn new(text: &str) -> Result<Self, BadName> {
        if text.is_empty() {
            return Err(BadName::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(BadName::TooLong { bytes: text.len() });
        }
        match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@'))) {
            Some(c) => Err(BadName::Character(c)),
            None => Ok(Self(text.into())),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The place of an app in the configuration; dense, so tables can be arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u16);

/// One socket core, 0 … shards − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Our side of one connection on its shard. The generation tells a slot's next owner from its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    /// Index into the shard's client table.
    pub slot: u32,
    /// How often the slot was given out before.
    pub generation: u32,
}

/// A ULID: 48 bits of Unix milliseconds, 80 bits that make it unique (github.com/ulid/spec).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ulid(pub u128);

/// Crockford's base 32.
const ULID_ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl Ulid {
    /// Joins a time and the low 80 bits of `unique`.
    #[must_use]
    pub const fn new(wall_ms: u64, unique: u128) -> Self {
        Self(((wall_ms as u128 & 0xFFFF_FFFF_FFFF) << 80) | (unique & ((1 << 80) - 1)))
    }

    /// The 26 characters of its text form.
    #[must_use]
    pub fn to_text(self) -> [u8; 26] {
        let mut text = [0; 26];
        for (i, byte) in text.iter_mut().enumerate() {
            *byte = ULID_ALPHABET[((self.0 >> (125 - 5 * i)) & 31) as usize];
        }
        text
    }

    /// Reads the text form; `None` if it is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 26 || text.as_bytes()[0] > b'7' {
            return None;
        }
        text.bytes()
            .try_fold(0_u128, |acc, byte| {
                let digit = ULID_ALPHABET.iter().position(|&c| c == byte.to_ascii_uppercase())?;
                Some((acc << 5) | digit as u128)
            })
            .map(Self)
    }
}

impl fmt::Display for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_text().iter().try_for_each(|&byte| f.write_str((byte as char).encode_utf8(&mut [0; 4])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_at_their_edges() {
        assert!(Name::new("a").is_ok());
        assert!(Name::new(&"x".repeat(128)).is_ok());
        assert_eq!(Name::new(""), Err(BadName::Empty));
        assert_eq!(Name::new(&"x".repeat(129)), Err(BadName::TooLong { bytes: 129 }));
        assert_eq!(Name::new("race 42"), Err(BadName::Character(' ')));
        assert_eq!(Name::new("a/b"), Err(BadName::Character('/')));
        assert!(Name::new("Az09._-:@").is_ok());
    }

    #[test]
    fn ulid_goes_to_text_and_back() {
        let id = Ulid::new(1_796_050_000_123, 0x1234_5678_9abc_def0_1122);
        let text = id.to_string();
        assert_eq!(text.len(), 26);
        assert_eq!(Ulid::parse(&text), Some(id));
        assert_eq!(Ulid::parse("01ARZ3NDEKTSV4RRFFQ69G5FAU"), None);
        assert_eq!(Ulid::parse("81ARZ3NDEKTSV4RRFFQ69G5FAV"), None);
        assert_eq!(
            Ulid::parse("01ARZ3NDEKTSV4RRFFQ69G5FAV").map(|u| u.to_string()).as_deref(),
            Some("01ARZ3NDEKTSV4RRFFQ69G5FAV")
        );
    }
}
