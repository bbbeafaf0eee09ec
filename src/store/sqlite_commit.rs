//! One batch of events as rows of one transaction.
//!
//! Events flow in, in order; rows, idempotency keys and heads flow into the transaction, answers flow out. Always true:
//! a head is read in the transaction that moves it, and it is written beside the rows it counts; and whether a message
//! is still there is asked in the transaction that stores what is said of it.

use super::event::{Epochs, wipes};
use super::sqlite_rows::{channel_row, int, number_at, ulid_at, ulid_bytes};
use super::{Appended, FirstAnswer, IDEMPOTENCY_KEPT_MS, NewEvent, Position};
use crate::base::{ChannelKey, Ulid};
use crate::wire::event::EventKind;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A channel as one commit sees it.
struct Open {
    channel_id: i64,
    position: Position,
}

/// One commit under way.
pub(super) struct Commit<'a> {
    transaction: &'a Transaction<'a>,
    epochs: &'a Epochs,
    now_wall_ms: u64,
    channels: BTreeMap<&'a ChannelKey, Open>,
}

impl<'a> Commit<'a> {
    /// A commit into `transaction`, which has not been written to.
    pub(super) fn new(transaction: &'a Transaction<'a>, epochs: &'a Epochs, now_wall_ms: u64) -> Self {
        Self { transaction, epochs, now_wall_ms, channels: BTreeMap::new() }
    }

    /// Appends one event, or finds its first answer, or finds that what it speaks of is gone.
    pub(super) fn append(&mut self, event: &'a NewEvent) -> rusqlite::Result<Appended> {
        if let Some(key) = &event.idempotency_key
            && let Some(first) = first_answer(self.transaction, self.now_wall_ms, key)?
        {
            return Ok(Appended::Repeat(first));
        }
        // Before the channel is opened, which would make one that was never written to.
        if let Some(target) = event.target
            && !self.stands(&event.key, target)?
        {
            return Ok(Appended::NoTarget);
        }
        let channel = match self.channels.entry(&event.key) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => place.insert(open_channel(self.transaction, self.epochs, &event.key)?),
        };
        if let Some(target) = wipes(event) {
            let target = ulid_bytes(target);
            // The index is named: the planner might walk the whole channel instead, which it thinks as good.
            for sql in [
                "UPDATE events INDEXED BY events_by_id SET text = NULL, data = NULL WHERE channel_id = ?1 AND id = ?2",
                "UPDATE events INDEXED BY events_by_target SET text = NULL, data = NULL \
                 WHERE channel_id = ?1 AND target = ?2",
            ] {
                self.transaction.prepare_cached(sql)?.execute(params![channel.channel_id, target])?;
            }
        }
        channel.position.seq += 1;
        let position = channel.position;
        self.transaction
            .prepare_cached(
                "INSERT INTO events (channel_id, seq, ts_ms, kind, id, user_id, user_name, text, data, target, \
                 detail, client_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            )?
            .execute(params![
                channel.channel_id,
                int(position.seq),
                int(event.ts_ms),
                event.kind.row().name,
                ulid_bytes(event.id),
                event.user_id,
                event.user_name,
                event.text,
                event.data,
                event.target.map(ulid_bytes),
                event.detail,
                event.client_id,
            ])?;
        if let Some(key) = &event.idempotency_key {
            self.transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO idempotency (key, id, epoch, seq, ts_ms, kept_ms) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![
                    key,
                    ulid_bytes(event.id),
                    int(position.epoch),
                    int(position.seq),
                    int(event.ts_ms),
                    int(self.now_wall_ms),
                ])?;
        }
        Ok(Appended::New { position })
    }

    /// The message is in this channel, and was neither deleted nor retracted, not by this transaction either.
    fn stands(&self, key: &ChannelKey, message: Ulid) -> rusqlite::Result<bool> {
        self.transaction
            .prepare_cached(
                "SELECT 1 FROM events INDEXED BY events_by_id WHERE id = ?1 AND kind = ?2 \
                 AND (text IS NOT NULL OR data IS NOT NULL) \
                 AND channel_id = (SELECT channel_id FROM channels WHERE app = ?3 AND channel = ?4)",
            )?
            .exists(params![
                ulid_bytes(message),
                EventKind::MessageNew.row().name,
                key.app.as_str(),
                key.channel.as_str()
            ])
    }

    /// Writes the head of every channel that the batch touched; the last thing before the commit.
    pub(super) fn write_heads(&self) -> rusqlite::Result<()> {
        let mut set = self.transaction.prepare_cached("UPDATE channels SET head = ?2 WHERE channel_id = ?1")?;
        self.channels.values().try_for_each(|open| set.execute([open.channel_id, int(open.position.seq)]).map(drop))
    }
}

fn open_channel(transaction: &Transaction<'_>, epochs: &Epochs, key: &ChannelKey) -> rusqlite::Result<Open> {
    if let Some((channel_id, position)) = channel_row(transaction, key)? {
        return Ok(Open { channel_id, position });
    }
    let epoch = epochs.of(key);
    transaction
        .prepare_cached("INSERT INTO channels (app, channel, epoch, head) VALUES (?1, ?2, ?3, 0)")?
        .execute(params![key.app.as_str(), key.channel.as_str(), int(epoch)])?;
    Ok(Open { channel_id: transaction.last_insert_rowid(), position: Position { epoch, seq: 0 } })
}

/// What was answered to the first call with this key. Within a transaction that sees what it wrote itself, so a repeat
/// within a batch is found like any other.
pub(super) fn first_answer(
    connection: &Connection,
    now_wall_ms: u64,
    key: &str,
) -> rusqlite::Result<Option<FirstAnswer>> {
    connection
        .prepare_cached("SELECT id, epoch, seq, ts_ms FROM idempotency WHERE key = ?1 AND kept_ms > ?2")?
        .query_row(params![key, honoured_after(now_wall_ms)], |row| {
            let position = Position { epoch: number_at(row, 1)?, seq: number_at(row, 2)? };
            Ok(FirstAnswer { id: ulid_at(row, 0)?, position, ts_ms: number_at(row, 3)? })
        })
        .optional()
}

/// Keys kept at or before this moment are no longer honoured. Below zero, so that the first day of Unix time forgets
/// nothing.
pub(super) fn honoured_after(now_wall_ms: u64) -> i64 {
    int(now_wall_ms) - int(IDEMPOTENCY_KEPT_MS)
}
