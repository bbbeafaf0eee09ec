//! Who wants one topic: a dense array that a tick's walk goes over, and the count of each room.
//!
//! Clients that join and leave flow in; positions flow out. Always true: a position holds until its member leaves or
//! the array is compacted; the counts of all rooms add up to the living members; and the places of those who left are
//! used again before the array grows.

use super::tick_no::TickNo;

/// The `client` of a place whose member has left.
pub const TOMBSTONE: u32 = u32::MAX;

/// No free place.
const NONE: u32 = u32::MAX;
/// Arrays shorter than this are not worth compacting.
const COMPACT_MIN: usize = 64;

/// One place in the array of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The client's slot on its shard, or [`TOMBSTONE`]: then the other fields mean nothing to a walk.
    pub client: u32,
    /// The number of the first tick that concerns the member. A walk of an earlier tick passes it by, so that a place
    /// can be used again while a walk is under way.
    pub first_tick: TickNo,
    /// The room it sits in, a number that is the caller's; 0 for the topics of users and tags.
    pub room: u32,
}

/// The members of one topic.
#[derive(Debug)]
pub(super) struct Members {
    places: Vec<Member>,
    living: u32,
    /// The first free place; the `room` of a tombstone leads to the next.
    free: u32,
    /// Room and count, sorted by room; rooms without members are left out.
    rooms: Vec<(u32, u32)>,
}

impl Members {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), living: 0, free: NONE, rooms: Vec::new() }
    }

    /// All places, tombstones included.
    pub(super) fn places(&self) -> &[Member] {
        &self.places
    }

    pub(super) const fn living(&self) -> u32 {
        self.living
    }

    pub(super) fn rooms(&self) -> &[(u32, u32)] {
        &self.rooms
    }

    pub(super) fn room_count(&self, room: u32) -> u32 {
        self.room_at(room).map_or(0, |at| self.rooms[at].1)
    }

    /// Returns the position.
    pub(super) fn join(&mut self, member: Member) -> u32 {
        debug_assert_ne!(member.client, TOMBSTONE);
        // Searching long arrays would make a debug build useless for load; the caller's mistakes show in short ones.
        debug_assert!(
            self.places.len() > COMPACT_MIN || self.places.iter().all(|other| other.client != member.client),
            "a client stands once in a topic"
        );
        match self.room_at(member.room) {
            Ok(at) => self.rooms[at].1 += 1,
            Err(at) => self.rooms.insert(at, (member.room, 1)),
        }
        self.living += 1;
        let position = self.free;
        if let Some(place) = self.places.get_mut(position as usize) {
            self.free = place.room;
            *place = member;
            return position;
        }
        self.places.push(member);
        (self.places.len() - 1) as u32
    }

    /// Returns how many are left in the room of who leaves; `None` and nothing done if nobody stands at `position`.
    pub(super) fn leave(&mut self, position: u32) -> Option<u32> {
        let place = self.places.get_mut(position as usize)?;
        if place.client == TOMBSTONE {
            return None;
        }
        let room = place.room;
        *place = Member { client: TOMBSTONE, first_tick: TickNo::FIRST, room: self.free };
        self.free = position;
        self.living -= 1;
        let at = self.room_at(room).ok()?;
        self.rooms[at].1 -= 1;
        let left = self.rooms[at].1;
        if left == 0 {
            self.rooms.remove(at);
        }
        Some(left)
    }

    /// `tick` is the first that concerns anybody here.
    pub(super) fn renew(&mut self, tick: TickNo) {
        self.places.iter_mut().for_each(|member| member.first_tick = tick);
    }

    /// Half of the places or more are empty.
    pub(super) fn should_compact(&self) -> bool {
        self.places.len() >= COMPACT_MIN && self.living as usize * 2 <= self.places.len()
    }

    /// Closes the holes and keeps the order; tells who stands elsewhere now.
    pub(super) fn compact(&mut self, mut moved: impl FnMut(u32, u32)) {
        let mut old_position = 0;
        let mut position = 0;
        self.places.retain(|member| {
            let lives = member.client != TOMBSTONE;
            if lives {
                if position != old_position {
                    moved(member.client, position);
                }
                position += 1;
            }
            old_position += 1;
            lives
        });
        self.free = NONE;
        // Room for as many again, so that the next joins do not move the array.
        self.places.shrink_to(self.places.len() * 2);
    }

    fn room_at(&self, room: u32) -> Result<usize, usize> {
        self.rooms.binary_search_by_key(&room, |&(room, _)| room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(client: u32, room: u32) -> Member {
        Member { client, first_tick: TickNo::FIRST, room }
    }

    #[test]
    fn places_hold_until_they_are_left_and_are_used_again() {
        let mut members = Members::new();
        assert_eq!([1, 2, 3].map(|client| members.join(member(client, client % 2))), [0, 1, 2]);
        assert_eq!(members.rooms(), [(0, 1), (1, 2)]);
        assert_eq!(members.leave(1), Some(0));
        assert_eq!(members.leave(1), None);
        assert_eq!(members.leave(0), Some(1));
        assert_eq!(members.rooms(), [(1, 1)]);
        assert_eq!(members.join(member(4, 9)), 0);
        assert_eq!(members.join(member(5, 9)), 1);
        assert_eq!(members.join(member(6, 9)), 3);
        assert_eq!((members.living(), members.room_count(9), members.room_count(0)), (4, 3, 0));
    }

    #[test]
    fn compacting_keeps_the_order_and_tells_who_moved() {
        let mut members = Members::new();
        for client in 0..64 {
            members.join(member(client, 0));
        }
        for position in 1..32 {
            members.leave(position);
        }
        assert!(!members.should_compact());
        members.leave(32);
        assert!(members.should_compact());
        let mut moved = Vec::new();
        members.compact(|client, position| moved.push((client, position)));
        assert_eq!((moved.len(), moved[0], moved[30]), (31, (33, 1), (63, 31)));
        assert!(members.places().iter().all(|member| member.client != TOMBSTONE));
        assert_eq!(members.join(member(99, 0)), 32);
    }
}
