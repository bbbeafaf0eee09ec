//! Housekeeping of the store: old messages, answered keys and ended bans go, in slices.
//!
//! The time and the results of slices flow in, chores flow out. Always true: one slice is under way at a time, with a
//! pause behind it, so that a commit waits for one slice at the most; an app without a rule keeps all; and the log is
//! moved into the database only while no message waits.

use super::{Action, Orchestrator};
use crate::base::{Name, Now};
use crate::store::chore::Chore;
use crate::store::{Retained, Retention, StoreError};

/// Between two slices, in milliseconds.
const PAUSE_MS: u64 = 50;
/// Rows, keys or bans of one slice: some milliseconds of the disk.
const SLICE: u32 = 500;
/// How often an idle moment is looked for; then the next round looks for one.
const LOOKS_MAX: u32 = 100;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// What of an app's messages is kept; 0 sets no bound. A message goes when either bound lets it go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionRule {
    /// The tenant.
    pub app: Name,
    /// Messages older than so many days go.
    pub days: u32,
    /// All but the youngest so many of each channel go.
    pub messages: u32,
}

impl RetentionRule {
    fn slice(&self, now: Now, from: Option<Name>) -> Retention {
        let age_ms = u64::from(self.days) * DAY_MS;
        Retention {
            app: self.app.clone(),
            from,
            older_than_ms: (self.days > 0).then(|| now.wall_ms.saturating_sub(age_ms)),
            keep_last: (self.messages > 0).then_some(u64::from(self.messages)),
            slice: SLICE,
        }
    }
}

/// Where a round is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The rule of this place, from this channel on.
    Retain(usize, Option<Name>),
    Keys,
    Bans,
    /// So many idle moments were looked for.
    Tidy(u32),
}

/// The round of housekeeping.
#[derive(Debug)]
pub(super) struct Upkeep {
    step: Step,
    under_way: bool,
    /// When the next slice begins, in monotonic milliseconds.
    at_ms: u64,
    /// Between the end of a round and the next, in milliseconds.
    round_ms: u64,
}

impl Upkeep {
    pub(super) fn new(now: Now, round_ms: u32) -> Self {
        let round_ms = u64::from(round_ms);
        Self { step: Step::Retain(0, None), under_way: false, at_ms: now.mono_ms() + round_ms, round_ms }
    }

    /// When there is something to do, in monotonic milliseconds.
    pub(super) fn wake_at_ms(&self) -> Option<u64> {
        (!self.under_way).then_some(self.at_ms)
    }

    fn go_on(&mut self, now: Now, step: Step) {
        self.under_way = false;
        self.step = step;
        self.at_ms = now.mono_ms() + PAUSE_MS;
    }

    fn end_round(&mut self, now: Now) {
        self.go_on(now, Step::Retain(0, None));
        self.at_ms = now.mono_ms() + self.round_ms;
    }
}

impl Orchestrator {
    /// Does what is due with the housekeeping.
    pub(super) fn drive_upkeep(&mut self, now: Now) {
        if self.upkeep.under_way || now.mono_ms() < self.upkeep.at_ms {
            return;
        }
        if self.draining {
            // The next process goes on with it.
            self.upkeep.at_ms = u64::MAX;
            return;
        }
        let chore = loop {
            match &mut self.upkeep.step {
                Step::Retain(at, from) => {
                    let Some(rule) = self.options.retention.get(*at) else {
                        self.upkeep.step = Step::Keys;
                        continue;
                    };
                    if rule.days > 0 || rule.messages > 0 {
                        break Chore::Retain(rule.slice(now, from.take()));
                    }
                    self.upkeep.step = Step::Retain(*at + 1, None);
                }
                Step::Keys => break Chore::SweepKeys { now_wall_ms: now.wall_ms, slice: SLICE },
                Step::Bans => break Chore::SweepBans { now_wall_ms: now.wall_ms, slice: SLICE },
                Step::Tidy(looks) => {
                    if self.group.gauge().used == 0 {
                        break Chore::Tidy;
                    }
                    let looks = *looks + 1;
                    if looks < LOOKS_MAX {
                        self.upkeep.go_on(now, Step::Tidy(looks));
                    } else {
                        self.upkeep.end_round(now);
                    }
                    return;
                }
            }
        };
        self.upkeep.under_way = true;
        self.actions.push_back(Action::Chore(chore));
    }

    pub(super) fn on_retained(&mut self, now: Now, result: Result<Retained, StoreError>) {
        let Step::Retain(at, _) = self.upkeep.step else { return };
        let step = match result {
            Ok(Retained { next: Some(from), .. }) => Step::Retain(at, Some(from)),
            // A rule that fails is tried again in the next round; the others have their turn.
            Ok(Retained { next: None, .. }) | Err(_) => Step::Retain(at + 1, None),
        };
        self.upkeep.go_on(now, step);
    }

