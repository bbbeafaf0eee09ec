//! Mutations of a corpus, each a function of its seed: bytes flip, numbers come to their edges, pieces are cut out, said
//! twice, moved, put together from two inputs, and words of the language stand where they do not belong.

use crate::INPUT_BYTES_MAX;
use crate::rng::Rng;

/// Bytes at which readers turn.
const EDGES: [u8; 16] = [0, 1, 0x7F, 0x80, 0xFF, b'\r', b'\n', b' ', b'\t', b'"', b'\\', b'{', b'[', b':', b',', 0xC3];
/// Numbers at which readers turn, as text.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1",
    "127",
    "128",
    "65535",
    "65536",
    "2147483648",
    "4294967296",
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
];

/// Makes inputs of a corpus.
pub(crate) struct Mutator<'a> {
    corpus: &'a [Vec<u8>],
    words: &'a [&'a str],
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(corpus: &'a [Vec<u8>], words: &'a [&'a str]) -> Self {
        Self { corpus, words }
    }

    /// The input of one seed.
    pub(crate) fn input(&self, seed: u64) -> Vec<u8> {
        let mut rng = Rng(seed);
        let mut input = self.one(&mut rng).to_vec();
        // Few changes reach deep, many reach far.
        let most = rng.pick(&[2, 4, 8, 32]);
        let changes = rng.between(1, most);
        for _ in 0..changes {
            self.change(&mut rng, &mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn one(&self, rng: &mut Rng) -> &'a [u8] {
        &self.corpus[rng.below(self.corpus.len() as u64) as usize]
    }

    fn change(&self, rng: &mut Rng, input: &mut Vec<u8>) {
        let at = rng.below(input.len() as u64 + 1) as usize;
        let scale = rng.between(0, 7);
        let length = (rng.below(1 << scale) as usize + 1).min(input.len() - at);
        match rng.below(12) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = rng.next_u64() as u8,
            2 if at < input.len() => input[at] = rng.pick(&EDGES),
            3 => input.insert(at, rng.pick(&EDGES)),
            4 => drop(input.drain(at..at + length)),
            5 => {
                // A piece is said again, sometimes very often.
                let piece = input[at..at + length].to_vec();
                let times = if rng.chance(5) { rng.between(10, 2_000) } else { 1 };
                let times = times.min((INPUT_BYTES_MAX / piece.len().max(1)) as u64) as usize;
                let _ = input.splice(at..at, piece.repeat(times));
            }
            6 => {
                let piece: Vec<u8> = input.drain(at..at + length).collect();
                let to = rng.below(input.len() as u64 + 1) as usize;
                let _ = input.splice(to..to, piece);
            }
            7 => {
                let other = self.one(rng);
                let from = rng.below(other.len() as u64 + 1) as usize;
                let end = from + rng.below((other.len() - from) as u64 + 1) as usize;
                let _ = input.splice(at..at + length, other[from..end].iter().copied());
            }
            8 | 9 if !self.words.is_empty() => {
                let word = rng.pick(self.words);
                let over = if rng.chance(50) { length.min(word.len()) } else { 0 };
                let _ = input.splice(at..at + over, word.bytes());
            }
            10 => {
                // A number of the input becomes another.
                let begins = input[at..].iter().position(u8::is_ascii_digit).map(|far| at + far);
                if let Some(begins) = begins {
                    let digits = input[begins..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    let _ = input.splice(begins..begins + digits, rng.pick(&NUMBERS).bytes());
                }
            }
            _ => input.truncate(at.max(input.len() / 2)),
        }
    }
}
