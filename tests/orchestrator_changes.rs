//! What is said of a message whose end comes first, before the orchestrator in virtual time: while an edit waits for its
//! verdict or for the disk, the message it speaks of is retracted. And what is said twice where a channel is slow.

use ringcast::admission::quota::Quota;
use ringcast::base::{AppId, ChannelKey, Name, Now, ShardId, Ulid};
use ringcast::orchestrator::{Action, HookRule, Orchestrator, OrchestratorOptions};
use ringcast::post::letters::{ChannelLimits, Draft, ToOrchestrator, ToShard};
use ringcast::store::{Batch, Memory, PageAsk, Pages, Store, StoreError};
use ringcast::wire::event::EventKind::{
    self, MessageDeleted, MessageNew, MessageRetracted, MessageUpdated, ReactionDeleted, ReactionNew,
};
use ringcast::wire::hook::Verdict;
use ringcast::wire::topic::{Scope, Topic, TopicHasher};

const BUDGET_MS: u32 = 50;

/// The id and seq of what was stored, or the code of the refusal.
type Answered = Result<(Ulid, u64), &'static str>;

const GONE: Answered = Err("no_such_message");

/// A node with one app, and what came out of it.
struct World {
    node: Orchestrator,
    store: Memory,
    topic: Topic,
    now: Now,
    next_ticket: u64,
    /// The disk takes its time: the batch waits in `held`.
    is_slow: bool,
    held: Option<Batch>,
    commits: u32,
    /// Questions to the hook, by number.
    asked: Vec<u64>,
    answers: Vec<(u64, Answered)>,
    published: Vec<(EventKind, Option<String>)>,
}

impl World {
    /// `judged` says whether the app has a hook; a silent one lets through.
    fn new(judged: bool) -> Self {
        let name = |text: &str| Name::new(text).unwrap();
        let options = OrchestratorOptions {
            quotas: vec![(name("demo"), Quota { queued_bytes_max: 1_000, ..Quota::default() })],
            hooks: vec![judged.then_some(HookRule { budget_ms: BUDGET_MS, fails_open: true })],
            ..OrchestratorOptions::default()
        };
        let hasher = TopicHasher::new(1);
        let topic = hasher.topic(Scope::Channel, &name("demo"), &name("race"));
        Self {
            node: Orchestrator::new(options, hasher, [], [], Now::default()),
            store: Memory::new(1),
            topic,
            now: Now::default(),
            next_ticket: 1,
            is_slow: false,
            held: None,
            commits: 0,
            asked: Vec::new(),
            answers: Vec::new(),
            published: Vec::new(),
        }
    }

