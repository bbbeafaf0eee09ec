//! The loop of the orchestrator's core as `io/orchestrator_core.rs` has it, and the store's threads as
//! `io/committer.rs` has them.

use std::collections::VecDeque;

use ringcast::base::{ChannelKey, Now, RoomChange, ShardId, Ulid};
use ringcast::io::handoff::{OrchestratorInbox, ShardDoors, StoreNews};
use ringcast::orchestrator::{Action, Orchestrator};
use ringcast::post::letters::{Ban, ToShard};
use ringcast::post::mailbox::Sender;
use ringcast::post::report::Report;
use ringcast::store::chore::Chore;
use ringcast::store::{Appended, Batch, Memory, NewEvent, PageAsk, Pages, Position, Retention, Store, StoreError};
use ringcast::wire::hook::Verdict;
use ringcast::wire::sealed::Sealed;

use crate::mutant::Mutant;
use crate::plan::{APP, name};
use crate::shard_core::Scene;

/// How long beyond the drain period the last closes may take, in milliseconds.
const LAST_CLOSES_MS: u64 = 3_000;

enum Late {
    Answer(ShardId, ToShard),
    Event(ShardId, Sealed),
}

enum Job {
    Commit(Batch, u64),
    SaveRooms(Vec<RoomChange>),
    SaveBan(u64, Ban, bool),
    Chore(Chore),
}

/// The store behind its two threads.
pub(crate) struct Disk {
    pub(crate) store: Memory,
    jobs: VecDeque<Job>,
    reads: VecDeque<(u64, ChannelKey, PageAsk)>,
    finds: VecDeque<(u64, ChannelKey, Ulid)>,
    answers: VecDeque<(u64, String)>,
    /// A batch that was told already, and the step at which it is written: [`Mutant::ToldBeforeCommit`].
    owed: Option<(Batch, u64, u64)>,
    /// What was done and is not told yet.
    done: VecDeque<StoreNews>,
    news: Sender<StoreNews>,
}

/// The orchestrator's core.
pub(crate) struct OrchestratorCore {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) inbox: OrchestratorInbox,
    pub(crate) shards: Vec<ShardDoors>,
    pub(crate) disk: Disk,
    late: VecDeque<Late>,
    /// Questions that the hook has not answered.
    judging: Vec<u64>,
    /// Reports that may come a second time.
    seen: Vec<Option<Report>>,
    pub(crate) end_by_ms: Option<u64>,
}

impl OrchestratorCore {
    pub(crate) fn new(
        orchestrator: Orchestrator,
        inbox: OrchestratorInbox,
        shards: Vec<ShardDoors>,
        store: Memory,
        news: Sender<StoreNews>,
    ) -> Self {
        Self {
            orchestrator,
            inbox,
            seen: vec![None; shards.len()],
            shards,
            disk: Disk {
                store,
                jobs: VecDeque::new(),
                reads: VecDeque::new(),
                finds: VecDeque::new(),
                answers: VecDeque::new(),
                owed: None,
                done: VecDeque::new(),
                news,
            },
            late: VecDeque::new(),
            judging: Vec::new(),
            end_by_ms: None,
        }
    }

    /// One turn of the loop; true when the node has ended.
    pub(crate) fn turn(&mut self, scene: &mut Scene<'_>, all_drained: bool) -> bool {
        self.take_letters(scene);
        if self.orchestrator.next_alarm_ms() <= scene.now.mono_ms() {
            self.orchestrator.on_alarm(scene.now);
        }
        self.act(scene.now, scene);
        let Some(end_by_ms) = self.end_by_ms else { return false };
        let quiet = self.orchestrator.is_quiet() && self.late.is_empty();
        (all_drained && quiet) || scene.now.mono_ms() >= end_by_ms
    }

    /// The process is asked to end.
    pub(crate) fn drain(&mut self, now: Now, drain_ms: u32) {
        self.orchestrator.on_drain(drain_ms);
        self.end_by_ms = Some(now.mono_ms() + u64::from(drain_ms) + LAST_CLOSES_MS);
    }

