//! What a WebSocket client sends: bytes flow in, whole messages, answers to pings and a verdict flow out.
//!
//! Two readers stand behind each other. A boundary walker reads only frame headers, refuses what RFC 6455 forbids before a
//! payload byte is stored, and knows when nothing is unfinished. The library's context unmasks, joins fragments,
//! checks text and answers pings and closes; it weighs kilobytes, so a client borrows one from the shard's pool only
//! while a message is unfinished. Always true: an idle client owns no context, and after an error or a close no
//! further frame is looked at.

use std::io::{self, Read, Write};

use tungstenite::error::{CapacityError, Error};
use tungstenite::protocol::{Message, Role, WebSocketConfig, WebSocketContext};

use super::boundary::Boundary;
use super::close::Closing;

/// The bounds of one client's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimits {
    /// The longest message, in bytes.
    pub message_bytes_max: u32,
    /// The most frames one message may come in; empty ones count (200,000 empty ones cost a server minutes elsewhere).
    pub fragments_max: u32,
    /// The most contexts a shard lends at once.
    pub contexts_max: u32,
}

impl Default for SocketLimits {
    fn default() -> Self {
        Self { message_bytes_max: 64 * 1024, fragments_max: 1_024, contexts_max: 4_096 }
    }
}

/// What a client said.
#[derive(Debug)]
pub enum Inbound<'a> {
    /// A text message.
    Text(&'a str),
    /// A binary message.
    Binary(&'a [u8]),
    /// A ping that was answered, or a pong: a sign of life.
    Alive,
}

/// What became of the bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Fed {
    /// All were taken; more may come.
    Open,
    /// The peer closed; the answering Close is in the output.
    PeerClosed,
    /// The connection must end with this.
    Failed(Closing),
}

/// The contexts of one shard.
#[derive(Debug)]
pub struct ContextPool {
    #[allow(clippy::vec_box, reason = "a context goes to its client and back by pointer, it is not copied")]
    free: Vec<Box<WebSocketContext>>,
    lent: u32,
    limits: SocketLimits,
}

/// How many free contexts are kept for the next message.
const FREE_MAX: usize = 32;

impl ContextPool {
    /// An empty pool.
    #[must_use]
    pub fn new(limits: SocketLimits) -> Self {
        Self { free: Vec::new(), lent: 0, limits }
    }

    /// A context for what has come. Only who keeps it, because its message goes on, is counted.
    fn fetch(&mut self) -> Box<WebSocketContext> {
        self.free.pop().unwrap_or_else(|| {
            let bytes = self.limits.message_bytes_max as usize;
            let config = WebSocketConfig::default()
                // The buffer is zeroed on every read: small is fast (127 ns a frame at 1 KiB, 717 at 128 KiB).
                .read_buffer_size(2_048)
                .write_buffer_size(0)
                .max_message_size(Some(bytes))
                .max_frame_size(Some(bytes));
            Box::new(WebSocketContext::new(Role::Server, Some(config)))
        })
    }

    fn put_back(&mut self, context: Box<WebSocketContext>) {
        if self.free.len() < FREE_MAX {
            self.free.push(context);
        }
    }

    /// Contexts lent, and how many may be.
    #[must_use]
    pub fn gauge(&self) -> crate::base::Gauge {
        crate::base::Gauge::new(u64::from(self.lent), u64::from(self.limits.contexts_max))
    }
}

/// The reading side of one client; one pointer while it is idle.
#[derive(Debug, Default)]
pub struct Codec {
    open: Option<Box<Open>>,
}

#[derive(Debug)]
struct Open {
    context: Box<WebSocketContext>,
    boundary: Boundary,
}

