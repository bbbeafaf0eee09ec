//! The rooms of one channel: how full each is thought to be, and which is the first with space.
//!
//! Changes of single rooms flow in; the first room with space flows out. Always true: the total is the sum of the rooms,
//! and the sets of rooms with space hold exactly the rooms that have some.

use crate::base::{ChannelKey, RoomId, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// One room as seating sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// What its shard counted last.
    pub(super) reported: u32,
    /// Seats given since, and not yet covered by a report.
    pub(super) outstanding: u32,
    /// It answered that it is full: no seat there until its shard reports again.
    pub(super) barred: bool,
    /// Which report named it last; tells the rooms that a report leaves out.
    pub(super) named_by: u64,
    /// It waits to be written down; spares a seat the search for it among all that wait.
    pub(super) unwritten: bool,
    /// It stands in the sets of rooms with space.
    open: bool,
}

impl Room {
    /// How many viewers it holds as far as is known.
    pub(super) const fn viewers(&self) -> u32 {
        self.reported.saturating_add(self.outstanding)
    }
}

/// A channel with its rooms.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) key: ChannelKey,
    rooms: BTreeMap<RoomId, Room>,
    /// Rooms with space, in the order of creation.
    open: BTreeSet<RoomId>,
    /// The same rooms a shard, for those who must stay on theirs.
    open_on: BTreeSet<(ShardId, RoomId)>,
    /// The highest number ever given.
    last_n: u32,
    total: u64,
    /// Its rooms that wait to be written down; while there are any, the channel's slot stays.
    pub(super) unwritten: u32,
}

impl Channel {
    pub(super) const fn new(key: ChannelKey) -> Self {
        Self {
            key,
            rooms: BTreeMap::new(),
            open: BTreeSet::new(),
            open_on: BTreeSet::new(),
            last_n: 0,
            total: 0,
            unwritten: 0,
        }
    }

    /// Viewers of all its rooms.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// It has no room.
    pub(super) fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }

    /// The rooms in the order of creation.
    pub(super) fn rooms(&self) -> impl Iterator<Item = (RoomId, &Room)> {
        self.rooms.iter().map(|(id, room)| (*id, room))
    }

    /// The viewers of a room that is being written down; `None` if it is gone.
    pub(super) fn write_down(&mut self, id: RoomId) -> Option<u32> {
        self.unwritten -= 1;
        let room = self.rooms.get_mut(&id)?;
        room.unwritten = false;
        Some(room.viewers())
    }

    pub(super) fn room(&self, id: RoomId) -> Option<&Room> {
        self.rooms.get(&id)
    }

    /// The first room with space, on any shard or on one.
    pub(super) fn first_open(&self, on_shard: Option<ShardId>) -> Option<RoomId> {
        let Some(shard) = on_shard else { return self.open.first().copied() };
        let first = (shard, RoomId { n: 0, shard: ShardId(0) });
        self.open_on.range(first..).next().filter(|(on, _)| *on == shard).map(|(_, id)| *id)
    }

    /// The room that would be made next on `shard`.
    pub(super) fn next_id(&self, shard: ShardId) -> RoomId {
        RoomId { n: self.last_n.saturating_add(1), shard }
    }

    /// Adds a room with nobody in it. False if it is there already.
    pub(super) fn add(&mut self, id: RoomId, capacity: u32) -> bool {
        let new = self.rooms.insert(id, self.rooms.get(&id).copied().unwrap_or_default()).is_none();
        self.last_n = self.last_n.max(id.n);
        self.change(id, capacity, |_| ());
        new
    }

    /// Changes a room and keeps total and sets in agreement with it. True if its viewers changed and it does not wait to
    /// be written down yet.
    pub(super) fn change(&mut self, id: RoomId, capacity: u32, change: impl FnOnce(&mut Room)) -> bool {
        let Some(room) = self.rooms.get_mut(&id) else { return false };
        let before = room.viewers();
        change(room);
        let after = room.viewers();
        let has_space = !room.barred && after < capacity;
        self.total = self.total - u64::from(before) + u64::from(after);
        if has_space != room.open {
            room.open = has_space;
            if has_space {
                self.open.insert(id);
                self.open_on.insert((id.shard, id));
            } else {
                self.open.remove(&id);
                self.open_on.remove(&(id.shard, id));
            }
        }
        before != after && !std::mem::replace(&mut room.unwritten, true)
    }

    /// Removes a room that holds nobody and awaits nobody. True if it did.
    pub(super) fn remove_if_empty(&mut self, id: RoomId) -> bool {
        if self.rooms.get(&id).is_none_or(|room| room.viewers() > 0) {
            return false;
        }
        self.rooms.remove(&id);
        self.open.remove(&id);
        self.open_on.remove(&(id.shard, id));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;

    #[test]
    fn the_first_with_space_on_any_shard_or_on_one() {
        let mut channel = Channel::new(ChannelKey::new(Name::new("demo").unwrap(), Name::new("a").unwrap()));
        let ids = [0, 1, 0].map(|shard| {
            let id = channel.next_id(ShardId(shard));
            assert!(channel.add(id, 2));
            id
        });
        assert!(!channel.add(ids[1], 2));
        assert_eq!(channel.first_open(None), Some(ids[0]));
        assert!(channel.change(ids[0], 2, |room| room.reported = 2));
        assert!(!channel.change(ids[0], 2, |room| room.outstanding = 1), "it waits to be written down already");
        assert!(!channel.change(ids[0], 2, |room| room.outstanding = 0));
        assert_eq!(channel.first_open(None), Some(ids[1]));
        assert_eq!(channel.first_open(Some(ShardId(0))), Some(ids[2]));
        assert_eq!(channel.first_open(Some(ShardId(2))), None);
        assert!(!channel.change(ids[1], 2, |room| room.barred = true), "its viewers are the same");
        assert_eq!(channel.first_open(Some(ShardId(1))), None);
        assert!(channel.remove_if_empty(ids[1]) && !channel.remove_if_empty(ids[0]));
        assert_eq!((channel.total(), channel.next_id(ShardId(1)).n), (2, 4));
    }
}
