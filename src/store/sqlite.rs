//! The store on disk: one SQLite file, one connection that writes, any number that read pages.
//!
//! Calls of [`Store`] flow in, rows flow to disk. Always true: every write is one immediate transaction, synced before
//! it returns; nothing about heads is remembered between two commits, so after a failed one the next reads them anew.
//!
//! A commit of 256 events costs one sync. That is why [`super::Group`] gathers them, and why full syncs are affordable.

use super::event::Epochs;
use super::sqlite_commit::{self, Commit, honoured_after};
use super::sqlite_rows::{self, int, key_at, name_at, number_at, sorted};
use super::sqlite_schema::{Opened, open_reader, open_writer, renew_epochs};
use super::{
    Alarm, AlarmChange, AlarmVersion, Appended, Ban, FirstAnswer, MovedAside, NewEvent, OpenError, Page, PageAsk,
    Pages, Retained, Retention, RoomRow, Store, StoreError, StoredEvent,
};
use crate::base::{ChannelKey, Name, RoomChange, RoomId, ShardId, Ulid};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::fs::File;
use std::path::Path;

const SET_ALARM: &str = "INSERT OR REPLACE INTO alarms (app, channel, due_ms, event, tries) VALUES (?1, ?2, ?3, ?4, 0)";
const CLEAR_ALARM: &str = "DELETE FROM alarms WHERE app = ?1 AND channel = ?2";

/// What becomes of a database that is found to be damaged at opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenDamaged {
    /// It is not opened, and nothing is made in its place.
    #[default]
    Refuse,
    /// It is moved to a name with the time in it, and an empty one is made.
    MoveAside,
}

/// How a database is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Where the epochs of a new or restored database come from: 64 random bits, fresh at every start. A database that
    /// has its epochs already keeps them.
    pub fresh_epoch_seed: u64,
    /// The most bytes the database file may grow to; 0 is no bound but the disk.
    pub bytes_max: u64,
    /// How long a call waits for another connection's write before it is [`StoreError::Busy`], in milliseconds.
    pub busy_timeout_ms: u32,
    /// Memory for pages of the file, in KiB a connection.
    pub cache_kib: u32,
    /// Reads the whole file at opening to see that it is sound; about a second a gigabyte.
    pub quick_check: bool,
    /// What becomes of one that is damaged.
    pub damaged: WhenDamaged,
    /// The moment, in Unix milliseconds: it stands in the name of a database that is moved aside.
    pub now_wall_ms: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            fresh_epoch_seed: 0,
            bytes_max: 0,
            busy_timeout_ms: 250,
            cache_kib: 16_384,
            quick_check: true,
            damaged: WhenDamaged::Refuse,
            now_wall_ms: 0,
        }
    }
}

/// The writer. It holds the database for its process until it is dropped.
#[derive(Debug)]
pub struct Sqlite {
    connection: Connection,
    epochs: Epochs,
    generation: u64,
    moved: Option<MovedAside>,
    /// Declared after the connection, so that it is let go last.
    _lock: File,
}

/// A connection that reads pages while the writer commits.
#[derive(Debug)]
pub struct SqliteReader {
    connection: Connection,
    epochs: Epochs,
}

impl Sqlite {
    /// Opens the database at `path`; makes it if the file does not exist or is empty.
    ///
    /// # Errors
    /// One of [`OpenError`]; a file that is not ours is untouched.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        open_writer(path, options).map(Self::from_opened)
    }

    /// Opens a database that was put back from an older copy. Every channel gets a new epoch, from
    /// `options.fresh_epoch_seed`: clients that hold positions of the lost time must not take what comes now for what
    /// they have seen.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn restored(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        let mut opened = open_writer(path, options)?;
        renew_epochs(&mut opened, options.fresh_epoch_seed).map_err(|error| OpenError::from_sqlite(path, &error))?;
        Ok(Self::from_opened(opened))
    }

    /// Opens a second connection for pages. The writer must be open, and whoever restores a database does so before.
    ///
    /// # Errors
    /// As [`Self::open`]; a missing file is [`OpenError::NotWritable`].
    pub fn reader(path: &Path, options: &OpenOptions) -> Result<SqliteReader, OpenError> {
        let (connection, epochs) = open_reader(path, options)?;
        Ok(SqliteReader { connection, epochs })
    }

    /// How often this database has begun a life of its own: 1, and one more for each time it was restored.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Where the damaged database lies in whose place this one was made; `None` if there was none.
    #[must_use]
    pub const fn moved_aside(&self) -> Option<&MovedAside> {
        self.moved.as_ref()
    }

    /// The version of SQLite as one number, 3.51.3 being 3051003. Older ones can damage a database in WAL mode.
    #[must_use]
    pub fn library_version() -> i32 {
        rusqlite::version_number()
    }

    fn from_opened(opened: Opened) -> Self {
        let Opened { connection, epochs, generation, lock, moved } = opened;
        Self { connection, epochs, generation, moved, _lock: lock }
    }

    /// Runs `work` in one immediate transaction: a deferred one that reads before it writes is refused at once when
    /// another connection has committed in between, whatever the timeout. Whatever fails is rolled back.
    fn write<R>(&mut self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<R>) -> Result<R, StoreError> {
        let run = || {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        run().map_err(sorted)
    }

    /// Runs one statement of no result; says how many rows it changed.
    fn write_one(&mut self, sql: &str, params: impl rusqlite::Params) -> Result<usize, StoreError> {
        self.write(|transaction| transaction.prepare_cached(sql)?.execute(params))
    }
}

