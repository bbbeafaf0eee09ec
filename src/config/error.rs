//! Why a configuration is refused, said so that the reader can go to the line and change it.
//!
//! A place, a key, its value and what is allowed flow in, one or two lines of text flow out. Always true: a secret is
//! never part of the text.

use std::fmt;
use std::path::{Path, PathBuf};

/// A configuration that nothing starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    place: Place,
    /// `liveness.ping_after_s = 0`, or what else stands there.
    what: String,
    /// What is allowed, or what to do.
    why: String,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A line of a file, counted from 1.
    Line(PathBuf, u32),
    /// A file as a whole: it cannot be read, or it is a key and no configuration.
    File(PathBuf),
    /// The command line.
    CommandLine,
}

impl ConfigError {
    /// `what` at `place` is refused, because of `why`.
    pub(super) fn new(place: Place, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { place, what: what.into(), why: why.into() }
    }

    /// A file that cannot be used as a whole.
    pub(super) fn file(path: &Path, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(Place::File(path.to_owned()), what, why)
    }

    /// The line in its file, counted from 1, where there is one.
    #[must_use]
    pub fn line(&self) -> Option<u32> {
        match self.place {
            Place::Line(_, line) => Some(line),
            Place::File(_) | Place::CommandLine => None,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, what, why } = self;
        match place {
            Place::Line(file, line) => write!(f, "{}:{line}: {what}\n  {why}", file.display()),
            Place::File(file) => write!(f, "{}: {what}\n  {why}", file.display()),
            Place::CommandLine => write!(f, "command line: {what}\n  {why}"),
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_what_and_one_of_why() {
        let place = Place::Line("a.toml".into(), 7);
        let error = ConfigError::new(place, "outbox.events_min = 0", "1 to 65536 is allowed");
        assert_eq!(error.to_string(), "a.toml:7: outbox.events_min = 0\n  1 to 65536 is allowed");
        assert_eq!(error.line(), Some(7));
        assert_eq!(ConfigError::file(Path::new("b"), "x", "y").to_string(), "b: x\n  y");
    }
}
