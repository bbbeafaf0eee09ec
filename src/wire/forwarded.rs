//! `X-Forwarded-For`: whom a proxy, or a row of them, speaks for.
//!
//! The address that a connection comes from and the field's text flow in, the client's address flows out. Always true:
//! the list is read from its right end, which the nearest proxy wrote, and only as far as those who wrote it are believed;
//! so nothing that a client writes into the field by itself is ever taken for its address.

use std::net::{IpAddr, SocketAddr};

use super::problem::Problem;

/// The rightmost address that is no listed proxy, beginning with `source`, where the connection comes from. If all are
/// listed, it is the leftmost. The lines of a field that stands several times are joined by commas (RFC 9110 §5.3).
///
/// # Errors
/// 400 if a listed proxy wrote something that is no address.
pub fn client(source: IpAddr, field: &str, is_listed: impl Fn(IpAddr) -> bool) -> Result<IpAddr, Problem> {
    let mut client = source;
    for part in field.rsplit(',').map(|part| part.trim_matches([' ', '\t'])).filter(|part| !part.is_empty()) {
        if !is_listed(client) {
            break;
        }
        client = address(part).ok_or_else(|| {
            let detail = format!("X-Forwarded-For, as the proxy {client} sent it, holds {part:?}, which is no address");
            Problem::new(400, "bad_forwarded_for", detail)
        })?;
    }
    Ok(client)
}

/// An address as proxies write it: bare, in brackets, or with a port.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let parsed = bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    parsed.ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_rightmost_who_is_no_listed_proxy() {
        let listed = |address: IpAddr| matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 10);
        let find = |source: &str, field: &str| {
            client(source.parse().unwrap(), field, listed).map(|address| address.to_string()).map_err(|p| p.code)
        };
        let good = |text: &str| Ok(text.to_owned());
        assert_eq!(find("10.0.0.1", "192.0.2.7"), good("192.0.2.7"));
        assert_eq!(find("10.0.0.1", "spoofed, 192.0.2.7"), good("192.0.2.7"), "what the client wrote is not read");
        assert_eq!(find("10.0.0.1", "203.0.113.9, 192.0.2.7, 10.0.0.2"), good("192.0.2.7"), "two proxies in a row");
        assert_eq!(find("10.0.0.1", "10.0.0.3, 10.0.0.2"), good("10.0.0.3"), "all are listed");
        assert_eq!(find("198.51.100.1", "192.0.2.7"), good("198.51.100.1"), "not believed");
        assert_eq!(find("198.51.100.1", "nonsense"), good("198.51.100.1"));
        assert_eq!(find("10.0.0.1", ""), good("10.0.0.1"));
        assert_eq!(find("10.0.0.1", " ,\t, "), good("10.0.0.1"));
        assert_eq!(find("10.0.0.1", "192.0.2.7:8080"), good("192.0.2.7"));
        assert_eq!(find("10.0.0.1", "[2001:db8::7]:8080"), good("2001:db8::7"));
        assert_eq!(find("10.0.0.1", "[2001:db8::7]"), good("2001:db8::7"));
        assert_eq!(find("10.0.0.1", "::ffff:192.0.2.7"), good("192.0.2.7"));
        for bad in ["unknown", "192.0.2", "192.0.2.7 198.51.100.1", "_hidden", "192.0.2.7, nonsense"] {
            assert_eq!(find("10.0.0.1", bad), Err("bad_forwarded_for"), "{bad}");
        }
    }
}
