//! Rules 1, 2, 11 and 12: a send ends inside its call, is silent when whole, and exact when short.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use ringcast::io::ring::SendOutcome;
use socket2::SockRef;

use super::*;

#[test]
fn rule_01_a_whole_send_is_silent_and_a_short_one_is_exact() {
    let mut bench = Bench::new(small());
    let (ours, mut theirs) = tcp_pair(&listener());
    SockRef::from(&ours).set_send_buffer_size(8_192).expect("a small buffer");
    let id = bench.install(0, 1, ours);
    let mut short = Vec::new();
    bench.ring.send_all([(id, &b"whole"[..])].into_iter(), &mut short).expect("a submit");
    assert!(short.is_empty());
    let big = vec![7_u8; 16 << 20];
    bench.ring.send_all([(id, &big[..])].into_iter(), &mut short).expect("a submit");
    let [(0, SendOutcome::Short(first))] = short[..] else { panic!("{short:?}") };
    assert!(first > 0 && (first as usize) < big.len());
    // Loopback moves bytes on to the receiver for a while; then there is no room at all.
    let mut taken = first as usize;
    while short != [(0, SendOutcome::Short(0))] {
        short.clear();
        bench.ring.send_all([(id, &big[..])].into_iter(), &mut short).expect("a submit");
        let [(0, SendOutcome::Short(more))] = short[..] else { panic!("{short:?}") };
        taken += more as usize;
    }
    bench.ring.end(id);
    bench.until("closes", |b| b.has(&Seen::Closed(id)));
    let mut came = Vec::new();
    theirs.read_to_end(&mut came).expect("an orderly end");
    assert_eq!(came.len(), 5 + taken);
}

