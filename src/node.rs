//! The node as a whole: builds each part once, pins the cores, ties the mailboxes, joins at the end. The only file that
//! knows all parts.
//!
//! A checked configuration flows in; a running node, and in the end an exit code, flow out. Always true: either
//! everything listens or nothing does, and a refusal is one sentence that says what to do.

use std::cell::RefCell;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::admission::{Apps, HookOptions};
use crate::base::{Now, ShardId};
use crate::config::{Config, Cores};
use crate::doctor::{self, Machine, Severity};
use crate::io::admin::Admin;
use crate::io::clock::Clock;
use crate::io::committer::Committer;
use crate::io::executor::HttpQueue;
use crate::io::handoff::{Blocklists, MailboxSizes, PostOffice, ShardDoors};
use crate::io::hooks::Hooks;
use crate::io::life::Life;
use crate::io::orchestrator_core::{self, OrchestratorCoreParts};
use crate::io::ring::{self, KernelFeatures, RingOptions};
use crate::io::rouser::{Rouser, Sleeper};
use crate::io::shard_core::{self, ShardCoreParts};
use crate::io::socket::{self, PortLock, SocketOptions};
use crate::io::usage::Usage;
use crate::io::watchdog::Watchdog;
use crate::io::web_server::WebOptions;
use crate::io::{admin, executor, machine, signal};
use crate::orchestrator::{HookRule, Orchestrator, OrchestratorOptions, RetentionRule};
use crate::shard::{Shard, ShardOptions};
use crate::store::sqlite::Sqlite;
use crate::store::{MovedAside, OpenOptions, Store, sqlite_backup};
use crate::wire::topic::TopicHasher;

/// The database within the data directory.
const DATABASE: &str = "ringcast.db";
/// How long an HTTP connection may lie idle, in milliseconds.
const HTTP_IDLE_MS: u32 = 75_000;
/// Places of an events mailbox beside those that events with a credit may need.
const EPHEMERAL_PLACES: usize = 8_192;

/// Why the node does not start, or ended otherwise than by being asked to.
#[derive(Debug)]
pub struct NodeError {
    /// The process's exit code.
    pub exit_code: u8,
    /// One sentence that says what is wrong and what to do.
    pub message: String,
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for NodeError {}

/// The machine or the data refuses.
fn refuse(message: impl Into<String>) -> NodeError {
    NodeError { exit_code: 3, message: message.into() }
}

/// Runs a node until it is asked to end.
///
/// # Errors
/// It could not start, or a core failed.
pub fn serve(mut config: Config) -> Result<(), NodeError> {
    let nofile = machine::raise_nofile();
    let cpus = machine::cpus();
    examine(&config, &cpus)?;
    let features = ring::check_kernel().map_err(|lack| refuse(lack.to_string()))?;
    let cores = Cores::place(config.shards, config.orchestrator_core, &cpus).map_err(|e| refuse(e.to_string()))?;
    let shards = cores.shards.len() as u16;
    config.settle(shards);

    let port = |address, error: std::io::Error| {
        let why = if error.kind() == std::io::ErrorKind::AddrInUse {
            "is in use: another node or program listens there; stop it, or choose another address".to_owned()
        } else {
            format!("cannot be listened on: {error}")
        };
        refuse(format!("{address} {why}"))
    };
    let _public_lock = lock_port(config.listen).map_err(|error| port(config.listen, error))?;
    let _admin_lock = lock_port(config.admin).map_err(|error| port(config.admin, error))?;
    make_data_dir(&config.data_dir)?;
    let clock = Clock::start();
    let (fresh_epoch_seed, now_wall_ms) = (random(), clock.now().wall_ms);
    let store_options = OpenOptions { fresh_epoch_seed, now_wall_ms, ..config.store.clone() };
    let database = config.data_dir.join(DATABASE);
    let mut store = Sqlite::open(&database, &store_options).map_err(|error| refuse(error.to_string()))?;
    if let Some(moved) = store.moved_aside() {
        tell_moved(moved, &config.data_dir);
    }
    let pages = Sqlite::reader(&database, &store_options).map_err(|error| refuse(error.to_string()))?;
    let rooms = store.rooms_load().map_err(|error| refuse(format!("{}: {error}", database.display())))?;
    let bans = store.bans(clock.now().wall_ms).map_err(|error| refuse(format!("{}: {error}", database.display())))?;
    let apps = config.open_apps().map_err(|error| refuse(error.to_string()))?;
    let listeners = (0..shards)
        .map(|_| socket::listen(config.listen, config.backlog, true))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| port(config.listen, error))?;
    let admin_listener = socket::listen(config.admin, 128, false).map_err(|error| port(config.admin, error))?;

