#![allow(unsafe_code, reason = "the kernel writes into buffers of ours")]
//! The ready list and the reads.
//!
//! Sockets whose poll spoke flow in, bytes and ends flow out. Always true: a buffer is in the kernel's hands only
//! between the push of a read and the end of the enter that consumes it, because a RECV with `MSG_DONTWAIT` ends there;
//! so buffers cannot run out, cannot leak, and one set serves all rings of a core. A socket has at most one read a
//! turn, which keeps its bytes in order and the turn fair.

use std::collections::VecDeque;
use std::io;

use io_uring::{cqueue, opcode};

use super::slots::{ENDING, ENDS_SOON, HUNG_UP, PAUSED, READY};
use super::submit::{Target, entry_on};
use super::tag::{self, Op};
use super::{Greeting, RingEvent, SocketId, SocketRing};

/// Who waits for a read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ready {
    Socket(SocketId),
    /// Key and turn: a key that was cancelled and given anew must not be read twice.
    Greeting(u32, u32),
}

/// A read of the turn in progress.
#[derive(Debug)]
struct Read {
    who: Ready,
    result: Option<i32>,
    flags: u32,
}

/// The ready list, and the buffers.
pub(super) struct Reader {
    ready: VecDeque<Ready>,
    buffers: Box<[u8]>,
    buffer_bytes: usize,
    batch: Vec<Read>,
    ended: usize,
}

impl Reader {
    pub(super) fn new(buffers: u16, buffer_bytes: u32) -> Self {
        let bytes = usize::from(buffers) * buffer_bytes as usize;
        Self {
            ready: VecDeque::new(),
            buffers: vec![0; bytes].into_boxed_slice(),
            buffer_bytes: buffer_bytes as usize,
            batch: Vec::with_capacity(buffers.into()),
            ended: 0,
        }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.ready.len() as u64
    }

    pub(super) fn last_filled(&self) -> u64 {
        self.batch.len() as u64
    }

    pub(super) fn push(&mut self, who: Ready) {
        self.ready.push_back(who);
    }

    /// The read at `place` of the batch has ended.
    pub(super) fn ended(&mut self, place: u32, result: i32, flags: u32) {
        if let Some(read) = self.batch.get_mut(place as usize).filter(|read| read.result.is_none()) {
            (read.result, read.flags) = (Some(result), flags);
            self.ended += 1;
        }
    }
}

impl SocketRing {
    /// Puts a socket into the ready list, once; a paused one waits for its resume.
    pub(super) fn make_ready(&mut self, id: SocketId) {
        let Some(slot) = self.slots.get(id) else { return };
        if !slot.has(READY | PAUSED | ENDING | HUNG_UP) {
            slot.bits |= READY;
            self.reader.push(Ready::Socket(id));
        }
    }

    /// Stops reading from a socket, whose peer then fills its window and waits.
    pub fn pause_reads(&mut self, id: SocketId) {
        if let Some(slot) = self.slots.get(id) {
            slot.bits |= PAUSED;
        }
    }

    /// Reads again, and looks at once what came meanwhile.
    pub fn resume_reads(&mut self, id: SocketId) {
        if let Some(slot) = self.slots.get(id).filter(|slot| slot.has(PAUSED)) {
            slot.bits &= !PAUSED;
            self.make_ready(id);
        }
    }

