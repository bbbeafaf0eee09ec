//! The loop of a socket core as `io/shard_core.rs` has it, call by call, with sockets that have no kernel.

use std::collections::{BTreeMap, VecDeque};

use ringcast::base::{ClientId, Now, ShardId};
use ringcast::io::handoff::{EventDoors, OrchestratorDoors, ShardDoors, ShardInbox};
use ringcast::post::letters::{AddressKey, Seat, ToOrchestrator};
use ringcast::post::mailbox::{Receiver, Sender};
use ringcast::shard::{Action, Origin, SendBatch, SendResult, Shard};
use ringcast::wire::event::EventKind;
use ringcast::wire::http::{Head, parse_head};
use ringcast::wire::problem::Problem;
use ringcast::wire::sealed::Sealed;
use ringcast::wire::topic::{Scope, partition};

use crate::mutant::{Mutant, changed};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::socket::{Network, Sent};
use crate::trace::Trace;
use crate::truth::{Truth, number_of};

/// What every part of the world works with.
pub(crate) struct Scene<'a> {
    pub(crate) now: Now,
    pub(crate) random: &'a mut Rng,
    pub(crate) network: &'a mut Network,
    pub(crate) truth: &'a mut Truth,
    pub(crate) trace: &'a mut Trace,
    pub(crate) plan: &'a Plan,
    /// What is broken on purpose.
    pub(crate) mutant: Mutant,
    /// The end has come: nothing goes wrong any more.
    pub(crate) calm: bool,
    /// The step of the world.
    pub(crate) step: u64,
}

/// A socket that waits for its seat.
pub(crate) struct Waiting {
    socket: usize,
    leftover: Vec<u8>,
}

/// A socket on its way to another shard.
pub(crate) struct Handoff {
    seat: Seat,
    waiting: Waiting,
}

/// One core.
pub(crate) struct ShardCore {
    pub(crate) id: usize,
    pub(crate) shard: Shard,
    pub(crate) inbox: ShardInbox,
    pub(crate) seats: Receiver<Handoff>,
    pub(crate) doors: Vec<ShardDoors>,
    pub(crate) seat_doors: Vec<Sender<Handoff>>,
    pub(crate) orchestrator: OrchestratorDoors,
    /// Sockets that were accepted.
    pub(crate) guests: VecDeque<usize>,
    pub(crate) door: BTreeMap<u64, Waiting>,
    pub(crate) sockets: BTreeMap<ClientId, usize>,
    pub(crate) unsent: VecDeque<ToOrchestrator>,
    pub(crate) listening: bool,
    pub(crate) drained: bool,
    batch: SendBatch,
    placed: u64,
    rung: Vec<bool>,
    /// Stored events that come a second time or late, as letters of another node may.
    again: VecDeque<Sealed>,
    /// An event that a fault holds back.
    held: Option<Sealed>,
}

impl ShardCore {
    #[allow(clippy::too_many_arguments, reason = "the ends of all mailboxes")]
    pub(crate) fn new(
        shard: Shard,
        inbox: ShardInbox,
        seats: Receiver<Handoff>,
        doors: Vec<ShardDoors>,
        seat_doors: Vec<Sender<Handoff>>,
        orchestrator: OrchestratorDoors,
    ) -> Self {
        Self {
            id: usize::from(shard.options().id.0),
            rung: vec![false; doors.len()],
            shard,
            inbox,
            seats,
            doors,
            seat_doors,
            orchestrator,
            guests: VecDeque::new(),
            door: BTreeMap::new(),
            sockets: BTreeMap::new(),
            unsent: VecDeque::new(),
            listening: true,
            drained: false,
            batch: SendBatch::default(),
            placed: 0,
            again: VecDeque::new(),
            held: None,
        }
    }

    /// One turn of the loop.
    pub(crate) fn turn(&mut self, scene: &mut Scene<'_>) {
        self.take_letters(scene);
        self.turn_ring(scene);
        self.greet(scene);
        self.on_time(scene);
        self.act(scene);
        self.send(scene);
        self.act(scene);
    }

