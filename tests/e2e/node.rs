//! The real binary as a child on loopback: started in a directory of its own, ready before anybody talks to it, and
//! gone with the test, whatever way the test ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Answer, Client, Http};

/// How long a node may take to be ready.
const READY: Duration = Duration::from_secs(20);
/// The pause between two looks at something that has no event to wait for.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// A running node.
pub(crate) struct Node {
    child: Option<Child>,
    /// Ends the node when this process ends without running destructors, as it does for a node in a static.
    watcher: Option<Child>,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) dir: PathBuf,
    log: PathBuf,
    own: Option<TempDir>,
}

/// A data directory that outlives its node.
pub(crate) fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("ringcast-e2e-").tempdir().expect("a temporary directory")
}

/// Two ports that are free now. Both are held while they are chosen, so they differ.
pub(crate) fn free_ports() -> (u16, u16) {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (one, two) = (bind(), bind());
    (one.local_addr().unwrap().port(), two.local_addr().unwrap().port())
}

pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ringcast");

/// The node that all cases share which leave it as they found it.
pub(crate) fn shared() -> &'static Node {
    static SHARED: LazyLock<Node> = LazyLock::new(|| {
        let mut node = Node::start(&["--shards", "2", "--test-echo"]);
        // No destructor runs for a static, so whoever ends the node takes its directory away too.
        let watcher = watch(node.pid(), Some(&node.dir));
        if let Some(mut before) = node.watcher.replace(watcher) {
            let _ = before.kill();
            let _ = before.wait();
        }
        node
    });
    &SHARED
}

impl Node {
    /// Starts a node with a directory that goes with it.
    pub(crate) fn start(args: &[&str]) -> Self {
        let own = temp_dir();
        let mut node = Self::start_in(own.path(), args);
        node.own = Some(own);
        node
    }

    /// Starts a node with this configuration, in a directory that goes with it.
    pub(crate) fn configured(config: &str, args: &[&str]) -> Self {
        let dir = temp_dir();
        let file = dir.path().join("ringcast.toml");
        fs::write(&file, config).expect("a configuration");
        Self::start_keeping(dir, &[args, &["--config", file.to_str().expect("a path in UTF-8")]].concat())
    }

    /// Starts a node in a directory that goes with it.
    pub(crate) fn start_keeping(dir: TempDir, args: &[&str]) -> Self {
        let mut node = Self::start_in(dir.path(), args);
        node.own = Some(dir);
        node
    }

    /// Starts a node in a directory.
    pub(crate) fn start_in(dir: &Path, args: &[&str]) -> Self {
        Self::start_by(&[], dir, args)
    }

    /// Starts a node through a command that ends in executing its last arguments, such as `taskset`.
    pub(crate) fn start_by(before: &[&str], dir: &Path, args: &[&str]) -> Self {
        // Between choosing a port and listening on it another test may take it: then the node says so and ends.
        for _ in 0..5 {
            match Self::try_start(before, dir, args) {
                Ok(node) => return node,
                Err(log) if log.contains("is in use") => {}
                Err(log) => panic!("the node does not start:\n{log}"),
            }
        }
        panic!("no port stayed free");
    }

    fn try_start(before: &[&str], dir: &Path, args: &[&str]) -> Result<Self, String> {
        let (port, admin) = free_ports();
        let log = dir.join(format!("node-{port}.log"));
        let file = fs::File::create(&log).expect("a log file");
        let mut words: Vec<&str> = before.to_vec();
        words.push(BINARY);
        let (listen_text, admin_text) = (local(port).to_string(), local(admin).to_string());
        let dir_text = dir.to_str().expect("a path in UTF-8");
        words.extend(["serve", "--data-dir", dir_text, "--listen", &listen_text, "--admin", &admin_text]);
        words.extend(args);
        let child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("the binary runs");
        let watcher = watch(child.id(), None);
        let mut node = Self {
            child: Some(child),
            watcher: Some(watcher),
            listen: local(port),
            admin: local(admin),
            dir: dir.to_owned(),
            log,
            own: None,
        };
        let deadline = Instant::now() + READY;
        loop {
            if node.child.as_mut().is_some_and(|child| child.try_wait().expect("a child").is_some()) {
                return Err(node.log());
            }
            if Http::try_get(node.admin, "/readyz").is_some_and(|answer| answer.status == 200) {
                return Ok(node);
            }
            assert!(Instant::now() < deadline, "not ready in time:\n{}", node.log());
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running node").id()
    }

    /// What it has written so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The server key of the demo app.
    pub(crate) fn key(&self) -> String {
        fs::read_to_string(self.dir.join("demo.key")).expect("demo.key").trim().to_owned()
    }

    /// The secret that tokens of the demo app are signed with.
    pub(crate) fn secret(&self) -> String {
        fs::read_to_string(self.dir.join("demo.jwt")).expect("demo.jwt").trim().to_owned()
    }

    /// A token of this user that is valid for an hour.
    pub(crate) fn token(&self, user: &str) -> String {
        let expires_s = unix_s() + 3_600;
        ringcast::admission::auth::make_token(self.secret().as_bytes(), user, None, expires_s).expect("a token")
    }

    /// Posts as the app's backend.
    pub(crate) fn post(&self, channel: &str, body: &Value) -> Answer {
        self.http().post(&format!("/v1/demo/channels/{channel}/messages"), &self.key(), &body.to_string())
    }

    /// Posts a text and returns its seq.
    pub(crate) fn post_text(&self, channel: &str, text: &str) -> u64 {
        let answer = self.post(channel, &serde_json::json!({ "text": text }));
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.json()["seq"].as_u64().expect("a seq")
    }

    /// A connection to the API.
    pub(crate) fn http(&self) -> Http {
        Http::connect(self.listen)
    }

    /// Watches a channel; its `connection.ready` is still to be read.
    pub(crate) fn watch(&self, channel: &str) -> Client {
        self.watch_with(channel, "")
    }

    /// Watches a channel with a query, which begins with its question mark.
    pub(crate) fn watch_with(&self, channel: &str, query: &str) -> Client {
        Client::open(self.listen, &format!("/v1/demo/channels/{channel}/ws{query}"))
    }

    /// Watches a channel as a user.
    pub(crate) fn watch_as(&self, channel: &str, user: &str) -> Client {
        self.watch_with(channel, &format!("?token={}", self.token(user)))
    }

    /// The metrics as they are now.
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics(Http::try_get(self.admin, "/metrics").expect("metrics").body)
    }

