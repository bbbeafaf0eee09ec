//! Descriptors as the runtime wants them: the few places where ownership passes through a bare number.

#![allow(unsafe_code, reason = "the runtime takes descriptors as bare numbers, and eventfd has no safe interface")]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;

use glommio::io::BufferedFile;
use glommio::net::{TcpListener, TcpStream};
use glommio::spawn_local;

use super::wait::LocalBell;

/// A connected socket as a stream of this core's runtime.
#[must_use]
pub fn stream(fd: OwnedFd) -> TcpStream {
    // SAFETY: the number is that of a connected socket which nobody else owns; the stream closes it.
    unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) }
}

/// The descriptor of a stream that has nothing in flight.
///
/// # Errors
/// No descriptor is left.
pub fn back(stream: TcpStream) -> io::Result<OwnedFd> {
    // SAFETY: the stream lives until after the copy is made, and its descriptor with it.
    let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    // A copy, for the runtime closes its own.
    fd.try_clone_to_owned()
}

/// A listening socket as a listener of this core's runtime.
#[must_use]
pub fn listener(fd: OwnedFd) -> TcpListener {
    // SAFETY: the number is that of a listening socket which nobody else owns; the listener closes it.
    unsafe { TcpListener::from_raw_fd(fd.into_raw_fd()) }
}

/// The eventfd that the rings of a core ring. It blocks, for the runtime's ring waits on a read of it. It is read and
/// written eight bytes at a time, as a file.
///
/// # Errors
/// No descriptor is left.
pub fn eventfd() -> io::Result<File> {
    // SAFETY: the call takes two numbers and returns a descriptor or -1.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Rings the eventfd.
pub fn add_one(mut eventfd: &File) {
    // It fails only where the count is at its end, and then it rings without us.
    let _ = eventfd.write(&1_u64.to_ne_bytes());
}

/// Rings `bell` whenever the eventfd is rung. A ring with deferred task work never turns readable itself, so its
/// descriptor cannot be awaited in its place.
///
/// # Errors
/// No descriptor is left.
pub fn watch(eventfd: &File, bell: &Rc<LocalBell>) -> io::Result<()> {
    let copy = eventfd.as_fd().try_clone_to_owned()?;
    // SAFETY: the number is that of a new descriptor which nobody else owns; the file closes it.
    let file = unsafe { BufferedFile::from_raw_fd(copy.into_raw_fd()) };
    let bell = Rc::clone(bell);
    spawn_local(async move {
        // It ends with the first error, which only a closed descriptor gives.
        while file.read_at(0, 8).await.is_ok() {
            bell.ring();
        }
    })
    .detach();
    Ok(())
}