    let hasher = TopicHasher::new(random());
    let life = Arc::new(Life::new(shards));
    let credits = config.orchestrator.credits_max as usize;
    let sizes = MailboxSizes {
        // A shard has at most as many questions; each join may ask for one head more.
        answers: config.shard.asks_max as usize * 2 + 64,
        seats: 1_024,
        events: credits + EPHEMERAL_PLACES,
        // Of a full one nothing is lost: who could not tell tells later what is true then.
        presence: 4_096,
        orchestrator: (usize::from(shards) * config.shard.asks_max as usize).clamp(4_096, 65_536),
    };
    let office = PostOffice::new(shards, sizes);
    let end_asked = signal::listen(Arc::clone(&office.orchestrator.door), reloader(&config, &apps, &office.to_shards))
        .map_err(|error| refuse(format!("signals cannot be listened to: {error}")))?;
    let committer = Committer::start(store, pages, cores.orchestrator, office.news.clone(), sizes.orchestrator)
        .map_err(|error| refuse(format!("the store's threads cannot be started: {error}")))?;
    let web = WebOptions {
        body_bytes_max: config.body_bytes_max as usize,
        request_ms_max: config.head_timeout_ms,
        idle_ms_max: HTTP_IDLE_MS,
    };

    let mut handles = Vec::new();
    let mut sleepers = Vec::new();
    let (begun, begins) = mpsc::channel();
    let failed = Arc::new(AtomicBool::new(false));
    let retention = apps.iter().map(|app| RetentionRule {
        app: app.name.clone(),
        days: app.retention_days,
        messages: app.retention_messages,
    });
    let hook_rule = |hook: &HookOptions| HookRule { budget_ms: hook.budget_ms, fails_open: hook.fails_open };
    let orchestrator_options = OrchestratorOptions {
        seed: random(),
        retention: retention.collect(),
        quotas: apps.iter().map(|app| (app.name.clone(), app.quota)).collect(),
        hooks: apps.iter().map(|app| app.hook.as_ref().map(hook_rule)).collect(),
        ..config.orchestrator.clone()
    };
    let hooks = apps.iter().map(|app| (app.name.clone(), app.hook.clone())).collect();
    let rooms: Vec<_> = rooms.into_iter().map(|row| (row.key, row.room)).collect();
    {
        let (hasher, life, to_shards) = (hasher.clone(), Arc::clone(&life), office.to_shards.clone());
        let begun = begun.clone();
        let usage = Usage {
            database,
            database_bytes_max: config.store.bytes_max,
            disk: config.disk.clone(),
            letters: office.to_orchestrator.first().map(|doors| doors.letters.clone()),
            news: office.news.clone(),
            store: committer.queues(),
        };
        let sleeper = Sleeper::of(&office.orchestrator.door);
        sleepers.push(Arc::clone(&sleeper));
        let (inbox, drain_ms, reserve) = (office.orchestrator, config.drain_ms, config.admin_reserve as usize);
        let (hooks_kept, memory_mib_max) = (config.hook_connections_kept as usize, config.memory_mib_max);
        let main = move |http: HttpQueue| async move {
            let orchestrator = Orchestrator::new(orchestrator_options, hasher, rooms, bans, clock.now());
            let orchestrator = Rc::new(RefCell::new(orchestrator));
            let hooks = Hooks::new(hooks, hooks_kept, http.clone());
            let admin = Admin {
                orchestrator: Rc::clone(&orchestrator),
                life: Arc::clone(&life),
                hooks: Rc::clone(&hooks),
                usage,
            };
            executor::spawn(admin::run(admin_listener, Rc::new(admin), web, http, reserve));
            let parts = OrchestratorCoreParts {
                orchestrator,
                inbox,
                shards: to_shards,
                committer,
                hooks,
                clock,
                life,
                begun,
                end_asked,
                drain_ms,
                memory_mib_max,
            };
            orchestrator_core::run(parts).await;
        };
        let handle = executor::start("orchestrator", cores.orchestrator, config.spin_us.into(), sleeper, main);
        handles.push(handle.map_err(|error| refuse(format!("the orchestrator does not start: {error}")))?);
    }
    let guests_max = guests_max(nofile, shards, config.admin_reserve);
    for (at, ((listener, inbox), to_orchestrator)) in
        listeners.into_iter().zip(office.inboxes).zip(office.to_orchestrator).enumerate()
    {
        let sleeper = Sleeper::of(&inbox.door);
        sleepers.push(Arc::clone(&sleeper));
        let options = ShardOptions { id: ShardId(at as u16), ..config.shard.clone() };
        let parts = ShardCorePlan {
            options,
            apps: apps.clone(),
            hasher: hasher.clone(),
            ring: ring_options(&config, &features),
        };
        let (life, to_shards) = (Arc::clone(&life), office.to_shards.clone());
        let socket_options = SocketOptions {
            sndbuf_bytes: config.sndbuf_bytes,
            notsent_lowat_bytes: config.notsent_lowat_bytes,
            user_timeout_ms: config.user_timeout_ms,
        };
        let (head_ms_max, proxies) = (config.head_timeout_ms, config.proxies.clone());
        let (core_failed, begun) = (Arc::clone(&failed), begun.clone());
        let main = move |http: HttpQueue| async move {
            let ended = shard_core::run(ShardCoreParts {
                shard: parts.shard(clock.now()),
                inbox,
                shards: to_shards,
                orchestrator: to_orchestrator,
                listener,
                ring: parts.ring,
                http,
                socket: socket_options,
                web,
                reserve: credits,
                guests_max,
                head_ms_max,
                proxies,
                clock,
                life: Arc::clone(&life),
                begun,
            })
            .await;
            if let Err(error) = ended {
                eprintln!("ringcast: shard {at} failed: {error}");
                core_failed.store(true, Ordering::Release);
                life.stop();
            }
        };
        let handle = executor::start(&format!("shard-{at}"), cores.shards[at], config.spin_us.into(), sleeper, main);
        handles.push(handle.map_err(|error| refuse(format!("shard {at} does not start: {error}")))?);
    }
    // The orchestrator was the first to start, and its beats are the last.
    sleepers.rotate_left(1);
    let rouser =
        Rouser::start(sleepers, Arc::clone(&life)).map_err(|error| refuse(format!("no thread is left: {error}")))?;
    let watchdog = Watchdog::start(Arc::clone(&life), clock, config.stall_ms)
        .map_err(|error| refuse(format!("no thread is left: {error}")))?;
    drop(begun);
    // Fewer come where a core failed; the others end then, too.
    if begins.iter().take(handles.len()).count() == handles.len() {
        life.serve();
        // One that was asked to go meanwhile is not ready any more.
        if life.is_ready() {
            machine::notify_ready();
            announce(&config, &cores, nofile, guests_max, &apps);
        }
    }
    for handle in handles {
        if handle.join().is_err() {
            failed.store(true, Ordering::Release);
        }
    }
    drop(watchdog);
    drop(rouser);
    if failed.load(Ordering::Acquire) {
        return Err(refuse("a core of the node failed; what was acknowledged is on disk"));
    }
    eprintln!("ringcast: ended");
    Ok(())
}

