//! The store's threads: one commits, one reads pages, both pinned to the orchestrator's core.
//!
//! Batches and questions flow in over bounded channels, results flow back as [`StoreNews`]. Always true: a commit may
//! take 50 ms on a busy disk and nobody waits for it but those whose messages it carries; and a disk that takes nothing
//! is told of once, and once when it does again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::handoff::StoreNews;
use super::machine::pin_to;
use crate::base::{ChannelKey, Gauge, RoomChange, Ulid};
use crate::post::letters::Ban;
use crate::post::mailbox::Sender;
use crate::store::chore::Chore;
use crate::store::group::Batch;
use crate::store::{PageAsk, Pages, Store, StoreError};

/// Places for the committing thread's work. One batch is under way at a time; the others are for bans and chores, and for
/// rooms, which may be skipped.
const JOBS_MAX: usize = 64;

/// How much work waits in one channel. Whoever puts it in counts it before, and the thread after it has taken it out, so
/// the count is never too low, and at most by one too high.
#[derive(Debug)]
struct Waiting {
    used: AtomicU64,
    limit: usize,
}

impl Waiting {
    fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), limit })
    }

    /// Sends what is counted while it waits.
    fn send<T>(&self, door: &SyncSender<T>, work: T) -> Result<(), TrySendError<T>> {
        self.used.fetch_add(1, Ordering::Relaxed);
        let sent = door.try_send(work);
        if sent.is_err() {
            self.taken();
        }
        sent
    }

    fn taken(&self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    fn gauge(&self) -> Gauge {
        Gauge::new(self.used.load(Ordering::Relaxed).min(self.limit as u64), self.limit as u64)
    }
}

/// How much waits for the store's threads, for whoever shows it.
#[derive(Clone, Debug)]
pub struct StoreQueues {
    jobs: Arc<Waiting>,
    reads: Arc<Waiting>,
}

impl StoreQueues {
    /// Queues to which nobody has come.
    #[must_use]
    pub fn new(reads_max: usize) -> Self {
        Self { jobs: Waiting::new(JOBS_MAX), reads: Waiting::new(reads_max.max(1)) }
    }

    /// Work for the committing thread and for the reading one.
    #[must_use]
    pub fn gauges(&self) -> [(&'static str, Gauge); 2] {
        [("store_jobs", self.jobs.gauge()), ("store_reads", self.reads.gauge())]
    }
}

/// Work for the committing thread.
enum Job {
    Commit(Batch, u64),
    SaveRooms(Vec<RoomChange>),
    SaveBan(u64, Ban, bool),
    Chore(Chore),
}

/// Work for the reading thread.
struct Read {
    number: u64,
    what: What,
}

enum What {
    Page(ChannelKey, PageAsk),
    Event(ChannelKey, Ulid),
    /// Of an idempotency key, as honoured at this moment in Unix milliseconds.
    FirstAnswer(u64, String),
}

/// The doors to both threads.
#[derive(Debug)]
pub struct Committer {
    jobs: Option<SyncSender<Job>>,
    reads: Option<SyncSender<Read>>,
    writer: Option<JoinHandle<()>>,
    reader: Option<JoinHandle<()>>,
    queues: StoreQueues,
    news: Sender<StoreNews>,
    /// Nobody takes news out any more.
    ended: Arc<AtomicBool>,
}

impl Committer {
    /// Starts both threads on `cpu`.
    ///
    /// # Errors
    /// The system has no thread for us.
    pub fn start<S: Store + Send + 'static, P: Pages + Send + 'static>(
        store: S,
        pages: P,
        cpu: usize,
        news: Sender<StoreNews>,
        reads_max: usize,
    ) -> std::io::Result<Self> {
        let queues = StoreQueues::new(reads_max);
        let (jobs, job_receiver) = sync_channel(queues.jobs.limit);
        let (reads, read_receiver) = sync_channel(queues.reads.limit);
        let (jobs_waiting, reads_waiting) = (Arc::clone(&queues.jobs), Arc::clone(&queues.reads));
        let ended = Arc::new(AtomicBool::new(false));
        let commit_news = News { door: news.clone(), ended: Arc::clone(&ended) };
        let read_news = News { door: news.clone(), ended: Arc::clone(&ended) };
        let writer = Builder::new().name("committer".into()).spawn(move || {
            pin_to(cpu);
            commit_all(store, &Inbox { work: job_receiver, waiting: jobs_waiting }, &commit_news);
        })?;
        let reader = Builder::new().name("reader".into()).spawn(move || {
            pin_to(cpu);
            read_all(pages, &Inbox { work: read_receiver, waiting: reads_waiting }, &read_news);
        })?;
        let (writer, reader) = (Some(writer), Some(reader));
        Ok(Self { jobs: Some(jobs), reads: Some(reads), writer, reader, queues, news, ended })
    }

