//! Rule 10 and overflow: inbound bytes come whole and in order however few buffers and completions there are.

use std::io::Write;
use std::thread;

use ringcast::io::ring::SendOutcome;

use super::*;

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut dice = Dice(seed + 1);
    (0..bytes).map(|_| dice.below(256) as u8).collect()
}

fn one_burst(options: RingOptions) {
    const BYTES: usize = 3 << 20;
    let mut bench = Bench::new(options);
    let (ours, mut theirs) = tcp_pair(&listener());
    let id = bench.install(0, 1, ours);
    let writer = thread::spawn(move || theirs.write_all(&pattern(1, BYTES)).expect("writes"));
    bench.until("the whole burst and its end", |b| b.has(&Seen::HangUp(id, None)));
    writer.join().expect("a writer");
    assert!(bench.bytes[&id] == pattern(1, BYTES));
    assert_eq!(bench.seen.len(), 1);
}

#[test]
fn rule_10_a_burst_larger_than_all_buffers_comes_whole_and_in_order() {
    one_burst(small());
    one_burst(RingOptions { recv_buffers: 3, recv_buffer_bytes: 100, ..small() });
    one_burst(RingOptions { plain_descriptors: true, ..small() });
}

#[test]
fn rule_10_two_buffers_serve_a_hundred_sockets() {
    let mut bench = Bench::new(RingOptions { recv_buffers: 2, recv_buffer_bytes: 64, ..small() });
    let mut peers = Vec::new();
    for slot in 0..100 {
        let (ours, mut theirs) = unix_pair();
        bench.install(slot, 1, ours);
        theirs.write_all(&pattern(slot.into(), 1_000)).expect("writes");
        peers.push(theirs);
    }
    bench.turn(1_000);
    assert!(bench.bytes.len() <= 2, "never more reads than buffers");
    assert_eq!(bench.ring.gauges().recv_buffers.limit, 2);
    bench.until("all bytes", |b| b.bytes.values().map(Vec::len).sum::<usize>() == 100_000);
    for (id, came) in &bench.bytes {
        assert!(*came == pattern(id.slot.into(), 1_000));
    }
    assert_eq!(bench.ring.gauges().ready, 0);
}

/// Several thousand sockets turn readable at once while sixteen completions fit; sends go on meanwhile.
#[test]
fn case_e5_an_overflowing_completion_queue_loses_nothing_and_keeps_the_order_of_sends() {
    const SOCKETS: u32 = 3_000;
    let mut bench = Bench::new(RingOptions { sq_entries: 8, cq_entries: 16, recv_buffers: 32, ..small() });
    let mut peers = Vec::new();
    let mut ids = Vec::new();
    for slot in 0..SOCKETS {
        let (ours, theirs) = unix_pair();
        ids.push(bench.install(slot, 1, ours));
        peers.push(theirs);
    }
    for round in 0..4_u8 {
        for peer in &mut peers {
            peer.write_all(&[round; 10]).expect("writes");
        }
        let slice = [round; 7];
        let mut short = Vec::new();
        bench.ring.send_all(ids.iter().map(|&id| (id, &slice[..])), &mut short).expect("submits");
        assert!(short.is_empty());
        bench.turn(100);
    }
    let expected: Vec<u8> = (0..4).flat_map(|round| [round; 10]).collect();
    bench.until("all bytes", |b| b.bytes.values().map(Vec::len).sum::<usize>() == SOCKETS as usize * 40);
    assert!(bench.bytes.values().all(|came| *came == expected));
    for peer in &mut peers {
        let mut came = [0; 28];
        std::io::Read::read_exact(peer, &mut came).expect("all of it");
        assert!(came.iter().enumerate().all(|(i, &b)| b == (i / 7) as u8));
    }
    // All polls that the full queue disarmed are armed again.
    bench.bytes.clear();
    for peer in &mut peers {
        peer.write_all(b"again").expect("writes");
    }
    bench.until("all polls again", |b| b.bytes.len() == SOCKETS as usize);
    for &id in &ids {
        bench.ring.end(id);
    }
    bench.until("closes", |b| b.seen.len() == SOCKETS as usize);
    let gauges = bench.ring.gauges();
    assert!(gauges.overflows > 0, "the queue did not overflow: the test tests nothing");
    assert_eq!((gauges.sockets.used, gauges.stale), (0, 0));
}

/// Every send of several submits is short while the queue is full of other completions.
#[test]
fn case_e5_an_overflowing_completion_queue_loses_no_short_send() {
    let mut bench = Bench::new(RingOptions { sq_entries: 16, cq_entries: 16, ..small() });
    let mut peers = Vec::new();
    let mut ids = Vec::new();
    for slot in 0..300 {
        let (ours, mut theirs) = unix_pair();
        theirs.write_all(b"readable").expect("writes");
        ids.push(bench.install(slot, 1, ours));
        peers.push(theirs);
    }
    let slices: Vec<_> = (0..300).map(|slot| vec![slot as u8; 1 << 20]).collect();
    let mut taken = vec![0; 300];
    // The first round fills the sockets, the second finds no room.
    for round in 0..2 {
        let mut short = Vec::new();
        bench.ring.send_all(ids.iter().zip(&slices).map(|(&id, slice)| (id, &slice[..])), &mut short).expect("submits");
        short.sort_unstable_by_key(|&(index, _)| index);
        assert_eq!(short.len(), 300);
        for (slot, (index, outcome)) in short.into_iter().enumerate() {
            let SendOutcome::Short(bytes) = outcome else { panic!("{outcome:?}") };
            assert_eq!((slot as u32, bytes > 0), (index, round == 0));
            taken[slot] += bytes as usize;
        }
    }
    for &id in &ids {
        bench.ring.end(id);
    }
    bench.until("closes", |b| b.seen.len() == 300);
    for ((mut peer, bytes), slot) in peers.into_iter().zip(taken).zip(0..) {
        let mut came = vec![0; bytes];
        std::io::Read::read_exact(&mut peer, &mut came).expect("all that was taken");
        assert!(came.iter().all(|&byte| byte == slot as u8));
    }
    assert!(bench.ring.gauges().overflows > 0, "the queue did not overflow: the test tests nothing");
}

#[test]
fn a_paused_socket_is_silent_and_complete_after_its_resume() {
    let mut bench = Bench::new(small());
    let (ours, mut theirs) = unix_pair();
    let id = bench.install(0, 1, ours);
    bench.ring.pause_reads(id);
    theirs.write_all(b"waits").expect("writes");
    for _ in 0..20 {
        bench.turn(64);
        bench.park(2);
    }
    assert!(bench.bytes.is_empty());
    drop(theirs);
    bench.ring.resume_reads(id);
    bench.until("hangs up", |b| b.has(&Seen::HangUp(id, None)));
    assert_eq!(bench.bytes[&id], b"waits");
}

#[test]
fn a_turn_is_bounded_by_its_budget() {
    let mut bench = Bench::new(small());
    let mut peers = Vec::new();
    for slot in 0..100 {
        let (ours, mut theirs) = unix_pair();
        bench.install(slot, 1, ours);
        theirs.write_all(b"x").expect("writes");
        peers.push(theirs);
    }
    assert!(bench.turn(10).more);
    assert!(bench.bytes.len() <= 10);
    bench.until("the rest", |b| b.bytes.len() == 100);
}
