//! Turns, and when it is safe to sleep.
//!
//! A budget flows in, events flow out. Always true: notifications are off while turns are taken, so that half the
//! parks do not wake for nothing; and the owner sleeps only if, after they were turned on, every ring was seen idle,
//! so that no wake is lost.

use std::io;
use std::sync::atomic::{Ordering, fence};

use super::uring::Uring;
use super::{Progress, RingEvent, SocketRing};

impl SocketRing {
    /// Runs task work, absorbs completions, hands what happened to `on`, and reads from those that are ready.
    ///
    /// The budget bounds each of three: the completions for which the kernel is entered (those that are there already
    /// are absorbed in any case, which is cheap), the notes handed over, and the reads. `on` cannot call back: what it
    /// wants of the ring is asked for after the turn.
    pub fn turn(&mut self, budget: u32, on: &mut impl FnMut(RingEvent<'_>)) -> io::Result<Progress> {
        let budget = budget.max(1);
        let mut left = budget as usize;
        self.first = (self.first + 1) % self.rings.len();
        for step in 0..self.rings.len() {
            let ring = (self.first + step) % self.rings.len();
            self.pump(ring, &mut left)?;
        }
        self.tell(budget, on);
        self.read(budget, on)?;
        // What absorbing asked for, such as polls to arm again, is submitted before anybody sleeps.
        for ring in 0..self.rings.len() {
            if self.ring(ring).is_some_and(Uring::has_queued) {
                self.flush_ring(ring)?;
            }
        }
        Ok(Progress { more: self.has_work() })
    }

    /// One enter runs about twenty completions' worth of task work: enter until nothing waits, an enter brings nothing, or
    /// `left` is used up. What is said to wait and may be stale is entered for once a turn.
    fn pump(&mut self, ring: usize, left: &mut usize) -> io::Result<()> {
        loop {
            let Some(uring) = self.ring(ring) else { return Ok(()) };
            let overflowed = uring.overflowed();
            if *left > 0 && (uring.has_queued() || uring.wants_enter()) {
                uring.enter(true)?;
            } else {
                uring.collect();
            }
            let absorbed = uring.reaped.len();
            *left = left.saturating_sub(absorbed);
            self.overflows += u64::from(overflowed);
            self.absorb_ring(ring);
            let waits = self
                .ring(ring)
                .is_some_and(|uring| uring.has_queued() || (uring.wants_enter() && !uring.may_be_stale()));
            if *left == 0 || !waits {
                return Ok(());
            }
        }
    }

    fn has_work(&mut self) -> bool {
        !self.notes.is_empty() || self.reader.waiting() > 0 || self.rings.iter_mut().flatten().any(Uring::has_work)
    }

    /// Turns notifications on and looks at everything once more. `true`: nothing is there, await the eventfd, then
    /// [`unpark`](Self::unpark). `false`: there is work, take a turn; notifications are off again.
    pub fn prepare_park(&mut self) -> io::Result<bool> {
        for ring in 0..self.rings.len() {
            if self.ring(ring).is_some_and(Uring::has_queued) {
                self.flush_ring(ring)?;
            }
        }
        if self.has_work() {
            return Ok(false);
        }
        self.notify_and_recheck()
    }

    /// What came between the last look and the notification rings no bell: it must be looked for. Where a flag may be
    /// stale only an enter can tell; what comes after it rings.
    fn notify_and_recheck(&mut self) -> io::Result<bool> {
        self.notify(true);
        // The kernel sets its flag, then reads ours; we set ours, then read its: one of the two must see the other.
        fence(Ordering::SeqCst);
        for uring in self.rings.iter_mut().flatten() {
            if uring.may_be_stale() {
                uring.enter(true)?;
            }
        }
        let idle = !self.has_work();
        if !idle {
            self.notify(false);
        }
        Ok(idle)
    }

    /// Turns notifications off after a park.
    pub fn unpark(&mut self) {
        self.notify(false);
    }

    fn notify(&mut self, on: bool) {
        for uring in self.rings.iter_mut().flatten() {
            uring.notify(on);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::super::{RingOptions, SocketId};
    use super::*;
    use crate::io::descriptors::eventfd;

    /// The window of rule 7, hit on purpose: bytes come after the ring was seen idle and before it may ring.
    #[test]
    fn rule_07_what_comes_just_before_the_notification_is_seen() {
        let eventfd = eventfd().expect("an eventfd");
        let options = RingOptions { sockets_max: 4, files_per_ring: 1, ..RingOptions::default() };
        let mut ring = SocketRing::new(options, eventfd.as_raw_fd()).expect("a ring");
        for slot in 0..4 {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair");
            ring.install(SocketId { slot, generation: 0 }, ours.into()).expect("a free slot");
            while ring.turn(64, &mut |_| {}).expect("a turn").more {}
            assert!(!ring.has_work());
            theirs.write_all(b"now").expect("writes");
            assert!(!ring.notify_and_recheck().expect("a look"), "slot {slot}: the owner would sleep over it");
            let mut came = 0;
            while ring
                .turn(64, &mut |event| came += usize::from(matches!(event, RingEvent::Bytes(..))))
                .expect("a turn")
                .more
            {}
            assert_eq!(came, 1);
            assert!(ring.prepare_park().expect("a park"));
            ring.unpark();
        }
    }

    /// The kernel may say that task work waits when none does, and go on saying so.
    #[test]
    fn a_stale_flag_keeps_nobody_awake_and_hides_nothing() {
        let eventfd = eventfd().expect("an eventfd");
        let options = RingOptions { sockets_max: 4, files_per_ring: 2, ..RingOptions::default() };
        let mut ring = SocketRing::new(options, eventfd.as_raw_fd()).expect("a ring");
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        ring.install(SocketId { slot: 0, generation: 0 }, ours.into()).expect("a free slot");
        while ring.turn(64, &mut |_| {}).expect("a turn").more {}
        let offset = Uring::flags_offset();
        for round in 0..3 {
            ring.rings.iter().flatten().for_each(|uring| uring.leave_stale_flag(offset));
            // It is looked after, and then believed no more.
            let mut turns = 0;
            while ring.turn(64, &mut |_| {}).expect("a turn").more {
                turns += 1;
                assert!(turns < 10, "round {round}: it is awake for nothing");
            }
            assert!(ring.prepare_park().expect("a park"), "round {round}: it may sleep");
            ring.unpark();
            // What comes now sets no flag, for it is set: it must be seen in the turn and before a sleep.
            theirs.write_all(b"now").expect("writes");
            let mut came = 0;
            let mut count = |event: RingEvent<'_>| came += usize::from(matches!(event, RingEvent::Bytes(..)));
            if round == 0 {
                assert!(!ring.prepare_park().expect("a park"), "the owner would sleep over it");
            }
            while ring.turn(64, &mut count).expect("a turn").more {}
            assert_eq!(came, 1, "round {round}");
        }
    }
}
