//! The configuration: a file and the command line flow in, the checked options of every part flow out.
//!
//! Always true: what comes out is within its ranges and fits together, or nothing comes out and the error names file,
//! line, key, value and what is allowed; a key that is not written has the default that `shard-config/default.toml`
//! states; and no part sees more than its own options.
//!
//! | file | what it holds |
//! |---|---|
//! | `keys` | every key with its range, table by table |
//! | `check` | what two keys must fulfil together |
//! | `apps`, `demo`, `fresh` | the tenants; the one that is there when none is configured; a new one with its keys |
//! | `cells` | which of them live here, and where the others are |
//! | `table`, `error` | the text of a file, read key by key; what a fault looks like |
//! | `cores` | which part runs on which core |

mod apps;
mod cells;
mod check;
pub mod cores;
pub mod demo;
mod error;
pub mod fresh;
mod keys;
mod table;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

pub use cores::Cores;
pub use error::ConfigError;

use crate::admission::blocklist::Blocklist;
use crate::admission::{AppOptions, Apps};
use crate::base::Name;
use crate::io::proxies::Proxies;
use crate::io::usage::DiskOptions;
use crate::orchestrator::OrchestratorOptions;
use crate::shard::ShardOptions;
use crate::store::OpenOptions;
use error::Place;
use table::{Notes, Sheet, Source};

/// Everything about a node that may be chosen. The ranges stand in `shard-config/default.toml` and in `keys`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where viewers and posts arrive.
    pub listen: SocketAddr,
    /// Where health and metrics are asked for.
    pub admin: SocketAddr,
    /// The database and the demo app's keys. A relative path begins from the working directory.
    pub data_dir: PathBuf,
    /// How many shards; `None` is one for each core of the process's affinity but one, and at least 1.
    pub shards: Option<u16>,
    /// The orchestrator's core; `None` is the first of the process's affinity.
    pub orchestrator_core: Option<u16>,
    /// From the wish to end to the end, in milliseconds.
    pub drain_ms: u32,
    /// The time a request's head may take to arrive, in milliseconds.
    pub head_timeout_ms: u32,
    /// The longest body of a request, in bytes.
    pub body_bytes_max: u32,
    /// `SO_SNDBUF` of a viewer's socket, in bytes; the kernel doubles it for its own bookkeeping.
    pub sndbuf_bytes: u32,
    /// `TCP_NOTSENT_LOWAT`, in bytes: at least twice the longest slice.
    pub notsent_lowat_bytes: u32,
    /// `TCP_USER_TIMEOUT`, in milliseconds: how long sent bytes may stay unacknowledged.
    pub user_timeout_ms: u32,
    /// Connections that may wait to be accepted, for each listener.
    pub backlog: u32,
    /// Descriptors that viewers cannot take, so that the admin listener, the store and logs go on.
    pub admin_reserve: u32,
    /// How long an idle core looks for work before it sleeps, in microseconds.
    pub spin_us: u32,
    /// A core that takes no turn for so long has stalled, in milliseconds.
    pub stall_ms: u32,
    /// Resident memory at which nobody more is let in, in MiB; 0 is no bound.
    pub memory_mib_max: u32,
    /// The echo endpoint of conformance tests is there. Only the command line can say so.
    pub test_echo: bool,
    /// Of every shard; its `id` and `shards` are filled in when they are known.
    pub shard: ShardOptions,
    /// Of the orchestrator; its `shards` and `seed` are filled in when they are known.
    pub orchestrator: OrchestratorOptions,
    /// Of the database; its seed of epochs is filled in at the start.
    pub store: OpenOptions,
    /// What the disk of the database is watched for.
    pub disk: DiskOptions,
    /// Of each shard's ring.
    pub ring: RingSettings,
    /// The tenants as configured. Empty stands for the demo app, which [`Config::open_apps`] makes.
    pub apps: Vec<AppOptions>,
    /// Apps of other cells, and the address of each.
    pub elsewhere: Vec<(Name, String)>,
    /// The files of their blocklists, to be read again while the node runs.
    pub blocklist_files: Vec<(Name, PathBuf)>,
    /// Connections to the hook of each app that are kept for the next message.
    pub hook_connections_kept: u32,
    /// Who in front of the node is believed about whom it speaks for.
    pub proxies: Proxies,
    /// The file all this comes from, to be read again for its blocklists.
    pub file: Option<PathBuf>,
}

