//! Viewers who come and go beside an audience: joins at a steady rate, each of whom stays for a moment.
//!
//! A rate, a stay and an end flow in, joins and their latency flow out; what is always true is that joins are due at
//! planned moments whatever the node does, that their number at a time is bounded, and that all have left at the end.

use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use super::kernel::{self, Epoll, now_ns};
use super::latency::Latency;
use super::plan::channel_name;

/// Source addresses that joins take in turn: each has 28,000 ports, and a port rests for 60 s once it was used.
const SOURCES: u64 = 64;
/// A join that takes longer has failed.
const HANDSHAKE_NS: u64 = 10_000_000_000;
/// A Close without a code, masked with zeros.
const CLOSE: &[u8] = &[0x88, 0x80, 0, 0, 0, 0];
/// What tells that a join is done.
const GREETING: &[u8] = b"connection.ready";

/// Who comes and goes, where, and until when.
#[derive(Clone, Debug)]
pub(super) struct Churn {
    /// The node.
    pub(super) addr: SocketAddr,
    /// What the Host header says.
    pub(super) host: String,
    /// The app.
    pub(super) app: String,
    /// Channels there are.
    pub(super) channels: u32,
    /// The share of joins that goes to the first channel.
    pub(super) biggest_share: f64,
    /// Joins a second.
    pub(super) joins_per_s: f64,
    /// How long each stays.
    pub(super) stay_ns: u64,
    /// When the first is due.
    pub(super) begin_ns: u64,
    /// When no more are.
    pub(super) end_ns: u64,
    /// Connections at a time, those on their way included. One that is due beyond it is late.
    pub(super) connections_max: usize,
}

/// What became of them.
#[derive(Debug, Default)]
pub(super) struct Churned {
    /// Joins that were greeted.
    pub(super) joined: u64,
    /// Joins that were not.
    pub(super) failed: u64,
    /// Connections that the node ended while they stayed.
    pub(super) cut: u64,
    /// From the moment due to the greeting.
    pub(super) latency: Latency,
}

struct Guest {
    stream: TcpStream,
    due_ns: u64,
    asked: bool,
    greeted: bool,
    /// The end of what was read, in case the greeting is cut.
    tail: Vec<u8>,
}

impl Churn {
    /// Lets them come and go until it is over.
    ///
    /// # Errors
    /// No epoll set is left.
    pub(super) fn run(&self) -> io::Result<Churned> {
        kernel::wake_sharply();
        let mut epoll = Epoll::new()?;
        let mut found = Churned::default();
        let mut guests: BTreeMap<u64, Guest> = BTreeMap::new();
        let mut leaving: VecDeque<(u64, u64)> = VecDeque::new();
        let mut buffer = vec![0; 64 << 10];
        let all = (self.end_ns.saturating_sub(self.begin_ns) as f64 / 1e9 * self.joins_per_s) as u64;
        let due_ns = |number: u64| self.begin_ns + (number as f64 * 1e9 / self.joins_per_s) as u64;
        // Who is late has not failed yet: only what is as late as a join may take is given up.
        let given_up_ns = self.end_ns + HANDSHAKE_NS;
        let mut next = 0;
        loop {
            let now = now_ns();
            while next < all && due_ns(next) <= now && now < given_up_ns && guests.len() < self.connections_max {
                match self.connect(next, &epoll) {
                    Ok(stream) => {
                        let due_ns = due_ns(next);
                        guests.insert(next, Guest { stream, due_ns, asked: false, greeted: false, tail: Vec::new() });
                    }
                    Err(_) => found.failed += 1,
                }
                next += 1;
            }
            while let Some(&(at_ns, number)) = leaving.front()
                && at_ns <= now
            {
                leaving.pop_front();
                if let Some(mut guest) = guests.remove(&number) {
                    // Whether it still arrives or not, the connection ends here.
                    let _ = guest.stream.write(CLOSE);
                }
            }
            if guests.is_empty() && (next == all || now >= given_up_ns) {
                found.failed += all - next;
                return Ok(found);
            }
            // Numbers are given in the order in which joins are due.
            while let Some(first) = guests.first_entry()
                && !first.get().greeted
                && first.get().due_ns + HANDSHAKE_NS < now
            {
                first.remove();
                found.failed += 1;
            }
            let ready = epoll.wait(1)?;
            for at in 0..ready {
                let (number, _) = epoll.event(at);
                let Some(guest) = guests.get_mut(&number) else { continue };
                match self.attend(number, guest, &mut buffer) {
                    Ok(false) => {}
                    Ok(true) => {
                        let now = now_ns();
                        found.joined += 1;
                        found.latency.record(now.saturating_sub(guest.due_ns));
                        leaving.push_back((now + self.stay_ns, number));
                    }
                    Err(_) => {
                        if guest.greeted {
                            found.cut += 1;
                        } else {
                            found.failed += 1;
                        }
                        guests.remove(&number);
                    }
                }
            }
        }
    }

