//! Flow 2 at the orchestrator: a draft becomes a durable message, is acknowledged, and only then published.
//!
//! Always true: a post is answered once; a credit is taken at admission and comes back when the event lies in every
//! mailbox (rule 8), so a shard that does not keep up is felt by posters, not by memory; a repeat gets the first
//! answer and is not published again; and nothing is published of a message behind its end, for the store has the last
//! word on whether it is still there.

use super::repeat::{posted, stored_key};
use super::{Action, Orchestrator, PostTag, Reader, key_of};
use crate::admission::rate::Rate;
use crate::base::{AppId, Name, Now, ShardId, Ulid};
use crate::post::letters::{Draft, Page, Posted, Range, ToShard};
use crate::store::{Appended, NewEvent, Page as StoredPage, PageAsk, Position, StoreError, StoredEvent};
use crate::wire::event::EventKind;
use crate::wire::problem::Problem;
use crate::wire::sealed::{Event, Member, Sealed};
use crate::wire::topic::{Topic, partition};

impl Orchestrator {
    pub(super) fn post(&mut self, now: Now, ticket: u64, asker: ShardId, draft: Draft) {
        if let Err(problem) = self.admit(now, ticket, asker, draft) {
            self.answer(asker, ToShard::PostAnswer { ticket, answer: Err(problem) });
        }
    }

    fn admit(&mut self, now: Now, ticket: u64, asker: ShardId, draft: Draft) -> Result<(), Problem> {
        if self.draining {
            return Err(Problem::new(503, "draining", "this node is going away").retry_after(5));
        }
        if !draft.by_server
            && let Ok(user) = Name::new(&draft.user_id)
        {
            self.may_say(now, draft.app, &draft.topic, &user)?;
        }
        self.quotas.post(now, draft.app)?;
        if self.credits().is_full() {
            return Err(Problem::new(503, "busy", "too many messages are on their way").retry_after(1));
        }
        match draft.target {
            None => {
                // Last before the hook, so that nobody waits for a message that another rule refused.
                let user = (!draft.by_server).then_some(draft.user_id.as_str());
                if let Err(problem) = self.limits.admit(now, &key_of(&draft.topic), user) {
                    return self.refuse_unless_repeated(ticket, asker, &draft, problem);
                }
                let author = draft.author_to_forgive();
                let judged = self.judge(now, ticket, asker, draft);
                if let (Err(_), Some((key, user))) = (&judged, author) {
                    self.limits.forgive(key, user);
                }
                judged
            }
            Some(id) => {
                // Whose message is it, and is it still there?
                let read = self.next_read;
                self.next_read += 1;
                self.actions.push_back(Action::Find { read, key: key_of(&draft.topic), id });
                self.finders.insert(read, Finder { ticket, asker, draft });
                Ok(())
            }
        }
    }

    /// A user may say something in a channel, which counts as one of the things that it says in a minute.
    pub(super) fn may_say(&mut self, now: Now, app: AppId, channel: &Topic, user: &Name) -> Result<(), Problem> {
        self.bans.check(&channel.app, user, Some(&channel.name), now.wall_ms)?;
        if let Rate::Limited { retry_after_s } = self.user_rate.check(now, (app, user.as_str().to_owned())) {
            let max = self.options.user_rate.requests_max;
            let detail = format!("at most {max} messages in {} s; 0 remain", self.options.user_rate.window_s);
            return Err(Problem::new(429, "user_over_rate", detail).retry_after(retry_after_s));
        }
        Ok(())
    }

    /// The message that a draft speaks of was looked for.
    pub fn on_found(&mut self, now: Now, read: u64, result: Result<Option<Box<StoredEvent>>, StoreError>) {
        let Some(Finder { ticket, asker, draft }) = self.finders.remove(&read) else { return };
        let taken = match result {
            Err(error) => Err(store_problem(&error)),
            // It may repeat the very call that took the message away. By its key, which names the author, the store
            // finds the first answer; if there was none it stores nothing, for what is gone does not come back. So
            // there is nothing to judge, and no right to ask for.
            Ok(found) if draft.idempotency_key.is_some() && standing(found.as_deref()).is_none() => {
                self.store(now, Some((asker, ticket)), draft, Sequel::Nothing)
            }
            Ok(found) => may_change(&draft, found.as_deref()).and_then(|()| self.judge(now, ticket, asker, draft)),
        };
        if let Err(problem) = taken {
            self.answer(asker, ToShard::PostAnswer { ticket, answer: Err(problem) });
        }
    }

