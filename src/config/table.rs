//! The text of a configuration, read key by key.
//!
//! TOML flows in; values within their ranges flow into the places that are handed over, and the first fault flows out.
//! Always true: a key that is absent leaves its place as it was; a key or table that nobody asked for is a fault, so a
//! slip of the pen never means "the default"; and the line of every value is remembered for the checks that compare two.
//!
//! The text is walked with its spans instead of being mapped onto structures: only so can every fault, also one of
//! type or range, name line, key, value and what is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Place};

/// The longest piece of a value that an error shows, in characters.
const SHOWN_CHARS_MAX: usize = 60;

/// What was found in a file beside the values themselves.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The first fault.
    fault: Option<ConfigError>,
    /// Where each dotted key stands, and its value as written.
    places: BTreeMap<String, (Place, String)>,
    /// The dotted keys that could stand in the file and do not.
    absent: BTreeSet<String>,
}

impl Notes {
    /// Notes a fault, unless there was one before.
    pub(super) fn fault(&mut self, error: ConfigError) {
        self.fault.get_or_insert(error);
    }

    /// Notes that a value comes from elsewhere than the file, as an argument does.
    pub(super) fn put(&mut self, key: &str, place: Place, value: String) {
        self.places.insert(key.to_owned(), (place, value));
    }

    /// Where a dotted key was set, and to what.
    pub(super) fn place(&self, key: &str) -> Option<&(Place, String)> {
        self.places.get(key)
    }

    /// The keys of which the file says nothing.
    #[cfg(test)]
    pub(super) fn absent(&self) -> &BTreeSet<String> {
        &self.absent
    }

    /// The first fault, if there was any.
    ///
    /// # Errors
    /// That fault.
    pub(super) fn result(&mut self) -> Result<(), ConfigError> {
        self.fault.take().map_or(Ok(()), Err)
    }
}

/// The text and its name.
#[derive(Clone, Copy)]
pub(super) struct Source<'s> {
    /// The file.
    pub(super) file: &'s Path,
    /// What is in it.
    pub(super) text: &'s str,
}

impl Source<'_> {
    fn place(&self, span: &Range<usize>) -> Place {
        let before = self.text.as_bytes().iter().take(span.start).filter(|&&byte| byte == b'\n').count();
        Place::Line(self.file.to_owned(), before as u32 + 1)
    }

    fn written(&self, span: &Range<usize>) -> String {
        let text = self.text.get(span.clone()).unwrap_or_default();
        let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).map(|c| if c == '\n' { ' ' } else { c }).collect();
        if text.chars().count() > SHOWN_CHARS_MAX {
            shown.push('…');
        }
        shown
    }
}

/// A whole file.
pub(super) struct Sheet<'s> {
    source: Source<'s>,
    root: DeTable<'s>,
    known: Vec<&'static str>,
    /// What was found on the way.
    pub(super) notes: Notes,
}

impl<'s> Sheet<'s> {
    /// Parses the text.
    ///
    /// # Errors
    /// The place at which it is not TOML.
    pub(super) fn parse(source: Source<'s>) -> Result<Self, ConfigError> {
        let root = DeTable::parse(source.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            ConfigError::new(source.place(&span), error.message().replace('\n', "; "), "the file is not TOML here")
        })?;
        Ok(Self { source, root: root.into_inner(), known: Vec::new(), notes: Notes::default() })
    }

    /// Reads the table `[name]`; an absent one is read as an empty one.
    pub(super) fn table(&mut self, name: &'static str, read: impl FnOnce(&mut Table<'_, 's>)) {
        self.known.push(name);
        let mut entries = None;
        if let Some(value) = self.root.get(name) {
            let DeValue::Table(table) = value.get_ref() else {
                let what = format!("{name} = {}", self.source.written(&value.span()));
                let error = ConfigError::new(self.source.place(&value.span()), what, format!("write [{name}]"));
                return self.notes.fault(error);
            };
            entries = Some((table, value.span()));
        }
        read_table(self.source, name, entries, &mut self.notes, read);
    }

    /// Reads every table `[[name]]` in turn.
    pub(super) fn tables(&mut self, name: &'static str, read: impl FnMut(&mut Table<'_, 's>)) {
        self.known.push(name);
        if let Some(value) = self.root.get(name) {
            read_tables(self.source, name, value, &mut self.notes, read);
        }
    }

    /// Ends the reading: whatever was not asked for is a fault.
    pub(super) fn finish(mut self) -> Notes {
        for key in self.root.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            let place = self.source.place(&key.span());
            let why = format!("there is no such table; the tables are {}", self.known.join(", "));
            self.notes.fault(ConfigError::new(place, format!("[{}]", key.get_ref()), why));
        }
        self.notes
    }
}

