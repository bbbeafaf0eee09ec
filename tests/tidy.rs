//! The house rules, held by reading the source as text: layers, doors, the map, sizes, what may lie where.
//!
//! Files flow in, a list of `file:line: rule` flows out, and each test passes when its list is empty. Always true:
//! comments and texts are blanked before anything is looked for, so only code counts; and every rule is tried on a line
//! that breaks it, so a rule that has gone blind is noticed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Who may import whom: only what has a lower number, and itself.
const LAYERS: &[(&str, u32)] = &[
    ("base", 0),
    ("wire", 1),
    ("post", 2),
    ("admission", 3),
    ("seating", 3),
    ("presence", 3),
    ("store", 3),
    ("bus", 3),
    ("fanout", 3),
    ("metrics", 3),
    ("web", 3),
    ("shard", 4),
    ("orchestrator", 4),
    ("io", 5),
    ("config", 6),
    ("load", 7),
    ("doctor", 7),
    ("node", 8),
    ("main", 9),
];

/// Behind which door each outside crate is: the beginnings of the paths that may name it. A dependency without a row
/// here is refused, so whoever adds one decides where its door is.
const DOORS: &[(&str, &[&str])] = &[
    ("glommio", &["io/"]),
    ("io_uring", &["io/"]),
    ("libc", &["io/", "load/"]),
    ("socket2", &["io/", "load/"]),
    ("hyper", &["io/"]),
    ("http_body_util", &["io/"]),
    ("bytes", &["io/"]),
    ("futures_lite", &["io/"]),
    ("signal_hook", &["io/"]),
    ("sd_notify", &["io/"]),
    ("atomic_waker", &["post/mailbox.rs", "io/"]),
    ("tungstenite", &["wire/socket.rs", "wire/http.rs", "load/"]),
    ("rkyv", &["wire/sealed.rs"]),
    ("crc32fast", &["wire/sealed.rs"]),
    ("httparse", &["wire/http.rs", "wire/framing.rs"]),
    ("form_urlencoded", &["wire/http.rs", "shard/request.rs", "shard/connections.rs"]),
    ("memchr", &["wire/scan.rs", "load/"]),
    ("rapidhash", &["wire/topic.rs"]),
    ("serde", &["wire/", "admission/", "shard/", "config/", "load/", "metrics/"]),
    (
        "serde_json",
        &["wire/", "admission/", "fanout/", "store/", "shard/", "orchestrator/", "metrics/", "io/", "load/"],
    ),
    ("jsonwebtoken", &["admission/auth.rs"]),
    ("sha2", &["admission/auth.rs"]),
    ("subtle", &["admission/auth.rs"]),
    ("aho_corasick", &["admission/blocklist.rs"]),
    ("cuckoofilter", &["fanout/filter.rs"]),
    ("hashbrown", &["fanout/index"]),
    ("crossbeam", &["post/mailbox.rs"]),
    ("rusqlite", &["store/sqlite"]),
    ("hdrhistogram", &["metrics/", "load/"]),
    ("clap", &["main.rs", "load/"]),
    ("toml", &["config/", "load/foreign.rs", "load/sunday.rs"]),
    ("indicatif", &["load/"]),
    ("getrandom", &["config/demo.rs", "io/", "load/", "node.rs"]),
    ("mimalloc", &["main.rs"]),
    // One call of it gives memory back, from each core's own timer.
    ("libmimalloc_sys", &["io/machine.rs"]),
];

/// Where `unsafe` may stand, each block with its reason.
const UNSAFE: &[&str] = &["io/", "load/", "wire/sealed.rs"];

/// What may lie at the top, beside dotfiles and what git ignores.
const TOP: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "tests",
    "benches",
    "perf",
    "shard-config",
    "tuning",
    "README.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

/// A file that wants more lines usually holds two nouns.
const LINES_MAX: usize = 600;

fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// One file of `src`.
struct File {
    /// Its path below `src`, with slashes.
    path: String,
    text: String,
    /// The text with comments and texts blanked, line for line and byte for byte.
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into(), code: blank(text) }
    }

    fn at(&self, offset: usize, rule: &str) -> String {
        let line = self.code[..offset].matches('\n').count() + 1;
        format!("src/{}:{line}: {rule}", self.path)
    }

    /// The folder or the file without its end.
    fn layer(&self) -> &str {
        self.path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }

    /// How many `super` lead from the file's own module to the crate.
    fn depth(&self) -> usize {
        self.path.trim_end_matches("/mod.rs").split('/').count()
    }
}

fn files() -> Vec<File> {
    fn walk(dir: &Path, src: &Path, files: &mut Vec<File>) {
        let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                walk(&path, src, files);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(src).unwrap().to_string_lossy().replace('\\', "/");
                files.push(File::new(&path, &text));
            }
        }
    }
    let (src, mut files) = (root().join("src"), Vec::new());
    walk(&src, &src, &mut files);
    assert!(files.len() > 20, "the source was not found");
    files
}

