#![allow(unsafe_code, reason = "a completion of ACCEPT carries a descriptor that nobody owns yet")]
//! Listeners, and descriptors whose request head is awaited: sockets that are not ours yet.
//!
//! Descriptors flow in, connections and the first bytes flow out. Always true: a descriptor that was greeted has
//! nothing in flight once its [`Greeting`] was told, so it may be greeted again, closed, or handed to another core.
//! Everything here goes through the first ring.

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use io_uring::{cqueue, opcode, types};

use super::SocketRing;
use super::read::Ready;
use super::reap::Note;
use super::submit;
use super::tag::{self, Op, TURN_MASK};

/// What came on a descriptor that was greeted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting<'a> {
    /// Bytes, maybe not yet a whole head: greet again for more.
    Bytes(&'a [u8]),
    /// The peer ended its side.
    Eof,
    /// The socket failed with this error number.
    Failed(i32),
    /// It was cancelled before anything was read.
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    Armed,
    Failed,
    Stopping,
    Stopped,
}

#[derive(Debug)]
struct Listener {
    fd: RawFd,
    tag: u64,
    state: Listening,
}

#[derive(Debug)]
struct Guest {
    fd: RawFd,
    turn: u32,
    /// The poll has spoken: the guest is in the ready list and nothing is in flight.
    ready: bool,
    cancelled: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Door {
    listeners: Vec<Listener>,
    guests: BTreeMap<u32, Guest>,
    turns: u32,
}

impl Door {
    /// The descriptor to read from.
    pub(super) fn ready_fd(&self, key: u32, turn: u32) -> Option<RawFd> {
        self.guests.get(&key).filter(|guest| guest.ready && guest.turn == turn).map(|guest| guest.fd)
    }

    /// The greeting was told.
    pub(super) fn forget(&mut self, key: u32) {
        self.guests.remove(&key);
    }
}

impl SocketRing {
    /// Accepts on a listening socket until told to stop. The descriptor stays the caller's and must be non-blocking.
    pub fn listen(&mut self, fd: RawFd, tag: u64) {
        self.door.listeners.push(Listener { fd, tag, state: Listening::Armed });
        self.push_accept(self.door.listeners.len() - 1);
    }

    /// Goes on after a [`RingEvent::AcceptFailed`](super::RingEvent::AcceptFailed).
    pub fn accept_again(&mut self, tag: u64) {
        for at in 0..self.door.listeners.len() {
            let listener = &mut self.door.listeners[at];
            if listener.tag == tag && listener.state == Listening::Failed {
                listener.state = Listening::Armed;
                self.push_accept(at);
            }
        }
    }

    /// Stops accepting. Each listener is told as [`RingEvent::NotListening`](super::RingEvent::NotListening) when its
    /// descriptor may be closed; connections accepted before are still told.
    pub fn stop_listening(&mut self) {
        for at in 0..self.door.listeners.len() {
            let listener = &mut self.door.listeners[at];
            match listener.state {
                Listening::Armed => {
                    listener.state = Listening::Stopping;
                    self.push_plain(0, &submit::cancel(tag::pack(Op::Accept, 0, at as u32)));
                }
                Listening::Failed => {
                    listener.state = Listening::Stopped;
                    self.notes.push_back(Note::NotListening(listener.tag));
                }
                Listening::Stopping | Listening::Stopped => {}
            }
        }
    }

    fn push_accept(&mut self, at: usize) {
        let entry = opcode::AcceptMulti::new(types::Fd(self.door.listeners[at].fd))
            .flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
            .build();
        self.push_plain(0, &entry.user_data(tag::pack(Op::Accept, 0, at as u32)));
    }

    pub(super) fn absorb_accept(&mut self, at: u32, result: i32, flags: u32) {
        // SAFETY: a result of ACCEPT that is not negative is a new descriptor, ours from this completion on.
        let accepted = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let Some(listener) = self.door.listeners.get_mut(at as usize) else {
            self.stale += 1;
            return;
        };
        if let Some(fd) = accepted {
            self.notes.push_back(Note::Accepted(listener.tag, fd));
        }
        if cqueue::more(flags) {
            return;
        }
        if listener.state == Listening::Stopping {
            listener.state = Listening::Stopped;
            self.notes.push_back(Note::NotListening(listener.tag));
        } else if result >= 0 || matches!(-result, libc::ECONNABORTED | libc::EINTR | libc::EPROTO) {
            // The shot ended for want of room, or because a peer left before it was accepted: not a reason to wait.
            self.push_accept(at as usize);
        } else {
            listener.state = Listening::Failed;
            self.notes.push_back(Note::AcceptFailed(listener.tag, -result));
        }
    }

    /// Awaits the first bytes on a descriptor and reads them once, told as
    /// [`RingEvent::Greeting`](super::RingEvent::Greeting) under `key`, which must not be in use. The descriptor stays
    /// the caller's, who keeps it open until that.
    pub fn greet(&mut self, key: u32, fd: RawFd) {
        self.door.turns = (self.door.turns + 1) & TURN_MASK;
        let turn = self.door.turns;
        let before = self.door.guests.insert(key, Guest { fd, turn, ready: false, cancelled: false });
        debug_assert!(before.is_none(), "greeting {key} is in use");
        self.push_greet(key, fd, turn);
    }

    /// The poll spoke but nothing was there.
    pub(super) fn greet_again(&mut self, key: u32) {
        let Some(guest) = self.door.guests.get_mut(&key) else { return };
        guest.ready = false;
        let (fd, turn) = (guest.fd, guest.turn);
        self.push_greet(key, fd, turn);
    }

    /// Poll first, read when it speaks: so nothing of ours is lent to a peer that stays silent.
    fn push_greet(&mut self, key: u32, fd: RawFd, turn: u32) {
        let entry = opcode::PollAdd::new(types::Fd(fd), (libc::POLLIN | libc::POLLRDHUP) as u32).build();
        self.push_plain(0, &entry.user_data(tag::pack(Op::Greet, turn, key)));
    }

    /// Stops awaiting; the end is told as [`Greeting::Cancelled`]. `false` if the greeting was told before, and
    /// nothing follows.
    pub fn cancel_greet(&mut self, key: u32) -> bool {
        let Some(guest) = self.door.guests.get_mut(&key) else { return false };
        if guest.ready {
            self.door.forget(key);
            self.notes.push_back(Note::GreetingCancelled(key));
        } else if !guest.cancelled {
            guest.cancelled = true;
            let turn = guest.turn;
            self.push_plain(0, &submit::cancel(tag::pack(Op::Greet, turn, key)));
        }
        true
    }

    pub(super) fn absorb_greet(&mut self, key: u32, turn: u32, result: i32) {
        let Some(guest) = self.door.guests.get_mut(&key).filter(|guest| guest.turn == turn) else {
            self.stale += 1;
            return;
        };
        if guest.cancelled {
            self.door.forget(key);
            self.notes.push_back(Note::GreetingCancelled(key));
        } else if result < 0 {
            self.door.forget(key);
            self.notes.push_back(Note::GreetingFailed(key, -result));
        } else {
            guest.ready = true;
            self.reader.push(Ready::Greeting(key, turn));
        }
    }
}
