//! Events that nobody on a shard wants, on their way out.
//!
//! Events flow in and nothing flows out. Always true: at most [`EVENTS_MAX`] lie here, and none once the mailbox they came
//! from has been looked through.
//!
//! To let go of an event is to give back a count that lies in memory which another core wrote: a line that is in no cache.
//! Given back one after the other, each count is waited for alone, since an atomic step lets no later one begin. Read
//! before, all together, they are waited for together.

use crate::wire::sealed::Sealed;

/// Events that wait for each other, and so lines that are asked for at once; a core has some dozen such questions open.
const EVENTS_MAX: usize = 32;

/// A handful of events to let go.
#[derive(Debug)]
pub struct Unwanted(Vec<Sealed>);

impl Default for Unwanted {
    fn default() -> Self {
        Self(Vec::with_capacity(EVENTS_MAX))
    }
}

impl Unwanted {
    /// Takes an event; when there are many, all are let go.
    pub fn push(&mut self, sealed: Sealed) {
        self.0.push(sealed);
        if self.0.len() == EVENTS_MAX {
            self.let_go();
        }
    }

    /// Lets go of all there are.
    pub fn let_go(&mut self) {
        let holders: usize = self.0.iter().map(Sealed::holders).sum();
        // The sum is of no use, but the reads are.
        std::hint::black_box(holders);
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::wire::event::EventKind;
    use crate::wire::sealed::Event;
    use crate::wire::topic::{Scope, TopicHasher};

    #[test]
    fn no_more_are_kept_than_wait_for_each_other_and_none_in_the_end() {
        let name = |name| Name::new(name).unwrap();
        let topic = TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &name("race"));
        let sealed = Sealed::seal(&Event::new(EventKind::ViewersUpdated, topic, 0)).unwrap();
        let mut unwanted = Unwanted::default();
        for pushed in 1..=3 * EVENTS_MAX {
            unwanted.push(sealed.clone());
            assert_eq!(sealed.holders(), 1 + pushed % EVENTS_MAX);
        }
        unwanted.push(sealed.clone());
        unwanted.let_go();
        assert_eq!(sealed.holders(), 1);
    }
}
