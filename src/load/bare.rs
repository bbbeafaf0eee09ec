//! The floor: a bare sender in the place of the node, which does nothing but send.
//!
//! Viewers and posts flow in, each post flows out to all viewers of its channel at once, by a loop of send(2) or by
//! batches of an io_uring; what is always true is that it speaks just enough for the same fleet to join and audit it,
//! stores nothing, queues nothing, and knows no slow viewer: what it costs is what the kernel takes for a delivery.

use clap::ValueEnum;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

use super::kernel::{self, Epoll, READABLE};
use crate::io::ring::{RingOptions, SocketId, SocketRing};
use crate::io::{descriptors, machine};

/// The key of the listener in the epoll set.
const LISTENER: u64 = u64::MAX;
/// The longest request.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Viewers at the most.
const VIEWERS_MAX: u32 = 100_000;

/// How a bare sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
pub(super) enum Sender {
    /// One send(2) a viewer.
    Plain,
    /// Batches of 64 in an io_uring with fixed files.
    Ring,
}

impl Sender {
    /// As the command line says it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ring => "ring",
        }
    }
}

/// What came on a connection.
enum Asked {
    Join { channel: String, key: String },
    Post { channel: String, events: bool, body: Vec<u8> },
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
}

#[derive(Default)]
struct Channel {
    viewers: Vec<u32>,
    seq: u64,
    /// Frames that wait for the rest of their burst.
    waiting: Vec<u8>,
    frames: u32,
}

struct Bare {
    epoll: Epoll,
    listener: TcpListener,
    /// By descriptor, so that a key finds its connection.
    connections: BTreeMap<u64, Connection>,
    channels: BTreeMap<String, Channel>,
    /// With [`Sender::Ring`] the sockets of viewers lie in here, else they stay in `connections`.
    ring: Option<SocketRing>,
    viewers: u32,
    /// Frames that go out together.
    burst: u32,
}

