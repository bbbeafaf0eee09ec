//! Completions into states and notes: what the kernel answers.
//!
//! Completions flow in, notes for the next turn flow out. Always true: absorbing calls nobody and only pushes entries,
//! so it may happen inside any call; a completion whose generation no longer owns its slot changes nothing.

use io_uring::cqueue;

use super::slots::{CLOSING, ENDING, ENDS_SOON, HUNG_UP, POLL_IN, POLL_OUT, SHUTTING};
use super::tag::{self, Op};
use super::uring::Completion;
use super::{Greeting, RingEvent, SocketId, SocketRing};

/// An event that waits for the next turn; what carries bytes is made there and never waits.
#[derive(Debug)]
pub(super) enum Note {
    HangUp(SocketId, i32),
    Writable(SocketId),
    Closed(SocketId),
    Moved(SocketId, std::os::fd::OwnedFd),
    Accepted(u64, std::os::fd::OwnedFd),
    AcceptFailed(u64, i32),
    NotListening(u64),
    GreetingCancelled(u32),
    GreetingFailed(u32, i32),
}

impl SocketRing {
    /// Absorbs what was collected from a ring, and what absorbing it made the ring collect.
    pub(super) fn absorb_ring(&mut self, ring: usize) {
        loop {
            let Some(uring) = self.ring(ring).filter(|uring| !uring.reaped.is_empty()) else { return };
            let mut reaped = std::mem::take(&mut uring.reaped);
            for &completion in &reaped {
                self.absorb(completion);
            }
            reaped.clear();
            if let Some(uring) = self.ring(ring).filter(|uring| uring.reaped.is_empty()) {
                // The list goes back for its room.
                uring.reaped = reaped;
            }
        }
    }

    fn absorb(&mut self, completion: Completion) {
        let Some((op, turn, slot)) = tag::unpack(completion.user_data) else {
            self.stale += 1;
            return;
        };
        let Completion { result, flags, .. } = completion;
        match op {
            Op::Send => self.spoken.push((turn, result)),
            Op::Recv => self.reader.ended(turn, result, flags),
            Op::Cancel => {}
            Op::Accept => self.absorb_accept(slot, result, flags),
            Op::Greet => self.absorb_greet(slot, turn, result),
            Op::PollIn | Op::PollOut | Op::Shutdown | Op::Close | Op::Install => {
                self.absorb_socket(op, turn, slot, result, flags);
            }
        }
    }

    fn absorb_socket(&mut self, op: Op, turn: u32, slot: u32, result: i32, flags: u32) {
        let Some((id, state)) = self.slots.by_turn(slot, turn) else {
            self.stale += 1;
            return;
        };
        let ending = state.has(ENDING);
        match op {
            Op::PollIn => {
                let last = !cqueue::more(flags);
                if last {
                    state.bits &= !POLL_IN;
                }
                if ending || state.has(HUNG_UP) {
                    // Nothing is read any more, so nothing is armed again.
                } else if result < 0 && result != -libc::ECANCELED {
                    state.bits |= HUNG_UP;
                    self.notes.push_back(Note::HangUp(id, -result));
                } else {
                    if result > 0 && result as u32 & (libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP) as u32 != 0 {
                        state.bits |= ENDS_SOON;
                    }
                    self.make_ready(id);
                    if last {
                        // A full completion queue disarms polls; armed again, a poll tells at once what is there.
                        self.arm_poll_in(id);
                    }
                }
            }
            Op::PollOut => {
                state.bits &= !POLL_OUT;
                if !ending {
                    self.notes.push_back(Note::Writable(id));
                }
            }
            Op::Shutdown => state.bits &= !SHUTTING,
            Op::Install => return self.installed(id, result),
            _ => {
                state.bits &= !CLOSING;
                return self.left(id);
            }
        }
        if ending {
            self.leave_if_idle(id);
        }
    }

    /// Hands over at most `most` notes.
    pub(super) fn tell(&mut self, most: u32, on: &mut impl FnMut(RingEvent<'_>)) {
        for _ in 0..most {
            let Some(note) = self.notes.pop_front() else { return };
            match note {
                // What was noted before the caller ended the socket is not told after it.
                Note::HangUp(id, errno) if self.is_open(id) => on(RingEvent::HangUp(id, Some(errno))),
                Note::Writable(id) if self.is_open(id) => on(RingEvent::Writable(id)),
                Note::HangUp(..) | Note::Writable(_) => {}
                Note::Closed(id) => on(RingEvent::Closed(id)),
                Note::Moved(id, fd) => on(RingEvent::Moved(id, fd)),
                Note::Accepted(tag, fd) => on(RingEvent::Accepted(tag, fd)),
                Note::AcceptFailed(tag, errno) => on(RingEvent::AcceptFailed(tag, errno)),
                Note::NotListening(tag) => on(RingEvent::NotListening(tag)),
                Note::GreetingCancelled(key) => on(RingEvent::Greeting(key, Greeting::Cancelled)),
                Note::GreetingFailed(key, errno) => on(RingEvent::Greeting(key, Greeting::Failed(errno))),
            }
        }
    }

    fn is_open(&mut self, id: SocketId) -> bool {
        self.slots.get(id).is_some_and(|slot| !slot.has(ENDING))
    }
}
