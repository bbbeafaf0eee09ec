//! What two keys must fulfil together.
//!
//! Options that are within their ranges flow in, the first contradiction flows out. Always true: the defaults contradict
//! each other nowhere, so one of the two keys was written by somebody, and the fault stands at that line.

use super::Config;
use super::error::{ConfigError, Place};
use super::keys::SHARDS_MAX;
use super::table::Notes;
use crate::store::WhenDamaged;

/// Checks `config`; `notes` know where its values come from and take the fault.
pub(super) fn check(config: &Config, notes: &mut Notes) {
    let Config { shard, orchestrator, ring, .. } = config;
    if config.shards.is_some_and(|shards| shards == 0 || shards > SHARDS_MAX) {
        refuse(notes, ["node.shards", "node.shards"], &format!("1 to {SHARDS_MAX} is allowed"));
    }
    if config.listen == config.admin && config.listen.port() != 0 {
        refuse(notes, ["node.admin", "node.listen"], "node.listen and node.admin must differ");
    }
    if config.proxies.proxy_protocol && config.proxies.networks.is_empty() {
        let why = "proxies.networks is empty, so nobody's header would be believed: list the proxies";
        refuse(notes, ["proxies.proxy_protocol", "proxies.networks"], why);
    }
    if config.store.damaged == WhenDamaged::MoveAside && !config.store.quick_check {
        let why = "store.quick_check is false, so damage would be found when it is too late: set it to true";
        refuse(notes, ["store.damaged", "store.quick_check"], why);
    }
    let outbox = &shard.outbox;
    let slice = shard.tick_bytes_max.max(shard.write_bytes);
    let mut at_least = |key: &str, value: u64, than: &str, least: u64, why: &str| {
        if value < least {
            let why = format!("{key} is {value} and must be at least {least}, because of {than}: {why}");
            refuse(notes, [key, than], &why);
        }
    };
    at_least(
        "outbox.events_max",
        outbox.events_max.into(),
        "outbox.events_min",
        outbox.events_min.into(),
        "a lane holds between the two",
    );
    at_least(
        "outbox.bytes_max",
        outbox.bytes_max.into(),
        "shard.tick_bytes_max",
        shard.tick_bytes_max.into(),
        "the rest of a whole tick goes into the queue of a viewer that falls behind",
    );
    at_least(
        "liveness.close_after_s",
        shard.close_after_s.into(),
        "liveness.ping_after_s",
        u64::from(shard.ping_after_s) + 1,
        "a silent client is asked before it is closed",
    );
    at_least(
        "liveness.max_stall_ms",
        shard.max_stall_ms.into(),
        "outbox.lag_budget_ms",
        outbox.lag_budget_ms.into(),
        "a client that lags as far as it may is not closed for it",
    );
    at_least(
        "socket.notsent_lowat_bytes",
        config.notsent_lowat_bytes.into(),
        if shard.tick_bytes_max >= shard.write_bytes { "shard.tick_bytes_max" } else { "shard.write_bytes" },
        u64::from(slice) * 2,
        "a socket must take twice the longest slice, else viewers in step look slow",
    );
    at_least(
        "socket.sndbuf_bytes",
        config.sndbuf_bytes.into(),
        "socket.notsent_lowat_bytes",
        config.notsent_lowat_bytes.into(),
        "a smaller buffer would be full before the low-water mark says so",
    );
    at_least(
        "socket.user_timeout_ms",
        config.user_timeout_ms.into(),
        "liveness.max_stall_ms",
        // Clients are looked at once a second.
        u64::from(shard.max_stall_ms.div_ceil(1_000) + shard.stall_grace_ms().div_ceil(1_000) + 3) * 1_000,
        "the kernel drops a peer whose window stays closed for so long, and would hide who is too slow",
    );
    at_least(
        "seating.outstanding_expiry_ms",
        orchestrator.seating.outstanding_expiry_ms.into(),
        "shard.report_ms",
        u64::from(shard.report_ms) * 3,
        "one lost report must lose no seat",
    );
    at_least(
        "store.queued_events_max",
        orchestrator.group.queued_max.into(),
        "store.batch_events_max",
        orchestrator.group.batch_max.into(),
        "a batch is gathered from the queue",
    );
    at_least(
        "ring.cq_entries",
        ring.cq_entries.into(),
        "ring.sq_entries",
        ring.sq_entries.into(),
        "each submission may complete",
    );
    at_least(
        "ring.sq_entries",
        ring.sq_entries.into(),
        "shard.sends_per_submit",
        shard.sends_per_submit.into(),
        "the sends of a submit are entries of it",
    );
    at_least(
        "drain.deadline_ms",
        config.drain_ms.into(),
        "liveness.linger_ms",
        shard.linger_ms.into(),
        "the last client must have its time to close",
    );
}

