//! Viewers who say nothing: when they are pinged, and when they are given up.
//!
//! A crowd that joins at one moment flows in, pings and ends flow out; what is always true is that nobody is pinged before
//! half of the time nor after all of it, and that whoever answers stays.

use std::collections::{BTreeMap, BTreeSet};

use crate::stage::Stage;
use ringcast::base::{Class, ClientId};
use ringcast::shard::{Action, Interest, ShardOptions};
use ringcast::wire::event::EventKind;

const VIEWERS: u64 = 1_000;
const PING: &[u8] = &[0x89, 0];
/// Masked with zeros.
const PONG: &[u8] = &[0x8a, 0x80, 0, 0, 0, 0];

/// The crowd, and what happens to it second by second.
struct Crowd {
    stage: Stage,
    second: u64,
    /// When each was pinged, in seconds from the start.
    pings: BTreeMap<ClientId, Vec<u64>>,
    /// When each was ended.
    ends: BTreeMap<ClientId, u64>,
}

impl Crowd {
    fn new(options: ShardOptions) -> Self {
        let mut stage = Stage::new(ShardOptions { room_capacity: u32::MAX, ..options });
        let mut pings = BTreeMap::new();
        for _ in 0..VIEWERS {
            stage.join(&mut |action| {
                if let Action::Install { client, .. } = action {
                    pings.insert(*client, Vec::new());
                }
            });
        }
        stage.settle();
        assert_eq!(pings.len() as u64, VIEWERS);
        Self { stage, second: 0, pings, ends: BTreeMap::new() }
    }

    /// A second passes, in which those that are pinged answer unless they are `dumb`.
    fn pass(&mut self, dumb: &BTreeSet<ClientId>) {
        self.second += 1;
        self.stage.now = self.stage.now.plus_ms(1_000);
        // As often as a core would ask for all of them.
        for _ in 0..VIEWERS.div_ceil(64) {
            self.turn(dumb);
        }
    }

    /// Returns how many were pinged.
    fn turn(&mut self, dumb: &BTreeSet<ClientId>) -> usize {
        self.stage.shard.on_alarm(self.stage.now);
        let (second, pings, ends) = (self.second, &mut self.pings, &mut self.ends);
        let mut pinged = Vec::new();
        let mut hear = |action: &Action| {
            if let Action::End(client) = action {
                ends.entry(*client).or_insert(second);
            }
        };
        while self.stage.submit(&mut hear, |client, bytes| {
            if bytes == PING {
                pings.get_mut(&client).expect("one of the crowd").push(second);
                pinged.push(client);
            }
            bytes.len()
        }) {}
        for client in pinged.iter().filter(|client| !dumb.contains(client)) {
            self.stage.shard.on_bytes(self.stage.now, *client, PONG);
        }
        pinged.len()
    }
}

#[test]
fn a_storm_of_joins_does_not_become_a_storm_of_pings() {
    let mut crowd = Crowd::new(ShardOptions::default());
    for _ in 0..240 {
        crowd.pass(&BTreeSet::new());
    }
    assert!(crowd.ends.is_empty(), "whoever answers stays");
    let mut at = BTreeMap::<u64, u64>::new();
    for pings in crowd.pings.values() {
        assert!((30..=60).contains(&pings[0]), "first at {pings:?}");
        assert!(pings.windows(2).all(|pair| (60..=61).contains(&(pair[1] - pair[0]))), "a minute apart: {pings:?}");
        assert!(pings.len() >= 3);
        for &second in pings {
            *at.entry(second).or_default() += 1;
        }
    }
    // Evenly over half a minute, with room for what chance does.
    let most = at.values().max().copied().unwrap_or_default();
    assert!(most <= 2 * VIEWERS / 30, "{most} in one second: {at:?}");
}

