//! Where a load goes.
//!
//! A URL flows in, an address flows out; what is always true is that it is this machine: an address that is not loopback
//! does not become an [`Endpoint`].

use serde::{Serialize, Serializer};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// A loopback address as a URL says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// Where to connect.
    pub(super) addr: SocketAddr,
    /// What the Host header says.
    pub(super) host: String,
}

impl Endpoint {
    /// `127.0.0.1:port`.
    pub(super) fn local(port: u16) -> Self {
        let addr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        Self { addr, host: addr.to_string() }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let host = text.strip_prefix("http://").ok_or("a URL begins with http://")?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port.parse().map_err(|_| "the port is no number")?),
            _ => (host, 80),
        };
        let ip = match name {
            "localhost" => Ipv4Addr::LOCALHOST.into(),
            "[::1]" => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            other => other.parse::<Ipv4Addr>().ok().filter(Ipv4Addr::is_loopback).map(IpAddr::V4).ok_or_else(|| {
                format!("{other} is not this machine: load goes to 127.0.0.0/8, localhost or [::1] only")
            })?,
        };
        Ok(Self { addr: SocketAddr::new(ip, port), host: host.to_owned() })
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("http://{}", self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_a_target() {
        for good in
            ["http://127.0.0.1:8080", "http://127.3.2.1:1/", "http://localhost:8080", "http://[::1]:80", "http://[::1]"]
        {
            assert!(good.parse::<Endpoint>().is_ok(), "{good}");
        }
        for bad in [
            "http://10.0.0.1:80",
            "http://example.com",
            "https://127.0.0.1",
            "http://0.0.0.0:80",
            "127.0.0.1:80",
            "http://[::2]:80",
            "http://127.0.0.1.example.com:80",
            "http://user@127.0.0.1:80",
            "http://127.0.0.1:80/path",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
