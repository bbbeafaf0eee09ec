//! The PROXY protocol, versions 1 and 2, as a proxy writes it in front of everything else
//! (haproxy.org/download/3.0/doc/proxy-protocol.txt).
//!
//! The first bytes of a connection flow in; the client that they name and how many bytes they are flow out. Always true:
//! a header is taken whole or not at all, however it is cut; it has at most [`PROXY_BYTES_MAX`] bytes; and what contradicts
//! itself (a length, a family, a checksum) is refused, never guessed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest header that is taken, in bytes. Version 2 could grow to 64 KiB of extensions; certificates, which are the
/// longest of them, are not what this node asks for.
pub const PROXY_BYTES_MAX: usize = 4_096;
/// The longest header of version 1, in bytes (§2.1).
const V1_BYTES_MAX: usize = 107;
const V1_PREFIX: &[u8] = b"PROXY ";
/// The signature of version 2 (§2.2): nothing that HTTP could begin with.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, command, family and length.
const V2_HEAD_BYTES: usize = 16;
/// The type of the extension that holds a CRC32c of the header (§2.2.3).
const TLV_CRC32C: u8 = 0x03;

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Whom the proxy speaks for. `None`: itself (`LOCAL`), or somebody who has no address of IP.
    pub client: Option<IpAddr>,
    /// Bytes of the header; what the client sent follows.
    pub length: usize,
}

/// These bytes begin with a header of either version, or with the first bytes of one that is longer than they are.
#[must_use]
pub fn begins(bytes: &[u8]) -> bool {
    let fits = |prefix: &[u8]| !bytes.is_empty() && bytes.iter().zip(prefix).all(|(a, b)| a == b);
    fits(V1_PREFIX) || fits(V2_SIGNATURE)
}

/// These bytes begin with the whole mark of a header of either version.
#[must_use]
pub fn is_marked(bytes: &[u8]) -> bool {
    bytes.starts_with(V1_PREFIX) || bytes.starts_with(V2_SIGNATURE)
}

/// Reads the header that `bytes` begin with. `None`: more must come.
///
/// # Errors
/// What is wrong with it; the connection is of no use then.
pub fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, &'static str> {
    if bytes.is_empty() {
        return Ok(None);
    }
    if !begins(bytes) {
        return Err("neither version 1 nor version 2 begins like this");
    }
    if bytes.starts_with(V2_SIGNATURE) {
        parse_v2(bytes)
    } else if bytes.starts_with(V1_PREFIX) {
        parse_v1(bytes)
    } else {
        Ok(None)
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Option<ProxyHeader>, &'static str> {
    let window = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = super::scan::line_end(window) else {
        return if window.len() == V1_BYTES_MAX { Err("a line of version 1 has at most 107 bytes") } else { Ok(None) };
    };
    let length = end + 2;
    let line = std::str::from_utf8(&window[V1_PREFIX.len()..end]).map_err(|_| "a line of version 1 is ASCII")?;
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Ok(Some(ProxyHeader { client: None, length }));
    }
    let [family, from, to, from_port, to_port] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Err("a line of version 1 has a family, two addresses and two ports");
    };
    let address = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| "TCP4 goes with two addresses of IPv4"),
        "TCP6" => text.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| "TCP6 goes with two addresses of IPv6"),
        _ => Err("the families of version 1 are TCP4, TCP6 and UNKNOWN"),
    };
    let (client, _) = (address(from)?, address(to)?);
    if !is_port(from_port) || !is_port(to_port) {
        return Err("a port is 0 to 65535, without zeros in front");
    }
    Ok(Some(ProxyHeader { client: Some(client.to_canonical()), length }))
}

fn is_port(text: &str) -> bool {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits && (text == "0" || !text.starts_with('0')) && text.parse::<u16>().is_ok()
}