/// What of a shard's ring may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSettings {
    /// Buffers that reads share, a power of two; as many reads go into one submit at the most.
    pub recv_buffers: u16,
    /// The most bytes of one read.
    pub recv_buffer_bytes: u32,
    /// Submission entries, a power of two.
    pub sq_entries: u32,
    /// Completion entries, a power of two and not fewer than `sq_entries`.
    pub cq_entries: u32,
}

impl Default for RingSettings {
    fn default() -> Self {
        Self { recv_buffers: 256, recv_buffer_bytes: 4_096, sq_entries: 256, cq_entries: 8_192 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
            data_dir: "./ringcast-data".into(),
            shards: None,
            orchestrator_core: None,
            drain_ms: 10_000,
            head_timeout_ms: 10_000,
            body_bytes_max: 64 * 1024,
            sndbuf_bytes: 256 * 1024,
            notsent_lowat_bytes: 128 * 1024,
            user_timeout_ms: 45_000,
            backlog: 4_096,
            admin_reserve: 64,
            spin_us: 0,
            stall_ms: 5_000,
            memory_mib_max: 0,
            test_echo: false,
            shard: ShardOptions::default(),
            orchestrator: OrchestratorOptions::default(),
            store: OpenOptions::default(),
            disk: DiskOptions::default(),
            ring: RingSettings::default(),
            apps: Vec::new(),
            elsewhere: Vec::new(),
            blocklist_files: Vec::new(),
            hook_connections_kept: 32,
            proxies: Proxies::default(),
            file: None,
        }
    }
}

/// What the command line says; it wins over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--data-dir`
    pub data_dir: Option<PathBuf>,
    /// `--listen`
    pub listen: Option<SocketAddr>,
    /// `--admin`
    pub admin: Option<SocketAddr>,
    /// `--shards`, 1 to 256
    pub shards: Option<u16>,
    /// `--orchestrator-core`
    pub orchestrator_core: Option<u16>,
    /// `--test-echo`
    pub test_echo: bool,
}

