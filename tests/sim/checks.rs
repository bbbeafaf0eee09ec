//! What must be true: after every step, and when everything has come to rest.

use std::collections::BTreeMap;

use ringcast::base::{ChannelKey, Class};
use ringcast::fanout::client::Phase as ClientPhase;
use ringcast::fanout::sub::SubState;
use ringcast::store::Pages;
use ringcast::wire::topic::{Scope, partition};

use crate::node::Node;
use crate::plan::{APP, name};
use crate::shard_core::{Scene, ShardCore};
use crate::socket::Network;
use crate::truth::Truth;
use crate::viewer::{Phase, Reader, Viewer, takes_messages};

/// After every step.
pub(crate) fn at_every_step(node: &Node) {
    for core in &node.shards {
        let shard = &core.shard;
        account_balances(core);
        let options = shard.options();
        let rooms = shard.rooms();
        for room in &rooms {
            assert!(room.viewers <= options.room_capacity, "a room above its cap: {room:?}");
        }
        let (mut subscriptions, mut connections) = (0, 0);
        for (id, client) in shard.clients() {
            connections += u32::from(client.phase != ClientPhase::Ending);
            let mut topics: Vec<_> = client.subs().map(|sub| sub.topic).collect();
            subscriptions += topics.len();
            topics.sort_unstable();
            assert!(topics.windows(2).all(|two| two[0] != two[1]), "a client sits in one room of a channel: {id:?}");
            let most = usize::from(options.channels_per_client);
            assert!(client.channels() <= most, "{id:?} watches {} channels of {most}", client.channels());
            if let Some(behind) = &client.behind {
                assert!(behind.outbox.bytes() <= options.outbox.bytes_max as usize, "an outbox has a byte bound");
                for class in Class::ALL {
                    assert!(behind.outbox.waiting(class) <= options.outbox.capacity(class), "a lane has a capacity");
                }
            }
        }
        assert!(connections <= options.clients_max, "{connections} connections of {}", options.clients_max);
        assert_eq!(connections, shard.connections());
        let seated: usize = rooms.iter().map(|room| room.viewers as usize).sum();
        assert_eq!(seated, subscriptions, "occupancy sums to clients");
    }
}

/// Rule 6, exactly.
fn account_balances(core: &ShardCore) {
    let (account, queued) = (core.shard.account(), core.shard.queued());
    for class in Class::ALL {
        let column = account.of(class);
        let waits = i128::from(queued[class as usize]);
        assert_eq!(column.open(), waits, "rule 6: shard {}, {} {column:?}", core.id, class.name());
    }
    let critical = account.of(Class::Critical);
    let gone = critical.merged + critical.evicted + critical.stale + critical.filtered;
    assert_eq!(gone, 0, "critical is never lost while the client lives: {critical:?}");
}

/// When nothing moves any more.
pub(crate) fn at_rest(node: &mut Node, viewers: &[Viewer], scene: &mut Scene<'_>) {
    at_every_step(node);
    let truth = &*scene.truth;
    assert!(truth.requests.is_empty(), "each request is answered: {:?}", truth.requests);
    for (channel, seq, id) in &truth.acked {
        if *seq >= truth.first_kept.get(channel).copied().unwrap_or(1) {
            let key = ChannelKey::new(name(APP), name(channel));
            let id = ringcast::base::Ulid::parse(id).expect("a ulid");
            let found = node.orchestrator.disk.store.find(&key, id).expect("a page");
            assert_eq!(found.map(|event| event.seq), Some(*seq), "acked means durable");
        }
    }
    for viewer in viewers {
        viewer_has_everything(viewer, truth, scene.network);
    }
    totals_agree(node);
    presence_agrees(node, truth);
    truth.assert_nobody_types();
    let shards = node.shards.len() as u64;
    let (mut seen, mut lost, mut ordered, mut mergeable) = (0, 0, 0, 0);
    for core in &node.shards {
        clients_are_idle(core, viewers, scene.network);
        assert!(core.door.is_empty() && core.unsent.is_empty(), "nothing stands in the door");
        assert!(core.inbox.is_empty(), "nothing lies in the mailboxes");
        seen += core.shard.stages().events_seen;
        lost += core.shard.partition().lost_before_fanout();
        ordered += core.shard.account().of(Class::Ordered).written;
        mergeable += core.shard.account().of(Class::Mergeable).written;
    }
    let dropped = truth.dropped_on_the_way;
    assert_eq!(
        truth.entered * shards + truth.came_twice,
        seen + lost + dropped,
        "what entered the bus came to every shard, or is counted"
    );
    assert!(ordered <= scene.network.ordered, "written says more than the sockets got");
    if !truth.recovered_asked {
        assert_eq!(ordered, scene.network.ordered, "rule 6: written agrees with what the sockets got");
    }
    assert_eq!(mergeable, scene.network.mergeable, "rule 6: written agrees with what the sockets got");
    for (gauge, value) in node.orchestrator.orchestrator.gauges() {
        if matches!(gauge, "credits" | "posts") {
            assert_eq!(value.used, 0, "rule 8: {gauge} return");
        }
    }
    let connections: u32 = node.shards.iter().map(|core| core.shard.connections()).sum();
    for (what, _, value) in node.orchestrator.orchestrator.own_metrics().of_apps {
        match what {
            "app_connections" => assert_eq!(value.used, u64::from(connections), "an app's places return"),
            "app_queued_bytes" => assert_eq!(value.used, 0, "an app's bytes return"),
            "app_hooks" => assert_eq!(value.used, 0, "nothing is judged at rest"),
            _ => {}
        }
    }
}

