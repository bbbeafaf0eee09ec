//! The viewers of one process: a few threads, each a deck of its own.
//!
//! A plan and orders flow in, progress and an outcome flow out; what is always true is that the threads share nothing
//! but the gauges they show.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::deck::{Deck, Gauges, Settled};
use super::plan::{Order, Outcome, Plan, Progress};

struct Thread {
    orders: Sender<Order>,
    gauges: Arc<Gauges>,
    handle: JoinHandle<Settled>,
}

/// The threads.
pub(super) struct Fleet {
    threads: Vec<Thread>,
    /// What the threads left open, until the fleet is dropped.
    open: Vec<TcpStream>,
}

impl Fleet {
    /// Starts the joins of all viewers of `plan`.
    pub(super) fn launch(plan: &Plan) -> io::Result<Self> {
        let threads = plan.threads.clamp(1, plan.count.max(1));
        let each = plan.count / threads;
        let mut fleet = Self { threads: Vec::new(), open: Vec::new() };
        for number in 0..threads {
            let first = plan.first + number * each;
            let count = if number + 1 == threads { plan.count - number * each } else { each };
            let (orders, inbox) = channel();
            let gauges = Arc::<Gauges>::default();
            let deck = Deck::new(plan.part(first, count), inbox, Arc::clone(&gauges))?;
            let handle = std::thread::Builder::new().name(format!("viewers-{number}")).spawn(move || deck.run())?;
            fleet.threads.push(Thread { orders, gauges, handle });
        }
        Ok(fleet)
    }

    /// How many threads there are; as many arrive.
    pub(super) fn threads(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Where the threads are.
    pub(super) fn progress(&self) -> Progress {
        let mut sum = Progress::default();
        for Thread { gauges, .. } in &self.threads {
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
        for thread in &self.threads {
            let _ = thread.orders.send(order.clone());
        }
    }

    /// Ends the threads and returns what each found; to be ordered to stop before. Their connections stay open until the fleet is dropped, so that nobody
    /// who is not asked yet is told of their leaving.
    ///
    /// # Errors
    /// A thread panicked.
    pub(super) fn collect(&mut self) -> io::Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for thread in self.threads.drain(..) {
            let settled = thread.handle.join().map_err(|_| io::Error::other("a thread of viewers panicked"))?;
            outcomes.push(settled.outcome);
            self.open.extend(settled.open);
        }
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::TcpListener;

    use super::*;
    use crate::load::plan::tests::plan;

    #[test]
    fn connections_outlive_the_outcome() {
        let node = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = Plan { addr: node.local_addr().unwrap(), ..plan(2, 1, 0.0) };
        let mut fleet = Fleet::launch(&plan).unwrap();
        let mut peers: Vec<TcpStream> = (0..2).map(|_| node.accept().unwrap().0).collect();
        let mut part = [0; 4_096];
        for peer in &mut peers {
            assert!(peer.read(&mut part).unwrap() > 0, "the upgrade");
        }
        fleet.order(&Order::Stop);
        assert_eq!(fleet.collect().unwrap().len() as u32, plan.threads.clamp(1, 2));
        for peer in &mut peers {
            peer.set_nonblocking(true).unwrap();
            assert_eq!(peer.read(&mut part).unwrap_err().kind(), ErrorKind::WouldBlock);
            peer.set_nonblocking(false).unwrap();
        }
        drop(fleet);
        for peer in &mut peers {
            assert_eq!(peer.read(&mut part).unwrap(), 0);
        }
    }
}
