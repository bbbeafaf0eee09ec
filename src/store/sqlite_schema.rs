//! Opening the database file: whose it is, whether it is sound, and which tables it has.
//!
//! A path flows in; a connection that is checked, migrated and set up flows out, or one sentence that says what to do.
//! Always true: a file that is not ours is not changed by a byte, one process at a time holds the database, and a
//! database is either migrated wholly or not at all.

use super::event::Epochs;
use super::sqlite::{OpenOptions, WhenDamaged};
use super::sqlite_aside::{MovedAside, beside, move_aside};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Marks our files in bytes 68–71 of their header: `RnCs`.
pub(super) const APPLICATION_ID: i32 = 0x526E_4373;

/// Any SQLite database begins with this.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Bytes of a page; SQLite's own default, named because the bound on the file is counted in pages.
const PAGE_BYTES: u64 = 4_096;

/// Step n leads from schema version n to n + 1. A step that was released is never edited; a new one is added.
///
/// Rows of `events` lie in the order of their arrival, not by channel: so every batch is appended to the end of the file,
/// whichever channels it touches, and only the narrow indexes are written in many places. Clustered by channel, a batch
/// over 200 channels took two to three times as long. Ids begin with their time, so their index grows at its end too.
/// Kinds are kept by name: their numbers move when the registry gets a row.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        epoch_base INTEGER NOT NULL,
        db_generation INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE channels (
        channel_id INTEGER PRIMARY KEY,
        app TEXT NOT NULL,
        channel TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        head INTEGER NOT NULL,
        UNIQUE (app, channel)
    ) STRICT;
    CREATE TABLE events (
        channel_id INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        ts_ms INTEGER NOT NULL,
        kind TEXT NOT NULL,
        id BLOB NOT NULL,
        user_id TEXT,
        user_name TEXT,
        text TEXT,
        data TEXT,
        target BLOB,
        detail TEXT,
        client_id TEXT,
        UNIQUE (channel_id, seq)
    ) STRICT;
    CREATE INDEX events_by_id ON events (id);
    CREATE INDEX events_by_target ON events (target) WHERE target IS NOT NULL;
    CREATE TABLE idempotency (
        key TEXT PRIMARY KEY,
        id BLOB NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        ts_ms INTEGER NOT NULL,
        kept_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX idempotency_by_age ON idempotency (kept_ms);
    CREATE TABLE rooms (
        app TEXT NOT NULL,
        channel TEXT NOT NULL,
        n INTEGER NOT NULL,
        shard INTEGER NOT NULL,
        viewers INTEGER NOT NULL,
        PRIMARY KEY (app, channel, n, shard)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE alarms (
        version INTEGER PRIMARY KEY AUTOINCREMENT,
        app TEXT NOT NULL,
        channel TEXT NOT NULL,
        due_ms INTEGER NOT NULL,
        event TEXT NOT NULL,
        tries INTEGER NOT NULL,
        UNIQUE (app, channel)
    ) STRICT;
    CREATE INDEX alarms_by_due ON alarms (due_ms, version);
    CREATE TABLE bans (
        app TEXT NOT NULL,
        user TEXT NOT NULL,
        channel TEXT NOT NULL,
        expires_ms INTEGER,
        PRIMARY KEY (app, user, channel)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX bans_by_end ON bans (expires_ms) WHERE expires_ms IS NOT NULL;
"];

/// The version of the schema that this build reads and writes.
pub(super) const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

/// Why a database cannot be used. Each text is one sentence that names the file and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The file is no database of ringcast; it was not touched.
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// A newer build has written it.
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema version.
        found: u32,
        /// The newest schema version this build knows.
        known: u32,
    },
    /// It is ours, and damaged.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        what: String,
    },
    /// It is damaged, and may be moved aside, and cannot be.
    NotMoved {
        /// The file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// It cannot be opened at the moment, which says nothing about the file.
    Failed {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        what: String,
    },
    /// It cannot be read or written as this user in this place.
    NotWritable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        what: String,
    },
    /// No room on disk, or less than the configured bound allows.
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// Another process holds it.
    Locked {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs { path } => write!(
                f,
                "{} is not a ringcast database and was left untouched; name another file, or move this one away",
                path.display()
            ),
            Self::Newer { path, found, known } => write!(
                f,
                "{} has schema version {found} and this build knows only {known}; run the newer build, or restore a \
                 backup made before the upgrade",
                path.display()
            ),
            Self::Corrupt { path, what } => write!(
                f,
                "{} is damaged ({what}); move it aside together with its -wal and -shm files, and bring back the newest \
                 copy with `ringcast restore`",
                path.display()
            ),
            Self::NotMoved { path, what } => write!(
                f,
                "{} is damaged and was not moved aside ({what}); move it yourself together with its -wal and -shm files",
                path.display()
            ),
            Self::Failed { path, what } => write!(
                f,
                "{} cannot be opened now ({what}); see to the machine's memory and file system, and start again",
                path.display()
            ),
            Self::NotWritable { path, what } => write!(
                f,
                "{} cannot be written ({what}); give the user that runs the node write access to the file and its \
                 directory",
                path.display()
            ),
            Self::DiskFull { path } => write!(
                f,
                "there is no room for {}; free space on its disk, or raise the bound on its size",
                path.display()
            ),
            Self::Locked { path } => {
                write!(f, "{} is in use by another process; stop that one first, or name another file", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    /// Sorts an error of SQLite at opening.
    pub(super) fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let (path, what) = (path.to_owned(), error.to_string());
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked { path },
            Some(ErrorCode::DiskFull) => Self::DiskFull { path },
            Some(
                ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::SystemIoFailure,
            ) => Self::NotWritable { path, what },
            // None of these speaks of the file, which may be moved aside if it is damaged, and only then.
            Some(
                ErrorCode::OutOfMemory
                | ErrorCode::OperationInterrupted
                | ErrorCode::OperationAborted
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::NoLargeFileSupport,
            ) => Self::Failed { path, what },
            _ => Self::Corrupt { path, what },
        }
    }

    fn from_io(path: &Path, error: &std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::DiskFull { path: path.to_owned() },
            _ => Self::NotWritable { path: path.to_owned(), what: error.to_string() },
        }
    }
}

