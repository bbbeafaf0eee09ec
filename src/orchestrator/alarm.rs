//! Durable alarms: at a moment that a backend named, an event is published to its channel.
//!
//! Changes of backends and the time flow in; chores for the store and events for the channels' partitions flow out.
//! Always true: no alarm rings early; each rings at least once, also over the end of a process, for its slot is cleared
//! only after it was published; and whatever may be the second ringing of an alarm says so (`"retry": n`), for it is
//! marked in the store before it is published. An event that is neither stored nor critical may still be dropped at a
//! full mailbox, like every event of its class.
//!
//! The slots lie in the store. In memory are the moment at which the soonest is due, and at most one handful of alarms
//! that are on their way: the next are not asked for before the slots of these are cleared, so that none of them comes
//! twice in one process.

use std::collections::{BTreeMap, VecDeque};

use super::{Action, Orchestrator};
use crate::base::{ChannelKey, Class, Gauge, Now, ShardId};
use crate::post::letters::ToShard;
use crate::store::chore::{Chore, ChoreDone, NextDue, retry_after_ms};
use crate::store::{Alarm, AlarmVersion, StoreError};
use crate::wire::event::Sources;
use crate::wire::posted_event::PostedEvent;
use crate::wire::problem::Problem;
use crate::wire::sealed::{Member, Sealed};
use crate::wire::topic::{Scope, partition};

/// Alarms that are marked at a time, in one transaction, and cleared in another: the posts of this moment wait behind two
/// syncs of the disk, and 10,000 alarms of one moment have rung after some 300.
const RING_MAX: u32 = 64;
/// Changes that wait for the store at the most.
const CHANGES_MAX: usize = 32;
/// Further ringings of an alarm whose end was not written down; then its slot is cleared without one more.
const RETRIES_MAX: u32 = 6;

/// The alarms of all channels.
#[derive(Debug)]
pub(super) struct Alarms {
    /// When the soonest is due, in Unix milliseconds.
    due_ms: Option<u64>,
    /// When something is to be done, in monotonic milliseconds.
    wake_at_ms: Option<u64>,
    phase: Phase,
    /// How often in a row the store has failed, and until when it is left alone.
    failures: u32,
    wait_until_ms: u64,
    changes: BTreeMap<u64, Change>,
    next_change: u64,
    rung: u64,
    given_up: u64,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is due.
    Resting,
    /// The store marks what is due.
    Marking,
    /// These are marked; those in front wait for a credit, those behind are published.
    Telling(VecDeque<Alarm>, Vec<AlarmVersion>),
    /// The store clears the slots of what was published.
    Finishing,
}

#[derive(Debug)]
struct Change {
    ticket: u64,
    asker: ShardId,
    key: ChannelKey,
}

impl Default for Alarms {
    /// What is due is not known yet, so the store is asked at once.
    fn default() -> Self {
        Self {
            due_ms: Some(0),
            wake_at_ms: Some(0),
            phase: Phase::Resting,
            failures: 0,
            wait_until_ms: 0,
            changes: BTreeMap::new(),
            next_change: 1,
            rung: 0,
            given_up: 0,
        }
    }
}

impl Alarms {
    /// When there is something to do, in monotonic milliseconds.
    pub(super) fn wake_at_ms(&self) -> Option<u64> {
        self.wake_at_ms
    }

    /// Nothing is on its way that the end of the process would cut off.
    pub(super) fn is_quiet(&self) -> bool {
        self.changes.is_empty() && (self.failures > 0 || matches!(self.phase, Phase::Resting))
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::new(self.changes.len() as u64, CHANGES_MAX as u64)
    }

    fn learn_next(&mut self, now: Now, next: NextDue) {
        self.due_ms = match next {
            Ok(due_ms) => due_ms,
            // Not known: it is asked for again.
            Err(_) => Some(self.due_ms.unwrap_or(u64::MAX).min(now.wall_ms.saturating_add(retry_after_ms(0)))),
        };
    }

    fn learn_result(&mut self, now: Now, result: &Result<(), StoreError>) {
        if result.is_ok() {
            self.failures = 0;
        } else {
            self.wait_until_ms = now.mono_ms() + retry_after_ms(self.failures);
            self.failures = self.failures.saturating_add(1);
        }
    }
}