    /// What waits for the threads.
    #[must_use]
    pub fn queues(&self) -> StoreQueues {
        self.queues.clone()
    }

    fn give(&self, job: Job) -> Result<(), TrySendError<Job>> {
        match &self.jobs {
            Some(jobs) => self.queues.jobs.send(jobs, job),
            None => Err(TrySendError::Disconnected(job)),
        }
    }

    /// Commits a batch; the result comes as news.
    pub fn commit(&self, batch: Batch, now_wall_ms: u64) {
        if self.give(Job::Commit(batch, now_wall_ms)).is_err() {
            // The thread is gone, or took none for so long that its queue is full: nobody may be told "durable".
            let failed = StoreError::Io("the committing thread does not answer".to_owned());
            let _ = self.news.push(StoreNews::Committed(Err(failed)));
        }
    }

    /// Writes the rooms down, when there is time: a seat never waits for it, and the next change writes it again.
    pub fn save_rooms(&self, changes: Vec<RoomChange>) {
        let _ = self.give(Job::SaveRooms(changes));
    }

    /// Writes a ban down, or takes it off; the result comes as news.
    pub fn save_ban(&self, number: u64, ban: Ban, lift: bool) {
        if self.give(Job::SaveBan(number, ban, lift)).is_err() {
            let _ = self.news.push(StoreNews::BanSaved(number, Err(StoreError::Busy)));
        }
    }

    /// Does a chore; what became of it comes as news.
    pub fn chore(&self, chore: Chore) {
        if let Err(TrySendError::Full(Job::Chore(chore)) | TrySendError::Disconnected(Job::Chore(chore))) =
            self.give(Job::Chore(chore))
        {
            let _ = self.news.push(StoreNews::Chore(chore.refused(StoreError::Busy)));
        }
    }

    /// Reads a page; it comes as news.
    pub fn read(&self, number: u64, key: ChannelKey, ask: PageAsk) {
        if !self.ask(Read { number, what: What::Page(key, ask) }) {
            let _ = self.news.push(StoreNews::Read(number, Err(StoreError::Busy)));
        }
    }

    /// Looks for one event; it comes as news.
    pub fn find(&self, number: u64, key: ChannelKey, id: Ulid) {
        if !self.ask(Read { number, what: What::Event(key, id) }) {
            let _ = self.news.push(StoreNews::Found(number, Err(StoreError::Busy)));
        }
    }

    /// Looks for what was answered to the first call with this idempotency key; it comes as news.
    pub fn first_answer(&self, number: u64, now_wall_ms: u64, key: String) {
        if !self.ask(Read { number, what: What::FirstAnswer(now_wall_ms, key) }) {
            let _ = self.news.push(StoreNews::Answered(number, Err(StoreError::Busy)));
        }
    }

    fn ask(&self, read: Read) -> bool {
        self.reads.as_ref().is_some_and(|reads| self.queues.reads.send(reads, read).is_ok())
    }

    /// Ends both threads after what they have; the database is closed when this returns.
    pub fn stop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The reader goes first: only the last connection moves the log into the database, and only the writer may.
        self.reads = None;
        let _ = self.reader.take().map(JoinHandle::join);
        self.jobs = None;
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

/// The receiving end of a channel whose work is counted.
struct Inbox<T> {
    work: Receiver<T>,
    waiting: Arc<Waiting>,
}

impl<T> Inbox<T> {
    /// The next piece; `None` when there will be none.
    fn next(&self) -> Option<T> {
        self.work.recv().ok().inspect(|_| self.waiting.taken())
    }