    /// Reads once from at most `most` of those that are ready, and hands over what came.
    pub(super) fn read(&mut self, most: u32, on: &mut impl FnMut(RingEvent<'_>)) -> io::Result<()> {
        if self.reader.ready.is_empty() {
            return Ok(());
        }
        let most = (self.reader.buffers.len() / self.reader.buffer_bytes).min(most as usize);
        self.reader.batch.clear();
        self.reader.ended = 0;
        let mut outcome = Ok(());
        while self.reader.batch.len() < most {
            let Some(who) = self.reader.ready.pop_front() else { break };
            let Some((ring, target)) = self.read_target(who) else { continue };
            if let Err(error) = self.push_read(ring, target) {
                outcome = Err(error);
                break;
            }
            self.reader.batch.push(Read { who, result: None, flags: 0 });
        }
        for ring in 0..self.rings.len() {
            outcome = self.flush_ring(ring).and(outcome);
        }
        outcome?;
        if self.reader.ended < self.reader.batch.len() {
            return Err(io::Error::other("a read did not end in the enter that consumed it"));
        }
        for place in 0..self.reader.batch.len() {
            self.hand_over(place, on);
        }
        Ok(())
    }

    fn push_read(&mut self, ring: usize, target: Target) -> io::Result<()> {
        let place = self.reader.batch.len();
        let at = place * self.reader.buffer_bytes;
        let buffer = &mut self.reader.buffers[at..at + self.reader.buffer_bytes];
        let (pointer, bytes) = (buffer.as_mut_ptr(), buffer.len() as u32);
        let entry = entry_on!(target, |fd| opcode::Recv::new(fd, pointer, bytes).flags(libc::MSG_DONTWAIT).build())
            .user_data(tag::pack(Op::Recv, place as u32, 0));
        let Some(uring) = self.ring(ring) else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        // SAFETY: the buffers live as long as the rings, and this one is looked at only after its read has ended,
        // which for a RECV with DONTWAIT is inside the enter that consumes the entry.
        unsafe { uring.push(&entry) }
    }

    /// What to read from; `None` if there is no reason to read any more.
    fn read_target(&mut self, who: Ready) -> Option<(usize, Target)> {
        match who {
            Ready::Socket(id) => {
                let slot = self.slots.get(id)?;
                slot.bits &= !READY;
                if slot.has(PAUSED | ENDING | HUNG_UP) {
                    return None;
                }
                self.target(id)
            }
            Ready::Greeting(key, turn) => self.door.ready_fd(key, turn).map(|fd| (0, Target::Plain(fd))),
        }
    }

    fn hand_over(&mut self, place: usize, on: &mut impl FnMut(RingEvent<'_>)) {
        let Read { who, result, flags } = self.reader.batch[place];
        let result = result.unwrap_or(-libc::EAGAIN);
        let at = place * self.reader.buffer_bytes;
        let bytes = &self.reader.buffers[at..at + result.clamp(0, self.reader.buffer_bytes as i32) as usize];
        let id = match who {
            Ready::Greeting(key, _) => {
                let greeting = match result {
                    1.. => Greeting::Bytes(bytes),
                    0 => Greeting::Eof,
                    error if matches!(-error, libc::EAGAIN | libc::EINTR) => return self.greet_again(key),
                    error => Greeting::Failed(-error),
                };
                self.door.forget(key);
                return on(RingEvent::Greeting(key, greeting));
            }
            Ready::Socket(id) => id,
        };
        let Some(slot) = self.slots.get(id) else { return };
        match result {
            1.. => {
                // A poll is an edge: bytes that are left, and an end that was seen, must be fetched without it. A full
                // buffer counts as a hint too, for sockets that give none.
                let again =
                    cqueue::sock_nonempty(flags) || bytes.len() == self.reader.buffer_bytes || slot.has(ENDS_SOON);
                on(RingEvent::Bytes(id, bytes));
                if again {
                    self.make_ready(id);
                }
            }
            0 => {
                slot.bits |= HUNG_UP;
                on(RingEvent::HangUp(id, None));
            }
            error => match -error {
                // Nothing there: the poll tells when there is. An error that the poll saw and the read does not, such
                // as one in the error queue, must not keep the socket spinning.
                libc::EAGAIN => slot.bits &= !ENDS_SOON,
                libc::EINTR | libc::ENOBUFS | libc::ENOMEM => self.make_ready(id),
                errno => {
                    slot.bits |= HUNG_UP;
                    on(RingEvent::HangUp(id, Some(errno)));
                }
            },
        }
    }
}
