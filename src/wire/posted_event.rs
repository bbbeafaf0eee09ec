//! An event as it is posted or set as an alarm: a JSON object flows in, an [`Event`] flows out.
//!
//! Always true: what comes out is of a type that its source may cause and that is not stored, its data is within the
//! app's limit, and its user is a name.

use std::borrow::Cow;

use serde::Deserialize;

use super::any_json::AnyJson;
use super::event::{EventKind, Sources};
use super::problem::Problem;
use super::sealed::Event;
use super::topic::Topic;
use crate::base::Name;

/// The object, not yet checked.
#[derive(Debug, Deserialize)]
pub struct PostedEvent<'a> {
    /// The name of its type.
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    /// Any JSON.
    #[serde(borrow, default)]
    pub data: Option<AnyJson<'a>>,
    /// Whom it speaks of, if a server key posts it.
    #[serde(borrow, default)]
    pub user: Option<Cow<'a, str>>,
    /// The connection that shall not get it.
    #[serde(borrow, default)]
    pub exclude: Option<Cow<'a, str>>,
}

impl PostedEvent<'_> {
    /// Its type.
    ///
    /// # Errors
    /// 400 if there is none of this name.
    pub fn kind(&self) -> Result<EventKind, Problem> {
        EventKind::parse(&self.kind).map_err(|_| {
            let detail = format!("{:?} is no event type; custom ones begin with custom.", self.kind);
            Problem::new(400, "unknown_type", detail)
        })
    }

    /// The event, of the type that [`Self::kind`] gave. The user of a post that is not a backend's is its poster, whom
    /// the caller fills in.
    ///
    /// # Errors
    /// 400 or 413, naming what is wrong.
    pub fn into_event(
        self,
        kind: EventKind,
        source: Sources,
        topic: Topic,
        ts_ms: u64,
        bytes_max: u32,
    ) -> Result<Event, Problem> {
        let row = kind.row();
        if row.stored || !row.from.allow(source) {
            return Err(Problem::new(400, "type_not_allowed", format!("{} is not posted as an event", self.kind)));
        }
        let user_id = match self.user.as_deref() {
            Some(user) if source == Sources::SERVER => checked_user(user)?,
            _ => String::new(),
        };
        let data = self.data.map(|data| data.get().to_owned());
        if data.as_ref().is_some_and(|data| data.len() > bytes_max as usize) {
            return Err(Problem::new(413, "message_too_large", format!("data has at most {bytes_max} bytes")));
        }
        let exclude = match self.exclude.as_deref() {
            None => 0,
            Some(text) => u64::from_str_radix(text, 16)
                .map_err(|_| Problem::new(400, "bad_exclude", format!("exclude {text:?} is no connection id")))?,
        };
        Ok(Event {
            custom_name: if kind == EventKind::Custom { self.kind.into_owned() } else { String::new() },
            user_id,
            data,
            exclude,
            ..Event::new(kind, topic, ts_ms)
        })
    }
}

/// The user that a backend names.
///
/// # Errors
/// 400 if it is no name.
pub fn checked_user(user: &str) -> Result<String, Problem> {
    match Name::new(user) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(error) => Err(Problem::new(400, "bad_name", format!("user {user:?}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::topic::{Scope, TopicHasher};
    use super::*;

    fn event(json: &str, source: Sources) -> Result<Event, Problem> {
        let name = Name::new("x").unwrap();
        let topic = TopicHasher::new(1).topic(Scope::Channel, &name, &name);
        let posted: PostedEvent<'_> = serde_json::from_str(json).unwrap();
        posted.kind().and_then(|kind| posted.into_event(kind, source, topic, 7, 8))
    }

    #[test]
    fn what_may_be_posted_and_what_not() {
        let goal = event(r#"{"type":"custom.goal","data":[1],"user":"ann"}"#, Sources::SERVER).unwrap();
        assert_eq!(
            (goal.type_name(), goal.data.as_deref(), goal.user_id.as_str()),
            ("custom.goal", Some("[1]"), "ann")
        );
        assert_eq!(event(r#"{"type":"custom.goal","user":"ann"}"#, Sources::USER).unwrap().user_id, "");
        let code = |json: &str, source| event(json, source).unwrap_err().code;
        assert_eq!(code(r#"{"type":"message.new"}"#, Sources::SERVER), "type_not_allowed");
        assert_eq!(code(r#"{"type":"channel.updated"}"#, Sources::USER), "type_not_allowed");
        assert_eq!(code(r#"{"type":"no.such"}"#, Sources::SERVER), "unknown_type");
        assert_eq!(code(r#"{"type":"custom.a","data":"0123456789"}"#, Sources::SERVER), "message_too_large");
        assert_eq!(code(r#"{"type":"custom.a","user":"a b"}"#, Sources::SERVER), "bad_name");
        assert_eq!(code(r#"{"type":"custom.a","exclude":"x"}"#, Sources::SERVER), "bad_exclude");
    }
}