fn parse_v2(bytes: &[u8]) -> Result<Option<ProxyHeader>, &'static str> {
    // Each byte is judged as soon as it is there, so that nobody is waited for who is wrong already.
    let Some(&version_command) = bytes.get(12) else { return Ok(None) };
    let speaks_for_itself = match version_command {
        0x20 => true,
        0x21 => false,
        other if other >> 4 == 2 => return Err("the commands of version 2 are LOCAL and PROXY"),
        _ => return Err("the signature of version 2 is followed by another version"),
    };
    let Some(&family) = bytes.get(13) else { return Ok(None) };
    let address_bytes = match family {
        _ if speaks_for_itself => 0,
        0x00 => 0,
        0x11 => 12,
        0x21 => 36,
        0x31 => 216,
        _ => return Err("the families of version 2 are unspecified, and streams of IPv4, IPv6 and UNIX"),
    };
    let Some(length) = bytes.get(14..V2_HEAD_BYTES) else { return Ok(None) };
    let body_bytes = usize::from(u16::from_be_bytes([length[0], length[1]]));
    if body_bytes < address_bytes {
        return Err("the length is too small for the addresses of this family");
    }
    let length = V2_HEAD_BYTES + body_bytes;
    if length > PROXY_BYTES_MAX {
        return Err("a header has at most 4096 bytes");
    }
    let Some(header) = bytes.get(..length) else { return Ok(None) };
    if speaks_for_itself || family == 0 {
        // What follows is to be skipped, whatever it is (§2.2).
        return Ok(Some(ProxyHeader { client: None, length }));
    }
    let body = &header[V2_HEAD_BYTES..];
    check_extensions(header, V2_HEAD_BYTES + address_bytes)?;
    let client = match family {
        0x11 => body.first_chunk::<4>().map(|octets| IpAddr::V4(Ipv4Addr::from(*octets))),
        0x21 => body.first_chunk::<16>().map(|octets| IpAddr::V6(Ipv6Addr::from(*octets))),
        _ => None,
    };
    Ok(Some(ProxyHeader { client: client.map(|client| client.to_canonical()), length }))
}

/// The extensions fill the header exactly, and a checksum among them fits (§2.2.3 wants the connection dropped else).
fn check_extensions(header: &[u8], mut at: usize) -> Result<(), &'static str> {
    const UNEVEN: &str = "an extension is longer than the header it stands in";
    while at < header.len() {
        let [kind, high, low, ..] = header[at..] else { return Err(UNEVEN) };
        let value = at + 3..at + 3 + usize::from(u16::from_be_bytes([high, low]));
        let Some(bytes) = header.get(value.clone()) else { return Err(UNEVEN) };
        if kind == TLV_CRC32C {
            let told = bytes.try_into().map(u32::from_be_bytes).map_err(|_| "a CRC32c has four bytes")?;
            if crc32c(header, &value) != told {
                return Err("the checksum does not fit");
            }
        }
        at = value.end;
    }
    Ok(())
}

