//! Listeners and the options of a viewer's socket.
//!
//! Addresses flow in, descriptors flow out. Always true: options are set before the socket goes to a ring, for there it
//! has no descriptor any more.

#![allow(unsafe_code, reason = "how long the queue of a listener is has no safe interface")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::base::Gauge;
use crate::post::letters::AddressKey;

/// How a viewer's socket behaves.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// `SO_SNDBUF`: what the kernel keeps for a viewer that is slow; the kernel doubles it for its own needs.
    pub sndbuf_bytes: u32,
    /// `TCP_NOTSENT_LOWAT`: lag beyond this stays in our queue, where it can be merged and evicted.
    pub notsent_lowat_bytes: u32,
    /// `TCP_USER_TIMEOUT`: a peer that acknowledges nothing for so long is gone.
    pub user_timeout_ms: u32,
}

/// Holds a port for one node: a name in the abstract socket space, which the kernel gives back however the process ends.
#[derive(Debug)]
pub struct PortLock {
    _lock: Socket,
}

/// Takes the port for this node. Listeners share their port among the cores (`SO_REUSEPORT`), which a second node could
/// join unnoticed and steal half of all connections.
///
/// # Errors
/// The port is in use, by another node or by another program.
pub fn lock_port(address: SocketAddr) -> io::Result<PortLock> {
    let lock = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let name = format!("\0ringcast/{address}");
    lock.bind(&SockAddr::unix(name)?)?;
    // Another program has no such lock: a bind without SO_REUSEPORT finds it.
    let probe = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    probe.set_reuse_address(true)?;
    probe.bind(&address.into())?;
    Ok(PortLock { _lock: lock })
}

/// A listening socket, non-blocking and close-on-exec; with `shared`, one of several on its port.
///
/// # Errors
/// Whatever the kernel says.
pub fn listen(address: SocketAddr, backlog: u32, shared: bool) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// A socket that is connecting, or connected: writing waits until it is, and says if it cannot be.
///
/// # Errors
/// Whatever the kernel says at once.
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Sets what a viewer's socket needs, on the listener: what it accepts inherits all of it, and a join saves four system
/// calls.
///
/// # Errors
/// Whatever the kernel says.
pub fn prepare(listener: &OwnedFd, options: &SocketOptions) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_tcp_nodelay(true)?;
    socket.set_send_buffer_size(options.sndbuf_bytes as usize)?;
    socket.set_tcp_notsent_lowat(options.notsent_lowat_bytes)?;
    socket.set_tcp_user_timeout(Some(Duration::from_millis(u64::from(options.user_timeout_ms))))?;
    Ok(())
}

/// Connections that wait to be accepted by this listener, and how many may; `None` if the kernel does not say.
#[must_use]
pub fn accept_queue(listener: &OwnedFd) -> Option<Gauge> {
    let size = std::mem::size_of::<libc::tcp_info>();
    // SAFETY: an all-zero tcp_info is a valid value of a structure of plain numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size).ok()?;
    // SAFETY: pointer and length are those of `info`, which the call fills and does not keep.
    let failed = unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        libc::getsockopt(listener.as_raw_fd(), level, option, (&raw mut info).cast(), &raw mut length)
    } != 0;
    // Of a listener the kernel tells in these two fields how long its queue is, and how long it may be.
    (!failed).then(|| Gauge::new(info.tcpi_unacked.into(), info.tcpi_sacked.into()))
}

/// Who is at the other end.
#[must_use]
pub fn peer(fd: &OwnedFd) -> Option<IpAddr> {
    let address = SockRef::from(fd).peer_addr().ok()?.as_socket()?.ip();
    // A v4 client of a v6 listener is a v4 client.
    Some(address.to_canonical())
}

/// The key that an address counts under; loopback counts nowhere.
#[must_use]
pub fn address_key(address: IpAddr) -> Option<AddressKey> {
    if address.is_loopback() {
        return None;
    }
    Some(match address {
        IpAddr::V4(v4) => AddressKey::V4(v4.to_bits()),
        IpAddr::V6(v6) => AddressKey::V6((v6.to_bits() >> 64) as u64),
    })
}

/// Sends what fits and no more: the last words to a socket that is closed next.
pub fn send_last(fd: &OwnedFd, bytes: &[u8]) {
    let socket = SockRef::from(fd);
    // A peer that does not take a few hundred bytes at once does not get them.
    let _ = socket.send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let _ = socket.shutdown(std::net::Shutdown::Write);
}

/// Throws away what has come on a socket that is about to be closed: unread bytes would turn the close into a reset,
/// and the peer might lose the last words. True at the peer's end.
pub fn discard(fd: &OwnedFd) -> bool {
    let mut scratch = [0_u8; 4_096];
    for _ in 0..16 {
        match receive(fd, &mut scratch) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
    false
}

fn receive(fd: &OwnedFd, scratch: &mut [u8]) -> io::Result<usize> {
    use std::io::Read;
    let socket = SockRef::from(fd);
    (&*socket).read(scratch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_whole_or_by_64_bits_and_loopback_not_at_all() {
        let key = |text: &str| address_key(text.parse::<IpAddr>().unwrap());
        assert_eq!(key("127.3.2.1"), None);
        assert_eq!(key("::1"), None);
        assert_eq!(key("10.0.0.1"), Some(AddressKey::V4(0x0A00_0001)));
        assert_eq!(key("2001:db8::1"), key("2001:db8::2"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    }

    #[test]
    fn what_a_listener_accepts_inherits_its_options() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 16, true).unwrap();
        let options = SocketOptions { sndbuf_bytes: 70_000, notsent_lowat_bytes: 33_000, user_timeout_ms: 41_000 };
        prepare(&listener, &options).unwrap();
        let address = SockRef::from(&listener).local_addr().unwrap();
        let _peer = std::net::TcpStream::connect(address.as_socket().unwrap()).unwrap();
        let accepted = loop {
            match SockRef::from(&listener).accept() {
                Ok((accepted, _)) => break accepted,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        assert!(accepted.tcp_nodelay().unwrap());
        assert_eq!(accepted.send_buffer_size().unwrap(), 140_000, "the kernel doubles it");
        assert_eq!(accepted.tcp_notsent_lowat().unwrap(), 33_000);
        assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(Duration::from_secs(41)));
    }

    #[test]
    fn who_is_not_accepted_yet_is_counted() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 3, true).unwrap();
        let address = SockRef::from(&listener).local_addr().unwrap().as_socket().unwrap();
        assert_eq!(accept_queue(&listener), Some(Gauge::new(0, 3)));
        let _peers = [(); 2].map(|()| std::net::TcpStream::connect(address).unwrap());
        assert_eq!(accept_queue(&listener), Some(Gauge::new(2, 3)));
        SockRef::from(&listener).accept().unwrap();
        assert_eq!(accept_queue(&listener).map(|queue| queue.used), Some(1));
    }

    #[test]
    fn a_port_has_one_node() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 16, true).unwrap();
        let address = SockRef::from(&listener).local_addr().unwrap().as_socket().unwrap();
        // Somebody listens there without our lock.
        assert_eq!(lock_port(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        let lock = lock_port(address).unwrap();
        assert_eq!(lock_port(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let (_a, _b) = (listen(address, 16, true).unwrap(), listen(address, 16, true).unwrap());
        drop(lock);
    }
}
