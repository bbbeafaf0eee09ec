//! What this machine gives the process: CPUs, descriptors, locked memory; and pinning to a CPU.

#![allow(unsafe_code, reason = "limits and affinity have no safe interface in the standard library")]

use std::mem;
use std::time::Duration;

/// The CPUs that this process may run on: its affinity mask, within its cpuset.
#[must_use]
pub fn cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the pointer and the size are those of `set`, which the call fills.
    let failed = unsafe { libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &raw mut set) } != 0;
    if failed {
        return vec![0];
    }
    // SAFETY: CPU_ISSET only reads the set, for a number below its size.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Pins the calling thread to `cpu`. A thread that cannot be pinned runs where the system puts it.
pub fn pin_to(cpu: usize) {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if cpu < libc::CPU_SETSIZE as usize {
        // SAFETY: `cpu` is below the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        // SAFETY: the pointer and the size are those of `set`, which the call only reads.
        unsafe { libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &raw const set) };
    }
}

fn limit(resource: libc::__rlimit_resource_t) -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is that of `limit`, which the call fills.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

/// Descriptors that this process may have: soft and hard limit.
#[must_use]
pub fn nofile() -> (u64, u64) {
    limit(libc::RLIMIT_NOFILE)
}

/// Locked memory that this process may have, in bytes; `u64::MAX` is no limit.
#[must_use]
pub fn memlock_bytes() -> u64 {
    limit(libc::RLIMIT_MEMLOCK).0
}

/// Raises the soft limit of descriptors to the hard one. Returns what is in force then.
pub fn raise_nofile() -> u64 {
    let (soft, hard) = nofile();
    if soft < hard {
        let wanted = libc::rlimit { rlim_cur: hard, rlim_max: hard };
        // SAFETY: the pointer is that of `wanted`, which the call only reads.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) };
    }
    nofile().0
}

/// Gives memory that this thread has freed back to the system: the allocator does so for its own thread only, and
/// only when asked.
pub fn give_back_memory() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: a call without arguments that touches this thread's own heap; it may be called at any time.
    unsafe {
        libmimalloc_sys::mi_collect(false);
    }
}

/// The kernel's version, as far as its first two numbers; zeros if it does not say.
#[must_use]
pub fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The number in a file of the kernel's, if it is there.
#[must_use]
pub fn read_number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What is free for us on the disk of this directory, in bytes; `None` if the system does not say.
#[must_use]
pub fn disk_free_bytes(dir: &std::path::Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let dir = if dir.as_os_str().is_empty() { std::path::Path::new(".") } else { dir };
    let dir = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero statvfs is a valid value of a structure of plain numbers.
    let mut disk: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: the path ends with a zero byte and lives until after the call, which fills `disk`.
    let failed = unsafe { libc::statvfs(dir.as_ptr(), &raw mut disk) } != 0;
    (!failed).then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Tells the service manager that everything listens. Without one, nothing is told.
pub fn notify_ready() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// How often a service manager wants to be told that all is well; `None` if it does not.
#[must_use]
pub fn keep_alive() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Tells the service manager that all is well.
pub fn notify_alive() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
}

/// The resident memory of this process, in bytes; 0 if the kernel does not say.
#[must_use]
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // SAFETY: the call takes a number and touches no memory of ours.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * u64::try_from(page_bytes).unwrap_or(4_096)
}

/// Tells the service manager that the node goes away.
pub fn notify_stopping() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_cpu_and_a_limit() {
        assert!(!cpus().is_empty());
        assert!(nofile().0 > 0 && raise_nofile() == nofile().1);
        assert!(memlock_bytes() > 0);
        assert!((1 << 20..1 << 40).contains(&resident_bytes()));
    }
}
