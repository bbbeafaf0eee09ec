//! Group commit, pure: which events share a transaction, and who is answered what.
//!
//! Events with the caller's tags flow in, batches flow out to whoever commits, results flow back and leave as one answer
//! for every event, in the order in which they came. Always true: at most one batch is under way; while it is, the next
//! one gathers, so the slower the disk the larger the batches; an event is answered exactly once; and what waits and
//! what is under way together never pass the limit.

use super::{Appended, NewEvent, StoreError};
use crate::base::{Gauge, Now};
use std::collections::VecDeque;
use std::sync::Arc;

/// How events are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// The most events of one batch; at least 1. Beyond 256 a commit gets longer and hardly cheaper.
    pub batch_max: u32,
    /// How long a lone event may wait for company while nothing is under way, in microseconds. 0 sends at once: the
    /// batch that then is under way is what the next events gather behind.
    pub wait_max_us: u64,
    /// The most events that wait or are under way.
    pub queued_max: u32,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { batch_max: 256, wait_max_us: 0, queued_max: 8_192 }
    }
}

/// Events to be committed in one transaction, in this order. Cheap to clone and to send; whoever commits drops it
/// before the result is handed back, so that the events need not be copied.
#[derive(Clone, Debug)]
pub struct Batch {
    events: Arc<Vec<NewEvent>>,
}

impl Batch {
    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> &[NewEvent] {
        &self.events
    }
}

struct Waiting<T> {
    since_us: u64,
    event: NewEvent,
    tag: T,
}

struct UnderWay<T> {
    events: Arc<Vec<NewEvent>>,
    tags: Vec<T>,
}

/// The gatherer; `T` is what the caller needs to answer an event.
pub struct Group<T> {
    options: GroupOptions,
    waiting: VecDeque<Waiting<T>>,
    under_way: Option<UnderWay<T>>,
}

impl<T> std::fmt::Debug for Group<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("gauge", &self.gauge()).field("busy", &self.is_busy()).finish_non_exhaustive()
    }
}

impl<T> Group<T> {
    /// Nothing waits and nothing is under way.
    #[must_use]
    pub fn new(options: GroupOptions) -> Self {
        let options = GroupOptions { batch_max: options.batch_max.max(1), ..options };
        Self { options, waiting: VecDeque::new(), under_way: None }
    }

    /// Takes an event in.
    ///
    /// # Errors
    /// Gives event and tag back when the limit is reached: the poster is told to come back.
    #[allow(clippy::result_large_err, reason = "the event is handed back, not copied; refusal is the rare case")]
    pub fn push(&mut self, now: Now, event: NewEvent, tag: T) -> Result<(), (NewEvent, T)> {
        if self.gauge().is_full() {
            return Err((event, tag));
        }
        self.waiting.push_back(Waiting { since_us: now.mono_us, event, tag });
        Ok(())
    }

    /// The batch that should be committed now, if any. Its result must come back by [`Self::on_committed`], also when
    /// whoever commits has died.
    pub fn next_batch(&mut self, now: Now) -> Option<Batch> {
        if self.next_alarm()? > now.mono_us {
            return None;
        }
        let count = self.waiting.len().min(self.options.batch_max as usize);
        let (mut events, mut tags) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for waiting in self.waiting.drain(..count) {
            events.push(waiting.event);
            tags.push(waiting.tag);
        }
        let events = Arc::new(events);
        self.under_way = Some(UnderWay { events: Arc::clone(&events), tags });
        Some(Batch { events })
    }

    /// Takes the result of the batch that is under way and answers its events, in the order in which they came. If the
    /// commit failed, each is answered with the error; what waits is not concerned. Without a batch under way nobody
    /// is answered.
    pub fn on_committed(
        &mut self,
        result: Result<Vec<Appended>, StoreError>,
    ) -> impl Iterator<Item = (NewEvent, T, Result<Appended, StoreError>)> + use<T> {
        let UnderWay { events, tags } =
            self.under_way.take().unwrap_or_else(|| UnderWay { events: Arc::new(Vec::new()), tags: Vec::new() });
        let events = Arc::try_unwrap(events).unwrap_or_else(|shared| Vec::clone(&shared));
        let result = match result {
            // An answer that cannot be told apart from its neighbours is no answer: nobody is told that it is durable.
            Ok(answers) if answers.len() != events.len() => {
                Err(StoreError::Refused(format!("{} answers came for {} events", answers.len(), events.len())))
            }
            other => other,
        };
        let (mut answers, error) = match result {
            Ok(answers) => (answers.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(error)),
        };
        events.into_iter().zip(tags).map(move |(event, tag)| {
            let answer = match (&error, answers.next()) {
                (None, Some(answer)) => Ok(answer),
                (Some(error), _) => Err(error.clone()),
                (None, None) => Err(StoreError::Refused("an answer is missing".to_owned())),
            };
            (event, tag, answer)
        })
    }

    /// A batch is under way.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Events that wait or are under way.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        let under_way = self.under_way.as_ref().map_or(0, |batch| batch.tags.len());
        Gauge::new((self.waiting.len() + under_way) as u64, u64::from(self.options.queued_max))
    }

    /// When [`Self::next_batch`] will have something, in monotonic microseconds; in the past if it has. `None` while a
    /// batch is under way or nothing waits.
    #[must_use]
    pub fn next_alarm(&self) -> Option<u64> {
        if self.is_busy() {
            return None;
        }
        let oldest = self.waiting.front()?.since_us;
        let enough = self.waiting.len() >= self.options.batch_max as usize;
        Some(if enough { oldest } else { oldest.saturating_add(self.options.wait_max_us) })
    }
}
