//! The sockets of one core and the io_uring instances that carry them.
//!
//! Sockets, slices to send and wishes flow in; bytes, ends and room to write flow out, as [`RingEvent`]s handed over
//! by [`SocketRing::turn`]. Always true: a socket is known by (slot, generation) and by nothing else; memory that a
//! caller lends is used inside the call that lends it and never after; and what is in flight on a slot is known, so
//! that a slot is given on only when nothing is.
//!
//! | file | what |
//! |---|---|
//! | `kernel` | can this kernel do it, and if not, what to change |
//! | `uring` | one instance: push, enter, collect |
//! | `tag` | the 64 bits that come back with a completion |
//! | `slots` | the state of each socket |
//! | `submit` | sends and polls: what is asked of the kernel |
//! | `depart` | how a socket leaves its slot: ended, or moved alive |
//! | `reap` | completions into states and notes: what the kernel answers |
//! | `read` | the ready list and the reads |
//! | `door` | listeners, and descriptors whose request head is awaited |
//! | `park` | turns, and when it is safe to sleep |

mod depart;
mod door;
mod kernel;
mod park;
mod read;
mod reap;
mod slots;
mod submit;
mod tag;
mod uring;

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

pub use door::Greeting;
pub use kernel::{KERNEL_FIXED_FILES, KERNEL_MIN, KernelFeatures, KernelLack, check_kernel};
pub use submit::{SENDS_A_SUBMIT, SendOutcome};

use crate::base::Gauge;
use door::Door;
use read::Reader;
use reap::Note;
use slots::Slots;
use submit::Target;
use uring::Uring;

/// How large everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// The most sockets at once; slots are below it.
    pub sockets_max: u32,
    /// Submission entries of each ring.
    pub sq_entries: u32,
    /// Completion entries of each ring, not fewer than `sq_entries`.
    pub cq_entries: u32,
    /// The most reads in one submit.
    pub recv_buffers: u16,
    /// The most bytes of one read.
    pub recv_buffer_bytes: u32,
    /// Fixed-file slots of each ring; 0 takes RLIMIT_NOFILE, the most the kernel gives.
    pub files_per_ring: u32,
    /// Keep a descriptor a socket instead of a fixed file: for kernels below 6.13.
    pub plain_descriptors: bool,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self {
            sockets_max: 100_000,
            sq_entries: 256,
            cq_entries: 8_192,
            recv_buffers: 256,
            recv_buffer_bytes: 4_096,
            files_per_ring: 0,
            plain_descriptors: false,
        }
    }
}

/// A socket: a slot the caller chose, dense from 0, and its generation, of which 24 bits travel with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    /// Index into the caller's table.
    pub slot: u32,
    /// How often the slot was given out before.
    pub generation: u32,
}

/// What happened.
#[derive(Debug)]
pub enum RingEvent<'a> {
    /// Bytes came; at most one such event a socket and turn.
    Bytes(SocketId, &'a [u8]),
    /// The peer ended its side (`None`), or the socket failed with this error number. Nothing more is read from it,
    /// and nothing ends by itself: the caller calls [`SocketRing::end`].
    HangUp(SocketId, Option<i32>),
    /// There is room to write, or an error that the next send will tell.
    Writable(SocketId),
    /// The generation is over; the slot may be given on.
    Closed(SocketId),
    /// After [`SocketRing::take_out`]: the living socket; the slot may be given on.
    Moved(SocketId, OwnedFd),
    /// A connection, non-blocking and close-on-exec, from the listener with this tag.
    Accepted(u64, OwnedFd),
    /// Accepting failed with this error number and has stopped: back off, then [`SocketRing::accept_again`].
    AcceptFailed(u64, i32),
    /// After [`SocketRing::stop_listening`]: nothing is in flight on this listener any more.
    NotListening(u64),
    /// What came on a descriptor that was greeted. Nothing is in flight on it any more.
    Greeting(u32, Greeting<'a>),
}

/// What a turn left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Something is ready: take another turn soon.
    pub more: bool,
}

/// How full everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingGauges {
    /// Slots with an owner.
    pub sockets: Gauge,
    /// Rings made.
    pub rings: Gauge,
    /// Receive buffers filled by the last turn that read.
    pub recv_buffers: Gauge,
    /// Sockets and greetings that wait for a read.
    pub ready: u64,
    /// Completions that belonged to no owner any more. They are ignored; more than a few mean a fault of ours.
    pub stale: u64,
    /// How often completions overflowed the queue. Nothing is lost then, but time is.
    pub overflows: u64,
}

