//! Every letter that crosses cores.

use super::connections::{Connections, ConnectionsAsk};
use super::presence::Audience;
use crate::base::{AppId, ChannelKey, ClientId, Given, Name, RoomId, ShardId, Ulid};
use crate::wire::event::{EventKind, KindSet};
use crate::wire::http::Dialect;
use crate::wire::position::Since;
use crate::wire::problem::Problem;
use crate::wire::sealed::Sealed;
use crate::wire::topic::Topic;

/// An address as it is counted: IPv4 whole, IPv6 by /64. Exempt addresses (loopback, listed proxies) have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressKey {
    /// An IPv4 address.
    V4(u32),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

/// Who a connection or request speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `sub` of the token.
    pub user: Name,
    /// The name to show.
    pub name: String,
    /// May watch, and read what is stored.
    pub read: bool,
    /// May post messages.
    pub write: bool,
    /// May react to messages.
    pub react: bool,
    /// May say that it types.
    pub typing: bool,
    /// May send custom events.
    pub custom: bool,
    /// Patterns of the channels it may touch; `None` is all.
    pub channels: Option<Vec<String>>,
    /// Tags of its connections.
    pub tags: Vec<Name>,
    /// When the token ends, in Unix milliseconds.
    pub expires_ms: u64,
    /// Channels from which it was banned while this connection lives, each until its time in Unix milliseconds or for good.
    pub banned: Vec<(String, Option<u64>)>,
}

impl Identity {
    /// A ban of this channel was told and is in force, as far as is known here.
    #[must_use]
    pub fn is_banned(&self, channel: &str, now_wall_ms: u64) -> bool {
        let in_force = |until: Option<u64>| until.is_none_or(|until_ms| until_ms > now_wall_ms);
        self.banned.iter().any(|(name, until)| name == channel && in_force(*until))
    }

    /// The token lets it touch this channel.
    #[must_use]
    pub fn may_touch(&self, channel: &str) -> bool {
        self.channels.as_ref().is_none_or(|patterns| {
            patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => channel.starts_with(prefix),
                None => pattern == channel,
            })
        })
    }
}

/// What an upgrade asks for, after it was checked: travels with the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinSpec {
    /// The tenant's place in the configuration.
    pub app: AppId,
    /// The tenant.
    pub app_name: Name,
    /// The channel, if the connection begins with one.
    pub channel: Option<Topic>,
    /// Who it is; `None` reads anonymously.
    pub identity: Option<Identity>,
    /// A position to resume from.
    pub since: Option<Since>,
    /// Which types to deliver.
    pub filter: KindSet,
    /// `health.check` so often, in seconds; 0 is never.
    pub heartbeat_s: u16,
    /// What its frames look like.
    pub dialect: Dialect,
    /// The answer names the dialect.
    pub names_dialect: bool,
    /// `Sec-WebSocket-Accept`.
    pub accept: String,
    /// The page it comes from, which may read the answer.
    pub cors_origin: Option<String>,
    /// The address it counts under.
    pub address: Option<AddressKey>,
    /// How many rooms refused it so far.
    pub attempts: u8,
}

/// The claim a socket carries to its shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// What it asks for.
    pub spec: JoinSpec,
    /// The room.
    pub given: Given,
    /// The shard that asked.
    pub asker: ShardId,
}

/// A stored event that passed the shard's checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// `message.new`, or what it does to a message.
    pub kind: EventKind,
    /// The message that a change, deletion or reaction speaks of.
    pub target: Option<Ulid>,
    /// The kind of a reaction.
    pub detail: Option<String>,
    /// The tenant's place in the configuration.
    pub app: AppId,
    /// Where.
    pub topic: Topic,
    /// The author; empty if a server key names none.
    pub user_id: String,
    /// The name to show.
    pub user_name: String,
    /// What.
    pub text: Option<String>,
    /// What, as JSON.
    pub data: Option<String>,
    /// Echoed in the ack.
    pub client_id: Option<String>,
    /// A repeat with the same key gets the first answer.
    pub idempotency_key: Option<String>,
    /// A server key posts: no rate per user.
    pub by_server: bool,
}

impl Draft {
    /// Its text and data, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        (self.text.as_ref().map_or(0, String::len) + self.data.as_ref().map_or(0, String::len)) as u32
    }

    /// Whose wait for the next message is over if this one is not stored: slow mode counts the new messages of users.
    #[must_use]
    pub fn author_to_forgive(&self) -> Option<(ChannelKey, String)> {
        let counts = !self.by_server && self.kind == EventKind::MessageNew;
        counts.then(|| (ChannelKey::new(self.topic.app.clone(), self.topic.name.clone()), self.user_id.clone()))
    }
}

/// A ban. There is one slot for each app, user and channel, and one for the user in the whole app.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ban {
    /// The tenant.
    pub app: Name,
    /// Who.
    pub user: Name,
    /// Only there.
    pub channel: Option<Name>,
    /// Until then, in Unix milliseconds; `None` is for good.
    pub expires_ms: Option<u64>,
}

/// What a backend lets happen in a channel; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Between two messages of one user, in seconds.
    pub slow_mode_s: u32,
    /// Messages of all together in a second.
    pub messages_per_s: u32,
}

/// Which stored events of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// The newest.
    Latest,
    /// Those before this seq, the newest of them.
    Before(u64),
    /// Those after this seq, the oldest of them.
    Since(u64),
}

