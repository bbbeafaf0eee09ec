//! Peers that speak no protocol, or half of it: what they say is made of pieces of good frames, of noise, and of nothing.
//! Nobody checks what they get but that it is well formed; the checks of everybody else are what they try.

use crate::plan::APP;
use crate::stream::client_frame;
use crate::world::World;

/// How many there are at once.
const PEERS_MAX: usize = 4;

const PIECES: [&str; 12] = [
    r#"{"type":"ping","id":1}"#,
    r#"{"type":"subscribe","channel":"race"}"#,
    r#"{"type":"subscribe","channel":"lobby","epoch":"1","since":18446744073709551615}"#,
    r#"{"type":"unsubscribe","channel":"race"}"#,
    r#"{"type":"message","channel":"race","text":"who am I"}"#,
    r#"{"type":"history","channel":"race","limit":100}"#,
    r#"{"type":"auth","token":"a.b.c"}"#,
    r#"{"type":"status","state":"away"}"#,
    r#"{"type":"event","channel":"race","name":"message.new"}"#,
    "{",
    "",
    "\u{0}\u{7f}",
];

impl World<'_> {
    /// Some come, and all who are there say something.
    pub(crate) fn hostile(&mut self) {
        if self.plan.hostile == 0 || self.calm {
            return;
        }
        if self.hostile.len() < PEERS_MAX && self.random.below(1_000) < self.plan.hostile {
            let channel = self.channel();
            let path = if self.random.chance(50) { format!("channels/{channel}/ws") } else { "ws".to_owned() };
            let head = format!(
                "GET /v1/{APP}/{path} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            let room = self.random.between(100, 6_000) as usize;
            let socket = self.network.open(room, head.into_bytes());
            let shard = self.random.below(self.shards() as u64) as usize;
            if self.arrive(shard, socket) {
                self.trace.say(|| format!("a hostile peer comes by socket {socket} at shard {shard}"));
                self.hostile.push(socket);
            }
        }
        for socket in std::mem::take(&mut self.hostile) {
            let reads = self.random.chance(70);
            let said = if self.random.chance(30) { self.junk() } else { Vec::new() };
            let gone = self.random.chance(3);
            let peer = self.network.get(socket);
            if reads {
                peer.read(usize::MAX / 2);
            }
            if gone || peer.is_read_to_the_end() {
                peer.reset = true;
                continue;
            }
            if !peer.fin {
                peer.up.extend(said);
            }
            self.hostile.push(socket);
        }
    }

    /// Everything that is left of them goes.
    pub(crate) fn dismiss_hostile(&mut self) {
        for socket in std::mem::take(&mut self.hostile) {
            self.network.get(socket).reset = true;
        }
    }

    fn junk(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        for _ in 0..self.random.between(1, 4) {
            let piece = self.random.pick(&PIECES).as_bytes();
            let mask = (self.random.next_u64() as u32).to_be_bytes();
            // Mostly text; now and then continuations, binary, controls and what is reserved.
            let opcode = self.random.pick(&[1, 1, 1, 1, 1, 1, 0, 2, 8, 9, 10, 3]);
            let mut frame = client_frame(opcode, piece, mask);
            match self.random.below(20) {
                0 => frame[0] &= 0x7F,
                1 => frame[1] &= 0x7F,
                2 => {
                    let at = self.random.below(frame.len() as u64) as usize;
                    frame[at] ^= 1 << self.random.below(8);
                }
                3 => frame.truncate(self.random.below(frame.len() as u64) as usize),
                _ => {}
            }
            said.extend(frame);
        }
        said
    }
}