impl Orchestrator {
    /// Sets the alarm of a channel, or clears it.
    pub(super) fn change_alarm(&mut self, ticket: u64, asker: ShardId, key: ChannelKey, set: Option<(u64, String)>) {
        if self.alarms.changes.len() >= CHANGES_MAX {
            let detail = format!("{CHANGES_MAX} alarms wait for the disk");
            let answer = Err(Problem::new(503, "busy", detail).retry_after(1));
            return self.answer(asker, ToShard::Done { ticket, answer });
        }
        let number = self.alarms.next_change;
        self.alarms.next_change += 1;
        self.alarms.changes.insert(number, Change { ticket, asker, key: key.clone() });
        self.actions.push_back(Action::Chore(match set {
            Some((due_ms, event)) => Chore::SetAlarm { number, key, due_ms, event },
            None => Chore::ClearAlarm { number, key },
        }));
    }

    /// A chore is done, or is not.
    pub fn on_chore(&mut self, now: Now, done: ChoreDone) {
        match done {
            ChoreDone::AlarmChanged { number, result, next } => {
                self.alarms.learn_next(now, next);
                let Some(Change { ticket, asker, key }) = self.alarms.changes.remove(&number) else { return };
                if result.is_ok()
                    && let Phase::Telling(waiting, _) = &mut self.alarms.phase
                {
                    // It was replaced or cleared before anybody was told.
                    waiting.retain(|alarm| alarm.key != key);
                }
                let answer = result.map_err(|error| super::publish::store_problem(&error));
                self.answer(asker, ToShard::Done { ticket, answer });
            }
            ChoreDone::AlarmsRung { rung, result, next } => {
                self.alarms.learn_next(now, next);
                self.alarms.learn_result(now, &result);
                self.alarms.phase = Phase::Telling(rung.into(), Vec::new());
            }
            ChoreDone::AlarmsFinished { left, result, next } => {
                self.alarms.learn_next(now, next);
                self.alarms.learn_result(now, &result);
                // After the last try the slots are left to ring again, as retries.
                self.alarms.phase = if left.is_empty() || self.alarms.failures > RETRIES_MAX {
                    Phase::Resting
                } else {
                    Phase::Telling(VecDeque::new(), left)
                };
            }
            ChoreDone::Retained(result) => self.on_retained(now, result),
            ChoreDone::Swept(result) => self.on_swept(now, result),
            ChoreDone::Tidied(_) => self.on_tidied(now),
        }
    }

    /// Does what is due with the alarms.
    pub(super) fn drive_alarms(&mut self, now: Now) {
        let may_ask = now.mono_ms() >= self.alarms.wait_until_ms;
        match &mut self.alarms.phase {
            Phase::Resting => {
                let is_due = self.alarms.due_ms.is_some_and(|due_ms| due_ms <= now.wall_ms);
                // What becomes due while the node goes away rings in the next process.
                if is_due && may_ask && !self.draining {
                    self.alarms.phase = Phase::Marking;
                    let ring = Chore::RingAlarms { now_wall_ms: now.wall_ms, limit: RING_MAX };
                    self.actions.push_back(Action::Chore(ring));
                }
            }
            Phase::Telling(..) => self.tell_alarms(now, may_ask),
            Phase::Marking | Phase::Finishing => {}
        }
        let alarms = &mut self.alarms;
        alarms.wake_at_ms = match &alarms.phase {
            Phase::Resting if !self.draining => alarms.due_ms.map(|due_ms| {
                now.mono_ms().saturating_add(due_ms.saturating_sub(now.wall_ms)).max(alarms.wait_until_ms)
            }),
            // What waits for a credit goes on when one comes back.
            Phase::Telling(waiting, _) if waiting.is_empty() => Some(alarms.wait_until_ms),
            _ => None,
        };
    }

    fn tell_alarms(&mut self, now: Now, may_ask: bool) {
        let Phase::Telling(mut waiting, mut told) = std::mem::replace(&mut self.alarms.phase, Phase::Finishing) else {
            return;
        };
        while let Some(alarm) = waiting.pop_front() {
            if !self.tell_alarm(now, &alarm) {
                waiting.push_front(alarm);
                self.alarms.phase = Phase::Telling(waiting, told);
                return;
            }
            told.push((alarm.key, alarm.version));
        }
        if told.is_empty() {
            self.alarms.phase = Phase::Resting;
        } else if may_ask {
            self.actions.push_back(Action::Chore(Chore::FinishAlarms(told)));
        } else {
            self.alarms.phase = Phase::Telling(waiting, told);
        }
    }

