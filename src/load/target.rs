//! The node under load: one that runs already, or one that is started for the run and stopped behind it.
//!
//! Options flow in, an address, a key and a meter flow out; what is always true is that a started node ends with the
//! run, whatever way the run ends, and that its directory goes with it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::args::FanoutArgs;
use super::bare::{self, Sender};
use super::endpoint::Endpoint;
use super::foreign::Foreign;
use super::kernel::{self, now_ns};
use super::meter::Meter;
use super::{http, leftovers, random};

/// How long a node may take to be ready.
const READY: Duration = Duration::from_secs(10);
/// How long a started node may take to end.
const END: Duration = Duration::from_secs(15);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// The node under load.
pub(super) struct Target {
    /// Where it listens.
    pub(super) endpoint: Endpoint,
    /// The server key.
    pub(super) key: String,
    /// Its process, if it is known.
    pub(super) meter: Option<Meter>,
    node: Option<Node>,
}

impl Target {
    /// Finds the node of `--url`, or starts one, and waits until it is ready.
    ///
    /// # Errors
    /// A sentence that says why there is no node to load.
    pub(super) fn open(args: &FanoutArgs, foreign: Option<&Foreign>) -> Result<Self, String> {
        if let Some(endpoint) = &args.url {
            let key = read_key(args.key.as_deref().unwrap_or_default())?;
            if let Some(admin) = &args.admin {
                wait_ready(admin.addr, || Ok(()))?;
            }
            let meter = Meter::of_listener(endpoint.addr);
            return Ok(Self { endpoint: endpoint.clone(), key, meter, node: None });
        }
        let other = match (args.bare, foreign) {
            (Some(sender), _) => Some(Node::start_bare(args, sender)?),
            (None, Some(foreign)) => Some(Node::start_foreign(args, foreign)?),
            (None, None) => None,
        };
        if let Some((node, port)) = other {
            let endpoint = Endpoint::local(port);
            wait_open(endpoint.addr).map_err(|error| node.explain(&error))?;
            let meter = Some(Meter::of(node.number));
            return Ok(Self { endpoint, key: "rk_none".to_owned(), meter, node: Some(node) });
        }
        let (node, port, admin) = Node::start(args)?;
        let ready = wait_ready(admin, || match node.ended() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("the node ended at once ({status})")),
            Err(error) => Err(format!("the node cannot be watched: {error}")),
        });
        ready.map_err(|error| node.explain(&error))?;
        let key = match &args.key {
            Some(key) => read_key(key)?,
            None => read_key_file(&node.dir.join("demo.key"))?,
        };
        let meter = Some(Meter::of(node.number));
        Ok(Self { endpoint: Endpoint::local(port), key, meter, node: Some(node) })
    }

    /// Where the data of a started node lie.
    pub(super) fn data_dir(&self) -> Option<&Path> {
        self.node.as_ref().map(|node| node.dir.as_path())
    }

    /// Says so when a started node has ended during the run.
    pub(super) fn died(&self) -> Option<String> {
        let node = self.node.as_ref()?;
        let status = node.ended().ok().flatten()?;
        Some(node.explain(&format!("the node ended during the run ({status})")))
    }

    /// Stops a started node and says how it ended; `None` for one that goes on.
    pub(super) fn close(self) -> Option<String> {
        self.node.as_ref().map(Node::stop)
    }
}

/// A started node. Its process stands on the list of what must not outlive the load, under its directory.
struct Node {
    /// The number of its process.
    number: u32,
    dir: PathBuf,
}

impl Node {
    fn start(args: &FanoutArgs) -> Result<(Self, u16, SocketAddr), String> {
        let (port, admin) = free_ports().map_err(|error| format!("no port is free: {error}"))?;
        let node = Self::spawn(args, |command, dir| {
            let (listen, admin) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{admin}"));
            command.arg("serve").arg("--data-dir").arg(dir).args(["--listen", &listen, "--admin", &admin]);
            if let Some(shards) = args.shards {
                command.args(["--shards", &shards.to_string()]);
            }
            command.args(&args.node_args);
        })?;
        Ok((node, port, Endpoint::local(admin).addr))
    }

    fn start_bare(args: &FanoutArgs, sender: Sender) -> Result<(Self, u16), String> {
        let (port, _) = free_ports().map_err(|error| format!("no port is free: {error}"))?;
        let node = Self::spawn(args, |command, _| {
            command.args(bare::arguments(sender, &format!("127.0.0.1:{port}"), args.burst));
        })?;
        Ok((node, port))
    }

