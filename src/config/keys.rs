//! Every key of the configuration, table by table, with its range.
//!
//! A file's text flows in through [`Sheet`], options flow out. Always true: each key has exactly one row here, each
//! range is such that any value of it can be run with, and whoever adds a key is asked for its line in
//! `shard-config/default.toml` by a test.

use super::Config;
use super::table::{Sheet, Table};
use crate::base::Network;
use crate::store::WhenDamaged;

/// Of an app that says nothing else, in bytes.
pub(super) const MESSAGE_BYTES_MAX: u32 = 16 * 1024;

const KIB: u64 = 1_024;
const MIB: u64 = 1_024 * KIB;
const GIB: u64 = 1_024 * MIB;
/// Milliseconds of a minute and of a day.
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

/// Networks of proxies: each is asked about for every connection and request.
const NETWORKS_MAX: usize = 256;

/// Shards of one node at the most.
pub(super) const SHARDS_MAX: u16 = 256;

/// Reads every table but the apps.
pub(super) fn read(sheet: &mut Sheet<'_>, config: &mut Config) {
    let Config { shard, orchestrator, store, ring, .. } = config;
    sheet.table("node", |t| {
        t.address("listen", &mut config.listen);
        t.address("admin", &mut config.admin);
        t.path("data_dir", &mut config.data_dir);
        t.number_or_auto("shards", 1..=u64::from(SHARDS_MAX), &mut config.shards);
        t.number_or_auto("orchestrator_core", 0..=4_095, &mut config.orchestrator_core);
        t.number("spin_us", 0..=1_000, &mut config.spin_us);
        t.number("admin_reserve_descriptors", 16..=4_096, &mut config.admin_reserve);
        t.number("stall_ms", 2_000..=10 * MINUTE_MS, &mut config.stall_ms);
    });
    sheet.table("shard", |t| {
        t.number("clients_max", 1..=10_000_000, &mut shard.clients_max);
        t.number("channels_per_client", 1..=4_096, &mut shard.channels_per_client);
        t.number("asks_max", 16..=65_536, &mut shard.asks_max);
        t.number("tick_bytes_max", 4 * KIB..=4 * MIB, &mut shard.tick_bytes_max);
        t.number("sends_per_submit", 4..=1_024, &mut shard.sends_per_submit);
        t.number("write_bytes", KIB..=MIB, &mut shard.write_bytes);
        t.number("tail_events", 1..=4_096, &mut shard.tail_events);
        t.number("report_ms", 100..=MINUTE_MS, &mut shard.report_ms);
    });
    sheet.table("outbox", |t| {
        t.number("lag_budget_ms", 100..=MINUTE_MS, &mut shard.outbox.lag_budget_ms);
        t.number("critical_per_s", 1..=100_000, &mut shard.outbox.critical_per_s);
        t.number("ordered_per_s", 1..=100_000, &mut shard.outbox.ordered_per_s);
        t.number("mergeable_per_s", 1..=100_000, &mut shard.outbox.mergeable_per_s);
        t.number("events_min", 1..=65_536, &mut shard.outbox.events_min);
        t.number("events_max", 1..=65_536, &mut shard.outbox.events_max);
        t.number("bytes_max", 16 * KIB..=64 * MIB, &mut shard.outbox.bytes_max);
    });
    sheet.table("liveness", |t| {
        t.number("ping_after_s", 1..=3_600, &mut shard.ping_after_s);
        t.number("close_after_s", 2..=7_200, &mut shard.close_after_s);
        t.number("max_stall_ms", 1_000..=10 * MINUTE_MS, &mut shard.max_stall_ms);
        t.number("linger_ms", 100..=MINUTE_MS, &mut shard.linger_ms);
    });
    sheet.table("index", |t| {
        t.number("channels_max", 1..=16_777_216, &mut shard.index.channels_max);
        t.number("users_max", 1..=16_777_216, &mut shard.index.users_max);
        t.number("tags_max", 1..=16_777_216, &mut shard.index.tags_max);
        t.flag("filter", &mut shard.index.filter);
    });
    sheet.table("seating", |t| {
        t.number("room_capacity", 1..=1_000_000, &mut shard.room_capacity);
        t.number("attempts_max", 1..=100, &mut shard.attempts_max);
        t.number("rooms_max", 1..=16_777_216, &mut orchestrator.seating.rooms_max);
        t.number("outstanding_expiry_ms", 1_000..=DAY_MS, &mut orchestrator.seating.outstanding_expiry_ms);
    });
    sheet.table("presence", |t| {
        let presence = &mut shard.presence;
        t.number("roster_limit", 0..=10_000, &mut presence.roster_limit);
        t.number("grace_ms", 0..=MINUTE_MS, &mut presence.grace_ms);
        t.number("members_max", 1..=16_777_216, &mut presence.members_max);
        t.number("viewers_interval_ms", 1_000..=10 * MINUTE_MS, &mut presence.viewers_interval_ms);
        t.number("viewers_deliveries_per_s_max", 100..=10_000_000, &mut presence.viewers_deliveries_per_s_max);
        t.number("typing_ms", 1_000..=MINUTE_MS, &mut presence.typing_ms);
        t.number("typing_max", 1..=16_777_216, &mut presence.typing_max);
    });
    sheet.table("store", |t| {
        t.number("batch_events_max", 1..=8_192, &mut orchestrator.group.batch_max);
        t.number("batch_wait_max_us", 0..=100_000, &mut orchestrator.group.wait_max_us);
        t.number("queued_events_max", 1..=1_000_000, &mut orchestrator.group.queued_max);
        t.number("credits_max", 1..=1_000_000, &mut orchestrator.credits_max);
        t.number("bytes_max", 0..=16 * 1_024 * GIB, &mut store.bytes_max);
        t.number("busy_timeout_ms", 0..=MINUTE_MS, &mut store.busy_timeout_ms);
        t.number("cache_kib", 64..=16 * MIB, &mut store.cache_kib);
        t.flag("quick_check", &mut store.quick_check);
        when_damaged(t, &mut store.damaged);
        t.number("disk_reserve_mib", 0..=16 * MIB, &mut config.disk.reserve_mib);
        t.number("wal_mib_max", 1..=MIB, &mut config.disk.wal_mib_max);
        t.number("upkeep_ms", 1_000..=DAY_MS, &mut orchestrator.upkeep_ms);
    });
    sheet.table("limits", |t| {
        t.number("address_connections_max", 1..=10_000_000, &mut orchestrator.address_connections_max);
        t.number("address_requests_max", 1..=10_000_000, &mut shard.address_rate.requests_max);
        t.number("address_window_s", 1..=86_400, &mut shard.address_rate.window_s);
        t.number("address_keys_max", 1..=16_777_216, &mut shard.address_rate.keys_max);
        t.number("user_requests_max", 1..=10_000_000, &mut orchestrator.user_rate.requests_max);
        t.number("user_window_s", 1..=86_400, &mut orchestrator.user_rate.window_s);
        t.number("user_keys_max", 1..=16_777_216, &mut orchestrator.user_rate.keys_max);
        t.number("limited_channels_max", 1..=16_777_216, &mut orchestrator.limits.channels_max);
        t.number("slow_mode_waits_max", 1..=16_777_216, &mut orchestrator.limits.waits_max);
        t.number("memory_mib_max", 0..=16 * MIB, &mut config.memory_mib_max);
        t.number("over_rate_max", 1..=65_534, &mut shard.over_rate_max);
        t.number("message_bytes_max", KIB..=16 * MIB, &mut shard.socket.message_bytes_max);
        t.number("fragments_max", 1..=1_048_576, &mut shard.socket.fragments_max);
        t.number("contexts_max", 1..=1_048_576, &mut shard.socket.contexts_max);
        t.number("head_timeout_ms", 100..=10 * MINUTE_MS, &mut config.head_timeout_ms);
        t.number("body_bytes_max", KIB..=16 * MIB, &mut config.body_bytes_max);
    });
    sheet.table("moderation", |t| {
        t.number("patterns_max", 1..=1_000_000, &mut shard.patterns_max);
        t.number("bans_max", 1..=16_777_216, &mut orchestrator.bans_max);
        t.number("hooks_max", 1..=65_536, &mut orchestrator.hooks_max);
        t.number("hook_connections_kept", 1..=1_024, &mut config.hook_connections_kept);
    });
    sheet.table("proxies", |t| {
        t.flag("proxy_protocol", &mut config.proxies.proxy_protocol);
        networks(t, &mut config.proxies.networks);
    });
    sheet.table("socket", |t| {
        t.number("sndbuf_bytes", 16 * KIB..=64 * MIB, &mut config.sndbuf_bytes);
        t.number("notsent_lowat_bytes", 8 * KIB..=64 * MIB, &mut config.notsent_lowat_bytes);
        t.number("user_timeout_ms", 1_000..=DAY_MS, &mut config.user_timeout_ms);
        t.number("backlog_connections", 1..=65_535, &mut config.backlog);
    });
    sheet.table("ring", |t| {
        t.power("recv_buffers", 8..=32_768, &mut ring.recv_buffers);
        t.number("recv_buffer_bytes", 256..=64 * KIB, &mut ring.recv_buffer_bytes);
        t.power("sq_entries", 16..=32_768, &mut ring.sq_entries);
        t.power("cq_entries", 16..=65_536, &mut ring.cq_entries);
    });
    sheet.table("drain", |t| {
        t.number("deadline_ms", 100..=10 * MINUTE_MS, &mut config.drain_ms);
    });
}

