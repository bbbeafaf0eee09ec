//! What the orchestrator has done in the store beside commits and bans, as values: alarms and housekeeping.
//!
//! A [`Chore`] flows in, a [`ChoreDone`] flows out; whoever owns the store only carries them. Always true: every chore is
//! answered once, by [`Chore::work`] or by [`Chore::refused`]; and it is short, for commits wait behind it.

use super::{Alarm, AlarmChange, AlarmVersion, Retained, Retention, Store, StoreError};
use crate::base::ChannelKey;

/// Something to be done in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Sets the alarm of a channel.
    SetAlarm {
        /// For the answer.
        number: u64,
        /// Whose slot.
        key: ChannelKey,
        /// When, in Unix milliseconds.
        due_ms: u64,
        /// What to publish then: JSON text.
        event: String,
    },
    /// Clears the slot of a channel.
    ClearAlarm {
        /// For the answer.
        number: u64,
        /// Whose slot.
        key: ChannelKey,
    },
    /// Marks the alarms that are due as tried, before anybody is told of them: a process that is lost between the
    /// publishing and the end of an alarm finds the mark, and says that it tells it again.
    RingAlarms {
        /// Due by now, in Unix milliseconds.
        now_wall_ms: u64,
        /// At most so many.
        limit: u32,
    },
    /// Clears the slots of alarms that were published, where they were not set anew meanwhile.
    FinishAlarms(Vec<AlarmVersion>),
    /// Deletes one slice of an app's old events.
    Retain(Retention),
    /// Forgets idempotency keys that are no longer honoured.
    SweepKeys {
        /// Now, in Unix milliseconds.
        now_wall_ms: u64,
        /// At most so many.
        slice: u32,
    },
    /// Forgets bans that have ended.
    SweepBans {
        /// Now, in Unix milliseconds.
        now_wall_ms: u64,
        /// At most so many.
        slice: u32,
    },
    /// Moves the log into the database: for an idle moment.
    Tidy,
}

/// When the soonest alarm is due after a chore, in Unix milliseconds.
pub type NextDue = Result<Option<u64>, StoreError>;

/// What became of a chore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChoreDone {
    /// Of [`Chore::SetAlarm`] and [`Chore::ClearAlarm`].
    AlarmChanged {
        /// The chore's.
        number: u64,
        /// It is durable, or the slot is as before.
        result: Result<(), StoreError>,
        /// What is due then.
        next: NextDue,
    },
    /// Of [`Chore::RingAlarms`].
    AlarmsRung {
        /// The alarms that are marked, as they were before: `tries` says how often they were marked earlier.
        rung: Vec<Alarm>,
        /// Why there are none, if it failed.
        result: Result<(), StoreError>,
        /// What is due then.
        next: NextDue,
    },
    /// Of [`Chore::FinishAlarms`].
    AlarmsFinished {
        /// Those whose slots could not be cleared: all or none.
        left: Vec<AlarmVersion>,
        /// Why.
        result: Result<(), StoreError>,
        /// What is due then.
        next: NextDue,
    },
    /// Of [`Chore::Retain`].
    Retained(Result<Retained, StoreError>),
    /// Of [`Chore::SweepKeys`] and [`Chore::SweepBans`]: how many went.
    Swept(Result<u32, StoreError>),
    /// Of [`Chore::Tidy`]: bytes that still wait in the log.
    Tidied(Result<u64, StoreError>),
}

/// How long after try number `tries` (0 is the first) the next one comes, in milliseconds: 1, 2, 4 … 32 s.
#[must_use]
pub fn retry_after_ms(tries: u32) -> u64 {
    1_000 << tries.min(5)
}

impl Chore {
    /// Does it.
    pub fn work(self, store: &mut impl Store) -> ChoreDone {
        match self {
            Self::SetAlarm { number, key, due_ms, event } => {
                let result = store.alarm_set(&key, due_ms, &event).map(drop);
                ChoreDone::AlarmChanged { number, result, next: store.alarm_next() }
            }
            Self::ClearAlarm { number, key } => {
                let result = store.alarm_clear(&key).map(drop);
                ChoreDone::AlarmChanged { number, result, next: store.alarm_next() }
            }
            Self::RingAlarms { now_wall_ms, limit } => match ring(store, now_wall_ms, limit) {
                Ok(rung) => ChoreDone::AlarmsRung { rung, result: Ok(()), next: store.alarm_next() },
                Err(error) => ChoreDone::AlarmsRung { rung: Vec::new(), result: Err(error), next: store.alarm_next() },
            },
            Self::FinishAlarms(alarms) => {
                let result = store.alarms_done(&alarms).map(drop);
                let left = if result.is_ok() { Vec::new() } else { alarms };
                ChoreDone::AlarmsFinished { left, result, next: store.alarm_next() }
            }
            Self::Retain(ask) => ChoreDone::Retained(store.retain(&ask)),
            Self::SweepKeys { now_wall_ms, slice } => ChoreDone::Swept(store.idempotency_sweep(now_wall_ms, slice)),
            Self::SweepBans { now_wall_ms, slice } => ChoreDone::Swept(store.bans_sweep(now_wall_ms, slice)),
            Self::Tidy => ChoreDone::Tidied(store.tidy()),
        }
    }

    /// It sets or clears an alarm, and may share a transaction with others that do.
    #[must_use]
    pub const fn is_alarm_change(&self) -> bool {
        matches!(self, Self::SetAlarm { .. } | Self::ClearAlarm { .. })
    }

