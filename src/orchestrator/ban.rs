//! Bans: stored first, then in force, then told to every connection of the user.
//!
//! Questions of apps flow in; a ban for the store, then a `user.banned` for the user's partition flow out. Always true: a
//! ban that was acknowledged survives the process, one that has expired stops nobody, no more are taken than there may be,
//! and a connection that comes to be a user's asks for what was told before.

use std::collections::BTreeMap;

use super::{Action, Orchestrator};
use crate::base::{ClientId, Gauge, Name, Now, ShardId};
use crate::post::letters::{Ban, ToShard};
use crate::store::StoreError;
use crate::wire::event::EventKind;
use crate::wire::problem::Problem;
use crate::wire::sealed::{Event, Member, Sealed};
use crate::wire::topic::Scope;

/// Bans that one connection is told: one more than it may have and live.
const TOLD_MAX: usize = 129;

/// The bans in force, and those on their way to the store.
#[derive(Debug, Default)]
pub(super) struct Bans {
    in_force: BTreeMap<(Name, Name), BTreeMap<Option<Name>, Option<u64>>>,
    /// How many are in force.
    count: usize,
    /// Those in force and those on their way to the store may be so many.
    max: u32,
    saving: BTreeMap<u64, Saving>,
    next: u64,
}

#[derive(Debug)]
struct Saving {
    ticket: u64,
    asker: ShardId,
    ban: Ban,
    lift: bool,
}

impl Bans {
    pub(super) fn new(max: u32, bans: impl IntoIterator<Item = Ban>) -> Self {
        // Those that the store kept hold even if they are more.
        let mut all = Self { max, ..Self::default() };
        for ban in bans {
            all.apply(&ban, false);
        }
        all
    }

    /// Whether this user may watch and write here.
    pub(super) fn check(
        &self,
        app: &Name,
        user: &Name,
        channel: Option<&Name>,
        now_wall_ms: u64,
    ) -> Result<(), Problem> {
        // Most apps ban nobody; then nothing is cloned to look.
        if self.in_force.is_empty() {
            return Ok(());
        }
        let Some(bans) = self.in_force.get(&(app.clone(), user.clone())) else { return Ok(()) };
        let holds = |place: &Option<Name>| {
            bans.get(place).is_some_and(|expires| expires.is_none_or(|expires_ms| expires_ms > now_wall_ms))
        };
        if holds(&None) || channel.is_some_and(|channel| holds(&Some(channel.clone()))) {
            return Err(Problem::new(403, "banned", "this user is banned"));
        }
        Ok(())
    }

    fn apply(&mut self, ban: &Ban, lift: bool) {
        let key = (ban.app.clone(), ban.user.clone());
        let bans = self.in_force.entry(key.clone()).or_default();
        if lift {
            self.count -= usize::from(bans.remove(&ban.channel).is_some());
        } else {
            self.count += usize::from(bans.insert(ban.channel.clone(), ban.expires_ms).is_none());
        }
        if bans.is_empty() {
            self.in_force.remove(&key);
        }
    }

    /// Forgets what has expired; the store sweeps its own.
    pub(super) fn sweep(&mut self, now_wall_ms: u64) {
        self.in_force.retain(|_, bans| {
            bans.retain(|_, expires| expires.is_none_or(|expires_ms| expires_ms > now_wall_ms));
            !bans.is_empty()
        });
        self.count = self.in_force.values().map(BTreeMap::len).sum();
    }

    /// There is a place for this one: it replaces one of its kind, or it is not one too many.
    fn has_room(&self, ban: &Ban) -> bool {
        let key = (ban.app.clone(), ban.user.clone());
        !self.gauge().is_full() || self.in_force.get(&key).is_some_and(|bans| bans.contains_key(&ban.channel))
    }

    pub(super) fn gauge(&self) -> Gauge {
        let coming = self.saving.values().filter(|saving| !saving.lift).count();
        Gauge::new((self.count + coming) as u64, self.max.into())
    }
}

impl Orchestrator {
    pub(super) fn ban(&mut self, ticket: u64, asker: ShardId, ban: Ban, lift: bool) {
        if !lift && !self.bans.has_room(&ban) {
            let detail = format!("{} bans hold (moderation.bans_max): lift others first", self.bans.max);
            let answer = Err(Problem::new(503, "bans_full", detail).retry_after(60));
            return self.answer(asker, ToShard::Done { ticket, answer });
        }
        let number = self.bans.next;
        self.bans.next += 1;
        self.bans.saving.insert(number, Saving { ticket, asker, ban: ban.clone(), lift });
        self.actions.push_back(Action::SaveBan { number, ban, lift });
    }

    /// A ban is durable, or is not.
    pub fn on_ban_saved(&mut self, now: Now, number: u64, result: Result<(), StoreError>) {
        let Some(Saving { ticket, asker, ban, lift }) = self.bans.saving.remove(&number) else { return };
        let answer = if let Err(error) = result {
            Err(super::publish::store_problem(&error))
        } else {
            self.bans.apply(&ban, lift);
            if !lift {
                // The event is what ends the connections: each shard closes those it delivers it to, behind it.
                if let Some(sealed) = self.banned_event(now, &ban) {
                    self.publish_with_credit(sealed);
                }
            }
            Ok(())
        };
        self.answer(asker, ToShard::Done { ticket, answer });
    }

