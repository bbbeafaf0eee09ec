//! One core of a node that stands still, as under a debugger, for tests of what the others do without it.

#![allow(unsafe_code, reason = "one thread of another process is stopped as a debugger does it")]

/// A thread that stands still until this is dropped.
pub(crate) struct Stopped(libc::pid_t);

impl Stopped {
    /// Stops the thread of `pid` whose name begins so.
    pub(crate) fn new(pid: u32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let named = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name))
        };
        let task = tasks.flatten().find(named).unwrap_or_else(|| panic!("no thread {name}"));
        let thread: libc::pid_t = task.file_name().to_str().unwrap().parse().unwrap();
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the requests take no memory of ours and name a thread of our own child; waitpid fills a number of ours.
        unsafe {
            let seized = libc::ptrace(libc::PTRACE_SEIZE, thread, nothing, nothing);
            assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, nothing, nothing), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
        }
        Self(thread)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the request takes no memory of ours; the thread was seized by us and is stopped.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, nothing, nothing) };
    }
}
