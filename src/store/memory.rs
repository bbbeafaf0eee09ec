//! The store in memory, for simulations and tests.
//!
//! The same calls flow in as into the database, and the same answers flow out; faults are injected from outside. Always
//! true: a call that fails changes nothing, what was committed survives a crash of the simulated process (the value is
//! the disk: keep it, or a clone of it, and go on), and equal calls give equal answers.

use super::event::{Epochs, wipes};
use super::{
    Alarm, AlarmChange, AlarmVersion, Appended, Ban, FirstAnswer, IDEMPOTENCY_KEPT_MS, NewEvent, PAGE_EVENTS_MAX, Page,
    PageAsk, Pages, Position, Retained, Retention, RoomRow, Store, StoreError, StoredEvent,
};
use crate::base::{ChannelKey, Name, RoomChange, RoomId, Ulid};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
struct Channel {
    epoch: u64,
    head: u64,
    events: BTreeMap<u64, StoredEvent>,
}

#[derive(Clone, Debug)]
struct Kept {
    answer: FirstAnswer,
    kept_ms: u64,
}

/// A [`Store`] whose disk is this value.
#[derive(Clone, Debug)]
pub struct Memory {
    epochs: Epochs,
    generation: u64,
    channels: BTreeMap<ChannelKey, Channel>,
    answers: BTreeMap<String, Kept>,
    /// The keys above by age, so that a sweep looks only at what goes.
    answers_by_age: BTreeSet<(u64, String)>,
    rooms: BTreeMap<(ChannelKey, RoomId), u32>,
    alarms: BTreeMap<ChannelKey, Alarm>,
    alarm_version: u64,
    bans: BTreeMap<(Name, Name, Option<Name>), Option<u64>>,
    fault: Option<(u32, StoreError)>,
    stalled: bool,
}

impl Memory {
    /// An empty store whose epochs come from `fresh_epoch_seed`.
    #[must_use]
    pub fn new(fresh_epoch_seed: u64) -> Self {
        Self {
            epochs: Epochs::new(Epochs::base(fresh_epoch_seed, 1)),
            generation: 1,
            channels: BTreeMap::new(),
            answers: BTreeMap::new(),
            answers_by_age: BTreeSet::new(),
            rooms: BTreeMap::new(),
            alarms: BTreeMap::new(),
            alarm_version: 0,
            bans: BTreeMap::new(),
            fault: None,
            stalled: false,
        }
    }

    /// The next `times` calls that would write fail with `error`, and change nothing.
    pub fn fail_next(&mut self, times: u32, error: StoreError) {
        self.fault = (times > 0).then_some((times, error));
    }

    /// Marks the disk as hanging, or as well again. The store goes on answering: whoever drives it asks
    /// [`Self::is_stalled`] before each call and keeps the call back.
    pub fn set_stalled(&mut self, stalled: bool) {
        self.stalled = stalled;
    }

    /// Calls should be kept back now.
    #[must_use]
    pub const fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// The store as the next process finds it: all that was committed, no viewer in any room, no fault.
    #[must_use]
    pub fn reopened(mut self) -> Self {
        self.rooms.values_mut().for_each(|viewers| *viewers = 0);
        self.fault = None;
        self.stalled = false;
        self
    }

    /// The store after it was put back from an older copy: every channel gets a new epoch.
    #[must_use]
    pub fn restored(self, fresh_epoch_seed: u64) -> Self {
        let mut restored = self.reopened();
        restored.generation += 1;
        restored.epochs = Epochs::new(Epochs::base(fresh_epoch_seed, restored.generation));
        for (key, channel) in &mut restored.channels {
            channel.epoch = restored.epochs.of(key);
            channel.events.values_mut().for_each(|event| event.epoch = channel.epoch);
        }
        restored
    }

    fn before_write(&mut self) -> Result<(), StoreError> {
        let Some((times, error)) = self.fault.take() else { return Ok(()) };
        if times > 1 {
            self.fault = Some((times - 1, error.clone()));
        }
        Err(error)
    }