    fn take_letters(&mut self, scene: &mut Scene<'_>) {
        let now = scene.now;
        for (shard, placed) in self.inbox.placed.iter_mut().enumerate() {
            if let Some(placed) = placed.pop() {
                self.orchestrator.on_placed(ShardId(shard as u16), placed);
            }
        }
        while let Some(news) = self.inbox.news.pop() {
            match news {
                StoreNews::Committed(result) => self.orchestrator.on_committed(now, result),
                StoreNews::Read(read, result) => self.orchestrator.on_page(now, read, result),
                StoreNews::Found(read, result) => self.orchestrator.on_found(now, read, result),
                StoreNews::Answered(read, result) => self.orchestrator.on_answered(read, result),
                StoreNews::BanSaved(number, result) => self.orchestrator.on_ban_saved(now, number, result),
                StoreNews::Chore(done) => self.orchestrator.on_chore(now, done),
            }
        }
        self.judge(scene);
        for (at, report) in self.inbox.reports.iter_mut().enumerate() {
            // The newest report of a shard may come twice.
            let again = scene.random.chance(2).then(|| self.seen[at].clone()).flatten();
            if let Some(report) = report.pop().or(again) {
                self.seen[at] = Some(report.clone());
                self.orchestrator.on_report(now, report);
            }
        }
        for _ in 0..scene.plan.letters_a_turn {
            let Some(letter) = self.inbox.letters.pop() else { break };
            self.orchestrator.on_letter(now, letter);
        }
    }

    /// The hook answers some of its questions, in any order. Where messages pass without a verdict it never says no: what
    /// it took back then, viewers could not tell from what they lost.
    fn judge(&mut self, scene: &mut Scene<'_>) {
        let fails_open = scene.plan.orchestrator.hooks.iter().flatten().all(|rule| rule.fails_open);
        while !self.judging.is_empty() && (scene.random.chance(40) || !scene.plan.hook_trouble) {
            let number = self.judging.swap_remove(scene.random.below(self.judging.len() as u64) as usize);
            let verdict = match scene.random.below(4) {
                0 if !fails_open => Verdict::No(String::new()),
                1 => Verdict::None,
                _ => Verdict::Yes,
            };
            scene.trace.say(|| format!("hook: question {number} is answered {verdict:?}"));
            self.orchestrator.on_verdict(scene.now, number, verdict);
        }
    }

    fn act(&mut self, now: Now, scene: &mut Scene<'_>) {
        while let Some(late) = self.late.pop_front() {
            if let Err(back) = self.push(late, scene) {
                self.late.push_front(back);
                break;
            }
        }
        while let Some(action) = self.orchestrator.poll_action(now) {
            match action {
                Action::Answer { shard, letter } => self.deliver(Late::Answer(shard, letter), scene),
                Action::Publish { partition, sealed } => self.deliver(Late::Event(partition, sealed), scene),
                Action::Commit(batch) => self.disk.jobs.push_back(Job::Commit(batch, now.wall_ms)),
                Action::Read { read, key, ask } => self.disk.reads.push_back((read, key, ask)),
                Action::Find { read, key, id } => self.disk.finds.push_back((read, key, id)),
                Action::FindAnswer { read, key } => self.disk.answers.push_back((read, key)),
                Action::SaveBan { number, ban, lift } => self.disk.jobs.push_back(Job::SaveBan(number, ban, lift)),
                Action::Chore(chore) => self.disk.jobs.push_back(Job::Chore(chore)),
                Action::AskHook { number, .. } if scene.plan.hook_trouble => self.judging.push(number),
                Action::AskHook { number, .. } => self.orchestrator.on_verdict(now, number, Verdict::Yes),
                Action::SaveRooms(changes) => self.disk.jobs.push_back(Job::SaveRooms(changes)),
            }
        }
    }

    fn deliver(&mut self, late: Late, scene: &mut Scene<'_>) {
        if !self.late.is_empty() {
            self.late.push_back(late);
        } else if let Err(back) = self.push(late, scene) {
            self.late.push_back(back);
        }
    }

    fn push(&mut self, late: Late, scene: &mut Scene<'_>) -> Result<(), Late> {
        match late {
            Late::Answer(shard, letter) => {
                let door = &self.shards[usize::from(shard.0)].answers;
                door.push(letter).map_err(|letter| Late::Answer(shard, letter))
            }
            Late::Event(shard, sealed) => {
                let door = &self.shards[usize::from(shard.0)].partition;
                scene.truth.entered += 1;
                door.push(sealed).map_err(|sealed| {
                    scene.truth.entered -= 1;
                    Late::Event(shard, sealed)
                })
            }
        }
    }
}

/// What a store would say that had written these.
fn invented(scene: &Scene<'_>, store: &mut Memory, events: &[NewEvent]) -> Vec<Appended> {
    let mut heads = scene.truth.heads.clone();
    let new = events.iter().map(|event| {
        let head = heads.entry(event.key.channel.as_str().to_owned()).or_default();
        *head += 1;
        let epoch = store.page(&event.key, PageAsk::Latest { limit: 0 }).map_or(1, |page| page.epoch);
        Appended::New { position: Position { epoch, seq: *head } }
    });
    new.collect()
}