    fn connect(&self, number: u64, epoll: &Epoll) -> io::Result<TcpStream> {
        let domain = if self.addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?;
        if self.addr.is_ipv4() {
            let source = IpAddr::from(Ipv4Addr::new(127, 2, 0, 1 + (number % SOURCES) as u8));
            kernel::choose_port_late(socket.as_fd())?;
            socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
        }
        match socket.connect(&SockAddr::from(self.addr)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        epoll.add(socket.as_fd(), number, kernel::READABLE | kernel::WRITABLE)?;
        Ok(socket.into())
    }

    /// The channel of a join: the first one has its share, the others take turns.
    fn channel(&self, number: u64) -> u32 {
        let first = |number: u64| (number as f64 * self.biggest_share) as u64;
        if self.channels == 1 || first(number + 1) > first(number) {
            return 0;
        }
        1 + (number % u64::from(self.channels - 1)) as u32
    }

    /// Asks, reads, and says whether this was the greeting. An error is the end of the connection.
    fn attend(&self, number: u64, guest: &mut Guest, buffer: &mut [u8]) -> io::Result<bool> {
        if !guest.asked {
            if let Some(error) = guest.stream.take_error()? {
                return Err(error);
            }
            guest.asked = true;
            let request = format!(
                "GET /v1/{}/channels/{}/ws HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
                self.app,
                channel_name(self.channel(number)),
                self.host
            );
            // A few hundred bytes into an empty buffer of a new socket always fit.
            guest.stream.write_all(request.as_bytes())?;
        }
        loop {
            match guest.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if guest.greeted => {}
                Ok(bytes) => {
                    guest.tail.extend_from_slice(&buffer[..bytes]);
                    if memchr::memmem::find(&guest.tail, GREETING).is_some() {
                        (guest.greeted, guest.tail) = (true, Vec::new());
                        return Ok(true);
                    }
                    if guest.tail.len() > 4_096 {
                        return Err(io::Error::other("no greeting in the first 4 KiB"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn churn(addr: SocketAddr) -> Churn {
        let now = now_ns();
        Churn {
            addr,
            host: addr.to_string(),
            app: "demo".into(),
            channels: 4,
            biggest_share: 0.25,
            joins_per_s: 100.0,
            stay_ns: 1_000_000,
            begin_ns: now,
            end_ns: now + 100_000_000,
            connections_max: 100,
        }
    }

    #[test]
    fn the_first_channel_has_its_share_of_the_joins() {
        let churn = churn("127.0.0.1:1".parse().unwrap());
        let mut joins = [0; 4];
        (0..4_000).for_each(|number| joins[churn.channel(number) as usize] += 1);
        assert_eq!(joins[0], 1_000);
        assert!(joins[1..].iter().all(|count| (900..=1_100).contains(count)), "{joins:?}");
    }

    #[test]
    fn joins_are_counted_by_their_greeting_and_a_refusal_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let churn = churn(listener.local_addr().unwrap());
        let server = std::thread::Builder::new().name("server".into()).spawn(move || {
            for number in 0..10 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 1_024];
                let read = stream.read(&mut head).unwrap();
                assert!(head[..read].starts_with(b"GET /v1/demo/channels/load-"));
                if number == 3 {
                    continue;
                }
                let answer = b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x81\x1b{\"type\":\"connection.ready\"}";
                // Its greeting comes in two parts.
                stream.write_all(&answer[..50]).unwrap();
                stream.write_all(&answer[50..]).unwrap();
                // Until it leaves.
                let _ = stream.read(&mut head);
            }
        });
        let found = churn.run().unwrap();
        server.unwrap().join().unwrap();
        assert_eq!((found.joined, found.failed, found.cut), (9, 1, 0));
        assert_eq!(found.latency.len(), 9);
    }

    #[test]
    fn without_a_node_every_join_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let churn = churn(listener.local_addr().unwrap());
        drop(listener);
        let found = churn.run().unwrap();
        assert_eq!((found.joined, found.failed), (0, 10));
    }
}
