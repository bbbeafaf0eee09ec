//! `PUT …/limits`: slow mode and messages a second of a channel.
//!
//! A request flows in, a question to the orchestrator flows out. Always true: what is asked for is within its range.

use serde::Deserialize;

use super::request::{Waiting, parse_body, server_only, wrong_method};
use super::{ApiRequest, Outcome, Shard};
use crate::admission::auth::Speaker;
use crate::base::ChannelKey;
use crate::post::letters::{ChannelLimits, ToOrchestrator};
use crate::wire::problem::Problem;
use crate::wire::topic::Topic;

const SLOW_MODE_S_MAX: u32 = 3_600;
const MESSAGES_PER_S_MAX: u32 = 1_000;

/// What is not named is not limited.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsBody {
    #[serde(default)]
    slow_mode_s: u32,
    #[serde(default)]
    messages_per_s: u32,
}

impl Shard {
    pub(super) fn limits(
        &mut self,
        request: &ApiRequest<'_>,
        speaker: &Speaker,
        topic: Topic,
    ) -> Result<Outcome, Problem> {
        server_only(speaker, "limits are set")?;
        if request.method != "PUT" {
            return Err(wrong_method("PUT"));
        }
        let LimitsBody { slow_mode_s, messages_per_s } = parse_body(request.body)?;
        for (key, value, max) in
            [("slow_mode_s", slow_mode_s, SLOW_MODE_S_MAX), ("messages_per_s", messages_per_s, MESSAGES_PER_S_MAX)]
        {
            if value > max {
                return Err(Problem::new(400, "bad_limit", format!("{key} is 0 (no limit) to {max}, not {value}")));
            }
        }
        let key = ChannelKey::new(topic.app, topic.name);
        let limits = ChannelLimits { slow_mode_s, messages_per_s };
        self.ask(Waiting::Done(200), |ticket, asker| ToOrchestrator::SetLimits { ticket, asker, key, limits })
    }
}
