//! What a user may no longer do: bans and rights that end while a connection lives.
//!
//! Events to a user flow in; the end of the connection, or of one of its channels, flows out. Always true: nothing of the
//! connection's or the channel's events comes behind the one that ends it, and what a connection was told is remembered with it until it is given a
//! seat there again.

use super::deliver::entry;
use super::write::NO_CHANNEL;
use super::{Action, Shard};
use crate::base::{ClientId, Name, Now};
use crate::fanout::behind::Payload;
use crate::fanout::client::Phase;
use crate::post::letters::ToOrchestrator;
use crate::wire::close::Closing;
use crate::wire::event::EventKind;
use crate::wire::sealed::{Member, Sealed};
use crate::wire::topic::Scope;

/// Channels that one connection may be banned from before it ends: as many as it may watch by default.
const BANNED_MAX: usize = 128;

impl Shard {
    /// The connection is findable by its user from here on, so what is banned later is told to it; what was banned before it
    /// asks for. Its seat speaks of one channel only, and of a moment that has passed.
    pub(super) fn ask_bans(&mut self, client: ClientId, app: &Name) {
        let Some(identity) = self.client(client).and_then(|client| client.identity.as_ref()) else { return };
        let (asker, app, user) = (self.options.id, app.clone(), identity.user.clone());
        self.actions.push_back(Action::Ask(ToOrchestrator::AskBans { asker, client, app, user }));
    }

    /// What it had asked for: each as if it were told to all of the user's connections.
    pub(super) fn on_bans(&mut self, now: Now, id: ClientId, told: &[Sealed]) {
        for sealed in told {
            if self.client(id).is_none_or(|client| client.phase != Phase::Open) || self.knows_ban(id, sealed) {
                continue;
            }
            self.account.of_mut(sealed.kind().row().class).published += 1;
            let payload = Payload::Event(sealed.clone());
            self.enqueue(now, id, entry(now, sealed.kind(), NO_CHANNEL, 0, 0, payload));
            self.end_access(now, id, sealed);
        }
    }

    /// A ban may be told twice: to all of the user's connections, and to the one that asks.
    pub(super) fn knows_ban(&self, id: ClientId, sealed: &Sealed) -> bool {
        let (Some(channel), until) = banned_from(sealed) else { return false };
        let identity = self.client(id).and_then(|client| client.identity.as_ref());
        identity.is_some_and(|identity| identity.banned.contains(&(channel, until)))
    }

    /// A user is banned or has lost its right: the event is the last that the connection gets, or the channel's last.
    pub(super) fn end_access(&mut self, now: Now, id: ClientId, sealed: &Sealed) {
        let (Some(channel), until) = banned_from(sealed) else {
            self.close(now, id, Closing::Revoked);
            return;
        };
        if let Some(identity) = self.client_mut(id).and_then(|client| client.identity.as_mut()) {
            identity.banned.retain(|(name, _)| *name != channel);
            identity.banned.push((channel.clone(), until));
            if identity.banned.len() > BANNED_MAX {
                self.close(now, id, Closing::Revoked);
                return;
            }
        }
        let app = sealed.topic().app.as_str();
        let hash = self.hasher.hash(Scope::Channel, app, &channel);
        if let Some(no) = self.index.find(Scope::Channel, hash, app, &channel)
            && self.client(id).is_some_and(|client| client.sub(no).is_some())
        {
            self.leave_answered(now, id, no);
        }
    }
}

/// The event ends what its user may do.
pub(super) fn ends_access(kind: EventKind) -> bool {
    matches!(kind, EventKind::UserBanned | EventKind::AccessRevoked)
}

/// The channel that a ban speaks of, if not of all, and until when it holds.
fn banned_from(sealed: &Sealed) -> (Option<String>, Option<u64>) {
    let (mut channel, mut until_ms) = (None, None);
    for (name, member) in sealed.to_event().members {
        match member {
            Member::Text(text) if name == "channel" => channel = Some(text),
            Member::Number(number) if name == "expires_at" => until_ms = Some(number),
            _ => {}
        }
    }
    (channel, until_ms)
}