/// The fault stands at the first of the keys that somebody wrote.
fn refuse(notes: &mut Notes, keys: [&str; 2], why: &str) {
    let written =
        keys.iter().find_map(|&key| notes.place(key).map(|(place, value)| (key, place.clone(), value.clone())));
    let (key, place, value) =
        written.unwrap_or_else(|| (keys[0], Place::CommandLine, "what its default is".to_owned()));
    notes.fault(ConfigError::new(place, format!("{key} = {value}"), why));
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use super::super::{Config, Overrides};

    #[test]
    fn a_contradiction_stands_at_the_line_that_was_written() {
        for (text, line, key) in [
            ("[liveness]\nping_after_s = 90", 2, "liveness.ping_after_s = 90"),
            ("[liveness]\nclose_after_s = 60", 2, "liveness.close_after_s = 60"),
            ("[liveness]\nping_after_s = 9\nclose_after_s = 9", 3, "liveness.close_after_s = 9"),
            ("[shard]\ntick_bytes_max = 65_537", 2, "shard.tick_bytes_max = 65_537"),
            ("[socket]\nnotsent_lowat_bytes = 131_071", 2, "socket.notsent_lowat_bytes = 131_071"),
            ("[shard]\ntick_bytes_max = 4096\nwrite_bytes = 200_000", 3, "shard.write_bytes = 200_000"),
            ("[socket]\nsndbuf_bytes = 100_000", 2, "socket.sndbuf_bytes = 100_000"),
            ("[outbox]\nevents_min = 2000", 2, "outbox.events_min = 2000"),
            ("[outbox]\nevents_max = 15", 2, "outbox.events_max = 15"),
            ("[outbox]\nlag_budget_ms = 40_000", 2, "outbox.lag_budget_ms = 40_000"),
            ("[socket]\nuser_timeout_ms = 42_999", 2, "socket.user_timeout_ms = 42_999"),
            ("[liveness]\nmax_stall_ms = 60_000", 2, "liveness.max_stall_ms = 60_000"),
            ("[shard]\nreport_ms = 20_000", 2, "shard.report_ms = 20_000"),
            ("[store]\nqueued_events_max = 9", 2, "store.queued_events_max = 9"),
            ("[ring]\ncq_entries = 128", 2, "ring.cq_entries = 128"),
            ("[ring]\nsq_entries = 32", 2, "ring.sq_entries = 32"),
            ("[drain]\ndeadline_ms = 100", 2, "drain.deadline_ms = 100"),
            ("[proxies]\nproxy_protocol = true", 2, "proxies.proxy_protocol = true"),
            ("[store]\nquick_check = false\ndamaged = \"move_aside\"", 3, "store.damaged = \"move_aside\""),
            ("[node]\nadmin = \"127.0.0.1:8080\"", 2, "node.admin = \"127.0.0.1:8080\""),
        ] {
            let error = load(text).unwrap_err();
            assert!(error.starts_with(&format!("x.toml:{line}: {key}\n  ")), "{text}: {error}");
        }
    }

    #[test]
    fn the_command_line_is_checked_too() {
        let overrides = Overrides { shards: Some(0), ..Overrides::default() };
        let error = Config::load(None, &overrides).unwrap_err().to_string();
        assert_eq!(error, "command line: node.shards = 0\n  1 to 256 is allowed");
        let overrides = Overrides { listen: Some(Config::default().admin), ..Overrides::default() };
        assert!(Config::load(None, &overrides).unwrap_err().to_string().starts_with("command line: node.listen"));
    }
}
