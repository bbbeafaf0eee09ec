//! The 64 bits that come back with a completion: which operation, whose, and of which owner of the slot.
//!
//! What was asked flows in, who asked flows out. Always true: `op (8 bits) | turn (24 bits) | slot (32 bits)`, where
//! `turn` is the generation of the slot, so that a stale completion is told from the slot's next owner. For the two
//! operations that end inside the call that made them, SEND and RECV, it is the place in that call's batch instead.
//! Generations wrap at 24 bits knowingly: a completion is never late by 16 million owners, because a slot is given
//! on only after the last completion of its owner.

/// The kinds of operations that are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    /// The multishot poll for bytes that every socket has.
    PollIn = 1,
    /// The one-shot poll for room, of a socket that is behind.
    PollOut = 2,
    /// A read; ends inside its call.
    Recv = 3,
    /// A write; ends inside its call.
    Send = 4,
    /// A SHUTDOWN of the write side.
    Shutdown = 5,
    /// A cancellation; nobody waits for it, what it cancels reports itself.
    Cancel = 6,
    /// The end of a fixed slot.
    Close = 7,
    /// The multishot accept of a listener.
    Accept = 8,
    /// The one-shot poll of a descriptor whose request head is awaited.
    Greet = 9,
    /// A descriptor for a fixed slot's socket.
    Install = 10,
}

/// The bits of a generation that travel with an operation.
pub(super) const TURN_MASK: u32 = 0x00FF_FFFF;

/// Packs the three.
pub(super) const fn pack(op: Op, turn: u32, slot: u32) -> u64 {
    ((op as u64) << 56) | (((turn & TURN_MASK) as u64) << 32) | slot as u64
}

/// Takes apart what [`pack`] made; `None` for a number that is not one of ours.
pub(super) const fn unpack(user_data: u64) -> Option<(Op, u32, u32)> {
    let op = match (user_data >> 56) as u8 {
        1 => Op::PollIn,
        2 => Op::PollOut,
        3 => Op::Recv,
        4 => Op::Send,
        5 => Op::Shutdown,
        6 => Op::Cancel,
        7 => Op::Close,
        8 => Op::Accept,
        9 => Op::Greet,
        10 => Op::Install,
        _ => return None,
    };
    Some((op, (user_data >> 32) as u32 & TURN_MASK, user_data as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_apart_again() {
        for op in [
            Op::PollIn,
            Op::PollOut,
            Op::Recv,
            Op::Send,
            Op::Shutdown,
            Op::Cancel,
            Op::Close,
            Op::Accept,
            Op::Greet,
            Op::Install,
        ] {
            for (turn, slot) in [(0, 0), (1, u32::MAX), (TURN_MASK, 7)] {
                assert_eq!(unpack(pack(op, turn, slot)), Some((op, turn, slot)));
            }
        }
        assert_eq!(unpack(pack(Op::Send, TURN_MASK + 5, 1)), Some((Op::Send, 4, 1)), "a generation wraps");
        assert_eq!(unpack(0), None);
    }
}