/// A channel as a ban keeps it: no name is empty, so the empty text is every channel.
fn ban_channel(channel: Option<&Name>) -> &str {
    channel.map_or("", Name::as_str)
}

impl Pages for Sqlite {
    fn page(&mut self, key: &ChannelKey, ask: PageAsk) -> Result<Page, StoreError> {
        sqlite_rows::page(&mut self.connection, &self.epochs, key, ask).map_err(sorted)
    }

    fn find(&mut self, key: &ChannelKey, id: Ulid) -> Result<Option<StoredEvent>, StoreError> {
        sqlite_rows::find(&mut self.connection, key, id).map_err(sorted)
    }

    fn first_answer(&mut self, now_wall_ms: u64, key: &str) -> Result<Option<FirstAnswer>, StoreError> {
        sqlite_commit::first_answer(&self.connection, now_wall_ms, key).map_err(sorted)
    }
}

impl Pages for SqliteReader {
    fn page(&mut self, key: &ChannelKey, ask: PageAsk) -> Result<Page, StoreError> {
        sqlite_rows::page(&mut self.connection, &self.epochs, key, ask).map_err(sorted)
    }

    fn find(&mut self, key: &ChannelKey, id: Ulid) -> Result<Option<StoredEvent>, StoreError> {
        sqlite_rows::find(&mut self.connection, key, id).map_err(sorted)
    }

    fn first_answer(&mut self, now_wall_ms: u64, key: &str) -> Result<Option<FirstAnswer>, StoreError> {
        sqlite_commit::first_answer(&self.connection, now_wall_ms, key).map_err(sorted)
    }
}

impl Store for Sqlite {
    fn commit(&mut self, now_wall_ms: u64, batch: &[NewEvent]) -> Result<Vec<Appended>, StoreError> {
        let epochs = self.epochs.clone();
        self.write(|transaction| {
            let mut commit = Commit::new(transaction, &epochs, now_wall_ms);
            let answers = batch.iter().map(|event| commit.append(event)).collect::<rusqlite::Result<Vec<_>>>()?;
            commit.write_heads()?;
            Ok(answers)
        })
    }