fn when_damaged(t: &mut Table<'_, '_>, out: &mut WhenDamaged) {
    match t.text("damaged", false).as_deref() {
        None => {}
        Some("refuse") => *out = WhenDamaged::Refuse,
        Some("move_aside") => *out = WhenDamaged::MoveAside,
        Some(_) => t.fault("damaged", false, "\"refuse\" or \"move_aside\" is allowed"),
    }
}

fn networks(t: &mut Table<'_, '_>, out: &mut Vec<Network>) {
    let Some(texts) = t.texts("networks") else { return };
    if texts.len() > NETWORKS_MAX {
        return t.fault("networks", false, format!("at most {NETWORKS_MAX} networks are allowed"));
    }
    match texts.iter().map(|text| text.parse()).collect() {
        Ok(networks) => *out = networks,
        Err(why) => t.fault("networks", false, why),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use super::NETWORKS_MAX;

    #[test]
    fn a_value_outside_its_range_is_named_with_it() {
        for (text, error) in [
            ("[node]\nshards = 0", "x.toml:2: node.shards = 0\n  1 to 256 or \"auto\" is allowed"),
            (
                "[ring]\nsq_entries = 100",
                "x.toml:2: ring.sq_entries = 100\n  a power of two from 16 to 32768 is allowed",
            ),
            (
                "[node]\nlisten = \"localhost\"",
                "x.toml:2: node.listen = \"localhost\"\n  an IP address with a port is allowed, such as \"0.0.0.0:8080\"",
            ),
            (
                "[store]\ndamaged = \"delete\"",
                "x.toml:2: store.damaged = \"delete\"\n  \"refuse\" or \"move_aside\" is allowed",
            ),
            ("[outbox]\nbytes_max = 5", "x.toml:2: outbox.bytes_max = 5\n  16384 to 67108864 is allowed"),
            (
                "[proxies]\nnetworks = [\"10.0.0.1/8\"]",
                "x.toml:2: proxies.networks = [\"10.0.0.1/8\"]\n  bits are set behind the prefix: zero them, or write \
                 a longer prefix",
            ),
        ] {
            assert_eq!(load(text).unwrap_err(), error);
        }
    }

    #[test]
    fn networks_are_read() {
        let text = "[proxies]\nproxy_protocol = true\nnetworks = [\"10.0.0.0/8\", \"::1\"]\n";
        let proxies = load(text).unwrap().proxies;
        assert!(proxies.networks[0].contains("10.1.1.1".parse().unwrap()) && proxies.networks.len() == 2);
        assert!(proxies.proxy_protocol);
        let many = format!("[proxies]\nnetworks = [{}]\n", "\"::1\",".repeat(NETWORKS_MAX + 1));
        assert!(load(&many).unwrap_err().contains("at most 256 networks are allowed"));
    }
}
