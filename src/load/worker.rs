//! More viewers than one process has descriptors: worker processes that each carry a part of the audience.
//!
//! A plan and orders flow to a worker as lines of JSON on its standard input, progress and outcomes flow back the same
//! way on its standard output; what is always true is that times compare, because every process reads the machine's
//! monotonic clock, and that a worker ends when its conductor does.

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

use super::fleet::Fleet;
use super::kernel;
use super::plan::{Order, Outcome, Plan, Progress};
use crate::io::machine;

/// How often a worker says where it is.
const PACE: Duration = Duration::from_millis(50);
/// How long the outcomes may take once they were asked for.
const COLLECT: Duration = Duration::from_secs(15);

/// What a worker says.
#[derive(Serialize, Deserialize)]
enum News {
    Progress(Progress),
    Outcome(Vec<Outcome>),
}

/// A part of the audience, in this process or in another.
pub(super) enum Crew {
    /// Threads of this process.
    Here(Fleet),
    /// A worker.
    There(Box<Worker>),
}

/// The conductor's end of a worker process.
pub(super) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    news: Receiver<News>,
    progress: Progress,
    threads: u32,
    plan: Plan,
    gone: bool,
}

/// Reads lines of JSON in a thread of its own until they end.
fn lines<T: for<'a> Deserialize<'a> + Send + 'static>(
    name: &str,
    input: impl io::Read + Send + 'static,
) -> io::Result<Receiver<T>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        for line in BufReader::new(input).lines() {
            let Ok(Ok(value)) = line.map(|line| serde_json::from_str(&line)) else { return };
            if sender.send(value).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

fn put_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

impl Crew {
    /// Launches the audience: in this process if it has the descriptors, else in as many workers as it takes.
    pub(super) fn launch(plan: &Plan, viewers_a_process: u32) -> io::Result<Vec<Self>> {
        if plan.count <= viewers_a_process {
            return Ok(vec![Self::Here(Fleet::launch(plan)?)]);
        }
        let workers = plan.count.div_ceil(viewers_a_process);
        let (each, more) = (plan.count / workers, plan.count % workers);
        let mut first = plan.first;
        (0..workers)
            .map(|number| {
                let count = each + u32::from(number < more);
                let part = plan.part(first, count);
                first += count;
                Ok(Self::There(Box::new(Worker::launch(part)?)))
            })
            .collect()
    }

    /// How many threads arrive.
    pub(super) fn threads(&self) -> u32 {
        match self {
            Self::Here(fleet) => fleet.threads(),
            Self::There(worker) => worker.threads,
        }
    }

    /// Where the crew is.
    pub(super) fn progress(&mut self) -> Progress {
        match self {
            Self::Here(fleet) => fleet.progress(),
            Self::There(worker) => worker.progress(),
        }
    }

    /// Gives an order.
    pub(super) fn order(&mut self, order: &Order) {
        match self {
            Self::Here(fleet) => fleet.order(order),
            Self::There(worker) => worker.order(order),
        }
    }

    /// Ends the crew and returns what it found; to be ordered to stop before. Its connections stay open until it is dropped.
    pub(super) fn collect(&mut self) -> io::Result<Vec<Outcome>> {
        match self {
            Self::Here(fleet) => fleet.collect(),
            Self::There(worker) => worker.collect(),
        }
    }
}

impl Worker {
    fn launch(plan: Plan) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["load", "--worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        kernel::die_with_parent(&mut command);
        let mut child = command.spawn()?;
        let news = child.stdout.take().map(|out| lines("worker-news", out));
        let news = news.unwrap_or_else(|| Err(io::Error::other("a worker without a standard output")))?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            put_line(stdin, &plan)?;
        }
        let threads = plan.threads.clamp(1, plan.count.max(1));
        Ok(Self { child, stdin, news, progress: Progress::default(), threads, plan, gone: false })
    }

    fn progress(&mut self) -> Progress {
        loop {
            match self.news.try_recv() {
                Ok(News::Progress(progress)) => self.progress = progress,
                // An outcome before it was asked for, or an end: the worker is lost, and nothing of it will arrive.
                Ok(News::Outcome(_)) | Err(TryRecvError::Disconnected) => {
                    self.gone = true;
                    self.progress.arrived = self.threads;
                    self.progress.failed = u64::from(self.plan.count).saturating_sub(self.progress.joined);
                    return self.progress;
                }
                Err(TryRecvError::Empty) => return self.progress,
            }
        }
    }

    fn order(&mut self, order: &Order) {
        if let Some(stdin) = &mut self.stdin {
            self.gone |= put_line(stdin, order).is_err();
        }
    }

    fn collect(&mut self) -> io::Result<Vec<Outcome>> {
        if self.gone {
            return Err(io::Error::other("a worker ended before the run did"));
        }
        loop {
            match self.news.recv_timeout(COLLECT) {
                Ok(News::Progress(_)) => {}
                Ok(News::Outcome(outcomes)) => return Ok(outcomes),
                Err(_) => return Err(io::Error::other("a worker gave no outcome")),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Its input ends with this; the kill is for one that does not notice, the wait leaves no zombie.
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The worker's end: `ringcast load --worker`.
pub(super) fn serve() -> ExitCode {
    machine::raise_nofile();
    match carry() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringcast load worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn carry() -> io::Result<()> {
    let mut first = String::new();
    // By the handle and not by its lock: the thread below reads on from the same buffer.
    io::stdin().read_line(&mut first)?;
    let plan: Plan = serde_json::from_str(&first)?;
    let orders: Receiver<Order> = lines("orders", io::stdin())?;
    let mut fleet = Fleet::launch(&plan)?;
    let mut out = io::stdout();
    loop {
        put_line(&mut out, &News::Progress(fleet.progress()))?;
        match orders.recv_timeout(PACE) {
            Ok(Order::Stop) => {
                fleet.order(&Order::Stop);
                put_line(&mut out, &News::Outcome(fleet.collect()?))?;
                // Connections end when the conductor has heard every worker.
                while orders.recv().is_ok() {}
                return Ok(());
            }
            Ok(order) => fleet.order(&order),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;

    #[test]
    fn what_crosses_to_a_worker_comes_out_the_same() {
        let plan = plan(10, 3, 0.1);
        let back: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(format!("{plan:?}"), format!("{back:?}"));
        let mut outcome = Outcome::default();
        outcome.healthy.closes.insert(4508, 2);
        outcome.join_failures.insert(503, 1);
        let news = serde_json::to_string(&News::Outcome(vec![outcome.clone()])).unwrap();
        let Ok(News::Outcome(back)) = serde_json::from_str(&news) else { panic!("not an outcome") };
        assert_eq!(format!("{:?}", vec![outcome]), format!("{back:?}"));
    }
}
