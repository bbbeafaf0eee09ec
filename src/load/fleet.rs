//! The viewers of one process: a few threads, each a deck of its own.
//!
//! A plan and orders flow in, progress and an outcome flow out; what is always true is that the threads share nothing
//! but the gauges they show.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::deck::{Deck, Gauges};
use super::plan::{Order, Outcome, Plan, Progress};

struct Thread {
    orders: Sender<Order>,
    gauges: Arc<Gauges>,
    handle: JoinHandle<Outcome>,
}

/// The threads.
pub(super) struct Fleet(Vec<Thread>);

impl Fleet {
    /// Starts the joins of all viewers of `plan`.
    pub(super) fn launch(plan: &Plan) -> io::Result<Self> {
        let threads = plan.threads.clamp(1, plan.count.max(1));
        let each = plan.count / threads;
        let mut fleet = Vec::new();
        for number in 0..threads {
            let first = plan.first + number * each;
            let count = if number + 1 == threads { plan.count - number * each } else { each };
            let (orders, inbox) = channel();
            let gauges = Arc::<Gauges>::default();
            let deck = Deck::new(plan.part(first, count), inbox, Arc::clone(&gauges))?;
            let handle = std::thread::Builder::new().name(format!("viewers-{number}")).spawn(move || deck.run())?;
            fleet.push(Thread { orders, gauges, handle });
        }
        Ok(Self(fleet))
    }

    /// How many threads there are; as many arrive.
    pub(super) fn threads(&self) -> u32 {
        self.0.len() as u32
    }

    /// Where the threads are.
    pub(super) fn progress(&self) -> Progress {
        let mut sum = Progress::default();
        for Thread { gauges, .. } in &self.0 {
            sum.add(Progress {
                joined: gauges.joined.load(Relaxed),
                failed: gauges.failed.load(Relaxed),
                delivered: gauges.delivered.load(Relaxed),
                arrived: gauges.arrived.load(Relaxed),
            });
        }
        sum
    }

    /// Gives an order to every thread. A thread that is gone shows when it is collected.
    pub(super) fn order(&self, order: &Order) {
        for thread in &self.0 {
            let _ = thread.orders.send(order.clone());
        }
    }

    /// Ends the threads and returns what each found.
    ///
    /// # Errors
    /// A thread panicked.
    pub(super) fn collect(self) -> io::Result<Vec<Outcome>> {
        self.order(&Order::Stop);
        let join = |thread: Thread| thread.handle.join().map_err(|_| io::Error::other("a thread of viewers panicked"));
        self.0.into_iter().map(join).collect()
    }
}