impl Codec {
    /// Reads `bytes`: calls `on` for each whole message, appends answers (pongs, the answering Close) to `output`. With
    /// a message comes how long `output` was when it was read, so that its own answer can stand in its place.
    ///
    /// After anything but [`Fed::Open`] the codec is spent: feed it nothing more.
    pub fn feed(
        &mut self,
        pool: &mut ContextPool,
        bytes: &[u8],
        output: &mut Vec<u8>,
        mut on: impl FnMut(Inbound<'_>, usize),
    ) -> Fed {
        if self.open.is_none() && is_pong(bytes) {
            on(Inbound::Alive, output.len());
            return Fed::Open;
        }
        let kept = self.open.take();
        pool.lent -= u32::from(kept.is_some());
        let mut open = kept.unwrap_or_else(|| Box::new(Open { context: pool.fetch(), boundary: Boundary::default() }));
        // What stands before a forbidden header is still good and is delivered first.
        let (good, verdict) = open.boundary.walk(bytes, &pool.limits);
        let mut feed = Feed { input: &bytes[..good], output };
        let fed = match read_all(&mut open.context, &mut feed, &mut on) {
            Fed::Open => verdict.map_or(Fed::Open, Fed::Failed),
            ended => ended,
        };
        match fed {
            Fed::Open if open.boundary.at_rest() => pool.put_back(open.context),
            // Whoever says something whole is served, however many others have not come to their end.
            Fed::Open if pool.gauge().is_full() => {
                return Fed::Failed(Closing::Overloaded("too many unfinished messages"));
            }
            Fed::Open => {
                pool.lent += 1;
                self.open = Some(open);
            }
            _ => {}
        }
        fed
    }

    /// The client is gone: gives back what it had borrowed.
    pub fn release(&mut self, pool: &mut ContextPool) {
        pool.lent -= u32::from(self.open.take().is_some());
    }

    /// A message is unfinished.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.open.is_some()
    }
}

/// One whole masked Pong and nothing else: all that an idle client says, once a minute, and there are many. Nothing of it is
/// kept or answered, so it needs no context.
fn is_pong(bytes: &[u8]) -> bool {
    let [0x8A, length, ..] = bytes else { return false };
    // Of a masked frame: the header, the mask, and at most 125 bytes.
    (0x80..=0x80 + 125).contains(length) && bytes.len() == 6 + usize::from(length & 0x7F)
}

fn read_all(context: &mut WebSocketContext, feed: &mut Feed<'_>, on: &mut impl FnMut(Inbound<'_>, usize)) -> Fed {
    let mut peer_closed = false;
    loop {
        // An automatic pong is put out by the *next* read, so the loop goes on until the input is dry.
        match context.read(feed) {
            Ok(Message::Text(text)) => on(Inbound::Text(text.as_str()), feed.output.len()),
            Ok(Message::Binary(bytes)) => on(Inbound::Binary(&bytes), feed.output.len()),
            Ok(Message::Ping(_) | Message::Pong(_)) => on(Inbound::Alive, feed.output.len()),
            Ok(Message::Close(_)) => peer_closed = true,
            Ok(Message::Frame(_)) => {}
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = context.flush(feed);
                return if peer_closed { Fed::PeerClosed } else { Fed::Open };
            }
            Err(Error::ConnectionClosed | Error::AlreadyClosed) => return Fed::PeerClosed,
            Err(Error::Utf8(_)) => return Fed::Failed(Closing::NotUtf8),
            Err(Error::Capacity(CapacityError::MessageTooLong { .. })) => return Fed::Failed(Closing::TooBig),
            Err(_) if peer_closed => return Fed::PeerClosed,
            Err(_) => return Fed::Failed(Closing::Protocol("protocol error")),
        }
    }
}

struct Feed<'a> {
    input: &'a [u8],
    output: &'a mut Vec<u8>,
}

impl Read for Feed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Zero would mean the end of the connection to the library.
        if self.input.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { self.input.read(buf) }
    }
}

