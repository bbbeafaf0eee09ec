//! What crosses cores with a descriptor in it, and the mailboxes that tie the cores together.
//!
//! Always true: an owned descriptor travels inside its letter, so that a letter which is dropped closes it; nothing is
//! in flight on it when it is sent.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::admission::blocklist::Blocklist;
use crate::base::{AppId, ShardId};
use crate::post::letters::{Seat, ToOrchestrator, ToShard};
use crate::post::mailbox::{Doorbell, Receiver, Sender, mailbox};
use crate::post::presence::{PresenceDoors, ToPresence};
use crate::post::report::Report;
use crate::store::chore::ChoreDone;
use crate::store::{Appended, FirstAnswer, Page, StoreError, StoredEvent};
use crate::wire::sealed::Sealed;

/// A socket on its way to the shard that owns its room.
#[derive(Debug)]
pub struct Handoff {
    /// What it claims.
    pub seat: Seat,
    /// The socket.
    pub fd: OwnedFd,
    /// Bytes that were read behind its head.
    pub leftover: Vec<u8>,
}

/// Lists of texts that are not allowed, with their apps.
pub type Blocklists = Arc<Vec<(AppId, Blocklist)>>;

/// How many letters each kind of mailbox holds.
#[derive(Clone, Copy, Debug)]
pub struct MailboxSizes {
    /// Answers to one shard: at least as many as it may have questions.
    pub answers: usize,
    /// Sockets to one shard.
    pub seats: usize,
    /// Events to one shard, and to one partition; more than the orchestrator's credits.
    pub events: usize,
    /// Letters about presence to one partition.
    pub presence: usize,
    /// Letters to the orchestrator.
    pub orchestrator: usize,
}

/// The sending ends to one shard.
#[derive(Clone, Debug)]
pub struct ShardDoors {
    /// Answers of the orchestrator.
    pub answers: Sender<ToShard>,
    /// Sockets.
    pub seats: Sender<Handoff>,
    /// Events that have their order.
    pub events: Sender<Sealed>,
    /// Events that this shard's partition gives their order.
    pub partition: Sender<Sealed>,
    /// Lists that were read again; only the newest count.
    pub blocklists: Sender<Blocklists>,
    /// What shards hold of the channels whose partition this shard is, and questions about them.
    pub presence: Sender<ToPresence>,
}

/// The receiving ends of one shard.
#[derive(Debug)]
pub struct ShardInbox {
    /// Its bell.
    pub door: Arc<Doorbell>,
    /// See [`ShardDoors`].
    pub answers: Receiver<ToShard>,
    /// See [`ShardDoors`].
    pub seats: Receiver<Handoff>,
    /// See [`ShardDoors`].
    pub events: Receiver<Sealed>,
    /// See [`ShardDoors`].
    pub partition: Receiver<Sealed>,
    /// See [`ShardDoors`].
    pub blocklists: Receiver<Blocklists>,
    /// See [`ShardDoors`].
    pub presence: Receiver<ToPresence>,
}

impl ShardInbox {
    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
            && self.seats.is_empty()
            && self.events.is_empty()
            && self.partition.is_empty()
            && self.blocklists.is_empty()
            && self.presence.is_empty()
    }
}

/// What the store says to the orchestrator.
#[derive(Debug)]
pub enum StoreNews {
    /// The batch under way.
    Committed(Result<Vec<Appended>, StoreError>),
    /// A page.
    Read(u64, Result<Page, StoreError>),
    /// One event that was looked for.
    Found(u64, Result<Option<Box<StoredEvent>>, StoreError>),
    /// What was answered to the first call with a key.
    Answered(u64, Result<Option<FirstAnswer>, StoreError>),
    /// A ban that was written down or taken off.
    BanSaved(u64, Result<(), StoreError>),
    /// An alarm or some housekeeping.
    Chore(ChoreDone),
}

/// The sending ends to the orchestrator, as one shard holds them.
#[derive(Clone, Debug)]
pub struct OrchestratorDoors {
    /// Letters.
    pub letters: Sender<ToOrchestrator>,
    /// This shard's report; a newer one replaces an unread older one.
    pub report: Sender<Report>,
    /// What this shard's partition has placed in every mailbox; only the newest counts.
    pub placed: Sender<u64>,
}

