//! Rows of the database as values: what comes out is checked, and every error of SQLite is sorted by who erred.
//!
//! Rows and errors of rusqlite flow in, plain types of the store flow out. Always true: a number, name or kind that no
//! build of ours writes is reported as damage, never passed on.

use super::event::Epochs;
use super::{PAGE_EVENTS_MAX, Page, PageAsk, Position, StoreError, StoredEvent};
use crate::base::{ChannelKey, Name, Ulid};
use crate::wire::event::EventKind;
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};

/// Sorts an error of SQLite.
pub(super) fn sorted(error: rusqlite::Error) -> StoreError {
    let what = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt(what),
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => StoreError::Io(what),
        Some(_) => StoreError::Refused(what),
        None => match error {
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..) => StoreError::Corrupt(what),
            _ => StoreError::Refused(what),
        },
    }
}

/// A number as SQLite keeps it. What does not fit is beyond any time or seq there will be; it stays the largest.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The number in column `at`.
pub(super) fn number_at(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(at)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(at, number))
}

/// The name in column `at`.
pub(super) fn name_at(row: &Row<'_>, at: usize) -> rusqlite::Result<Name> {
    Name::new(row.get_ref(at)?.as_str()?)
        .map_err(|bad| rusqlite::Error::FromSqlConversionFailure(at, Type::Text, Box::new(bad)))
}

/// The app and channel in columns `at` and `at + 1`.
pub(super) fn key_at(row: &Row<'_>, at: usize) -> rusqlite::Result<ChannelKey> {
    Ok(ChannelKey::new(name_at(row, at)?, name_at(row, at + 1)?))
}

/// The id in column `at`.
pub(super) fn ulid_at(row: &Row<'_>, at: usize) -> rusqlite::Result<Ulid> {
    Ok(Ulid(u128::from_be_bytes(row.get(at)?)))
}

/// What ids are kept as: sixteen bytes that sort by time.
pub(super) fn ulid_bytes(id: Ulid) -> [u8; 16] {
    id.0.to_be_bytes()
}

/// The columns that [`event_at`] reads, in its order.
macro_rules! event_columns {
    () => {
        "seq, ts_ms, kind, id, user_id, user_name, text, data, target, detail, client_id"
    };
}

fn event_at(row: &Row<'_>, key: &ChannelKey, epoch: u64) -> rusqlite::Result<StoredEvent> {
    let kind = row.get_ref(2)?.as_str()?;
    let kind = EventKind::parse(kind).map_err(|_| {
        let what = format!("event kind {kind:?} is not in the registry");
        rusqlite::Error::FromSqlConversionFailure(2, Type::Text, what.into())
    })?;
    Ok(StoredEvent {
        seq: number_at(row, 0)?,
        epoch,
        key: key.clone(),
        kind,
        id: ulid_at(row, 3)?,
        ts_ms: number_at(row, 1)?,
        user_id: row.get(4)?,
        user_name: row.get(5)?,
        text: row.get(6)?,
        data: row.get(7)?,
        target: row.get::<_, Option<[u8; 16]>>(8)?.map(|bytes| Ulid(u128::from_be_bytes(bytes))),
        detail: row.get(9)?,
        client_id: row.get(10)?,
    })
}

/// A channel's row: its id in the database, and its position.
pub(super) fn channel_row(connection: &Connection, key: &ChannelKey) -> rusqlite::Result<Option<(i64, Position)>> {
    connection
        .prepare_cached("SELECT channel_id, epoch, head FROM channels WHERE app = ?1 AND channel = ?2")?
        .query_row([key.app.as_str(), key.channel.as_str()], |row| {
            Ok((row.get(0)?, Position { epoch: number_at(row, 1)?, seq: number_at(row, 2)? }))
        })
        .optional()
}

/// Reads a page. One transaction spans all its statements, so epoch, head and rows are of one moment.
pub(super) fn page(
    connection: &mut Connection,
    epochs: &Epochs,
    key: &ChannelKey,
    ask: PageAsk,
) -> rusqlite::Result<Page> {
    const BELOW: &str = concat!(
        "SELECT ",
        event_columns!(),
        " FROM events WHERE channel_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3"
    );
    const ABOVE: &str =
        concat!("SELECT ", event_columns!(), " FROM events WHERE channel_id = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3");
    let transaction = connection.transaction()?;
    let Some((channel_id, Position { epoch, seq: head })) = channel_row(&transaction, key)? else {
        return Ok(Page { epoch: epochs.of(key), head: 0, first_kept: 1, events: Vec::new() });
    };
    let first_kept = transaction
        .prepare_cached("SELECT min(seq) FROM events WHERE channel_id = ?1")?
        .query_row([channel_id], |row| row.get::<_, Option<i64>>(0))?
        .map_or(head + 1, |seq| seq as u64);
    let (sql, bound, limit) = match ask {
        PageAsk::Before { seq, limit } => (BELOW, int(seq), limit),
        PageAsk::Latest { limit } => (BELOW, i64::MAX, limit),
        PageAsk::Since { seq, limit } => (ABOVE, int(seq), limit),
    };
    let mut events = transaction
        .prepare_cached(sql)?
        .query_map(params![channel_id, bound, limit.min(PAGE_EVENTS_MAX)], |row| event_at(row, key, epoch))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    if !matches!(ask, PageAsk::Since { .. }) {
        events.reverse();
    }
    Ok(Page { epoch, head, first_kept, events })
}

/// Reads the event with this id.
pub(super) fn find(connection: &mut Connection, key: &ChannelKey, id: Ulid) -> rusqlite::Result<Option<StoredEvent>> {
    const BY_ID: &str = concat!(
        "SELECT ",
        event_columns!(),
        " FROM events INDEXED BY events_by_id WHERE id = ?2 AND channel_id = ?1 ORDER BY seq LIMIT 1"
    );
    let transaction = connection.transaction()?;
    let Some((channel_id, position)) = channel_row(&transaction, key)? else { return Ok(None) };
    transaction
        .prepare_cached(BY_ID)?
        .query_row(params![channel_id, ulid_bytes(id)], |row| event_at(row, key, position.epoch))
        .optional()
}
