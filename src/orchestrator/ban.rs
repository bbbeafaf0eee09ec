//! Bans: stored first, then in force, then told to every connection of the user.
//!
//! Questions of apps flow in; a ban for the store, then a `user.banned` for the user's partition flow out. Always true: a
//! ban that was acknowledged survives the process, one that has expired stops nobody, no more are taken than there may be,
//! and a connection that was on its way to its shard when a ban was told hears of it all the same.

use std::collections::{BTreeMap, VecDeque};

use super::{Action, Orchestrator};
use crate::base::{Gauge, Name, Now, ShardId};
use crate::post::letters::{Ban, ToShard};
use crate::store::StoreError;
use crate::wire::event::EventKind;
use crate::wire::problem::Problem;
use crate::wire::sealed::{Event, Member, Sealed};
use crate::wire::topic::Scope;

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
    /// Told a moment ago, and told again at this time, in monotonic milliseconds: a connection that had been given its seat
    /// by then may have reached its shard later. No more than there may be bans; the oldest is told early where one is too many.
    again: VecDeque<(u64, Ban)>,
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

    /// It is in force as it was set.
    fn holds(&self, ban: &Ban, now_wall_ms: u64) -> bool {
        let bans = self.in_force.get(&(ban.app.clone(), ban.user.clone()));
        let set = bans.and_then(|bans| bans.get(&ban.channel));
        set == Some(&ban.expires_ms) && ban.expires_ms.is_none_or(|expires_ms| expires_ms > now_wall_ms)
    }

    /// When one is to be told again, in monotonic milliseconds.
    pub(super) fn wake_at_ms(&self) -> Option<u64> {
        self.again.front().map(|(at_ms, _)| *at_ms)
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
                self.tell_banned(now, &ban);
                let again_ms = now.mono_ms() + u64::from(self.options.seating.outstanding_expiry_ms);
                self.bans.again.push_back((again_ms, ban));
            }
            Ok(())
        };
        self.answer(asker, ToShard::Done { ticket, answer });
    }

    /// Tells once more what was told when seats were on their way that are taken or void by now.
    pub(super) fn drive_bans(&mut self, now: Now) {
        while self.bans.again.len() > self.bans.max as usize
            || self.bans.wake_at_ms().is_some_and(|at_ms| at_ms <= now.mono_ms())
        {
            let Some((_, ban)) = self.bans.again.pop_front() else { return };
            if self.bans.holds(&ban, now.wall_ms) {
                self.tell_banned(now, &ban);
            }
        }
    }

    /// A connection says only now whose it is: all bans of that user are told to it, and to the user's others again.
    pub(super) fn tell_bans_of(&mut self, now: Now, app: &Name, user: &Name) {
        let Some(bans) = self.bans.in_force.get(&(app.clone(), user.clone())) else { return };
        let ban = |(channel, expires_ms): (&Option<Name>, &Option<u64>)| Ban {
            app: app.clone(),
            user: user.clone(),
            channel: channel.clone(),
            expires_ms: *expires_ms,
        };
        let bans: Vec<Ban> = bans.iter().map(ban).collect();
        for ban in bans.iter().filter(|ban| ban.expires_ms.is_none_or(|expires_ms| expires_ms > now.wall_ms)) {
            self.tell_banned(now, ban);
        }
    }

    /// The event is what ends the connections: each shard closes those it delivers it to, behind it.
    fn tell_banned(&mut self, now: Now, ban: &Ban) {
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
        if let Ok(sealed) = Sealed::seal(&event) {
            self.publish_with_credit(sealed);
        }
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
    fn a_ban_is_told_again_when_no_seat_from_before_it_can_be_on_its_way() {
        use crate::orchestrator::OrchestratorOptions;
        use crate::wire::topic::TopicHasher;
        let name = |text: &str| Name::new(text).unwrap();
        let ban = |user: &str| Ban { app: name("demo"), user: name(user), channel: None, expires_ms: None };
        let mut now = Now { mono_us: 1_000_000, wall_ms: 5_000_000 };
        let options = OrchestratorOptions::default();
        let expiry_ms = u64::from(options.seating.outstanding_expiry_ms);
        let mut node = Orchestrator::new(options, TopicHasher::new(1), [], [], now);
        let told = |node: &mut Orchestrator, now: Now| {
            let mut told = Vec::new();
            while let Some(action) = node.poll_action(now) {
                match action {
                    Action::SaveBan { number, .. } => node.on_ban_saved(now, number, Ok(())),
                    Action::Publish { sealed, .. } => told.push(sealed.topic().name.to_string()),
                    _ => {}
                }
            }
            told
        };
        for (user, lift) in [("eve", false), ("mallory", false), ("mallory", true)] {
            node.ban(1, ShardId(0), ban(user), lift);
        }
        assert_eq!(told(&mut node, now), ["eve", "mallory"]);
        now = now.plus_ms(expiry_ms - 1);
        assert!(told(&mut node, now).is_empty());
        assert_eq!(node.bans.wake_at_ms(), Some(now.mono_ms() + 1));
        now = now.plus_ms(1);
        assert_eq!(told(&mut node, now), ["eve"], "the other ban was lifted");
        assert!(told(&mut node, now.plus_ms(expiry_ms)).is_empty());
        // Whose a connection is may be said later.
        node.tell_bans_of(now, &name("demo"), &name("eve"));
        node.tell_bans_of(now, &name("demo"), &name("mallory"));
        assert_eq!(told(&mut node, now), ["eve"]);
    }
}