/// Copies the database of a data directory to `copy` while a node may run on it.
///
/// # Errors
/// Nothing was copied.
pub fn backup(data_dir: &Path, copy: &Path) -> Result<(), NodeError> {
    sqlite_backup::backup(&data_dir.join(DATABASE), copy).map_err(|error| refuse(error.to_string()))
}

/// Makes the database of a data directory from a copy; no node may run on it, and there may be none yet.
///
/// # Errors
/// Nothing was made.
pub fn restore(data_dir: &Path, copy: &Path) -> Result<(), NodeError> {
    make_data_dir(data_dir)?;
    let options = OpenOptions { fresh_epoch_seed: random(), ..OpenOptions::default() };
    sqlite_backup::restore(copy, &data_dir.join(DATABASE), &options).map_err(|error| refuse(error.to_string()))
}

/// Nobody chose to begin anew at this moment, so it is said as loudly as there is a way to, with the way back.
fn tell_moved(moved: &MovedAside, data_dir: &Path) {
    let dir = data_dir.display();
    eprintln!(
        "ringcast: ERROR: {DATABASE} was damaged ({}) and lies in {} now; this node begins with an empty one, and messages, \
         bans and alarms of before are not there. To bring a backup back: stop the node, move {DATABASE}, {DATABASE}-wal and \
         {DATABASE}-shm aside, and type `ringcast restore --data-dir {dir} FILE`",
        moved.what,
        moved.path.display(),
    );
}

/// Asks the doctor: what must be said is said, and what cannot work is refused before anything is made.
fn examine(config: &Config, cpus: &[usize]) -> Result<(), NodeError> {
    let (nofile_soft, nofile_hard) = machine::nofile();
    let machine = Machine {
        nofile_soft,
        nofile_hard,
        memlock_bytes: machine::memlock_bytes(),
        kernel: machine::kernel(),
        io_uring_disabled: machine::read_number("/proc/sys/kernel/io_uring_disabled").map(|n| n as u8),
        cpus: cpus.to_vec(),
        somaxconn: machine::read_number("/proc/sys/net/core/somaxconn").unwrap_or(u64::MAX),
    };
    for finding in doctor::examine(&machine, config) {
        match finding.severity {
            Severity::Refuse => return Err(refuse(finding.text)),
            Severity::Warn => eprintln!("ringcast: {}", finding.text),
            Severity::Note => {}
        }
    }
    Ok(())
}

