//! A call that comes twice: under what key the store knows it, and what its author is told.
//!
//! Drafts and first answers flow in, keys and answers flow out. Always true: two calls share a key only if they are one
//! call; and who repeats a message that was taken is not told to wait for it.

use std::collections::BTreeMap;

use super::{Action, Orchestrator};
use crate::base::ShardId;
use crate::post::letters::{Draft, Posted, ToShard};
use crate::store::{FirstAnswer, StoreError};
use crate::wire::problem::Problem;

/// Posts that a limit of their channel refuses unless they were answered before. As many as shards wait for, at the most.
#[derive(Debug, Default)]
pub(super) struct Repeats(BTreeMap<u64, Refused>);

impl Repeats {
    pub(super) fn is_quiet(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Debug)]
struct Refused {
    ticket: u64,
    asker: ShardId,
    problem: Problem,
}

impl Orchestrator {
    /// Refuses a post, but for one that repeats an earlier one: whose answer was lost need not wait to hear it again.
    pub(super) fn refuse_unless_repeated(
        &mut self,
        ticket: u64,
        asker: ShardId,
        draft: &Draft,
        problem: Problem,
    ) -> Result<(), Problem> {
        let Some(key) = stored_key(draft) else { return Err(problem) };
        let read = self.next_read;
        self.next_read += 1;
        self.actions.push_back(Action::FindAnswer { read, key });
        self.repeats.0.insert(read, Refused { ticket, asker, problem });
        Ok(())
    }

    /// The first answer to a call was looked for. Where that failed the refusal stands, for it is true.
    pub fn on_answered(&mut self, read: u64, result: Result<Option<FirstAnswer>, StoreError>) {
        let Some(Refused { ticket, asker, problem }) = self.repeats.0.remove(&read) else { return };
        let answer = result.ok().flatten().map(posted).ok_or(problem);
        self.answer(asker, ToShard::PostAnswer { ticket, answer });
    }
}

pub(super) fn posted(first: FirstAnswer) -> Posted {
    let FirstAnswer { id, position, ts_ms } = first;
    Posted { id, seq: position.seq, epoch: position.epoch, created_at_ms: ts_ms }
}

/// The key of this call among all calls of all apps. No name holds a slash, and a call always has a detail or never.
pub(super) fn stored_key(draft: &Draft) -> Option<String> {
    let key = draft.idempotency_key.as_ref()?;
    let author = if draft.by_server { "" } else { draft.user_id.as_str() };
    let (app, channel, call) = (&draft.topic.app, &draft.topic.name, draft.kind.row().name);
    let target = draft.target.map(|target| target.to_string()).unwrap_or_default();
    let detail = draft.detail.as_ref().map(|detail| format!("/{detail}")).unwrap_or_default();
    Some(format!("{app}/{channel}/{author}/{call}/{target}{detail}/{key}"))
}
