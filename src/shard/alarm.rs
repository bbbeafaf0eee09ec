//! `PUT` and `DELETE …/alarm`: the one durable alarm of a channel.
//!
//! A request flows in, a question to the orchestrator flows out. Always true: an alarm that is set lies in the future,
//! and its event is one that a server key could post now.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::request::{Waiting, parse_body, server_only, wrong_method};
use super::{ApiRequest, Outcome, Shard};
use crate::admission::AppOptions;
use crate::admission::auth::Speaker;
use crate::base::{ChannelKey, Now};
use crate::post::letters::ToOrchestrator;
use crate::wire::event::Sources;
use crate::wire::posted_event::PostedEvent;
use crate::wire::problem::Problem;
use crate::wire::sealed::Sealed;
use crate::wire::topic::Topic;

/// The first moment of the year 10000: whoever names a later one has the wrong unit.
const YEAR_10000_MS: u64 = 253_402_300_800_000;

#[derive(Deserialize)]
struct AlarmBody<'a> {
    at: u64,
    #[serde(borrow)]
    event: &'a RawValue,
}

impl Shard {
    pub(super) fn alarm(
        &mut self,
        now: Now,
        request: &ApiRequest<'_>,
        options: &AppOptions,
        speaker: &Speaker,
        topic: Topic,
    ) -> Result<Outcome, Problem> {
        server_only(speaker, "alarms are set")?;
        let key = ChannelKey::new(topic.app.clone(), topic.name.clone());
        let set = match request.method {
            "PUT" => {
                let body: AlarmBody<'_> = parse_body(request.body)?;
                if body.at <= now.wall_ms || body.at >= YEAR_10000_MS {
                    let detail = format!("at is Unix milliseconds and lies in the future; it is {}", body.at);
                    return Err(Problem::new(400, "bad_at", detail));
                }
                let event = body.event.get();
                let posted: PostedEvent<'_> = parse_body(event.as_bytes())?;
                let kind = posted.kind()?;
                let checked = posted.into_event(kind, Sources::SERVER, topic, body.at, options.message_bytes_max)?;
                // What could not be sealed then is refused now.
                Sealed::seal(&checked).map_err(|bad| Problem::new(413, "message_too_large", bad.to_string()))?;
                Some((body.at, event.to_owned()))
            }
            "DELETE" => None,
            _ => return Err(wrong_method("PUT, DELETE")),
        };
        self.ask(Waiting::Done(200), |ticket, asker| ToOrchestrator::ChangeAlarm { ticket, asker, key, set })
    }
}
