//! The few kernel calls that std has no door to: the monotonic clock, epoll, ppoll and signals.
//!
//! Descriptors and times flow in, readiness and nanoseconds flow out; what is always true is that every `unsafe` of
//! the load generator stands in this file, behind functions that are safe to call with any argument.

#![allow(unsafe_code, reason = "epoll, ppoll, the raw clock and signals have no safe door in std")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Nanoseconds of `CLOCK_MONOTONIC`. The zero is the machine's, so the readings of several processes compare.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local timespec that lives through the call, and the clock id is a constant that
    // every Linux knows, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of the process `pid` in nanoseconds: its own clock is exact and keeps threads that have ended, where
/// /proc/PID/stat has ticks of 10 ms and the list of threads forgets. `None` if there is no such process.
pub(super) fn cpu_ns_of(pid: u32) -> Option<u64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both pointers are to locals that live through the calls; the second call runs only if the first has
    // written the clock, and fails if the process ended in between.
    let read = unsafe {
        libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    read.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Sleeps; only the conducting thread does, between two looks at the progress.
#[allow(clippy::disallowed_methods, reason = "the conductor has no event loop: it looks around at a fixed pace")]
pub(super) fn nap(time: Duration) {
    std::thread::sleep(time);
}

/// Lets timeouts of this thread end within microseconds; the default slack of 50 µs would show as late posts.
pub(super) fn wake_sharply() {
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}

/// Asks the process `pid` to end. Only ever called with the pid of a child that was not waited for yet, so the number
/// cannot have been given to somebody else.
pub(super) fn terminate(pid: u32) {
    // SAFETY: kill takes two numbers and touches no memory of ours.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) };
}

/// Makes the child of `command` die when the calling thread does, so that a crash leaves no node or worker behind.
pub(super) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure only makes two system calls that are safe in a signal handler, and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the wish was known to the kernel.
            if libc::getppid() as u32 == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
}

/// Lets the child of `command` run on these CPUs only.
pub(super) fn keep_on(command: &mut Command, cpus: &[u16]) {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| i32::from(cpu) < libc::CPU_SETSIZE) {
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(cpu.into(), &mut set) };
    }
    // SAFETY: between fork and exec the closure makes one system call that is safe in a signal handler, reads a set it
    // owns, and allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// One send(2) that does not wait; returns what the kernel took.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    match socket2::SockRef::from(&socket).send_with_flags(bytes, flags) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

/// Lets the kernel choose the port at connect, by the whole address pair, instead of at bind: thousands of sockets may
/// then share a source address.
pub(super) fn choose_port_late(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe one local c_int, which the kernel only reads.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until one of `sockets` is ready or `timeout` is over.
pub(super) fn wait_any(sockets: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
    let time = libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // SAFETY: pointer and length describe the slice, which is borrowed mutably through the call; the timespec is local
    // and the signal mask may be null.
    let ready =
        unsafe { libc::ppoll(sockets.as_mut_ptr(), sockets.len() as libc::nfds_t, &raw const time, std::ptr::null()) };
    if ready >= 0 {
        return Ok(ready as usize);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
}

/// Something may be read.
pub(super) const READABLE: u32 = libc::EPOLLIN as u32;
/// Something may be written; for a connecting socket: the attempt has ended.
pub(super) const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The other side has ended, so the socket must be read to its end now: no further edge will come.
pub(super) const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// How many events one wait returns at most.
const BATCH: usize = 1_024;

/// An edge-triggered epoll set: an event comes once for each arrival, so a socket that was read dry costs nothing more.
pub(super) struct Epoll {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: takes a number, touches no memory of ours.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, is valid, and nobody else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH] })
    }

    fn control(&self, operation: libc::c_int, socket: BorrowedFd<'_>, key: u64, interest: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest | (libc::EPOLLRDHUP | libc::EPOLLET) as u32, u64: key };
        // SAFETY: both descriptors are open (one owned, one borrowed) and the event is local; the kernel copies it.
        let answer = unsafe { libc::epoll_ctl(self.set.as_raw_fd(), operation, socket.as_raw_fd(), &raw mut event) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Watches `socket`; its events carry `key`. It leaves the set by being closed.
    pub(super) fn add(&self, socket: BorrowedFd<'_>, key: u64, interest: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, key, interest)
    }

    /// Watches `socket` no longer.
    pub(super) fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, socket, 0, 0)
    }

    /// Changes what is watched. What is ready already is reported again.
    pub(super) fn change(&self, socket: BorrowedFd<'_>, key: u64, interest: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, key, interest)
    }

    /// Waits and returns how many events [`Epoll::event`] has.
    pub(super) fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        // SAFETY: pointer and length describe a vector of ours that is borrowed mutably through the call.
        let ready = unsafe {
            libc::epoll_wait(self.set.as_raw_fd(), self.events.as_mut_ptr(), BATCH as libc::c_int, timeout_ms)
        };
        if ready >= 0 {
            return Ok(ready as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
    }

    /// Key and flags of the event `number` of the last wait.
    pub(super) fn event(&self, number: usize) -> (u64, u32) {
        let event = self.events[number];
        (event.u64, event.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn the_clock_never_steps_back_and_epoll_reports_an_arrival_once() {
        let first = now_ns();
        assert!(now_ns() >= first);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        let mut epoll = Epoll::new().unwrap();
        epoll.add(reader.as_fd(), 7, READABLE).unwrap();
        assert_eq!(epoll.wait(0).unwrap(), 0);
        writer.write_all(b"x").unwrap();
        assert_eq!(epoll.wait(1_000).unwrap(), 1);
        assert_eq!(epoll.event(0).0, 7);
        assert_eq!(epoll.wait(0).unwrap(), 0, "edge-triggered");
        epoll.change(reader.as_fd(), 8, READABLE).unwrap();
        assert_eq!(epoll.wait(1_000).unwrap(), 1, "a change reports again what is ready");
        assert_eq!(epoll.event(0).0, 8);
    }
}