/// The sockets of one core. Made, used and dropped on one thread.
pub struct SocketRing {
    options: RingOptions,
    eventfd: RawFd,
    rings: Vec<Option<Uring>>,
    slots: Slots,
    reader: Reader,
    door: Door,
    notes: VecDeque<Note>,
    /// Sends that were not silent: place in the submit, result. Filled and emptied inside one call.
    spoken: Vec<(u32, i32)>,
    /// The ring that is served first; rotates so that none waits behind a busy one every time.
    first: usize,
    stale: u64,
    overflows: u64,
    /// A ring with SINGLE_ISSUER belongs to the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl SocketRing {
    /// Makes the first ring; the others follow when a slot of theirs is first used.
    ///
    /// `eventfd` is one plain eventfd for all rings of a core. It is the caller's, and must outlive this.
    pub fn new(options: RingOptions, eventfd: RawFd) -> io::Result<Self> {
        let mut options = options;
        if options.files_per_ring == 0 {
            options.files_per_ring = kernel::files_max();
        }
        if options.sockets_max == 0 || options.recv_buffers == 0 || options.recv_buffer_bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a ring without sockets or buffers"));
        }
        let rings = options.sockets_max.div_ceil(options.files_per_ring) as usize;
        let mut made = Self {
            reader: Reader::new(options.recv_buffers, options.recv_buffer_bytes),
            options,
            eventfd,
            rings: std::iter::repeat_with(|| None).take(rings).collect(),
            slots: Slots::default(),
            door: Door::default(),
            notes: VecDeque::new(),
            spoken: Vec::new(),
            first: 0,
            stale: 0,
            overflows: 0,
            not_send: PhantomData,
        };
        made.make_ring(0)?;
        Ok(made)
    }

    /// Takes a socket into slot `id.slot`, closes its descriptor and watches it for bytes.
    ///
    /// Every socket option must be set, and the peer's address taken, before. On an error the socket is closed.
    pub fn install(&mut self, id: SocketId, fd: OwnedFd) -> io::Result<()> {
        if id.slot >= self.options.sockets_max {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a slot beyond sockets_max"));
        }
        if !self.slots.is_free(id.slot) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the slot still has an owner"));
        }
        let (ring, file) = self.place(id.slot);
        let plain = self.options.plain_descriptors;
        let uring = match &self.rings[ring] {
            Some(uring) => uring,
            None => self.make_ring(ring)?,
        };
        let kept = if plain {
            Some(fd)
        } else {
            uring.put_file(file, fd.as_raw_fd())?;
            None
        };
        self.slots.take(id, kept);
        self.arm_poll_in(id);
        Ok(())
    }

    /// How full everything is.
    pub fn gauges(&self) -> RingGauges {
        let rings = self.rings.iter().flatten().count() as u64;
        RingGauges {
            sockets: Gauge::new(self.slots.live().into(), self.options.sockets_max.into()),
            rings: Gauge::new(rings, self.rings.len() as u64),
            recv_buffers: Gauge::new(self.reader.last_filled(), self.options.recv_buffers.into()),
            ready: self.reader.waiting(),
            stale: self.stale,
            overflows: self.overflows,
        }
    }

    /// The ring of a slot, and the fixed file in it.
    fn place(&self, slot: u32) -> (usize, u32) {
        ((slot / self.options.files_per_ring) as usize, slot % self.options.files_per_ring)
    }

    /// What an operation on `id` names, if `id` owns its slot.
    fn target(&mut self, id: SocketId) -> Option<(usize, Target)> {
        let fd = self.slots.get(id)?.fd.as_ref().map(AsRawFd::as_raw_fd);
        let (ring, file) = self.place(id.slot);
        Some((ring, fd.map_or(Target::Fixed(file), Target::Plain)))
    }

    fn make_ring(&mut self, ring: usize) -> io::Result<&Uring> {
        let options = &self.options;
        let before = ring as u32 * options.files_per_ring;
        let files =
            if options.plain_descriptors { 0 } else { options.files_per_ring.min(options.sockets_max - before) };
        let uring = Uring::new(options.sq_entries, options.cq_entries, files, self.eventfd)?;
        Ok(self.rings[ring].insert(uring))
    }

    /// The ring at `index`, which an operation of one of its slots needs and which therefore was made.
    fn ring(&mut self, index: usize) -> Option<&mut Uring> {
        self.rings.get_mut(index)?.as_mut()
    }
}

impl Drop for SocketRing {
    fn drop(&mut self) {
        // Connections that were accepted but not told of become owned here, and are closed with the notes; the
        // descriptors that are kept are closed with their slots.
        let _ = self.flush_ring(0);
    }
}