    fn rooms_save(&mut self, changes: &[RoomChange]) -> Result<(), StoreError> {
        self.write(|transaction| {
            let mut put = transaction.prepare_cached(
                "INSERT OR REPLACE INTO rooms (app, channel, n, shard, viewers) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?;
            let mut drop_room = transaction
                .prepare_cached("DELETE FROM rooms WHERE app = ?1 AND channel = ?2 AND n = ?3 AND shard = ?4")?;
            for RoomChange { key, room, viewers } in changes {
                let (app, channel) = (key.app.as_str(), key.channel.as_str());
                match viewers {
                    Some(viewers) => put.execute(params![app, channel, room.n, room.shard.0, viewers])?,
                    None => drop_room.execute(params![app, channel, room.n, room.shard.0])?,
                };
            }
            Ok(())
        })
    }

    fn rooms_load(&mut self) -> Result<Vec<RoomRow>, StoreError> {
        let load = || {
            self.connection
                .prepare_cached("SELECT app, channel, n, shard, viewers FROM rooms ORDER BY app, channel, n, shard")?
                .query_map([], |row| {
                    let room = RoomId { n: row.get(2)?, shard: ShardId(row.get(3)?) };
                    Ok(RoomRow { key: key_at(row, 0)?, room, viewers: row.get(4)? })
                })?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        load().map_err(sorted)
    }

    fn retain(&mut self, ask: &Retention) -> Result<Retained, StoreError> {
        self.write(|transaction| {
            let mut next = transaction.prepare_cached(
                "SELECT channel_id, channel, head FROM channels WHERE app = ?1 AND channel >= ?2 ORDER BY channel",
            )?;
            let mut oldest = transaction
                .prepare_cached("SELECT seq, ts_ms FROM events WHERE channel_id = ?1 ORDER BY seq LIMIT ?2")?;
            let mut delete = transaction.prepare_cached("DELETE FROM events WHERE channel_id = ?1 AND seq <= ?2")?;
            let from = ask.from.as_ref().map_or("", Name::as_str);
            let mut left = ask.slice.max(1);
            let mut deleted = 0;
            let mut channels = next.query([ask.app.as_str(), from])?;
            while let Some(channel) = channels.next()? {
                let name = name_at(channel, 1)?;
                if left == 0 {
                    return Ok(Retained { deleted, next: Some(name) });
                }
                let channel_id: i64 = channel.get(0)?;
                let head = number_at(channel, 2)?;
                let beyond = ask.keep_last.map_or(0, |keep| head.saturating_sub(keep));
                let mut last = None;
                let mut rows = oldest.query(params![channel_id, left])?;
                while let Some(row) = rows.next()? {
                    let (seq, ts_ms) = (number_at(row, 0)?, number_at(row, 1)?);
                    if seq > beyond && ask.older_than_ms.is_none_or(|older| ts_ms >= older) {
                        break;
                    }
                    last = Some(seq);
                }
                drop(rows);
                let here = match last {
                    Some(seq) => delete.execute([channel_id, int(seq)])? as u32,
                    None => 0,
                };
                deleted += here;
                if here == left {
                    return Ok(Retained { deleted, next: Some(name) });
                }
                left -= here.max(1);
            }
            Ok(Retained { deleted, next: None })
        })
    }

    fn idempotency_sweep(&mut self, now_wall_ms: u64, slice: u32) -> Result<u32, StoreError> {
        self.write_one(
            "DELETE FROM idempotency WHERE key IN \
             (SELECT key FROM idempotency WHERE kept_ms <= ?1 ORDER BY kept_ms LIMIT ?2)",
            params![honoured_after(now_wall_ms), slice],
        )
        .map(|rows| rows as u32)
    }

    fn alarm_set(&mut self, key: &ChannelKey, due_ms: u64, event: &str) -> Result<u64, StoreError> {
        self.write(|transaction| {
            transaction.prepare_cached(SET_ALARM)?.execute(params![
                key.app.as_str(),
                key.channel.as_str(),
                int(due_ms),
                event
            ])?;
            Ok(transaction.last_insert_rowid() as u64)
        })
    }

    fn alarms_change(&mut self, changes: &[AlarmChange<'_>]) -> Result<(), StoreError> {
        self.write(|transaction| {
            let mut set = transaction.prepare_cached(SET_ALARM)?;
            let mut clear = transaction.prepare_cached(CLEAR_ALARM)?;
            for AlarmChange { key, set: to } in changes {
                let (app, channel) = (key.app.as_str(), key.channel.as_str());
                match to {
                    Some((due_ms, event)) => set.execute(params![app, channel, int(*due_ms), event])?,
                    None => clear.execute([app, channel])?,
                };
            }
            Ok(())
        })
    }

    fn alarms_retry(&mut self, alarms: &[(AlarmVersion, u64)]) -> Result<Vec<bool>, StoreError> {
        self.write(|transaction| {
            let mut put_off = transaction.prepare_cached(
                "UPDATE alarms SET due_ms = ?4, tries = min(tries + 1, 4294967295) \
                 WHERE app = ?1 AND channel = ?2 AND version = ?3",
            )?;
            let one = |((key, version), due_ms): &(AlarmVersion, u64)| {
                put_off.execute(params![key.app.as_str(), key.channel.as_str(), int(*version), int(*due_ms)])
            };
            alarms.iter().map(one).map(|rows| rows.map(|rows| rows > 0)).collect()
        })
    }

    fn alarms_done(&mut self, alarms: &[AlarmVersion]) -> Result<Vec<bool>, StoreError> {
        self.write(|transaction| {
            let mut clear =
                transaction.prepare_cached("DELETE FROM alarms WHERE app = ?1 AND channel = ?2 AND version = ?3")?;
            let one = |(key, version): &AlarmVersion| {
                clear.execute(params![key.app.as_str(), key.channel.as_str(), int(*version)])
            };
            alarms.iter().map(one).map(|rows| rows.map(|rows| rows > 0)).collect()
        })
    }

    fn alarm_clear(&mut self, key: &ChannelKey) -> Result<bool, StoreError> {
        self.write_one(CLEAR_ALARM, [key.app.as_str(), key.channel.as_str()]).map(|rows| rows > 0)
    }

    fn alarms(&mut self, due_by_ms: u64, limit: u32) -> Result<Vec<Alarm>, StoreError> {
        let list = || {
            self.connection
                .prepare_cached(
                    "SELECT app, channel, due_ms, event, tries, version FROM alarms WHERE due_ms <= ?1 \
                     ORDER BY due_ms, version LIMIT ?2",
                )?
                .query_map(params![int(due_by_ms), limit], |row| {
                    Ok(Alarm {
                        key: key_at(row, 0)?,
                        due_ms: number_at(row, 2)?,
                        event: row.get(3)?,
                        tries: row.get(4)?,
                        version: number_at(row, 5)?,
                    })
                })?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        list().map_err(sorted)
    }

    fn alarm_next(&mut self) -> Result<Option<u64>, StoreError> {
        let next = || {
            self.connection
                .prepare_cached("SELECT due_ms FROM alarms ORDER BY due_ms LIMIT 1")?
                .query_row([], |row| number_at(row, 0))
                .optional()
        };
        next().map_err(sorted)
    }

    fn ban_set(&mut self, ban: &Ban) -> Result<(), StoreError> {
        self.write_one(
            "INSERT OR REPLACE INTO bans (app, user, channel, expires_ms) VALUES (?1, ?2, ?3, ?4)",
            params![ban.app.as_str(), ban.user.as_str(), ban_channel(ban.channel.as_ref()), ban.expires_ms.map(int)],
        )
        .map(drop)
    }

    fn ban_clear(&mut self, app: &Name, user: &Name, channel: Option<&Name>) -> Result<bool, StoreError> {
        self.write_one(
            "DELETE FROM bans WHERE app = ?1 AND user = ?2 AND channel = ?3",
            [app.as_str(), user.as_str(), ban_channel(channel)],
        )
        .map(|rows| rows > 0)
    }

    fn bans(&mut self, now_wall_ms: u64) -> Result<Vec<Ban>, StoreError> {
        let list = || {
            self.connection
                .prepare_cached(
                    "SELECT app, user, channel, expires_ms FROM bans WHERE expires_ms IS NULL OR expires_ms > ?1 \
                     ORDER BY app, user, channel",
                )?
                .query_map([int(now_wall_ms)], |row| {
                    let everywhere = row.get_ref(2)?.as_str()?.is_empty();
                    Ok(Ban {
                        app: name_at(row, 0)?,
                        user: name_at(row, 1)?,
                        channel: if everywhere { None } else { Some(name_at(row, 2)?) },
                        expires_ms: row.get::<_, Option<i64>>(3)?.map(|at| at as u64),
                    })
                })?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        list().map_err(sorted)
    }

    fn bans_sweep(&mut self, now_wall_ms: u64, slice: u32) -> Result<u32, StoreError> {
        self.write_one(
            "DELETE FROM bans WHERE (app, user, channel) IN \
             (SELECT app, user, channel FROM bans WHERE expires_ms <= ?1 LIMIT ?2)",
            params![int(now_wall_ms), slice],
        )
        .map(|rows| rows as u32)
    }

    fn tidy(&mut self) -> Result<u64, StoreError> {
        // Busy is no failure here: a reader is at work, and what could not be moved is moved the next time.
        let checkpoint = || {
            let frames: (i64, i64) = self
                .connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| Ok((row.get(1)?, row.get(2)?)))?;
            let page_bytes: i64 = self.connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
            Ok(((frames.0 - frames.1).max(0) * page_bytes) as u64)
        };
        checkpoint().map_err(sorted)
    }

    fn close(self) -> Result<(), StoreError> {
        self.connection.flush_prepared_statement_cache();
        self.connection.close().map_err(|(_, error)| sorted(error))
    }
}
