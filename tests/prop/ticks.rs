//! Ticks beyond what their numbers can count: they go round, and nobody misses anything for it.
//!
//! Viewers that come at any moment, also in the middle of a walk, and events flow in; what is always true is that each gets
//! every event that came after it, once and in order.

use std::collections::BTreeMap;

use crate::stage::Stage;
use crate::{Rng, for_seeds};
use ringcast::base::ClientId;
use ringcast::shard::{Action, ShardOptions};
use ringcast::wire::event::EventKind;

/// More than one submit takes, so that walks are interrupted.
const VIEWERS: u32 = 150;
/// A tick each; the numbers go round at the sixty-fourth.
const EVENTS: u64 = 150;

/// Who watches, and the number of the event that each is to get next.
#[derive(Default)]
struct Audience(BTreeMap<ClientId, u64>);

impl Audience {
    fn join(&mut self, stage: &mut Stage, next: u64) {
        stage.join(&mut |action| {
            if let Action::Install { client, .. } = action {
                self.0.insert(*client, next);
            }
        });
    }

    fn get(&mut self, client: ClientId, bytes: &[u8]) -> usize {
        let next = self.0.get_mut(&client).expect("one who watches");
        let text = String::from_utf8_lossy(bytes);
        for (at, mark) in text.match_indices("\"text\":\"") {
            let number = text[at + mark.len()..].split('"').next().and_then(|number| number.parse().ok());
            assert_eq!(number, Some(*next), "{client:?}");
            *next += 1;
        }
        bytes.len()
    }
}

#[test]
fn everybody_gets_everything_when_the_numbers_of_ticks_go_round() {
    for_seeds(0..20, |random: &mut Rng| {
        let mut stage = Stage::new(ShardOptions { room_capacity: u32::MAX, ..ShardOptions::default() });
        let mut audience = Audience::default();
        for _ in 0..VIEWERS {
            audience.join(&mut stage, 1);
        }
        while stage.submit(&mut |_| {}, |client, bytes| audience.get(client, bytes)) {}
        for number in 1..=EVENTS {
            let event = stage.event(EventKind::MessageNew, number, &number.to_string());
            stage.shard.on_sealed(stage.now, &event);
            while stage.submit(&mut |_| {}, |client, bytes| audience.get(client, bytes)) {
                if random.below(4) == 0 {
                    audience.join(&mut stage, number + 1);
                }
            }
        }
        assert!(audience.0.len() > VIEWERS as usize);
        assert!(audience.0.values().all(|next| *next == EVENTS + 1), "{:?}", audience.0);
    });
}