impl Disk {
    /// Each thread does something, or not.
    pub(crate) fn turn(&mut self, scene: &mut Scene<'_>) {
        while let Some(news) = self.done.pop_front() {
            if let Err(back) = self.news.push(news) {
                self.done.push_front(back);
                break;
            }
        }
        if self.store.is_stalled() {
            return;
        }
        if let Some((batch, now_wall_ms, at)) = self.owed.take() {
            if scene.step < at && !scene.calm {
                self.owed = Some((batch, now_wall_ms, at));
                return;
            }
            if let Ok(results) = self.store.commit(now_wall_ms, batch.events()) {
                scene.truth.committed(batch.events(), &results);
            }
        }
        if scene.random.chance(60)
            && let Some(job) = self.jobs.pop_front()
        {
            self.work(job, scene);
        }
        if scene.random.chance(60) {
            self.find(scene.now);
        }
        if scene.random.chance(60)
            && let Some((read, key, ask)) = self.reads.pop_front()
        {
            let page = if scene.random.below(1_000) < scene.plan.faults {
                Err(StoreError::Busy)
            } else {
                self.store.page(&key, ask)
            };
            self.done.push_back(StoreNews::Read(read, page));
        }
    }

    fn find(&mut self, now: Now) {
        if let Some((number, key)) = self.answers.pop_front() {
            let found = self.store.first_answer(now.wall_ms, &key);
            self.done.push_back(StoreNews::Answered(number, found));
        }
        if let Some((number, key, id)) = self.finds.pop_front() {
            let found = self.store.find(&key, id).map(|found| found.map(Box::new));
            self.done.push_back(StoreNews::Found(number, found));
        }
    }

    fn work(&mut self, job: Job, scene: &mut Scene<'_>) {
        let faulty = scene.random.below(1_000) < scene.plan.faults || scene.plan.is_out(scene.step);
        match job {
            Job::SaveBan(number, ban, lift) => {
                let result = if lift {
                    self.store.ban_clear(&ban.app, &ban.user, ban.channel.as_ref()).map(|_| ())
                } else {
                    self.store.ban_set(&ban)
                };
                self.done.push_back(StoreNews::BanSaved(number, result));
            }
            Job::Commit(batch, now_wall_ms) => {
                // After an I/O error it is not known whether the commit is durable: here are both cases.
                let known = scene.random.chance(70);
                scene.truth.failed_commits += u64::from(faulty);
                if faulty && known {
                    let error = scene.random.pick(&[0, 1]);
                    let error = if error == 0 { StoreError::Full } else { StoreError::Io("a bad disk".into()) };
                    self.store.fail_next(1, error);
                }
                if scene.mutant.strikes(Mutant::CommitInvented, scene.random, 5) {
                    let result = Ok(invented(scene, &mut self.store, batch.events()));
                    self.done.push_back(StoreNews::Committed(result));
                    return;
                }
                if scene.mutant.strikes(Mutant::ToldBeforeCommit, scene.random, 5) {
                    let result = Ok(invented(scene, &mut self.store, batch.events()));
                    self.owed = Some((batch, now_wall_ms, scene.step + 20));
                    self.done.push_back(StoreNews::Committed(result));
                    return;
                }
                let mut result = self.store.commit(now_wall_ms, batch.events());
                if scene.mutant.strikes(Mutant::CommitRepeated, scene.random, 5) {
                    result = self.store.commit(now_wall_ms, batch.events());
                }
                if let Ok(results) = &result {
                    scene.truth.committed(batch.events(), results);
                    scene.trace.say(|| format!("store: {} events are durable", results.len()));
                    if faulty && !known {
                        scene.trace.say(|| "store: … and nobody is told".to_owned());
                        result = Err(StoreError::Io("the answer is lost".into()));
                    }
                }
                drop(batch);
                self.done.push_back(StoreNews::Committed(result));
            }
            Job::Chore(chore) => {
                if faulty {
                    self.store.fail_next(1, StoreError::Busy);
                }
                self.done.push_back(StoreNews::Chore(chore.work(&mut self.store)));
                // A chore that only reads leaves the fault unused.
                self.store.fail_next(0, StoreError::Busy);
            }
            Job::SaveRooms(changes) => {
                if faulty {
                    self.store.fail_next(1, StoreError::Busy);
                }
                // What was not written is written with the next change.
                let _ = self.store.rooms_save(&changes);
            }
        }
        if scene.plan.retention && scene.random.chance(10) {
            let keep_last = Some(scene.random.between(1, 12));
            let ask = Retention { app: name(APP), from: None, older_than_ms: None, keep_last, slice: 100 };
            self.store.retain(&ask).expect("no fault");
            for (channel, head) in &scene.truth.heads {
                let first = self.store.page(&ChannelKey::new(name(APP), name(channel)), PageAsk::Latest { limit: 0 });
                scene.truth.first_kept.insert(channel.clone(), first.map_or(head + 1, |page| page.first_kept));
            }
        }
    }
}
