//! What the shard wants done, and who does it: the orchestrator, the door, a request that waits, the ring.
//!
//! Actions flow in, letters and calls flow out. Always true: letters to the orchestrator keep their order, also where its
//! mailbox is full, and what wants a bell rung says so and lets the end of the turn ring it once.

use super::{Core, socket_id};
use crate::base::Now;
use crate::io::handoff::EventDoors;
use crate::shard::Action;
use crate::wire::topic::partition;

impl Core {
    /// Does everything that the shard wants done, until it wants nothing more.
    pub(super) fn act(&mut self, now: Now) {
        while let Some(letter) = self.unsent.pop_front() {
            if let Err(back) = self.orchestrator.letters.push(letter) {
                self.unsent.push_front(back);
                break;
            }
            self.ring_orchestrator = true;
        }
        loop {
            let action = self.shard.borrow_mut().poll_action();
            let Some(action) = action else { break };
            self.do_one(now, action);
        }
        let mut shard = self.shard.borrow_mut();
        shard.set_busy_outside(!self.unsent.is_empty());
        let mut doors = EventDoors { doors: &self.shards, reserve: self.reserve, rung: &mut self.rung };
        while let Some(sealed) = shard.poll_news() {
            shard.publish_news(&sealed, &mut doors);
        }
        shard.flush_presence(now, &mut doors);
    }

    fn do_one(&mut self, now: Now, action: Action) {
        match action {
            Action::Ask(letter) => {
                self.ring_orchestrator = true;
                // Behind one that had to wait, the others wait too: their order is part of what they say.
                if !self.unsent.is_empty() {
                    self.unsent.push_back(letter);
                } else if let Err(back) = self.orchestrator.letters.push(letter) {
                    self.unsent.push_back(back);
                }
            }
            Action::Publish(sealed) => {
                let topic = sealed.topic();
                let to = partition(topic.scope, topic.app.as_str(), topic.name.as_str(), self.shards.len() as u16);
                let at = usize::from(to.0);
                // Ephemeral: dropped and counted where it does not fit.
                if self.shards[at].partition.room() <= self.reserve || self.shards[at].partition.push(sealed).is_err() {
                    self.shard.borrow_mut().count_lost_before_fanout();
                }
                self.rung[at] = true;
            }
            Action::HandOver { ticket, to, seat } => self.hand_over(now, ticket, to, *seat),
            Action::Refuse { ticket, problem } => {
                if let Some(waiting) = self.door.take(ticket) {
                    self.door.refuse(now, waiting.fd, &problem);
                }
            }
            Action::Install { ticket, client } => self.install(now, ticket, client),
            Action::Answer { ticket, answer } => self.requests.answer(ticket, answer),
            Action::WantWritable(id) => self.ring.want_writable(socket_id(id)),
            Action::ShutdownWrite(id) => self.ring.shutdown_write(socket_id(id)),
            Action::End(id) => self.ring.end(socket_id(id)),
            Action::PauseReads(id) => self.ring.pause_reads(socket_id(id)),
            Action::ResumeReads(id) => self.ring.resume_reads(socket_id(id)),
            Action::StopListening => self.ring.stop_listening(),
        }
    }
}