    fn set_alarm(&mut self, key: &ChannelKey, due_ms: u64, event: &str) -> u64 {
        self.alarm_version += 1;
        let version = self.alarm_version;
        self.alarms.insert(key.clone(), Alarm { key: key.clone(), due_ms, event: event.to_owned(), tries: 0, version });
        version
    }

    fn append(&mut self, now_wall_ms: u64, event: &NewEvent) -> Appended {
        if let Some(key) = &event.idempotency_key
            && let Some(first) = self.answered(now_wall_ms, key)
        {
            return Appended::Repeat(first);
        }
        if event.target.is_some_and(|target| !self.stands(&event.key, target)) {
            return Appended::NoTarget;
        }
        let epoch = self.epochs.of(&event.key);
        let channel = self.channels.entry(event.key.clone()).or_insert_with(|| Channel {
            epoch,
            head: 0,
            events: BTreeMap::new(),
        });
        if let Some(target) = wipes(event) {
            for old in channel.events.values_mut().filter(|old| old.id == target || old.target == Some(target)) {
                (old.text, old.data) = (None, None);
            }
        }
        channel.head += 1;
        let position = Position { epoch: channel.epoch, seq: channel.head };
        channel.events.insert(
            channel.head,
            StoredEvent {
                seq: position.seq,
                epoch: position.epoch,
                key: event.key.clone(),
                kind: event.kind,
                id: event.id,
                ts_ms: event.ts_ms,
                user_id: event.user_id.clone(),
                user_name: event.user_name.clone(),
                text: event.text.clone(),
                data: event.data.clone(),
                target: event.target,
                detail: event.detail.clone(),
                client_id: event.client_id.clone(),
            },
        );
        if let Some(key) = &event.idempotency_key {
            let answer = FirstAnswer { id: event.id, position, ts_ms: event.ts_ms };
            let kept = Kept { answer, kept_ms: now_wall_ms };
            if let Some(forgotten) = self.answers.insert(key.clone(), kept) {
                self.answers_by_age.remove(&(forgotten.kept_ms, key.clone()));
            }
            self.answers_by_age.insert((now_wall_ms, key.clone()));
        }
        Appended::New { position }
    }

    fn answered(&self, now_wall_ms: u64, key: &str) -> Option<FirstAnswer> {
        let kept = self.answers.get(key)?;
        (now_wall_ms < kept.kept_ms.saturating_add(IDEMPOTENCY_KEPT_MS)).then_some(kept.answer)
    }

    /// The message is in this channel, and was neither deleted nor retracted.
    fn stands(&self, key: &ChannelKey, message: Ulid) -> bool {
        self.channels.get(key).is_some_and(|channel| {
            channel.events.values().any(|event| event.id == message && event.is_standing_message())
        })
    }
}

impl Pages for Memory {
    fn page(&mut self, key: &ChannelKey, ask: PageAsk) -> Result<Page, StoreError> {
        let Some(channel) = self.channels.get(key) else {
            return Ok(Page { epoch: self.epochs.of(key), head: 0, first_kept: 1, events: Vec::new() });
        };
        let youngest = |below: u64, limit: u32| {
            let newest_first = channel.events.range(..below).rev().take(limit.min(PAGE_EVENTS_MAX) as usize);
            let mut events: Vec<_> = newest_first.map(|(_, event)| event.clone()).collect();
            events.reverse();
            events
        };
        let events = match ask {
            PageAsk::Before { seq, limit } => youngest(seq, limit),
            PageAsk::Latest { limit } => youngest(u64::MAX, limit),
            PageAsk::Since { seq, limit } => channel
                .events
                .range(seq.saturating_add(1)..)
                .take(limit.min(PAGE_EVENTS_MAX) as usize)
                .map(|(_, event)| event.clone())
                .collect(),
        };
        let first_kept = channel.events.first_key_value().map_or(channel.head + 1, |(seq, _)| *seq);
        Ok(Page { epoch: channel.epoch, head: channel.head, first_kept, events })
    }

