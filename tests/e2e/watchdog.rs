//! A core that is stuck: it is told, the node is not ready, and a service manager hears nothing good until it turns again.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use crate::client::{Http, PATIENCE};
use crate::node::{LOOK, Node, temp_dir};
use crate::stopped::Stopped;

/// What the manager asks for, as `WatchdogSec` gives it, in microseconds.
const PERIOD_US: u64 = 800_000;

/// The next message of the node to its manager; `None` if none comes within this time.
fn heard(manager: &UnixDatagram, within: Duration) -> Option<String> {
    manager.set_read_timeout(Some(within)).unwrap();
    let mut buffer = [0; 256];
    let bytes = manager.recv(&mut buffer).ok()?;
    Some(String::from_utf8(buffer[..bytes].to_vec()).unwrap())
}

fn await_ready(node: &Node, status: u16) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = Http::try_get(node.admin, "/readyz").expect("the admin listener answers");
        if answer.status == status {
            return answer.body;
        }
        assert!(Instant::now() < deadline, "{answer:?}\n{}", node.log());
        std::thread::sleep(LOOK);
    }
}

#[test]
fn a_shard_that_is_stuck_is_told_and_the_keep_alive_stops_until_it_turns_again() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, "[node]\nstall_ms = 2_000\n").unwrap();
    let socket = dir.path().join("notify.sock");
    let manager = UnixDatagram::bind(&socket).unwrap();
    let (socket, period) = (format!("NOTIFY_SOCKET={}", socket.display()), format!("WATCHDOG_USEC={PERIOD_US}"));
    let args = ["--shards", "2", "--config", file.to_str().unwrap()];
    let mut node = Node::start_by(&["env", &socket, &period], dir.path(), &args);
    let mut first = Vec::new();
    while first.len() < 3 {
        first.push(heard(&manager, PATIENCE).expect("the manager is told"));
    }
    assert!(first.iter().any(|message| message.contains("READY=1")), "{first:?}");
    assert!(first.iter().any(|message| message.contains("WATCHDOG=1")), "{first:?}");

    let stopped = Stopped::new(node.pid(), "shard-1");
    let told = await_ready(&node, 503);
    assert_eq!(told, "not ready: shard-1 takes no turns\n");
    let log = node.log();
    assert!(log.contains("shard-1 has taken no turn for 2") && log.contains("was stopped from outside"), "{log}");
    // What was said before it was noticed is still there to be read; behind it nothing comes.
    manager.set_nonblocking(true).unwrap();
    while manager.recv(&mut [0; 256]).is_ok() {}
    manager.set_nonblocking(false).unwrap();
    let silent = heard(&manager, Duration::from_micros(2 * PERIOD_US));
    assert_eq!(silent, None, "a manager would restart it now");
    assert_eq!(Http::try_get(node.admin, "/healthz").unwrap().status, 200, "the orchestrator lives");

    drop(stopped);
    await_ready(&node, 200);
    assert!(node.log().contains("shard-1 takes turns again"), "{}", node.log());
    assert_eq!(heard(&manager, PATIENCE).as_deref().map(str::trim_end), Some("WATCHDOG=1"));
    node.watch("after").ready();
    node.terminate();
    assert_eq!(node.wait(PATIENCE).code(), Some(0));
    let said: Vec<String> = std::iter::from_fn(|| heard(&manager, LOOK)).collect();
    assert!(said.iter().any(|message| message.contains("STOPPING=1")), "{said:?}");
}
