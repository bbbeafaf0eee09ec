//! Connections over loopback, both ends here, and the clocks that tell one end's CPU from the other's.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::reading::{Reader, Reading};

/// A frame of 128 bytes of text with what is around it.
pub(crate) const FRAME_BYTES: usize = 256;
/// What a viewer says.
pub(crate) const MESSAGE_BYTES: usize = 64;

/// What the client is asked for.
pub(crate) enum Ask {
    /// Read until so many bytes have come, on all sockets together.
    Take(usize),
    /// Send a message on every socket.
    Say,
}

/// Both ends of the connections; the client's are with a thread of their own.
pub(crate) struct Pairs {
    pub(crate) server: Vec<TcpStream>,
    asks: Sender<Ask>,
    done: Receiver<()>,
    client_clock: libc::clockid_t,
}

impl Pairs {
    pub(crate) fn open(count: usize) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let (mut server, mut client) = (Vec::new(), Vec::new());
        for _ in 0..count {
            client.push(TcpStream::connect(addr)?);
            server.push(listener.accept()?.0);
        }
        for socket in server.iter().chain(&client) {
            socket.set_nodelay(true)?;
        }
        let (asks, inbox) = channel();
        let (outbox, done) = channel();
        let (clocks, clock) = channel();
        std::thread::Builder::new().name("client".into()).spawn(move || {
            let _ = clocks.send(own_clock());
            while let Ok(ask) = inbox.recv() {
                answer(&ask, &client).expect("the client's end works");
                if outbox.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { server, asks, done, client_clock: clock.recv().map_err(io::Error::other)? })
    }

    pub(crate) fn descriptors(&self) -> Vec<i32> {
        self.server.iter().map(AsRawFd::as_raw_fd).collect()
    }

    pub(crate) fn ask(&self, ask: Ask) {
        self.asks.send(ask).expect("the client lives as long as its pairs");
    }

    pub(crate) fn await_client(&self) {
        self.done.recv().expect("the client lives as long as its pairs");
    }

    /// CPU of the process without its client, in ns.
    fn cpu_ns(&self) -> f64 {
        clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - clock_ns(self.client_clock)
    }

    /// CPU of a send of one walk, in ns.
    pub(crate) fn count_send(&self, walk: impl FnOnce() -> io::Result<()>) -> io::Result<f64> {
        let before = self.cpu_ns();
        walk()?;
        self.ask(Ask::Take(self.server.len() * FRAME_BYTES));
        self.await_client();
        Ok((self.cpu_ns() - before) / self.server.len() as f64)
    }

    /// CPU of a read, in ns, when everybody has spoken once before.
    pub(crate) fn count_read(&self, way: Reading) -> io::Result<f64> {
        let mut reader = Reader::new(way, &self.server)?;
        let bytes = self.server.len() * MESSAGE_BYTES;
        let mut before = 0.0;
        for _ in 0..2 {
            before = self.cpu_ns();
            self.ask(Ask::Say);
            reader.read_all(bytes)?;
            self.await_client();
        }
        Ok((self.cpu_ns() - before) / self.server.len() as f64)
    }
}

fn answer(ask: &Ask, client: &[TcpStream]) -> io::Result<()> {
    match ask {
        Ask::Say => client.iter().try_for_each(|mut socket| socket.write_all(&[b'y'; MESSAGE_BYTES])),
        Ask::Take(bytes) => {
            let each = bytes / client.len();
            let mut frame = vec![0; each];
            client.iter().try_for_each(|mut socket| socket.read_exact(&mut frame))
        }
    }
}

fn own_clock() -> libc::clockid_t {
    let mut clock = 0;
    // SAFETY: a thread may always ask for its own clock; the pointer is that of a local.
    unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    clock
}

fn clock_ns(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a local.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
