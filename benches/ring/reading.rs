//! Ways to read what a viewer says, and what the kernel keeps for one who is silent.

use io_uring::{IoUring, cqueue, opcode, types};
use std::fs;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::pairs::{Ask, MESSAGE_BYTES, Pairs};
use crate::{ROUNDS, Setup, WALKS, print, push};

/// Connections whose kernel memory is weighed, of 9,000 pairs that a process with 20,000 descriptors can have.
const WEIGHED: usize = 8_000;
const BUFFERS: u16 = 4_096;
const BUFFER_GROUP: u16 = 1;

/// A way to read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// epoll, level-triggered, and recv(2).
    Epoll,
    /// Multishot POLL, then a batch of RECV: what the node does.
    PollThenRecv,
    /// Multishot POLL, then recv(2).
    PollThenCall,
    /// Multishot RECV into a ring of buffers.
    Multishot,
}

impl Reading {
    fn name(self) -> &'static str {
        match self {
            Self::Epoll => "epoll and recv(2)",
            Self::PollThenRecv => "as the node: multishot POLL, then RECV",
            Self::PollThenCall => "multishot POLL, then recv(2)",
            Self::Multishot => "multishot RECV, provided buffers",
        }
    }
}

const READINGS: [Reading; 3] = [Reading::PollThenRecv, Reading::PollThenCall, Reading::Multishot];

/// Each way takes turns with epoll, set up anew each time: what is armed would hear the other's bytes, too.
pub(crate) fn compare(pairs: &Pairs) -> io::Result<()> {
    let mut ways = READINGS.map(|_| Vec::new());
    for _ in 0..ROUNDS * WALKS {
        for (way, found) in READINGS.iter().zip(&mut ways) {
            found.push((pairs.count_read(Reading::Epoll)?, pairs.count_read(*way)?));
        }
    }
    print("to read 64 bytes, beside epoll and recv(2)", READINGS.map(Reading::name), &ways);
    Ok(())
}

