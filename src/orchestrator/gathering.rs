//! Questions that every shard answers a part of: who is connected.
//!
//! A question and the answers of the shards flow in, one letter to each shard and one answer flow out. Always true: a
//! question is answered once, at the latest when its time is over, with what has come until then; and the number of
//! questions under way is bounded.

use std::collections::BTreeMap;

use super::Orchestrator;
use crate::base::{Gauge, Now, ShardId};
use crate::post::connections::{Connections, ConnectionsAsk};
use crate::post::letters::ToShard;
use crate::wire::problem::Problem;

/// Questions under way at the most: each puts one letter into the mailbox of every shard.
const GATHERINGS_MAX: usize = 16;
/// How long the shards have, in milliseconds.
const PATIENCE_MS: u64 = 2_000;

/// All questions under way.
#[derive(Debug, Default)]
pub(super) struct Gatherings {
    under_way: BTreeMap<u64, Gathering>,
    next: u64,
}

#[derive(Debug)]
struct Gathering {
    ticket: u64,
    asker: ShardId,
    limit: usize,
    until_ms: u64,
    parts: BTreeMap<ShardId, Connections>,
}

impl Gatherings {
    /// When the time of one is over, in monotonic milliseconds.
    pub(super) fn wake_at_ms(&self) -> Option<u64> {
        // Their times end in the order in which they began.
        self.under_way.first_key_value().map(|(_, gathering)| gathering.until_ms)
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::new(self.under_way.len() as u64, GATHERINGS_MAX as u64)
    }
}

impl Orchestrator {
    pub(super) fn gather(&mut self, now: Now, ticket: u64, asker: ShardId, ask: &ConnectionsAsk) {
        if self.gatherings.under_way.len() >= GATHERINGS_MAX {
            let detail = format!("{GATHERINGS_MAX} such questions are under way");
            let answer = Err(Problem::new(503, "busy", detail).retry_after(1));
            return self.answer(asker, ToShard::ConnectionsAnswer { ticket, answer });
        }
        let number = self.gatherings.next;
        self.gatherings.next += 1;
        let gathering = Gathering {
            ticket,
            asker,
            limit: ask.limit as usize,
            until_ms: now.mono_ms() + PATIENCE_MS,
            parts: BTreeMap::new(),
        };
        self.gatherings.under_way.insert(number, gathering);
        for shard in 0..self.options.shards {
            self.answer(ShardId(shard), ToShard::ListConnections { number, ask: Box::new(ask.clone()) });
        }
    }

    /// A shard's part came; too late, it finds nobody.
    pub(super) fn on_part(&mut self, number: u64, shard: ShardId, part: Connections) {
        let Some(gathering) = self.gatherings.under_way.get_mut(&number) else { return };
        gathering.parts.insert(shard, part);
        if gathering.parts.len() >= usize::from(self.options.shards) {
            self.end_gathering(number, true);
        }
    }

    /// Answers those whose time is over.
    pub(super) fn expire_gatherings(&mut self, now: Now) {
        while let Some((&number, gathering)) = self.gatherings.under_way.first_key_value()
            && gathering.until_ms <= now.mono_ms()
        {
            self.end_gathering(number, false);
        }
    }

    fn end_gathering(&mut self, number: u64, complete: bool) {
        let Some(Gathering { ticket, asker, limit, parts, .. }) = self.gatherings.under_way.remove(&number) else {
            return;
        };
        let mut all = Connections { list: Vec::new(), more: false, complete };
        for part in parts.into_values() {
            all.list.extend(part.list);
            all.more |= part.more;
        }
        all.more |= all.list.len() > limit;
        all.list.truncate(limit);
        self.answer(asker, ToShard::ConnectionsAnswer { ticket, answer: Ok(all) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{AppId, Name};
    use crate::orchestrator::{Action, OrchestratorOptions};
    use crate::post::connections::Connection;
    use crate::wire::topic::TopicHasher;

    fn at(ms: u64) -> Now {
        Now::default().plus_ms(ms)
    }

    fn node() -> Orchestrator {
        let options = OrchestratorOptions { shards: 2, ..OrchestratorOptions::default() };
        Orchestrator::new(options, TopicHasher::new(1), [], [], at(0))
    }

    fn ask(limit: u32) -> ConnectionsAsk {
        let app_name = Name::new("demo").unwrap();
        ConnectionsAsk { app: AppId(0), app_name, channel: None, user: None, tag: None, limit }
    }

    fn part(shard: u16, count: u64) -> Connections {
        let one =
            |conn| Connection { conn, user: None, room: None, shard: ShardId(shard), age_s: 0, lag_ms: 0, queued: 0 };
        Connections { list: (0..count).map(one).collect(), more: false, complete: true }
    }

    fn answers(node: &mut Orchestrator) -> Vec<Result<Connections, Problem>> {
        let mut answers = Vec::new();
        for action in node.actions.drain(..) {
            if let Action::Answer { letter: ToShard::ConnectionsAnswer { answer, .. }, .. } = action {
                answers.push(answer);
            }
        }
        answers
    }

    #[test]
    fn the_parts_of_all_shards_make_one_answer() {
        let mut node = node();
        node.gather(at(0), 7, ShardId(1), &ask(3));
        assert_eq!(node.actions.len(), 2, "each shard is asked");
        node.on_part(0, ShardId(1), part(1, 2));
        node.on_part(0, ShardId(1), part(1, 2));
        assert!(answers(&mut node).is_empty(), "one answers twice, one not at all");
        node.on_part(0, ShardId(0), part(0, 2));
        let all = answers(&mut node).remove(0).unwrap();
        assert_eq!((all.list.len(), all.more, all.complete), (3, true, true));
        assert_eq!(node.gatherings.wake_at_ms(), None);
    }

    #[test]
    fn a_shard_that_does_not_answer_is_not_waited_for_and_questions_are_bounded() {
        let mut node = node();
        for ticket in 0..=GATHERINGS_MAX as u64 {
            node.gather(at(0), ticket, ShardId(0), &ask(3));
        }
        assert_eq!(answers(&mut node).remove(0).unwrap_err().code, "busy");
        node.on_part(0, ShardId(0), part(0, 1));
        node.on_alarm(at(PATIENCE_MS - 1));
        assert!(answers(&mut node).is_empty());
        node.on_alarm(at(PATIENCE_MS));
        let all = answers(&mut node);
        assert_eq!(all.len(), GATHERINGS_MAX);
        let first = all[0].as_ref().unwrap();
        assert_eq!((first.list.len(), first.more, first.complete), (1, false, false));
        node.on_part(0, ShardId(1), part(1, 1));
        assert!(answers(&mut node).is_empty(), "too late");
    }
}
