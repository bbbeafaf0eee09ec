//! What a backend lets happen in a channel while the node runs: slow mode, and messages a second.
//!
//! Limits and the messages that pass admission flow in; a permission or a refusal, and `channel.updated`, flow out.
//! Always true: both tables are bounded; a table of waits that is full lets messages pass, for it stands against loud
//! users, not against all; and everything here is memory, so after a restart no channel is limited until its backend
//! says so again.

use std::collections::BTreeMap;

use super::{Action, Orchestrator};
use crate::base::alarm::AlarmTable;
use crate::base::{ChannelKey, Gauge, Now, ShardId};
use crate::post::letters::{ChannelLimits, ToShard};
use crate::wire::event::EventKind;
use crate::wire::problem::Problem;
use crate::wire::sealed::{Event, Member, Sealed};
use crate::wire::topic::{Scope, partition};

/// How much of this is remembered at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsOptions {
    /// Channels with limits.
    pub channels_max: u32,
    /// Users that wait, over all channels.
    pub waits_max: u32,
}

impl Default for LimitsOptions {
    fn default() -> Self {
        Self { channels_max: 65_536, waits_max: 100_000 }
    }
}

/// Waits that are over and forgotten by one message: more than it can add, so that the table shrinks.
const FORGET_MAX: usize = 16;

#[derive(Debug)]
struct Channel {
    limits: ChannelLimits,
    /// The second that the count is of, monotonic.
    second: u64,
    count: u32,
}

/// The limits of all channels that have some.
#[derive(Debug)]
pub(super) struct Limits {
    options: LimitsOptions,
    channels: BTreeMap<ChannelKey, Channel>,
    /// Until when a user waits, in monotonic milliseconds.
    waits: AlarmTable<(ChannelKey, String)>,
}

impl Limits {
    pub(super) fn new(options: LimitsOptions) -> Self {
        Self { options, channels: BTreeMap::new(), waits: AlarmTable::default() }
    }

    /// False if there is no place for one more channel.
    fn set(&mut self, key: &ChannelKey, limits: ChannelLimits) -> bool {
        if limits == ChannelLimits::default() {
            self.channels.remove(key);
            return true;
        }
        if let Some(channel) = self.channels.get_mut(key) {
            channel.limits = limits;
            return true;
        }
        let fits = self.channels.len() < self.options.channels_max as usize;
        if fits {
            self.channels.insert(key.clone(), Channel { limits, second: 0, count: 0 });
        }
        fits
    }

    /// Counts one message of `user`, or of a backend, which no slow mode holds up.
    pub(super) fn admit(&mut self, now: Now, key: &ChannelKey, user: Option<&str>) -> Result<(), Problem> {
        // Most apps limit no channel; then nothing is looked up.
        if self.channels.is_empty() {
            return Ok(());
        }
        let now_ms = now.mono_ms();
        for _ in 0..FORGET_MAX {
            if self.waits.pop_due(now_ms).is_none() {
                break;
            }
        }
        let Some(channel) = self.channels.get_mut(key) else { return Ok(()) };
        let ChannelLimits { slow_mode_s, messages_per_s } = channel.limits;
        let slowed = user.filter(|_| slow_mode_s > 0).map(|user| (key.clone(), user.to_owned()));
        let slow_ms = u64::from(slow_mode_s) * 1_000;
        if let Some(until_ms) = slowed.as_ref().and_then(|user| self.waits.at(user))
            && until_ms > now_ms
        {
            // The wait began under an earlier limit, perhaps a longer one.
            let left_s = (until_ms - now_ms).min(slow_ms).div_ceil(1_000) as u32;
            let detail = format!("this channel takes one message of a user every {slow_mode_s} s");
            return Err(Problem::new(429, "slow_mode", detail).retry_after(left_s));
        }
        if messages_per_s > 0 {
            if channel.second != now.mono_s() {
                (channel.second, channel.count) = (now.mono_s(), 0);
            }
            if channel.count >= messages_per_s {
                let detail = format!("this channel takes {messages_per_s} messages a second");
                return Err(Problem::new(429, "channel_over_rate", detail).retry_after(1));
            }
            channel.count += 1;
        }
        if let Some(user) = slowed
            && self.waits.len() < self.options.waits_max as usize
        {
            self.waits.set(user, now_ms + slow_ms);
        }
        Ok(())
    }

    /// The message of this user was not stored: the next one need not wait for it.
    pub(super) fn forgive(&mut self, key: ChannelKey, user: String) {
        if !self.waits.is_empty() {
            self.waits.clear(&(key, user));
        }
    }