/// A reader of all sockets.
pub(crate) enum Reader<'a> {
    Epoll { epoll: i32, sockets: &'a [TcpStream] },
    Poll { ring: IoUring, sockets: &'a [TcpStream], recv: bool, buffers: Vec<u8> },
    Multishot { ring: IoUring, buffers: Provided },
}

impl<'a> Reader<'a> {
    pub(crate) fn new(way: Reading, sockets: &'a [TcpStream]) -> io::Result<Self> {
        if way == Reading::Epoll {
            // SAFETY: the call takes no pointer.
            let epoll = unsafe { libc::epoll_create1(0) };
            for (number, socket) in sockets.iter().enumerate() {
                let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
                // SAFETY: the event is only read, and lives through the call.
                unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event) };
            }
            return Ok(Self::Epoll { epoll, sockets });
        }
        let mut ring = Setup::Deferred.ring()?;
        let files: Vec<i32> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        ring.submitter().register_files(&files)?;
        let buffers = (way == Reading::Multishot).then(|| Provided::new(&ring)).transpose()?;
        arm(&mut ring, buffers.is_some(), 0..sockets.len())?;
        Ok(match buffers {
            Some(buffers) => Self::Multishot { ring, buffers },
            None => {
                Self::Poll { ring, sockets, recv: way == Reading::PollThenRecv, buffers: vec![0; 256 * MESSAGE_BYTES] }
            }
        })
    }

    /// Reads until so many bytes have come.
    pub(crate) fn read_all(&mut self, bytes: usize) -> io::Result<()> {
        let mut came = 0;
        let mut part = [0; MESSAGE_BYTES];
        while came < bytes {
            match self {
                Self::Epoll { epoll, sockets } => {
                    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
                    // SAFETY: the kernel writes at most as many events as the array holds.
                    let ready = unsafe { libc::epoll_wait(*epoll, events.as_mut_ptr(), 256, -1) };
                    for event in &events[..ready.max(0) as usize] {
                        came += (&sockets[event.u64 as usize]).read(&mut part)?;
                    }
                }
                Self::Poll { ring, sockets, recv, buffers } => {
                    ring.submit_and_wait(1)?;
                    let ready: Vec<u64> = ring.completion().map(|completion| completion.user_data()).collect();
                    for chunk in ready.chunks(256) {
                        if !*recv {
                            for number in chunk {
                                came += (&sockets[*number as usize]).read(&mut part)?;
                            }
                            continue;
                        }
                        for (number, buffer) in chunk.iter().zip(buffers.chunks_mut(MESSAGE_BYTES)) {
                            let (start, bytes) = (buffer.as_mut_ptr(), buffer.len() as u32);
                            let recv = opcode::Recv::new(types::Fixed(*number as u32), start, bytes);
                            push(ring, &recv.flags(libc::MSG_DONTWAIT).build().user_data(u64::MAX))?;
                        }
                        ring.submit()?;
                        // Nobody sends twice in a walk, so that what completes here are the reads alone.
                        for completion in ring.completion().filter(|it| it.user_data() == u64::MAX) {
                            assert!(completion.result() > 0, "a read: {}", completion.result());
                            came += completion.result() as usize;
                        }
                    }
                }
                Self::Multishot { ring, buffers } => {
                    ring.submit_and_wait(1)?;
                    let completions: Vec<cqueue::Entry> = ring.completion().collect();
                    for completion in completions {
                        assert!(completion.result() > 0, "a multishot read: {}", completion.result());
                        came += completion.result() as usize;
                        if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
                            buffers.give(buffer);
                        }
                        if !cqueue::more(completion.flags()) {
                            let number = completion.user_data() as usize;
                            arm(ring, true, number..number + 1)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Self::Epoll { epoll, .. } = self {
            // SAFETY: the descriptor is this reader's own.
            unsafe { libc::close(*epoll) };
        }
    }
}

/// Arms what tells of bytes on the fixed files of a range.
fn arm(ring: &mut IoUring, multishot_recv: bool, files: std::ops::Range<usize>) -> io::Result<()> {
    for number in files {
        let file = types::Fixed(number as u32);
        let entry = if multishot_recv {
            opcode::RecvMulti::new(file, BUFFER_GROUP).build()
        } else {
            opcode::PollAdd::new(file, libc::POLLIN as u32).multi(true).build()
        };
        if ring.submission().is_full() {
            ring.submit()?;
        }
        push(ring, &entry.user_data(number as u64))?;
    }
    ring.submit()?;
    Ok(())
}

/// A ring of buffers that the kernel takes from.
pub(crate) struct Provided {
    entries: *mut types::BufRingEntry,
    memory: Vec<u8>,
    tail: u16,
}

impl Provided {
    fn new(ring: &IoUring) -> io::Result<Self> {
        let bytes = usize::from(BUFFERS) * size_of::<types::BufRingEntry>();
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of no file, wherever the kernel likes.
        let entries = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, kind, -1, 0) };
        if entries == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping holds as many entries, and is never unmapped: this program ends soon.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, BUFFERS, BUFFER_GROUP, 0)? };
        let memory = vec![0; usize::from(BUFFERS) * MESSAGE_BYTES];
        let mut provided = Self { entries: entries.cast(), memory, tail: 0 };
        (0..BUFFERS).for_each(|buffer| provided.give(buffer));
        Ok(provided)
    }

    /// Gives a buffer to the kernel.
    fn give(&mut self, buffer: u16) {
        let start = self.memory[usize::from(buffer) * MESSAGE_BYTES..].as_mut_ptr();
        // SAFETY: the place lies inside of the mapping, and the kernel reads it only after the tail has passed it.
        let entry = unsafe { &mut *self.entries.add(usize::from(self.tail % BUFFERS)) };
        entry.set_addr(start as u64);
        entry.set_len(MESSAGE_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies inside of the first entry, and only this thread writes it.
        let tail = unsafe { &*types::BufRingEntry::tail(self.entries).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

/// What the kernel keeps for a socket whose bytes are waited for.
pub(crate) fn weigh() -> io::Result<()> {
    println!("{:<58} {:>8}", "kernel memory of an idle socket that has spoken", "bytes");
    for way in [Reading::PollThenRecv, Reading::Multishot] {
        let pairs = Pairs::open(WEIGHED)?;
        pairs.count_read(Reading::Epoll)?;
        let before = slab_kib()?;
        let mut reader = Reader::new(way, &pairs.server)?;
        // A request may keep what its first completion needed.
        pairs.ask(Ask::Say);
        reader.read_all(WEIGHED * MESSAGE_BYTES)?;
        pairs.await_client();
        let bytes = (slab_kib()? - before) * 1_024.0 / WEIGHED as f64;
        println!("{:<58} {bytes:>8.0}", way.name());
    }
    Ok(())
}

fn slab_kib() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:"));
    let word = line.and_then(|line| line.split_whitespace().next()).ok_or_else(|| io::Error::other("no Slab"))?;
    word.parse().map_err(io::Error::other)
}
