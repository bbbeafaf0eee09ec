//! Proxies in front of the node: who is believed about whom, and who is not.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};

use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::client::{Answer, Client, Http, handshake};
use crate::node::{Node, temp_dir};

/// A node that lists 127.0.0.2 as a proxy; further lines go into its `[limits]`.
fn node(proxy_protocol: bool, limits: &str) -> Node {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    let text = format!(
        "[limits]\n{limits}\n[proxies]\nnetworks = [\"127.0.0.2\", \"10.0.0.0/8\"]\nproxy_protocol = {proxy_protocol}\n"
    );
    std::fs::write(&file, text).unwrap();
    Node::start_keeping(dir, &["--shards", "2", "--config", file.to_str().unwrap()])
}

/// A connection that comes from another address of loopback.
fn connect_from(source: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(source.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
    socket.connect(&to.into()).expect("the node listens");
    socket.into()
}

const PROXY: &str = "127.0.0.2";

fn v1(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 127.0.0.1 40000 80\r\n").into_bytes()
}

fn v2(client: [u8; 4]) -> Vec<u8> {
    let body = [&client[..], &[127, 0, 0, 1, 0x9C, 0x40, 0, 80]].concat();
    // With an extension behind the addresses, as TLS proxies send it.
    let extension = [0x02, 0, 4, b'h', b'o', b's', b't'];
    let length = (body.len() + extension.len()) as u16;
    [b"\r\n\r\n\0\r\nQUIT\n", &[0x21, 0x11][..], &length.to_be_bytes(), &body, &extension].concat()
}

/// One GET of the demo app, with something before it and with fields.
fn get(stream: TcpStream, before: &[u8], fields: &str) -> Answer {
    let mut http = Http::over(stream);
    http.stream().write_all(before).unwrap();
    http.request("GET", "/v1/demo/channels/x/messages", fields, "")
}

fn upgrade(stream: TcpStream, before: &[u8], fields: &str) -> Client {
    let mut client = Client::over(stream);
    client.send(&[before, handshake("/v1/demo/channels/x/ws", fields).as_bytes()].concat());
    client
}

#[test]
fn a_proxy_header_names_the_client() {
    let node = node(true, "");
    let from_proxy = || connect_from(PROXY, node.listen);
    // The demo app serves loopback only: it sees through the proxy, over HTTP and on upgrades.
    for header in [v1("192.0.2.7"), v2([192, 0, 2, 7])] {
        get(from_proxy(), &header, "").assert_problem(403, "loopback_only");
        upgrade(from_proxy(), &header, "").refusal().assert_problem(403, "loopback_only");
    }
    for header in [v1("127.0.0.1"), v2([127, 0, 0, 1]), b"PROXY UNKNOWN\r\n".to_vec()] {
        assert_eq!(get(from_proxy(), &header, "").status, 200);
        let mut client = upgrade(from_proxy(), &header, "");
        client.expect_101();
        client.ready();
    }
    // LOCAL: the proxy asks for itself, as for a check of health.
    let local = [b"\r\n\r\n\0\r\nQUIT\n", &[0x20, 0x00, 0, 0][..]].concat();
    assert_eq!(get(from_proxy(), &local, "").status, 200);
    // One byte at a time, with the head behind it.
    let mut client = Client::over(from_proxy());
    let bytes = [v2([127, 0, 0, 1]), handshake("/v1/demo/channels/x/ws", "").into_bytes()].concat();
    client.send_by_byte(&bytes);
    client.expect_101();
    client.ready();
    // Whom the header names may be a proxy itself: then it is asked further.
    get(from_proxy(), &v1("10.0.0.9"), "X-Forwarded-For: 192.0.2.7\r\n").assert_problem(403, "loopback_only");
    node.assert_alive();
}

#[test]
fn an_upgrade_behind_other_requests_is_still_the_same_client() {
    let node = node(true, "");
    for (client, status) in [("192.0.2.7", 403), ("127.0.0.1", 101)] {
        let mut http = Http::over(connect_from(PROXY, node.listen));
        http.stream().write_all(&v1(client)).unwrap();
        let first = http.request("GET", "/v1/demo/channels/x/messages", "", "");
        assert_eq!(first.status, if status == 101 { 200 } else { 403 });
        let mut upgraded = Client::over(http.into_stream());
        upgraded.send(handshake("/v1/demo/channels/x/ws", "").as_bytes());
        let head = upgraded.head().expect("an answer");
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
}

#[test]
fn a_header_is_believed_from_listed_addresses_only_and_is_due_from_those() {
    let node = node(true, "");
    for header in [v1("127.0.0.1"), v2([127, 0, 0, 1])] {
        for by_byte in [false, true] {
            let mut client = Client::over(connect_from("127.0.0.3", node.listen));
            let bytes = [&header[..], handshake("/v1/demo/channels/x/ws", "").as_bytes()].concat();
            if by_byte {
                client.send_by_byte(&bytes);
            } else {
                client.send(&bytes);
            }
            let answer = client.refusal();
            assert_eq!(answer.status, 400, "{answer:?}");
            if !by_byte {
                answer.assert_problem(400, "proxy_header_not_believed");
            }
        }
    }
    // Without one, from the proxy.
    get(connect_from(PROXY, node.listen), b"", "").assert_problem(400, "bad_proxy_header");
    upgrade(connect_from(PROXY, node.listen), b"", "").refusal().assert_problem(400, "bad_proxy_header");
    // Spoiled ones.
    let mut short = v2([127, 0, 0, 1]);
    short[15] = 11;
    for bad in [short, b"PROXY TCP4 127.0.0.1 nobody 1 2\r\n".to_vec(), b"PROXY UDP4\r\n".to_vec()] {
        let mut client = Client::over(connect_from(PROXY, node.listen));
        client.send(&bad);
        client.refusal().assert_problem(400, "bad_proxy_header");
    }
    // Everybody else is served as ever.
    assert_eq!(node.http().get("/v1/demo/channels/x/messages").status, 200);
    node.assert_alive();
}

#[test]
fn without_the_switch_a_listed_proxy_s_header_is_refused() {
    let node = node(false, "");
    let mut client = upgrade(connect_from(PROXY, node.listen), &v1("127.0.0.1"), "");
    client.refusal().assert_problem(400, "proxy_header_not_believed");
    assert_eq!(get(connect_from(PROXY, node.listen), b"", "").status, 200);
}

#[test]
fn x_forwarded_for_is_believed_from_listed_addresses_only() {
    let node = node(false, "");
    let foreign = "X-Forwarded-For: 192.0.2.7\r\n";
    get(connect_from(PROXY, node.listen), b"", foreign).assert_problem(403, "loopback_only");
    upgrade(connect_from(PROXY, node.listen), b"", foreign).refusal().assert_problem(403, "loopback_only");
    // What the client wrote by itself stands on the left, and counts nothing.
    for spoofed in [
        "X-Forwarded-For: 127.0.0.1, 192.0.2.7\r\n",
        "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.7, 10.0.0.2\r\n",
    ] {
        get(connect_from(PROXY, node.listen), b"", spoofed).assert_problem(403, "loopback_only");
        upgrade(connect_from(PROXY, node.listen), b"", spoofed).refusal().assert_problem(403, "loopback_only");
    }
    assert_eq!(get(connect_from(PROXY, node.listen), b"", "X-Forwarded-For: 127.0.0.1\r\n").status, 200);
    // Each request of a connection has its own.
    let mut http = Http::over(connect_from(PROXY, node.listen));
    for (field, status) in [("", 200), (foreign, 403), ("", 200)] {
        assert_eq!(http.request("GET", "/v1/demo/channels/x/messages", field, "").status, status);
    }
    get(connect_from(PROXY, node.listen), b"", "X-Forwarded-For: nonsense\r\n")
        .assert_problem(400, "bad_forwarded_for");
    upgrade(connect_from(PROXY, node.listen), b"", "X-Forwarded-For: nonsense\r\n")
        .refusal()
        .assert_problem(400, "bad_forwarded_for");
    // Nobody else is believed: it is as if the field were not there.
    for field in [foreign, "X-Forwarded-For: nonsense\r\n"] {
        assert_eq!(get(connect_from("127.0.0.3", node.listen), b"", field).status, 200);
        upgrade(connect_from("127.0.0.3", node.listen), b"", field).expect_101();
    }
}

#[test]
fn limits_count_the_client_and_spare_the_proxy() {
    let node = node(true, "address_requests_max = 3\naddress_connections_max = 2");
    let ask = |client: &str| {
        let answer = get(connect_from(PROXY, node.listen), &v1(client), "");
        if answer.status == 429 {
            answer.assert_problem(429, "address_over_rate");
            let retry_s = answer.field("retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
            assert!(retry_s.is_some_and(|seconds| (1..=60).contains(&seconds)), "{answer:?}");
        }
        answer.status
    };
    // Two shards count for themselves, so each client has up to twice as many requests as are allowed; refused for its
    // place or for its rate, it is refused.
    let mut limited = 0;
    for _ in 0..8 {
        limited += u32::from(ask("192.0.2.7") == 429);
    }
    assert!((2..=5).contains(&limited), "{limited} of 8");
    for _ in 0..8 {
        assert_eq!(ask("10.0.0.9"), 403, "a listed proxy is not limited, and no loopback either");
        let local = [b"\r\n\r\n\0\r\nQUIT\n", &[0x20, 0x00, 0, 0][..]].concat();
        assert_eq!(get(connect_from(PROXY, node.listen), &local, "").status, 200);
    }
    // IPv6 by its first 64 bits.
    let v6 = |client: &str| {
        let header = format!("PROXY TCP6 {client} ::1 40000 80\r\n");
        get(connect_from(PROXY, node.listen), header.as_bytes(), "").status
    };
    let limited = (0..8).filter(|n| v6(&format!("2001:db8::{n}")) == 429).count();
    assert!((2..=5).contains(&limited), "{limited} of 8");
    assert_eq!(v6("2001:db8:0:1::1"), 403, "another network");
}

#[test]
fn connections_of_the_client_are_counted_behind_a_proxy() {
    let dir = temp_dir();
    let hash = ringcast::admission::auth::hash_server_key("rk_test").iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    });
    let text = format!(
        "[limits]\naddress_connections_max = 2\n[proxies]\nnetworks = [\"127.0.0.2\"]\nproxy_protocol = true\n\
         [[app]]\nname = \"shop\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\n"
    );
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, text).unwrap();
    let node = Node::start_keeping(dir, &["--shards", "2", "--config", file.to_str().unwrap()]);
    let join = |client: &str| {
        let mut viewer = Client::over(connect_from(PROXY, node.listen));
        viewer.send(&[v1(client), handshake("/v1/shop/channels/x/ws", "").into_bytes()].concat());
        viewer
    };
    let mut held: Vec<Client> = Vec::new();
    for client in ["192.0.2.7", "192.0.2.7", "192.0.2.8"] {
        let mut viewer = join(client);
        viewer.expect_101();
        viewer.ready();
        held.push(viewer);
    }
    let answer = join("192.0.2.7").refusal();
    answer.assert_problem(429, "address_full");
    assert!(answer.field("retry-after").is_some());
    assert_eq!(json!(answer.json()["retry_after_s"]), json!(5));
    // A place that is given back can be taken again.
    held.remove(0).close();
    let deadline = std::time::Instant::now() + crate::client::PATIENCE;
    loop {
        let mut viewer = join("192.0.2.7");
        let head = viewer.head().expect("an answer");
        if head.starts_with("HTTP/1.1 101 ") {
            break;
        }
        assert!(head.starts_with("HTTP/1.1 429 ") && std::time::Instant::now() < deadline, "{head}");
        std::thread::sleep(crate::node::LOOK);
    }
}
