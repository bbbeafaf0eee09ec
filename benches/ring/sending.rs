//! Ways to send one frame to everybody.

use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode, types};
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use crate::pairs::{FRAME_BYTES, Pairs};
use crate::{ROUNDS, Setup, WALKS, print, push};

const WHOLE: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// A way to send.
#[derive(Clone, Copy)]
struct Sending {
    name: &'static str,
    setup: Setup,
    fixed: bool,
    silent: bool,
    /// Sends a submit.
    batch: usize,
    zero_copy: bool,
}

/// What the node does.
const OURS: Sending = Sending {
    name: "as the node: deferred, fixed files, silent, 64 a submit",
    setup: Setup::Deferred,
    fixed: true,
    silent: true,
    batch: 64,
    zero_copy: false,
};

const SENDINGS: [Sending; 11] = [
    OURS,
    Sending { name: "no flags", setup: Setup::Default, ..OURS },
    Sending { name: "COOP_TASKRUN", setup: Setup::Coop, ..OURS },
    Sending { name: "SQPOLL (its thread is counted)", setup: Setup::KernelPoller, ..OURS },
    Sending { name: "descriptors instead of fixed files", fixed: false, ..OURS },
    Sending { name: "a completion each", silent: false, ..OURS },
    Sending { name: "1 a submit", batch: 1, ..OURS },
    Sending { name: "8 a submit", batch: 8, ..OURS },
    Sending { name: "16 a submit", batch: 16, ..OURS },
    Sending { name: "256 a submit", batch: 256, ..OURS },
    Sending { name: "SEND_ZC", zero_copy: true, ..OURS },
];

/// Each way takes turns with the plain loop, walk by walk, so that what disturbs one disturbs the other.
pub(crate) fn compare(pairs: &Pairs) -> io::Result<()> {
    let frame = [b'x'; FRAME_BYTES];
    let plain = || pairs.server.iter().try_for_each(|mut socket| socket.write_all(&frame));
    let mut ways = SENDINGS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (way, found) in SENDINGS.iter().zip(&mut ways) {
            let mut ring = way.setup.ring()?;
            if way.fixed {
                ring.submitter().register_files(&pairs.descriptors())?;
            }
            pairs.count_send(|| walk(&mut ring, *way, &pairs.server, &frame))?;
            for _ in 0..WALKS {
                let base = pairs.count_send(plain)?;
                found.push((base, pairs.count_send(|| walk(&mut ring, *way, &pairs.server, &frame))?));
            }
        }
    }
    print("a send of 256 bytes, beside a loop of send(2)", SENDINGS.map(|way| way.name), &ways);
    Ok(())
}

/// One frame to everybody.
fn walk(ring: &mut IoUring, way: Sending, sockets: &[TcpStream], frame: &[u8]) -> io::Result<()> {
    let silent = way.silent && way.setup != Setup::KernelPoller && !way.zero_copy;
    let completions = usize::from(!silent);
    for (chunk_number, chunk) in sockets.chunks(way.batch).enumerate() {
        for (at, socket) in chunk.iter().enumerate() {
            let file = types::Fixed((chunk_number * way.batch + at) as u32);
            let fd = types::Fd(socket.as_raw_fd());
            let (start, bytes) = (frame.as_ptr(), frame.len() as u32);
            let entry = match (way.zero_copy, way.fixed) {
                (true, _) => opcode::SendZc::new(file, start, bytes).flags(WHOLE).build(),
                (false, true) => opcode::Send::new(file, start, bytes).flags(WHOLE).build(),
                (false, false) => opcode::Send::new(fd, start, bytes).flags(WHOLE).build(),
            };
            let entry = if silent { entry.flags(Flags::SKIP_SUCCESS) } else { entry };
            push(ring, &entry)?;
        }
        ring.submit_and_wait(completions * chunk.len())?;
        for completion in ring.completion() {
            // A notification of SEND_ZC says 0.
            let right = [0, frame.len() as i32].contains(&completion.result());
            assert!(right, "{}: {}", way.name, completion.result());
        }
    }
    Ok(())
}