    /// What `user` does to `target`, or posts; without a user it is the backend. Says the ticket.
    fn say(&mut self, user: &str, kind: EventKind, target: Option<Ulid>, key: Option<&str>) -> u64 {
        let has_text = matches!(kind, MessageNew | MessageUpdated);
        let draft = Draft {
            kind,
            target,
            detail: None,
            app: AppId(0),
            topic: self.topic.clone(),
            user_id: user.into(),
            user_name: String::new(),
            text: has_text.then(|| format!("text {}", self.next_ticket)),
            data: None,
            client_id: None,
            idempotency_key: key.map(str::to_owned),
            by_server: user.is_empty(),
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let letter = ToOrchestrator::Post { ticket, asker: ShardId(0), draft: Box::new(draft) };
        self.node.on_letter(self.now, letter);
        self.run();
        ticket
    }

    /// A message of ann that is durable; its question, if there is one, is answered.
    fn message(&mut self) -> Ulid {
        let ticket = self.say("ann", MessageNew, None, None);
        while let Some(number) = self.asked.pop() {
            self.judge(number, Verdict::Yes);
        }
        self.answer(ticket).unwrap().0
    }

    fn retract(&mut self, message: Ulid) -> Answered {
        let ticket = self.say("", MessageRetracted, Some(message), None);
        self.answer(ticket)
    }

    fn judge(&mut self, number: u64, verdict: Verdict) {
        self.node.on_verdict(self.now, number, verdict);
        self.run();
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        self.node.on_alarm(self.now);
        self.run();
    }

    fn run(&mut self) {
        while let Some(action) = self.node.poll_action(self.now) {
            match action {
                Action::AskHook { number, .. } => self.asked.push(number),
                Action::Find { read, key, id } => {
                    let found = self.store.find(&key, id).map(|found| found.map(Box::new));
                    self.node.on_found(self.now, read, found);
                }
                Action::FindAnswer { read, key } => {
                    let found = self.store.first_answer(self.now.wall_ms, &key);
                    self.node.on_answered(read, found);
                }
                Action::Chore(chore) => {
                    let done = chore.work(&mut self.store);
                    self.node.on_chore(self.now, done);
                }
                Action::Commit(batch) if self.is_slow => self.held = Some(batch),
                Action::Commit(batch) => self.commit(batch),
                Action::Answer { letter: ToShard::PostAnswer { ticket, answer }, .. } => {
                    let answer = answer.map(|posted| (posted.id, posted.seq)).map_err(|problem| problem.code);
                    self.answers.push((ticket, answer));
                }
                Action::Publish { sealed, .. } => {
                    let event = sealed.to_event();
                    if event.kind == EventKind::ChannelUpdated {
                        // It takes no credit, so there is none to give back.
                        continue;
                    }
                    self.published.push((event.kind, event.text));
                    self.node.on_placed(ShardId(0), self.published.len() as u64);
                }
                _ => {}
            }
        }
    }

    fn commit(&mut self, batch: Batch) {
        self.commits += 1;
        let result = self.store.commit(self.now.wall_ms, batch.events());
        drop(batch);
        self.node.on_committed(self.now, result);
    }

    /// The disk is done with what it held, and is quick again.
    fn let_go(&mut self) {
        self.is_slow = false;
        let batch = self.held.take().expect("a batch is under way");
        self.commit(batch);
        self.run();
    }

    /// The one answer to a ticket.
    fn answer(&self, ticket: u64) -> Answered {
        let mut answers = self.answers.iter().filter(|(of, _)| *of == ticket).map(|(_, answer)| *answer);
        let answer = answers.next().expect("it is answered");
        assert_eq!(answers.next(), None, "once");
        answer
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.published.iter().map(|(kind, _)| *kind).collect()
    }

    /// What was published is what is stored, nothing waits, and every place and byte was given back.
    fn assert_rest(&mut self, kinds: &[EventKind]) {
        assert_eq!(self.kinds(), kinds);
        let key = ChannelKey::new(self.topic.app.clone(), self.topic.name.clone());
        let page = self.store.page(&key, PageAsk::Latest { limit: 100 }).unwrap();
        assert_eq!(page.events.iter().map(|event| event.kind).collect::<Vec<_>>(), kinds);
        assert_eq!(page.events.iter().find(|event| event.text.is_some()), None, "no text is left");
        assert!(self.node.is_quiet());
        let own = self.node.own_metrics();
        let used = |what: &str| own.of_apps.iter().find(|(of, ..)| *of == what).map(|(_, _, gauge)| gauge.used);
        assert_eq!(used("app_queued_bytes"), Some(0));
        assert_eq!(used("app_hooks").unwrap_or(0), 0);
        let retracted = own.counters.iter().find(|(of, ..)| *of == "hook_retracted").map(|(_, _, count)| *count);
        assert_eq!(retracted, Some(0), "the hook took nothing back");
        // And it stays so: nothing is tried again.
        let commits = self.commits;
        (0..5).for_each(|_| self.pass(1_000));
        assert_eq!((self.commits, self.published.len()), (commits, kinds.len()));
    }
}

#[test]
fn a_verdict_behind_the_retraction_lets_nothing_through() {
    for verdict in [Verdict::Yes, Verdict::None] {
        let mut world = World::new(true);
        let message = world.message();
        let edit = world.say("ann", MessageUpdated, Some(message), None);
        let question = world.asked.pop().unwrap();
        assert!(world.retract(message).is_ok());
        world.judge(question, verdict);
        assert_eq!(world.answer(edit), GONE);
        world.assert_rest(&[MessageNew, MessageRetracted]);
    }
}

#[test]
fn an_edit_that_nobody_judged_in_time_is_not_stored_and_its_late_no_has_nothing_to_take_back() {
    // The no comes while the edit is on its way to the disk, or when that is long over.
    for comes_early in [true, false] {
        let mut world = World::new(true);
        let message = world.message();
        let edit = world.say("ann", MessageUpdated, Some(message), None);
        let question = world.asked.pop().unwrap();
        assert!(world.retract(message).is_ok());
        world.is_slow = true;
        world.pass(u64::from(BUDGET_MS));
        if comes_early {
            world.judge(question, Verdict::No(String::new()));
        }
        world.let_go();
        assert_eq!(world.answer(edit), GONE);
        if !comes_early {
            world.judge(question, Verdict::No(String::new()));
        }
        world.assert_rest(&[MessageNew, MessageRetracted]);
    }
}

#[test]
fn what_waits_for_the_disk_behind_the_retraction_is_not_stored() {
    for shares_its_batch in [true, false] {
        let mut world = World::new(false);
        let message = world.message();
        let other = world.message();
        world.is_slow = true;
        // While it is under way the next batch gathers.
        let first = if shares_its_batch { other } else { message };
        let first = world.say("", MessageRetracted, Some(first), None);
        let second = if shares_its_batch { message } else { other };
        let second = world.say("", MessageRetracted, Some(second), None);
        let kinds = [MessageUpdated, ReactionNew, ReactionDeleted, MessageDeleted];
        let late = kinds.map(|kind| world.say("ann", kind, Some(message), None));
        assert!(world.answers.len() == 2, "nothing refuses them yet: {:?}", world.answers);
        world.let_go();
        assert_eq!([first, second].map(|ticket| world.answer(ticket).unwrap().1), [3, 4]);
        assert_eq!(late.map(|ticket| world.answer(ticket)), [GONE; 4]);
        world.assert_rest(&[MessageNew, MessageNew, MessageRetracted, MessageRetracted]);
    }
}

#[test]
fn a_late_no_to_a_message_that_its_author_deleted_is_done() {
    // Deleted before the no came, or in front of the retraction in one batch.
    for waits in [false, true] {
        let mut world = World::new(true);
        let posted = world.say("ann", MessageNew, None, None);
        let question = world.asked.pop().unwrap();
        world.pass(u64::from(BUDGET_MS));
        let message = world.answer(posted).unwrap().0;
        world.is_slow = waits;
        let deleted = world.say("ann", MessageDeleted, Some(message), None);
        world.judge(question, Verdict::No(String::new()));
        if waits {
            world.let_go();
        }
        assert!(world.answer(deleted).is_ok());
        assert_eq!(world.answers.len(), 2, "nobody waits for the retraction");
        world.assert_rest(&[MessageNew, MessageDeleted]);
    }
}

#[test]
fn a_repeat_with_its_key_gets_the_first_answer_when_the_message_is_gone_and_nobody_judges_it() {
    let mut world = World::new(true);
    let message = Some(world.message());
    let edit = world.say("ann", MessageUpdated, message, Some("k"));
    let question = world.asked.pop().unwrap();
    world.judge(question, Verdict::Yes);
    let deleted = world.say("ann", MessageDeleted, message, Some("k"));
    for (ticket, kind) in [(edit, MessageUpdated), (deleted, MessageDeleted)] {
        let again = world.say("ann", kind, message, Some("k"));
        assert_eq!((world.answer(again), world.answer(again).is_ok()), (world.answer(ticket), true));
        // Another key is another call; another's key is another key, also the backend's; and without one it is no repeat.
        for (user, key) in [("ann", Some("l")), ("eve", Some("k")), ("", Some("k")), ("ann", None)] {
            let late = world.say(user, kind, message, key);
            assert_eq!(world.answer(late), GONE, "{user} {key:?}");
        }
    }
    let retracted = world.say("", MessageRetracted, message, Some("k"));
    assert_eq!(world.answer(retracted), GONE);
    // A store that cannot say is no store that says no.
    world.store.fail_next(1, StoreError::Full);
    let failed = world.say("ann", MessageDeleted, message, Some("k"));
    assert_eq!(world.answer(failed), Err("disk_full"));
    assert!(world.asked.is_empty(), "nobody judges what will not be stored");
    world.assert_rest(&[MessageNew, MessageUpdated, MessageDeleted]);
}

#[test]
fn a_repeat_in_slow_mode_gets_the_first_answer_and_nobody_waits_for_it() {
    let mut world = World::new(false);
    let key = ChannelKey::new(world.topic.app.clone(), world.topic.name.clone());
    let limits = ChannelLimits { slow_mode_s: 10, messages_per_s: 0 };
    world.node.on_letter(world.now, ToOrchestrator::SetLimits { ticket: 99, asker: ShardId(0), key, limits });
    world.run();
    let post = |world: &mut World, key: &str| {
        let ticket = world.say("ann", MessageNew, None, Some(key));
        world.answer(ticket)
    };
    let first = post(&mut world, "a");
    assert!(first.is_ok());
    assert_eq!(post(&mut world, "a"), first, "no new one, so there is nothing to wait for");
    assert_eq!(post(&mut world, "b"), Err("slow_mode"));
    world.pass(10_000);
    assert_eq!(post(&mut world, "a"), first);
    assert!(post(&mut world, "b").is_ok(), "the repeat before it was no message");
    assert_eq!(post(&mut world, "c"), Err("slow_mode"));
    let posted = world.kinds().iter().filter(|kind| **kind == MessageNew).count();
    assert_eq!(posted, 2);
    assert!(world.node.is_quiet());
}