/// What SIGHUP does: reads the blocklists that the configuration names by now and gives them to every shard. Nothing else
/// of the file counts before the next start.
fn reloader(config: &Config, apps: &Apps, shards: &[ShardDoors]) -> impl FnMut() + Send + 'static {
    let (config, apps, shards) = (config.clone(), apps.clone(), shards.to_vec());
    move || {
        let (lists, faults) = config.read_blocklists();
        for fault in faults {
            eprintln!("ringcast: {fault}");
        }
        let read = lists.len();
        let lists = lists.into_iter().filter_map(|(app, list)| Some((apps.find(app.as_str()).ok()?.0, list)));
        let lists: Blocklists = Arc::new(lists.collect());
        for shard in &shards {
            // One that was not taken yet is older.
            drop(shard.blocklists.replace(Arc::clone(&lists)));
            shard.blocklists.ring();
        }
        eprintln!("ringcast: {read} blocklists were read again");
    }
}

/// What a shard is made of before its thread runs.
struct ShardCorePlan {
    options: ShardOptions,
    apps: Apps,
    hasher: TopicHasher,
    ring: RingOptions,
}

impl ShardCorePlan {
    fn shard(&self, now: Now) -> Shard {
        Shard::new(self.options.clone(), self.apps.clone(), self.hasher.clone(), now)
    }
}

fn ring_options(config: &Config, features: &KernelFeatures) -> RingOptions {
    RingOptions {
        sockets_max: config.shard.clients_max,
        sq_entries: config.ring.sq_entries,
        cq_entries: config.ring.cq_entries,
        recv_buffers: config.ring.recv_buffers,
        recv_buffer_bytes: config.ring.recv_buffer_bytes,
        files_per_ring: 0,
        plain_descriptors: features.plain_descriptors,
    }
}

/// Sockets that one shard may hold between accept and seat, and as HTTP connections: its share of the descriptors
/// that are left when everybody else has what they need.
fn guests_max(nofile: u64, shards: u16, admin_reserve: u32) -> usize {
    let others = 64 + 16 * u64::from(shards) + u64::from(admin_reserve);
    // A guest may become an HTTP connection: each counts once in the door and once there.
    (nofile.saturating_sub(others) / u64::from(shards) / 2).clamp(16, 65_536) as usize
}

/// Takes a port. The kernel may keep the listener of a node that has just ended for a moment, until it has taken down
/// that node's rings: so a port in use is tried again for a second before it is believed.
fn lock_port(address: SocketAddr) -> std::io::Result<PortLock> {
    for _ in 0..20 {
        match socket::lock_port(address) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                std::thread::park_timeout(Duration::from_millis(50));
            }
            other => return other,
        }
    }
    socket::lock_port(address)
}

fn make_data_dir(dir: &Path) -> Result<(), NodeError> {
    fs::create_dir_all(dir).map_err(|error| {
        refuse(format!("the data directory {} cannot be made: {error}; choose another by --data-dir", dir.display()))
    })
}

/// 64 random bits. Without a source of randomness nothing that must not be guessed can be made.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(error) => panic!("the system gives no randomness: {error}"),
    }
}

fn announce(config: &Config, cores: &Cores, nofile: u64, guests_max: usize, apps: &Apps) {
    let dir = config.data_dir.display();
    eprintln!(
        "ringcast {} listens on http://{} (admin http://{})",
        env!("CARGO_PKG_VERSION"),
        config.listen,
        config.admin
    );
    eprintln!("  cores      orchestrator on {}, shards on {:?}", cores.orchestrator, cores.shards);
    if cores.sharing > 1 {
        eprintln!("             over-committed: up to {} of them share one core", cores.sharing);
    }
    eprintln!(
        "  limits     {} connections a shard, {} a room; {nofile} descriptors, of which {guests_max} a shard for HTTP; \
         queue {} ms; {} messages on their way",
        config.shard.clients_max,
        config.shard.room_capacity,
        config.shard.outbox.lag_budget_ms,
        config.orchestrator.credits_max,
    );
    eprintln!("  data       {dir}");
    if apps.names().any(|name| name.as_str() == "demo") {
        eprintln!("  demo app   server key in {dir}/demo.key, signing secret in {dir}/demo.jwt");
        eprintln!("Watch a channel in one terminal, post to it in another:");
        eprintln!("  ringcast watch --url http://{} race-42", config.listen);
        eprintln!(
            "  curl -H \"authorization: Bearer $(cat {dir}/demo.key)\" -d '{{\"user\":\"ann\",\"text\":\"hello\"}}' \
             http://{}/v1/demo/channels/race-42/messages",
            config.listen
        );
    }
}
