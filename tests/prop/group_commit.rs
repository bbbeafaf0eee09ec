//! Group commit before a store that fails now and then, against a plain queue.

use crate::rng::Rng;
use ringcast::base::{ChannelKey, Name, Now, Ulid};
use ringcast::store::{
    Appended, Batch, FirstAnswer, Group, GroupOptions, Memory, NewEvent, PageAsk, Pages, Store, StoreError,
};
use ringcast::wire::event::EventKind;
use std::collections::{BTreeMap, VecDeque};

fn channel(n: u64) -> ChannelKey {
    ChannelKey::new(Name::new("demo").unwrap(), Name::new(&format!("c{n}")).unwrap())
}

fn event(n: u64, rng: &mut Rng) -> NewEvent {
    NewEvent {
        key: channel(rng.below(3)),
        kind: EventKind::MessageNew,
        id: Ulid::new(n, u128::from(n)),
        ts_ms: n,
        user_id: None,
        user_name: None,
        text: None,
        data: None,
        target: None,
        detail: None,
        client_id: None,
        // Few keys, so that repeats happen within a batch, between batches and after failures.
        idempotency_key: rng.chance(40).then(|| format!("k{}", rng.below(n / 4 + 1))),
    }
}

/// The twin: what was taken in and not answered, in order; what is durable, by channel; the first answer of each key.
#[derive(Default)]
struct Twin {
    open: VecDeque<NewEvent>,
    durable: BTreeMap<ChannelKey, Vec<Ulid>>,
    first: BTreeMap<String, (Ulid, u64)>,
}

impl Twin {
    fn expect(&mut self, event: &NewEvent, failed: bool) -> Option<(bool, Ulid, u64)> {
        assert_eq!(self.open.pop_front().as_ref(), Some(event), "answered in the order of push");
        if failed {
            return None;
        }
        if let Some((id, seq)) = event.idempotency_key.as_ref().and_then(|key| self.first.get(key)) {
            return Some((false, *id, *seq));
        }
        let rows = self.durable.entry(event.key.clone()).or_default();
        rows.push(event.id);
        let seq = rows.len() as u64;
        if let Some(key) = &event.idempotency_key {
            self.first.insert(key.clone(), (event.id, seq));
        }
        Some((true, event.id, seq))
    }
}

fn run(seed: u64) {
    let mut rng = Rng(seed);
    let options = GroupOptions {
        batch_max: 1 + rng.below(8) as u32,
        wait_max_us: if rng.chance(50) { 0 } else { 500 },
        queued_max: 1 + rng.below(30) as u32,
    };
    let mut group: Group<u64> = Group::new(options);
    let (mut store, mut twin) = (Memory::new(seed), Twin::default());
    let mut at_committer: Option<Batch> = None;
    let (mut now, mut next_tag, mut expected_tag) = (Now::default(), 0, 0);
    for step in 0..600 {
        now.mono_us += rng.below(200);
        let oldest_may_go = group.next_alarm().is_some_and(|at| at <= now.mono_us);
        match rng.below(4) {
            0 | 1 => {
                let new = event(next_tag, &mut rng);
                let full = twin.open.len() >= options.queued_max as usize;
                match group.push(now, new.clone(), next_tag) {
                    Ok(()) => {
                        assert!(!full, "seed {seed} step {step}");
                        twin.open.push_back(new);
                        next_tag += 1;
                    }
                    Err((back, tag)) => assert!(full && back == new && tag == next_tag, "seed {seed} step {step}"),
                }
            }
            2 => {
                let batch = group.next_batch(now);
                assert_eq!(batch.is_some(), oldest_may_go, "seed {seed} step {step}");
                if let Some(batch) = batch {
                    assert!(at_committer.is_none(), "one batch under way, seed {seed} step {step}");
                    assert!((1..=options.batch_max as usize).contains(&batch.events().len()));
                    assert!(batch.events().iter().eq(twin.open.iter().take(batch.events().len())));
                    at_committer = Some(batch);
                }
            }
            _ => {
                let Some(batch) = at_committer.take() else {
                    assert!(!group.is_busy());
                    continue;
                };
                if rng.chance(25) {
                    store.fail_next(1, StoreError::Full);
                }
                let result = store.commit(1, batch.events());
                let (failed, size) = (result.is_err(), batch.events().len());
                // Now and then the committer is slow to drop its batch; the answers are the same.
                let kept = rng.chance(10).then(|| batch.clone());
                drop(batch);
                let answers: Vec<_> = group.on_committed(result).collect();
                drop(kept);
                assert_eq!(answers.len(), size);
                for (event, tag, answer) in answers {
                    assert_eq!(tag, expected_tag, "seed {seed} step {step}");
                    expected_tag += 1;
                    let got = match &answer {
                        Ok(Appended::New { position }) => Some((true, event.id, position.seq)),
                        Ok(Appended::Repeat(FirstAnswer { id, position, .. })) => Some((false, *id, position.seq)),
                        Ok(Appended::NoTarget) => panic!("none speaks of another, seed {seed} step {step}"),
                        Err(error) => {
                            assert_eq!(error, &StoreError::Full);
                            None
                        }
                    };
                    assert_eq!(got, twin.expect(&event, failed), "seed {seed} step {step}");
                }
            }
        }
        assert_eq!(group.gauge().used, twin.open.len() as u64);
    }
    for (key, ids) in &twin.durable {
        let page = store.page(key, PageAsk::Latest { limit: 1_000 }).unwrap();
        assert!(page.events.iter().map(|event| event.id).eq(ids.iter().copied()), "seed {seed}: acked is durable");
        assert!(page.events.iter().map(|event| event.seq).eq(1..=ids.len() as u64), "seed {seed}: no hole");
    }
}

#[test]
fn every_event_is_answered_once_in_order_and_acked_is_durable() {
    (0..300).for_each(run);
}

#[test]
fn a_failed_batch_leaves_the_following_ones_alone() {
    let mut rng = Rng(1);
    let mut group = Group::new(GroupOptions { batch_max: 2, ..GroupOptions::default() });
    for n in 0..4 {
        group.push(Now::default(), NewEvent { idempotency_key: None, ..event(n, &mut rng) }, n).unwrap();
    }
    let mut store = Memory::new(1);
    let first = group.next_batch(Now::default()).unwrap();
    assert!(group.next_batch(Now::default()).is_none());
    store.fail_next(1, StoreError::Busy);
    let answers: Vec<_> = group.on_committed(store.commit(0, first.events())).collect();
    assert!(answers.iter().all(|(_, _, answer)| *answer == Err(StoreError::Busy)));
    assert_eq!(answers.iter().map(|(_, tag, _)| *tag).collect::<Vec<_>>(), [0, 1]);
    let second = group.next_batch(Now::default()).unwrap();
    let answers: Vec<_> = group.on_committed(store.commit(0, second.events())).collect();
    assert!(answers.iter().all(|(_, _, answer)| matches!(answer, Ok(Appended::New { .. }))));
    // Too few answers: nobody is told that anything is durable.
    group.push(Now::default(), event(9, &mut rng), 9).unwrap();
    group.next_batch(Now::default()).unwrap();
    let answers: Vec<_> = group.on_committed(Ok(Vec::new())).collect();
    assert!(matches!(answers[..], [(_, 9, Err(StoreError::Refused(_)))]));
    assert_eq!(group.on_committed(Ok(Vec::new())).count(), 0, "nothing is under way");
}