fn read_table<'s>(
    source: Source<'s>,
    name: &str,
    entries: Option<(&DeTable<'s>, Range<usize>)>,
    notes: &mut Notes,
    read: impl FnOnce(&mut Table<'_, 's>),
) {
    let (entries, span) = entries.map_or((None, 0..0), |(entries, span)| (Some(entries), span));
    let mut table = Table { source, name, entries, span, known: Vec::new(), notes };
    read(&mut table);
    table.refuse_unknown();
}

fn read_tables<'s>(
    source: Source<'s>,
    name: &str,
    value: &Spanned<DeValue<'s>>,
    notes: &mut Notes,
    mut read: impl FnMut(&mut Table<'_, 's>),
) {
    let refuse = |span: Range<usize>| {
        let what = format!("{name} = {}", source.written(&span));
        ConfigError::new(source.place(&span), what, format!("write [[{name}]], once for each"))
    };
    let DeValue::Array(items) = value.get_ref() else { return notes.fault(refuse(value.span())) };
    for item in items {
        match item.get_ref() {
            DeValue::Table(entries) => {
                read_table(source, name, Some((entries, item.span())), notes, &mut read);
            }
            _ => notes.fault(refuse(item.span())),
        }
    }
}

/// One table of a file.
pub(super) struct Table<'t, 's> {
    source: Source<'s>,
    name: &'t str,
    entries: Option<&'t DeTable<'s>>,
    span: Range<usize>,
    known: Vec<&'static str>,
    notes: &'t mut Notes,
}

impl<'t, 's> Table<'t, 's> {
    /// The directory of the file, which paths of secrets begin from.
    pub(super) fn directory(&self) -> &'s Path {
        self.source.file.parent().unwrap_or(Path::new(""))
    }

    /// A fault of this table's `key`, which stands at the key if it is there, else at the head of the table. The value
    /// is shown as it is written, unless it is secret.
    pub(super) fn fault(&mut self, key: &str, secret: bool, why: impl Into<String>) {
        let value = self.entries.and_then(|entries| entries.get(key));
        let (span, written) = match value {
            Some(value) if secret => (value.span(), "= (not shown)".to_owned()),
            Some(value) => (value.span(), format!("= {}", self.source.written(&value.span()))),
            None => (self.span.clone(), "is missing".to_owned()),
        };
        let what = format!("{}.{key} {written}", self.name);
        self.notes.fault(ConfigError::new(self.source.place(&span), what, why));
    }

    fn take(&mut self, key: &'static str) -> Option<&'t DeValue<'s>> {
        self.known.push(key);
        let dotted = format!("{}.{key}", self.name);
        let Some(value) = self.entries.and_then(|entries| entries.get(key)) else {
            self.notes.absent.insert(dotted);
            return None;
        };
        let written = self.source.written(&value.span());
        self.notes.places.insert(dotted, (self.source.place(&value.span()), written));
        Some(value.get_ref())
    }

    /// A whole number of `range`.
    pub(super) fn number<N: TryFrom<u64>>(&mut self, key: &'static str, range: RangeInclusive<u64>, out: &mut N) {
        let Some(value) = self.take(key) else { return };
        match whole(value).filter(|number| range.contains(number)).and_then(|number| N::try_from(number).ok()) {
            Some(number) => *out = number,
            None => self.fault(key, false, format!("{} to {} is allowed", range.start(), range.end())),
        }
    }

    /// A whole number of `range`, which stays `None` if the key is absent.
    pub(super) fn optional(&mut self, key: &'static str, range: RangeInclusive<u64>, out: &mut Option<u32>) {
        let Some(value) = self.take(key) else { return };
        match whole(value).filter(|number| range.contains(number)) {
            Some(number) => *out = Some(number as u32),
            None => self.fault(key, false, format!("{} to {} is allowed", range.start(), range.end())),
        }
    }

    /// A power of two of `range`.
    pub(super) fn power<N: TryFrom<u64>>(&mut self, key: &'static str, range: RangeInclusive<u64>, out: &mut N) {
        let Some(value) = self.take(key) else { return };
        let fits = |number: &u64| range.contains(number) && number.is_power_of_two();
        match whole(value).filter(fits).and_then(|number| N::try_from(number).ok()) {
            Some(number) => *out = number,
            None => {
                self.fault(key, false, format!("a power of two from {} to {} is allowed", range.start(), range.end()));
            }
        }
    }

    /// A whole number of `range`, or `"auto"`.
    pub(super) fn number_or_auto(&mut self, key: &'static str, range: RangeInclusive<u64>, out: &mut Option<u16>) {
        let Some(value) = self.take(key) else { return };
        if value.as_str() == Some("auto") {
            *out = None;
        } else if let Some(number) = whole(value).filter(|number| range.contains(number)) {
            *out = Some(number as u16);
        } else {
            self.fault(key, false, format!("{} to {} or \"auto\" is allowed", range.start(), range.end()));
        }
    }

    /// True or false.
    pub(super) fn flag(&mut self, key: &'static str, out: &mut bool) {
        let Some(value) = self.take(key) else { return };
        match value.as_bool() {
            Some(flag) => *out = flag,
            None => self.fault(key, false, "true or false is allowed"),
        }
    }

    /// An IP address with a port. No names: looking one up could block, and could change between two starts.
    pub(super) fn address(&mut self, key: &'static str, out: &mut SocketAddr) {
        let Some(value) = self.take(key) else { return };
        match value.as_str().and_then(|text| text.parse().ok()) {
            Some(address) => *out = address,
            None => self.fault(key, false, "an IP address with a port is allowed, such as \"0.0.0.0:8080\""),
        }
    }

    /// A path.
    pub(super) fn path(&mut self, key: &'static str, out: &mut PathBuf) {
        let Some(value) = self.take(key) else { return };
        match value.as_str().filter(|text| !text.is_empty()) {
            Some(text) => *out = text.into(),
            None => self.fault(key, false, "a path in quotes is allowed"),
        }
    }

    /// A text; `None` if the key is absent.
    pub(super) fn text(&mut self, key: &'static str, secret: bool) -> Option<String> {
        let value = self.take(key)?;
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            self.fault(key, secret, "a text in quotes is allowed");
        }
        text
    }

    /// A list of texts; `None` if the key is absent.
    pub(super) fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        let value = self.take(key)?;
        let list = match value {
            DeValue::Array(items) => items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        if list.is_none() {
            self.fault(key, false, "a list of texts is allowed, such as [\"a\", \"b\"]");
        }
        list
    }

    /// Reads every table `[[name.key]]` in turn.
    pub(super) fn tables(&mut self, key: &'static str, read: impl FnMut(&mut Table<'_, 's>)) {
        if self.take(key).is_some()
            && let Some(value) = self.entries.and_then(|entries| entries.get(key))
        {
            let name = format!("{}.{key}", self.name);
            read_tables(self.source, &name, value, self.notes, read);
        }
    }

    fn refuse_unknown(&mut self) {
        let Some(entries) = self.entries else { return };
        for key in entries.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            // The value of a key that is not ours may be anybody's secret.
            let what = format!("{}.{} is not a key", self.name, key.get_ref());
            let why = format!("[{}] knows {}", self.name, self.known.join(", "));
            self.notes.fault(ConfigError::new(self.source.place(&key.span()), what, why));
        }
    }
}

