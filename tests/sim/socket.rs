//! Sockets without a kernel: bounded buffers, short sends, resets and ends, as the ring would tell them.
//!
//! A send ends where it is made (rule 1): whole, short or gone. Room is told only after it was asked for and at least
//! half of the buffer is free again (rule 11).

use std::collections::VecDeque;

use crate::stream::{Said, Stream};

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Whole,
    Short(usize),
    Gone,
}

/// Both ends of one connection.
pub(crate) struct Socket {
    /// From the viewer, not yet read by the node.
    pub(crate) up: VecDeque<u8>,
    /// The viewer has closed its side.
    pub(crate) fin: bool,
    /// The viewer has reset the connection.
    pub(crate) reset: bool,
    /// The node has closed its side, or all of it.
    pub(crate) node_fin: bool,
    /// What the node may have on its way, in bytes.
    room: usize,
    accepted: usize,
    read: usize,
    stream: Stream,
    /// Whole things with the number of the byte behind them.
    said: VecDeque<(usize, Said)>,
    /// The node asked to be told of room.
    pub(crate) wants_room: bool,
    pub(crate) paused: bool,
    /// The end of the viewer's side was told to the node.
    pub(crate) told_end: bool,
    /// The node has it taken down; turns of the ring until that is told.
    pub(crate) ending: Option<u32>,
}

/// All sockets there ever were.
#[derive(Default)]
pub(crate) struct Network {
    sockets: Vec<Socket>,
    /// Frames of ordered and of mergeable events that kernels took whole.
    pub(crate) ordered: u64,
    pub(crate) mergeable: u64,
}

impl Socket {
    pub(crate) fn is_writable(&self) -> bool {
        (self.accepted - self.read) * 2 <= self.room
    }

    /// What the viewer has read completely, after it read `most` bytes more.
    pub(crate) fn read(&mut self, most: usize) -> Vec<Said> {
        self.read = self.accepted.min(self.read + most);
        let mut said = Vec::new();
        while self.said.front().is_some_and(|(end, _)| *end <= self.read) {
            said.extend(self.said.pop_front().map(|(_, said)| said));
        }
        said
    }

    /// The viewer has read everything, and the node's end.
    pub(crate) fn is_read_to_the_end(&self) -> bool {
        self.node_fin && self.read == self.accepted
    }

    /// The bytes that the node has sent end with a whole frame.
    pub(crate) fn is_whole(&self) -> bool {
        self.stream.open_bytes() == 0
    }
}

impl Network {
    pub(crate) fn open(&mut self, room: usize, first: Vec<u8>) -> usize {
        self.sockets.push(Socket {
            up: first.into(),
            fin: false,
            reset: false,
            node_fin: false,
            room,
            accepted: 0,
            read: 0,
            stream: Stream::default(),
            said: VecDeque::new(),
            wants_room: false,
            paused: false,
            told_end: false,
            ending: None,
        });
        self.sockets.len() - 1
    }

    pub(crate) fn get(&mut self, no: usize) -> &mut Socket {
        &mut self.sockets[no]
    }

    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Socket> {
        self.sockets.iter_mut()
    }

    /// From now on everybody's buffer is large: what is left shall be over soon.
    pub(crate) fn widen(&mut self) {
        for socket in &mut self.sockets {
            socket.room = 64 * 1024;
        }
    }

    /// A send without waiting.
    pub(crate) fn send(&mut self, no: usize, bytes: &[u8]) -> Sent {
        let socket = &mut self.sockets[no];
        assert!(!socket.node_fin, "rule 9: a send after the node's own end");
        if socket.reset {
            return Sent::Gone;
        }
        let free = (socket.room + 64).saturating_sub(socket.accepted - socket.read);
        let taken = if socket.accepted - socket.read >= socket.room { 0 } else { free.min(bytes.len()) };
        self.accept(no, &bytes[..taken]);
        if taken == bytes.len() { Sent::Whole } else { Sent::Short(taken) }
    }

    /// The last answer of a door: there is always room for it.
    pub(crate) fn send_last(&mut self, no: usize, bytes: &[u8]) {
        if !self.sockets[no].reset {
            self.accept(no, bytes);
        }
        self.sockets[no].node_fin = true;
    }

    fn accept(&mut self, no: usize, bytes: &[u8]) {
        let socket = &mut self.sockets[no];
        let mut end = socket.accepted - socket.stream.open_bytes();
        socket.accepted += bytes.len();
        let (said, stream) = (&mut socket.said, &mut socket.stream);
        let (mut ordered, mut mergeable) = (0, 0);
        stream.take(bytes, |length, thing| {
            match class_of(&thing) {
                1 => ordered += 1,
                2 => mergeable += 1,
                _ => {}
            }
            end += length;
            said.push_back((end, thing));
        });
        self.ordered += ordered;
        self.mergeable += mergeable;
    }
}

/// The class of an event by its name, written down a second time: 1 ordered, 2 mergeable, 0 all else.
fn class_of(said: &Said) -> u8 {
    let kind = match said {
        Said::Text(json) => json["type"].as_str().unwrap_or_default().to_owned(),
        Said::Binary(archive) => crate::viewer::unpack(archive)["type"].as_str().unwrap_or_default().to_owned(),
        _ => return 0,
    };
    match kind.as_str() {
        "message.new" | "typing.start" | "typing.stop" => 1,
        kind if kind.starts_with("custom.") => 1,
        "channel.updated" | "viewers.updated" | "user.updated" | "presence.changed" | "member.joined"
        | "member.left" => 2,
        _ => 0,
    }
}
