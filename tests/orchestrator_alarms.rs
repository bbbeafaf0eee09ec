//! Ten thousand durable alarms over several lives of a process, in virtual time: each rings at least once, none early,
//! and none twice without saying that it may be the second time.

use std::collections::BTreeMap;

use ringcast::base::{ChannelKey, Name, Now, ShardId};
use ringcast::orchestrator::{Action, Orchestrator, OrchestratorOptions};
use ringcast::post::letters::{ToOrchestrator, ToShard};
use ringcast::store::{Memory, Store, StoreError};
use ringcast::wire::topic::TopicHasher;

const ALARMS: u64 = 10_000;
const WALL_MS: u64 = 1_796_050_000_000;
const SPREAD_MS: u64 = 60_000;

fn at(ms: u64) -> Now {
    Now { mono_us: ms * 1_000, wall_ms: WALL_MS + ms }
}

fn key(i: u64) -> ChannelKey {
    ChannelKey::new(Name::new("demo").unwrap(), Name::new(&format!("c{i}")).unwrap())
}

fn due_ms(i: u64) -> u64 {
    // A third of them at the same moment.
    if i.is_multiple_of(3) { 30_000 } else { 1_000 + i * 7_919 % SPREAD_MS }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn process(now: Now) -> Orchestrator {
    Orchestrator::new(OrchestratorOptions::default(), TopicHasher::new(7), [], [], now)
}

/// What viewers saw of each alarm: every ringing, and whether it was marked.
#[derive(Default)]
struct Seen(BTreeMap<String, Vec<bool>>);

/// Takes actions until none is left, or until `steps` are done: then the process is lost. True if it lives.
fn run(
    node: &mut Orchestrator,
    store: &mut Memory,
    now: Now,
    seen: &mut Seen,
    steps: &mut u64,
    random: &mut Random,
) -> bool {
    while let Some(action) = node.poll_action(now) {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        match action {
            Action::Chore(chore) => {
                if random.below(200) == 0 {
                    store.fail_next(1, StoreError::Full);
                }
                let done = chore.work(store);
                store.fail_next(0, StoreError::Full);
                if *steps == 0 {
                    // It is done, and nobody is left to hear so.
                    return false;
                }
                node.on_chore(now, done);
            }
            Action::Publish { sealed, .. } => {
                let event = sealed.to_event();
                let name = event.topic.name.as_str().to_owned();
                let i: u64 = name[1..].parse().unwrap();
                assert!(now.wall_ms >= WALL_MS + due_ms(i), "{name} rang early");
                assert_eq!(event.data.as_deref(), Some(i.to_string().as_str()));
                let marked = event.members.iter().any(|(member, _)| member == "retry");
                seen.0.entry(name).or_default().push(marked);
            }
            Action::Answer { letter: ToShard::Done { answer, .. }, .. } => answer.unwrap(),
            _ => {}
        }
    }
    true
}

fn set_all(store: &mut Memory, random: &mut Random) {
    let (mut node, mut seen) = (process(at(0)), Seen::default());
    for i in 0..ALARMS {
        let event = format!("{{\"type\":\"custom.bell\",\"data\":{i}}}");
        let set = Some((WALL_MS + due_ms(i), event));
        let letter = ToOrchestrator::ChangeAlarm { ticket: i, asker: ShardId(0), key: key(i), set };
        node.on_letter(at(0), letter);
        while let Some(action) = node.poll_action(at(0)) {
            match action {
                Action::Chore(chore) => node.on_chore(at(0), chore.work(store)),
                Action::Answer { letter: ToShard::Done { answer, .. }, .. } => answer.unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(run(&mut node, store, at(0), &mut seen, &mut { u64::MAX }, random) && seen.0.is_empty());
    assert_eq!(store.alarms(u64::MAX, u32::MAX).unwrap().len() as u64, ALARMS);
}

#[test]
fn ten_thousand_alarms_outlive_the_process_and_none_is_early_lost_or_twice_without_saying_so() {
    for seed in 0..2 {
        let (mut random, mut store, mut seen) = (Random(seed), Memory::new(1), Seen::default());
        set_all(&mut store, &mut random);
        let (mut now_ms, mut lives) = (0, 0);
        let mut node = process(at(now_ms));
        let mut steps = random.below(3_000);
        loop {
            if !run(&mut node, &mut store, at(now_ms), &mut seen, &mut steps, &mut random) {
                lives += 1;
                // Some lives end in the middle of a handful of alarms; the last goes on.
                steps = if lives < 12 { random.below(3_000) } else { u64::MAX };
                store = store.reopened();
                now_ms += random.below(500);
                node = process(at(now_ms));
                continue;
            }
            if store.alarm_next().unwrap().is_none() {
                break;
            }
            assert!(now_ms < 10 * SPREAD_MS, "alarms are left: {:?}", store.alarm_next());
            // Exactly then, and not a moment of virtual time before.
            let wake_ms = node.next_alarm_ms();
            assert!(wake_ms > now_ms, "the node asks for a moment that is over");
            now_ms = wake_ms;
            node.on_alarm(at(now_ms));
        }
        assert!(lives >= 5, "the process was lost {lives} times");
        assert_eq!(seen.0.len() as u64, ALARMS, "each rang at least once");
        let mut again = 0;
        for (name, ringings) in &seen.0 {
            let unmarked = ringings.iter().filter(|marked| !**marked).count();
            assert!(unmarked <= 1 && ringings[1..].iter().all(|marked| *marked), "{name}: {ringings:?}");
            again += ringings.len() - 1;
        }
        assert!(again > 0 && again < 12 * 16 + 1, "{again} rang again, over {lives} lives");
    }
}
