//! What a user may no longer do: bans and rights that end while a connection lives.
//!
//! Events to a user flow in; the end of the connection, or of one of its channels, flows out. Always true: the event is the
//! last that the connection or the channel gets, and what a connection was told is remembered with it until it is given a
//! seat there again.

use super::Shard;
use crate::base::{ClientId, Now};
use crate::wire::close::Closing;
use crate::wire::event::EventKind;
use crate::wire::sealed::{Member, Sealed};
use crate::wire::topic::Scope;

/// Channels that one connection may be banned from before it ends: as many as it may watch by default.
const BANNED_MAX: usize = 128;

impl Shard {
    /// A ban may be told again, for who was not there the first time.
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