    /// Gives a draft to the store. `waits` is who is answered.
    pub(super) fn store(
        &mut self,
        now: Now,
        waits: Option<(ShardId, u64)>,
        draft: Draft,
        sequel: Sequel,
    ) -> Result<(), Problem> {
        let (app, bytes) = (draft.app, draft.bytes());
        self.quotas.enqueue(app, bytes)?;
        let idempotency_key = stored_key(&draft);
        let slowed = !draft.by_server && draft.kind == EventKind::MessageNew;
        let event = NewEvent {
            key: key_of(&draft.topic),
            kind: draft.kind,
            id: self.new_id(now),
            ts_ms: now.wall_ms,
            idempotency_key,
            user_id: Some(draft.user_id).filter(|id| !id.is_empty()),
            user_name: Some(draft.user_name).filter(|name| !name.is_empty()),
            text: draft.text,
            data: draft.data,
            target: draft.target,
            detail: draft.detail,
            client_id: draft.client_id,
        };
        self.group.push(now, event, PostTag { waits, sequel, app, topic: draft.topic, bytes, slowed }).map_err(|_| {
            self.quotas.dequeue(app, bytes);
            Problem::new(503, "busy", "too many messages are on their way").retry_after(1)
        })
    }

    fn new_id(&mut self, now: Now) -> Ulid {
        let counter = self.next_id;
        self.next_id += 1;
        let key = [self.options.seed.to_le_bytes(), counter.to_le_bytes()].concat();
        // The counter makes it unique within the process, the hash among processes.
        Ulid::new(now.wall_ms, (u128::from(self.hasher.hash_bytes(&key)) << 16) | u128::from(counter & 0xFFFF))
    }

    /// The batch that was under way is durable, or is not.
    pub fn on_committed(&mut self, now: Now, result: Result<Vec<Appended>, StoreError>) {
        self.commits_failed += u64::from(result.is_err());
        for (event, tag, result) in self.group.on_committed(result) {
            let PostTag { waits, sequel, app, topic, bytes, slowed } = tag;
            self.quotas.dequeue(app, bytes);
            // What a hook judges is the message, not the event that changed it.
            let target = event.target;
            let is_gone = matches!(result, Ok(Appended::NoTarget));
            if slowed && !matches!(result, Ok(Appended::New { .. })) {
                self.limits.forgive(event.key.clone(), event.user_id.clone().unwrap_or_default());
            }
            let answer = match result {
                Ok(Appended::New { position }) => {
                    let posted =
                        Posted { id: event.id, seq: position.seq, epoch: position.epoch, created_at_ms: event.ts_ms };
                    self.publish_stored(&topic, stored(event, position));
                    Ok(posted)
                }
                Ok(Appended::Repeat(first)) => Ok(posted(first)),
                Ok(Appended::NoTarget) => Err(no_such_message()),
                Err(error) => Err(store_problem(&error)),
            };
            match sequel {
                Sequel::Nothing => {}
                Sequel::TellHook(number) => {
                    let message = answer.as_ref().ok().map(|posted| target.unwrap_or(posted.id));
                    self.on_unjudged_stored(number, message);
                }
                // A message that is gone needs no retraction any more: tried again, it would be tried for ever.
                Sequel::EndRetraction(number) if is_gone => self.on_retraction_needless(number),
                Sequel::EndRetraction(number) => self.on_retraction_stored(now, number, answer.is_ok()),
            }
            if let Some((asker, ticket)) = waits {
                self.answer(asker, ToShard::PostAnswer { ticket, answer });
            }
        }
    }

    /// A message that slow mode counted is not stored after all: its author need not wait for it.
    pub(super) fn forgive(&mut self, draft: &Draft) {
        if let Some((key, user)) = draft.author_to_forgive() {
            self.limits.forgive(key, user);
        }
    }

    fn publish_stored(&mut self, topic: &Topic, event: StoredEvent) {
        let Some(sealed) = seal_stored(topic, event) else { return };
        self.publish_with_credit(sealed);
    }

    /// A critical event of an app's backend: it is not stored, but it may not be lost either.
    pub(super) fn publish_critical(&mut self, sealed: Sealed) -> Result<(), Problem> {
        if self.credits().is_full() {
            return Err(Problem::new(503, "busy", "too many messages are on their way").retry_after(1));
        }
        self.publish_with_credit(sealed);
        Ok(())
    }

    pub(super) fn publish_with_credit(&mut self, sealed: Sealed) {
        let topic = sealed.topic();
        let to = partition(topic.scope, topic.app.as_str(), topic.name.as_str(), self.options.shards);
        self.published[usize::from(to.0)] += 1;
        self.actions.push_back(Action::Publish { partition: to, sealed });
    }

