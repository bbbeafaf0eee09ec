//! Outbound WebSocket frames (RFC 6455 §5.2): unmasked, never fragmented, built once and shared.

/// The opcodes a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// UTF-8 text.
    Text = 0x1,
    /// Bytes.
    Binary = 0x2,
    /// The end of a connection, with code and reason.
    Close = 0x8,
    /// Are you there?
    Ping = 0x9,
    /// I am.
    Pong = 0xA,
}

/// A whole Ping frame, the same for everybody.
pub const PING: [u8; 2] = [0x80 | Opcode::Ping as u8, 0];

/// The longest header of an unmasked frame, in bytes.
pub const HEADER_BYTES_MAX: usize = 10;

/// Appends the header of a whole frame with a payload of `payload_bytes`.
pub fn put_header(out: &mut Vec<u8>, opcode: Opcode, payload_bytes: usize) {
    out.push(0x80 | opcode as u8);
    match payload_bytes {
        0..=125 => out.push(payload_bytes as u8),
        126..=0xFFFF => {
            out.push(126);
            out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
}

/// Appends a whole frame.
pub fn put_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    out.reserve(HEADER_BYTES_MAX + payload.len());
    put_header(out, opcode, payload.len());
    out.extend_from_slice(payload);
}

/// A text frame of its own.
#[must_use]
pub fn text(payload: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES_MAX + payload.len());
    put_frame(&mut out, Opcode::Text, payload.as_bytes());
    out
}

/// A Close frame; a reason beyond the 123 bytes that a control frame has room for is cut at a character.
#[must_use]
pub fn close(code: u16, reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(123);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    let mut out = Vec::with_capacity(2 + payload.len());
    put_frame(&mut out, Opcode::Close, &payload);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_at_the_edges_of_their_three_forms() {
        for (bytes, header) in [
            (0, vec![0x81, 0]),
            (125, vec![0x81, 125]),
            (126, vec![0x81, 126, 0, 126]),
            (65_535, vec![0x81, 126, 0xFF, 0xFF]),
            (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Vec::new();
            put_header(&mut out, Opcode::Text, bytes);
            assert_eq!(out, header, "{bytes}");
        }
    }

    #[test]
    fn close_reasons_are_cut_at_a_character() {
        let frame = close(1012, &"é".repeat(100));
        assert_eq!(frame[..4], [0x88, 124, 0x03, 0xF4]);
        assert!(std::str::from_utf8(&frame[4..]).is_ok());
        assert_eq!(close(1000, ""), [0x88, 2, 0x03, 0xE8]);
    }
}