/// A writer's connection with what it holds.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) epochs: Epochs,
    pub(super) generation: u64,
    /// Held, not read: closing it gives the database to the next process.
    pub(super) lock: File,
    pub(super) moved: Option<MovedAside>,
}

/// Opens the database for the one process that writes it; makes it if there is none, or if it is damaged and may be moved
/// aside.
pub(super) fn open_writer(path: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    // The lock comes first. It also keeps the next step away from a database that this very process has open: closing
    // any descriptor of a file drops every POSIX lock that SQLite holds on it.
    let (lock, made) = take_lock(path)?;
    let fresh = match look_at_header(path) {
        Ok(fresh) => fresh,
        Err(error) => {
            // Nothing of ours should stay beside a file that is not ours. If this fails, an empty file stays.
            made.map(std::fs::remove_file);
            return Err(error);
        }
    };
    match open_locked(path, options, fresh) {
        Ok((connection, epochs, generation)) => Ok(Opened { connection, epochs, generation, lock, moved: None }),
        Err(OpenError::Corrupt { what, .. }) if options.damaged == WhenDamaged::MoveAside => {
            let moved = Some(MovedAside { path: move_aside(path, options.now_wall_ms)?, what });
            let (connection, epochs, generation) = open_locked(path, options, true)?;
            Ok(Opened { connection, epochs, generation, lock, moved })
        }
        Err(error) => Err(error),
    }
}

/// Opens the database while its lock is held; `fresh` says that there is nothing yet. Gives the connection, the epochs and
/// the generation.
fn open_locked(path: &Path, options: &OpenOptions, fresh: bool) -> Result<(Connection, Epochs, u64), OpenError> {
    let has_log = std::fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    if fresh && has_log {
        // SQLite would take it away without a word.
        return Err(OpenError::Corrupt { path: path.to_owned(), what: "its log is there and it is not".to_owned() });
    }
    let sorted = |error: rusqlite::Error| OpenError::from_sqlite(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sorted)?;
    if connection.is_readonly("main").map_err(sorted)? {
        return Err(OpenError::NotWritable { path: path.to_owned(), what: "it opens for reading only".to_owned() });
    }
    // A log that lies beside a damaged file is not played into it: both stay as they are for whoever looks into it. One that
    // this opening makes goes with it.
    let keep_log = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    connection.set_db_config(keep_log, has_log).map_err(sorted)?;
    set_up(&connection, options).map_err(sorted)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(sorted)?;
    if options.bytes_max > 0 {
        let pages = i64::try_from(options.bytes_max / PAGE_BYTES).unwrap_or(i64::MAX).max(1);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).map_err(sorted)?;
    }
    if !fresh && options.quick_check {
        let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(sorted)?;
        if verdict != "ok" {
            // The verdict is a headline and a line of substance; the headline says nothing.
            let what = verdict.lines().last().unwrap_or_default().to_owned();
            return Err(OpenError::Corrupt { path: path.to_owned(), what });
        }
    }
    // The tables are made before the switch to WAL: so the mark of our files is in the file itself, not only in its
    // log, and the next start finds it there however this one ends.
    migrate(&mut connection, path, options)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(sorted)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let what = format!("the file system allows journal mode {mode} only, WAL is needed");
        return Err(OpenError::NotWritable { path: path.to_owned(), what });
    }
    connection.pragma_update_and_check(None, "journal_size_limit", 64 << 20, |_| Ok(())).map_err(sorted)?;
    // No process holds a socket yet, so no room holds a viewer.
    connection.execute("UPDATE rooms SET viewers = 0 WHERE viewers <> 0", []).map_err(sorted)?;
    let (base, generation) = read_meta(&connection).map_err(sorted)?;
    connection.set_db_config(keep_log, false).map_err(sorted)?;
    Ok((connection, Epochs::new(base), generation))
}

