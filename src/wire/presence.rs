//! What clients are told of each other: who came, who left, what a user says of itself, and how many there are.
//!
//! Users and numbers flow in, events flow out. Always true: an event of presence names its user in the same place as
//! every other event, and `member.joined` says nothing of a status, so that a client may take it twice: who is there
//! already stays as it is.

use super::event::EventKind;
use super::sealed::{Event, Member};
use super::topic::Topic;

/// The longest text of a status, in bytes of UTF-8: two lines on a telephone.
pub const STATUS_TEXT_BYTES_MAX: usize = 256;

/// What a user says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PresenceState {
    /// There, and looking. Who has said nothing is taken to be so.
    #[default]
    Online,
    /// Connected, and elsewhere.
    Away,
    /// Connected, and not to be counted on.
    Offline,
}

impl PresenceState {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Away => "away",
            Self::Offline => "offline",
        }
    }

    /// The state behind a word; `None` if it is none.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Online, Self::Away, Self::Offline].into_iter().find(|state| state.name() == word)
    }
}

/// What a user says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// What it is.
    pub state: PresenceState,
    /// What it adds; may be empty, and has at most [`STATUS_TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

/// `member.joined` or `member.left`.
#[must_use]
pub fn member_event(kind: EventKind, topic: Topic, user: &str, name: &str, ts_ms: u64) -> Event {
    debug_assert!(matches!(kind, EventKind::MemberJoined | EventKind::MemberLeft));
    Event { user_id: user.to_owned(), user_name: name.to_owned(), ..Event::new(kind, topic, ts_ms) }
}

/// `presence.changed`.
#[must_use]
pub fn status_event(topic: Topic, user: &str, name: &str, status: &Status, ts_ms: u64) -> Event {
    Event {
        user_id: user.to_owned(),
        user_name: name.to_owned(),
        members: vec![("state".to_owned(), Member::Text(status.state.name().to_owned()))],
        text: (!status.text.is_empty()).then(|| status.text.clone()),
        ..Event::new(EventKind::PresenceChanged, topic, ts_ms)
    }
}

/// `viewers.updated`. `one_by_one` says that members are told one by one; else this is all that is told of them.
#[must_use]
pub fn viewers_event(topic: Topic, connections: u64, users: u64, one_by_one: bool, ts_ms: u64) -> Event {
    let mode = if one_by_one { "roster" } else { "count" };
    Event {
        members: vec![
            ("connections".to_owned(), Member::Number(connections)),
            ("users".to_owned(), Member::Number(users)),
            ("presence".to_owned(), Member::Text(mode.to_owned())),
        ],
        ..Event::new(EventKind::ViewersUpdated, topic, ts_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::wire::json::put_json;
    use crate::wire::topic::{Scope, TopicHasher};

    #[test]
    fn states_have_words() {
        for state in [PresenceState::Online, PresenceState::Away, PresenceState::Offline] {
            assert_eq!(PresenceState::parse(state.name()), Some(state));
        }
        assert_eq!(PresenceState::parse("Online"), None);
        assert_eq!(PresenceState::parse(""), None);
    }

    #[test]
    fn events_name_user_state_and_numbers() {
        let name = Name::new("x").unwrap();
        let topic = TopicHasher::new(1).topic(Scope::Channel, &name, &name);
        let show = |event: &Event| {
            let mut out = Vec::new();
            put_json(&mut out, event);
            String::from_utf8(out).unwrap()
        };
        let left = member_event(EventKind::MemberLeft, topic.clone(), "ann", "Ann", 7);
        assert_eq!(show(&left), r#"{"type":"member.left","channel":"x","ts":7,"user":{"id":"ann","name":"Ann"}}"#);
        let status = Status { state: PresenceState::Away, text: "tea".into() };
        assert_eq!(
            show(&status_event(topic.clone(), "ann", "", &status, 7)),
            r#"{"type":"presence.changed","channel":"x","ts":7,"user":{"id":"ann"},"state":"away","text":"tea"}"#
        );
        assert_eq!(
            show(&viewers_event(topic, 3, 2, false, 7)),
            r#"{"type":"viewers.updated","channel":"x","ts":7,"connections":3,"users":2,"presence":"count"}"#
        );
    }
}
