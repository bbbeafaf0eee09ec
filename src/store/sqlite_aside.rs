//! A damaged database is moved aside, so that a node that may do so begins anew.
//!
//! The path of a database and the wall time flow in; the name under which it lies from now on flows out. Always true:
//! nothing is deleted and nothing is overwritten; the log and its index go with the file, under names that belong to its
//! new one, so that whoever looks into it finds all three; and beyond a number of them no more are moved, for then it is
//! the disk that fails.

use super::sqlite_schema::OpenError;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// What SQLite has beside a database, by the ends of the names; the file itself is first. A process that is killed between
/// two of the moves leaves a log without its database, which the next start finds and moves too; the other way round it
/// would take an old database without its log for a sound one.
const ENDS: [&str; 3] = ["", "-wal", "-shm"];

/// Stands between the name of the database and the time.
const MARK: &str = ".damaged-";

/// Damaged databases that may lie beside each other. A disk that damages one at each start must not be filled with them.
const MOVED_MAX: usize = 16;

/// What became of a damaged database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedAside {
    /// Where it lies now, with its log and its index beside it.
    pub path: PathBuf,
    /// What SQLite said of it.
    pub what: String,
}

/// The path with something behind it.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(end);
    name.into()
}

/// Moves the database and what belongs to it to a name with the time in it, and returns that of the file itself. The
/// caller holds the lock of the database.
///
/// # Errors
/// [`OpenError::NotMoved`]. What was moved by then stays moved.
pub(super) fn move_aside(database: &Path, now_wall_ms: u64) -> Result<PathBuf, OpenError> {
    let refuse = |what: String| OpenError::NotMoved { path: database.to_owned(), what };
    let failed = |error: io::Error| refuse(error.to_string());
    let older = moved_before(database).map_err(failed)?;
    if older >= MOVED_MAX {
        return Err(refuse(format!("{older} of them lie beside it already: look at the disk, and take those away")));
    }
    let first = beside(database, &format!("{MARK}{}", stamp(now_wall_ms)));
    // There are fewer older ones than names to try.
    let names = std::iter::once(first.clone()).chain((2..=MOVED_MAX).map(|n| beside(&first, &format!(".{n}"))));
    let is_free = |name: &PathBuf| ENDS.iter().all(|end| fs::symlink_metadata(beside(name, end)).is_err());
    let aside = names.into_iter().find(is_free).ok_or_else(|| refuse("no name is free".to_owned()))?;
    for end in ENDS {
        match fs::rename(beside(database, end), beside(&aside, end)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    File::open(dir_of(database)).and_then(|dir| dir.sync_all()).map_err(failed)?;
    Ok(aside)
}

/// How many databases were moved aside here and are still here.
fn moved_before(database: &Path) -> io::Result<usize> {
    let mark = beside(Path::new(database.file_name().unwrap_or_default()), MARK);
    let mark = mark.to_string_lossy();
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir_of(database))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(&*mark) {
            let own = ENDS[1..].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
            names.insert(own.to_owned());
        }
    }
    Ok(names.len())
}

fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// A moment as `20261130T065202Z`: it sorts by time, and no file system objects to it.
fn stamp(wall_ms: u64) -> String {
    let (days, second) = (wall_ms / 86_400_000, wall_ms / 1_000 % 86_400);
    let (mut year, mut left) = (1_970, days);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{:02}T{hour:02}{minute:02}{second:02}Z", left + 1)
}

#[cfg(test)]
mod tests {
    use super::super::event::PageAsk;
    use super::super::{OpenOptions, Pages, Sqlite, Store, WhenDamaged};
    use super::*;
    use crate::base::{ChannelKey, Name};
    use crate::store::sqlite_schema::APPLICATION_ID;

    fn key() -> ChannelKey {
        ChannelKey::new(Name::new("demo").unwrap(), Name::new("x").unwrap())
    }

    fn options(seed: u64) -> OpenOptions {
        let (damaged, now_wall_ms) = (WhenDamaged::MoveAside, 1_796_050_000_123);
        OpenOptions { fresh_epoch_seed: seed, damaged, now_wall_ms, ..OpenOptions::default() }
    }

    /// A database of ours in which no page but the first is one.
    fn damage(path: &Path) -> Vec<u8> {
        let mut bytes = fs::read(path).unwrap();
        bytes[4_096..].fill(0xA5);
        fs::write(path, &bytes).unwrap();
        bytes
    }

