//! The hook of an app: its own judge of messages, asked last before the store.
//!
//! Drafts that passed everything else, verdicts and the time flow in; questions, drafts for the store, refusals and
//! retractions flow out. Always true: a draft waits for its verdict no longer than the app's budget; messages of one
//! author in one channel are stored in the order in which they came, whatever the order of their verdicts; a no that
//! comes after the budget retracts what was stored meanwhile; and what waits, for a verdict or for a retraction, is
//! bounded for each app by itself: beyond that its messages pass unjudged or are refused, as it has chosen for a judge
//! who is silent, and the judges of others are asked as ever.

use std::collections::{BTreeMap, BTreeSet};

use super::publish::Sequel;
use super::{Action, Orchestrator};
use crate::base::{AppId, Gauge, Now, ShardId, Ulid};
use crate::post::letters::{Draft, ToShard};
use crate::wire::event::EventKind;
use crate::wire::hook::Verdict;
use crate::wire::json::{put_number, put_string};
use crate::wire::problem::Problem;
use crate::wire::topic::Topic;

/// How soon a retraction that found no place is tried again, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// How an app is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookRule {
    /// How long a message waits for its verdict, in milliseconds.
    pub budget_ms: u32,
    /// Without a verdict it is stored; else it is refused.
    pub fails_open: bool,
}

/// A draft that is being judged, or that waits behind one of its author.
#[derive(Debug)]
struct Waiting {
    draft: Draft,
    ticket: u64,
    asker: ShardId,
    deadline_ms: u64,
    /// It may be stored.
    passed: bool,
    /// Its verdict has come.
    judged: bool,
}

/// A message that was let through without its verdict.
#[derive(Debug)]
struct Late {
    app: AppId,
    topic: Topic,
    /// The message, once it is durable.
    message: Option<Ulid>,
    retraction: Retraction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retraction {
    /// The verdict is awaited.
    Open,
    /// It was no: the message goes as soon as it is durable, and not before this, in monotonic milliseconds.
    Due(u64),
    /// It is on its way to the store.
    UnderWay,
}

/// Everything that is being judged.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    waiting: BTreeMap<u64, Waiting>,
    late: BTreeMap<u64, Late>,
    /// Questions whose outcome was not told yet, and whose they are.
    in_flight: BTreeMap<u64, AppId>,
    asked: u64,
    unjudged: u64,
    retracted: u64,
}

impl Hooks {
    /// Drafts that wait here.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Messages of an app that take a place here: whose question is out, that wait behind others, or that are still to be
    /// retracted.
    pub(super) fn gauge(&self, app: AppId, max: u32) -> Gauge {
        let out = self.in_flight.values().filter(|of| **of == app).count();
        let waiting = self.waiting.iter().map(|(number, waiting)| (number, waiting.draft.app));
        let late = self.late.iter().map(|(number, late)| (number, late.app));
        let told =
            waiting.chain(late).filter(|(number, of)| *of == app && !self.in_flight.contains_key(number)).count();
        Gauge::new((out + told) as u64, u64::from(max))
    }

    /// Nothing waits that the end of the process would cut off. A verdict that is still awaited is given up then.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.late.values().all(|late| late.retraction == Retraction::Open)
    }

    /// When there is something to do, in monotonic milliseconds.
    pub(super) fn wake_at_ms(&self) -> Option<u64> {
        let budgets = self.waiting.values().filter(|waiting| !waiting.passed).map(|waiting| waiting.deadline_ms);
        budgets.chain(self.late.values().filter_map(Late::due_ms)).min()
    }

    /// Questions asked, messages that got no verdict within their budget, and messages retracted, from the start.
    pub(super) fn counts(&self) -> [u64; 3] {
        [self.asked, self.unjudged, self.retracted]
    }

    /// What may go to the store: it has passed, and no earlier draft of its author in its channel is still judged.
    fn ready(&self) -> Vec<u64> {
        let (mut ahead, mut ready) = (BTreeSet::new(), Vec::new());
        for (number, waiting) in &self.waiting {
            let author = (waiting.draft.topic.hash, waiting.draft.user_id.as_str());
            if !ahead.contains(&author) {
                if waiting.passed {
                    ready.push(*number);
                } else {
                    ahead.insert(author);
                }
            }
        }
        ready
    }
}

