//! Rule 15: a living socket is taken out of its ring and goes on in another, byte exact in both directions.

use std::io::{Read, Write};
use std::thread;

use ringcast::io::ring::SendOutcome;
use socket2::SockRef;

use super::*;

/// Sends `frame` whole, waiting for room as often as it takes; true if it was ever short.
fn send_whole(bench: &mut Bench, id: SocketId, frame: &[u8]) -> bool {
    let (mut at, mut broke) = (0, false);
    while at < frame.len() {
        let mut short = Vec::new();
        bench.ring.send_all([(id, &frame[at..])].into_iter(), &mut short).expect("a submit");
        match short[..] {
            [] => at = frame.len(),
            [(0, SendOutcome::Short(taken))] => {
                at += taken as usize;
                broke = true;
                bench.seen.clear();
                bench.ring.want_writable(id);
                bench.until("room", |b| b.has(&Seen::Writable(id)));
            }
            ref other => panic!("{other:?}"),
        }
    }
    broke
}

/// Twenty sockets move from ring to ring three times, writing and being written to before, between and after.
fn migrate(options: &RingOptions) {
    const SOCKETS: u32 = 20;
    const FRAME: usize = 600_000;
    const MOVES: usize = 3;
    let listener = listener();
    let mut bench = Bench::new(options.clone());
    let mut peers = Vec::new();
    let mut ids = Vec::new();
    for slot in 0..SOCKETS {
        let (ours, mut theirs) = tcp_pair(&listener);
        SockRef::from(&ours).set_send_buffer_size(8_192).expect("a small buffer");
        ids.push(bench.install(slot, 5, ours));
        let writer = theirs.try_clone().expect("a second handle");
        peers.push((
            writer,
            thread::spawn(move || {
                let mut came = Vec::new();
                theirs.read_to_end(&mut came).expect("an orderly end");
                came
            }),
        ));
    }
    let mut said = vec![Vec::new(); SOCKETS as usize];
    let mut heard = vec![Vec::new(); SOCKETS as usize];
    let mut broken = 0;
    for round in 0..=MOVES {
        for (at, (writer, _)) in peers.iter_mut().enumerate() {
            writer.write_all(format!("{round}:{at};").as_bytes()).expect("writes");
        }
        for (at, &id) in ids.iter().enumerate() {
            // The broken frame is finished before the socket moves.
            let frame = vec![(round * 31 + at) as u8; FRAME];
            broken += usize::from(send_whole(&mut bench, id, &frame));
            said[at].extend_from_slice(&frame);
        }
        if round == MOVES {
            break;
        }
        for (at, &id) in ids.iter().enumerate() {
            if at % 2 == 0 {
                // With a poll for room in flight as well.
                bench.ring.want_writable(id);
            }
            bench.ring.take_out(id);
            bench.ring.take_out(id);
            bench.ring.end(id);
        }
        bench.until("moves", |b| b.moved.len() == SOCKETS as usize);
        let gauges = bench.ring.gauges();
        assert_eq!((gauges.sockets.used, gauges.stale), (0, 0));
        assert!(!bench.seen.iter().any(|seen| matches!(seen, Seen::Closed(_))));
        let mut next = Bench::new(options.clone());
        for (id, fd) in bench.moved.drain(..) {
            assert!(closes_on_exec(&fd), "a descriptor that moves must not leak into children");
            let at = id.slot as usize;
            heard[at].extend(bench.bytes.remove(&id).unwrap_or_default());
            ids[at] = next.install(id.slot, id.generation + 1, fd);
        }
        bench = next;
    }
    assert!(broken > 0, "no frame was ever broken");
    for (at, &id) in ids.iter().enumerate() {
        let want = (0..=MOVES).map(|round| format!("{round}:{at};")).collect::<Vec<_>>().concat();
        let before = heard[at].len();
        bench.until("reads", |b| before + b.bytes.get(&id).map_or(0, Vec::len) >= want.len());
        heard[at].extend(bench.bytes.remove(&id).unwrap_or_default());
        assert_eq!(String::from_utf8_lossy(&heard[at]), want, "peer {at}");
        bench.ring.end(id);
    }
    bench.until("closes", |b| ids.iter().all(|&id| b.has(&Seen::Closed(id))));
    for (at, (_, reader)) in peers.into_iter().enumerate() {
        assert!(reader.join().expect("a reader") == said[at], "the stream of peer {at}");
    }
}

/// FD_CLOEXEC is set.
fn closes_on_exec(fd: &OwnedFd) -> bool {
    // SAFETY: fcntl takes a descriptor that lives and a number.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) & libc::FD_CLOEXEC != 0 }
}

#[test]
fn rule_15_sockets_move_alive_from_ring_to_ring() {
    migrate(&small());
}

#[test]
fn rule_15_the_same_over_several_rings() {
    migrate(&RingOptions { files_per_ring: 7, ..small() });
}

#[test]
fn rule_15_the_same_with_plain_descriptors() {
    migrate(&RingOptions { plain_descriptors: true, ..small() });
}
