//! The members of all channels of one partition shard.
//!
//! What shards hold and the time flow in; `member.joined`, `member.left`, `presence.changed` and `viewers.updated` flow
//! out. Always true: a user is a member from its first connection until the grace after its last one is over; a channel
//! that nobody watches and nobody may come back to is forgotten; and while members are told one by one, each comes once
//! before it leaves once.

use std::collections::{BTreeMap, VecDeque};

use super::PresenceOptions;
use super::channel::{Channel, Member};
use crate::base::alarm::AlarmTable;
use crate::base::{ChannelKey, Gauge, Name, Now, ShardId};
use crate::post::presence::{Audience, Holding, UserHolding};
use crate::wire::event::EventKind;
use crate::wire::presence::{Status, member_event, status_event, viewers_event};
use crate::wire::sealed::Event;

/// See [`super`].
#[derive(Debug)]
pub(super) struct Rosters {
    options: PresenceOptions,
    /// Bounded by what the shards hold: each watches a bounded number of channels, and only members keep one longer.
    channels: BTreeMap<ChannelKey, Channel>,
    /// Members of all channels.
    members: u32,
    /// Connections of all channels.
    connections: u64,
    /// When a member without a connection has left.
    graces: AlarmTable<(ChannelKey, Name)>,
    /// When the totals of a channel are told.
    totals: AlarmTable<ChannelKey>,
}

impl Rosters {
    pub(super) fn new(options: PresenceOptions) -> Self {
        Self {
            options,
            channels: BTreeMap::new(),
            members: 0,
            connections: 0,
            graces: AlarmTable::default(),
            totals: AlarmTable::default(),
        }
    }

    pub(super) fn on_holding(&mut self, now: Now, holding: &Holding, news: &mut VecDeque<Event>) {
        let key = ChannelKey::new(holding.topic.app.clone(), holding.topic.name.clone());
        let channel =
            self.channels.entry(key.clone()).or_insert_with(|| Channel::new(holding.topic.clone(), now.mono_ms()));
        self.connections -= channel.connections();
        channel.update(holding.shard, holding.connections);
        self.connections += channel.connections();
        channel.choose_mode(self.options.roster_limit);
        if let Some(user) = &holding.user {
            self.on_user(now, &key, holding.shard, user, news);
        }
        self.settle(&key);
    }