fn viewer_has_everything(viewer: &Viewer, truth: &Truth, network: &mut Network) {
    let no = viewer.no;
    if viewer.reader == Reader::Never || matches!(viewer.phase, Phase::Away | Phase::Leaving) {
        return;
    }
    assert_eq!(viewer.phase, Phase::Open, "the join of viewer {no} is answered");
    assert!(viewer.asked.is_empty(), "viewer {no} waits for answers: {:?}", viewer.asked);
    let owed: Vec<_> = viewer.owed.iter().filter(|(_, number)| !truth.turned_away.contains(number)).collect();
    assert!(owed.is_empty(), "viewer {no} never got critical events {owed:?}");
    assert!(network.get(viewer.socket).is_whole(), "viewer {no} waits for the rest of a frame");
    for (channel, known) in viewer.watching.iter().filter(|(_, known)| takes_messages(known.filter)) {
        assert_eq!(known.seq, truth.head(channel), "viewer {no} is not told of the end of {channel}");
    }
}

/// Rule 14: totals converge, and no ghost remains.
fn totals_agree(node: &Node) {
    let seating = node.orchestrator.orchestrator.seating();
    let mut totals: BTreeMap<ChannelKey, Vec<(u32, u16, u32)>> = BTreeMap::new();
    for core in &node.shards {
        for room in core.shard.rooms() {
            totals.entry(room.key).or_default().push((room.n, core.id as u16, room.viewers));
        }
        let connections = seating.connections(ringcast::base::ShardId(core.id as u16));
        assert_eq!(connections, u64::from(core.shard.connections()), "connections of shard {}", core.id);
    }
    assert_eq!(seating.outstanding(), 0, "no seat is under way at rest");
    for channel in crate::plan::CHANNELS {
        let key = ChannelKey::new(name(APP), name(channel));
        let mut truth = totals.remove(&key).unwrap_or_default();
        truth.retain(|(_, _, viewers)| *viewers > 0);
        truth.sort_unstable();
        let mut told: Vec<_> =
            seating.rooms(&key).into_iter().map(|(id, viewers)| (id.n, id.shard.0, viewers)).collect();
        told.retain(|(_, _, viewers)| *viewers > 0);
        assert_eq!(told, truth, "rule 14: the rooms of {channel} (number, shard, viewers)");
    }
}

/// Cases D1 and D3: who is there is who holds a connection, on whatever shard, and nobody else.
fn presence_agrees(node: &Node, truth: &Truth) {
    let mut connections: BTreeMap<String, u64> = BTreeMap::new();
    let mut users: BTreeMap<(String, String), u32> = BTreeMap::new();
    for core in &node.shards {
        for room in core.shard.rooms() {
            *connections.entry(room.key.channel.to_string()).or_default() += u64::from(room.viewers);
        }
        for (_, client) in core.shard.clients() {
            let Some(identity) = &client.identity else { continue };
            for channel in client.subs().filter_map(|sub| core.shard.channel_of(sub)) {
                *users.entry((channel.to_string(), identity.user.to_string())).or_default() += 1;
            }
        }
        let (_, holdings) = core.shard.presence();
        assert!(!holdings.has_untold(), "shard {}: everything was told", core.id);
    }
    let options = node.shards[0].shard.options();
    let (app, shards) = (name(APP), options.shards);
    let mut channels = 0;
    for channel in crate::plan::CHANNELS {
        let home = partition(Scope::Channel, APP, channel, shards);
        let (presence, _) = node.shards[usize::from(home.0)].shard.presence();
        let audience = presence.audience(&ChannelKey::new(app.clone(), name(channel)), true);
        let expected = connections.get(channel).copied().unwrap_or(0);
        assert_eq!(audience.connections, expected, "connections of {channel}");
        truth.assert_total(channel, expected);
        channels += usize::from(expected > 0);
        let held: Vec<(String, u32)> = users
            .iter()
            .filter(|((of, _), _)| of == channel)
            .map(|((_, user), connections)| (user.clone(), *connections))
            .collect();
        if options.presence.members_max < 1_000 {
            // Who found no room is counted as a connection only.
            assert!(audience.users <= held.len() as u64, "users of {channel}");
            continue;
        }
        assert_eq!(audience.users, held.len() as u64, "users of {channel}: {audience:?}, and held are {held:?}");
        if let Some(roster) = audience.roster {
            let told: Vec<_> = roster.into_iter().map(|one| (one.user.to_string(), one.connections)).collect();
            assert_eq!(told, held, "the roster of {channel}");
        }
    }
    let known: usize = node.shards.iter().map(|core| core.shard.presence().0.channels()).sum();
    assert_eq!(known, channels, "a channel that nobody watches is forgotten");
}

fn clients_are_idle(core: &ShardCore, viewers: &[Viewer], network: &mut Network) {
    let readers: BTreeMap<usize, &Viewer> = viewers.iter().map(|viewer| (viewer.socket, viewer)).collect();
    for (id, client) in core.shard.clients() {
        let socket = core.sockets.get(&id).unwrap_or_else(|| panic!("{id:?} has no socket"));
        let viewer = readers.get(socket).unwrap_or_else(|| panic!("{id:?} is a ghost"));
        if viewer.reader == Reader::Never {
            continue;
        }
        assert_eq!(client.phase, ClientPhase::Open, "{id:?}: viewer {} is {:?}", viewer.no, viewer.phase);
        assert!(client.behind.is_none(), "viewer {} is idle and has a queue: {:?}", viewer.no, client.behind);
        assert!(!network.get(*socket).paused, "viewer {} is not read any more", viewer.no);
        for sub in client.subs() {
            assert!(sub.state == SubState::Live, "viewer {} is not live at rest: {:?}", viewer.no, sub.state);
        }
    }
}
