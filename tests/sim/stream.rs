//! What a viewer reads, parsed by a second hand: one HTTP answer, then whole frames, and nothing behind a Close. Shares
//! no code with the node, so that an error is not made twice.

use serde_json::Value;

/// One thing that the node said.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    /// The answer to the upgrade.
    Answer {
        status: u16,
        text: String,
    },
    /// A text frame.
    Text(Value),
    /// A binary frame.
    Binary(Vec<u8>),
    Ping,
    Pong,
    Close(u16),
}

/// The parser of one connection.
#[derive(Default)]
pub(crate) struct Stream {
    buffer: Vec<u8>,
    answered: bool,
    over: bool,
}

impl Stream {
    /// Takes bytes as the kernel takes them; calls `on` with the length in bytes of each whole thing and the thing.
    pub(crate) fn take(&mut self, bytes: &[u8], mut on: impl FnMut(usize, Said)) {
        self.buffer.extend_from_slice(bytes);
        while let Some((length, said)) = self.next() {
            assert!(!self.over, "rule 1: {said:?} stands behind the end of the connection");
            self.over = match &said {
                Said::Close(..) => true,
                Said::Answer { status, .. } => *status != 101,
                _ => false,
            };
            self.buffer.drain(..length);
            on(length, said);
        }
    }

    /// Bytes of a thing that is not whole yet.
    pub(crate) fn open_bytes(&self) -> usize {
        self.buffer.len()
    }

    fn next(&mut self) -> Option<(usize, Said)> {
        if self.answered { self.frame() } else { self.answer() }
    }

    fn answer(&mut self) -> Option<(usize, Said)> {
        let end = self.buffer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = std::str::from_utf8(&self.buffer[..end]).expect("a head is text");
        let status: u16 = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let mut length = end;
        for line in head.split("\r\n") {
            if let Some(bytes) = line.strip_prefix("content-length: ") {
                length += bytes.parse::<usize>().expect("a length");
            }
        }
        if self.buffer.len() < length {
            return None;
        }
        let text = String::from_utf8(self.buffer[..length].to_vec()).expect("text");
        self.answered = true;
        Some((length, Said::Answer { status, text }))
    }

    fn frame(&self) -> Option<(usize, Said)> {
        let bytes = &self.buffer;
        let (&first, &second) = (bytes.first()?, bytes.get(1)?);
        assert_eq!(first & 0xF0, 0x80, "rules 1 and 2: byte {first:02x} begins no frame: the stream is broken");
        assert_eq!(second & 0x80, 0, "rules 1 and 2: a server's frame is not masked: the stream is broken");
        let (at, length) = match second {
            126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
            127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().expect("eight bytes")) as usize),
            length => (2, usize::from(length)),
        };
        let payload = bytes.get(at..at + length)?;
        let said = match first & 0x0F {
            1 => Said::Text(serde_json::from_slice(payload).expect("rules 1 and 2: a text frame is whole JSON")),
            2 => Said::Binary(payload.to_vec()),
            // The answer to a Close that named no code.
            8 if payload.is_empty() => Said::Close(1005),
            8 => {
                assert!(std::str::from_utf8(&payload[2..]).is_ok(), "a reason is text");
                Said::Close(u16::from_be_bytes([payload[0], payload[1]]))
            }
            9 => Said::Ping,
            10 => Said::Pong,
            other => panic!("rules 1 and 2: opcode {other}: the stream is broken"),
        };
        Some((at + length, said))
    }
}

/// A client's frame: masked.
pub(crate) fn client_frame(opcode: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut out = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..=125 => out.push(0x80 | length as u8),
        length => {
            out.push(0xFE);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    out
}
