#![allow(unsafe_code, reason = "entries point to memory that a caller lends")]
//! What is asked of the kernel for a socket: sends, polls, shutdowns.
//!
//! Slices and wishes flow in, entries flow into the rings. Always true: a send has ended when [`SocketRing::send_all`]
//! returns, and a socket has at most one operation of each kind in flight.

use std::io;
use std::os::fd::RawFd;

use io_uring::opcode;
use io_uring::squeue::{Entry, Flags};

use super::slots::{ENDING, HALF, POLL_IN, POLL_OUT, SHUTTING};
use super::tag::{self, Op};
use super::{SocketId, SocketRing};

/// The most sends in one submit: 256 save 3 % more (perf/METHOD.md, section 8), and would keep reads and timers waiting for 2 ms.
pub const SENDS_A_SUBMIT: usize = 64;

/// The longest slice; the kernel cuts a longer one silently.
const SEND_BYTES_MAX: usize = 1 << 30;

/// Why a send was not silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The kernel took so many bytes from the front, maybe none, and has no room for more.
    Short(u32),
    /// The socket does not send any more, for the reason with this error number.
    Gone(i32),
}

/// What an entry names: a fixed file, or a descriptor.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Fixed(u32),
    Plain(RawFd),
}

/// Builds an entry for either kind of target; the crate's own trait for both cannot be named from outside.
macro_rules! entry_on {
    ($target:expr, |$fd:ident| $entry:expr) => {
        match $target {
            $crate::io::ring::submit::Target::Fixed(file) => {
                let $fd = io_uring::types::Fixed(file);
                $entry
            }
            $crate::io::ring::submit::Target::Plain(fd) => {
                let $fd = io_uring::types::Fd(fd);
                $entry
            }
        }
    };
}
pub(super) use entry_on;

/// A cancellation of whatever has `user_data`. If it misses, that has ended already; either way it reports itself.
pub(super) fn cancel(user_data: u64) -> Entry {
    opcode::AsyncCancel::new(user_data).build().flags(Flags::SKIP_SUCCESS).user_data(tag::pack(Op::Cancel, 0, 0))
}

impl SocketRing {
    /// Sends each slice to its socket, at most [`SENDS_A_SUBMIT`] in one submit. After it every send has ended; those
    /// that did not take their whole slice are put into `short` with their index, in no particular order.
    ///
    /// A call must not carry two sends of one socket: the first might be short and the second not.
    pub fn send_all<'a>(
        &mut self,
        sends: impl Iterator<Item = (SocketId, &'a [u8])>,
        short: &mut Vec<(u32, SendOutcome)>,
    ) -> io::Result<()> {
        let mut sends = sends.fuse();
        let mut seen = cfg!(debug_assertions).then(std::collections::BTreeSet::new);
        let mut base = 0;
        loop {
            // The caller's iterator and the checks run before anything is queued: should one of them panic, no entry
            // points to a slice.
            let mut chunk = [(SocketId { slot: 0, generation: 0 }, &[][..]); SENDS_A_SUBMIT];
            let mut taken = 0;
            for (place, send) in chunk.iter_mut().zip(&mut sends) {
                assert!(send.1.len() <= SEND_BYTES_MAX, "a slice of {} bytes", send.1.len());
                *place = send;
                taken += 1;
            }
            if taken == 0 {
                return Ok(());
            }
            if let Some(seen) = &mut seen {
                for (id, _) in &chunk[..taken] {
                    debug_assert!(seen.insert(id.slot), "two sends of slot {} in one call", id.slot);
                }
            }
            self.send_chunk(&chunk[..taken], base, short)?;
            base += taken as u32;
        }
    }

