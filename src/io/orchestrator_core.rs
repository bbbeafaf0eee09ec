//! The loop of the orchestrator's core: letters, news of the store, verdicts of hooks and time in; answers, batches,
//! questions and events out; and the end of the node.
//!
//! Always true: the orchestrator is borrowed, called and let go before anything is awaited; and when the node is asked
//! to end, what was acknowledged is on disk before the process is gone.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use glommio::yield_if_needed;

use super::clock::Clock;
use super::committer::Committer;
use super::handoff::{OrchestratorInbox, ShardDoors, StoreNews};
use super::hooks::Hooks;
use super::life::Life;
use super::machine;
use super::signal::EndAsked;
use super::wait::sleep_until_work;
use crate::base::{Gauge, Now, ShardId};
use crate::bus::has_credit;
use crate::orchestrator::{Action, Orchestrator};
use crate::post::letters::ToShard;
use crate::wire::sealed::Sealed;

/// Letters that one turn takes.
const LETTERS_A_TURN: usize = 256;
/// The end of the drain period that is kept for the last closes, in milliseconds; of a short period, a third.
const LAST_CLOSES_MS: u32 = 3_500;
/// How soon a full mailbox is tried again, in milliseconds.
const RETRY_MS: u64 = 1;

/// What the orchestrator's core is made of.
pub struct OrchestratorCoreParts {
    /// Its state machine, shared with the admin listener of the same core.
    pub orchestrator: Rc<RefCell<Orchestrator>>,
    /// Its mailboxes.
    pub inbox: OrchestratorInbox,
    /// To the shards.
    pub shards: Vec<ShardDoors>,
    /// The store's threads.
    pub committer: Committer,
    /// The judges of the apps.
    pub hooks: Rc<Hooks>,
    /// The node's clock.
    pub clock: Clock,
    /// The node's life.
    pub life: Arc<Life>,
    /// Told when its loop begins.
    pub begun: Sender<()>,
    /// Raised by SIGTERM.
    pub end_asked: Arc<EndAsked>,
    /// The drain period, in milliseconds.
    pub drain_ms: u32,
    /// Resident memory at which nobody more is let in, in MiB; 0 is no bound.
    pub memory_mib_max: u32,
}

struct Core {
    parts: OrchestratorCoreParts,
    /// Answers and events whose mailbox was full. Both have their credits, so this is bounded by them; that it is ever
    /// used means that a limit was set too low.
    late: VecDeque<Late>,
    rung: Vec<bool>,
    end_by_ms: Option<u64>,
}

enum Late {
    Answer(ShardId, ToShard),
    Event(ShardId, Sealed),
}

/// Runs the orchestrator's core until the node has ended.
pub async fn run(parts: OrchestratorCoreParts) {
    let rung = vec![false; parts.shards.len()];
    // Who waits for it may have given up by now.
    let _ = parts.begun.send(());
    let mut core = Core { parts, late: VecDeque::new(), rung, end_by_ms: None };
    core.run_loop().await;
    core.parts.committer.stop();
}

impl Core {
    async fn run_loop(&mut self) {
        let beat = self.parts.shards.len();
        loop {
            let now = self.parts.clock.now();
            self.parts.life.beat(beat, now.mono_ms());
            let more = self.take_letters(now);
            self.on_time(now);
            self.act(now);
            for (at, rung) in self.rung.iter_mut().enumerate() {
                if std::mem::take(rung) {
                    self.parts.shards[at].answers.ring();
                }
            }
            if self.is_over(now) {
                self.parts.life.stop();
                for shard in &self.parts.shards {
                    shard.answers.ring();
                }
                return;
            }
            if more {
                yield_if_needed().await;
            } else {
                self.sleep(now).await;
            }
        }
    }

    async fn sleep(&self, now: Now) {
        let late = (!self.late.is_empty()).then(|| now.mono_ms() + RETRY_MS);
        let end = self.end_by_ms.map(|at| at.min(now.mono_ms() + 20));
        let alarm = Some(self.parts.orchestrator.borrow().next_alarm_ms());
        let until_ms = [late, end, alarm].into_iter().flatten().min().unwrap_or(u64::MAX);
        let timeout = Duration::from_micros((until_ms.saturating_mul(1_000)).saturating_sub(now.mono_us));
        if timeout.is_zero() {
            return yield_if_needed().await;
        }
        let (inbox, end_asked) = (&self.parts.inbox, &self.parts.end_asked);
        let ending = self.end_by_ms.is_some();
        let hooks = &self.parts.hooks;
        let look = || !inbox.is_empty() || !hooks.is_empty() || (!ending && end_asked.get());
        sleep_until_work(&inbox.door, hooks.bell(), Some(timeout), look).await;
    }