impl Late {
    fn due_ms(&self) -> Option<u64> {
        match self.retraction {
            Retraction::Due(at_ms) if self.message.is_some() => Some(at_ms),
            _ => None,
        }
    }
}

impl Orchestrator {
    /// Has a draft judged, if its app has a hook; else it goes to the store.
    pub(super) fn judge(&mut self, now: Now, ticket: u64, asker: ShardId, draft: Draft) -> Result<(), Problem> {
        let rule = self.options.hooks.get(usize::from(draft.app.0)).copied().flatten();
        let is_text = matches!(draft.kind, EventKind::MessageNew | EventKind::MessageUpdated);
        let Some(rule) = rule.filter(|_| is_text) else {
            return self.store(now, Some((asker, ticket)), draft, Sequel::Nothing);
        };
        if self.hooks.gauge(draft.app, self.options.hooks_max).is_full() {
            self.hooks.unjudged += 1;
            return if rule.fails_open {
                self.store(now, Some((asker, ticket)), draft, Sequel::Nothing)
            } else {
                Err(unjudged())
            };
        }
        self.hooks.asked += 1;
        let number = self.hooks.asked;
        self.hooks.in_flight.insert(number, draft.app);
        let body = question(&draft, now);
        self.actions.push_back(Action::AskHook { number, app: draft.app, body });
        let deadline_ms = now.mono_ms() + u64::from(rule.budget_ms);
        let waiting = Waiting { draft, ticket, asker, deadline_ms, passed: false, judged: false };
        self.hooks.waiting.insert(number, waiting);
        Ok(())
    }

    /// The outcome of a question: it comes once for each, also when the hook is silent for good.
    pub fn on_verdict(&mut self, now: Now, number: u64, verdict: Verdict) {
        self.hooks.in_flight.remove(&number);
        if let Some(waiting) = self.hooks.waiting.get_mut(&number) {
            waiting.judged = true;
            match verdict {
                Verdict::Yes => waiting.passed = true,
                Verdict::No(reason) => self.refuse(number, refused(&reason)),
                // It was let through before, and waits behind another.
                Verdict::None if waiting.passed => {}
                Verdict::None => self.go_unjudged(number),
            }
            self.store_ready(now);
        } else if let Some(late) = self.hooks.late.get_mut(&number) {
            match verdict {
                Verdict::No(_) => late.retraction = Retraction::Due(now.mono_ms()),
                Verdict::Yes | Verdict::None => drop(self.hooks.late.remove(&number)),
            }
        }
    }

    /// Does what is due: budgets that are over, retractions that wait.
    pub(super) fn drive_hooks(&mut self, now: Now) {
        if self.hooks.wake_at_ms().is_none_or(|at_ms| at_ms > now.mono_ms()) {
            return;
        }
        let is_over = |waiting: &Waiting| !waiting.passed && waiting.deadline_ms <= now.mono_ms();
        let over: Vec<u64> = self.hooks.waiting.iter().filter(|(_, w)| is_over(w)).map(|(number, _)| *number).collect();
        for number in over {
            self.go_unjudged(number);
        }
        self.store_ready(now);
        let is_due = |late: &Late| late.due_ms().is_some_and(|at_ms| at_ms <= now.mono_ms());
        let due: Vec<u64> =
            self.hooks.late.iter().filter(|(_, late)| is_due(late)).map(|(number, _)| *number).collect();
        for number in due {
            let next = match self.retract(now, number) {
                Ok(()) => Retraction::UnderWay,
                Err(_) => Retraction::Due(now.mono_ms() + RETRY_MS),
            };
            if let Some(late) = self.hooks.late.get_mut(&number) {
                late.retraction = next;
            }
        }
    }

    /// The message of a question that went unjudged is durable, or was not stored.
    pub(super) fn on_unjudged_stored(&mut self, number: u64, message: Option<Ulid>) {
        match (self.hooks.late.get_mut(&number), message) {
            (Some(late), Some(_)) => late.message = message,
            (Some(_), None) => drop(self.hooks.late.remove(&number)),
            (None, _) => {}
        }
    }

    /// A retraction is durable, or was not stored.
    pub(super) fn on_retraction_stored(&mut self, now: Now, number: u64, is_durable: bool) {
        if is_durable {
            self.hooks.retracted += 1;
            self.hooks.late.remove(&number);
        } else if let Some(late) = self.hooks.late.get_mut(&number) {
            late.retraction = Retraction::Due(now.mono_ms() + RETRY_MS);
        }
    }