#[test]
fn who_never_answers_is_ended_after_90_seconds_and_nobody_else() {
    let mut crowd = Crowd::new(ShardOptions::default());
    let dumb: BTreeSet<ClientId> = crowd.pings.keys().copied().step_by(7).collect();
    for _ in 0..89 {
        crowd.pass(&dumb);
    }
    assert!(crowd.ends.is_empty(), "{:?}", crowd.ends);
    for _ in 0..10 {
        crowd.pass(&dumb);
    }
    assert_eq!(crowd.ends.keys().copied().collect::<BTreeSet<_>>(), dumb);
    assert!(dumb.iter().all(|client| crowd.pings[client].len() == 1), "one ping each");
}

#[test]
fn a_second_in_which_many_are_due_is_shared_out() {
    let mut crowd = Crowd::new(ShardOptions { ping_after_s: 1, ..ShardOptions::default() });
    crowd.stage.now = crowd.stage.now.plus_ms(1_000);
    let mut turns = Vec::new();
    while turns.iter().sum::<usize>() < VIEWERS as usize {
        let asks = crowd.stage.shard.next_alarm_ms().is_some_and(|at_ms| at_ms <= crowd.stage.now.mono_ms());
        assert!(asks, "those who are left are not forgotten: {turns:?}");
        turns.push(crowd.turn(&BTreeSet::new()));
    }
    assert!(turns.iter().all(|pinged| (1..=64).contains(pinged)), "{turns:?}");
}

/// What is taken of a ping, what is not, and what comes between is in the account, and reaches everybody in whole frames.
#[test]
fn a_ping_comes_whole_however_little_is_taken_at_a_time() {
    let mut crowd = Crowd::new(ShardOptions { ping_after_s: 1, ..ShardOptions::default() });
    let stage = &mut crowd.stage;
    let open = |stage: &Stage| Class::ALL.map(|class| stage.shard.account().of(class).open());
    assert_eq!(open(stage), [0; 3]);
    let event = stage.event(EventKind::Custom, 0, "");
    let mut got: BTreeMap<ClientId, Vec<u8>> = crowd.pings.keys().map(|client| (*client, Vec::new())).collect();
    let gone = *got.keys().nth(17).expect("one of the crowd");
    let mut sends = 0_usize;
    stage.now = stage.now.plus_ms(1_000);
    // A third of the sends are taken whole, so this is twice what it takes.
    for turn in 1..=VIEWERS / 64 * 12 {
        stage.shard.on_alarm(stage.now);
        match turn {
            // Behind the pings of the first turn and before those of the others.
            2 => assert_eq!(stage.shard.on_sealed(stage.now, &event), Interest::Somebody),
            4 => stage.shard.on_hangup(stage.now, gone),
            _ => {}
        }
        let mut full = Vec::new();
        let mut hear =
            |action: &Action| full.extend(matches!(action, Action::WantWritable(_)).then(|| client_of(action)));
        stage.submit(&mut hear, |client, bytes| {
            sends += 1;
            let taken = [bytes.len(), 1, 0][sends % 3].min(bytes.len());
            got.get_mut(&client).expect("one of the crowd").extend(&bytes[..taken]);
            taken
        });
        for client in full.into_iter().flatten() {
            stage.shard.on_writable(stage.now, client);
        }
    }
    assert_eq!(open(stage), [0; 3], "{:?}", stage.shard.account());
    let whole = event.json_frame();
    let in_order = [[PING, whole].concat(), [whole, PING].concat()];
    let mut orders = [0; 2];
    for (client, bytes) in got.iter().filter(|(client, _)| **client != gone) {
        let order = in_order.iter().position(|order| order == bytes);
        orders[order.unwrap_or_else(|| panic!("{client:?} got {bytes:?}"))] += 1;
    }
    assert!(orders.iter().all(|viewers| *viewers > 0), "{orders:?}");
}

fn client_of(action: &Action) -> Option<ClientId> {
    if let Action::WantWritable(client) = action { Some(*client) } else { None }
}
