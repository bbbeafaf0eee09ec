//! Bytes of a client's WebSocket: frames, however they are cut.

use ringcast::wire::socket::{Codec, ContextPool, Fed, Inbound, SocketLimits};

use crate::{Target, run};

const WORDS: &[&str] = &["\u{1}\u{2}", "Hello", "\u{7f}", "é", "{\"type\":\"ping\"}"];

/// What was said, what is answered, and how it ends.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    said: Vec<(bool, Vec<u8>)>,
    answers: Vec<u8>,
    ended: Option<u16>,
}

fn hear(pool: &mut ContextPool, pieces: &[&[u8]]) -> Heard {
    let mut codec = Codec::default();
    let mut heard = Heard::default();
    for piece in pieces {
        let said = &mut heard.said;
        let fed = codec.feed(pool, piece, &mut heard.answers, |inbound, _| match inbound {
            Inbound::Text(text) => said.push((true, text.as_bytes().to_vec())),
            Inbound::Binary(bytes) => said.push((false, bytes.to_vec())),
            Inbound::Alive => {}
        });
        heard.ended = match fed {
            Fed::Open => continue,
            Fed::PeerClosed => Some(0),
            Fed::Failed(closing) => Some(closing.advice().code),
        };
        break;
    }
    codec.release(pool);
    assert_eq!(pool.gauge().used, 0, "what was lent comes back");
    heard
}

#[test]
fn socket() {
    let limits = SocketLimits { message_bytes_max: 4_096, fragments_max: 16, contexts_max: 4 };
    let mut pool = ContextPool::new(limits);
    run(&Target { name: "socket", words: WORDS, cost: 1 }, |input, rng| {
        let whole = hear(&mut pool, &[input]);
        let mut pieces = Vec::new();
        let mut rest = input;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((1 + rng.below(30) as usize).min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        let cut = hear(&mut pool, &pieces);
        assert_eq!(whole, cut, "however the bytes are cut");
        for (text, said) in &whole.said {
            assert!(said.len() <= limits.message_bytes_max as usize);
            assert!(!text || std::str::from_utf8(said).is_ok());
        }
        assert!(whole.answers.len() <= input.len() + 64, "answers are not longer than what was said");
        assert!(matches!(whole.ended, None | Some(0 | 1002 | 1007 | 1008 | 1009)), "{:?}", whole.ended);
    });
}