/// The receiving ends of the orchestrator.
#[derive(Debug)]
pub struct OrchestratorInbox {
    /// Its bell.
    pub door: Arc<Doorbell>,
    /// Letters of all shards.
    pub letters: Receiver<ToOrchestrator>,
    /// One place a shard.
    pub reports: Vec<Receiver<Report>>,
    /// One place a shard.
    pub placed: Vec<Receiver<u64>>,
    /// Of the store's threads.
    pub news: Receiver<StoreNews>,
}

impl OrchestratorInbox {
    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
            && self.news.is_empty()
            && self.reports.iter().all(Receiver::is_empty)
            && self.placed.iter().all(Receiver::is_empty)
    }
}

/// All mailboxes of a node.
#[derive(Debug)]
pub struct PostOffice {
    /// To each shard.
    pub to_shards: Vec<ShardDoors>,
    /// Of each shard.
    pub inboxes: Vec<ShardInbox>,
    /// To the orchestrator, as each shard holds it.
    pub to_orchestrator: Vec<OrchestratorDoors>,
    /// Of the orchestrator.
    pub orchestrator: OrchestratorInbox,
    /// For the store's threads.
    pub news: Sender<StoreNews>,
}

impl PostOffice {
    /// The mailboxes of a node of `shards` shards.
    #[must_use]
    pub fn new(shards: u16, sizes: MailboxSizes) -> Self {
        let (mut to_shards, mut inboxes, mut to_orchestrator) = (Vec::new(), Vec::new(), Vec::new());
        let door = Doorbell::new();
        let (letters_in, letters) = mailbox(sizes.orchestrator, &door);
        let (news_in, news) = mailbox(sizes.orchestrator, &door);
        let (mut reports, mut placed) = (Vec::new(), Vec::new());
        for _ in 0..shards {
            let own = Doorbell::new();
            let (answers_in, answers) = mailbox(sizes.answers, &own);
            let (seats_in, seats) = mailbox(sizes.seats, &own);
            let (events_in, events) = mailbox(sizes.events, &own);
            let (partition_in, partition) = mailbox(sizes.events, &own);
            let (blocklists_in, blocklists) = mailbox(1, &own);
            let (presence_in, presence) = mailbox(sizes.presence, &own);
            to_shards.push(ShardDoors {
                answers: answers_in,
                seats: seats_in,
                events: events_in,
                partition: partition_in,
                blocklists: blocklists_in,
                presence: presence_in,
            });
            inboxes.push(ShardInbox { door: own, answers, seats, events, partition, blocklists, presence });
            let (report_in, report) = mailbox(1, &door);
            let (placed_in, placed_out) = mailbox(1, &door);
            reports.push(report);
            placed.push(placed_out);
            let letters = letters_in.clone();
            to_orchestrator.push(OrchestratorDoors { letters, report: report_in, placed: placed_in });
        }
        let orchestrator = OrchestratorInbox { door, letters, reports, placed, news };
        Self { to_shards, inboxes, to_orchestrator, orchestrator, news: news_in }
    }
}

/// The mailboxes of all shards, as a partition offers events to them and presence puts letters into them.
pub struct EventDoors<'a> {
    /// Whose partition offers.
    pub doors: &'a [ShardDoors],
    /// Ephemeral events find a mailbox full while so many places are left: they are kept for events with a credit.
    pub reserve: usize,
    /// Which shards must be rung, by number.
    pub rung: &'a mut [bool],
}

impl crate::bus::Outgoing for EventDoors<'_> {
    fn offer(&mut self, shard: ShardId, sealed: &Sealed) -> bool {
        let at = usize::from(shard.0);
        if !crate::bus::has_credit(sealed) && self.doors[at].events.room() <= self.reserve {
            return false;
        }
        let placed = self.doors[at].events.push(sealed.clone()).is_ok();
        self.rung[at] |= placed;
        placed
    }
}

impl PresenceDoors for EventDoors<'_> {
    fn tell(&mut self, to: ShardId, letter: ToPresence) -> Result<(), ToPresence> {
        let at = usize::from(to.0);
        self.doors[at].presence.push(letter)?;
        self.rung[at] = true;
        Ok(())
    }

    fn answer(&mut self, to: ShardId, letter: ToShard) -> Result<(), ToShard> {
        let at = usize::from(to.0);
        self.doors[at].answers.push(letter)?;
        self.rung[at] = true;
        Ok(())
    }
}
