//! What mutations begin with: a file an input, small enough to be read in a review.

use std::path::Path;

/// The files of one target, in the order of their names. Files that end in `.hex` hold bytes that no editor shows.
pub(crate) fn of(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&dir).expect("a corpus").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let bytes = std::fs::read(path).expect("a file");
        if path.extension().is_some_and(|end| end == "hex") { from_hex(&bytes) } else { bytes }
    };
    paths.iter().map(read).collect()
}

/// Pairs of hexadecimal digits, with whatever white space between them.
fn from_hex(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> =
        text.iter().filter_map(|&byte| char::from(byte).to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
