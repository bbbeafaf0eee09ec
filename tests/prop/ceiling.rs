//! A core that holds as many connections as it may, while they come and go.
//!
//! Joins, ends and sockets that are taken down later flow in; what is always true is that no place is given out that lies
//! beyond those of the ring, and that whoever is refused is told so.

use std::collections::BTreeSet;

use crate::stage::Stage;
use crate::{Rng, for_seeds};
use ringcast::base::ClientId;
use ringcast::shard::{Action, ShardOptions};

const PLACES: u32 = 4;

#[test]
fn no_place_is_given_out_beyond_those_of_the_ring() {
    for_seeds(0..200, |random: &mut Rng| {
        let mut stage = Stage::new(ShardOptions { clients_max: PLACES, ..ShardOptions::default() });
        let (mut here, mut ending): (Vec<ClientId>, Vec<ClientId>) = Default::default();
        for _ in 0..200 {
            match random.below(4) {
                0 | 1 => {
                    let room = here.len() + ending.len() < PLACES as usize;
                    match stage.knock("race") {
                        Ok(_) => assert!(room),
                        Err(problem) => assert_eq!((room, problem.code), (false, "connections_full")),
                    }
                }
                2 if !here.is_empty() => {
                    let id = here.swap_remove(random.below(here.len() as u64) as usize);
                    stage.shard.on_hangup(stage.now, id);
                }
                _ => {
                    if let Some(id) = ending.pop() {
                        stage.shard.on_closed(id);
                    }
                }
            }
            stage.act(&mut |action| match action {
                Action::Install { client, .. } => here.push(*client),
                Action::End(client) => ending.push(*client),
                _ => {}
            });
            let slots: BTreeSet<u32> = here.iter().chain(&ending).map(|id| id.slot).collect();
            assert_eq!(slots.len(), here.len() + ending.len(), "a place has one owner");
            assert!(slots.iter().all(|slot| *slot < PLACES), "{slots:?}");
        }
    });
}
