//! Proxies in front of the node: whose word is taken, and who a request is from then.
//!
//! Where a connection comes from and what is said in it flow in, the [`Origin`] that limits and rules look at flows out.
//! Always true: nobody but a listed proxy is believed; what counts is the client and never the proxy; and whoever is
//! listed is exempt from the limits of addresses.

use std::net::IpAddr;

use super::socket::address_key;
use crate::base::Network;
use crate::shard::Origin;
use crate::wire::forwarded;
use crate::wire::problem::Problem;

/// The proxies of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// Where they are.
    pub networks: Vec<Network>,
    /// Each of their connections begins with a PROXY header.
    pub proxy_protocol: bool,
}

impl Proxies {
    fn lists(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// A connection from there begins with a PROXY header.
    #[must_use]
    pub fn expects_header(&self, peer: Option<IpAddr>) -> bool {
        self.proxy_protocol && peer.is_some_and(|peer| self.lists(peer))
    }

    /// Who a request is from: `source` is the other end of the connection, or whom its PROXY header names, and
    /// `forwarded_for` the request's `X-Forwarded-For`.
    ///
    /// # Errors
    /// 400 if a listed proxy names somebody who has no address.
    pub fn origin(&self, source: Option<IpAddr>, forwarded_for: &str) -> Result<Origin, Problem> {
        let Some(source) = source else { return Ok(Origin { address: None, loopback: false }) };
        let client = forwarded::client(source, forwarded_for, |address| self.lists(address))?;
        let address = if self.lists(client) { None } else { address_key(client) };
        Ok(Origin { address, loopback: client.is_loopback() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::post::letters::AddressKey;

    #[test]
    fn the_client_counts_and_the_proxy_is_exempt() {
        let networks = ["10.0.0.0/8", "127.0.0.2"].map(|text| text.parse().unwrap()).to_vec();
        let proxies = Proxies { networks, proxy_protocol: true };
        let origin = |source: &str, field: &str| {
            let origin = proxies.origin(Some(source.parse().unwrap()), field).unwrap();
            (origin.address, origin.loopback)
        };
        let key = |text: &str| address_key(text.parse().unwrap());
        assert_eq!(origin("10.0.0.1", ""), (None, false));
        assert_eq!(origin("10.0.0.1", "192.0.2.7"), (key("192.0.2.7"), false));
        assert_eq!(origin("127.0.0.2", "2001:db8::7"), (Some(AddressKey::V6(0x2001_0DB8_0000_0000)), false));
        assert_eq!(origin("127.0.0.2", "127.0.0.1"), (None, true));
        assert_eq!(origin("127.0.0.1", "192.0.2.7"), (None, true), "not listed, so not believed");
        assert_eq!(origin("192.0.2.7", "10.0.0.1"), (key("192.0.2.7"), false));
        assert!(proxies.expects_header("10.0.0.1".parse().ok()) && !proxies.expects_header("11.0.0.1".parse().ok()));
        assert!(!proxies.expects_header(None));
        assert!(proxies.origin(None, "192.0.2.7").is_ok_and(|origin| origin.address.is_none() && !origin.loopback));
    }
}