fn pass(faults: &[String]) {
    let mut list = String::new();
    for fault in faults {
        let _ = writeln!(list, "{fault}");
    }
    assert!(faults.is_empty(), "{} broken rules\n{list}", faults.len());
}

fn word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Puts a space for every byte of a comment, a text or a character, and leaves newlines.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let starts_word = at == 0 || !word(bytes[at - 1]);
        let end = if rest.starts_with("//") {
            at + rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            at + rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if starts_word && (rest.starts_with("r\"") || rest.starts_with("r#\"") || rest.starts_with("br")) {
            raw_end(text, at)
        } else if bytes[at] == b'"' {
            quoted_end(bytes, at, b'"')
        } else if bytes[at] == b'\'' && (bytes.get(at + 1) == Some(&b'\\') || is_char(rest)) {
            quoted_end(bytes, at, b'\'')
        } else {
            at
        };
        if end == at {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        }
        code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end;
    }
    String::from_utf8(code).expect("whole characters are blanked")
}

/// `'x'`, and not the start of a lifetime.
fn is_char(rest: &str) -> bool {
    rest.chars().nth(2) == Some('\'')
}

fn quoted_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The end of a raw text that begins at `start`, or `start` if none does.
fn raw_end(text: &str, start: usize) -> usize {
    let rest = text[start..].trim_start_matches('b');
    let from = text.len() - rest.len();
    let Some(hashed) = rest.strip_prefix('r') else { return start };
    let hashes = hashed.bytes().take_while(|&byte| byte == b'#').count();
    if hashed.as_bytes().get(hashes) != Some(&b'"') {
        return start;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let body = from + 1 + hashes + 1;
    text[body..].find(&close).map_or(text.len(), |end| body + end + close.len())
}

/// Where `name` stands as a whole word.
fn words<'c>(code: &'c str, name: &'c str) -> impl Iterator<Item = usize> + 'c {
    let bytes = code.as_bytes();
    code.match_indices(name).map(|(at, _)| at).filter(move |&at| {
        let after = bytes.get(at + name.len()).copied();
        (at == 0 || !word(bytes[at - 1])) && !after.is_some_and(word)
    })
}

/// The modules that `crate::…` at `at` names: one, or those of a list in braces.
fn named(code: &str, at: usize) -> Vec<&str> {
    let ident = |text: &str| text.bytes().take_while(|&byte| word(byte)).count();
    let rest = code[at..].trim_start();
    let Some(list) = rest.strip_prefix('{') else { return vec![&rest[..ident(rest)]] };
    let (mut depth, mut fresh, mut names) = (0, true, Vec::new());
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && depth == 0 && !c.is_whitespace() => {
                names.push(&list[i..i + ident(&list[i..])]);
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

fn level(layer: &str) -> Option<u32> {
    LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, level)| *level)
}

fn layer_faults(file: &File) -> Vec<String> {
    let layer = file.layer();
    if layer == "lib" {
        return Vec::new();
    }
    let Some(own) = level(layer) else {
        return vec![file.at(0, &format!("{layer} has no place in the layers: give it one in tests/tidy.rs"))];
    };
    let mut faults = Vec::new();
    for at in words(&file.code, "crate").chain(words(&file.code, "ringcast")) {
        let Some(path) = file.code[at..].find("::").filter(|end| *end <= "ringcast".len()) else { continue };
        for other in named(&file.code, at + path + 2) {
            // A macro or a name of the crate itself is no module.
            let Some(level) = level(other) else { continue };
            if other != layer && level >= own {
                faults.push(file.at(at, &format!("{layer} may not import {other}: only layers below it")));
            }
        }
    }
    let tests = file.code.find("mod tests {").unwrap_or(usize::MAX);
    for (at, _) in file.code.match_indices("super::") {
        let chain = file.code[at..].split("super::").skip(1).take_while(|between| between.is_empty()).count() + 1;
        if chain >= file.depth() + usize::from(at > tests) && !file.code[..at].ends_with("super::") {
            faults.push(file.at(at, "super leads out of the layer: say crate, so that the import can be seen"));
        }
    }
    faults
}

fn door_faults(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, doors) in DOORS {
        if doors.iter().any(|door| file.path.starts_with(door)) {
            continue;
        }
        for at in words(&file.code, name) {
            let (before, after) = (file.code[..at].trim_end(), file.code[at + name.len()..].trim_start());
            // `x::name` is somebody's module; `::name` is the crate.
            let inside =
                before.strip_suffix("::").is_some_and(|path| path.ends_with(|c: char| word(c as u8) || c == '>'));
            let used = after.starts_with("::") || before.ends_with("use") || before.ends_with("extern crate");
            if used && !inside {
                faults.push(file.at(at, &format!("{name} is behind its door: {}", doors.join(", "))));
            }
        }
    }
    faults
}