fn whole(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, read: impl FnOnce(&mut Table<'_, '_>)) -> Result<(), String> {
        let source = Source { file: Path::new("x.toml"), text };
        let mut sheet = Sheet::parse(source).map_err(|error| error.to_string())?;
        sheet.table("t", read);
        sheet.finish().result().map_err(|error| error.to_string())
    }

    #[test]
    fn values_go_where_they_belong() {
        let (mut n, mut p, mut a, mut f) = (0_u32, 0_u16, Some(3), false);
        let text = "[t]\nn = 10_000\np = 0x40\na = \"auto\"\nf = true\n";
        let all = |t: &mut Table<'_, '_>| {
            t.number("n", 1..=10_000, &mut n);
            t.power("p", 1..=64, &mut p);
            t.number_or_auto("a", 1..=9, &mut a);
            t.flag("f", &mut f);
        };
        assert_eq!(read(text, all), Ok(()));
        assert_eq!((n, p, a, f), (10_000, 64, None, true));
    }

    #[test]
    fn faults_name_line_key_value_and_what_is_allowed() {
        let number = |t: &mut Table<'_, '_>| t.number("n", 1..=9, &mut 0_u8);
        let say = |text: &str| read(text, number).unwrap_err();
        assert_eq!(say("[t]\n\nn = 10"), "x.toml:3: t.n = 10\n  1 to 9 is allowed");
        assert_eq!(say("[t]\nn = -1"), "x.toml:2: t.n = -1\n  1 to 9 is allowed");
        assert_eq!(say("[t]\nn = \"5\""), "x.toml:2: t.n = \"5\"\n  1 to 9 is allowed");
        assert_eq!(say("[t]\nn = 1.5"), "x.toml:2: t.n = 1.5\n  1 to 9 is allowed");
        assert_eq!(say("[t]\nn = 99999999999999999999"), "x.toml:2: t.n = 99999999999999999999\n  1 to 9 is allowed");
        assert_eq!(say("[t]\nm = 1"), "x.toml:2: t.m is not a key\n  [t] knows n");
        assert_eq!(say("\n[u]\nn = 1"), "x.toml:2: [u]\n  there is no such table; the tables are t");
        assert_eq!(say("t = 1"), "x.toml:1: t = 1\n  write [t]");
        assert!(say("[t]\nn = 1\nn = 2").starts_with("x.toml:3: "), "{}", say("[t]\nn = 1\nn = 2"));
        assert!(say("[t]\nn = ").starts_with("x.toml:2: "));
    }
}
