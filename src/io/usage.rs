//! What the node takes of its machine, and what waits at the orchestrator's door, as used and limit.
//!
//! A look flows out whenever the admin listener is asked. Always true: nothing is kept between two looks, and what cannot
//! be read is left out rather than guessed.

use std::path::PathBuf;

use super::committer::StoreQueues;
use super::handoff::StoreNews;
use super::machine;
use crate::base::Gauge;
use crate::post::letters::ToOrchestrator;
use crate::post::mailbox::Sender;

/// What the disk is watched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// So much shall be free on the disk of the database, in MiB; 0 watches nothing.
    pub reserve_mib: u32,
    /// Beyond so much the log in front of the database is not moved into it as it should be, in MiB.
    pub wal_mib_max: u32,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { reserve_mib: 1_024, wal_mib_max: 256 }
    }
}

/// Where to look.
#[derive(Debug)]
pub struct Usage {
    /// The database.
    pub database: PathBuf,
    /// The most that it may grow to, in bytes; 0 is no limit of its own.
    pub database_bytes_max: u64,
    /// Its disk.
    pub disk: DiskOptions,
    /// The orchestrator's letters.
    pub letters: Option<Sender<ToOrchestrator>>,
    /// The store's news.
    pub news: Sender<StoreNews>,
    /// What waits for the store's threads.
    pub store: StoreQueues,
}

const MIB: u64 = 1 << 20;

impl Usage {
    /// Everything as it is now.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, Gauge)> {
        let mut gauges = vec![("mailbox_news", self.news.gauge())];
        gauges.extend(self.store.gauges());
        gauges.extend(self.letters.as_ref().map(|letters| ("mailbox_letters", letters.gauge())));
        let descriptors = std::fs::read_dir("/proc/self/fd").map(|open| open.count() as u64);
        // The look itself has one open.
        gauges.extend(
            descriptors.ok().map(|open| ("descriptors", Gauge::new(open.saturating_sub(1), machine::nofile().0))),
        );
        let bytes = |end: &str| {
            let mut path = self.database.clone().into_os_string();
            path.push(end);
            std::fs::metadata(path).map_or(0, |file| file.len())
        };
        gauges.push(("wal_bytes", Gauge::new(bytes("-wal"), u64::from(self.disk.wal_mib_max) * MIB)));
        if self.database_bytes_max > 0 {
            gauges.push(("database_bytes", Gauge::new(bytes(""), self.database_bytes_max)));
        }
        let reserve = u64::from(self.disk.reserve_mib) * MIB;
        if reserve > 0
            && let Some(free) = self.database.parent().and_then(machine::disk_free_bytes)
        {
            gauges.push(("disk_reserve_bytes", reserve_gone(reserve, free)));
        }
        gauges
    }
}

/// How much of the reserve is gone: nothing while more than it is free, all of it when nothing is.
fn reserve_gone(reserve: u64, free: u64) -> Gauge {
    Gauge::new(reserve - free.min(reserve), reserve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::post::mailbox::{Doorbell, mailbox};

    #[test]
    fn a_reserve_is_untouched_until_the_disk_is_nearly_full() {
        assert_eq!(reserve_gone(100, 5_000), Gauge::new(0, 100));
        assert_eq!(reserve_gone(100, 100), Gauge::new(0, 100));
        assert_eq!(reserve_gone(100, 30), Gauge::new(70, 100));
        assert!(reserve_gone(100, 0).is_full());
    }

    #[test]
    fn everything_is_there_with_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("x.sqlite");
        std::fs::write(dir.path().join("x.sqlite-wal"), [0; 5_000]).unwrap();
        std::fs::write(&database, [0; 7_000]).unwrap();
        let (news, _inbox) = mailbox(9, &Doorbell::new());
        let (disk, store) = (DiskOptions::default(), StoreQueues::new(7));
        let mut usage = Usage { database, database_bytes_max: 9_000, disk, letters: None, news, store };
        let of =
            |usage: &Usage, name| usage.gauges().into_iter().find(|(what, _)| *what == name).map(|(_, gauge)| gauge);
        assert_eq!(of(&usage, "wal_bytes"), Some(Gauge::new(5_000, 256 * MIB)));
        assert_eq!(of(&usage, "database_bytes"), Some(Gauge::new(7_000, 9_000)));
        assert_eq!(of(&usage, "mailbox_news"), Some(Gauge::new(0, 9)));
        assert_eq!(of(&usage, "store_reads"), Some(Gauge::new(0, 7)));
        let before = of(&usage, "descriptors").unwrap();
        let _more: Vec<_> = (0..5).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = of(&usage, "descriptors").unwrap();
        // Other tests of this process open and close files meanwhile.
        assert!(after.limit == before.limit && after.used > 5 && before.used > 0);
        assert!(of(&usage, "disk_reserve_bytes").is_some_and(|gauge| gauge.limit == 1_024 * MIB));
        (usage.disk.reserve_mib, usage.database_bytes_max) = (0, 0);
        assert_eq!((of(&usage, "disk_reserve_bytes"), of(&usage, "database_bytes")), (None, None));
    }
}