fn word_faults(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    if !UNSAFE.iter().any(|door| file.path.starts_with(door)) {
        faults
            .extend(words(&file.code, "unsafe").map(|at| file.at(at, "unsafe only in io/, load/ and wire/sealed.rs")));
    }
    for name in ["todo!", "unimplemented!", "dbg!"] {
        for (at, _) in file.code.match_indices(name) {
            if at == 0 || !word(file.code.as_bytes()[at - 1]) {
                faults.push(file.at(at, &format!("{name} is not for code that is committed")));
            }
        }
    }
    for (at, _) in file.code.match_indices("#[").chain(file.code.match_indices("#![")) {
        let attribute = &file.code[at..];
        let mut depth = 0;
        let end = attribute.find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            c == ']' && depth == 0
        });
        let attribute = &attribute[..end.unwrap_or(attribute.len())];
        let allows = ["allow", "expect"].iter().any(|name| words(attribute, name).next().is_some());
        if allows && words(attribute, "reason").next().is_none() {
            faults.push(file.at(at, "an allow says its reason"));
        }
    }
    faults
}

#[test]
fn layers_import_only_what_is_below_them() {
    pass(&files().iter().flat_map(layer_faults).collect::<Vec<_>>());
}

#[test]
fn outside_crates_stay_behind_their_doors() {
    let mut faults: Vec<_> = files().iter().flat_map(door_faults).collect();
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let mut in_table = false;
    for (i, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            in_table = line == "[dependencies]";
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| in_table && !line.starts_with('#'))
            && !DOORS.iter().any(|(door, _)| *door == name.replace('-', "_"))
        {
            faults.push(format!("Cargo.toml:{}: {name} has no door: give it one in tests/tidy.rs", i + 1));
        }
    }
    pass(&faults);
}

#[test]
fn unsafe_reasons_and_loose_ends() {
    pass(&files().iter().flat_map(word_faults).collect::<Vec<_>>());
}

#[test]
fn files_hold_one_noun() {
    let long = files().into_iter().filter(|file| file.text.lines().count() > LINES_MAX);
    pass(
        &long
            .map(|file| {
                let lines = file.text.lines().count();
                format!("src/{}:{lines}: a file has at most {LINES_MAX} lines", file.path)
            })
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_file_begins_with_what_it_is() {
    let first = |file: &File| file.text.lines().find(|line| !line.starts_with("#![")).unwrap_or_default().to_owned();
    let bare = files().into_iter().filter(|file| !first(file).starts_with("//! "));
    pass(&bare.map(|file| format!("src/{}:1: a file begins with its module doc", file.path)).collect::<Vec<_>>());
}

#[test]
fn the_map_names_every_part_and_no_other() {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let map: Vec<(usize, &str)> = lib
        .lines()
        .enumerate()
        .filter_map(|(i, line)| Some((i + 1, line.strip_prefix("//! | `")?.split('`').next()?)))
        .collect();
    let mut faults = Vec::new();
    let mut there = Vec::new();
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let entry = entry.unwrap();
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            // An empty folder is a leftover that git does not keep.
            if fs::read_dir(entry.path()).unwrap().next().is_none() {
                continue;
            }
            name.push('/');
        }
        if !map.iter().any(|(_, named)| *named == name) {
            faults.push(format!("src/lib.rs:1: the map names every part; `{name}` is not in it"));
        }
        there.push(name);
    }
    for (line, name) in map {
        if !there.iter().any(|part| part == name) {
            faults.push(format!("src/lib.rs:{line}: the map names `{name}`, which is not there"));
        }
    }
    pass(&faults);
}

#[test]
fn the_top_holds_only_what_is_allowed() {
    let ignored = fs::read_to_string(root().join(".gitignore")).unwrap_or_default();
    let ignored: Vec<&str> = ignored.lines().map(|line| line.trim_matches('/')).collect();
    let mut faults = Vec::new();
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !TOP.contains(&name.as_str()) && !ignored.contains(&name.as_str()) {
            faults.push(format!("{name}:1: the top level holds only {}", TOP.join(" ")));
        }
    }
    pass(&faults);
}

#[test]
fn every_file_of_shard_config_loads() {
    let mut faults = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(root().join("shard-config")).unwrap() {
        let path = entry.unwrap().path();
        files += 1;
        if let Err(error) = ringcast::config::Config::load(Some(&path), &ringcast::config::Overrides::default()) {
            faults.push(error.to_string());
        }
    }
    assert!(files >= 2, "default.toml and two-core.toml are there");
    pass(&faults);
}