    /// False if it must wait for a credit.
    fn tell_alarm(&mut self, now: Now, alarm: &Alarm) -> bool {
        if alarm.tries > RETRIES_MAX {
            self.alarms.given_up += 1;
            return true;
        }
        // It was checked when it was set, by this version or by an earlier one.
        let Ok(sealed) = self.seal_alarm(now, alarm) else {
            self.alarms.given_up += 1;
            return true;
        };
        if sealed.kind().row().class == Class::Critical {
            if self.credits().is_full() {
                return false;
            }
            self.alarms.rung += 1;
            self.publish_with_credit(sealed);
        } else {
            let (app, channel) = (alarm.key.app.as_str(), alarm.key.channel.as_str());
            let partition = partition(Scope::Channel, app, channel, self.options.shards);
            self.alarms.rung += 1;
            self.actions.push_back(Action::Publish { partition, sealed });
        }
        true
    }

    fn seal_alarm(&self, now: Now, alarm: &Alarm) -> Result<Sealed, Problem> {
        let refused = |why: String| Problem::new(500, "bad_alarm", why);
        let posted: PostedEvent<'_> = serde_json::from_str(&alarm.event).map_err(|error| refused(error.to_string()))?;
        let topic = self.hasher.topic(Scope::Channel, &alarm.key.app, &alarm.key.channel);
        let kind = posted.kind()?;
        let mut event = posted.into_event(kind, Sources::SERVER, topic, now.wall_ms, u32::MAX)?;
        if alarm.tries > 0 {
            event.members.push(("retry".to_owned(), Member::Number(u64::from(alarm.tries))));
        }
        Sealed::seal(&event).map_err(|bad| refused(bad.to_string()))
    }

    /// Alarms whose event was published by this process; and those whose slots were cleared although their last ringing
    /// may have reached nobody.
    pub(super) fn alarm_counts(&self) -> [u64; 2] {
        [self.alarms.rung, self.alarms.given_up]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::orchestrator::OrchestratorOptions;
    use crate::store::{Memory, Store};
    use crate::wire::topic::TopicHasher;

    fn key(channel: &str) -> ChannelKey {
        ChannelKey::new(Name::new("demo").unwrap(), Name::new(channel).unwrap())
    }

    fn at(wall_ms: u64) -> Now {
        Now { mono_us: wall_ms * 1_000, wall_ms: 1_000_000 + wall_ms }
    }

    fn orchestrator(options: OrchestratorOptions) -> Orchestrator {
        Orchestrator::new(options, TopicHasher::new(1), [], [], at(0))
    }

    /// Runs until nothing more is done; returns the events that were published.
    fn run(node: &mut Orchestrator, store: &mut Memory, now: Now) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(action) = node.poll_action(now) {
            match action {
                Action::Chore(chore) => node.on_chore(now, chore.work(store)),
                Action::Publish { sealed, .. } => {
                    let frame = String::from_utf8_lossy(sealed.json_frame()).into_owned();
                    told.push(frame[frame.find('{').unwrap()..].to_owned());
                }
                _ => {}
            }
        }
        told
    }

