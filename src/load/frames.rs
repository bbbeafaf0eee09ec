//! The client's own reader of server frames (RFC 6455 §5), kept apart from the server's code so that no mistake is
//! made on both sides.
//!
//! Socket bytes in any split flow in, whole frames flow out as borrowed slices; what is always true is that bytes are
//! copied only when a frame was cut by the end of a read, and that anything the node has promised not to send (masked,
//! fragmented, reserved bits, a length longer than it needs to be) is an error, not a frame.

use std::fmt;

/// Longer frames are taken for an error of the sender: events are at most 16 KiB of data.
const PAYLOAD_BYTES_MAX: u64 = 4 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    /// UTF-8 text.
    Text,
    /// Bytes.
    Binary,
    /// The end, with code and reason.
    Close,
    /// To be answered.
    Ping,
    /// An answer.
    Pong,
}

/// What the server may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadFrame {
    /// Servers do not mask.
    Masked,
    /// Extension bits, of which none was agreed.
    Reserved,
    /// A part of a message.
    Fragmented,
    /// An opcode without a meaning.
    Opcode(u8),
    /// A control frame of more than 125 bytes.
    LongControl,
    /// A length written in a longer form than it needs.
    LooseLength,
    /// More than any event has.
    TooLong(u64),
}

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Masked => f.write_str("a masked frame"),
            Self::Reserved => f.write_str("a frame with reserved bits"),
            Self::Fragmented => f.write_str("a fragmented message"),
            Self::Opcode(opcode) => write!(f, "a frame of opcode {opcode:#x}"),
            Self::LongControl => f.write_str("a control frame of more than 125 bytes"),
            Self::LooseLength => f.write_str("a length in a longer form than it needs"),
            Self::TooLong(bytes) => write!(f, "a frame of {bytes} bytes"),
        }
    }
}

struct Header {
    opcode: Opcode,
    /// Where the payload begins and where it ends, from the first byte of the frame.
    begin: usize,
    end: usize,
}

/// Reads a header; `None` until all of it is there.
fn header(bytes: &[u8]) -> Result<Option<Header>, BadFrame> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(BadFrame::Reserved);
    }
    if second & 0x80 != 0 {
        return Err(BadFrame::Masked);
    }
    let opcode = match first & 0x0F {
        0x1 => Opcode::Text,
        0x2 => Opcode::Binary,
        0x8 => Opcode::Close,
        0x9 => Opcode::Ping,
        0xA => Opcode::Pong,
        0x0 => return Err(BadFrame::Fragmented),
        other => return Err(BadFrame::Opcode(other)),
    };
    if first & 0x80 == 0 {
        return Err(BadFrame::Fragmented);
    }
    let (begin, payload) = match second & 0x7F {
        126 => match rest.first_chunk::<2>() {
            None => return Ok(None),
            Some(length) => (4, u64::from(u16::from_be_bytes(*length))),
        },
        127 => match rest.first_chunk::<8>() {
            None => return Ok(None),
            Some(length) => (10, u64::from_be_bytes(*length)),
        },
        short => (2, u64::from(short)),
    };
    if (begin == 4 && payload < 126) || (begin == 10 && payload <= 0xFFFF) {
        return Err(BadFrame::LooseLength);
    }
    if matches!(opcode, Opcode::Close | Opcode::Ping | Opcode::Pong) && payload > 125 {
        return Err(BadFrame::LongControl);
    }
    if payload > PAYLOAD_BYTES_MAX {
        return Err(BadFrame::TooLong(payload));
    }
    Ok(Some(Header { opcode, begin, end: begin + payload as usize }))
}