    /// Waits until the metrics fulfil something; reports come every five seconds.
    pub(crate) fn await_metrics(&self, what: &str, mut fulfil: impl FnMut(&Metrics) -> bool) -> Metrics {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let metrics = self.metrics();
            if fulfil(&metrics) {
                return metrics;
            }
            assert!(Instant::now() < deadline, "{what}, in vain:\n{}\n{}", metrics.0, self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The seconds of CPU that the process has used.
    pub(crate) fn cpu_s(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("/proc");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a stat line").1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        ticks as f64 / 100.0
    }

    /// The resident memory in KiB.
    pub(crate) fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("/proc");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// It still lives and answers.
    pub(crate) fn assert_alive(&self) {
        let answer = Http::try_get(self.admin, "/healthz");
        assert!(answer.is_some_and(|answer| answer.status == 200), "the node is gone:\n{}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }

    /// Kills it as a power cut would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut watcher) = self.watcher.take() {
            // First, so that it never names a process that has taken the number of ours.
            let _ = watcher.kill();
            let _ = watcher.wait();
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        let killed = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status().expect("kill");
        assert!(killed.success());
    }

    /// Waits until its log says something more often than `before` times.
    pub(crate) fn await_log(&self, what: &str, before: usize) {
        let deadline = Instant::now() + READY;
        while self.log().matches(what).count() <= before {
            assert!(Instant::now() < deadline, "{what:?} was not said:\n{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, at_most: Duration) -> ExitStatus {
        let status = wait_for(self.child.as_mut().expect("a running node"), at_most)
            .unwrap_or_else(|| panic!("it did not end within {at_most:?}:\n{}", self.log()));
        self.kill();
        status
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the node's log:\n{}", self.log());
        }
        drop(self.own.take());
    }
}

/// A shell that waits for the end of this process, then kills `pid` and removes its directory.
fn watch(pid: u32, dir: Option<&Path>) -> Child {
    let script = "read nothing; kill -9 \"$0\" 2>/dev/null; [ -z \"$1\" ] || rm -rf -- \"$1\"";
    Command::new("sh")
        .args(["-c", script, &pid.to_string()])
        .args(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}

/// Waits for a child's end; `None` if it goes on.
pub(crate) fn wait_for(child: &mut Child, at_most: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

/// Runs the binary until it ends by itself; returns its exit code and what it said.
pub(crate) fn run_to_end(words: &[&str]) -> (Option<i32>, String) {
    let mut child =
        Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let status = wait_for(&mut child, Duration::from_secs(10));
    let _ = child.kill();
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    let _ = child.wait();
    (status.expect("it ends").code(), said)
}

pub(crate) fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

pub(crate) fn unix_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Prometheus text.
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// The sum of all lines of a name whose labels hold `with`.
    pub(crate) fn sum(&self, name: &str, with: &str) -> i64 {
        let lines = self.0.lines().filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(with));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum()
    }

    /// The account of deliveries leaves nothing unexplained.
    pub(crate) fn assert_balanced(&self) {
        for class in ["critical", "ordered", "mergeable"] {
            let open = self.sum("ringcast_account_open", &format!("class=\"{class}\""));
            assert_eq!(open, 0, "{class}:\n{}", self.0);
        }
    }
}

/// A name that no other test of this process uses, for a channel of the shared node.
pub(crate) fn fresh(prefix: &str) -> String {
    static NEXT: OnceLock<std::sync::atomic::AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(Default::default).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{prefix}-{next}")
}

/// Writes as much as the peer takes; a peer that has closed takes no more, which is for the reader to judge.
pub(crate) fn write_all(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).is_ok()
}