#[test]
fn rule_01_the_stream_is_exact_under_random_short_writes() {
    const TOTAL: usize = 3 << 20;
    let mut bench = Bench::new(RingOptions { files_per_ring: 3, sockets_max: 10, ..small() });
    let listener = listener();
    let mut readers = Vec::new();
    let mut ids = Vec::new();
    for slot in 0..6 {
        let (ours, mut theirs) = tcp_pair(&listener);
        SockRef::from(&ours).set_send_buffer_size(4_096 << slot).expect("a buffer");
        ids.push(bench.install(slot, 9, ours));
        readers.push(thread::spawn(move || {
            let (mut came, mut dice) = (Vec::new(), Dice(99 + u64::from(slot)));
            let mut buffer = vec![0; 20_000];
            loop {
                let most = 1 + dice.below(buffer.len() - 1);
                match theirs.read(&mut buffer[..most]).expect("reads") {
                    0 => return came,
                    n => came.extend_from_slice(&buffer[..n]),
                }
                if dice.below(64) == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }));
    }
    let mut dice = Dice(4_711);
    let stream: Vec<u8> = (0..TOTAL).map(|_| dice.below(256) as u8).collect();
    let (mut at, mut blocked) = ([0_usize; 6], [false; 6]);
    let mut shorts = 0;
    bench.until("sends all", |b| {
        for seen in b.seen.drain(..) {
            let Seen::Writable(id) = seen else { panic!("{seen:?}") };
            blocked[id.slot as usize] = false;
        }
        for _ in 0..8 {
            let sends: Vec<_> = (0..6)
                .filter(|&s| !blocked[s] && at[s] < TOTAL)
                .map(|s| (ids[s], &stream[at[s]..TOTAL.min(at[s] + 1 + dice.below(60_000))]))
                .collect();
            let mut short = Vec::new();
            b.ring.send_all(sends.iter().copied(), &mut short).expect("a submit");
            for (index, (id, slice)) in sends.iter().enumerate() {
                let s = id.slot as usize;
                match short.iter().find(|(i, _)| *i as usize == index) {
                    None => at[s] += slice.len(),
                    Some((_, SendOutcome::Short(n))) => {
                        assert!((*n as usize) < slice.len());
                        at[s] += *n as usize;
                        blocked[s] = true;
                        shorts += 1;
                        b.ring.want_writable(*id);
                    }
                    Some((_, gone)) => panic!("{gone:?}"),
                }
            }
        }
        at == [TOTAL; 6]
    });
    assert!(shorts > 20, "only {shorts} short writes: the test tests nothing");
    for &id in &ids {
        bench.ring.end(id);
    }
    bench.until("closes", |b| b.seen.len() == 6);
    for reader in readers {
        assert!(reader.join().expect("a reader") == stream);
    }
    assert_eq!(bench.ring.gauges().stale, 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "two sends of slot 0 in one call")]
fn rule_02_two_sends_of_one_socket_in_one_call_are_refused() {
    let mut bench = Bench::new(small());
    let (ours, _theirs) = unix_pair();
    let id = bench.install(0, 1, ours);
    let _ = bench.ring.send_all([(id, &b"a"[..]), (id, &b"b"[..])].into_iter(), &mut Vec::new());
}

#[test]
fn rule_12_a_thousand_sends_go_out_in_order_over_several_rings() {
    let mut bench = Bench::new(RingOptions { files_per_ring: 8, sq_entries: 16, cq_entries: 32, ..small() });
    let mut peers = Vec::new();
    let ids: Vec<_> = (0..500)
        .map(|slot| {
            let (ours, theirs) = unix_pair();
            peers.push(theirs);
            bench.install(slot, 1, ours)
        })
        .collect();
    assert_eq!(bench.ring.gauges().rings.used, 63);
    let mut short = Vec::new();
    for round in 0..10_u8 {
        let slice = [round; 33];
        bench.ring.send_all(ids.iter().map(|&id| (id, &slice[..])), &mut short).expect("submits");
    }
    assert!(short.is_empty());
    for mut peer in peers {
        let mut came = [0; 330];
        peer.read_exact(&mut came).expect("all of it");
        assert!(came.iter().enumerate().all(|(i, &b)| b == (i / 33) as u8));
    }
}

#[test]
fn a_send_to_one_who_is_gone_says_so_by_index() {
    let mut bench = Bench::new(small());
    let ((a, peer_a), (b, peer_b)) = (unix_pair(), unix_pair());
    let (a, b) = (bench.install(0, 1, a), bench.install(1, 1, b));
    drop(peer_a);
    let stranger = SocketId { slot: 1, generation: 2 };
    let mut short = Vec::new();
    let slice = &b"x"[..];
    bench.ring.send_all([(b, slice), (a, slice)].into_iter(), &mut short).expect("a submit");
    bench.ring.send_all([(stranger, slice)].into_iter(), &mut short).expect("a submit");
    assert_eq!(short, [(1, SendOutcome::Gone(libc::EPIPE)), (0, SendOutcome::Gone(libc::EBADF))]);
    drop(peer_b);
}

#[test]
fn half_a_shutdown_lingers_for_the_peers_end() {
    let mut bench = Bench::new(small());
    let (ours, mut theirs) = tcp_pair(&listener());
    let id = bench.install(0, 1, ours);
    bench.ring.send_all([(id, &b"bye"[..])].into_iter(), &mut Vec::new()).expect("a submit");
    bench.ring.shutdown_write(id);
    bench.ring.shutdown_write(id);
    bench.turn(64);
    let mut came = Vec::new();
    theirs.read_to_end(&mut came).expect("an orderly end");
    assert_eq!(came, b"bye");
    theirs.write_all(b"last words").expect("our side still reads");
    theirs.shutdown(Shutdown::Write).expect("ends");
    bench.until("hangs up", |b| b.has(&Seen::HangUp(id, None)));
    assert_eq!(bench.bytes[&id], b"last words");
    bench.ring.end(id);
    bench.ring.end(id);
    bench.until("closes", |b| b.has(&Seen::Closed(id)));
    assert_eq!(bench.seen.len(), 2);
}

#[test]
fn rule_11_write_until_short_then_one_poll_tells_of_room_once() {
    const LOWAT: u32 = 64 * 1024;
    let mut bench = Bench::new(small());
    let (ours, mut theirs) = tcp_pair(&listener());
    SockRef::from(&ours).set_tcp_notsent_lowat(LOWAT).expect("a bound");
    SockRef::from(&theirs).set_recv_buffer_size(16_384).expect("a small window");
    let id = bench.install(0, 1, ours);
    // The longest slice that LOWAT allows for is half of it.
    let slice = vec![5_u8; LOWAT as usize / 2];
    let (mut sent, mut got, mut rooms) = (0, 0, 0);
    let mut buffer = vec![0; 8_192];
    while rooms < 5 {
        let mut short = Vec::new();
        bench.ring.send_all([(id, &slice[..])].into_iter(), &mut short).expect("a submit");
        let [(0, SendOutcome::Short(taken))] = short[..] else {
            assert!(short.is_empty(), "{short:?}");
            sent += slice.len();
            continue;
        };
        sent += taken as usize;
        bench.ring.want_writable(id);
        bench.ring.want_writable(id);
        // Beyond LOWAT there is no room, however long one waits: lag stays with us.
        while bench.turn(64).more {}
        assert!(!bench.park(20) && bench.seen.is_empty(), "no room is told of before the peer reads");
        while bench.seen.is_empty() {
            got += theirs.read(&mut buffer).expect("reads");
            while bench.turn(64).more {}
            bench.park(0);
        }
        assert_eq!(std::mem::take(&mut bench.seen), [Seen::Writable(id)], "told once");
        rooms += 1;
    }
    bench.ring.end(id);
    bench.until("closes", |b| b.has(&Seen::Closed(id)));
    let mut rest = Vec::new();
    theirs.read_to_end(&mut rest).expect("an orderly end");
    assert_eq!(got + rest.len(), sent);
}