/// Gives every whole frame of `pending` followed by `bytes` to `take`, and leaves the rest in `pending`.
///
/// # Errors
/// The first bad frame, or the first error of `take`; what came behind it is lost, so the connection must end.
pub(super) fn feed<E: From<BadFrame>>(
    pending: &mut Vec<u8>,
    mut bytes: &[u8],
    take: &mut impl FnMut(Opcode, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    while !pending.is_empty() {
        let Some(frame) = header(pending)? else {
            // A header is at most ten bytes: one at a time is simple and never reads beyond it.
            let Some((&byte, rest)) = bytes.split_first() else { return Ok(()) };
            pending.push(byte);
            bytes = rest;
            continue;
        };
        let lacking = frame.end - pending.len();
        let there = lacking.min(bytes.len());
        pending.extend_from_slice(&bytes[..there]);
        bytes = &bytes[there..];
        if there < lacking {
            return Ok(());
        }
        // Taken, not cleared: a viewer without a cut frame must hold no memory.
        let whole = std::mem::take(pending);
        take(frame.opcode, &whole[frame.begin..])?;
    }
    while let Some(frame) = header(bytes)? {
        if bytes.len() < frame.end {
            break;
        }
        take(frame.opcode, &bytes[frame.begin..frame.end])?;
        bytes = &bytes[frame.end..];
    }
    pending.extend_from_slice(bytes);
    Ok(())
}

/// A masked Pong, the only frame a viewer sends. `payload` is cut at the 125 bytes a control frame has.
pub(super) fn put_pong(out: &mut Vec<u8>, payload: &[u8], mask: [u8; 4]) {
    let payload = &payload[..payload.len().min(125)];
    out.extend_from_slice(&[0x8A, 0x80 | payload.len() as u8]);
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
}

/// Appends a short text frame of a client. Its mask is zero: what masks protect from, a proxy that takes frames for
/// requests, does not stand between a load generator and its target.
pub(super) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    let text = &text[..text.len().min(125)];
    out.extend_from_slice(&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0]);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0x80 | opcode];
        match payload.len() {
            n @ 0..=125 => out.push(n as u8),
            n @ 126..=0xFFFF => {
                out.push(126);
                out.extend_from_slice(&(n as u16).to_be_bytes());
            }
            n => {
                out.push(127);
                out.extend_from_slice(&(n as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(payload);
        out
    }

    fn read(parts: &[&[u8]]) -> Result<Vec<(Opcode, Vec<u8>)>, BadFrame> {
        let (mut pending, mut frames) = (Vec::new(), Vec::new());
        for part in parts {
            feed(&mut pending, part, &mut |opcode, payload: &[u8]| {
                frames.push((opcode, payload.to_vec()));
                Ok::<_, BadFrame>(())
            })?;
        }
        assert!(pending.is_empty(), "nothing is left of whole frames");
        Ok(frames)
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_frames() {
        let stream = [
            frame(1, b"first"),
            frame(9, b"are you there"),
            frame(1, &[b'a'; 126]),
            frame(1, b""),
            frame(0xA, b""),
            frame(2, &[b'b'; 300]),
            frame(8, &[0x03, 0xE8]),
        ]
        .concat();
        let whole = read(&[&stream]).unwrap();
        assert_eq!(whole.len(), 7);
        assert_eq!(whole[1], (Opcode::Ping, b"are you there".to_vec()));
        for cut in 0..=stream.len() {
            assert_eq!(read(&[&stream[..cut], &stream[cut..]]).unwrap(), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read(&single).unwrap(), whole);
        let threes: Vec<&[u8]> = stream.chunks(3).collect();
        assert_eq!(read(&threes).unwrap(), whole);
    }

    #[test]
    fn lengths_at_the_edges_of_their_three_forms() {
        for bytes in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000] {
            let payload = vec![b'x'; bytes];
            let stream = [frame(1, &payload), frame(9, b"p")].concat();
            for cut in [1, 2, 3, 4, 9, 10, 11, bytes / 2, bytes] {
                let cut = cut.min(stream.len());
                let frames = read(&[&stream[..cut], &stream[cut..]]).unwrap();
                assert_eq!(frames[0].1.len(), bytes);
                assert_eq!(frames[1], (Opcode::Ping, b"p".to_vec()));
            }
        }
    }

    #[test]
    fn what_a_server_may_not_send_is_an_error() {
        assert_eq!(read(&[&[0x81, 0x81, 0, 0, 0, 0, 0]]), Err(BadFrame::Masked));
        assert_eq!(read(&[&[0xC1, 0x01, 0]]), Err(BadFrame::Reserved));
        assert_eq!(read(&[&[0x01, 0x01, 0]]), Err(BadFrame::Fragmented));
        assert_eq!(read(&[&[0x80, 0x01, 0]]), Err(BadFrame::Fragmented));
        assert_eq!(read(&[&[0x83, 0x00]]), Err(BadFrame::Opcode(3)));
        assert_eq!(read(&[&[0x89, 126, 0, 126]]), Err(BadFrame::LongControl));
        assert_eq!(read(&[&[0x81, 126, 0, 125]]), Err(BadFrame::LooseLength));
        assert_eq!(read(&[&[0x81, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]]), Err(BadFrame::LooseLength));
        assert_eq!(read(&[&[0x81, 127, 0, 0, 1, 0, 0, 0, 0, 0]]), Err(BadFrame::TooLong(1 << 40)));
    }

    #[test]
    fn a_pong_is_masked_and_says_what_the_ping_said() {
        let mut out = Vec::new();
        put_pong(&mut out, b"hello", [1, 2, 3, 4]);
        assert_eq!(out[..6], [0x8A, 0x85, 1, 2, 3, 4]);
        let plain: Vec<u8> = out[6..].iter().zip([1, 2, 3, 4].iter().cycle()).map(|(b, k)| b ^ k).collect();
        assert_eq!(plain, b"hello");
    }
}
