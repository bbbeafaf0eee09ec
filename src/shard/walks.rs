//! Whose tick is walked next.
//!
//! Channels with an open tick flow in, the next to walk flows out. Always true: a channel stands here once at most, but for
//! a number that was given to another while it stood here; one whose walk fits into a submit waits for no large one longer
//! than half a submit; a large one is walked on for a whole turn, unless something urgent comes; and urgent ones and
//! ordinary ones take turns.
//!
//! With 20 channels of 500 viewers a walk that gave way after each submit took as long as all 20 together, and what came
//! meanwhile waited for a second round: finished one by one, nobody waits for more than one.

use std::collections::VecDeque;

use crate::fanout::index::TopicNo;

/// Submits of one large channel before the next one has its turn: 2,048 sends, 10 to 30 ms. With 512, 5 or 10 channels of
/// 10,000 viewers together had each walk broken off by the others, and p99 was 300 ms instead of 215.
const TURN_SUBMITS: usize = 32;

/// How large an audience is beside a submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// One submit reaches everybody.
    Small,
    /// It takes several.
    Large,
}

/// The channels of one size that wait for their walk.
#[derive(Debug, Default)]
struct Line {
    /// Those that have something critical to say.
    urgent: VecDeque<TopicNo>,
    ordinary: VecDeque<TopicNo>,
    /// The last turn was an urgent one's: the next is an ordinary one's, or one channel that says many critical things would
    /// keep the others from saying anything.
    was_urgent: bool,
    /// Sends that the one whose turn it is has had.
    turn_sends: usize,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.ordinary.is_empty()
    }

    fn first(&self) -> Option<TopicNo> {
        let lane = if self.is_urgents_turn() { &self.urgent } else { &self.ordinary };
        lane.front().copied()
    }

    fn is_urgents_turn(&self) -> bool {
        !self.urgent.is_empty() && (!self.was_urgent || self.ordinary.is_empty())
    }

    /// Ends the turn of the first one, who goes behind the others of its kind or stands here no more.
    fn end_turn(&mut self, comes_again: bool) {
        self.was_urgent = self.is_urgents_turn();
        self.turn_sends = 0;
        let lane = if self.was_urgent { &mut self.urgent } else { &mut self.ordinary };
        if let Some(first) = lane.pop_front()
            && comes_again
        {
            lane.push_back(first);
        }
    }
}

/// The channels that wait for their walk.
#[derive(Debug, Default)]
pub(super) struct Walks {
    small: Line,
    large: Line,
}

impl Walks {
    /// Nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }

    /// A channel that does not stand here has something to say.
    pub(super) fn push(&mut self, no: TopicNo, size: Size, urgent: bool) {
        let line = self.line(size);
        if urgent { &mut line.urgent } else { &mut line.ordinary }.push_back(no);
    }

    /// One that stands here has something critical to say by now. Looks at all that wait.
    pub(super) fn hurry(&mut self, no: TopicNo) {
        for line in [&mut self.small, &mut self.large] {
            if let Some(at) = line.ordinary.iter().position(|waiting| *waiting == no) {
                line.ordinary.remove(at);
                line.urgent.push_back(no);
            }
        }
    }

    /// Who is walked now.
    pub(super) fn first(&self, size: Size) -> Option<TopicNo> {
        match size {
            Size::Small => self.small.first(),
            Size::Large => self.large.first(),
        }
    }

    /// The first one's walk took so many sends and goes on; the next is first when its turn is over.
    pub(super) fn used(&mut self, size: Size, sends: usize, per_submit: usize) {
        let line = self.line(size);
        line.turn_sends += sends;
        if line.turn_sends >= per_submit * TURN_SUBMITS {
            line.end_turn(true);
        }
    }

    /// The first one's walk is over: it stands here no more.
    pub(super) fn pop(&mut self, size: Size) {
        self.line(size).end_turn(false);
    }

    fn line(&mut self, size: Size) -> &mut Line {
        match size {
            Size::Small => &mut self.small,
            Size::Large => &mut self.large,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_channel_has_a_whole_turn_and_then_the_next_one() {
        let mut walks = Walks::default();
        for no in 0..3 {
            walks.push(TopicNo(no), Size::Large, false);
        }
        for _ in 0..TURN_SUBMITS - 1 {
            walks.used(Size::Large, 64, 64);
            assert_eq!(walks.first(Size::Large), Some(TopicNo(0)));
        }
        walks.used(Size::Large, 64, 64);
        assert_eq!(walks.first(Size::Large), Some(TopicNo(1)));
        // What another one had used does not count for the next.
        walks.used(Size::Large, 64, 64);
        walks.pop(Size::Large);
        walks.used(Size::Large, 64 * TURN_SUBMITS - 1, 64);
        assert_eq!(walks.first(Size::Large), Some(TopicNo(2)));
        walks.used(Size::Large, 1, 64);
        assert_eq!(walks.first(Size::Large), Some(TopicNo(0)));
    }

    #[test]
    fn the_urgent_goes_first_wherever_it_stands_and_stands_there_once() {
        let mut walks = Walks::default();
        for (no, size) in [(0, Size::Small), (1, Size::Small), (2, Size::Large), (3, Size::Large)] {
            walks.push(TopicNo(no), size, false);
        }
        walks.push(TopicNo(4), Size::Small, true);
        assert_eq!(walks.first(Size::Small), Some(TopicNo(4)));
        for no in [1, 3, 3, 7] {
            walks.hurry(TopicNo(no));
        }
        let mut order = Vec::new();
        for size in [Size::Small, Size::Large] {
            while let Some(no) = walks.first(size) {
                order.push(no.0);
                walks.pop(size);
            }
        }
        assert_eq!(order, [4, 0, 1, 3, 2]);
        assert!(walks.is_empty());
    }

    #[test]
    fn who_is_always_urgent_has_half_of_the_turns() {
        for urgent in [1, 3] {
            let mut walks = Walks::default();
            for no in 0..5 {
                walks.push(TopicNo(no), Size::Large, no < urgent);
            }
            let mut turns = [0; 5];
            for _ in 0..1_200 {
                let no = walks.first(Size::Large).unwrap();
                turns[no.0 as usize] += 1;
                walks.pop(Size::Large);
                walks.push(no, Size::Large, no.0 < urgent);
            }
            let (first, others) = turns.split_at(urgent as usize);
            assert!(first.iter().all(|&turns| turns == 600 / urgent), "{turns:?}");
            assert!(others.iter().all(|&turns| turns == 600 / (5 - urgent)), "{turns:?}");
        }
    }
}
