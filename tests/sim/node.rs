//! The whole node: shards, orchestrator and store, tied by the real mailboxes.

use ringcast::base::ShardId;
use ringcast::io::handoff::PostOffice;
use ringcast::orchestrator::{Orchestrator, OrchestratorOptions};
use ringcast::post::mailbox::{Doorbell, mailbox};
use ringcast::shard::{Shard, ShardOptions};
use ringcast::store::{Memory, Store};
use ringcast::wire::topic::TopicHasher;

use crate::orchestrator_core::OrchestratorCore;
use crate::plan::apps;
use crate::shard_core::{Scene, ShardCore};

/// One life of the node.
pub(crate) struct Node {
    pub(crate) shards: Vec<ShardCore>,
    pub(crate) orchestrator: OrchestratorCore,
}

impl Node {
    /// A process begins with what the store has.
    pub(crate) fn start(scene: &mut Scene<'_>, mut store: Memory) -> Self {
        let (plan, now) = (scene.plan, scene.now);
        let shards = plan.shard.shards;
        let hasher = TopicHasher::new(scene.random.next_u64());
        let mut office = PostOffice::new(shards, plan.sizes);
        let rooms: Vec<_> = store.rooms_load().expect("rooms").into_iter().map(|row| (row.key, row.room)).collect();
        let bans = store.bans(now.wall_ms).expect("bans");
        let options = OrchestratorOptions { seed: scene.random.next_u64(), ..plan.orchestrator.clone() };
        let orchestrator = Orchestrator::new(options, hasher.clone(), rooms, bans, now);
        // A real hand-over holds a descriptor; those of this world hold a number.
        let (seat_doors, seats): (Vec<_>, Vec<_>) = (0..shards).map(|_| mailbox(plan.seats, &Doorbell::new())).unzip();
        let cores = office.inboxes.drain(..).zip(seats).zip(office.to_orchestrator.drain(..)).enumerate();
        let cores = cores.map(|(at, ((inbox, seats), doors))| {
            let options = ShardOptions { id: ShardId(at as u16), ..plan.shard.clone() };
            let shard = Shard::new(options, apps(), hasher.clone(), now);
            ShardCore::new(shard, inbox, seats, office.to_shards.clone(), seat_doors.clone(), doors)
        });
        let shards = cores.collect();
        let to_shards = office.to_shards.clone();
        let core = OrchestratorCore::new(orchestrator, office.orchestrator, to_shards, store, office.news);
        scene.truth.forget_people();
        scene.truth.tells_members = plan.shard.presence.roster_limit >= 500;
        scene.truth.entered = 0;
        scene.truth.dropped_on_the_way = 0;
        scene.truth.came_twice = 0;
        Self { shards, orchestrator: core }
    }

    /// Every core has its turn, in some order, or is late. True when the node has ended.
    pub(crate) fn turn(&mut self, scene: &mut Scene<'_>) -> bool {
        let mut cores: Vec<usize> = (0..self.shards.len() + 2).collect();
        scene.random.shuffle(&mut cores);
        let shards = self.shards.len();
        let mut over = false;
        for core in cores {
            if scene.random.chance(20) {
                continue;
            }
            match core.cmp(&shards) {
                std::cmp::Ordering::Less => self.shards[core].turn(scene),
                std::cmp::Ordering::Equal => {
                    let all_drained = self.shards.iter().all(|core| core.drained);
                    over |= self.orchestrator.turn(scene, all_drained);
                }
                std::cmp::Ordering::Greater => self.orchestrator.disk.turn(scene),
            }
        }
        over
    }

    /// The process is gone, by a crash or in good order: what it leaves is the store.
    pub(crate) fn end(self, scene: &mut Scene<'_>) -> Memory {
        for socket in scene.network.all() {
            socket.node_fin = true;
            socket.reset = true;
        }
        scene.truth.requests.clear();
        self.orchestrator.disk.store.reopened()
    }
}
