//! Where messages of a client begin and end, before anybody reads them.
//!
//! Bytes as they came flow in, in pieces of any size; how many of them may be read, and what forbids more, flow out. Always
//! true: it holds no payload, and what a frame's first two bytes forbid is refused at once.

use super::close::Closing;
use super::socket::SocketLimits;

/// Reads frame headers as they pass.
#[derive(Debug, Default)]
pub(super) struct Boundary {
    header: [u8; 14],
    header_bytes: u8,
    payload_left: u64,
    message_bytes: u64,
    fragments: u32,
    in_fragments: bool,
    /// The frame whose payload passes now is a Close: nothing after it counts.
    closing: bool,
}

impl Boundary {
    /// No header, payload or fragment is unfinished.
    pub(super) fn at_rest(&self) -> bool {
        self.header_bytes == 0 && self.payload_left == 0 && !self.in_fragments
    }

    /// Walks over `bytes`; says how many of them may be read, and why not more.
    pub(super) fn walk(&mut self, bytes: &[u8], limits: &SocketLimits) -> (usize, Option<Closing>) {
        let mut at = 0;
        loop {
            if self.payload_left > 0 {
                let step = self.payload_left.min((bytes.len() - at) as u64);
                at += step as usize;
                self.payload_left -= step;
                if self.payload_left > 0 {
                    return (at, None);
                }
            }
            if self.closing || at == bytes.len() {
                return (at, None);
            }
            let frame_at = at;
            while usize::from(self.header_bytes) < self.header_need() {
                let Some(&byte) = bytes.get(at) else { return (at, None) };
                self.header[usize::from(self.header_bytes)] = byte;
                self.header_bytes += 1;
                at += 1;
                // What the first two bytes forbid is refused at once, however little came.
                if self.header_bytes == 2
                    && let Err(closing) = self.check_start()
                {
                    return (frame_at, Some(closing));
                }
            }
            match self.check_header(limits) {
                Ok(payload) => self.payload_left = payload,
                Err(closing) => return (frame_at, Some(closing)),
            }
            self.header_bytes = 0;
        }
    }

    fn header_need(&self) -> usize {
        if self.header_bytes < 2 {
            return 2;
        }
        match self.header[1] & 0x7F {
            126 => 8,
            127 => 14,
            _ => 6,
        }
    }

    fn check_start(&mut self) -> Result<(), Closing> {
        let [first, second, ..] = self.header;
        let (fin, opcode, length) = (first & 0x80 != 0, first & 0x0F, second & 0x7F);
        if first & 0x70 != 0 {
            return Err(Closing::Protocol("a reserved bit is set and no extension was agreed"));
        }
        if second & 0x80 == 0 {
            return Err(Closing::Protocol("a client's frame is not masked"));
        }
        match opcode {
            0x8..=0xA if !fin => Err(Closing::Protocol("a control frame is fragmented")),
            0x8..=0xA if length > 125 => Err(Closing::Protocol("a control frame is longer than 125 bytes")),
            0x0 if !self.in_fragments => Err(Closing::Protocol("a continuation without a beginning")),
            0x1 | 0x2 if self.in_fragments => Err(Closing::Protocol("a new message inside a fragmented one")),
            0x0..=0x2 | 0x8..=0xA => Ok(()),
            _ => Err(Closing::Protocol("a reserved opcode")),
        }
    }

    fn check_header(&mut self, limits: &SocketLimits) -> Result<u64, Closing> {
        let header = &self.header;
        let (fin, opcode) = (header[0] & 0x80 != 0, header[0] & 0x0F);
        let length = match header[1] & 0x7F {
            126 => u64::from(u16::from_be_bytes([header[2], header[3]])),
            127 => u64::from_be_bytes(std::array::from_fn(|i| header[2 + i])),
            short => u64::from(short),
        };
        let least = match header[1] & 0x7F {
            126 => 126,
            127 => 65_536,
            _ => 0,
        };
        if length >> 63 != 0 {
            return Err(Closing::Protocol("a length with its highest bit set"));
        }
        if length < least {
            return Err(Closing::Protocol("a length that is not written in its shortest form"));
        }
        if opcode >= 0x8 {
            self.closing = opcode == 0x8;
            return Ok(length);
        }
        if opcode != 0 {
            (self.message_bytes, self.fragments) = (0, 0);
        }
        self.message_bytes = self.message_bytes.saturating_add(length);
        self.fragments += 1;
        self.in_fragments = !fin;
        if self.message_bytes > u64::from(limits.message_bytes_max) {
            return Err(Closing::TooBig);
        }
        if self.fragments > limits.fragments_max {
            return Err(Closing::Policy("too many fragments"));
        }
        Ok(length)
    }
}
