//! Rule 9: a socket ends with a FIN, its slot goes on to the next owner clean, and the kernel keeps nothing.

use std::io::{Read, Write};

use super::*;

/// `sockets: used` of this machine.
fn sockets_used() -> i64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").expect("sockstat");
    text.split_ascii_whitespace().nth(2).and_then(|n| n.parse().ok()).expect("sockets: used N")
}

fn churn(options: RingOptions) {
    const SLOTS: u32 = 20;
    let mut bench = Bench::new(options);
    let listener = listener();
    let before = sockets_used();
    for generation in 0..100_u32 {
        bench.bytes.clear();
        bench.seen.clear();
        let mut peers = Vec::new();
        let mut ids = Vec::new();
        for slot in 0..SLOTS {
            let (ours, theirs) = tcp_pair(&listener);
            // Near the wrap of the 24 bits.
            ids.push(bench.install(slot, (1 << 24) - 50 + generation, ours));
            peers.push(theirs);
        }
        for (at, peer) in peers.iter_mut().enumerate() {
            if at % 2 == 0 {
                peer.write_all(format!("{generation}/{at}").as_bytes()).expect("writes");
            }
        }
        if generation % 2 == 0 {
            bench.until("reads", |b| b.bytes.len() == SLOTS as usize / 2);
        }
        for (at, &id) in ids.iter().enumerate() {
            if at % 3 == 0 {
                bench.ring.want_writable(id);
            }
            if at % 4 == 0 {
                bench.ring.pause_reads(id);
            }
            bench.ring.end(id);
            bench.ring.end(id);
        }
        bench.until("closes", |b| b.seen.len() >= SLOTS as usize);
        assert!(ids.iter().all(|&id| bench.has(&Seen::Closed(id))) && bench.seen.len() == SLOTS as usize);
        for (at, mut peer) in peers.into_iter().enumerate() {
            peer.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
            // A socket closed over unread bytes answers with a reset; the others with a FIN.
            match peer.read(&mut [0; 8]) {
                Ok(0) => {}
                Err(error) if at % 2 == 0 && error.raw_os_error() == Some(libc::ECONNRESET) => {}
                other => panic!("no FIN in generation {generation}, slot {at}: {other:?}"),
            }
        }
        for (id, came) in &bench.bytes {
            let text = String::from_utf8_lossy(came);
            assert_eq!(text, format!("{generation}/{}", id.slot), "the bytes of another owner");
        }
    }
    let gauges = bench.ring.gauges();
    assert_eq!((gauges.sockets.used, gauges.stale), (0, 0));
    // Other tests of this process open sockets too: what would leak is two thousand.
    let deadline = Instant::now() + Duration::from_secs(5);
    while sockets_used() > before + 1_000 {
        assert!(Instant::now() < deadline, "{} sockets before, {} after", before, sockets_used());
        std::thread::yield_now();
    }
}

#[test]
fn rule_09_two_thousand_owners_of_twenty_slots() {
    churn(small());
}

#[test]
fn rule_09_the_same_with_plain_descriptors() {
    churn(RingOptions { plain_descriptors: true, ..small() });
}

#[test]
fn rule_09_the_same_over_several_rings() {
    churn(RingOptions { files_per_ring: 8, ..small() });
}

#[test]
fn a_slot_is_refused_while_it_has_an_owner_and_beyond_the_limit() {
    let mut bench = Bench::new(RingOptions { sockets_max: 4, files_per_ring: 3, ..small() });
    let (ours, _theirs) = unix_pair();
    let id = bench.install(3, 1, ours);
    for slot in [3, 4] {
        let (ours, mut theirs) = unix_pair();
        assert!(bench.ring.install(SocketId { slot, generation: 2 }, ours.into()).is_err());
        assert_eq!(theirs.read(&mut [0; 1]).expect("closed"), 0, "the refused socket is closed");
    }
    let gauges = bench.ring.gauges();
    assert_eq!((gauges.sockets.used, gauges.sockets.limit), (1, 4));
    assert_eq!((gauges.rings.used, gauges.rings.limit), (2, 2));
    bench.ring.end(SocketId { slot: 3, generation: 2 });
    bench.turn(64);
    assert!(bench.seen.is_empty(), "a stranger ends nothing");
    bench.ring.end(id);
    bench.until("closes", |b| b.has(&Seen::Closed(id)));
}

#[test]
fn a_reset_is_reported_once_after_the_bytes_before_it() {
    let mut bench = Bench::new(RingOptions { recv_buffer_bytes: 16, ..small() });
    let (ours, mut theirs) = tcp_pair(&listener());
    let id = bench.install(0, 1, ours);
    bench.ring.send_all([(id, &b"unread"[..])].into_iter(), &mut Vec::new()).expect("a submit");
    theirs.write_all(&[5; 100]).expect("writes");
    bench.until("reads", |b| b.bytes.get(&id).is_some_and(|came| came.len() == 100));
    // Closed over unread bytes: a reset.
    drop(theirs);
    bench.until("hangs up", |b| b.has(&Seen::HangUp(id, Some(libc::ECONNRESET))));
    bench.turn(64);
    assert_eq!(bench.seen.len(), 1);
    bench.ring.end(id);
    bench.until("closes", |b| b.has(&Seen::Closed(id)));
}
