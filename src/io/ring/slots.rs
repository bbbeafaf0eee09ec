//! What is known of each socket: twelve bytes a slot.
//!
//! A (slot, generation) flows in, its state flows out if the generation still owns the slot. Always true: every
//! operation in flight on a socket has its bit here, so that a socket can be ended, or moved, exactly when nothing is
//! in flight.

use std::os::fd::OwnedFd;

use super::SocketId;
use super::tag::TURN_MASK;

/// The slot has an owner.
pub(super) const LIVE: u16 = 1;
/// The owner is leaving: nothing is started any more, the last completion closes.
pub(super) const ENDING: u16 = 1 << 1;
/// In the ready list.
pub(super) const READY: u16 = 1 << 2;
/// No reads until resumed.
pub(super) const PAUSED: u16 = 1 << 3;
/// The poll has seen the end or an error: read on until the read says so, whatever the hints.
pub(super) const ENDS_SOON: u16 = 1 << 4;
/// The end was reported: nothing is read any more.
pub(super) const HUNG_UP: u16 = 1 << 5;
/// The write side was shut, or is about to be.
pub(super) const HALF: u16 = 1 << 6;
/// The owner leaves alive, as a descriptor.
pub(super) const MOVING: u16 = 1 << 7;
/// In flight: the multishot poll.
pub(super) const POLL_IN: u16 = 1 << 8;
/// In flight: the one-shot poll for room.
pub(super) const POLL_OUT: u16 = 1 << 9;
/// In flight: a SHUTDOWN of the write side.
pub(super) const SHUTTING: u16 = 1 << 10;
/// In flight: the CLOSE; the last operation of a generation.
pub(super) const CLOSING: u16 = 1 << 11;
/// In flight: the making of a descriptor.
pub(super) const INSTALLING: u16 = 1 << 12;
/// All that can be in flight.
pub(super) const IN_FLIGHT: u16 = POLL_IN | POLL_OUT | SHUTTING | CLOSING | INSTALLING;

/// One socket.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The owner's generation, as the caller gave it.
    pub(super) generation: u32,
    /// The descriptor where descriptors are kept or one was made to move; it is closed with the slot that holds it.
    pub(super) fd: Option<OwnedFd>,
    /// The bits above.
    pub(super) bits: u16,
}

impl Slot {
    /// One of `bits` is set.
    pub(super) const fn has(&self, bits: u16) -> bool {
        self.bits & bits != 0
    }
}

/// All slots ever used; grows to the highest one.
#[derive(Debug, Default)]
pub(super) struct Slots {
    table: Vec<Slot>,
    live: u32,
}

impl Slots {
    /// How many have an owner.
    pub(super) const fn live(&self) -> u32 {
        self.live
    }

    /// The slot has no owner.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.table.get(slot as usize).is_none_or(|s| !s.has(LIVE))
    }

    /// Gives a free slot to `id`.
    pub(super) fn take(&mut self, id: SocketId, fd: Option<OwnedFd>) {
        let index = id.slot as usize;
        if self.table.len() <= index {
            self.table.resize_with(index + 1, Slot::default);
        }
        debug_assert!(!self.table[index].has(LIVE | IN_FLIGHT), "slot {index} still has an owner");
        self.table[index] = Slot { generation: id.generation, fd, bits: LIVE };
        self.live += 1;
    }

    /// The state of `id`, if it still owns its slot.
    pub(super) fn get(&mut self, id: SocketId) -> Option<&mut Slot> {
        self.table.get_mut(id.slot as usize).filter(|s| s.has(LIVE) && s.generation == id.generation)
    }

    /// The owner of `slot`, if its generation has the bits that came back with a completion.
    pub(super) fn by_turn(&mut self, slot: u32, turn: u32) -> Option<(SocketId, &mut Slot)> {
        let found = self.table.get_mut(slot as usize)?;
        if !found.has(LIVE) || found.generation & TURN_MASK != turn {
            return None;
        }
        Some((SocketId { slot, generation: found.generation }, found))
    }

    /// Takes the slot back, and the descriptor that it held; nothing is in flight on it.
    pub(super) fn free(&mut self, slot: u32) -> Option<OwnedFd> {
        let found = &mut self.table[slot as usize];
        debug_assert!(found.has(LIVE) && !found.has(IN_FLIGHT), "{found:?}");
        found.bits = 0;
        self.live -= 1;
        found.fd.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_answers_to_its_owner_only() {
        let mut slots = Slots::default();
        let (first, second) = (SocketId { slot: 3, generation: 1 }, SocketId { slot: 3, generation: 2 });
        slots.take(first, None);
        assert!(slots.get(first).is_some() && slots.get(second).is_none() && slots.by_turn(3, 2).is_none());
        assert!(slots.free(3).is_none());
        assert!(slots.get(first).is_none() && slots.is_free(3) && slots.is_free(99));
        slots.take(second, None);
        assert!(slots.get(first).is_none() && slots.by_turn(3, 2).is_some());
        assert_eq!((slots.live(), size_of::<Slot>()), (1, 12));
    }
}