    fn take_letters(&mut self, scene: &mut Scene<'_>) {
        let (now, most) = (scene.now, scene.plan.letters_a_turn);
        for _ in 0..most {
            let Some(letter) = self.inbox.answers.pop() else { break };
            if scene.mutant.strikes(Mutant::AnswerLost, scene.random, 2) {
                continue;
            }
            self.shard.on_letter(now, letter);
        }
        for _ in 0..most {
            let Some(Handoff { seat, waiting }) = self.seats.pop() else { break };
            let ticket = self.shard.on_seat(now, seat);
            self.door.insert(ticket, waiting);
        }
        let reserve = scene.plan.orchestrator.credits_max as usize;
        let mut doors = EventDoors { doors: &self.doors, reserve, rung: &mut self.rung };
        self.shard.partition_mut().retry(&mut doors);
        for _ in 0..most {
            let Some(sealed) = self.inbox.partition.pop() else { break };
            if self.shard.order(now, &sealed, &mut doors) {
                scene.truth.ordered(&sealed);
            }
        }
        for _ in 0..most {
            let Some(letter) = self.inbox.presence.pop() else { break };
            self.shard.on_presence(now, letter);
        }
        for _ in 0..most {
            if scene.plan.waits_for_ticks && !self.shard.takes_events() {
                break;
            }
            let Some(sealed) = self.inbox.events.pop() else { break };
            if sealed.seq() != 0 && scene.random.below(1_000) < scene.plan.losses {
                scene.trace.say(|| format!("shard {}: {sealed:?} is lost on its way", self.id));
                scene.truth.dropped_on_the_way += 1;
                continue;
            }
            if sealed.seq() != 0 && scene.plan.repeats > 0 && scene.random.below(1_000) < scene.plan.repeats {
                // Now and later, or only later: a stored event says by its number where it belongs.
                self.again.push_back(sealed.clone());
                if scene.random.chance(50) {
                    scene.trace.say(|| format!("shard {}: {sealed:?} is late", self.id));
                    continue;
                }
                scene.truth.came_twice += 1;
            }
            let Some(sealed) = self.spoil(scene, sealed) else { continue };
            let (noes, topic) = (self.shard.stages().filter_noes, sealed.topic());
            self.shard.on_sealed(now, &sealed);
            let wanted = self.shard.rooms().iter().any(|room| room.viewers > 0 && room.key.channel == topic.name);
            if wanted && topic.scope == ringcast::wire::topic::Scope::Channel {
                assert_eq!(
                    self.shard.stages().filter_noes,
                    noes,
                    "the filter says no to {}, the index yes",
                    topic.name
                );
            }
        }
        if !self.again.is_empty() && (scene.calm || scene.random.chance(30)) {
            for sealed in std::mem::take(&mut self.again) {
                self.shard.on_sealed(now, &sealed);
            }
        }
        let placed = self.shard.partition().placed();
        if placed != self.placed {
            self.placed = placed;
            self.orchestrator.placed.replace(placed);
        }
    }

    /// What a fault makes of an event; `None` if it does not arrive.
    fn spoil(&mut self, scene: &mut Scene<'_>, sealed: Sealed) -> Option<Sealed> {
        let (mutant, random) = (scene.mutant, &mut *scene.random);
        let (kind, stored) = (sealed.kind(), sealed.seq() != 0);
        if mutant.strikes(Mutant::EventLost, random, 2) {
            return None;
        }
        let lost = mutant == Mutant::CriticalLost || (mutant == Mutant::UserLost && sealed.scope() == Scope::User);
        if kind == EventKind::AccessRevoked && lost {
            scene.truth.dropped_on_the_way += 1;
            return None;
        }
        if mutant == Mutant::EventsSwapped && !stored {
            return match self.held.take() {
                None if random.chance(30) => {
                    self.held = Some(sealed);
                    None
                }
                None => Some(sealed),
                Some(earlier) => {
                    self.shard.on_sealed(scene.now, &sealed);
                    Some(earlier)
                }
            };
        }
        if stored && mutant.strikes(Mutant::TextChanged, random, 10) {
            return Some(changed(&sealed, |event| event.text = Some("another".to_owned())));
        }
        if sealed.exclude() != 0 && mutant == Mutant::ExcludeForgotten {
            return Some(changed(&sealed, |event| event.exclude = 0));
        }
        Some(sealed)
    }

