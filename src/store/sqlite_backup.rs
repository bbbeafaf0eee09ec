//! A copy of the database while a node writes it, and the way back.
//!
//! Paths flow in; a file that was read through and synced flows out, or one sentence. Always true: a copy is of one moment,
//! and it appears under its name only when it is whole; a file that is there is not overwritten; and what is restored
//! numbers its events under new epochs, for positions of the lost time must not be taken for what comes now.

use super::sqlite::{OpenOptions, Sqlite};
use super::sqlite_aside::beside;
use super::sqlite_schema::{OpenError, look_at_header, take_lock};
use super::{Store, StoreError};
use rusqlite::{Connection, OpenFlags};
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a copy waits for the node's own use of the database, at its begin.
const BUSY: Duration = Duration::from_secs(10);

/// Why nothing was copied. Each text is one sentence that names the file and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// One of the two cannot be opened.
    Open(OpenError),
    /// Nothing is there to be copied.
    Missing(PathBuf),
    /// The place is taken.
    Taken(PathBuf),
    /// The copying itself failed.
    Failed {
        /// The file that was to be made.
        path: PathBuf,
        /// What the system or SQLite says.
        what: String,
    },
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Missing(path) => write!(f, "there is no database at {}; name the right file", path.display()),
            Self::Taken(path) => {
                write!(
                    f,
                    "{} is there already and was left untouched; move it aside, with its -wal and -shm files if it has any",
                    path.display()
                )
            }
            Self::Failed { path, what } => write!(f, "{} was not made: {what}", path.display()),
        }
    }
}

impl std::error::Error for CopyError {}

impl From<OpenError> for CopyError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// Copies `database` as it is at this moment to `copy`, which must not exist. A node may go on writing meanwhile; its log
/// grows until the copy is done.
///
/// # Errors
/// One of [`CopyError`]; then there is no `copy`.
pub fn backup(database: &Path, copy: &Path) -> Result<(), CopyError> {
    if look_at_header(database)? {
        return Err(CopyError::Missing(database.to_owned()));
    }
    if copy.exists() {
        return Err(CopyError::Taken(copy.to_owned()));
    }
    let failed = |what: String| CopyError::Failed { path: copy.to_owned(), what };
    let sorted = |error: rusqlite::Error| failed(error.to_string());
    let part = beside(copy, ".part");
    let part_text = part.to_str().ok_or_else(|| failed("its path is not UTF-8".to_owned()))?;
    clear(&part).map_err(|error| failed(error.to_string()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = |error: rusqlite::Error| OpenError::from_sqlite(database, &error);
    let source = Connection::open_with_flags(database, flags).map_err(opened)?;
    source.busy_timeout(BUSY).map_err(opened)?;
    let copied = source.execute("VACUUM INTO ?1", [part_text]).map_err(sorted).and_then(|_| {
        let made = Connection::open_with_flags(&part, flags).map_err(sorted)?;
        let verdict: String = made.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(sorted)?;
        if verdict != "ok" {
            return Err(failed(format!("it is not sound: {verdict}")));
        }
        drop(made);
        name(&part, copy).map_err(|error| failed(error.to_string()))
    });
    if copied.is_err() {
        // It failed already; what is left of it is cleared by the next one too.
        let _ = clear(&part);
    }
    copied
}

/// Makes `database`, which must not exist, from `copy`, and gives every channel a new epoch from
/// `options.fresh_epoch_seed`.
///
/// # Errors
/// One of [`CopyError`]; then there is no `database`.
pub fn restore(copy: &Path, database: &Path, options: &OpenOptions) -> Result<(), CopyError> {
    if look_at_header(copy)? {
        return Err(CopyError::Missing(copy.to_owned()));
    }
    // Held until the end: no node may begin here meanwhile.
    let (_lock, _) = take_lock(database)?;
    // A log without its database would be played into the new one.
    for path in [database.to_owned(), beside(database, "-wal"), beside(database, "-shm")] {
        if path.exists() {
            return Err(CopyError::Taken(path));
        }
    }
    let failed = |what: String| CopyError::Failed { path: database.to_owned(), what };
    let part = beside(database, ".part");
    let made = (|| {
        clear(&part).map_err(|error| failed(error.to_string()))?;
        fs::copy(copy, &part).map_err(|error| failed(error.to_string()))?;
        let store = Sqlite::restored(&part, options)?;
        // The log goes into the file with the last connection.
        store.close().map_err(|error: StoreError| failed(error.to_string()))?;
        if beside(&part, "-wal").exists() {
            return Err(failed("its log stays beside it: another process has it open".to_owned()));
        }
        name(&part, database).map_err(|error| failed(error.to_string()))
    })();
    // The lock of the part is needed by nobody any more, and a part that failed neither.
    let _ = clear(&part);
    made
}

/// Takes away a part that an earlier attempt left, and what SQLite had beside it.
fn clear(part: &Path) -> std::io::Result<()> {
    for end in ["", "-wal", "-shm", "-journal", ".lock"] {
        match fs::remove_file(beside(part, end)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Gives a whole part its name: durable, and at once.
fn name(part: &Path, path: &Path) -> std::io::Result<()> {
    File::open(part)?.sync_all()?;
    fs::rename(part, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ChannelKey, Name};
    use crate::store::Pages;
    use crate::store::event::PageAsk;

    fn options() -> OpenOptions {
        OpenOptions { fresh_epoch_seed: 7, ..OpenOptions::default() }
    }

    #[test]
    fn a_copy_of_an_open_database_comes_back_under_a_new_generation() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(backup(&at("a"), &at("copy")), Err(CopyError::Missing(at("a"))));
        let mut store = Sqlite::open(&at("a"), &options()).unwrap();
        let name = |text: &str| Name::new(text).unwrap();
        let key = ChannelKey::new(name("demo"), name("x"));
        store.alarm_set(&key, 5, "{}").unwrap();
        assert_eq!(backup(&at("a"), &at("copy")), Ok(()));
        assert_eq!(backup(&at("a"), &at("copy")), Err(CopyError::Taken(at("copy"))));
        store.alarm_clear(&key).unwrap();
        assert!(matches!(restore(&at("copy"), &at("a"), &options()), Err(CopyError::Open(OpenError::Locked { .. }))));
        let seeded = OpenOptions { fresh_epoch_seed: 8, ..options() };
        assert_eq!(restore(&at("copy"), &at("b"), &seeded), Ok(()));
        assert_eq!(restore(&at("copy"), &at("b"), &seeded), Err(CopyError::Taken(at("b"))));
        let mut back = Sqlite::open(&at("b"), &options()).unwrap();
        assert_eq!((back.generation(), back.alarm_next()), (2, Ok(Some(5))));
        let ask = PageAsk::Latest { limit: 1 };
        assert_ne!(back.page(&key, ask).unwrap().epoch, store.page(&key, ask).unwrap().epoch);
        fs::write(at("c-wal"), "x").unwrap();
        assert_eq!(restore(&at("copy"), &at("c"), &seeded), Err(CopyError::Taken(at("c-wal"))));
        assert!(matches!(restore(&at("c-wal"), &at("d"), &seeded), Err(CopyError::Open(OpenError::NotOurs { .. }))));
        assert!(fs::read_dir(dir.path()).unwrap().all(|entry| {
            let name = entry.unwrap().file_name();
            !name.to_string_lossy().contains(".part")
        }));
    }
}
