#![allow(unsafe_code, reason = "a descriptor that the kernel makes gets its owner")]
//! How a socket leaves its slot: ended, or moved elsewhere alive.
//!
//! Wishes flow in, cancels and closes flow out, and at last one event. Always true: a slot is given on only after the
//! final completion of everything that was in flight on it; until then it says nothing else of its owner.

use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::{opcode, types};

use super::reap::Note;
use super::slots::{CLOSING, ENDING, IN_FLIGHT, INSTALLING, MOVING, POLL_IN, POLL_OUT};
use super::submit::cancel;
use super::tag::{self, Op};
use super::{SocketId, SocketRing};

impl SocketRing {
    /// Ends a socket: cancels what is in flight, closes it after the last completion, which sends the FIN, and then
    /// reports [`RingEvent::Closed`](super::RingEvent::Closed). Nothing else is reported of it. Calling it again is
    /// harmless.
    ///
    /// No SHUTDOWN goes before: with nothing in flight the CLOSE drops the last reference to the socket, while a
    /// SHUTDOWN is always run by a worker thread, which costs half as much again and takes it from another core.
    pub fn end(&mut self, id: SocketId) {
        self.depart(id, 0);
    }

    /// Takes a living socket out of its slot: cancels what is in flight, has the kernel make a descriptor of it, and
    /// then reports [`RingEvent::Moved`](super::RingEvent::Moved). Nothing is read from it meanwhile, so what came is
    /// read by its next owner. The caller has written the end of the last frame before: a frame that is broken off here
    /// cannot be finished elsewhere. If the kernel has no descriptor left the socket is closed, and
    /// [`RingEvent::Closed`](super::RingEvent::Closed) says so.
    pub fn take_out(&mut self, id: SocketId) {
        self.depart(id, MOVING);
    }

    fn depart(&mut self, id: SocketId, how: u16) {
        let Some(slot) = self.slots.get(id).filter(|slot| !slot.has(ENDING)) else { return };
        slot.bits |= ENDING | how;
        let bits = slot.bits;
        let (ring, _) = self.place(id.slot);
        // By user data, not by descriptor: a cancel by fixed file was seen to miss.
        for (bit, op) in [(POLL_IN, Op::PollIn), (POLL_OUT, Op::PollOut)] {
            if bits & bit != 0 {
                self.push_plain(ring, &cancel(tag::pack(op, id.generation, id.slot)));
            }
        }
        self.leave_if_idle(id);
    }

    /// The last steps: a CLOSE under an armed poll would send no FIN, and the poll's completions would reach the slot's
    /// next owner.
    pub(super) fn leave_if_idle(&mut self, id: SocketId) {
        let plain = self.options.plain_descriptors;
        let (ring, file) = self.place(id.slot);
        let Some(slot) = self.slots.get(id).filter(|slot| !slot.has(IN_FLIGHT)) else { return };
        if plain {
            return self.left(id);
        }
        let (op, entry) = if slot.has(MOVING) && slot.fd.is_none() {
            slot.bits |= INSTALLING;
            (Op::Install, opcode::FixedFdInstall::new(types::Fixed(file), 0).build())
        } else {
            slot.bits |= CLOSING;
            (Op::Close, opcode::Close::new(types::Fixed(file)).build())
        };
        self.push_plain(ring, &entry.user_data(tag::pack(op, id.generation, id.slot)));
    }

    /// The kernel has made a descriptor of a socket that moves, or refused it.
    pub(super) fn installed(&mut self, id: SocketId, result: i32) {
        // SAFETY: a result of FIXED_FD_INSTALL that is not negative is a new descriptor, ours from this completion on.
        let made = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let Some(slot) = self.slots.get(id) else { return };
        slot.bits &= !INSTALLING;
        if made.is_none() {
            slot.bits &= !MOVING;
        }
        slot.fd = made;
        self.leave_if_idle(id);
    }

    /// Nothing is in flight any more, and a fixed slot is empty.
    pub(super) fn left(&mut self, id: SocketId) {
        let Some(slot) = self.slots.get(id) else { return };
        let moves = slot.has(MOVING);
        // Whoever does not move is closed here: this drops its descriptor.
        let moved = self.slots.free(id.slot).filter(|_| moves);
        self.notes.push_back(moved.map_or(Note::Closed(id), |fd| Note::Moved(id, fd)));
    }
}