    pub(super) fn read(&mut self, ticket: u64, asker: ShardId, topic: Topic, range: Range, limit: u32) {
        let read = self.next_read;
        self.next_read += 1;
        let key = key_of(&topic);
        self.readers.insert(read, Reader { asker, ticket, topic });
        let ask = match range {
            Range::Latest => PageAsk::Latest { limit },
            Range::Before(seq) => PageAsk::Before { seq, limit },
            Range::Since(seq) => PageAsk::Since { seq, limit },
        };
        self.actions.push_back(Action::Read { read, key, ask });
    }

    /// A page was read, or was not.
    pub fn on_page(&mut self, _now: Now, read: u64, result: Result<StoredPage, StoreError>) {
        let Some(Reader { asker, ticket, topic }) = self.readers.remove(&read) else { return };
        let answer = match result {
            Ok(page) => Ok(Page {
                epoch: page.epoch,
                head: page.head,
                first_kept: page.first_kept,
                events: page.events.into_iter().filter_map(|event| seal_stored(&topic, event)).collect(),
            }),
            Err(error) => Err(store_problem(&error)),
        };
        self.answer(asker, ToShard::PageAnswer { ticket, answer });
    }
}

/// What follows when an event is durable, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequel {
    Nothing,
    /// It went to the store without the verdict of this question.
    TellHook(u64),
    /// It retracts the message that this question was about.
    EndRetraction(u64),
}

/// A draft whose message is looked for.
#[derive(Debug)]
pub(super) struct Finder {
    ticket: u64,
    asker: ShardId,
    draft: Draft,
}

fn standing(found: Option<&StoredEvent>) -> Option<&StoredEvent> {
    found.filter(|event| event.is_standing_message())
}

fn no_such_message() -> Problem {
    Problem::new(404, "no_such_message", "no such message is in this channel, or it was deleted")
}

/// A message is changed by its author or by the app's backend, and only while it is there, on which the store has the
/// last word.
fn may_change(draft: &Draft, found: Option<&StoredEvent>) -> Result<(), Problem> {
    let message = standing(found).ok_or_else(no_such_message)?;
    let authors_only = matches!(draft.kind, EventKind::MessageUpdated | EventKind::MessageDeleted);
    if authors_only && !draft.by_server && message.user_id.as_deref() != Some(draft.user_id.as_str()) {
        return Err(Problem::new(403, "not_the_author", "a message is changed by its author"));
    }
    Ok(())
}

fn stored(event: NewEvent, position: Position) -> StoredEvent {
    StoredEvent {
        seq: position.seq,
        epoch: position.epoch,
        key: event.key,
        kind: event.kind,
        id: event.id,
        ts_ms: event.ts_ms,
        user_id: event.user_id,
        user_name: event.user_name,
        text: event.text,
        data: event.data,
        target: event.target,
        detail: event.detail,
        client_id: event.client_id,
    }
}

/// Seals a stored event. What passed admission always fits; if a row does not, it is left out and the hole is told by
/// its seq.
fn seal_stored(topic: &Topic, stored: StoredEvent) -> Option<Sealed> {
    let mut members = Vec::new();
    if let Some(target) = stored.target {
        members.push(("message".to_owned(), Member::Text(target.to_string())));
    }
    if let Some(detail) = stored.detail {
        members.push(("kind".to_owned(), Member::Text(detail)));
    }
    if let Some(client_id) = stored.client_id {
        members.push(("client_id".to_owned(), Member::Text(client_id)));
    }
    let event = Event {
        seq: stored.seq,
        epoch: stored.epoch,
        id: Some(stored.id),
        user_id: stored.user_id.unwrap_or_default(),
        user_name: stored.user_name.unwrap_or_default(),
        text: stored.text,
        data: stored.data,
        members,
        ..Event::new(stored.kind, topic.clone(), stored.ts_ms)
    };
    Sealed::seal(&event).ok()
}

