#![allow(unsafe_code, reason = "entries are pushed and the kernel is entered by hand: the crate marks both unsafe")]
//! One io_uring instance: its queues, its fixed files, and the one way into the kernel.
//!
//! Entries flow in, completions flow out as plain values. Always true: an entry that was pushed is consumed by the
//! next [`Uring::enter`], or the instance is dead and is never entered again, so that memory an entry points to is
//! never read after the call that gave it.

use std::io;
use std::os::fd::RawFd;

use io_uring::{EnterFlags, IoUring, squeue};

/// A completion, copied out of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// How often an enter that could not take everything is repeated before the instance counts as dead.
const ENTER_TRIES: u32 = 10_000;

/// One instance.
pub(super) struct Uring {
    inner: IoUring,
    /// Completions read but not yet absorbed.
    pub(super) reaped: Vec<Completion>,
    dead: Option<i32>,
}

/// The setup flags that everything here relies on.
pub(super) fn build(sq_entries: u32, cq_entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        // Without this flag the crate, and we, cannot see that task work waits.
        .setup_taskrun_flag()
        // A bad entry must not keep those behind it, which point to borrowed memory, in the queue.
        .setup_submit_all()
        .setup_cqsize(cq_entries)
        .setup_clamp()
        .dontfork()
        .build(sq_entries)
}

impl Uring {
    /// Makes an instance with `files` empty fixed-file slots (0: none), its notifications disabled.
    pub(super) fn new(sq_entries: u32, cq_entries: u32, files: u32, eventfd: RawFd) -> io::Result<Self> {
        let mut uring = build(sq_entries, cq_entries)?;
        if files > 0 {
            uring.submitter().register_files_sparse(files)?;
        }
        uring.completion().disable_eventfd();
        uring.submitter().register_eventfd(eventfd)?;
        Ok(Self { inner: uring, reaped: Vec::new(), dead: None })
    }

    /// Puts a descriptor into a fixed-file slot; the caller then closes his.
    pub(super) fn put_file(&self, slot: u32, fd: RawFd) -> io::Result<()> {
        self.inner.submitter().register_files_update(slot, &[fd]).map(drop)
    }

    /// Queues an entry, entering the kernel first if the queue is full.
    ///
    /// # Safety
    /// Memory the entry points to lives, and is not touched if the kernel writes it, until the entry's operation has
    /// ended; for operations that end inside the enter that consumes them (SEND and RECV with `MSG_DONTWAIT`), until
    /// [`enter`](Self::enter) has returned.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        if self.inner.submission().is_full() {
            self.enter(false)?;
        }
        // SAFETY: the caller promises that what the entry points to lives long enough.
        unsafe { self.inner.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Queues an entry that points to no memory.
    ///
    /// What goes wrong here shows at the next enter: a dead instance stays dead.
    pub(super) fn push_plain(&mut self, entry: &squeue::Entry) {
        // SAFETY: polls, cancels, shutdowns, closes and accepts without an address point to no memory of ours.
        let _ = unsafe { self.push(entry) };
    }

    /// Has the kernel consume every queued entry and, with `events`, run task work and flush what overflowed; then
    /// reads the completions into `reaped`.
    pub(super) fn enter(&mut self, events: bool) -> io::Result<()> {
        let mut events = events;
        for attempt in 0..ENTER_TRIES {
            if let Some(errno) = self.dead {
                return Err(io::Error::from_raw_os_error(errno));
            }
            let queued = self.inner.submission().len();
            let flags = if events { EnterFlags::GETEVENTS.bits() } else { 0 };
            // SAFETY: no argument is passed, and the queue holds what `push` was promised about.
            let entered = unsafe { self.inner.submitter().enter::<libc::sigset_t>(queued as u32, 0, flags, None) };
            self.collect();
            match entered {
                Ok(taken) if taken >= queued => return Ok(()),
                // Short of memory, or behind with completions: those were just read, so there is room again.
                Ok(_) => events = true,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        events = true;
                        if attempt > 16 {
                            std::thread::yield_now();
                        }
                    }
                    errno => self.dead = Some(errno.unwrap_or(libc::EIO)),
                },
            }
        }
        // What is still queued may point to memory that ends with the call: never enter again.
        let errno = *self.dead.get_or_insert(libc::EBUSY);
        Err(io::Error::from_raw_os_error(errno))
    }

    /// Copies the completions that are there.
    pub(super) fn collect(&mut self) {
        self.reaped.extend(self.inner.completion().map(|c| Completion {
            user_data: c.user_data(),
            result: c.result(),
            flags: c.flags(),
        }));
    }

    /// Entries wait for an enter.
    pub(super) fn has_queued(&mut self) -> bool {
        !self.inner.submission().is_empty()
    }

    /// Task work or overflowed completions wait for an enter with events.
    pub(super) fn wants_enter(&mut self) -> bool {
        let queue = self.inner.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Completions overflowed into the kernel's list.
    pub(super) fn overflowed(&mut self) -> bool {
        self.inner.submission().cq_overflow()
    }

    /// There is anything to do: the question asked before parking.
    pub(super) fn has_work(&mut self) -> bool {
        !self.reaped.is_empty() || self.has_queued() || self.wants_enter() || !self.inner.completion().is_empty()
    }

    /// Lets completions ring the eventfd, or not.
    pub(super) fn notify(&mut self, on: bool) {
        let queue = self.inner.completion();
        if on { queue.enable_eventfd() } else { queue.disable_eventfd() }
    }
}