    /// The message was gone before its retraction came to be stored.
    pub(super) fn on_retraction_needless(&mut self, number: u64) {
        self.hooks.late.remove(&number);
    }

    fn go_unjudged(&mut self, number: u64) {
        self.hooks.unjudged += 1;
        let Some(waiting) = self.hooks.waiting.get_mut(&number) else { return };
        let rule = self.options.hooks.get(usize::from(waiting.draft.app.0)).copied().flatten();
        if rule.is_none_or(|rule| rule.fails_open) {
            waiting.passed = true;
        } else {
            self.refuse(number, unjudged());
        }
    }

    fn refuse(&mut self, number: u64, problem: Problem) {
        let Some(Waiting { draft, ticket, asker, .. }) = self.hooks.waiting.remove(&number) else { return };
        self.forgive(&draft);
        self.answer(asker, ToShard::PostAnswer { ticket, answer: Err(problem) });
    }

    fn store_ready(&mut self, now: Now) {
        for number in self.hooks.ready() {
            let Some(waiting) = self.hooks.waiting.remove(&number) else { continue };
            let Waiting { draft, ticket, asker, judged, .. } = waiting;
            let mut sequel = Sequel::Nothing;
            if !judged {
                let (app, topic) = (draft.app, draft.topic.clone());
                self.hooks.late.insert(number, Late { app, topic, message: None, retraction: Retraction::Open });
                sequel = Sequel::TellHook(number);
            }
            let author = draft.author_to_forgive();
            if let Err(problem) = self.store(now, Some((asker, ticket)), draft, sequel) {
                self.hooks.late.remove(&number);
                if let Some((key, user)) = author {
                    self.limits.forgive(key, user);
                }
                self.answer(asker, ToShard::PostAnswer { ticket, answer: Err(problem) });
            }
        }
    }

    fn retract(&mut self, now: Now, number: u64) -> Result<(), Problem> {
        let Some(late) = self.hooks.late.get(&number) else { return Ok(()) };
        let draft = Draft {
            kind: EventKind::MessageRetracted,
            target: late.message,
            detail: None,
            app: late.app,
            topic: late.topic.clone(),
            user_id: String::new(),
            user_name: String::new(),
            text: None,
            data: None,
            client_id: None,
            idempotency_key: None,
            by_server: true,
        };
        if self.credits().is_full() {
            return Err(Problem::new(503, "busy", "too many messages are on their way"));
        }
        self.store(now, None, draft, Sequel::EndRetraction(number))
    }
}

fn refused(reason: &str) -> Problem {
    let detail = if reason.is_empty() { "the app's moderation does not allow it" } else { reason };
    Problem::new(422, "refused_by_hook", detail)
}

fn unjudged() -> Problem {
    Problem::new(503, "hook_silent", "the app's moderation did not answer in time").retry_after(1)
}

