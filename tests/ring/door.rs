//! Listeners and greetings: sockets that are not the ring's yet.

use std::io::{Read, Write};

use super::*;

#[test]
fn connections_are_accepted_greeted_and_taken_in() {
    let mut bench = Bench::new(small());
    let listener = listener();
    listener.set_nonblocking(true).expect("non-blocking");
    bench.ring.listen(listener.as_raw_fd(), 7);
    let address = listener.local_addr().expect("bound");
    let mut peers: Vec<_> = (0..50).map(|_| TcpStream::connect(address).expect("connects")).collect();
    bench.until("accepts", |b| b.accepted.len() == 50);
    let guests = std::mem::take(&mut bench.accepted);
    for fd in &guests {
        // SAFETY: asks for the flags of a descriptor that is open.
        let (status, close) =
            unsafe { (libc::fcntl(fd.as_raw_fd(), libc::F_GETFL), libc::fcntl(fd.as_raw_fd(), libc::F_GETFD)) };
        assert!(status & libc::O_NONBLOCK != 0 && close & libc::FD_CLOEXEC != 0);
    }
    for (key, fd) in guests.iter().enumerate() {
        bench.ring.greet(key as u32, fd.as_raw_fd());
    }
    bench.turn(64);
    assert!(bench.seen.is_empty(), "nobody has spoken");
    for peer in &mut peers {
        peer.write_all(b"GET / HTTP/1.1").expect("writes");
    }
    bench.until("greets", |b| b.seen.len() == 50);
    for seen in bench.seen.drain(..) {
        let Seen::Greeting(_, Ok(head)) = seen else { panic!("{seen:?}") };
        assert_eq!(head, b"GET / HTTP/1.1");
    }
    for (slot, fd) in guests.into_iter().enumerate() {
        bench.install(slot as u32, 1, fd);
    }
    for peer in &mut peers {
        peer.write_all(b"frame").expect("writes");
    }
    bench.until("reads", |b| b.bytes.len() == 50);
    bench.ring.stop_listening();
    bench.ring.stop_listening();
    bench.until("stops", |b| b.has(&Seen::NotListening(7)));
    assert_eq!(bench.seen.len(), 1);
    drop(listener);
    assert!(TcpStream::connect(address).is_err(), "nothing pins the listener");
}

#[test]
fn a_greeting_ends_with_eof_with_an_error_or_by_cancel() {
    let mut bench = Bench::new(small());
    let ((a, peer_a), (b, peer_b), (c, mut peer_c)) = (unix_pair(), unix_pair(), unix_pair());
    bench.ring.greet(1, a.as_raw_fd());
    bench.ring.greet(2, b.as_raw_fd());
    bench.turn(64);
    drop(peer_a);
    assert!(bench.ring.cancel_greet(2));
    assert!(bench.ring.cancel_greet(2));
    bench.until("both end", |b| b.seen.len() == 2);
    assert!(bench.has(&Seen::Greeting(1, Ok(Vec::new()))) && bench.has(&Seen::GreetingCancelled(2)));
    assert!(!bench.ring.cancel_greet(2) && !bench.ring.cancel_greet(1));
    // Nothing is in flight on it: what comes now is whoever's it is handed to.
    let mut peer_b = peer_b;
    peer_b.write_all(b"later").expect("writes");
    bench.turn(64);
    let mut came = [0; 5];
    let mut b = b;
    b.read_exact(&mut came).expect("untouched");
    assert_eq!(&came, b"later");
    // Cancelled with the bytes already there: either the bytes or the cancel, and nothing after it.
    bench.seen.clear();
    peer_c.write_all(b"race").expect("writes");
    bench.ring.greet(3, c.as_raw_fd());
    bench.ring.cancel_greet(3);
    bench.until("ends", |b| !b.seen.is_empty());
    bench.turn(64);
    assert_eq!(bench.seen.len(), 1);
    drop(c);
}

#[test]
fn a_failed_accept_waits_for_the_caller() {
    let mut bench = Bench::new(small());
    let (not_a_listener, _peer) = unix_pair();
    bench.ring.listen(not_a_listener.as_raw_fd(), 1);
    bench.until("fails", |b| b.has(&Seen::AcceptFailed(1, libc::EINVAL)));
    bench.turn(64);
    assert_eq!(bench.seen.len(), 1, "no loop of failures");
    bench.ring.accept_again(1);
    bench.until("fails again", |b| b.seen.len() == 2);
    bench.ring.stop_listening();
    bench.until("stops", |b| b.has(&Seen::NotListening(1)));
}

#[test]
fn case_e2_a_listener_that_is_closed_while_it_accepts_lends_its_number_to_nobody() {
    let mut bench = Bench::new(small());
    for _ in 0..50 {
        let first = listener();
        first.set_nonblocking(true).expect("non-blocking");
        let (address, number) = (first.local_addr().expect("bound"), first.as_raw_fd());
        bench.ring.listen(number, 1);
        let mut peers: Vec<_> = (0..4).map(|_| TcpStream::connect(address).expect("connects")).collect();
        bench.turn(64);
        // Closed before its accept has ended, and the next listener gets its number.
        bench.ring.stop_listening();
        drop(first);
        let second = listener();
        let recycled = second.as_raw_fd() == number;
        let other = second.local_addr().expect("bound");
        peers.push(TcpStream::connect(other).expect("connects"));
        bench.until("the first has stopped", |b| b.has(&Seen::NotListening(1)));
        for _ in 0..5 {
            bench.turn(64);
        }
        assert!(bench.accepted.len() <= 4, "an accept went on by the number of a descriptor (recycled: {recycled})");
        for fd in bench.accepted.drain(..) {
            let stream = TcpStream::from(fd);
            assert_eq!(stream.local_addr().expect("bound"), address, "whoever was accepted came to the first");
        }
        assert_eq!(bench.seen.drain(..).collect::<Vec<_>>(), [Seen::NotListening(1)], "and no failure goes on");
    }
}