    fn take_letters(&mut self, now: Now) -> bool {
        let mut orchestrator = self.parts.orchestrator.borrow_mut();
        let inbox = &mut self.parts.inbox;
        for (shard, placed) in inbox.placed.iter_mut().enumerate() {
            if let Some(placed) = placed.pop() {
                orchestrator.on_placed(ShardId(shard as u16), placed);
            }
        }
        while let Some(news) = inbox.news.pop() {
            match news {
                StoreNews::Committed(result) => orchestrator.on_committed(now, result),
                StoreNews::Read(read, result) => orchestrator.on_page(now, read, result),
                StoreNews::Found(read, result) => orchestrator.on_found(now, read, result),
                StoreNews::Answered(read, result) => orchestrator.on_answered(read, result),
                StoreNews::BanSaved(number, result) => orchestrator.on_ban_saved(now, number, result),
                StoreNews::Chore(done) => orchestrator.on_chore(now, done),
            }
        }
        for report in &mut inbox.reports {
            if let Some(report) = report.pop() {
                orchestrator.on_report(now, report);
            }
        }
        while let Some((number, verdict)) = self.parts.hooks.take() {
            orchestrator.on_verdict(now, number, verdict);
        }
        let mut taken = 0;
        while taken < LETTERS_A_TURN
            && let Some(letter) = inbox.letters.pop()
        {
            taken += 1;
            orchestrator.on_letter(now, letter);
        }
        taken == LETTERS_A_TURN
    }

    fn on_time(&mut self, now: Now) {
        if self.parts.end_asked.get() && self.end_by_ms.is_none() {
            eprintln!("ringcast: asked to end; closing within {} ms", self.parts.drain_ms);
            self.parts.life.leave();
            super::machine::notify_stopping();
            let spread_ms = self.parts.drain_ms - LAST_CLOSES_MS.min(self.parts.drain_ms / 3);
            self.parts.orchestrator.borrow_mut().on_drain(spread_ms);
            self.end_by_ms = Some(now.mono_ms() + u64::from(self.parts.drain_ms));
        }
        let mut orchestrator = self.parts.orchestrator.borrow_mut();
        if orchestrator.next_alarm_ms() <= now.mono_ms() {
            orchestrator.on_alarm(now);
            machine::give_back_memory();
            if self.parts.memory_mib_max > 0 {
                let memory = Gauge::new(machine::resident_bytes() >> 20, self.parts.memory_mib_max.into());
                self.parts.life.set_memory_full(memory.is_full());
                orchestrator.set_memory(memory);
            }
        }
    }

    fn is_over(&self, now: Now) -> bool {
        let Some(end_by_ms) = self.end_by_ms else { return false };
        let quiet = self.parts.orchestrator.borrow().is_quiet() && self.late.is_empty();
        (self.parts.life.all_drained() && quiet) || now.mono_ms() >= end_by_ms
    }

    fn act(&mut self, now: Now) {
        while let Some(late) = self.late.pop_front() {
            if let Err(back) = self.push(late) {
                self.late.push_front(back);
                break;
            }
        }
        loop {
            let action = self.parts.orchestrator.borrow_mut().poll_action(now);
            match action {
                None => return,
                Some(Action::Answer { shard, letter }) => self.deliver(Late::Answer(shard, letter)),
                Some(Action::Publish { partition, sealed }) => self.deliver(Late::Event(partition, sealed)),
                Some(Action::Commit(batch)) => self.parts.committer.commit(batch, now.wall_ms),
                Some(Action::Read { read, key, ask }) => self.parts.committer.read(read, key, ask),
                Some(Action::Find { read, key, id }) => self.parts.committer.find(read, key, id),
                Some(Action::FindAnswer { read, key }) => self.parts.committer.first_answer(read, now.wall_ms, key),
                Some(Action::SaveBan { number, ban, lift }) => self.parts.committer.save_ban(number, ban, lift),
                Some(Action::Chore(chore)) => self.parts.committer.chore(chore),
                Some(Action::AskHook { number, app, body }) => self.parts.hooks.ask(number, app, body),
                Some(Action::SaveRooms(changes)) => self.parts.committer.save_rooms(changes),
            }
        }
    }

    fn deliver(&mut self, late: Late) {
        if !self.late.is_empty() {
            self.late.push_back(late);
        } else if let Err(back) = self.push(late) {
            self.late.push_back(back);
        }
    }

    fn push(&mut self, late: Late) -> Result<(), Late> {
        match late {
            Late::Answer(shard, letter) => {
                let at = usize::from(shard.0);
                self.rung[at] = true;
                self.parts.shards[at].answers.push(letter).map_err(|letter| Late::Answer(shard, letter))
            }
            Late::Event(shard, sealed) => {
                let at = usize::from(shard.0);
                self.rung[at] = true;
                match self.parts.shards[at].partition.push(sealed) {
                    Err(sealed) if has_credit(&sealed) => Err(Late::Event(shard, sealed)),
                    // An alarm's event that is not stored.
                    Err(_) => {
                        self.parts.orchestrator.borrow_mut().count_lost_before_fanout();
                        Ok(())
                    }
                    Ok(()) => Ok(()),
                }
            }
        }
    }
}
