//! Networks in CIDR notation.
//!
//! Text flows in, a network that can be asked about an address flows out. Always true: no bit is set behind the prefix,
//! so `10.0.0.1/8`, which its writer may have meant as one address, is refused instead of being widened.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// All addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// 0 to 32 for IPv4, 0 to 128 for IPv6.
    bits: u8,
}

impl Network {
    /// `ip` belongs to it. An IPv4 address that comes mapped into IPv6, as a dual-stack listener shows it, is IPv4.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (ours, width) = as_number(self.address);
        let (theirs, other_width) = as_number(ip.to_canonical());
        width == other_width && (ours ^ theirs) & mask(self.bits, width) == 0
    }
}

/// The address as a number, and how many bits it has.
fn as_number(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    }
}

fn mask(bits: u8, width: u8) -> u128 {
    let all = u128::MAX >> (128 - u32::from(width));
    all & !all.checked_shr(u32::from(bits)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "a network is written like 10.0.0.0/8, 2001:db8::/32 or 192.0.2.7";
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| FORM)?;
        let (number, width) = as_number(address);
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| FORM)?;
        if bits > width {
            return Err("a prefix has at most 32 bits for IPv4 and 128 for IPv6");
        }
        if number & !mask(bits, width) != 0 {
            return Err("bits are set behind the prefix: zero them, or write a longer prefix");
        }
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_inside_or_outside() {
        let inside = |network: &str, ip: &str| network.parse::<Network>().unwrap().contains(ip.parse().unwrap());
        assert!(inside("10.0.0.0/8", "10.255.0.1") && !inside("10.0.0.0/8", "11.0.0.0"));
        assert!(inside("192.0.2.7", "192.0.2.7") && !inside("192.0.2.7", "192.0.2.6"));
        assert!(inside("0.0.0.0/0", "1.2.3.4") && !inside("0.0.0.0/0", "::1"));
        assert!(inside("::/0", "2001:db8::1") && inside("2001:db8::/33", "2001:db8:7fff::1"));
        assert!(!inside("2001:db8::/33", "2001:db8:8000::1"));
        assert!(inside("10.0.0.0/8", "::ffff:10.1.2.3"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in ["", "10.0.0.0/33", "::/129", "10.0.0.1/8", "10.0.0/8", "a/8", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        assert_eq!("10.0.0.0/8".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
    }
}
