//! Headers of the PROXY protocol, built from what they should say, cut and spoiled: the reader says the same as who
//! wrote them, wherever they are cut, and of what is spoiled it never makes up a client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringcast::wire::proxy::{PROXY_BYTES_MAX, ProxyHeader, begins, crc32c, parse};

use crate::{Rng, for_seeds};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn v4(rng: &mut Rng) -> Ipv4Addr {
    Ipv4Addr::from_bits(rng.next_u64() as u32)
}

fn v6(rng: &mut Rng) -> Ipv6Addr {
    // Never one that stands for an address of IPv4.
    Ipv6Addr::from_bits(0x2001_0DB8_u128 << 96 | u128::from(rng.next_u64()))
}

/// A header and whom it names.
fn written(rng: &mut Rng) -> (Vec<u8>, Option<IpAddr>) {
    if rng.chance(40) {
        let (from_port, to_port) = (rng.below(65_536), rng.below(65_536));
        let (line, client) = match rng.below(3) {
            0 => {
                let client = v4(rng);
                (format!("PROXY TCP4 {client} {} {from_port} {to_port}\r\n", v4(rng)), Some(client.into()))
            }
            1 => {
                let client = v6(rng);
                (format!("PROXY TCP6 {client} {} {from_port} {to_port}\r\n", v6(rng)), Some(client.into()))
            }
            _ => ("PROXY UNKNOWN\r\n".to_owned(), None),
        };
        return (line.into_bytes(), client);
    }
    let local = rng.chance(15);
    let (family, mut body, client): (u8, Vec<u8>, Option<IpAddr>) = match rng.below(4) {
        0 => {
            let client = v4(rng);
            (0x11, [&client.octets()[..], &[9; 8]].concat(), Some(client.into()))
        }
        1 => {
            let client = v6(rng);
            (0x21, [&client.octets()[..], &[9; 20]].concat(), Some(client.into()))
        }
        2 => (0x31, vec![b'/'; 216], None),
        _ => (0x00, Vec::new(), None),
    };
    for _ in 0..rng.below(4) {
        let kind = rng.pick(&[0x01, 0x02, 0x04, 0x20, 0xE0]);
        let value = vec![kind; rng.below(200) as usize];
        body.extend_from_slice(&[&[kind][..], &(value.len() as u16).to_be_bytes(), &value].concat());
    }
    let sums = family != 0 && rng.chance(30);
    if sums {
        body.extend_from_slice(&[0x03, 0, 4, 0, 0, 0, 0]);
    }
    let command = if local { 0x20 } else { 0x21 };
    let length = (body.len() as u16).to_be_bytes();
    let mut header = [SIGNATURE, &[command, family], &length, &body].concat();
    if sums {
        let at = header.len() - 4;
        let sum = crc32c(&header, &(at..at + 4));
        header[at..].copy_from_slice(&sum.to_be_bytes());
    }
    (header, client.filter(|_| !local))
}

#[test]
fn what_was_written_is_read_wherever_it_is_cut() {
    for_seeds(0..2_000, |rng| {
        let (mut bytes, client) = written(rng);
        let length = bytes.len();
        for cut in 0..length {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut} of {length} bytes: {bytes:x?}");
        }
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        for more in 0..=18 {
            assert_eq!(parse(&bytes[..length + more]), Ok(Some(ProxyHeader { client, length })));
        }
    });
}

#[test]
fn what_is_spoiled_is_refused_or_says_what_it_says() {
    for_seeds(0..5_000, |rng| {
        let (mut bytes, _) = written(rng);
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, rng.next_u64() as u8),
            }
        }
        let verdict = parse(&bytes);
        if let Ok(Some(header)) = verdict {
            assert!(header.length <= bytes.len().min(PROXY_BYTES_MAX) && begins(&bytes));
        }
        // Byte by byte it is the same, and what was refused once is not taken after more bytes.
        let mut refused = false;
        for cut in 0..=bytes.len() {
            match parse(&bytes[..cut]) {
                Err(_) => refused = true,
                Ok(Some(_)) => {
                    assert!(!refused);
                    assert_eq!(parse(&bytes[..cut]), verdict);
                    break;
                }
                Ok(None) => assert!(!refused),
            }
        }
        assert_eq!(refused, verdict.is_err());
    });
}

#[test]
fn noise_is_no_header() {
    for_seeds(0..5_000, |rng| {
        let noise: Vec<u8> = (0..rng.below(300)).map(|_| rng.next_u64() as u8).collect();
        if !begins(&noise) {
            assert!(noise.is_empty() || parse(&noise).is_err());
        }
        let after_mark = [SIGNATURE, &noise].concat();
        if let Ok(Some(header)) = parse(&after_mark) {
            assert!(header.length <= after_mark.len());
        }
        let after_word = [b"PROXY ", &noise[..]].concat();
        assert!(!matches!(parse(&after_word), Ok(Some(ProxyHeader { client: Some(_), .. }))));
    });
}