/// The draft as JSON, as the hook gets it.
fn question(draft: &Draft, now: Now) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let text = |out: &mut Vec<u8>, key: &str, value: &str| {
        out.extend_from_slice(key.as_bytes());
        put_string(out, value);
    };
    text(&mut out, "{\"app\":", draft.topic.app.as_str());
    text(&mut out, ",\"channel\":", draft.topic.name.as_str());
    text(&mut out, ",\"type\":", draft.kind.row().name);
    out.extend_from_slice(b",\"ts\":");
    put_number(&mut out, now.wall_ms);
    out.extend_from_slice(if draft.by_server { b",\"by_server\":true" } else { b",\"by_server\":false" });
    if let Some(target) = draft.target {
        text(&mut out, ",\"message\":", &target.to_string());
    }
    if !draft.user_id.is_empty() {
        text(&mut out, ",\"user\":{\"id\":", &draft.user_id);
        if !draft.user_name.is_empty() {
            text(&mut out, ",\"name\":", &draft.user_name);
        }
        out.push(b'}');
    }
    if let Some(posted) = &draft.text {
        text(&mut out, ",\"text\":", posted);
    }
    if let Some(data) = &draft.data {
        out.extend_from_slice(b",\"data\":");
        // It was parsed when it came in.
        out.extend_from_slice(data.as_bytes());
    }
    if let Some(client_id) = &draft.client_id {
        text(&mut out, ",\"client_id\":", client_id);
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::orchestrator::OrchestratorOptions;
    use crate::post::letters::ToOrchestrator;
    use crate::store::{Memory, Store, StoreError};
    use crate::wire::topic::{Scope, TopicHasher};

    /// A node with one app, and what came out of it.
    struct World {
        node: Orchestrator,
        store: Memory,
        hasher: TopicHasher,
        next_ticket: u64,
        now_ms: u64,
        /// The disk answers.
        works: bool,
        asked: Vec<(u64, serde_json::Value)>,
        answers: Vec<(u64, Result<u64, &'static str>)>,
        published: Vec<(EventKind, Option<String>)>,
    }

    impl World {
        fn new(fails_open: bool, hooks_max: u32) -> Self {
            let hooks = vec![Some(HookRule { budget_ms: 50, fails_open })];
            let options = OrchestratorOptions { hooks, hooks_max, ..OrchestratorOptions::default() };
            let hasher = TopicHasher::new(1);
            let node = Orchestrator::new(options, hasher.clone(), [], [], Now::default());
            let (asked, answers, published) = (Vec::new(), Vec::new(), Vec::new());
            let store = Memory::new(1);
            Self { node, store, hasher, next_ticket: 1, now_ms: 0, works: true, asked, answers, published }
        }

        fn now(&self) -> Now {
            Now::default().plus_ms(self.now_ms)
        }

        fn post(&mut self, user: &str, text: &str) -> u64 {
            let name = |text: &str| Name::new(text).unwrap();
            let draft = Draft {
                kind: EventKind::MessageNew,
                target: None,
                detail: None,
                app: AppId(0),
                topic: self.hasher.topic(Scope::Channel, &name("demo"), &name("race")),
                user_id: user.into(),
                user_name: String::new(),
                text: Some(text.into()),
                data: Some("[1]".into()),
                client_id: None,
                idempotency_key: None,
                by_server: false,
            };
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let letter = ToOrchestrator::Post { ticket, asker: ShardId(0), draft: Box::new(draft) };
            self.node.on_letter(self.now(), letter);
            self.run();
            ticket
        }

        fn pass(&mut self, ms: u64) {
            self.now_ms += ms;
            self.node.on_alarm(self.now());
            self.run();
        }

        fn judge(&mut self, number: u64, verdict: Verdict) {
            self.node.on_verdict(self.now(), number, verdict);
            self.run();
        }

        fn run(&mut self) {
            let now = self.now();
            while let Some(action) = self.node.poll_action(now) {
                match action {
                    Action::AskHook { number, app, body } => {
                        assert_eq!(app, AppId(0));
                        self.asked.push((number, serde_json::from_slice(&body).unwrap()));
                    }
                    Action::Commit(batch) => {
                        if !self.works {
                            self.store.fail_next(1, StoreError::Full);
                        }
                        let result = self.store.commit(now.wall_ms, batch.events());
                        drop(batch);
                        self.node.on_committed(now, result);
                    }
                    Action::Answer { letter: ToShard::PostAnswer { ticket, answer }, .. } => {
                        self.answers.push((ticket, answer.map(|posted| posted.seq).map_err(|problem| problem.code)));
                    }
                    Action::Publish { sealed, .. } => {
                        self.node.on_placed(ShardId(0), self.published.len() as u64 + 1);
                        let event = sealed.to_event();
                        self.published.push((event.kind, event.text));
                    }
                    _ => {}
                }
            }
        }

        fn texts(&self) -> Vec<&str> {
            self.published.iter().filter_map(|(_, text)| text.as_deref()).collect()
        }
    }

    #[test]
    fn a_verdict_lets_through_or_refuses_and_the_question_says_what_it_is_about() {
        let mut world = World::new(false, 9);
        let (yes, no) = (world.post("ann", "a \"b\""), world.post("bob", "rude"));
        assert_eq!(
            world.asked[0].1,
            serde_json::json!({"app": "demo", "channel": "race", "type": "message.new", "ts": 0, "by_server": false,
                "user": {"id": "ann"}, "text": "a \"b\"", "data": [1]})
        );
        world.judge(2, Verdict::No("be kind".into()));
        world.judge(1, Verdict::Yes);
        assert_eq!(world.answers, [(no, Err("refused_by_hook")), (yes, Ok(1))]);
        assert!(world.node.hooks.is_quiet() && world.node.hooks.gauge(AppId(0), 9).used == 0);
    }

    #[test]
    fn an_author_s_messages_keep_their_order_and_others_do_not_wait_for_them() {
        let mut world = World::new(true, 9);
        for (user, text) in [("ann", "1"), ("ann", "2"), ("bob", "x"), ("ann", "3")] {
            world.post(user, text);
        }
        for number in [4, 3, 2] {
            world.judge(number, Verdict::Yes);
        }
        assert_eq!(world.texts(), ["x"]);
        world.judge(1, Verdict::No(String::new()));
        assert_eq!(world.texts(), ["x", "2", "3"]);
    }

    #[test]
    fn a_silent_hook_costs_the_budget_and_then_the_app_s_choice_holds() {
        for (fails_open, answer) in [(true, Ok(1)), (false, Err("hook_silent"))] {
            let mut world = World::new(fails_open, 9);
            let ticket = world.post("ann", "a");
            assert_eq!(world.node.next_alarm_ms(), 50);
            world.pass(49);
            assert!(world.answers.is_empty());
            world.pass(1);
            assert_eq!(world.answers, [(ticket, answer)]);
            assert_eq!(world.node.hooks.gauge(AppId(0), 9).used, 1, "its question is still out");
            world.judge(1, Verdict::None);
            assert_eq!(world.node.hooks.gauge(AppId(0), 9).used, 0);
            // And one that says so at once is not waited for.
            let ticket = world.post("ann", "b");
            world.judge(2, Verdict::None);
            assert_eq!(world.answers[1].0, ticket);
            assert_eq!(world.answers[1].1.is_ok(), fails_open);
            assert_eq!(world.node.hooks.counts(), [2, 2, 0]);
        }
    }

    #[test]
    fn beyond_the_limit_nobody_is_asked() {
        for fails_open in [true, false] {
            let mut world = World::new(fails_open, 2);
            for text in ["a", "b", "c"] {
                world.post(text, text);
            }
            assert_eq!((world.asked.len(), world.answers.len()), (2, 1));
            assert_eq!(world.answers[0].1, if fails_open { Ok(1) } else { Err("hook_silent") });
            assert_eq!(world.node.hooks.gauge(AppId(0), 2).used, 2);
            assert_eq!(world.node.hooks.gauge(AppId(1), 2).used, 0, "another app has places of its own");
            world.judge(1, Verdict::Yes);
            world.post("d", "d");
            assert_eq!(world.asked.len(), 3);
        }
    }

    #[test]
    fn a_late_no_retracts_what_was_stored_however_long_the_disk_takes() {
        let mut world = World::new(true, 9);
        world.post("ann", "secret");
        world.pass(50);
        assert_eq!(world.texts(), ["secret"]);
        // The disk takes nothing for a while: the retraction is tried until it does.
        world.works = false;
        world.judge(1, Verdict::No(String::new()));
        assert!(!world.node.hooks.is_quiet());
        for _ in 0..3 {
            world.pass(1_000);
        }
        assert_eq!(world.published.len(), 1);
        world.works = true;
        world.pass(1_000);
        assert_eq!(world.published[1].0, EventKind::MessageRetracted);
        assert_eq!((world.node.hooks.counts()[2], world.node.hooks.is_quiet()), (1, true));
        assert_eq!(world.answers.len(), 1, "nobody waits for a retraction");
        // The no comes while the message is on its way to the disk.
        world.post("ann", "another");
        world.now_ms += 50;
        let now = world.now();
        world.node.drive_hooks(now);
        let Some(Action::Commit(batch)) = world.node.poll_action(now) else { panic!() };
        world.node.on_verdict(now, 2, Verdict::No(String::new()));
        let result = world.store.commit(0, batch.events());
        drop(batch);
        world.node.on_committed(now, result);
        world.run();
        let kinds: Vec<EventKind> = world.published[2..].iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [EventKind::MessageNew, EventKind::MessageRetracted]);
        // What was not stored needs no retraction.
        world.works = false;
        world.post("ann", "never");
        world.pass(50);
        world.judge(3, Verdict::No(String::new()));
        assert_eq!((world.published.len(), world.node.hooks.gauge(AppId(0), 9).used), (4, 0));
    }
}