/// Opens a second connection that only reads. The writer must have opened the database before.
pub(super) fn open_reader(path: &Path, options: &OpenOptions) -> Result<(Connection, Epochs), OpenError> {
    let sorted = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotOurs { path: path.to_owned() },
        _ => OpenError::from_sqlite(path, &error),
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sorted)?;
    set_up(&connection, options).map_err(sorted)?;
    let mark: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(sorted)?;
    if mark != APPLICATION_ID {
        return Err(OpenError::NotOurs { path: path.to_owned() });
    }
    check_version(&connection, path)?;
    let (base, _) = read_meta(&connection).map_err(sorted)?;
    Ok((connection, Epochs::new(base)))
}

/// Locks a file beside the database; the system lets go of it when the process ends, however it ends. Also gives its
/// path if it was not there before.
pub(super) fn take_lock(path: &Path) -> Result<(File, Option<PathBuf>), OpenError> {
    let mut lock_path = path.to_owned().into_os_string();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let made = (!lock_path.exists()).then(|| lock_path.clone());
    let lock = File::options().create(true).truncate(false).write(true).open(lock_path);
    let lock = lock.map_err(|error| OpenError::from_io(path, &error))?;
    match lock.try_lock() {
        Ok(()) => Ok((lock, made)),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(OpenError::from_io(path, &error)),
    }
}

/// Reads the first bytes of the file without SQLite, which would create, recover or switch what it opens. True if
/// there is nothing yet.
pub(super) fn look_at_header(path: &Path) -> Result<bool, OpenError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(OpenError::from_io(path, &error)),
    };
    let mut header = Vec::with_capacity(100);
    file.by_ref().take(100).read_to_end(&mut header).map_err(|error| OpenError::from_io(path, &error))?;
    if header.is_empty() {
        return Ok(true);
    }
    let word = |at: usize| header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    if !header.starts_with(MAGIC) || word(68) != Some(APPLICATION_ID as u32) {
        return Err(OpenError::NotOurs { path: path.to_owned() });
    }
    match word(60) {
        Some(found) if found > SCHEMA_VERSION => {
            Err(OpenError::Newer { path: path.to_owned(), found, known: SCHEMA_VERSION })
        }
        _ => Ok(false),
    }
}

/// What every connection of ours is set to.
fn set_up(connection: &Connection, options: &OpenOptions) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_millis(u64::from(options.busy_timeout_ms)))?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update_and_check(None, "mmap_size", 0, |_| Ok(()))?;
    connection.pragma_update(None, "cache_size", -i64::from(options.cache_kib))
}

fn check_version(connection: &Connection, path: &Path) -> Result<u32, OpenError> {
    let found: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|error| OpenError::from_sqlite(path, &error))?;
    if found > SCHEMA_VERSION {
        return Err(OpenError::Newer { path: path.to_owned(), found, known: SCHEMA_VERSION });
    }
    Ok(found)
}

fn migrate(connection: &mut Connection, path: &Path, options: &OpenOptions) -> Result<(), OpenError> {
    let found = check_version(connection, path)?;
    if found == SCHEMA_VERSION {
        return Ok(());
    }
    let mut steps = || -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for step in &MIGRATIONS[found as usize..] {
            transaction.execute_batch(step)?;
        }
        if found == 0 {
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.execute(
                "INSERT INTO meta (one, epoch_base, db_generation) VALUES (1, ?1, 1)",
                [Epochs::base(options.fresh_epoch_seed, 1) as i64],
            )?;
        }
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.commit()
    };
    steps().map_err(|error| OpenError::from_sqlite(path, &error))
}

/// The base of the epochs and the generation of the database.
fn read_meta(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    connection.query_row("SELECT epoch_base, db_generation FROM meta", [], |row| {
        Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64))
    })
}

/// Gives the database and every channel in it a new epoch: what is appended now must not be taken for what was lost.
pub(super) fn renew_epochs(opened: &mut Opened, seed: u64) -> rusqlite::Result<()> {
    let generation = opened.generation + 1;
    let base = Epochs::base(seed, generation);
    let epochs = Epochs::new(base);
    let transaction = opened.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("UPDATE meta SET epoch_base = ?1, db_generation = ?2", [base as i64, generation as i64])?;
    {
        let mut after = 0_i64;
        let mut next = transaction.prepare(
            "SELECT channel_id, app, channel FROM channels WHERE channel_id > ?1 ORDER BY channel_id LIMIT 1",
        )?;
        let mut set = transaction.prepare("UPDATE channels SET epoch = ?2 WHERE channel_id = ?1")?;
        while let Some(row) = next.query([after])?.next()? {
            after = row.get(0)?;
            let key = super::sqlite_rows::key_at(row, 1)?;
            set.execute([after, epochs.of(&key) as i64])?;
        }
    }
    transaction.commit()?;
    opened.generation = generation;
    opened.epochs = epochs;
    Ok(())
}
