#![allow(unsafe_code, reason = "entries are pushed and the kernel is entered by hand: the crate marks both unsafe")]
//! One io_uring instance: its queues, its fixed files, and the one way into the kernel.
//!
//! Entries flow in, completions flow out as plain values. Always true: an entry that was pushed is consumed by the
//! next [`Uring::enter`], or the instance is dead and is never entered again, so that memory an entry points to is
//! never read after the call that gave it.
//!
//! **The kernel's word that task work waits may be stale.** Whoever adds work sets the flag after the work: if an enter has
//! run that work in between, the flag stays until the next work comes, which on an instance of idle sockets may be never.
//! A core that entered until the flag was gone stood still so, once in some 200,000 joins.

use std::io;
use std::os::fd::RawFd;

use io_uring::{EnterFlags, IoUring, opcode, squeue};

/// A completion, copied out of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// The operations that point to no memory of ours. An ACCEPT could, to the peer's address; the multishot one, the only one
/// that is made here, takes none.
const PLAIN: [u8; 6] = [
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
    opcode::Shutdown::CODE,
    opcode::Close::CODE,
    opcode::AcceptMulti::CODE,
    opcode::FixedFdInstall::CODE,
];

/// How often an enter that could not take everything is repeated before the instance counts as dead.
const ENTER_TRIES: u32 = 10_000;

/// One instance.
pub(super) struct Uring {
    inner: IoUring,
    /// Completions read but not yet absorbed.
    pub(super) reaped: Vec<Completion>,
    /// The last enter with events brought nothing: if a flag says that something waits, it may be stale.
    quiet: bool,
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
        Ok(Self { inner: uring, reaped: Vec::new(), quiet: false, dead: None })
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

    /// Queues an entry that points to no memory: one of [`PLAIN`], which is checked.
    ///
    /// What goes wrong here shows at the next enter: a dead instance stays dead.
    pub(super) fn push_plain(&mut self, entry: &squeue::Entry) {
        assert!(PLAIN.contains(&(entry.get_opcode() as u8)), "operation {} may point to memory", entry.get_opcode());
        // SAFETY: the operation is one of those that point to no memory of ours.
        let _ = unsafe { self.push(entry) };
    }

    /// Has the kernel consume every queued entry and, with `events`, run task work and flush what overflowed; then
    /// reads the completions into `reaped`.
    pub(super) fn enter(&mut self, events: bool) -> io::Result<()> {
        let mut events = events;
        let before = self.reaped.len();
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
                Ok(taken) if taken >= queued => {
                    self.quiet |= events && self.reaped.len() == before;
                    return Ok(());
                }
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
        let before = self.reaped.len();
        self.reaped.extend(self.inner.completion().map(|c| Completion {
            user_data: c.user_data(),
            result: c.result(),
            flags: c.flags(),
        }));
        self.quiet &= self.reaped.len() == before;
    }

    /// Entries wait for an enter.
    pub(super) fn has_queued(&mut self) -> bool {
        !self.inner.submission().is_empty()
    }

    /// Task work or overflowed completions wait for an enter with events, says the kernel.
    pub(super) fn wants_enter(&mut self) -> bool {
        let queue = self.inner.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// The same, after an enter that has brought nothing: it may be true, and need not be.
    pub(super) fn may_be_stale(&mut self) -> bool {
        self.quiet && self.wants_enter()
    }

    /// Completions overflowed into the kernel's list.
    pub(super) fn overflowed(&mut self) -> bool {
        self.inner.submission().cq_overflow()
    }

    /// There is anything to do: the question asked before parking.
    pub(super) fn has_work(&mut self) -> bool {
        let waits = self.wants_enter() && !self.quiet;
        waits || !self.reaped.is_empty() || self.has_queued() || !self.inner.completion().is_empty()
    }

    /// Lets completions ring the eventfd, or not.
    pub(super) fn notify(&mut self, on: bool) {
        let queue = self.inner.completion();
        if on { queue.enable_eventfd() } else { queue.disable_eventfd() }
    }
}

#[cfg(test)]
impl Uring {
    /// Sets the flag as the kernel leaves it behind in the race that the module tells of. `offset` is where it lies in the
    /// queue's memory.
    pub(super) fn leave_stale_flag(&self, offset: u32) {
        use std::os::fd::AsRawFd;
        use std::sync::atomic::{AtomicU32, Ordering};
        /// `IORING_SQ_TASKRUN`.
        const TASKRUN: u32 = 1 << 2;
        let length = 4_096;
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.inner.as_raw_fd());
        assert!(
            offset.is_multiple_of(4) && (offset as usize) < length,
            "the flags are a word of the first page: {offset}"
        );
        // SAFETY: the first page of the queue's memory is mapped a second time, one aligned word inside it is used as an
        // atomic, which is how the kernel uses it too, and the page is unmapped again.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, fd, 0);
            assert!(page != libc::MAP_FAILED, "{}", io::Error::last_os_error());
            let flag = page.cast::<AtomicU32>().add(offset as usize / 4);
            (*flag).fetch_or(TASKRUN, Ordering::SeqCst);
            libc::munmap(page, length);
        }
    }

    /// Where an instance has its flags, as the kernel tells whoever makes one.
    pub(super) fn flags_offset() -> u32 {
        // SAFETY: the call gets a zeroed parameter block of the size that it writes, and its descriptor is closed.
        unsafe {
            // The block is 120 bytes; the offsets of the submission queue begin at byte 40, and `flags` is their fifth.
            let mut block = [0_u32; 30];
            let fd = libc::syscall(libc::SYS_io_uring_setup, 1, block.as_mut_ptr());
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            libc::close(fd as i32);
            block[10 + 4]
        }
    }
}