    fn turn_ring(&mut self, scene: &mut Scene<'_>) {
        let now = scene.now;
        let mut ids: Vec<(ClientId, usize)> = self.sockets.iter().map(|(id, socket)| (*id, *socket)).collect();
        scene.random.shuffle(&mut ids);
        for (id, no) in ids {
            let socket = scene.network.get(no);
            if let Some(turns) = &mut socket.ending {
                *turns = turns.saturating_sub(1);
                if *turns == 0 {
                    socket.node_fin = true;
                    self.sockets.remove(&id);
                    self.shard.on_closed(id);
                }
                continue;
            }
            if scene.random.chance(20) {
                continue;
            }
            if socket.wants_room && (socket.is_writable() || socket.reset) {
                socket.wants_room = false;
                if scene.mutant.strikes(Mutant::WritableLost, scene.random, 30) {
                    continue;
                }
                self.shard.on_writable(now, id);
            }
            let socket = scene.network.get(no);
            if socket.paused || socket.told_end {
                continue;
            }
            if socket.reset {
                socket.told_end = true;
                scene.trace.say(|| format!("shard {}: {id:?} is reset", self.id));
                self.shard.on_hangup(now, id);
                continue;
            }
            let most = scene.random.between(1, 300) as usize;
            let bytes: Vec<u8> = socket.up.drain(..most.min(socket.up.len())).collect();
            if !bytes.is_empty() {
                self.shard.on_bytes(now, id, &bytes);
                if scene.mutant.strikes(Mutant::BytesRepeated, scene.random, 2) {
                    self.shard.on_bytes(now, id, &bytes);
                }
            } else if socket.fin {
                socket.told_end = true;
                scene.trace.say(|| format!("shard {}: {id:?} hangs up", self.id));
                self.shard.on_hangup(now, id);
            }
        }
    }

    fn greet(&mut self, scene: &mut Scene<'_>) {
        let now = scene.now;
        for _ in 0..scene.random.between(1, 4) {
            let Some(no) = self.guests.pop_front() else { return };
            let socket = scene.network.get(no);
            if socket.reset || socket.fin {
                socket.node_fin = true;
                continue;
            }
            let bytes: Vec<u8> = socket.up.drain(..).collect();
            let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head") + 4;
            let (head, leftover) = bytes.split_at(end);
            let Ok(Head::Upgrade(upgrade)) = parse_head(head) else { panic!("a good upgrade is refused") };
            // Two addresses, and some who are exempt.
            let address = match no % 3 {
                0 => None,
                address => Some(AddressKey::V4(address as u32)),
            };
            match self.shard.on_upgrade(now, &upgrade, Origin { address, loopback: false }) {
                Ok(ticket) if scene.random.chance(2) => {
                    // The peer has reset the connection meanwhile.
                    scene.trace.say(|| format!("shard {}: ticket {ticket}: its socket is gone", self.id));
                    socket.reset = true;
                    socket.node_fin = true;
                    self.shard.on_join_gone(ticket);
                }
                Ok(ticket) => {
                    self.door.insert(ticket, Waiting { socket: no, leftover: leftover.to_vec() });
                }
                Err(problem) => refuse(scene, no, &problem),
            }
        }
    }

    fn on_time(&mut self, scene: &mut Scene<'_>) {
        let now = scene.now;
        if self.shard.next_alarm_ms().is_some_and(|at| at <= now.mono_ms()) {
            self.shard.on_alarm(now);
        }
        if let Some(report) = self.shard.take_report(now) {
            // One that was not read is replaced, and one that was read may come again.
            self.orchestrator.report.replace(report);
        }
        self.drained |= self.shard.is_drained();
    }