pub(super) fn store_problem(error: &StoreError) -> Problem {
    match error {
        StoreError::Full => {
            Problem::new(503, "disk_full", "the disk is full: nothing was stored, and nothing acknowledged is lost")
                .retry_after(5)
        }
        StoreError::Busy => Problem::new(503, "store_busy", error.to_string()).retry_after(1),
        StoreError::Io(_) => Problem::new(503, "store_failed", error.to_string()).retry_after(1),
        StoreError::Corrupt(_) | StoreError::Refused(_) => Problem::new(500, "store_refused", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::quota::Quota;
    use crate::base::AppId;
    use crate::orchestrator::OrchestratorOptions;
    use crate::post::letters::ToOrchestrator;
    use crate::store::{Batch, Memory, Store};
    use crate::wire::topic::{Scope, TopicHasher};

    fn letter(app: u16, ticket: u64, bytes: usize) -> ToOrchestrator {
        let name = |text: &str| Name::new(text).unwrap();
        let app_name = if app == 0 { "small" } else { "large" };
        let draft = Draft {
            kind: EventKind::MessageNew,
            target: None,
            detail: None,
            app: AppId(app),
            topic: TopicHasher::new(1).topic(Scope::Channel, &name(app_name), &name("a")),
            user_id: String::new(),
            user_name: String::new(),
            text: Some("x".repeat(bytes)),
            data: None,
            client_id: None,
            idempotency_key: None,
            by_server: true,
        };
        ToOrchestrator::Post { ticket, asker: ShardId(0), draft: Box::new(draft) }
    }

    type Answers = Vec<(u64, Result<u64, &'static str>)>;

    /// Answers that have come, and the batch that waits for the disk.
    fn run(node: &mut Orchestrator, now: Now) -> (Answers, Option<Batch>) {
        let (mut answers, mut waiting) = (Vec::new(), None);
        while let Some(action) = node.poll_action(now) {
            match action {
                Action::Answer { letter: ToShard::PostAnswer { ticket, answer }, .. } => {
                    answers.push((ticket, answer.map(|posted| posted.seq).map_err(|problem| problem.code)));
                }
                Action::Commit(batch) => waiting = Some(batch),
                _ => {}
            }
        }
        (answers, waiting)
    }

    #[test]
    fn a_wall_clock_that_steps_back_moves_no_number_and_makes_no_id_twice() {
        let mut node = Orchestrator::new(
            OrchestratorOptions::default(),
            TopicHasher::new(1),
            [],
            [],
            Now { mono_us: 1_000_000, wall_ms: 5_000_000 },
        );
        let mut store = Memory::new(1);
        let mut posted: Vec<Posted> = Vec::new();
        for (at, wall_ms) in [5_000_000, 5_000_001, 1_000, 1_000, 0, 9_000_000].into_iter().enumerate() {
            let now = Now { mono_us: 1_000_000 + at as u64, wall_ms };
            node.on_letter(now, letter(0, at as u64 + 1, 1));
            while let Some(action) = node.poll_action(now) {
                match action {
                    Action::Commit(batch) => {
                        let result = store.commit(wall_ms, batch.events());
                        drop(batch);
                        node.on_committed(now, result);
                    }
                    Action::Answer { letter: ToShard::PostAnswer { answer, .. }, .. } => posted.push(answer.unwrap()),
                    _ => {}
                }
            }
            assert_eq!(posted.last().map(|posted| posted.created_at_ms), Some(wall_ms));
        }
        assert!(posted.iter().map(|posted| posted.seq).eq(1..=6));
        let ids: std::collections::BTreeSet<Ulid> = posted.iter().map(|posted| posted.id).collect();
        assert_eq!(ids.len(), 6);
    }

    #[test]
    fn bytes_of_one_app_that_wait_for_the_disk_hold_up_no_other() {
        let quota = Quota { queued_bytes_max: 100, ..Quota::default() };
        let name = |text: &str| Name::new(text).unwrap();
        let quotas = vec![(name("small"), quota), (name("large"), Quota::default())];
        let options = OrchestratorOptions { quotas, ..OrchestratorOptions::default() };
        let now = Now::default();
        let mut node = Orchestrator::new(options, TopicHasher::new(1), [], [], now);
        let mut store = Memory::new(1);
        node.on_letter(now, letter(0, 1, 60));
        let (answers, batch) = run(&mut node, now);
        assert!(answers.is_empty());
        for (app, ticket, bytes) in [(0, 2, 40), (0, 3, 1), (1, 4, 10_000), (1, 5, 10_000)] {
            node.on_letter(now, letter(app, ticket, bytes));
        }
        assert_eq!(run(&mut node, now).0, [(3, Err("app_queue_full"))]);
        let of_app = |node: &Orchestrator| node.own_metrics().of_apps;
        assert_eq!(of_app(&node), [("app_queued_bytes", name("small"), crate::base::Gauge::new(100, 100))]);
        let mut batch = batch;
        let mut answers = Vec::new();
        while let Some(events) = batch.take() {
            let result = store.commit(0, events.events());
            drop(events);
            node.on_committed(now, result);
            let (more, next) = run(&mut node, now);
            answers.extend(more);
            batch = next;
        }
        answers.sort_unstable();
        assert_eq!(answers, [(1, Ok(1)), (2, Ok(2)), (4, Ok(1)), (5, Ok(2))]);
        assert_eq!(of_app(&node)[0].2.used, 0);
        // A commit that fails gives the bytes back as well.
        node.on_letter(now, letter(0, 6, 100));
        let (_, batch) = run(&mut node, now);
        drop(batch);
        node.on_committed(now, Err(StoreError::Full));
        assert_eq!(run(&mut node, now).0, [(6, Err("disk_full"))]);
        assert_eq!(of_app(&node)[0].2.used, 0);
    }
}