    /// Does changes of alarms in one transaction, in their order; what is none is done beside it.
    pub fn work_together(chores: Vec<Self>, store: &mut impl Store) -> Vec<ChoreDone> {
        let (changes, others): (Vec<Self>, Vec<Self>) = chores.into_iter().partition(Self::is_alarm_change);
        let (numbers, slots): (Vec<u64>, Vec<AlarmChange<'_>>) = changes.iter().filter_map(Self::alarm_change).unzip();
        let result = store.alarms_change(&slots);
        let next = store.alarm_next();
        let changed = numbers.into_iter().map(|number| ChoreDone::AlarmChanged {
            number,
            result: result.clone(),
            next: next.clone(),
        });
        changed.chain(others.into_iter().map(|chore| chore.work(store))).collect()
    }

    /// Its number and what it changes, if it changes an alarm.
    fn alarm_change(&self) -> Option<(u64, AlarmChange<'_>)> {
        match self {
            Self::SetAlarm { number, key, due_ms, event } => {
                Some((*number, AlarmChange { key, set: Some((*due_ms, event.as_str())) }))
            }
            Self::ClearAlarm { number, key } => Some((*number, AlarmChange { key, set: None })),
            _ => None,
        }
    }

    /// The answer of a chore that was not begun.
    #[must_use]
    pub fn refused(self, error: StoreError) -> ChoreDone {
        let next = Err(error.clone());
        match self {
            Self::SetAlarm { number, .. } | Self::ClearAlarm { number, .. } => {
                ChoreDone::AlarmChanged { number, result: Err(error), next }
            }
            Self::RingAlarms { .. } => ChoreDone::AlarmsRung { rung: Vec::new(), result: Err(error), next },
            Self::FinishAlarms(left) => ChoreDone::AlarmsFinished { left, result: Err(error), next },
            Self::Retain(_) => ChoreDone::Retained(Err(error)),
            Self::SweepKeys { .. } | Self::SweepBans { .. } => ChoreDone::Swept(Err(error)),
            Self::Tidy => ChoreDone::Tidied(Err(error)),
        }
    }
}

/// Marks what is due; gives the alarms as they were before.
fn ring(store: &mut impl Store, now_wall_ms: u64, limit: u32) -> Result<Vec<Alarm>, StoreError> {
    let due = store.alarms(now_wall_ms, limit)?;
    if due.is_empty() {
        return Ok(due);
    }
    let next_try_ms = |alarm: &Alarm| now_wall_ms.saturating_add(retry_after_ms(alarm.tries));
    let marks: Vec<_> = due.iter().map(|alarm| ((alarm.key.clone(), alarm.version), next_try_ms(alarm))).collect();
    let marked = store.alarms_retry(&marks)?;
    Ok(due.into_iter().zip(marked).filter_map(|(alarm, marked)| marked.then_some(alarm)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::store::Memory;

    #[test]
    fn an_alarm_is_marked_before_it_is_told_and_goes_when_it_is_finished() {
        let name = Name::new("x").unwrap();
        let key = ChannelKey::new(name.clone(), name);
        let mut store = Memory::new(1);
        let set = Chore::SetAlarm { number: 1, key: key.clone(), due_ms: 500, event: "{}".into() };
        assert_eq!(set.work(&mut store), ChoreDone::AlarmChanged { number: 1, result: Ok(()), next: Ok(Some(500)) });
        let ring = |now_wall_ms| Chore::RingAlarms { now_wall_ms, limit: 9 };
        let ChoreDone::AlarmsRung { rung, .. } = ring(499).work(&mut store) else { panic!() };
        assert!(rung.is_empty(), "not early");
        let ChoreDone::AlarmsRung { rung, result, next } = ring(500).work(&mut store) else { panic!() };
        assert_eq!((rung.len(), rung[0].tries, result, next), (1, 0, Ok(()), Ok(Some(1_500))));
        let finish = Chore::FinishAlarms(vec![(key, rung[0].version)]);
        store.fail_next(1, StoreError::Full);
        let ChoreDone::AlarmsFinished { left, result, next } = finish.work(&mut store) else { panic!() };
        assert_eq!((left.len(), result, next), (1, Err(StoreError::Full), Ok(Some(1_500))));
        let done = Chore::FinishAlarms(left).work(&mut store);
        assert_eq!(done, ChoreDone::AlarmsFinished { left: Vec::new(), result: Ok(()), next: Ok(None) });
    }

    #[test]
    fn changes_that_come_together_are_all_made_or_none_and_each_is_answered() {
        let mut store = Memory::new(1);
        let key = |text: &str| ChannelKey::new(Name::new("x").unwrap(), Name::new(text).unwrap());
        let set = |number, text: &str, due_ms| Chore::SetAlarm { number, key: key(text), due_ms, event: "{}".into() };
        let chores = || vec![set(1, "a", 5), set(2, "b", 3), Chore::ClearAlarm { number: 3, key: key("b") }];
        store.fail_next(1, StoreError::Full);
        let failed = Chore::work_together(chores(), &mut store);
        let full = |number| ChoreDone::AlarmChanged { number, result: Err(StoreError::Full), next: Ok(None) };
        assert_eq!(failed, [full(1), full(2), full(3)]);
        let done = Chore::work_together(chores(), &mut store);
        let fine = |number| ChoreDone::AlarmChanged { number, result: Ok(()), next: Ok(Some(5)) };
        assert_eq!(done, [fine(1), fine(2), fine(3)]);
    }

    #[test]
    fn the_waits_double_up_to_half_a_minute() {
        assert_eq!([0, 1, 2, 5, 99].map(retry_after_ms), [1_000, 2_000, 4_000, 32_000, 32_000]);
    }
}
