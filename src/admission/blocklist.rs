//! A list of texts that an app does not allow, looked for in whatever is posted.
//!
//! A file's lines flow in once, posted texts flow in later, yes or no flows out. Always true: neither case nor width nor
//! characters that nobody sees hide a text, and JSON is searched as it reads when it is unescaped; a search takes linear
//! time, whatever the list and the text; and the list is never changed, only replaced as a whole.

use std::borrow::Cow;
use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use crate::wire::problem::Problem;

/// The longest pattern, in bytes, after folding.
const PATTERN_BYTES_MAX: usize = 256;
/// Lists whose patterns have at most so many bytes together become a table of every next state: some 130 bytes a byte, so
/// 4 MiB at the most, for a search in two thirds of the time. Longer ones are kept small.
const TABLE_BYTES_MAX: usize = 32 * 1024;

/// The patterns of one app. Cheap to clone and to send.
#[derive(Clone)]
pub struct Blocklist {
    automaton: AhoCorasick,
}

impl fmt::Debug for Blocklist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocklist({} patterns)", self.patterns())
    }
}

/// Why a file is no list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlocklist {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for BadBlocklist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl Blocklist {
    /// Reads a list: a pattern a line, found wherever it stands, also within a word. Space around it is cut; empty lines
    /// and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// The line at which there are more than `patterns_max`, or whose pattern is too long.
    pub fn new(text: &str, patterns_max: u32) -> Result<Self, BadBlocklist> {
        let mut patterns = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let bad = |why: String| BadBlocklist { line: at + 1, why };
            let pattern = fold(line.trim_start_matches('\u{FEFF}').trim());
            if pattern.is_empty() || pattern.starts_with('#') {
                continue;
            }
            if pattern.len() > PATTERN_BYTES_MAX {
                let why = format!("a pattern has at most {PATTERN_BYTES_MAX} bytes, this one has {}", pattern.len());
                return Err(bad(why));
            }
            if patterns.len() >= patterns_max as usize {
                return Err(bad(format!("a list has at most {patterns_max} patterns (moderation.patterns_max)")));
            }
            patterns.push(pattern.into_owned());
        }
        // ASCII is folded by the automaton itself, so that the common text is searched where it lies.
        let bytes: usize = patterns.iter().map(String::len).sum();
        let kind = if bytes <= TABLE_BYTES_MAX { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let automaton = AhoCorasick::builder().ascii_case_insensitive(true).kind(Some(kind)).build(patterns);
        automaton.map(|automaton| Self { automaton }).map_err(|error| BadBlocklist { line: 1, why: error.to_string() })
    }

    /// How many patterns it has.
    #[must_use]
    pub fn patterns(&self) -> usize {
        self.automaton.patterns_len()
    }

    /// One of the patterns stands in `text`.
    #[must_use]
    pub fn finds(&self, text: &str) -> bool {
        if text.is_ascii() { self.automaton.is_match(text) } else { self.automaton.is_match(&*fold(text)) }
    }

    /// One of the patterns stands in `json`, escapes read as what they stand for.
    #[must_use]
    pub fn finds_in_json(&self, json: &str) -> bool {
        self.finds(&unescape(json))
    }

    /// Refuses what holds one of the patterns. Which one is not said: that would only teach how to go round it.
    ///
    /// # Errors
    /// 422.
    pub fn check(&self, text: Option<&str>, data: Option<&str>) -> Result<(), Problem> {
        if text.is_some_and(|text| self.finds(text)) || data.is_some_and(|data| self.finds_in_json(data)) {
            return Err(Problem::new(422, "blocked", "it holds a text that this app does not allow"));
        }
        Ok(())
    }
}

/// The text with full-width forms as ASCII, in lower case, and without what has no width.
fn fold(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return Cow::Borrowed(text);
    }
    let mut folded = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        // Most of most texts is ASCII, which is folded by the piece.
        let ascii = rest.bytes().position(|byte| !byte.is_ascii()).unwrap_or(rest.len());
        let from = folded.len();
        folded.push_str(&rest[..ascii]);
        folded[from..].make_ascii_lowercase();
        let mut others = rest[ascii..].chars();
        let Some(c) = others.next() else { break };
        match c {
            // The full-width forms lie in the order of ASCII (Unicode, Halfwidth and Fullwidth Forms).
            '\u{FF01}'..='\u{FF5E}' => {
                let narrow = char::from_u32(u32::from(c) - 0xFEE0).unwrap_or(c);
                folded.push(narrow.to_ascii_lowercase());
            }
            '\u{3000}' => folded.push(' '),
            // Soft hyphen, joiners, direction marks, the byte order mark: seen by nobody, put between letters by some.
            '\u{00AD}' | '\u{200B}'..='\u{200F}' | '\u{2060}' | '\u{FEFF}' => {}
            // Kana, ideographs, syllables: most of what is written there, and none of it has case.
            '\u{3001}'..='\u{A63F}' | '\u{AC00}'..='\u{D7FF}' => folded.push(c),
            c => folded.extend(c.to_lowercase()),
        }
        rest = others.as_str();
    }
    Cow::Owned(folded)
}

