//! Who may do what, in the order that is visible from outside: validate, authorise, blocklist on the shard; ban, rate,
//! slow mode, hook at the orchestrator. A draft flows in, the draft or a refusal flows out.

pub mod auth;
pub mod blocklist;
pub mod quota;
pub mod rate;
pub mod validate;

use blocklist::Blocklist;
use quota::Quota;

use crate::base::{AppId, Name};
use crate::wire::hook::HookUrl;
use crate::wire::problem::Problem;

/// One tenant, as configured.
#[derive(Clone)]
pub struct AppOptions {
    /// Its name.
    pub name: Name,
    /// SHA-256 of its server key.
    pub server_key_hash: [u8; 32],
    /// The keys its tokens may be signed with.
    pub token_keys: Vec<auth::TokenKey>,
    /// Who has no token may read.
    pub anonymous_read: bool,
    /// Origins that a browser's page may come from; empty allows every one, and a request without an Origin is never
    /// refused, for only browsers send it.
    pub origins: Vec<String>,
    /// Refuses whoever does not come from loopback.
    pub loopback_only: bool,
    /// `ringcast.json` text or data of one message, in bytes.
    pub message_bytes_max: u32,
    /// Messages older than so many days go; 0 keeps them.
    pub retention_days: u32,
    /// All but the youngest so many messages of a channel go; 0 keeps them.
    pub retention_messages: u32,
    /// How much of the node it may take.
    pub quota: Quota,
    /// So long after its token has run out a connection is closed, in seconds; `None` lets it read on.
    pub token_grace_s: Option<u32>,
    /// Texts that are not allowed.
    pub blocklist: Option<Blocklist>,
    /// The app's own judge of messages.
    pub hook: Option<HookOptions>,
}

/// The judge of an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOptions {
    /// Where it is.
    pub url: HookUrl,
    /// How long a message waits for its verdict, in milliseconds.
    pub budget_ms: u32,
    /// How long a verdict may take to come, in milliseconds; after the budget a no retracts what was stored.
    pub late_ms: u32,
    /// Without a verdict a message is stored; else it is refused.
    pub fails_open: bool,
}

impl std::fmt::Debug for AppOptions {
    /// Shows no key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AppOptions({}, {} token keys)", self.name, self.token_keys.len())
    }
}

/// All tenants of this node.
#[derive(Clone, Debug, Default)]
pub struct Apps {
    apps: Vec<AppOptions>,
    /// Apps of other cells, and the address of each.
    elsewhere: Vec<(Name, String)>,
}

impl Apps {
    /// The apps in the order of the configuration.
    #[must_use]
    pub fn new(apps: Vec<AppOptions>) -> Self {
        Self { apps, elsewhere: Vec::new() }
    }

    /// The same, knowing where the apps of other cells are.
    #[must_use]
    pub fn with_elsewhere(mut self, elsewhere: Vec<(Name, String)>) -> Self {
        self.elsewhere = elsewhere;
        self
    }

    /// Finds an app by name.
    ///
    /// # Errors
    /// 421 if it is on another cell, with that cell's address; 404 if there is none.
    pub fn find(&self, name: &str) -> Result<(AppId, &AppOptions), Problem> {
        // A node has a handful of apps; a walk over them is as fast as a map.
        self.apps
            .iter()
            .position(|app| app.name.as_str() == name)
            .map(|at| (AppId(at as u16), &self.apps[at]))
            .ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> Problem {
        let Some((app, address)) = self.elsewhere.iter().find(|(app, _)| app.as_str() == name) else {
            return Problem::new(404, "unknown_app", format!("no app {name:?} on this node"));
        };
        // RFC 9110 §15.5.20: the client may ask again over a connection to the right place.
        Problem::new(421, "wrong_cell", format!("app {name:?} is on the cell at {address}"))
            .with_header("location", format!("{address}/v1/{app}"))
            .with_member("cell", address.clone())
    }

    /// The app at this place.
    #[must_use]
    pub fn get(&self, id: AppId) -> Option<&AppOptions> {
        self.apps.get(usize::from(id.0))
    }

    /// Replaces lists of texts that are not allowed; an app that is not named keeps its own.
    pub fn set_blocklists(&mut self, lists: &[(AppId, Blocklist)]) {
        for (app, list) in lists {
            if let Some(options) = self.apps.get_mut(usize::from(app.0)) {
                options.blocklist = Some(list.clone());
            }
        }
    }

    /// The patterns of the longest list.
    #[must_use]
    pub fn blocklist_patterns(&self) -> usize {
        self.apps.iter().filter_map(|app| app.blocklist.as_ref()).map(Blocklist::patterns).max().unwrap_or(0)
    }

    /// All of them, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &AppOptions> {
        self.apps.iter()
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.apps.iter().map(|app| &app.name)
    }
}

impl AppOptions {
    /// An app that nobody may read without a token, from any page, and of which everything is kept.
    #[must_use]
    pub fn new(name: Name, server_key_hash: [u8; 32]) -> Self {
        Self {
            name,
            server_key_hash,
            token_keys: Vec::new(),
            anonymous_read: false,
            origins: Vec::new(),
            loopback_only: false,
            message_bytes_max: 16 * 1024,
            retention_days: 0,
            retention_messages: 0,
            quota: Quota::default(),
            token_grace_s: None,
            blocklist: None,
            hook: None,
        }
    }

    /// Checks what is posted against the texts that are not allowed.
    ///
    /// # Errors
    /// 422 if it holds one of them.
    pub fn check_words(&self, text: Option<&str>, data: Option<&str>) -> Result<(), Problem> {
        self.blocklist.as_ref().map_or(Ok(()), |list| list.check(text, data))
    }

    /// Checks the page that a browser's request comes from.
    ///
    /// # Errors
    /// 403 if the allow-list does not name it.
    pub fn check_origin(&self, origin: Option<&str>) -> Result<(), Problem> {
        match origin {
            Some(origin) if !self.origins.is_empty() && !self.origins.iter().any(|o| o == origin || o == "*") => Err(
                Problem::new(403, "origin_not_allowed", format!("Origin {origin:?} is not on the list of this app")),
            ),
            _ => Ok(()),
        }
    }

    /// Checks where the connection comes from.
    ///
    /// # Errors
    /// 403 if this app serves loopback only.
    pub fn check_source(&self, from_loopback: bool) -> Result<(), Problem> {
        if self.loopback_only && !from_loopback {
            return Err(Problem::new(403, "loopback_only", "this app serves connections from loopback only"));
        }
        Ok(())
    }
}