    #[test]
    fn a_moment_is_written_so_that_it_sorts() {
        for (wall_ms, text) in [
            (0, "19700101T000000Z"),
            (951_782_399_999, "20000228T235959Z"),
            (951_782_400_000, "20000229T000000Z"),
            (1_735_689_599_000, "20241231T235959Z"),
            (1_796_050_000_123, "20261130T144640Z"),
            (4_107_542_400_000, "21000301T000000Z"),
        ] {
            assert_eq!(stamp(wall_ms), text);
        }
    }

    #[test]
    fn a_damaged_database_lies_aside_whole_and_a_new_one_has_a_new_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        let ask = PageAsk::Latest { limit: 1 };
        let mut store = Sqlite::open(&path, &options(1)).unwrap();
        assert_eq!(store.moved_aside(), None, "there was nothing to be moved");
        store.alarm_set(&key(), 5, "{}").unwrap();
        let epoch = store.page(&key(), ask).unwrap().epoch;
        store.close().unwrap();
        let mut names = Vec::new();
        for n in 0..3 {
            let damaged = damage(&path);
            fs::write(beside(&path, "-wal"), format!("log {n}")).unwrap();
            let refused = Sqlite::open(&path, &OpenOptions { damaged: WhenDamaged::Refuse, ..options(2) });
            assert!(matches!(refused, Err(OpenError::Corrupt { .. })), "{refused:?}");
            assert!(fs::read(&path).unwrap() == damaged, "it is not touched unless it may be");
            let mut store = Sqlite::open(&path, &options(2 + n)).unwrap();
            let moved = store.moved_aside().unwrap().clone();
            assert!(!moved.what.is_empty() && fs::read(&moved.path).unwrap() == damaged);
            assert_eq!(fs::read_to_string(beside(&moved.path, "-wal")).unwrap(), format!("log {n}"));
            names.push(moved.path.file_name().unwrap().to_str().unwrap().to_owned());
            assert_eq!((store.alarm_next(), store.generation()), (Ok(None), 1), "it begins anew");
            assert_ne!(store.page(&key(), ask).unwrap().epoch, epoch);
            store.close().unwrap();
        }
        // All of them happened in one second, and none took another's place.
        assert_eq!(names, ["", ".2", ".3"].map(|end| format!("x.db.damaged-20261130T144640Z{end}")));
    }

    #[test]
    fn a_log_without_its_database_is_kept_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        fs::write(beside(&path, "-wal"), "what was acknowledged last").unwrap();
        let refused = Sqlite::open(&path, &OpenOptions { damaged: WhenDamaged::Refuse, ..options(1) });
        assert!(matches!(&refused, Err(OpenError::Corrupt { what, .. }) if what.contains("log")), "{refused:?}");
        let store = Sqlite::open(&path, &options(1)).unwrap();
        let log = beside(&store.moved_aside().unwrap().path, "-wal");
        assert_eq!(fs::read_to_string(log).unwrap(), "what was acknowledged last");
    }

    #[test]
    fn what_is_not_ours_or_newer_is_never_moved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        let mut newer = vec![0; 4_096];
        newer[..16].copy_from_slice(b"SQLite format 3\0");
        newer[60..64].copy_from_slice(&9_999_u32.to_be_bytes());
        newer[68..72].copy_from_slice(&APPLICATION_ID.to_be_bytes());
        for content in [&b"a letter to mother"[..], &newer] {
            fs::write(&path, content).unwrap();
            let refused = Sqlite::open(&path, &options(1));
            assert!(matches!(refused, Err(OpenError::NotOurs { .. } | OpenError::Newer { .. })), "{refused:?}");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        assert_eq!(moved_before(&path).unwrap(), 0);
    }

    #[test]
    fn no_more_are_moved_than_there_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        for n in 0..MOVED_MAX {
            fs::write(&path, n.to_string()).unwrap();
            let aside = move_aside(&path, 0).unwrap();
            assert_eq!(fs::read_to_string(aside).unwrap(), n.to_string());
        }
        fs::write(&path, "one more").unwrap();
        let refused = move_aside(&path, 1_000).unwrap_err().to_string();
        assert!(refused.contains("16 of them lie beside it already"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one more");
        // Who takes one away makes room.
        fs::remove_file(dir.path().join("x.db.damaged-19700101T000000Z.7")).unwrap();
        assert!(move_aside(&path, 1_000).is_ok());
    }
}