    pub(super) fn gauges(&self) -> [(&'static str, Gauge); 2] {
        [
            ("limited_channels", Gauge::new(self.channels.len() as u64, self.options.channels_max.into())),
            ("slow_mode_waits", Gauge::new(self.waits.len() as u64, self.options.waits_max.into())),
        ]
    }
}

impl Orchestrator {
    /// Sets the limits of a channel and tells its viewers.
    pub(super) fn set_limits(
        &mut self,
        now: Now,
        ticket: u64,
        asker: ShardId,
        key: &ChannelKey,
        limits: ChannelLimits,
    ) {
        let answer = if self.limits.set(key, limits) {
            self.tell_limits(now, key, limits);
            Ok(())
        } else {
            let max = self.options.limits.channels_max;
            let detail =
                format!("{max} channels have limits (limits.limited_channels_max); set those of another to 0 first");
            Err(Problem::new(503, "limits_full", detail).retry_after(60))
        };
        self.answer(asker, ToShard::Done { ticket, answer });
    }

    fn tell_limits(&mut self, now: Now, key: &ChannelKey, limits: ChannelLimits) {
        let topic = self.hasher.topic(Scope::Channel, &key.app, &key.channel);
        let partition = partition(Scope::Channel, key.app.as_str(), key.channel.as_str(), self.options.shards);
        let event = Event {
            members: vec![
                ("slow_mode_s".to_owned(), Member::Number(u64::from(limits.slow_mode_s))),
                ("messages_per_s".to_owned(), Member::Number(u64::from(limits.messages_per_s))),
            ],
            ..Event::new(EventKind::ChannelUpdated, topic, now.wall_ms)
        };
        if let Ok(sealed) = Sealed::seal(&event) {
            self.actions.push_back(Action::Publish { partition, sealed });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;

    fn key(channel: &str) -> ChannelKey {
        ChannelKey::new(Name::new("demo").unwrap(), Name::new(channel).unwrap())
    }

    fn at(ms: u64) -> Now {
        Now::default().plus_ms(ms)
    }

    fn refusal(result: Result<(), Problem>) -> (&'static str, Option<u32>) {
        let problem = result.unwrap_err();
        (problem.code, problem.retry_after_s)
    }

    #[test]
    fn slow_mode_holds_up_each_user_of_its_channel_and_no_backend() {
        let mut limits = Limits::new(LimitsOptions::default());
        let slow = |slow_mode_s| ChannelLimits { slow_mode_s, messages_per_s: 0 };
        assert!(limits.set(&key("a"), slow(10)));
        assert_eq!(limits.admit(at(0), &key("a"), Some("ann")), Ok(()));
        assert_eq!(refusal(limits.admit(at(1), &key("a"), Some("ann"))), ("slow_mode", Some(10)));
        assert_eq!(refusal(limits.admit(at(9_999), &key("a"), Some("ann"))), ("slow_mode", Some(1)));
        for (channel, user) in [("a", Some("bob")), ("a", None), ("a", None), ("b", Some("ann")), ("b", Some("ann"))] {
            assert_eq!(limits.admit(at(1), &key(channel), user), Ok(()));
        }
        assert_eq!(limits.admit(at(10_000), &key("a"), Some("ann")), Ok(()));
        // A shorter wait holds at once; a message that was not stored is not waited for.
        limits.set(&key("a"), slow(3));
        assert_eq!(refusal(limits.admit(at(10_001), &key("a"), Some("ann"))), ("slow_mode", Some(3)));
        limits.forgive(key("a"), "ann".into());
        assert_eq!(limits.admit(at(10_001), &key("a"), Some("ann")), Ok(()));
        limits.set(&key("a"), slow(0));
        assert!(limits.channels.is_empty());
        assert_eq!(limits.admit(at(10_002), &key("a"), Some("ann")), Ok(()));
    }

    #[test]
    fn a_channel_takes_so_many_messages_a_second_whoever_posts() {
        let mut limits = Limits::new(LimitsOptions::default());
        limits.set(&key("a"), ChannelLimits { slow_mode_s: 0, messages_per_s: 2 });
        assert_eq!(limits.admit(at(5_000), &key("a"), Some("ann")), Ok(()));
        assert_eq!(limits.admit(at(5_500), &key("a"), None), Ok(()));
        assert_eq!(refusal(limits.admit(at(5_999), &key("a"), None)), ("channel_over_rate", Some(1)));
        assert_eq!(limits.admit(at(6_000), &key("a"), None), Ok(()));
    }

    #[test]
    fn the_tables_are_bounded_and_waits_that_are_over_are_forgotten() {
        let mut limits = Limits::new(LimitsOptions { channels_max: 2, waits_max: 5_000 });
        let slow = ChannelLimits { slow_mode_s: 1, messages_per_s: 0 };
        assert!(limits.set(&key("a"), slow) && limits.set(&key("b"), slow) && !limits.set(&key("c"), slow));
        assert!(limits.set(&key("a"), slow), "one that has limits may get others");
        assert!(limits.set(&key("b"), ChannelLimits::default()) && limits.set(&key("c"), slow), "its place is free");
        for i in 0..5_010 {
            assert_eq!(limits.admit(at(0), &key("a"), Some(&format!("u{i}"))), Ok(()));
        }
        let [_, (_, waits)] = limits.gauges();
        assert!(waits.is_full());
        for i in 0..200 {
            assert_eq!(limits.admit(at(1_000), &key("a"), Some(&format!("v{i}"))), Ok(()));
        }
        assert!(limits.waits.len() < 3_000);
    }
}