    fn find(&mut self, key: &ChannelKey, id: Ulid) -> Result<Option<StoredEvent>, StoreError> {
        Ok(self.channels.get(key).and_then(|channel| channel.events.values().find(|event| event.id == id)).cloned())
    }

    fn first_answer(&mut self, now_wall_ms: u64, key: &str) -> Result<Option<FirstAnswer>, StoreError> {
        Ok(self.answered(now_wall_ms, key))
    }
}

impl Store for Memory {
    fn commit(&mut self, now_wall_ms: u64, batch: &[NewEvent]) -> Result<Vec<Appended>, StoreError> {
        self.before_write()?;
        Ok(batch.iter().map(|event| self.append(now_wall_ms, event)).collect())
    }

    fn rooms_save(&mut self, changes: &[RoomChange]) -> Result<(), StoreError> {
        self.before_write()?;
        for change in changes {
            let key = (change.key.clone(), change.room);
            match change.viewers {
                Some(viewers) => self.rooms.insert(key, viewers),
                None => self.rooms.remove(&key),
            };
        }
        Ok(())
    }

    fn rooms_load(&mut self) -> Result<Vec<RoomRow>, StoreError> {
        let row = |((key, room), viewers): (&(ChannelKey, RoomId), &u32)| RoomRow {
            key: key.clone(),
            room: *room,
            viewers: *viewers,
        };
        Ok(self.rooms.iter().map(row).collect())
    }

    fn retain(&mut self, ask: &Retention) -> Result<Retained, StoreError> {
        self.before_write()?;
        let mut left = ask.slice.max(1);
        let mut deleted = 0;
        for (key, channel) in self.channels.iter_mut().filter(|(key, _)| key.app == ask.app) {
            if ask.from.as_ref().is_some_and(|from| key.channel < *from) {
                continue;
            }
            if left == 0 {
                return Ok(Retained { deleted, next: Some(key.channel.clone()) });
            }
            let beyond = ask.keep_last.map_or(0, |keep| channel.head.saturating_sub(keep));
            let goes =
                |event: &StoredEvent| event.seq <= beyond || ask.older_than_ms.is_some_and(|older| event.ts_ms < older);
            let mut here = 0;
            while here < left && channel.events.first_key_value().is_some_and(|(_, event)| goes(event)) {
                channel.events.pop_first();
                here += 1;
            }
            deleted += here;
            if here == left {
                return Ok(Retained { deleted, next: Some(key.channel.clone()) });
            }
            left -= here.max(1);
        }
        Ok(Retained { deleted, next: None })
    }

    fn idempotency_sweep(&mut self, now_wall_ms: u64, slice: u32) -> Result<u32, StoreError> {
        self.before_write()?;
        let mut gone = 0;
        while gone < slice
            && self.answers_by_age.first().is_some_and(|(at, _)| at.saturating_add(IDEMPOTENCY_KEPT_MS) <= now_wall_ms)
        {
            if let Some((_, key)) = self.answers_by_age.pop_first() {
                self.answers.remove(&key);
                gone += 1;
            }
        }
        Ok(gone)
    }

    fn alarm_set(&mut self, key: &ChannelKey, due_ms: u64, event: &str) -> Result<u64, StoreError> {
        self.before_write()?;
        Ok(self.set_alarm(key, due_ms, event))
    }