impl Write for Feed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.output.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` in pieces of `step`; returns messages, output and the verdict.
    fn feed(bytes: &[u8], step: usize, limits: SocketLimits) -> (Vec<String>, Vec<u8>, Fed) {
        let mut pool = ContextPool::new(limits);
        let mut codec = Codec::default();
        let (mut messages, mut output) = (Vec::new(), Vec::new());
        let mut fed = Fed::Open;
        for piece in bytes.chunks(step) {
            fed = codec.feed(&mut pool, piece, &mut output, |inbound, _| match inbound {
                Inbound::Text(text) => messages.push(text.to_owned()),
                Inbound::Binary(bytes) => messages.push(format!("{} bytes", bytes.len())),
                Inbound::Alive => {}
            });
            if fed != Fed::Open {
                break;
            }
        }
        assert_eq!(pool.gauge().used, u64::from(codec.is_mid_message()), "an idle or spent codec owns no context");
        (messages, output, fed)
    }

    /// A masked client frame with the mask 00 00 00 00.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![first];
        match payload.len() {
            n @ 0..=125 => out.push(0x80 | n as u8),
            n @ 126..=65_535 => {
                out.push(0xFE);
                out.extend_from_slice(&(n as u16).to_be_bytes());
            }
            n => {
                out.push(0xFF);
                out.extend_from_slice(&(n as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(payload);
        out
    }

    /// The input fails alike whole, byte by byte, and behind a good message; what stood before it is delivered.
    fn fails(bytes: &[u8], code: u16) {
        let mut behind = frame(0x81, b"before");
        behind.extend_from_slice(bytes);
        for (input, before) in [(bytes, 0), (&behind[..], 1)] {
            for step in [1, 3, input.len()] {
                let (messages, _, fed) = feed(input, step, SocketLimits::default());
                let Fed::Failed(closing) = fed else { panic!("{fed:?} for {bytes:x?} step {step}") };
                assert_eq!(closing.advice().code, code, "{bytes:x?} step {step}");
                assert_eq!(messages.len(), before);
            }
        }
    }

    #[test]
    fn a_pong_borrows_no_context() {
        for (bytes, alive, borrowed) in [
            (frame(0x8A, b""), 1, 0),
            (frame(0x8A, &[7; 125]), 1, 0),
            ([frame(0x8A, b""), frame(0x8A, b"two")].concat(), 2, 1),
            (frame(0x89, b""), 1, 1),
            (frame(0x81, b"text"), 0, 1),
        ] {
            let (mut pool, mut output, mut heard) = (ContextPool::new(SocketLimits::default()), Vec::new(), 0);
            let mut count = |inbound: Inbound<'_>, _| heard += u32::from(matches!(inbound, Inbound::Alive));
            assert_eq!(Codec::default().feed(&mut pool, &bytes, &mut output, &mut count), Fed::Open);
            assert_eq!((heard, pool.free.len()), (alive, borrowed), "{bytes:x?}");
        }
        // Not masked, in parts, with a reserved bit, or too long: refused as everywhere.
        for bad in [vec![0x8A, 0], frame(0x0A, b""), frame(0xCA, b""), frame(0x8A, &[0; 126])] {
            fails(&bad, 1002);
        }
    }

    #[test]
    fn case_a1_a_close_with_one_byte_is_1002() {
        fails(&frame(0x88, &[3]), 1002);
    }

    #[test]
    fn case_a2_forbidden_close_codes_are_answered_with_1002() {
        for code in [0_u16, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
            for step in [1, 100] {
                let (_, output, fed) = feed(&frame(0x88, &code.to_be_bytes()), step, SocketLimits::default());
                match fed {
                    Fed::Failed(closing) => assert_eq!(closing.advice().code, 1002, "{code}"),
                    Fed::PeerClosed => assert_eq!(output[2..4], 1002_u16.to_be_bytes(), "{code}"),
                    Fed::Open => panic!("{code}"),
                }
            }
        }
        let (_, output, fed) = feed(&frame(0x88, &3000_u16.to_be_bytes()), 100, SocketLimits::default());
        assert_eq!((fed, &output[2..4]), (Fed::PeerClosed, &3000_u16.to_be_bytes()[..]));
    }

    #[test]
    fn case_a5_unmasked_text_is_1002() {
        fails(&[0x81, 0x05, b'H', b'e', b'l', b'l', b'o'], 1002);
    }

    #[test]
    fn case_a6_a_length_with_the_highest_bit_is_1002() {
        fails(&[0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1002);
    }

    #[test]
    fn case_a7_too_long_is_1009_at_the_header() {
        fails(&[0x82, 0xFF, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1009);
        fails(&[0x82, 0xFF, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0], 1009);
    }

    #[test]
    fn case_a9_a_ping_of_126_bytes_is_1002() {
        fails(&frame(0x89, &[b'a'; 126]), 1002);
    }

    #[test]
    fn case_a10_pings_are_answered_each_with_its_payload() {
        let ping = frame(0x89, &[b'a'; 125]);
        let (_, output, fed) = feed(&ping, ping.len(), SocketLimits::default());
        assert_eq!(fed, Fed::Open);
        assert_eq!(output, [&[0x8A, 125][..], &[b'a'; 125]].concat());
        let ten: Vec<u8> = (0..10).flat_map(|i| frame(0x89, &[b'0' + i])).collect();
        for step in [1, ten.len()] {
            let (_, output, _) = feed(&ten, step, SocketLimits::default());
            assert_eq!(output, (0..10).flat_map(|i| [0x8A, 1, b'0' + i]).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn case_a11_a_fragmented_ping_is_1002() {
        fails(&[0x09, 0x80, 0, 0, 0, 0], 1002);
    }

    #[test]
    fn case_a12_an_orphan_continuation_is_1002() {
        fails(&frame(0x80, b"Hello"), 1002);
        fails(&frame(0x80, b""), 1002);
    }

    #[test]
    fn case_a13_a_new_text_inside_a_fragmented_one_is_1002() {
        fails(&[frame(0x01, b"He"), frame(0x81, b"llo")].concat(), 1002);
    }

    #[test]
    fn case_a14_a_ping_between_fragments_is_answered_at_once() {
        let bytes = [frame(0x01, b"Hel"), frame(0x89, b"x"), frame(0x80, b"lo")].concat();
        for step in [1, bytes.len()] {
            let (messages, output, fed) = feed(&bytes, step, SocketLimits::default());
            assert_eq!((messages, output, fed), (vec!["Hello".to_owned()], vec![0x8A, 1, b'x'], Fed::Open));
        }
    }

    #[test]
    fn case_a15_reserved_bits_and_opcodes_are_1002() {
        for first in [0xC1, 0xA1, 0x91, 0xC9, 0xC0, 0x83, 0x87, 0x8B, 0x8F] {
            fails(&frame(first, b"Hello"), 1002);
        }
    }

    #[test]
    fn case_a17_text_that_is_not_utf8_is_1007() {
        for bad in [&[0xC3, 0x28][..], &[0xED, 0xA0, 0x80], &[0xC0, 0x80], &[0xF4, 0x90, 0x80, 0x80]] {
            fails(&frame(0x81, bad), 1007);
        }
        fails(&[frame(0x01, &[0xC3]), frame(0x80, &[0x28])].concat(), 1007);
        let split = [frame(0x01, &[0xC3]), frame(0x80, &[0xA9])].concat();
        assert_eq!(feed(&split, 1, SocketLimits::default()).0, ["é"]);
    }

    #[test]
    fn case_a18_fragments_are_counted_empty_ones_too() {
        for payload in [&b""[..], b"x"] {
            let mut bytes = frame(0x01, b"");
            for _ in 0..200_000 {
                bytes.extend_from_slice(&frame(0x00, payload));
            }
            let (messages, _, fed) = feed(&bytes, 4_096, SocketLimits::default());
            assert_eq!(fed, Fed::Failed(Closing::Policy("too many fragments")));
            assert!(messages.is_empty());
        }
    }

    #[test]
    fn case_a20_nothing_counts_after_a_close() {
        let bytes = [frame(0x88, &1000_u16.to_be_bytes()), frame(0x89, b"p"), frame(0x81, b"late")].concat();
        let (messages, output, fed) = feed(&bytes, bytes.len(), SocketLimits::default());
        assert!(messages.is_empty());
        assert_eq!((output, fed), (vec![0x88, 2, 0x03, 0xE8], Fed::PeerClosed));
    }

    #[test]
    fn case_a21_messages_of_every_awkward_size_come_whole() {
        for size in [0, 1, 35, 36, 125, 126, 127, 527, 528, 4_095, 4_096, 4_097, 16_383, 65_535, 65_536] {
            let payload = "x".repeat(size);
            let bytes = frame(0x81, payload.as_bytes());
            for step in [1_000, bytes.len()] {
                assert_eq!(feed(&bytes, step, SocketLimits::default()).0, [payload.as_str()], "{size} step {step}");
            }
        }
    }

    #[test]
    fn the_pool_is_bounded() {
        let limits = SocketLimits { contexts_max: 1, ..SocketLimits::default() };
        let mut pool = ContextPool::new(limits);
        let (mut a, mut b) = (Codec::default(), Codec::default());
        let message = frame(0x81, b"half");
        let half = &message[..5];
        assert_eq!(a.feed(&mut pool, half, &mut Vec::new(), |_, _| {}), Fed::Open);
        assert!(pool.gauge().is_full());
        let whole = frame(0x81, b"whole");
        let mut came = 0;
        assert_eq!(b.feed(&mut pool, &whole, &mut Vec::new(), |_, _| came += 1), Fed::Open);
        assert_eq!(came, 1, "who is not mid-message needs no place");
        assert!(matches!(b.feed(&mut pool, half, &mut Vec::new(), |_, _| {}), Fed::Failed(Closing::Overloaded(_))));
        assert_eq!(
            a.feed(&mut pool, &message[5..7], &mut Vec::new(), |_, _| {}),
            Fed::Open,
            "who has a place keeps it"
        );
        a.release(&mut pool);
        assert_eq!(pool.gauge().used, 0);
    }
}