    /// A connection is this user's from now on: it is told the bans in force, and of so many that it ends anyway no more.
    pub(super) fn tell_bans_of(&mut self, now: Now, asker: ShardId, client: ClientId, app: &Name, user: &Name) {
        // Most apps ban nobody.
        if self.bans.in_force.is_empty() {
            return;
        }
        let Some(bans) = self.bans.in_force.get(&(app.clone(), user.clone())) else { return };
        let in_force = bans.iter().filter(|(_, expires)| expires.is_none_or(|expires_ms| expires_ms > now.wall_ms));
        let bans = in_force.take(TOLD_MAX).map(|(channel, expires_ms)| Ban {
            app: app.clone(),
            user: user.clone(),
            channel: channel.clone(),
            expires_ms: *expires_ms,
        });
        let told: Vec<Sealed> = bans.filter_map(|ban| self.banned_event(now, &ban)).collect();
        if !told.is_empty() {
            self.answer(asker, ToShard::Bans { client, told });
        }
    }

    fn banned_event(&self, now: Now, ban: &Ban) -> Option<Sealed> {
        let mut members = Vec::new();
        if let Some(channel) = &ban.channel {
            members.push(("channel".to_owned(), Member::Text(channel.as_str().to_owned())));
        }
        if let Some(expires_ms) = ban.expires_ms {
            members.push(("expires_at".to_owned(), Member::Number(expires_ms)));
        }
        let topic = self.hasher.topic(Scope::User, &ban.app, &ban.user);
        let event = Event {
            user_id: ban.user.as_str().to_owned(),
            members,
            ..Event::new(EventKind::UserBanned, topic, now.wall_ms)
        };
        Sealed::seal(&event).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_hold_where_and_as_long_as_they_say() {
        let name = |text: &str| Name::new(text).unwrap();
        let ban = |channel: Option<&str>, expires_ms| Ban {
            app: name("demo"),
            user: name("eve"),
            channel: channel.map(name),
            expires_ms,
        };
        let mut bans = Bans::new(2, [ban(Some("race"), Some(1_000))]);
        let check =
            |bans: &Bans, channel: &str, now| bans.check(&name("demo"), &name("eve"), Some(&name(channel)), now);
        assert_eq!(check(&bans, "race", 999).unwrap_err().code, "banned");
        assert!(check(&bans, "race", 1_000).is_ok() && check(&bans, "lobby", 0).is_ok());
        bans.apply(&ban(None, None), false);
        assert!(check(&bans, "lobby", u64::MAX).is_err());
        assert!(bans.gauge().is_full());
        assert!(!bans.has_room(&ban(Some("lobby"), None)) && bans.has_room(&ban(None, Some(5))), "one may be replaced");
        bans.apply(&ban(None, Some(5)), false);
        assert!(bans.gauge().is_full(), "it is the same one");
        bans.apply(&ban(None, None), true);
        bans.apply(&ban(None, None), true);
        assert_eq!(bans.gauge(), Gauge::new(1, 2), "lifted once, however often it is said");
        assert!(bans.has_room(&ban(Some("lobby"), None)));
        bans.sweep(1_000);
        assert!(bans.in_force.is_empty() && bans.gauge().used == 0);
    }

    #[test]
    fn who_becomes_a_user_is_told_what_is_in_force_and_no_more_than_ends_it() {
        use super::super::OrchestratorOptions;
        use crate::wire::topic::TopicHasher;
        let name = |text: &str| Name::new(text).unwrap();
        let ban = |user: &str, channel: Option<String>, expires_ms| Ban {
            app: name("demo"),
            user: name(user),
            channel: channel.as_deref().map(name),
            expires_ms,
        };
        let now = Now { mono_us: 1_000_000, wall_ms: 5_000 };
        let many = (0..200).map(|n| ban("many", Some(format!("c{n}")), None));
        let few = [ban("few", Some("over".to_owned()), Some(5_000)), ban("few", Some("race".to_owned()), Some(5_001))];
        let bans: Vec<Ban> = many.chain(few).chain([ban("many", None, None)]).collect();
        let mut node = Orchestrator::new(OrchestratorOptions::default(), TopicHasher::new(1), [], bans, now);
        let mut told = |user: &str| {
            let client = ClientId { slot: 3, generation: 1 };
            node.tell_bans_of(now, ShardId(0), client, &name("demo"), &name(user));
            while let Some(action) = node.poll_action(now) {
                if let Action::Answer { letter: ToShard::Bans { client: to, told }, .. } = action {
                    assert_eq!(to, client);
                    return told
                        .iter()
                        .map(|sealed| String::from_utf8_lossy(sealed.json_frame()).into_owned())
                        .collect();
                }
            }
            Vec::new()
        };
        let few = told("few");
        assert!(few.len() == 1 && few[0].contains("race") && few[0].contains("5001"), "{few:?}");
        let many = told("many");
        assert_eq!(many.len(), TOLD_MAX);
        assert!(!many[0].contains("\"channel\":\"c"), "that of the whole app comes first: {}", many[0]);
        assert!(told("nobody").is_empty());
    }
}
