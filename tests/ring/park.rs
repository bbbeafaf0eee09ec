//! Rule 7: who sleeps on the eventfd is woken.

use std::io::{Read, Write};
use std::thread;

use super::*;

/// Four peers write and wait for the echo of each byte, so that the owner runs dry and parks all the time.
fn ping_pong(options: RingOptions) {
    const PEERS: u32 = 4;
    const ROUNDS: usize = 2_500;
    let mut bench = Bench::new(options);
    let listener = listener();
    let mut peers = Vec::new();
    for slot in 0..PEERS {
        let (ours, mut theirs) = tcp_pair(&listener);
        theirs.set_nodelay(true).expect("nodelay");
        bench.install(slot, 1, ours);
        peers.push(thread::spawn(move || {
            for round in 0..ROUNDS {
                theirs.write_all(&[round as u8]).expect("writes");
                let mut echo = [0];
                theirs.read_exact(&mut echo).expect("the echo");
                assert_eq!(echo[0], round as u8);
            }
        }));
    }
    let (mut left, mut parks) = (PEERS, 0_u64);
    while left > 0 {
        let more = bench.turn(64).more;
        let bytes = std::mem::take(&mut bench.bytes);
        let mut short = Vec::new();
        bench.ring.send_all(bytes.iter().map(|(&id, came)| (id, &came[..])), &mut short).expect("a submit");
        assert!(short.is_empty());
        for seen in bench.seen.drain(..) {
            let Seen::HangUp(_, None) = seen else { panic!("{seen:?}") };
            left -= 1;
        }
        if !more && left > 0 {
            parks += 1;
            assert!(bench.park(5_000), "a wake was lost in park {parks}");
        }
    }
    for peer in peers {
        peer.join().expect("a peer");
    }
    assert!(parks > 1_000, "only {parks} parks: the test tests nothing");
}

#[test]
fn rule_07_no_wake_is_lost_in_ten_thousand_rounds() {
    ping_pong(small());
}

#[test]
fn rule_07_nor_with_a_ring_a_socket() {
    ping_pong(RingOptions { files_per_ring: 1, sockets_max: 8, ..small() });
}

#[test]
fn rule_07_an_idle_ring_parks_and_stays_parked() {
    let mut bench = Bench::new(small());
    let (ours, mut theirs) = unix_pair();
    let id = bench.install(0, 1, ours);
    while bench.turn(64).more {}
    assert!(!bench.park(20), "nothing wakes an idle ring");
    theirs.write_all(b"now").expect("writes");
    assert!(!bench.ring.prepare_park().expect("a park"), "what is there is seen before parking");
    bench.until("bytes", |b| b.bytes.contains_key(&id));
}