/// A page of stored events, ready to be sent.
#[derive(Clone, Debug)]
pub struct Page {
    /// The numbering.
    pub epoch: u64,
    /// The last stored seq.
    pub head: u64,
    /// The lowest seq that is still stored; `head + 1` if none is.
    pub first_kept: u64,
    /// In the order of their seqs.
    pub events: Vec<Sealed>,
}

/// What an accepted message became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its id.
    pub id: Ulid,
    /// Its number.
    pub seq: u64,
    /// The numbering.
    pub epoch: u64,
    /// When it was taken, in Unix milliseconds.
    pub created_at_ms: u64,
}

/// Refusals of a seat, by their codes, after which the connection is not counted.
pub const COUNTED_NOT: [&str; 2] = ["address_full", "app_connections_full"];

/// From a shard to the orchestrator. `ticket` is the shard's own number for the answer to come.
#[derive(Debug)]
pub enum ToOrchestrator {
    /// A seat, please.
    AskSeat {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// The tenant's place in the configuration.
        app: AppId,
        /// It is the first question of a connection, which is counted now: under its app, and under its address if it has
        /// one. If the answer is one of [`COUNTED_NOT`], it was not.
        first: bool,
        /// The channel; without one the connection is only counted.
        channel: Option<Topic>,
        /// Who it is for: a banned user gets no seat.
        user: Option<(Name, Name)>,
        /// The address to count.
        address: Option<AddressKey>,
        /// Which try of this viewer it is: 1, 2, 3 …
        attempt: u8,
        /// This room said it is full.
        refused: Option<RoomId>,
        /// The seat must be on the asking shard, for the socket lies there.
        here: bool,
    },
    /// That seat was not taken.
    GiveBack {
        /// Who had asked.
        asker: ShardId,
        /// The seat's number.
        number: u64,
    },
    /// Connections ended that were counted: so many of each address, and of each app.
    Released {
        /// By address.
        addresses: Vec<(AddressKey, u32)>,
        /// By app.
        apps: Vec<(AppId, u32)>,
    },
    /// Store and publish this.
    Post {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// What.
        draft: Box<Draft>,
    },
    /// Stored events, please.
    AskPage {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// Of this channel.
        topic: Topic,
        /// Which.
        range: Range,
        /// At most so many.
        limit: u32,
    },
    /// Publish this critical event; it takes a credit, as a stored one does.
    Publish {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// What.
        sealed: Sealed,
    },
    /// May this user say something in this channel that is not stored?
    AskWord {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// The tenant's place in the configuration.
        app: AppId,
        /// Where.
        channel: Topic,
        /// Who.
        user: Name,
    },
    /// Ban a user, or lift a ban.
    Ban {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// Whom.
        ban: Ban,
        /// It is lifted.
        lift: bool,
    },
    /// A connection is this user's from now on: [`ToShard::Bans`] tells it the bans in force, if there are any.
    AskBans {
        /// Where it is.
        asker: ShardId,
        /// Which.
        client: ClientId,
        /// Of this app.
        app: Name,
        /// Whose.
        user: Name,
    },
    /// Set the alarm of a channel, or clear it.
    ChangeAlarm {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// Whose slot.
        key: ChannelKey,
        /// When, in Unix milliseconds, and the event as JSON; `None` clears it.
        set: Option<(u64, String)>,
    },
    /// Set what may happen in a channel.
    SetLimits {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// Which channel.
        key: ChannelKey,
        /// Its limits.
        limits: ChannelLimits,
    },
    /// Who is connected, here and elsewhere?
    AskConnections {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// Which connections.
        ask: Box<ConnectionsAsk>,
    },
    /// Who is connected to this shard, as [`ToShard::ListConnections`] asked.
    ConnectionsPart {
        /// The question's.
        number: u64,
        /// Who answers.
        shard: ShardId,
        /// Its connections.
        part: Connections,
    },
}

/// From the orchestrator, or from a partition shard, to a shard: answers, which always find room, for a shard has no more
/// tickets than its mailbox has places; and a few questions, whose number is bounded.
#[derive(Debug)]
pub enum ToShard {
    /// The seat, or why not.
    SeatAnswer {
        /// Whose question.
        ticket: u64,
        /// The room; `None` where no channel was asked for.
        answer: Result<Option<Given>, Problem>,
    },
    /// The message is durable, or why not.
    PostAnswer {
        /// Whose question.
        ticket: u64,
        /// What it became.
        answer: Result<Posted, Problem>,
    },
    /// The stored events, or why not.
    PageAnswer {
        /// Whose question.
        ticket: u64,
        /// The page.
        answer: Result<Page, Problem>,
    },
    /// It is done, or why not.
    Done {
        /// Whose question.
        ticket: u64,
        /// Nothing more to say.
        answer: Result<(), Problem>,
    },
    /// A connection's user is banned: the events that say so.
    Bans {
        /// Which connection.
        client: ClientId,
        /// One a ban, the one of the whole app first.
        told: Vec<Sealed>,
    },
    /// Who watches a channel, as its partition shard knows.
    AudienceAnswer {
        /// Whose question.
        ticket: u64,
        /// Who.
        audience: Audience,
    },
    /// Who is connected, or why that is not known.
    ConnectionsAnswer {
        /// Whose question.
        ticket: u64,
        /// The connections.
        answer: Result<Connections, Problem>,
    },
    /// Who is connected to this shard? [`ToOrchestrator::ConnectionsPart`] answers.
    ListConnections {
        /// For the answer.
        number: u64,
        /// Which connections.
        ask: Box<ConnectionsAsk>,
    },
    /// Close everybody, spread over so many milliseconds, and say when to come back.
    Drain {
        /// The period.
        spread_ms: u32,
    },
}
