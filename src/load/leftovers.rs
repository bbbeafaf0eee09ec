//! The servers that a load has started and the directories it has made for them, so that a load which is interrupted
//! leaves neither.
//!
//! Servers and directories flow in when they are made and out when the run is done with them; SIGTERM and SIGINT flow in at
//! any time. Always true: a directory is on the list before it exists and until it is gone; a process is named only while
//! it has not been waited for, so nobody else's is ended; and once a signal has come, nothing more is started.

#![allow(
    clippy::disallowed_types,
    reason = "the thread that waits for signals shares the list with the one that conducts"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::signal;

/// What shells add to the number of a signal for the exit code of who was ended by it.
const ENDED_BY_SIGNAL: i32 = 128;

/// Each directory with the server that works in it. A run has one at a time.
static STANDING: Mutex<BTreeMap<PathBuf, Option<Child>>> = Mutex::new(BTreeMap::new());

fn standing() -> MutexGuard<'static, BTreeMap<PathBuf, Option<Child>>> {
    // A list is whole even if whoever held it panicked.
    STANDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on a signal ends this process only after what is on the list.
///
/// # Errors
/// Signals cannot be listened to.
pub(super) fn guard() -> io::Result<()> {
    signal::on_end(|number| {
        // The list is never let go again, so that nobody can start anything more.
        let mut standing = standing();
        for (dir, server) in standing.iter_mut() {
            if let Some(server) = server {
                let _ = server.kill();
                let _ = server.wait();
            }
            let _ = fs::remove_dir_all(dir);
        }
        eprintln!("ringcast load: interrupted: what it had started has ended, and its directories are gone");
        // Workers die with the thread that made them.
        std::process::exit(ENDED_BY_SIGNAL + number);
    })
}

/// Makes a directory and starts a server in it; returns the number of its process. If it cannot be started, there is no
/// directory.
///
/// # Errors
/// Whatever the system says.
pub(super) fn start(dir: &Path, start: impl FnOnce() -> io::Result<Child>) -> io::Result<u32> {
    let mut standing = standing();
    standing.insert(dir.to_owned(), None);
    match fs::create_dir_all(dir).and_then(|()| start()) {
        Ok(child) => {
            let number = child.id();
            standing.insert(dir.to_owned(), Some(child));
            Ok(number)
        }
        Err(error) => {
            let _ = fs::remove_dir_all(dir);
            standing.remove(dir);
            Err(error)
        }
    }
}

/// Looks at the server of a directory; `None` if there is none any more.
pub(super) fn with<R>(dir: &Path, look: impl FnOnce(&mut Child) -> R) -> Option<R> {
    standing().get_mut(dir).and_then(Option::as_mut).map(look)
}

/// Removes a directory whose server has ended.
pub(super) fn clear(dir: &Path) {
    let mut standing = standing();
    let _ = fs::remove_dir_all(dir);
    standing.remove(dir);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_directory_goes_with_its_server_and_with_one_that_did_not_start() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("one");
        let refused = start(&dir, || Command::new("/nowhere/at/all").spawn());
        assert!(refused.is_err() && !dir.exists());
        assert!(with(&dir, |_| ()).is_none());
        let number = start(&dir, || Command::new("true").spawn()).unwrap();
        assert!(number > 0 && dir.exists());
        assert!(with(&dir, Child::wait).unwrap().unwrap().success());
        clear(&dir);
        assert!(!dir.exists() && with(&dir, |_| ()).is_none());
    }
}