    fn act(&mut self, scene: &mut Scene<'_>) {
        while let Some(letter) = self.unsent.pop_front() {
            if let Err(back) = self.orchestrator.letters.push(letter) {
                self.unsent.push_front(back);
                break;
            }
        }
        while let Some(action) = self.shard.poll_action() {
            self.do_one(scene, action);
        }
        self.shard.set_busy_outside(!self.unsent.is_empty());
        let reserve = scene.plan.orchestrator.credits_max as usize;
        let mut doors = EventDoors { doors: &self.doors, reserve, rung: &mut self.rung };
        while let Some(sealed) = self.shard.poll_news() {
            if sealed.kind() == EventKind::TypingStop && scene.mutant == Mutant::TypingStopLost {
                continue;
            }
            if sealed.kind() == EventKind::ViewersUpdated && scene.mutant.strikes(Mutant::TotalLost, scene.random, 30) {
                continue;
            }
            scene.truth.said_of_members(&sealed);
            scene.truth.ordered(&sealed);
            scene.truth.entered += 1;
            self.shard.publish_news(&sealed, &mut doors);
        }
        self.shard.flush_presence(scene.now, &mut doors);
    }

    fn do_one(&mut self, scene: &mut Scene<'_>, action: Action) {
        match action {
            Action::Ask(ToOrchestrator::GiveBack { .. }) if scene.mutant == Mutant::SeatKept => {}
            Action::Ask(ToOrchestrator::Released { .. }) if scene.mutant == Mutant::ReleaseLost => {}
            Action::Ask(letter) => {
                if !self.unsent.is_empty() {
                    self.unsent.push_back(letter);
                } else if let Err(back) = self.orchestrator.letters.push(letter) {
                    self.unsent.push_back(back);
                }
            }
            Action::Publish(sealed) => {
                let topic = sealed.topic();
                let to = partition(topic.scope, topic.app.as_str(), topic.name.as_str(), self.doors.len() as u16);
                let door = &self.doors[usize::from(to.0)].partition;
                let number = number_of(&sealed);
                scene.truth.entered += 1;
                if door.room() <= scene.plan.orchestrator.credits_max as usize || door.push(sealed).is_err() {
                    scene.truth.entered -= 1;
                    scene.truth.turned_away.extend(number);
                    self.shard.count_lost_before_fanout();
                }
            }
            Action::HandOver { ticket, to, seat } => self.hand_over(scene, ticket, to, *seat),
            Action::Refuse { ticket, problem } => {
                if let Some(waiting) = self.door.remove(&ticket) {
                    refuse(scene, waiting.socket, &problem);
                }
            }
            Action::Install { ticket, client } => self.install(scene, ticket, client),
            Action::Answer { ticket, answer } => {
                scene.truth.answered(self.id, ticket, answer.status, &answer.body);
            }
            Action::StopListening => self.listening = false,
            Action::WantWritable(id) => self.on_socket(scene, id, |socket| socket.wants_room = true),
            Action::PauseReads(id) => self.on_socket(scene, id, |socket| socket.paused = true),
            Action::ResumeReads(id) => self.on_socket(scene, id, |socket| socket.paused = false),
            Action::ShutdownWrite(id) => self.on_socket(scene, id, |socket| socket.node_fin = true),
            Action::End(_) if scene.mutant.strikes(Mutant::EndForgotten, scene.random, 20) => {}
            Action::End(id) => {
                let turns = scene.random.between(1, 3) as u32;
                scene.trace.say(|| format!("shard {}: {id:?} ends", self.id));
                self.on_socket(scene, id, |socket| socket.ending = socket.ending.or(Some(turns)));
            }
        }
    }