    fn alarms_change(&mut self, changes: &[AlarmChange<'_>]) -> Result<(), StoreError> {
        self.before_write()?;
        for AlarmChange { key, set } in changes {
            match set {
                Some((due_ms, event)) => drop(self.set_alarm(key, *due_ms, event)),
                None => drop(self.alarms.remove(*key)),
            }
        }
        Ok(())
    }

    fn alarms_retry(&mut self, alarms: &[(AlarmVersion, u64)]) -> Result<Vec<bool>, StoreError> {
        self.before_write()?;
        let mut one = |((key, version), due_ms): &(AlarmVersion, u64)| {
            let slot = self.alarms.get_mut(key).filter(|alarm| alarm.version == *version);
            slot.map(|alarm| (alarm.due_ms, alarm.tries) = (*due_ms, alarm.tries.saturating_add(1))).is_some()
        };
        Ok(alarms.iter().map(&mut one).collect())
    }

    fn alarms_done(&mut self, alarms: &[AlarmVersion]) -> Result<Vec<bool>, StoreError> {
        self.before_write()?;
        let mut one = |(key, version): &AlarmVersion| {
            let holds = self.alarms.get(key).is_some_and(|alarm| alarm.version == *version);
            holds && self.alarms.remove(key).is_some()
        };
        Ok(alarms.iter().map(&mut one).collect())
    }

    fn alarm_clear(&mut self, key: &ChannelKey) -> Result<bool, StoreError> {
        self.before_write()?;
        Ok(self.alarms.remove(key).is_some())
    }

    fn alarms(&mut self, due_by_ms: u64, limit: u32) -> Result<Vec<Alarm>, StoreError> {
        let mut due: Vec<_> = self.alarms.values().filter(|alarm| alarm.due_ms <= due_by_ms).cloned().collect();
        due.sort_by_key(|alarm| (alarm.due_ms, alarm.version));
        due.truncate(limit as usize);
        Ok(due)
    }

    fn alarm_next(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(self.alarms.values().map(|alarm| alarm.due_ms).min())
    }

    fn ban_set(&mut self, ban: &Ban) -> Result<(), StoreError> {
        self.before_write()?;
        self.bans.insert((ban.app.clone(), ban.user.clone(), ban.channel.clone()), ban.expires_ms);
        Ok(())
    }

    fn ban_clear(&mut self, app: &Name, user: &Name, channel: Option<&Name>) -> Result<bool, StoreError> {
        self.before_write()?;
        Ok(self.bans.remove(&(app.clone(), user.clone(), channel.cloned())).is_some())
    }

    fn bans(&mut self, now_wall_ms: u64) -> Result<Vec<Ban>, StoreError> {
        let live = self.bans.iter().filter(|(_, expires)| expires.is_none_or(|at| at > now_wall_ms));
        let ban = |((app, user, channel), expires_ms): (&(Name, Name, Option<Name>), &Option<u64>)| Ban {
            app: app.clone(),
            user: user.clone(),
            channel: channel.clone(),
            expires_ms: *expires_ms,
        };
        Ok(live.map(ban).collect())
    }

    fn bans_sweep(&mut self, now_wall_ms: u64, slice: u32) -> Result<u32, StoreError> {
        self.before_write()?;
        let ended = self.bans.iter().filter(|(_, expires)| expires.is_some_and(|at| at <= now_wall_ms));
        let ended: BTreeSet<_> = ended.take(slice as usize).map(|(slot, _)| slot.clone()).collect();
        self.bans.retain(|slot, _| !ended.contains(slot));
        Ok(ended.len() as u32)
    }

    fn tidy(&mut self) -> Result<u64, StoreError> {
        Ok(0)
    }

    fn close(self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injected_faults_hit_the_next_writes_and_change_nothing() {
        let mut store = Memory::new(1);
        let ban =
            Ban { app: Name::new("demo").unwrap(), user: Name::new("ann").unwrap(), channel: None, expires_ms: None };
        store.fail_next(2, StoreError::Full);
        assert_eq!(store.ban_set(&ban), Err(StoreError::Full));
        assert_eq!(store.bans(0), Ok(Vec::new()));
        assert_eq!(store.commit(0, &[]), Err(StoreError::Full));
        assert_eq!(store.ban_set(&ban), Ok(()));
        assert_eq!(store.reopened().bans(0), Ok(vec![ban]));
    }

    #[test]
    fn a_stall_is_a_flag_for_whoever_drives_the_store() {
        let mut store = Memory::new(1);
        store.set_stalled(true);
        assert!(store.is_stalled() && !store.reopened().is_stalled());
    }
}