/// Serves until it is killed: `ringcast load --bare`.
pub(super) fn serve(sender: Sender, listen: SocketAddr, burst: u32) -> ExitCode {
    machine::raise_nofile();
    // Where a node with its defaults has its first shard.
    if let Some(&cpu) = machine::cpus().get(1).or(machine::cpus().first()) {
        machine::pin_to(cpu);
    }
    match Bare::new(sender, listen, burst).and_then(|mut bare| bare.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringcast load bare: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Bare {
    fn new(sender: Sender, listen: SocketAddr, burst: u32) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        epoll.add(listener.as_fd(), LISTENER, READABLE)?;
        let ring = match sender {
            Sender::Plain => None,
            Sender::Ring => {
                let eventfd = descriptors::eventfd()?;
                let options = RingOptions { sockets_max: VIEWERS_MAX, ..RingOptions::default() };
                let made = SocketRing::new(options, eventfd.as_raw_fd())?;
                Some(made)
            }
        };
        let (connections, channels) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { epoll, listener, connections, channels, ring, viewers: 0, burst: burst.max(1) })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            let ready = self.epoll.wait(-1)?;
            for number in 0..ready {
                match self.epoll.event(number).0 {
                    LISTENER => self.accept()?,
                    key => self.read(key)?,
                }
            }
            let due: Vec<String> =
                self.channels.iter().filter(|(_, c)| c.frames >= self.burst).map(|(name, _)| name.clone()).collect();
            for name in due {
                self.send(&name)?;
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let key = stream.as_raw_fd() as u64;
            self.epoll.add(stream.as_fd(), key, READABLE)?;
            self.connections.insert(key, Connection { stream, input: Vec::new() });
        }
    }

    /// Reads a connection dry and answers what came.
    fn read(&mut self, key: u64) -> io::Result<()> {
        let mut part = [0; 8_192];
        while let Some(connection) = self.connections.get_mut(&key) {
            match connection.stream.read(&mut part) {
                Ok(0) => {
                    self.connections.remove(&key);
                }
                Ok(bytes) => connection.input.extend_from_slice(&part[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => {
                    self.connections.remove(&key);
                }
            }
            while let Some(connection) = self.connections.get_mut(&key) {
                match request(&mut connection.input)? {
                    Some(Asked::Join { channel, key: accept }) => self.join(key, channel, &accept)?,
                    Some(Asked::Post { channel, events, body }) => self.post(key, &channel, events, &body)?,
                    None => break,
                }
            }
        }
        Ok(())
    }

    fn join(&mut self, key: u64, channel: String, websocket_key: &str) -> io::Result<()> {
        let accept = tungstenite::handshake::derive_accept_key(websocket_key.as_bytes());
        let ready = format!(
            r#"{{"type":"connection.ready","conn":"{key}","room":"{channel}/0/0","epoch":"e","seq":0,"viewers":1}}"#
        );
        let mut answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .into_bytes();
        put_frame(&mut answer, ready.as_bytes());
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        connection.stream.write_all(&answer)?;
        let viewer = match &mut self.ring {
            None => key as u32,
            Some(ring) => {
                let Some(connection) = self.connections.remove(&key) else { return Ok(()) };
                self.epoll.remove(connection.stream.as_fd())?;
                ring.install(SocketId { slot: self.viewers, generation: 1 }, connection.stream.into())?;
                self.viewers
            }
        };
        self.viewers += 1;
        self.channels.entry(channel).or_default().viewers.push(viewer);
        Ok(())
    }

    fn post(&mut self, key: u64, name: &str, events: bool, body: &[u8]) -> io::Result<()> {
        let body = std::str::from_utf8(body).map_err(io::Error::other)?;
        let channel = self.channels.entry(name.to_owned()).or_default();
        channel.seq += 1;
        let seq = channel.seq;
        // The frames of the node, so that the bytes on the wire are as many.
        let frame = if events {
            let data = body.split_once(r#""data":"#).map_or("", |(_, data)| data);
            format!(r#"{{"type":"custom.load","channel":"{name}","ts":1796050000123,"data":{data}"#)
        } else {
            let text = body.split_once(r#""text":"#).map_or("", |(_, text)| text);
            format!(
                r#"{{"type":"message.new","channel":"{name}","seq":{seq},"id":"01KB8Z7Q0V6K3S1B7M6D2X9F4T","ts":1796050000123,"user":{{"id":"load"}},"text":{text}"#
            )
        };
        put_frame(&mut channel.waiting, frame.as_bytes());
        channel.frames += 1;
        let (status, answer) = if events {
            ("202 Accepted", "{}".to_owned())
        } else {
            ("201 Created", format!(r#"{{"id":"x","seq":{seq},"epoch":"e"}}"#))
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        match self.connections.get_mut(&key) {
            Some(connection) => connection.stream.write_all(head.as_bytes()),
            None => Ok(()),
        }
    }

    fn send(&mut self, name: &str) -> io::Result<()> {
        let Some(channel) = self.channels.get_mut(name) else { return Ok(()) };
        let slice = std::mem::take(&mut channel.waiting);
        channel.frames = 0;
        let fault = |what: &str| io::Error::other(format!("a viewer took less than it was given: {what}"));
        match &mut self.ring {
            None => {
                for viewer in &channel.viewers {
                    let Some(connection) = self.connections.get_mut(&u64::from(*viewer)) else { continue };
                    if kernel::send(connection.stream.as_fd(), &slice)? != slice.len() {
                        return Err(fault("a short send"));
                    }
                }
            }
            Some(ring) => {
                let mut short = Vec::new();
                let id = |slot: &u32| SocketId { slot: *slot, generation: 1 };
                ring.send_all(channel.viewers.iter().map(|slot| (id(slot), &slice[..])), &mut short)?;
                if let Some((_, outcome)) = short.first() {
                    return Err(fault(&format!("{outcome:?}")));
                }
            }
        }
        Ok(())
    }
}

/// Takes the request at the front of `input`; `None` until it is whole.
fn request(input: &mut Vec<u8>) -> io::Result<Option<Asked>> {
    let refused = |what: &str| io::Error::new(ErrorKind::InvalidData, what.to_owned());
    let Some(end) = memchr::memmem::find(input, b"\r\n\r\n") else {
        return if input.len() > REQUEST_BYTES_MAX { Err(refused("a request without an end")) } else { Ok(None) };
    };
    let head = String::from_utf8_lossy(&input[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let (mut length, mut key) = (0, String::new());
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_| refused("a length that is no number"))?;
        } else if name.eq_ignore_ascii_case("sec-websocket-key") {
            value.trim().clone_into(&mut key);
        }
    }
    if length > REQUEST_BYTES_MAX {
        return Err(refused("a request that is too long"));
    }
    if input.len() < end + 4 + length {
        return Ok(None);
    }
    let rest = input.split_off(end + 4 + length);
    let body = std::mem::replace(input, rest).split_off(end + 4);
    let mut parts = path.split('/').skip(4).map(str::to_owned);
    match (parts.next(), parts.next().as_deref()) {
        (Some(channel), Some("ws")) => Ok(Some(Asked::Join { channel, key })),
        (Some(channel), Some(call)) => Ok(Some(Asked::Post { channel, events: call == "events", body })),
        _ => Err(refused("a request that a bare sender does not know")),
    }
}

/// Appends a text frame of the server (RFC 6455, section 5.2).
fn put_frame(out: &mut Vec<u8>, text: &[u8]) {
    out.push(0x81);
    match text.len() {
        length @ 0..126 => out.push(length as u8),
        length @ 126..65_536 => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(text);
}

/// Where a bare sender of this run may listen, and how it is started.
pub(super) fn arguments(sender: Sender, listen: &str, burst: u32) -> Vec<String> {
    let words = ["load", "--bare", sender.word(), "--bare-listen", listen, "--bare-burst"];
    words.into_iter().map(str::to_owned).chain([burst.to_string()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_whole_and_one_after_the_other() {
        let join = "GET /v1/demo/channels/load-0/ws HTTP/1.1\r\nSec-WebSocket-Key: k\r\n\r\n";
        let post = "POST /v1/demo/channels/load-1/messages HTTP/1.1\r\nContent-Length: 12\r\n\r\n{\"text\":\"x\"}";
        let both = format!("{join}{post}").into_bytes();
        for cut in 0..join.len() {
            let mut input = both[..cut].to_vec();
            assert!(request(&mut input).unwrap().is_none(), "cut at {cut}");
        }
        let mut input = both;
        let Some(Asked::Join { channel, key }) = request(&mut input).unwrap() else { panic!("a join") };
        assert_eq!((channel.as_str(), key.as_str()), ("load-0", "k"));
        let Some(Asked::Post { channel, events, body }) = request(&mut input).unwrap() else { panic!("a post") };
        assert_eq!((channel.as_str(), events, &body[..]), ("load-1", false, &b"{\"text\":\"x\"}"[..]));
        assert!(input.is_empty());
        assert!(request(&mut b"GET / HTTP/1.1\r\n\r\n".to_vec()).is_err());
    }
}