    fn send_chunk(
        &mut self,
        chunk: &[(SocketId, &[u8])],
        base: u32,
        short: &mut Vec<(u32, SendOutcome)>,
    ) -> io::Result<()> {
        let mut failed = None;
        // The rings that have entries of this chunk; one that comes twice is found empty the second time.
        let (mut touched, mut touching) = ([0; SENDS_A_SUBMIT], 0);
        for (at, (id, bytes)) in chunk.iter().enumerate() {
            if bytes.is_empty() {
                continue;
            }
            let open = self.slots.get(*id).is_some_and(|slot| !slot.has(ENDING | HALF));
            let Some((ring, target)) = self.target(*id).filter(|_| open) else {
                short.push((base + at as u32, SendOutcome::Gone(libc::EBADF)));
                continue;
            };
            // Without WAITALL a short write would be silent; without DONTWAIT the send would arm itself, read the
            // slice later and complete out of order.
            let flags = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
            let entry =
                entry_on!(target, |fd| opcode::Send::new(fd, bytes.as_ptr(), bytes.len() as u32).flags(flags).build())
                    .flags(Flags::SKIP_SUCCESS)
                    .user_data(tag::pack(Op::Send, at as u32, id.slot));
            if touched[..touching].last() != Some(&ring) {
                touched[touching] = ring;
                touching += 1;
            }
            // A slot has an owner only after its ring was made.
            let Some(uring) = self.ring(ring) else { continue };
            // SAFETY: the slice outlives this function, and each ring with an entry is entered until it has consumed its entries,
            // or is dead, before this function returns; a send with DONTWAIT ends inside that enter.
            if let Err(error) = unsafe { uring.push(&entry) } {
                failed = Some(error);
                break;
            }
        }
        // Each is entered even after a failure: none may keep an entry that points to a slice.
        for &ring in &touched[..touching] {
            if let Err(error) = self.flush_ring(ring) {
                failed = Some(error);
            }
        }
        for (at, result) in self.spoken.drain(..) {
            let whole = chunk[at as usize].1.len() as i32;
            let outcome = match result {
                taken if taken == whole => continue,
                taken @ 0.. => SendOutcome::Short(taken as u32),
                error if matches!(-error, libc::EAGAIN | libc::EINTR) => SendOutcome::Short(0),
                error => SendOutcome::Gone(-error),
            };
            short.push((base + at, outcome));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Has the ring consume what is queued and absorbs every completion, those that overflowed included.
    pub(super) fn flush_ring(&mut self, ring: usize) -> io::Result<()> {
        let Some(uring) = self.ring(ring) else { return Ok(()) };
        let mut overflows = 0;
        let mut outcome = Ok(());
        if uring.has_queued() {
            outcome = uring.enter(false);
        } else {
            uring.collect();
        }
        while outcome.is_ok() && uring.overflowed() {
            overflows += 1;
            outcome = uring.enter(true);
            if uring.may_be_stale() {
                break;
            }
        }
        self.overflows += overflows;
        self.absorb_ring(ring);
        outcome
    }

    /// Tells once, as [`RingEvent::Writable`](super::RingEvent::Writable), when there is room to write again.
    pub fn want_writable(&mut self, id: SocketId) {
        let Some(slot) = self.slots.get(id).filter(|slot| !slot.has(ENDING | POLL_OUT)) else { return };
        slot.bits |= POLL_OUT;
        self.push_poll(id, Op::PollOut, libc::POLLOUT as u32, false);
    }

    /// Watches for bytes; the caller has checked that no such poll is in flight.
    pub(super) fn arm_poll_in(&mut self, id: SocketId) {
        let Some(slot) = self.slots.get(id) else { return };
        slot.bits |= POLL_IN;
        self.push_poll(id, Op::PollIn, (libc::POLLIN | libc::POLLRDHUP) as u32, true);
    }

    fn push_poll(&mut self, id: SocketId, op: Op, events: u32, multishot: bool) {
        let Some((ring, target)) = self.target(id) else { return };
        let entry = entry_on!(target, |fd| opcode::PollAdd::new(fd, events).multi(multishot).build());
        self.push_plain(ring, &entry.user_data(tag::pack(op, id.generation, id.slot)));
    }

    pub(super) fn push_plain(&mut self, ring: usize, entry: &Entry) {
        if let Some(uring) = self.ring(ring) {
            uring.push_plain(entry);
        }
    }

    /// Sends FIN after what was sent, and goes on reading: to linger for the peer's own end. [`end`](Self::end) must
    /// follow. No send is possible after it.
    pub fn shutdown_write(&mut self, id: SocketId) {
        let Some(slot) = self.slots.get(id).filter(|slot| !slot.has(ENDING | HALF)) else { return };
        slot.bits |= HALF | SHUTTING;
        let Some((ring, target)) = self.target(id) else { return };
        let entry = entry_on!(target, |fd| opcode::Shutdown::new(fd, libc::SHUT_WR).build());
        self.push_plain(ring, &entry.user_data(tag::pack(Op::Shutdown, id.generation, id.slot)));
    }
}