    pub(super) fn on_swept(&mut self, now: Now, result: Result<u32, StoreError>) {
        let more = result.is_ok_and(|gone| gone >= SLICE);
        let step = match &self.upkeep.step {
            step if more => step.clone(),
            Step::Keys => Step::Bans,
            _ => Step::Tidy(0),
        };
        self.upkeep.go_on(now, step);
    }

    pub(super) fn on_tidied(&mut self, now: Now) {
        self.upkeep.end_round(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ChannelKey;
    use crate::orchestrator::OrchestratorOptions;
    use crate::store::{Memory, NewEvent, PageAsk, Pages, Store};
    use crate::wire::event::EventKind;
    use crate::wire::topic::TopicHasher;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn at(ms: u64) -> Now {
        Now { mono_us: ms * 1_000, wall_ms: 100 * DAY_MS + ms }
    }

    fn message(app: &str, channel: &str, ts_ms: u64) -> NewEvent {
        NewEvent {
            key: ChannelKey::new(name(app), name(channel)),
            kind: EventKind::MessageNew,
            id: crate::base::Ulid(u128::from(ts_ms)),
            ts_ms,
            idempotency_key: None,
            user_id: None,
            user_name: None,
            text: Some("x".into()),
            data: None,
            target: None,
            detail: None,
            client_id: None,
        }
    }

    fn kept(store: &mut Memory, app: &str, channel: &str) -> usize {
        let ask = PageAsk::Latest { limit: u32::MAX };
        let page = store.page(&ChannelKey::new(name(app), name(channel)), ask).unwrap();
        (page.head + 1 - page.first_kept) as usize
    }

    #[test]
    fn rules_hold_slice_by_slice_and_who_has_none_keeps_all() {
        let rule = |app, days, messages| RetentionRule { app: name(app), days, messages };
        let retention = vec![rule("keep", 0, 0), rule("count", 0, 10), rule("age", 2, 0)];
        let options = OrchestratorOptions { retention, ..OrchestratorOptions::default() };
        let mut node = Orchestrator::new(options, TopicHasher::new(1), [], [], at(0));
        let mut store = Memory::new(1);
        let old = (0..1_200).map(|i| message("count", "a", i));
        let aged = (0..5).map(|i| message("age", "a", (95 + i) * DAY_MS + DAY_MS / 2));
        let all: Vec<_> = old.chain(aged).chain([message("keep", "a", 0), message("count", "b", 0)]).collect();
        store.commit(0, &all).unwrap();

        let (mut now_ms, mut chores) = (0, Vec::new());
        while !chores.contains(&Chore::Tidy) {
            now_ms = node.upkeep.wake_at_ms().unwrap();
            node.on_alarm(at(now_ms));
            let mut under_way = Vec::new();
            while let Some(action) = node.poll_action(at(now_ms)) {
                if let Action::Chore(chore) = action {
                    under_way.push(chore);
                }
            }
            under_way.retain(|chore| !matches!(chore, Chore::RingAlarms { .. }));
            assert_eq!(under_way.len(), 1, "one slice at a time");
            for chore in under_way {
                chores.push(chore.clone());
                node.on_chore(at(now_ms), chore.work(&mut store));
            }
        }
        let kept = |store: &mut Memory, app, channel| kept(store, app, channel);
        assert_eq!(
            (kept(&mut store, "count", "a"), kept(&mut store, "count", "b"), kept(&mut store, "age", "a")),
            (10, 1, 2)
        );
        assert_eq!(kept(&mut store, "keep", "a"), 1);
        let slices = chores.iter().filter(|chore| matches!(chore, Chore::Retain(_))).count();
        assert!((4..=6).contains(&slices), "{slices} slices");
        assert!(now_ms >= 60_000 && node.upkeep.wake_at_ms() == Some(now_ms + 60_000));
    }

    #[test]
    fn a_store_that_fails_ends_no_round_for_good() {
        let retention = vec![RetentionRule { app: name("a"), days: 1, messages: 0 }];
        let options = OrchestratorOptions { retention, ..OrchestratorOptions::default() };
        let mut node = Orchestrator::new(options, TopicHasher::new(1), [], [], at(0));
        let mut now_ms = 0;
        let mut steps = Vec::new();
        for _ in 0..4 {
            now_ms = node.upkeep.wake_at_ms().unwrap().max(now_ms);
            node.drive_upkeep(at(now_ms));
            let Some(Action::Chore(chore)) = node.actions.pop_back() else { panic!() };
            steps.push(chore.clone());
            node.on_chore(at(now_ms), chore.refused(StoreError::Full));
        }
        assert!(matches!(steps[..], [Chore::Retain(_), Chore::SweepKeys { .. }, Chore::SweepBans { .. }, Chore::Tidy]));
        assert_eq!(node.upkeep.wake_at_ms(), Some(now_ms + 60_000));
    }
}