/// CRC32c (RFC 9260, appendix A) of `bytes`, of which those in `zeroed` count as zero.
#[must_use]
pub fn crc32c(bytes: &[u8], zeroed: &std::ops::Range<usize>) -> u32 {
    let crc = bytes.iter().enumerate().fold(u32::MAX, |crc, (at, byte)| {
        let byte = if zeroed.contains(&at) { 0 } else { *byte };
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
    });
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        text.parse().ok()
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        [&V2_SIGNATURE[..], &[command, family], &(body.len() as u16).to_be_bytes(), body].concat()
    }

    #[test]
    fn version_1_names_the_client() {
        let client = |line: &str| parse(line.as_bytes()).map(|header| header.map(|header| header.client));
        assert_eq!(client("PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\nGET"), Ok(Some(ip("192.0.2.7"))));
        assert_eq!(client("PROXY TCP6 2001:db8::7 ::1 0 65535\r\n"), Ok(Some(ip("2001:db8::7"))));
        assert_eq!(client("PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n"), Ok(Some(ip("192.0.2.7"))));
        assert_eq!(client("PROXY UNKNOWN\r\n"), Ok(Some(None)));
        assert_eq!(client("PROXY UNKNOWN ffff::1 what ever\r\n"), Ok(Some(None)));
        assert_eq!(parse(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET").unwrap().unwrap().length, 32);
        for part in ["P", "PROXY", "PROXY ", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r"] {
            assert_eq!(client(part), Ok(None), "{part}");
        }
        for bad in [
            "GET / HTTP/1.1\r\n",
            "proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
            "PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 1.2.3.4 ::1 1 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
            "PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n",
            "PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY \u{e4}\r\n",
        ] {
            assert!(client(bad).is_err(), "{bad}");
        }
        assert_eq!(client(&format!("PROXY UNKNOWN {}", "x".repeat(92))), Ok(None));
        assert!(client(&format!("PROXY UNKNOWN {}\r\n", "x".repeat(93))).is_err(), "108 bytes");
    }

    #[test]
    fn version_2_names_the_client() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 1, 2, 3, 4];
        let header = |bytes: &[u8]| parse(bytes);
        let client = |bytes: &[u8]| header(bytes).map(|header| header.map(|header| header.client));
        assert_eq!(client(&v2(0x21, 0x11, &v4)), Ok(Some(ip("192.0.2.7"))));
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 0x01]);
        v6[15] = 9;
        assert_eq!(client(&v2(0x21, 0x21, &v6)), Ok(Some(ip("2001::9"))));
        assert_eq!(client(&v2(0x21, 0x31, &[b'/'; 216])), Ok(Some(None)), "UNIX");
        assert_eq!(client(&v2(0x21, 0x00, b"whatever")), Ok(Some(None)), "unspecified");
        assert_eq!(client(&v2(0x20, 0x11, &v4)), Ok(Some(None)), "LOCAL");
        assert_eq!(client(&v2(0x20, 0xFF, b"x")), Ok(Some(None)), "LOCAL, of whatever family");
        let with_tlv = [&v4[..], &[0x04, 0, 2, 0, 0, 0xE0, 0, 0]].concat();
        assert_eq!(header(&v2(0x21, 0x11, &with_tlv)).unwrap().unwrap().length, 16 + 20);
        for bad in [
            v2(0x31, 0x11, &v4),
            v2(0x22, 0x11, &v4),
            v2(0x21, 0x12, &v4),
            v2(0x21, 0x41, &v4),
            v2(0x21, 0x11, &v4[..11]),
            v2(0x21, 0x21, &v6[..35]),
            v2(0x21, 0x31, &[b'/'; 215]),
            v2(0x21, 0x11, &[&v4[..], &[0x04, 0]].concat()),
            v2(0x21, 0x11, &[&v4[..], &[0x04, 0, 2, 0]].concat()),
            v2(0x21, 0x11, &vec![0; PROXY_BYTES_MAX]),
        ] {
            assert!(client(&bad).is_err(), "{bad:x?}");
        }
    }

    #[test]
    fn a_checksum_fits_or_ends_the_connection() {
        // The check value of the algorithm's catalogue.
        assert_eq!(crc32c(b"123456789", &(0..0)), 0xE306_9283);
        let body = [&[192, 0, 2, 7, 10, 0, 0, 1, 1, 2, 3, 4][..], &[TLV_CRC32C, 0, 4, 0, 0, 0, 0]].concat();
        let mut header = v2(0x21, 0x11, &body);
        let at = header.len() - 4;
        let crc = crc32c(&header, &(at..at + 4));
        header[at..].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(parse(&header).unwrap().unwrap().client, ip("192.0.2.7"));
        header[16] ^= 1;
        assert!(parse(&header).is_err());
        assert!(parse(&v2(0x21, 0x11, &[&body[..12], &[TLV_CRC32C, 0, 1, 0]].concat())).is_err());
    }
}