/// JSON text with its escapes read. They stand in strings only, so nothing else can be taken for one.
fn unescape(json: &str) -> Cow<'_, str> {
    let Some(first) = json.find('\\') else { return Cow::Borrowed(json) };
    let mut out = String::with_capacity(json.len());
    out.push_str(&json[..first]);
    let mut chars = json[first..].chars();
    // What was escaped beyond the first 65,536 characters comes in two halves (RFC 8259 §7).
    let mut units: Vec<u16> = Vec::new();
    loop {
        let next = chars.next();
        let escape = if next == Some('\\') { chars.next() } else { None };
        if escape == Some('u') {
            let digits: String = chars.by_ref().take(4).collect();
            units.push(u16::from_str_radix(&digits, 16).unwrap_or(0xFFFD));
            continue;
        }
        out.extend(char::decode_utf16(units.drain(..)).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)));
        match (next, escape) {
            (None, _) => return Cow::Owned(out),
            (_, Some('n' | 'r' | 't' | 'b' | 'f')) => out.push(' '),
            (_, Some(c)) | (Some(c), None) => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_case_nor_width_nor_what_is_unseen_hides_a_text() {
        let list = Blocklist::new("\u{FEFF}# ours\n\n  Bad Word \r\nÄrger\nschlecht\nspam\n坏话\n", 10).unwrap();
        assert_eq!(list.patterns(), 5);
        for text in [
            "a bad word here",
            "BAD WORD",
            "ｂａｄ　ｗｏｒｄ",
            "ＢＡＤ ＷＯＲＤ",
            "s\u{200B}p\u{00AD}am",
            "nicht SCHLECHT",
            "großer ärger",
            "ÄRGER",
            "他说坏话了",
            "antispamming",
        ] {
            assert!(list.finds(text), "{text}");
        }
        for text in ["", "a good word", "bad  word", "ours", "#", "arger", "坏 话"] {
            assert!(!list.finds(text), "{text}");
        }
        assert!(!Blocklist::new("# nothing\n", 10).unwrap().finds("anything"));
        // A long list is searched in another way, and finds the same.
        let long = (0..10_000).map(|n| format!("Wort{n:06}\n")).collect::<Vec<_>>().concat();
        let list = Blocklist::new(&long, 10_000).unwrap();
        for (text, found) in
            [("ein WORT009999 hier", true), ("Ｗort000000ü", true), ("wort010000 ü", false), ("", false)]
        {
            assert_eq!(list.finds(text), found, "{text}");
        }
    }

    #[test]
    fn json_is_searched_as_it_reads() {
        let list = Blocklist::new("spam\nein\u{1F600}bild\na b", 10).unwrap();
        for json in [
            r#""spam""#,
            r#"{"x":["s\u0070am"]}"#,
            r#"{"\u0073PAM":1}"#,
            r#""ein\ud83d\ude00bild""#,
            r#""a\nb""#,
            r#""\\spam""#,
        ] {
            assert!(list.finds_in_json(json), "{json}");
        }
        for json in [r#""s\u0070""#, r#""\ud83d""#, r#""s\"pam""#, r#""s\\u0070am""#, "null", "[]"] {
            assert!(!list.finds_in_json(json), "{json}");
        }
        // A text that ends within an escape comes from nowhere, and ends nothing.
        for json in ["\"\\", "\"\\u12", "\"\\u"] {
            assert!(!list.finds_in_json(json));
        }
        assert_eq!(list.check(Some("fine"), Some("\"sp\\u0061m\"")).unwrap_err().code, "blocked");
        assert_eq!(list.check(None, None), Ok(()));
    }

    #[test]
    fn a_list_is_bounded_and_says_where_it_is_wrong() {
        assert!(Blocklist::new("a\nb\n", 2).is_ok());
        let bad = Blocklist::new("a\n#\nb\nc\n", 2).unwrap_err();
        assert_eq!((bad.line, bad.why.contains("at most 2 patterns")), (4, true));
        assert!(Blocklist::new(&"x".repeat(256), 1).is_ok());
        let bad = Blocklist::new(&format!("a\n{}", "x".repeat(257)), 9).unwrap_err();
        assert_eq!(bad.to_string(), "line 2: a pattern has at most 256 bytes, this one has 257");
    }
}
