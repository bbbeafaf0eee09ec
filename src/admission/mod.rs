//! Who may do what, in the order that is visible from outside: validate, authorise, blocklist on the shard; ban, rate,
//! slow mode, hook at the orchestrator. A draft flows in, the draft or a refusal flows out.

pub mod auth;
pub mod rate;
pub mod validate;

use crate::base::{AppId, Name};
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
}

impl Apps {
    /// The apps in the order of the configuration.
    #[must_use]
    pub fn new(apps: Vec<AppOptions>) -> Self {
        Self { apps }
    }

    /// Finds an app by name.
    ///
    /// # Errors
    /// 404 if there is none.
    pub fn find(&self, name: &str) -> Result<(AppId, &AppOptions), Problem> {
        // A node has a handful of apps; a walk over them is as fast as a map.
        self.apps
            .iter()
            .position(|app| app.name.as_str() == name)
            .map(|at| (AppId(at as u16), &self.apps[at]))
            .ok_or_else(|| Problem::new(404, "unknown_app", format!("no app {name:?} on this node")))
    }

    /// The app at this place.
    #[must_use]
    pub fn get(&self, id: AppId) -> Option<&AppOptions> {
        self.apps.get(usize::from(id.0))
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
