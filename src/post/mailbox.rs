//! Bounded mailboxes between cores, and the one place that names the queue's crate.
//!
//! Letters flow in at many senders and out at one receiver, in the order of each sender. Always true: a full mailbox
//! gives the letter back; what becomes of it then is a rule of the kind of letter, stated in house.md's list.

use std::sync::Arc;
use std::task::Waker;

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;

use super::bell::Bell;
use crate::base::Gauge;

/// The bell of one core, shared by all its mailboxes: one ring of it wakes the core once.
#[derive(Debug, Default)]
pub struct Doorbell {
    bell: Bell,
    waker: AtomicWaker,
}

impl Doorbell {
    /// A doorbell whose core is awake.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Wakes the core if it sleeps. Call it once after a batch of pushes.
    pub fn ring(&self) {
        if self.bell.announce() {
            self.waker.wake();
        }
    }

    /// The core is about to sleep and will be woken by `waker`; it must look into its mailboxes once more after this.
    pub fn prepare(&self, waker: &Waker) {
        self.waker.register(waker);
        self.bell.prepare();
    }

    /// The core sleeps, and was not rung for since.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.bell.is_asleep()
    }

    /// The core is awake.
    pub fn awake(&self) {
        self.bell.awake();
    }
}

/// The sending end; any core may hold one.
#[derive(Debug)]
pub struct Sender<T> {
    queue: Arc<ArrayQueue<T>>,
    door: Arc<Doorbell>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue), door: Arc::clone(&self.door) }
    }
}

impl<T> Sender<T> {
    /// Puts a letter in, without waking anybody: [`Sender::ring`] does, once a batch.
    ///
    /// # Errors
    /// The letter, if the mailbox is full.
    pub fn push(&self, letter: T) -> Result<(), T> {
        self.queue.push(letter)
    }

    /// Puts a letter in; if the mailbox is full the oldest unread one goes, and is given back. For letters of which
    /// only the newest counts.
    pub fn replace(&self, letter: T) -> Option<T> {
        self.queue.force_push(letter)
    }

    /// How many more letters fit now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.queue.capacity() - self.queue.len()
    }

    /// Wakes the receiver's core if it sleeps.
    pub fn ring(&self) {
        self.door.ring();
    }

    /// Letters waiting, and how many may.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge::new(self.queue.len() as u64, self.queue.capacity() as u64)
    }
}

/// The receiving end; one core holds it.
#[derive(Debug)]
pub struct Receiver<T> {
    queue: Arc<ArrayQueue<T>>,
}

impl<T> Receiver<T> {
    /// The next letter.
    pub fn pop(&mut self) -> Option<T> {
        self.queue.pop()
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Letters waiting, and how many may.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge::new(self.queue.len() as u64, self.queue.capacity() as u64)
    }
}

/// A mailbox of `letters_max` letters for the core behind `door`.
#[must_use]
pub fn mailbox<T>(letters_max: usize, door: &Arc<Doorbell>) -> (Sender<T>, Receiver<T>) {
    let queue = Arc::new(ArrayQueue::new(letters_max.max(1)));
    (Sender { queue: Arc::clone(&queue), door: Arc::clone(door) }, Receiver { queue })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_mailbox_gives_the_letter_back() {
        let door = Doorbell::new();
        let (sender, mut receiver) = mailbox(2, &door);
        assert_eq!((sender.push(1), sender.push(2), sender.push(3)), (Ok(()), Ok(()), Err(3)));
        assert!(sender.gauge().is_full());
        assert_eq!(sender.replace(4), Some(1));
        assert_eq!((receiver.pop(), receiver.pop(), receiver.pop()), (Some(2), Some(4), None));
        assert!(receiver.is_empty() && sender.room() == 2);
    }
}