    fn on_user(
        &mut self,
        now: Now,
        key: &ChannelKey,
        shard: ShardId,
        holding: &UserHolding,
        news: &mut VecDeque<Event>,
    ) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        let (user, ts_ms) = (&holding.user, now.wall_ms);
        let changed = if let Some(member) = channel.members.get_mut(user) {
            let changed = member.update(holding, shard);
            let grace = (key.clone(), user.clone());
            if member.connections() > 0 {
                self.graces.clear(&grace);
            } else if self.graces.at(&grace).is_none() {
                self.graces.set(grace, now.mono_ms() + u64::from(self.options.grace_ms));
            }
            changed
        } else {
            if holding.connections == 0 || self.members >= self.options.members_max {
                return;
            }
            self.members += 1;
            let member = Member::new(holding, shard);
            let (name, changed) = (member.name.clone(), member.status() != Status::default());
            channel.members.insert(user.clone(), member);
            channel.choose_mode(self.options.roster_limit);
            if channel.one_by_one {
                let topic = channel.topic.clone();
                news.push_back(member_event(EventKind::MemberJoined, topic, user.as_str(), &name, ts_ms));
            }
            changed
        };
        if changed
            && channel.one_by_one
            && let Some(member) = channel.members.get(user)
        {
            let topic = channel.topic.clone();
            news.push_back(status_event(topic, user.as_str(), &member.name, &member.status(), ts_ms));
        }
    }

    /// Between two totals of one channel at the least, in milliseconds. Each costs a delivery a viewer, so with very many
    /// viewers they are told less often: told each 5 s, the totals of a million would take a whole core. And told each second
    /// while 100,000 joined, for each is a large change then, they were two fifths of what the joins cost.
    fn least_ms(&self) -> u32 {
        let share_ms = self.connections * 1_000 / u64::from(self.options.viewers_deliveries_per_s_max.max(1));
        u32::try_from(share_ms).unwrap_or(u32::MAX)
    }

    /// Sets the moment at which the totals are told, and forgets a channel that is over.
    fn settle(&mut self, key: &ChannelKey) {
        let Some(channel) = self.channels.get(key) else { return };
        if channel.is_over() {
            self.channels.remove(key);
            self.totals.clear(key);
            return;
        }
        match channel.tell_at_ms(self.options.viewers_interval_ms, self.least_ms()) {
            Some(at_ms) if self.totals.at(key) != Some(at_ms) => self.totals.set(key.clone(), at_ms),
            Some(_) => {}
            None => self.totals.clear(key),
        }
    }

    pub(super) fn on_alarm(&mut self, now: Now, news: &mut VecDeque<Event>) {
        while let Some((key, user)) = self.graces.pop_due(now.mono_ms()) {
            let Some(channel) = self.channels.get_mut(&key) else { continue };
            let Some(member) = channel.members.remove(&user) else { continue };
            debug_assert_eq!(member.connections(), 0, "who is there has no grace");
            self.members -= 1;
            if channel.one_by_one {
                let topic = channel.topic.clone();
                news.push_back(member_event(EventKind::MemberLeft, topic, user.as_str(), &member.name, now.wall_ms));
            }
            channel.choose_mode(self.options.roster_limit);
            self.settle(&key);
        }
        while let Some(key) = self.totals.pop_due(now.mono_ms()) {
            let Some(channel) = self.channels.get_mut(&key) else { continue };
            let (connections, users) = channel.tell(now.mono_ms());
            if connections > 0 {
                let topic = channel.topic.clone();
                news.push_back(viewers_event(topic, connections, users, channel.one_by_one, now.wall_ms));
            }
        }
    }

    /// The last totals of a channel did not reach every shard.
    pub(super) fn on_totals_lost(&mut self, key: &ChannelKey) {
        if let Some(channel) = self.channels.get_mut(key) {
            channel.tell_again();
            self.settle(key);
        }
    }

    pub(super) fn next_alarm_ms(&self) -> Option<u64> {
        [self.graces.next(), self.totals.next()].into_iter().flatten().min()
    }

    pub(super) fn audience(&self, key: &ChannelKey, roster: bool) -> Audience {
        let Some(channel) = self.channels.get(key) else {
            return Audience { roster: roster.then(Vec::new), ..Audience::default() };
        };
        Audience {
            connections: channel.connections(),
            users: channel.members.len() as u64,
            roster: (roster && channel.one_by_one).then(|| channel.roster()),
        }
    }

    /// The user has a connection in that channel.
    pub(super) fn is_connected(&self, key: &ChannelKey, user: &Name) -> bool {
        let member = self.channels.get(key).and_then(|channel| channel.members.get(user));
        member.is_some_and(|member| member.connections() > 0)
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::new(u64::from(self.members), u64::from(self.options.members_max))
    }

    pub(super) fn channels(&self) -> usize {
        self.channels.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::post::presence::Stated;
    use crate::wire::presence::PresenceState;
    use crate::wire::sealed::Member;
    use crate::wire::topic::{Scope, TopicHasher};

    const OPTIONS: PresenceOptions = PresenceOptions {
        roster_limit: 3,
        grace_ms: 5_000,
        members_max: 4,
        typing_ms: 6_000,
        typing_max: 2,
        viewers_interval_ms: 5_000,
        viewers_deliveries_per_s_max: 20_000,
    };

    struct Stage {
        rosters: Rosters,
        news: VecDeque<Event>,
        now: Now,
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn key() -> ChannelKey {
        ChannelKey::new(name("demo"), name("race"))
    }

    impl Stage {
        fn new() -> Self {
            Self { rosters: Rosters::new(OPTIONS), news: VecDeque::new(), now: Now::default() }
        }

        fn hold(&mut self, shard: u16, connections: u32, user: &str, of_user: u32) {
            let topic = TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &name("race"));
            let user = (!user.is_empty()).then(|| UserHolding {
                user: name(user),
                name: String::new(),
                connections: of_user,
                stated: None,
            });
            let holding = Holding { shard: ShardId(shard), topic, connections, user };
            self.rosters.on_holding(self.now, &holding, &mut self.news);
        }

        fn pass(&mut self, ms: u64) {
            self.now = self.now.plus_ms(ms);
            self.rosters.on_alarm(self.now, &mut self.news);
        }

        /// What was said of members since the last call.
        fn said(&mut self) -> Vec<String> {
            let news = self.news.drain(..).filter(|event| event.kind != EventKind::ViewersUpdated);
            news.map(|event| format!("{} {}", event.type_name(), event.user_id)).collect()
        }
    }

    #[test]
    fn case_d1_two_tabs_are_one_member_and_a_reload_is_silent() {
        let mut stage = Stage::new();
        stage.hold(0, 1, "ann", 1);
        stage.hold(1, 1, "ann", 1);
        assert_eq!(stage.said(), ["member.joined ann"]);
        stage.hold(0, 0, "ann", 0);
        stage.pass(10_000);
        stage.hold(1, 0, "ann", 0);
        stage.pass(4_999);
        stage.hold(0, 1, "ann", 1);
        stage.pass(10_000);
        assert_eq!(stage.said(), [""; 0], "it came back within its grace");
        stage.hold(1, 1, "", 0);
        stage.hold(0, 0, "ann", 0);
        stage.pass(4_999);
        assert_eq!(stage.said(), [""; 0]);
        stage.pass(1);
        assert_eq!(stage.said(), ["member.left ann"]);
        stage.hold(1, 0, "", 0);
        assert_eq!((stage.rosters.channels(), stage.rosters.gauge().used), (0, 0));
    }

    #[test]
    fn letters_that_come_twice_change_nothing() {
        let mut stage = Stage::new();
        for _ in 0..2 {
            stage.hold(0, 2, "ann", 1);
            stage.hold(0, 2, "bob", 1);
        }
        assert_eq!(stage.said(), ["member.joined ann", "member.joined bob"]);
        assert_eq!(stage.rosters.audience(&key(), false), Audience { connections: 2, users: 2, roster: None });
    }

    #[test]
    fn above_the_limit_members_are_counted_and_not_told() {
        let mut stage = Stage::new();
        stage.hold(0, 1, "ann", 1);
        stage.hold(0, 4, "bob", 1);
        assert_eq!(stage.said(), ["member.joined ann"], "four watch");
        let audience = stage.rosters.audience(&key(), true);
        assert_eq!((audience.connections, audience.users, audience.roster), (4, 2, None));
        stage.hold(0, 3, "ann", 0);
        stage.pass(5_000);
        assert_eq!(stage.said(), [""; 0]);
        stage.hold(0, 2, "cid", 1);
        assert_eq!(stage.said(), ["member.joined cid"], "two watch again");
        let roster = stage.rosters.audience(&key(), true).roster.unwrap();
        assert_eq!(roster.iter().map(|present| present.user.as_str()).collect::<Vec<_>>(), ["bob", "cid"]);
    }

    #[test]
    fn more_members_than_may_be_are_counted_as_connections() {
        let mut stage = Stage::new();
        for (at, user) in ["ann", "bob", "cid", "dan", "eve"].into_iter().enumerate() {
            stage.hold(0, at as u32 + 1, user, 1);
        }
        let audience = stage.rosters.audience(&key(), false);
        assert_eq!((audience.connections, audience.users), (5, 4));
        assert!(stage.rosters.gauge().is_full());
        stage.hold(0, 4, "eve", 0);
        stage.hold(0, 3, "dan", 0);
        stage.pass(5_000);
        stage.hold(0, 4, "eve", 1);
        assert_eq!(stage.rosters.audience(&key(), false).users, 4, "room was made");
    }

    #[test]
    fn totals_say_connections_users_and_how_members_are_told() {
        let mut stage = Stage::new();
        stage.hold(0, 2, "ann", 1);
        stage.pass(999);
        assert!(stage.news.iter().all(|event| event.kind != EventKind::ViewersUpdated));
        stage.pass(1);
        let totals = |stage: &mut Stage| {
            let told = stage.news.drain(..).filter(|event| event.kind == EventKind::ViewersUpdated);
            told.map(|event| event.members).collect::<Vec<_>>()
        };
        let number = Member::Number;
        let told = totals(&mut stage);
        assert_eq!((told.len(), &told[0][0].1, &told[0][1].1), (1, &number(2), &number(1)));
        stage.hold(0, 1, "ann", 0);
        stage.pass(5_000);
        stage.pass(5_000);
        let told = totals(&mut stage);
        let last = told.last().unwrap();
        assert_eq!((&last[0].1, &last[1].1), (&number(1), &number(0)), "also when only the users have changed");
        stage.hold(0, 0, "", 0);
        stage.pass(10_000);
        assert!(totals(&mut stage).is_empty(), "nobody would hear it");
        assert_eq!(stage.rosters.next_alarm_ms(), None);
    }

    #[test]
    fn totals_that_were_lost_are_told_again() {
        let mut stage = Stage::new();
        stage.hold(0, 7, "", 0);
        stage.pass(5_000);
        assert_eq!((stage.news.drain(..).count(), stage.rosters.next_alarm_ms()), (1, None));
        stage.rosters.on_totals_lost(&key());
        stage.pass(999);
        assert!(stage.news.is_empty(), "not more often than once a second");
        stage.pass(1);
        let told = stage.news.pop_front().unwrap();
        assert_eq!((told.kind, &told.members[0].1), (EventKind::ViewersUpdated, &Member::Number(7)));
        stage.hold(0, 0, "", 0);
        stage.rosters.on_totals_lost(&key());
        assert_eq!(stage.rosters.next_alarm_ms(), None, "nobody is there any more");
    }

    #[test]
    fn totals_of_very_many_viewers_are_told_less_often() {
        let mut stage = Stage::new();
        let told = |stage: &mut Stage| {
            let before = stage.news.len();
            for _ in 0..60 {
                stage.pass(1_000);
                let more = stage.rosters.audience(&key(), false).connections as u32 + 1;
                stage.hold(0, more, "", 0);
            }
            let told = stage.news.drain(..).skip(before).filter(|event| event.kind == EventKind::ViewersUpdated);
            told.count()
        };
        stage.hold(0, 90_000, "", 0);
        stage.pass(5_000);
        stage.news.clear();
        assert_eq!(told(&mut stage), 12, "90,000 in 5 s are fewer than 20,000 a second");
        stage.hold(0, 390_000, "", 0);
        stage.pass(20_000);
        stage.news.clear();
        assert_eq!(told(&mut stage), 3, "each 20 s");
        stage.hold(0, 0, "", 0);
        assert_eq!(stage.rosters.connections, 0);
    }

    #[test]
    fn totals_of_a_storm_of_joins_are_told_no_more_often_than_their_deliveries_allow() {
        let mut stage = Stage::new();
        let (mut deliveries, mut told) = (0, 0);
        for second in 1..=60 {
            stage.hold(0, second * 10_000, "", 0);
            stage.pass(1_000);
            for event in stage.news.drain(..) {
                let Member::Number(viewers) = event.members[0].1 else { panic!("{event:?}") };
                (deliveries, told) = (deliveries + viewers, told + 1);
            }
        }
        assert!(told > 5, "{told}");
        assert!(deliveries <= 60 * 20_000 + 600_000, "{deliveries} of at most 20,000 a second, but for the last");
    }

    #[test]
    fn a_status_is_told_to_those_who_watch_one_by_one() {
        let mut stage = Stage::new();
        let topic = TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &name("race"));
        let stated = |state, at_us| Some(Stated { status: Status { state, text: "tea".into() }, at_us });
        let hold = |stage: &mut Stage, connections, stated| {
            let user = UserHolding { user: name("ann"), name: "Ann".into(), connections: 1, stated };
            let holding = Holding { shard: ShardId(0), topic: topic.clone(), connections, user: Some(user) };
            stage.rosters.on_holding(stage.now, &holding, &mut stage.news);
        };
        hold(&mut stage, 1, stated(PresenceState::Away, 1));
        assert_eq!(stage.said(), ["member.joined ann", "presence.changed ann"]);
        hold(&mut stage, 1, stated(PresenceState::Away, 1));
        assert_eq!(stage.said(), [""; 0]);
        hold(&mut stage, 1, stated(PresenceState::Online, 2));
        assert_eq!(stage.said(), ["presence.changed ann"]);
        hold(&mut stage, 9, stated(PresenceState::Offline, 3));
        assert_eq!(stage.said(), [""; 0]);
        hold(&mut stage, 1, None);
        let roster = stage.rosters.audience(&key(), true).roster.unwrap();
        assert_eq!(roster[0].status.state, PresenceState::Offline, "it is kept while nobody is told");
    }
}