#[test]
fn tuning_fits_the_defaults() {
    fn number(file: &str, key: &str) -> u64 {
        let text = fs::read_to_string(root().join("tuning").join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='));
        let value = line.unwrap_or_else(|| panic!("tuning/{file}:1: {key} is there")).trim();
        let digits = value.trim_end_matches('M');
        let unit = if digits.len() < value.len() { 1 << 20 } else { 1 };
        digits.parse::<u64>().unwrap() * unit
    }
    let config = ringcast::config::Config::default();
    let (unit, sysctl) = ("ringcast.service", "99-ringcast.conf");
    assert!(number(unit, "TimeoutStopSec") * 1_000 > u64::from(config.drain_ms), "a drain ends before it is killed");
    assert!(number(unit, "WatchdogSec") * 1_000 > 2 * u64::from(config.stall_ms), "a slow moment ends no node");
    assert!(number(unit, "LimitMEMLOCK") >= 512 * 1_024, "executors start");
    assert!(number(unit, "LimitNOFILE") >= u64::from(config.shard.clients_max), "one table of files a shard");
    assert!(number(sysctl, "fs.nr_open") >= number(unit, "LimitNOFILE"), "the kernel gives what the unit asks for");
    assert!(number(sysctl, "net.core.somaxconn") >= u64::from(config.backlog), "the backlog is not cut");
    assert!(number(sysctl, "net.core.wmem_max") >= u64::from(config.sndbuf_bytes), "the buffer is not cut");
    let haproxy = fs::read_to_string(root().join("tuning/haproxy.cfg")).unwrap();
    let seconds = |key: &str| {
        let line = haproxy.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(' '));
        line.and_then(|value| value.strip_suffix('s')?.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{key} in seconds"))
    };
    for key in ["timeout client", "timeout server"] {
        assert!(seconds(key) > u64::from(config.shard.close_after_s), "{key}: silence is ended by the node");
    }
    for key in ["timeout client-fin", "timeout server-fin"] {
        assert!(seconds(key) * 1_000 > u64::from(config.shard.linger_ms), "{key}: a Close has its time");
    }
    let server = format!(
        "server one {} send-proxy-v2 check addr {} port {} ",
        config.listen,
        config.admin.ip(),
        config.admin.port()
    );
    assert!(haproxy.contains(&server), "the proxy finds the node where it listens: {server}");
}

#[test]
fn the_rules_see_what_breaks_them() {
    let layer = |path: &str, text: &str| layer_faults(&File::new(path, text));
    assert_eq!(
        layer("wire/a.rs", "\nuse crate::post::X;"),
        ["src/wire/a.rs:2: wire may not import post: only layers below it"]
    );
    assert_eq!(layer("bus/mod.rs", "use crate::{base::Now, store::{self, X}, wire};").len(), 1);
    assert_eq!(layer("shard/a.rs", "fn f() { crate::orchestrator::g() }").len(), 1);
    assert_eq!(layer("new/a.rs", "").len(), 1);
    assert_eq!(layer("bus/mod.rs", "use super::store;").len(), 1);
    assert_eq!(layer("bus/a.rs", "use super::super::store;").len(), 1);
    assert_eq!(layer("bus/mod.rs", "mod tests {\n use super::*; use crate::wire::X; }"), [""; 0]);
    assert_eq!(layer("bus/a.rs", "// crate::store\nuse super::b; use crate::bus::c; use crate::post;"), [""; 0]);

    let door = |path: &str, text: &str| door_faults(&File::new(path, text)).len();
    assert_eq!(door("wire/a.rs", "use rkyv::Archive;"), 1);
    assert_eq!(door("wire/a.rs", "fn f() { ::glommio::f() }"), 1);
    assert_eq!(door("shard/a.rs", "let x: hyper::Request;"), 1);
    assert_eq!(door("io/a.rs", "use glommio::X; self::toml::x(); let hyper = 1; // rkyv::x"), 0);

    let words = |text: &str| word_faults(&File::new("shard/a.rs", text)).len();
    assert_eq!(words("fn f() { unsafe { g() } }"), 1);
    assert_eq!(words("#[allow(dead_code)]"), 1);
    assert_eq!(words("#[cfg_attr(test, expect(dead_code))]"), 1);
    assert_eq!(words("#![allow(\n dead_code,\n reason = \"x\")]\n#[deny(unsafe_code)] fn allow() {}"), 0);
    assert_eq!(words("todo!(); let c = '\"'; dbg!(1); let l: &'static str = \"todo!\";"), 2);
    assert_eq!(words("let s = r#\"unsafe \" \"#; let b = br\"unsafe\"; let u = '\\u{41}'; // unsafe"), 0);
}