impl Config {
    /// Reads a file, or takes the defaults, lets the command line win, and checks all of it.
    ///
    /// # Errors
    /// The first fault.
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Self, ConfigError> {
        match file {
            None => Self::checked(Self::default(), Notes::default(), overrides),
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| ConfigError::file(file, "cannot be read", error.to_string()))?;
                let (mut config, notes) = Self::parse(file, &text)?;
                config.file = Some(file.to_owned());
                Self::checked(config, notes, overrides)
            }
        }
    }

    fn parse(file: &Path, text: &str) -> Result<(Self, Notes), ConfigError> {
        let mut config = Self::default();
        let mut sheet = Sheet::parse(Source { file, text })?;
        keys::read(&mut sheet, &mut config);
        apps::read(&mut sheet, &mut config);
        cells::read(&mut sheet, &mut config);
        Ok((config, sheet.finish()))
    }

    fn checked(mut self, mut notes: Notes, overrides: &Overrides) -> Result<Self, ConfigError> {
        let mut say = |key: &str, value: String| notes.put(key, Place::CommandLine, value);
        if let Some(data_dir) = &overrides.data_dir {
            say("node.data_dir", data_dir.display().to_string());
            self.data_dir.clone_from(data_dir);
        }
        if let Some(listen) = overrides.listen {
            say("node.listen", listen.to_string());
            self.listen = listen;
        }
        if let Some(admin) = overrides.admin {
            say("node.admin", admin.to_string());
            self.admin = admin;
        }
        if let Some(shards) = overrides.shards {
            say("node.shards", shards.to_string());
            self.shards = Some(shards);
        }
        if let Some(core) = overrides.orchestrator_core {
            say("node.orchestrator_core", core.to_string());
            self.orchestrator_core = Some(core);
        }
        self.test_echo |= overrides.test_echo;
        self.shard.echo = self.test_echo;
        // A room has one capacity and one viewer one number of tries, whoever counts them.
        self.orchestrator.seating.room_capacity = self.shard.room_capacity;
        self.orchestrator.seating.attempts_max = self.shard.attempts_max;
        check::check(&self, &mut notes);
        notes.result().map(|()| self)
    }

    /// Writes the number of shards, once it is known, into the options of all who need it.
    pub fn settle(&mut self, shards: u16) {
        self.shard.shards = shards;
        self.orchestrator.shards = shards;
        self.orchestrator.seating.shards = shards;
    }

    /// Reads every blocklist again, also those that the file names only by now; an app of which it names none any more
    /// gets an empty one. What cannot be read is told beside the others, which hold; a file that is faulty names what it
    /// named at the start.
    #[must_use]
    pub fn read_blocklists(&self) -> (Vec<(Name, Blocklist)>, Vec<ConfigError>) {
        let (mut lists, mut faults) = (Vec::new(), Vec::new());
        let mut files = self.blocklist_files.clone();
        match self.file.as_deref().map(Self::blocklist_files_of) {
            Some(Ok(now)) => {
                let gone = files.iter().filter(|(app, _)| now.iter().all(|(other, _)| other != app));
                lists.extend(gone.filter_map(|(app, _)| Some((app.clone(), Blocklist::new("", 0).ok()?))));
                files = now;
            }
            Some(Err(fault)) => faults.push(fault),
            None => {}
        }
        for (app, file) in &files {
            match apps::blocklist(file, self.shard.patterns_max) {
                Ok(list) => lists.push((app.clone(), list)),
                Err(why) => {
                    faults.push(ConfigError::file(file, format!("the blocklist of app {app} stays as it was"), why));
                }
            }
        }
        (lists, faults)
    }

    fn blocklist_files_of(file: &Path) -> Result<Vec<(Name, PathBuf)>, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| ConfigError::file(file, "cannot be read", error.to_string()))?;
        let (config, mut notes) = Self::parse(file, &text)?;
        notes.result().map(|()| config.blocklist_files)
    }

    /// The tenants to start with: those of the configuration, or the demo app, whose keys are made in `data_dir` at the
    /// first start and read afterwards. The directory must exist.
    ///
    /// # Errors
    /// A key file that cannot be made, read or trusted.
    pub fn open_apps(&self) -> Result<Apps, ConfigError> {
        if !self.apps.is_empty() {
            return Ok(Apps::new(self.apps.clone()).with_elsewhere(self.elsewhere.clone()));
        }
        let bytes_max = keys::MESSAGE_BYTES_MAX.min(self.shard.socket.message_bytes_max).min(self.body_bytes_max);
        let demo = demo::open(&self.data_dir, bytes_max)?;
        Ok(Apps::new(vec![demo]).with_elsewhere(self.elsewhere.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn load(text: &str) -> Result<Config, String> {
        let parsed = Config::parse(Path::new("x.toml"), text);
        parsed.and_then(|(config, notes)| config.checked(notes, &Overrides::default())).map_err(|e| e.to_string())
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_default() {
        let text = "[node]\nshards = 3\nlisten = \"127.0.0.1:1\"\n[seating]\nroom_capacity = 7\n";
        let (config, notes) = Config::parse(Path::new("x.toml"), text).unwrap();
        let overrides = Overrides { shards: Some(2), test_echo: true, ..Overrides::default() };
        let mut config = config.checked(notes, &overrides).unwrap();
        assert_eq!((config.shards, config.listen.port(), config.admin.port()), (Some(2), 1, 8081));
        assert_eq!((config.shard.room_capacity, config.orchestrator.seating.room_capacity), (7, 7));
        assert!(config.shard.echo);
        config.settle(2);
        assert_eq!((config.shard.shards, config.orchestrator.seating.shards), (2, 2));
    }

    #[test]
    fn the_file_of_defaults_states_every_key_and_equals_the_code() {
        let text = include_str!("../../shard-config/default.toml");
        let (config, notes) = Config::parse(Path::new("default.toml"), text).unwrap();
        assert_eq!(notes.absent().iter().collect::<Vec<_>>(), Vec::<&String>::new());
        let read = config.checked(notes, &Overrides::default()).unwrap();
        let own = Config::load(None, &Overrides::default()).unwrap();
        assert_eq!(format!("{read:#?}"), format!("{own:#?}"));
        // The part's own defaults are what is written there, not what some other part makes of them.
        assert_eq!(format!("{own:#?}"), format!("{:#?}", Config::default()));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Config::load(Some(Path::new("no/such.toml")), &Overrides::default()).unwrap_err();
        assert!(error.to_string().starts_with("no/such.toml: cannot be read"));
    }
}