    /// The next piece, if it is there already.
    fn next_now(&self) -> Option<T> {
        self.work.try_recv().ok().inspect(|_| self.waiting.taken())
    }
}

fn commit_all<S: Store>(mut store: S, jobs: &Inbox<Job>, news: &News) {
    let mut health = Health::default();
    let mut next = None;
    while let Some(job) = next.take().or_else(|| jobs.next()) {
        match job {
            Job::Commit(batch, now_wall_ms) => {
                let result = store.commit(now_wall_ms, batch.events());
                // The orchestrator takes the events back without a copy if nobody else holds them.
                drop(batch);
                health.learn(&result);
                news.tell(StoreNews::Committed(result));
            }
            Job::SaveBan(number, ban, lift) => {
                let result = if lift {
                    store.ban_clear(&ban.app, &ban.user, ban.channel.as_ref()).map(|_| ())
                } else {
                    store.ban_set(&ban)
                };
                health.learn(&result);
                news.tell(StoreNews::BanSaved(number, result));
            }
            Job::Chore(chore) if chore.is_alarm_change() => {
                // Whoever waits with the same wish shares the sync, so that posts wait behind one of them and not behind all.
                let mut chores = vec![chore];
                while next.is_none()
                    && let Some(job) = jobs.next_now()
                {
                    match job {
                        Job::Chore(chore) if chore.is_alarm_change() => chores.push(chore),
                        other => next = Some(other),
                    }
                }
                for done in Chore::work_together(chores, &mut store) {
                    news.tell(StoreNews::Chore(done));
                }
            }
            Job::Chore(chore) => news.tell(StoreNews::Chore(chore.work(&mut store))),
            // Nobody waits for it: the next change of these rooms writes them again.
            Job::SaveRooms(changes) => health.learn(&store.rooms_save(&changes)),
        }
    }
    if let Err(error) = store.close() {
        eprintln!("ringcast: closing the database: {error}");
    }
}

/// Whether the store takes writes, as far as the log knows.
#[derive(Debug, Default)]
struct Health {
    fails: bool,
}

impl Health {
    fn learn<T>(&mut self, result: &Result<T, StoreError>) {
        match result {
            Err(error) if !self.fails => {
                self.fails = true;
                eprintln!("ringcast: the store takes nothing, and nothing is acknowledged until it does: {error}");
            }
            Ok(_) if self.fails => {
                self.fails = false;
                eprintln!("ringcast: the store takes writes again");
            }
            _ => {}
        }
    }
}

fn read_all<P: Pages>(mut pages: P, reads: &Inbox<Read>, news: &News) {
    while let Some(Read { number, what }) = reads.next() {
        news.tell(match what {
            What::Page(key, ask) => StoreNews::Read(number, pages.page(&key, ask)),
            What::Event(key, id) => StoreNews::Found(number, pages.find(&key, id).map(|found| found.map(Box::new))),
            What::FirstAnswer(now_wall_ms, key) => StoreNews::Answered(number, pages.first_answer(now_wall_ms, &key)),
        });
    }
}

/// The mailbox that both threads fill.
struct News {
    door: Sender<StoreNews>,
    ended: Arc<AtomicBool>,
}

impl News {
    /// If the mailbox is full, the thread waits for the orchestrator, which takes the news out without waiting for
    /// anybody: the answer of a batch that was dropped here would leave it under way for good.
    fn tell(&self, mut item: StoreNews) {
        while let Err(back) = self.door.push(item) {
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            item = back;
            self.door.ring();
            std::thread::yield_now();
        }
        self.door.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_until_it_is_taken_and_what_does_not_fit_is_not() {
        let queues = StoreQueues::new(2);
        let (door, work) = sync_channel(2);
        let inbox = Inbox { work, waiting: Arc::clone(&queues.reads) };
        let send = |n: u32| queues.reads.send(&door, n);
        let gauge = || queues.gauges()[1];
        assert_eq!(gauge(), ("store_reads", Gauge::new(0, 2)));
        assert!(send(1).is_ok() && send(2).is_ok());
        assert!(gauge().1.is_full());
        assert_eq!(send(3), Err(TrySendError::Full(3)));
        assert_eq!((gauge().1.used, inbox.next(), gauge().1.used), (2, Some(1), 1));
        assert_eq!((inbox.next_now(), inbox.next_now(), gauge().1.used), (Some(2), None, 0));
        drop(inbox);
        assert_eq!((send(4), gauge().1.used), (Err(TrySendError::Disconnected(4)), 0));
        assert_eq!(queues.gauges()[0], ("store_jobs", Gauge::new(0, 64)));
    }
}