    #[test]
    fn it_rings_when_it_is_due_and_once() {
        let (mut node, mut store) = (orchestrator(OrchestratorOptions::default()), Memory::new(1));
        assert!(run(&mut node, &mut store, at(0)).is_empty());
        node.change_alarm(1, ShardId(0), key("a"), Some((1_005_000, r#"{"type":"custom.goal","data":1}"#.into())));
        assert!(run(&mut node, &mut store, at(10)).is_empty());
        assert_eq!(node.alarms.wake_at_ms(), Some(5_000));
        assert!(run(&mut node, &mut store, at(4_999)).is_empty());
        let told = run(&mut node, &mut store, at(5_000));
        assert!(told.len() == 1 && told[0].contains("custom.goal") && !told[0].contains("retry"), "{told:?}");
        assert!(run(&mut node, &mut store, at(60_000)).is_empty());
        assert_eq!((node.alarms.wake_at_ms(), store.alarm_next()), (None, Ok(None)));
    }

    #[test]
    fn a_wall_clock_that_steps_makes_nothing_ring_early_or_twice() {
        let (mut node, mut store) = (orchestrator(OrchestratorOptions::default()), Memory::new(1));
        node.change_alarm(1, ShardId(0), key("a"), Some((1_005_000, r#"{"type":"custom.goal"}"#.into())));
        // The wall goes back by a minute just before: it rings when the wall says so, not when the seconds are over.
        let stepped = |mono_ms: u64, wall_ms: u64| Now { mono_us: mono_ms * 1_000, wall_ms };
        assert!(run(&mut node, &mut store, at(4_990)).is_empty());
        assert!(run(&mut node, &mut store, stepped(5_010, 945_010)).is_empty());
        assert_eq!(node.alarms.wake_at_ms(), Some(65_000));
        assert_eq!(run(&mut node, &mut store, stepped(65_000, 1_005_000)).len(), 1);
        // It goes back behind it: what has rung does not ring again.
        assert!(run(&mut node, &mut store, stepped(65_010, 900_000)).is_empty());
        assert!(run(&mut node, &mut store, stepped(170_010, 1_005_000)).is_empty());
        // And forward over one that is set: that one is due at once, and the loop looks at least once a second.
        node.change_alarm(2, ShardId(0), key("b"), Some((2_000_000, r#"{"type":"custom.goal"}"#.into())));
        assert!(run(&mut node, &mut store, stepped(170_020, 1_005_010)).is_empty());
        assert_eq!(run(&mut node, &mut store, stepped(171_020, 3_000_000)).len(), 1);
        assert!(node.next_alarm_ms() <= 171_020 + 1_000);
    }

    #[test]
    fn a_store_that_fails_is_asked_again_after_1_2_4_seconds_and_nobody_is_told_twice() {
        let (mut node, mut store) = (orchestrator(OrchestratorOptions::default()), Memory::new(1));
        store.alarm_set(&key("a"), 0, r#"{"type":"custom.goal"}"#).unwrap();
        store.fail_next(2, StoreError::Full);
        assert!(run(&mut node, &mut store, at(0)).is_empty(), "not marked, so not told");
        assert_eq!(node.alarms.wake_at_ms(), Some(1_000));
        assert!(run(&mut node, &mut store, at(1_000)).is_empty());
        assert_eq!(node.alarms.wake_at_ms(), Some(3_000));
        // The mark is written, the end is not.
        node.drive_alarms(at(3_000));
        let Some(Action::Chore(ring)) = node.actions.pop_front() else { panic!() };
        node.on_chore(at(3_000), ring.work(&mut store));
        store.fail_next(1, StoreError::Full);
        assert_eq!(run(&mut node, &mut store, at(3_000)).len(), 1);
        assert_eq!(node.alarms.wake_at_ms(), Some(4_000));
        assert!(run(&mut node, &mut store, at(4_000)).is_empty(), "only the end is written");
        assert_eq!(store.alarm_next(), Ok(None));
    }

    #[test]
    fn a_critical_one_waits_for_its_credit_and_one_that_is_cleared_meanwhile_is_not_told() {
        let options = OrchestratorOptions { credits_max: 0, ..OrchestratorOptions::default() };
        let (mut node, mut store) = (orchestrator(options), Memory::new(1));
        store.alarm_set(&key("a"), 0, r#"{"type":"access.revoked","user":"eve"}"#).unwrap();
        store.alarm_set(&key("b"), 0, r#"{"type":"access.revoked","user":"eve"}"#).unwrap();
        assert!(run(&mut node, &mut store, at(0)).is_empty());
        node.change_alarm(1, ShardId(0), key("a"), None);
        assert!(run(&mut node, &mut store, at(1)).is_empty());
        node.options.credits_max = 9;
        assert_eq!(run(&mut node, &mut store, at(2)).len(), 1);
        assert_eq!(store.alarm_next(), Ok(None));
    }

    #[test]
    fn a_retry_says_so_and_after_the_last_the_slot_is_cleared() {
        let mut store = Memory::new(1);
        let version = store.alarm_set(&key("a"), 0, r#"{"type":"custom.goal"}"#).unwrap();
        for _ in 0..RETRIES_MAX {
            store.alarms_retry(&[((key("a"), version), 0)]).unwrap();
        }
        let told = run(&mut orchestrator(OrchestratorOptions::default()), &mut store.clone(), at(0));
        assert!(told.len() == 1 && told[0].contains(r#""retry":6"#), "{told:?}");
        store.alarms_retry(&[((key("a"), version), 0)]).unwrap();
        let mut node = orchestrator(OrchestratorOptions::default());
        assert!(run(&mut node, &mut store, at(0)).is_empty());
        assert_eq!((node.alarm_counts(), store.alarm_next()), ([0, 1], Ok(None)));
    }
}