    fn start_foreign(args: &FanoutArgs, foreign: &Foreign) -> Result<(Self, u16), String> {
        let (port, _) = free_ports().map_err(|error| format!("no port is free: {error}"))?;
        let node = Self::spawn_with(args, |dir| {
            let words = foreign.command(port, dir);
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            Ok(command)
        })?;
        Ok((node, port))
    }

    /// Starts this program with other words.
    fn spawn(args: &FanoutArgs, say: impl FnOnce(&mut Command, &Path)) -> Result<Self, String> {
        Self::spawn_with(args, |dir| {
            let mut command = Command::new(std::env::current_exe()?);
            say(&mut command, dir);
            Ok(command)
        })
    }

    fn spawn_with(args: &FanoutArgs, make: impl FnOnce(&Path) -> io::Result<Command>) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("ringcast-load-{}-{:08x}", std::process::id(), random()));
        let started = leftovers::start(&dir, || {
            let log = File::create(dir.join("node.log"))?;
            let mut command = make(&dir)?;
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            kernel::die_with_parent(&mut command);
            if !args.cpus.is_empty() {
                kernel::keep_on(&mut command, &args.cpus);
            }
            command.spawn()
        });
        let number = started.map_err(|error| format!("the node cannot be started: {error}"))?;
        Ok(Self { number, dir })
    }

    /// How it has ended, if it has.
    fn ended(&self) -> io::Result<Option<ExitStatus>> {
        let gone = || Err(io::Error::other("it was ended already"));
        leftovers::with(&self.dir, Child::try_wait).unwrap_or_else(gone)
    }

    /// `what`, and the end of the node's log.
    fn explain(&self, what: &str) -> String {
        let tail = || -> io::Result<String> {
            let mut log = File::open(self.dir.join("node.log"))?;
            let length = log.metadata()?.len();
            log.seek(SeekFrom::Start(length.saturating_sub(2_000)))?;
            let mut tail = Vec::new();
            log.read_to_end(&mut tail)?;
            Ok(String::from_utf8_lossy(&tail).into_owned())
        };
        format!("{what}; the end of its log:\n{}", tail().unwrap_or_default())
    }

    fn stop(&self) -> String {
        let deadline = now_ns() + END.as_nanos() as u64;
        let mut asked = false;
        let ended = loop {
            match self.ended() {
                Ok(Some(status)) => break status.to_string(),
                Ok(None) if !asked => {
                    // Not waited for yet, so the number is still the child's.
                    leftovers::with(&self.dir, |child| kernel::terminate(child.id()));
                    asked = true;
                }
                Ok(None) if now_ns() < deadline => kernel::nap(LOOK),
                Ok(None) | Err(_) => {
                    leftovers::with(&self.dir, |child| {
                        let _ = child.kill();
                        let _ = child.wait();
                    });
                    break "killed: it did not end when it was asked to".to_owned();
                }
            }
        };
        leftovers::clear(&self.dir);
        ended
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // After an orderly stop the child has been waited for, and this finds nothing to do.
        self.stop();
    }
}

/// Two ports that are free now. Both are held while they are chosen, so they differ.
fn free_ports() -> io::Result<(u16, u16)> {
    let (one, two) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    Ok((one.local_addr()?.port(), two.local_addr()?.port()))
}

/// Waits until somebody accepts there.
fn wait_open(addr: SocketAddr) -> Result<(), String> {
    let deadline = now_ns() + READY.as_nanos() as u64;
    while let Err(error) = TcpStream::connect_timeout(&addr, LOOK) {
        if now_ns() >= deadline {
            return Err(format!("nobody listens on {addr}: {error}"));
        }
        kernel::nap(LOOK);
    }
    Ok(())
}

fn wait_ready(admin: SocketAddr, mut alive: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let deadline = now_ns() + READY.as_nanos() as u64;
    loop {
        alive()?;
        let last = match http::get(admin, "/readyz", Duration::from_millis(500)) {
            Ok(200) => return Ok(()),
            Ok(status) => format!("/readyz answers {status}"),
            Err(error) => error.to_string(),
        };
        if now_ns() >= deadline {
            return Err(format!("the node at {admin} is not ready after {} s: {last}", READY.as_secs()));
        }
        kernel::nap(LOOK);
    }
}

fn read_key(key: &str) -> Result<String, String> {
    if key.starts_with("rk_") { Ok(key.to_owned()) } else { read_key_file(Path::new(key)) }
}

fn read_key_file(path: &Path) -> Result<String, String> {
    let key = fs::read_to_string(path).map_err(|error| format!("no server key in {}: {error}", path.display()))?;
    let key = key.trim();
    if key.starts_with("rk_") { Ok(key.to_owned()) } else { Err(format!("{} holds no server key", path.display())) }
}