    fn on_socket(&self, scene: &mut Scene<'_>, id: ClientId, change: impl FnOnce(&mut crate::socket::Socket)) {
        if let Some(&no) = self.sockets.get(&id) {
            change(scene.network.get(no));
        }
    }

    fn hand_over(&mut self, scene: &mut Scene<'_>, ticket: u64, to: ShardId, seat: Seat) {
        let Some(waiting) = self.door.remove(&ticket) else { return };
        if let Err(Handoff { seat, waiting }) = self.seat_doors[usize::from(to.0)].push(Handoff { seat, waiting }) {
            scene.trace.say(|| format!("shard {}: seat {} finds the mailbox full", self.id, seat.given.number));
            self.shard.on_hand_over_failed(&seat);
            let problem = Problem::new(503, "busy", "the core that holds the room is busy").retry_after(1);
            refuse(scene, waiting.socket, &problem);
        }
    }

    fn install(&mut self, scene: &mut Scene<'_>, ticket: u64, client: ClientId) {
        let waiting = self.door.remove(&ticket).expect("a socket waits under the ticket");
        if scene.random.chance(1) {
            scene.trace.say(|| format!("shard {}: {client:?} finds no ring", self.id));
            scene.network.get(waiting.socket).reset = true;
            self.shard.on_hangup(scene.now, client);
            self.shard.on_closed(client);
            return;
        }
        scene.trace.say(|| format!("shard {}: socket {} is {client:?}", self.id, waiting.socket));
        let before = self.sockets.insert(client, waiting.socket);
        assert_eq!(before, None, "rule 9: a place is given out before its socket was taken down");
        if !waiting.leftover.is_empty() {
            self.shard.on_bytes(scene.now, client, &waiting.leftover);
        }
    }

    fn send(&mut self, scene: &mut Scene<'_>) {
        for _ in 0..scene.random.between(1, 4) {
            let more = self.shard.poll_fanout(scene.now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            let sends = self.batch.sends();
            let mut slots: Vec<u32> = sends.iter().map(|send| send.client.slot).collect();
            slots.sort_unstable();
            assert!(slots.windows(2).all(|two| two[0] != two[1]), "rule 2: two sends of one socket in a submit");
            assert!(sends.len() <= scene.plan.shard.sends_per_submit as usize, "rule 12: the submit is bounded");
            let mut results = Vec::new();
            for (at, send) in sends.iter().enumerate() {
                let bytes = self.shard.bytes_of(&self.batch, send);
                if bytes.is_empty() {
                    continue;
                }
                let socket = self.sockets.get(&send.client).copied();
                let sent = match socket {
                    Some(no) if scene.network.get(no).ending.is_none() => scene.network.send(no, bytes),
                    _ => Sent::Gone,
                };
                let sent = misreported(scene, sent, bytes.len());
                match sent {
                    Sent::Whole => {}
                    Sent::Short(bytes) => results.push((at as u32, SendResult::Short(bytes))),
                    Sent::Gone => results.push((at as u32, SendResult::Gone)),
                }
            }
            scene.random.shuffle(&mut results);
            self.shard.on_sent(scene.now, &mut self.batch, &mut results);
            if !more {
                return;
            }
        }
    }
}

/// What a fault says of a send.
fn misreported(scene: &mut Scene<'_>, sent: Sent, bytes: usize) -> Sent {
    match sent {
        Sent::Short(taken) if scene.mutant.strikes(Mutant::SendOverstated, scene.random, 20) => {
            if taken + 1 == bytes {
                Sent::Whole
            } else {
                Sent::Short(taken + 1)
            }
        }
        Sent::Short(taken) if taken > 0 && scene.mutant.strikes(Mutant::SendUnderstated, scene.random, 20) => {
            Sent::Short(taken - 1)
        }
        sent => sent,
    }
}

fn refuse(scene: &mut Scene<'_>, socket: usize, problem: &Problem) {
    scene.trace.say(|| format!("socket {socket} is refused: {} {}", problem.status, problem.code));
    scene.network.send_last(socket, &problem.response());
}
