//! What the measured process costs, read from its CPU clock and from /proc.
//!
//! A pid flows in, CPU time and memory flow out; what is always true is that reading never touches the process, and
//! that what cannot be read is `None` and not zero.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use super::kernel;

/// One process under measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    pid: u32,
}

impl Meter {
    /// Of the process `pid`.
    pub(super) fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// Of the process that listens on `addr`, if it runs on this machine and we may look.
    pub(super) fn of_listener(addr: SocketAddr) -> Option<Self> {
        let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .filter_map(|table| fs::read_to_string(table).ok())
            .flat_map(|table| listeners(&table, addr).map(|inode| format!("socket:[{inode}]")).collect::<Vec<_>>())
            .collect();
        if sockets.is_empty() {
            return None;
        }
        let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.into_iter().find(|pid: &u32| owns(*pid, &sockets)).map(Self::of)
    }

    /// Nanoseconds of CPU that all its threads have used, user and kernel, those that have ended included.
    pub(super) fn cpu_ns(self) -> Option<u64> {
        kernel::cpu_ns_of(self.pid)
    }

    /// Resident memory in MiB.
    pub(super) fn rss_mib(self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1_024.0)
    }
}

/// The inodes of sockets that listen on `addr`, or on its port of all addresses, in a table of the kernel.
fn listeners(table: &str, addr: SocketAddr) -> impl Iterator<Item = &str> {
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, port) = fields.get(1)?.split_once(':')?;
        let listens = *fields.get(3)? == "0A";
        let right_port = u16::from_str_radix(port, 16).ok()? == addr.port();
        // Addresses are hexadecimal words in the byte order of the machine.
        let mine = match addr.ip() {
            IpAddr::V4(mine) => format!("{:08X}", u32::from_le_bytes(mine.octets())),
            IpAddr::V6(_) => "00000000000000000000000001000000".to_owned(),
        };
        let right_ip = ip == mine || ip.bytes().all(|digit| digit == b'0');
        (listens && right_port && right_ip).then(|| fields.get(9).copied()).flatten()
    })
}

fn owns(pid: u32, sockets: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .flatten()
        .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
        .any(|target| target.to_str().is_some_and(|target| sockets.iter().any(|socket| socket == target)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_listener_of_a_port_is_found_and_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let meter = Meter::of_listener(listener.local_addr().unwrap()).unwrap();
        assert_eq!(meter.pid, std::process::id());
        let before = meter.cpu_ns().unwrap();
        let sum: u64 = (0..5_000_000_u64).fold(1, |sum, n| sum.wrapping_mul(31).wrapping_add(std::hint::black_box(n)));
        std::hint::black_box(sum);
        assert!(meter.cpu_ns().unwrap() > before);
        assert!(meter.rss_mib().unwrap() > 0.5);
    }

    #[test]
    fn a_table_is_read_by_state_port_and_address() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
             1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 12 1\n\
             2: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1\n\
             3: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1\n";
        let found: Vec<&str> = listeners(table, "127.0.0.1:8080".parse().unwrap()).collect();
        assert_eq!(found, ["11", "13"]);
    }
}
