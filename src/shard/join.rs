//! Flow 1, joining: an upgrade becomes a seat, a seat becomes a client in a room.
//!
//! Always true: a room's cap is checked here whatever the orchestrator believed, and a seat that is not taken is given
//! back. What a connection does to watch its channel stands in `subscribe`.

use super::{Action, GENERATION_MASK, Pending, Place, Shard};
use crate::admission::auth::{Speaker, authenticate};
use crate::base::{AppId, ClientId, Few, Given, Name, Now, ShardId};
use crate::fanout::client::{Client, Phase, Ping};
use crate::fanout::sub::Owed;
use crate::fanout::tick_no::TickNo;
use crate::post::letters::{AddressKey, COUNTED_NOT, Identity, JoinSpec, Seat, ToOrchestrator};
use crate::wire::close::Closing;
use crate::wire::dialect::{Dialect, sse_head};
use crate::wire::http::{Upgrade, switching_protocols};
use crate::wire::problem::Problem;
use crate::wire::reply;
use crate::wire::topic::{Scope, Topic};

/// Where a connection comes from, as far as limits go.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The address that it counts under; `None` is exempt.
    pub address: Option<AddressKey>,
    /// It comes from this machine.
    pub loopback: bool,
}

impl Shard {
    /// A checked upgrade came in. On success the socket waits under the ticket until an action names it.
    ///
    /// # Errors
    /// The answer to give instead: 503 before any token is looked at, 401, 403, 404.
    pub fn on_upgrade(&mut self, now: Now, upgrade: &Upgrade, origin: Origin) -> Result<u64, Problem> {
        let refused = |shard: &Self, problem: Problem| {
            problem.for_page(shard.page_of(upgrade.app.as_str(), upgrade.origin.as_deref()))
        };
        self.ask_in(now, upgrade, origin).map_err(|problem| refused(self, problem))
    }

    fn ask_in(&mut self, now: Now, upgrade: &Upgrade, origin: Origin) -> Result<u64, Problem> {
        self.check_ceilings()?;
        let (app, options) = self.apps.find(upgrade.app.as_str())?;
        options.check_source(origin.loopback)?;
        options.check_origin(upgrade.origin.as_deref())?;
        let mut identity = match authenticate(options, upgrade.token.as_deref(), now.wall_ms)? {
            Speaker::User(identity) => Some(*identity),
            Speaker::Anonymous if options.anonymous_read => None,
            Speaker::Anonymous => return Err(Problem::new(401, "token_needed", "this app asks readers for a token")),
            Speaker::Server => {
                return Err(Problem::new(403, "server_key_on_socket", "a server key does not watch: use a token"));
            }
        };
        if let Some(identity) = &identity {
            must_read(identity)?;
        }
        if let Some(tags) = &upgrade.tags {
            carry(identity.as_mut(), tags)?;
        }
        let channel = upgrade.channel.as_ref().map(|name| self.hasher.topic(Scope::Channel, &upgrade.app, name));
        if let (Some(identity), Some(channel)) = (&identity, &channel)
            && !identity.may_touch(channel.name.as_str())
        {
            return Err(no_right(channel.name.as_str()));
        }
        let spec = JoinSpec {
            app,
            app_name: upgrade.app.clone(),
            channel,
            identity,
            since: upgrade.since,
            filter: upgrade.filter,
            heartbeat_s: upgrade.heartbeat_s.unwrap_or(0),
            dialect: upgrade.dialect,
            names_dialect: upgrade.names_dialect,
            accept: upgrade.accept.clone(),
            cors_origin: upgrade.origin.clone(),
            address: origin.address,
            attempts: 0,
        };
        Ok(self.ask_seat(spec))
    }

    /// 503 while draining or over a ceiling.
    pub(super) fn check_ceilings(&self) -> Result<(), Problem> {
        if self.draining.is_some() {
            return Err(Problem::new(503, "draining", "this node is going away").retry_after(5));
        }
        if self.asks_are_full() {
            return Err(Problem::new(503, "busy", "too many requests wait on this core").retry_after(1));
        }
        if self.memory_full {
            let detail = "this node uses as much memory as it may (limits.memory_mib_max)";
            return Err(Problem::new(503, "memory_full", detail).retry_after(5));
        }
        if self.occupied() >= self.options.clients_max {
            let detail = format!("this core holds its {} connections", self.options.clients_max);
            return Err(Problem::new(503, "connections_full", detail).retry_after(5));
        }
        Ok(())
    }

    /// The first question of a connection: it is counted with it.
    fn ask_seat(&mut self, spec: JoinSpec) -> u64 {
        let (channel, user, address) = (spec.channel.clone(), user_of(&spec), spec.address);
        let (app, attempt) = (spec.app, spec.attempts + 1);
        let ticket = self.ticket(Pending::Join(Box::new(spec)));
        let asker = self.options.id;
        self.actions.push_back(Action::Ask(ToOrchestrator::AskSeat {
            ticket,
            asker,
            app,
            first: true,
            channel,
            user,
            address,
            attempt,
            refused: None,
            here: false,
        }));
        ticket
    }

    /// The waiting socket of this ticket is gone; the answer to come finds nobody.
    pub fn on_join_gone(&mut self, ticket: u64) {
        if let Some(pending) = self.pending.get_mut(&ticket)
            && let Pending::Join(spec) = pending
        {
            *pending = Pending::Left(spec.app, spec.address);
        }
    }

    /// The hand-over of a socket to another shard failed: its mailbox is full.
    pub fn on_hand_over_failed(&mut self, seat: &Seat) {
        self.release(seat.spec.app, seat.spec.address);
        self.give_back(seat.asker, seat.given.number);
    }

    pub(super) fn on_seat_answer(&mut self, now: Now, ticket: u64, answer: Result<Option<Given>, Problem>) {
        match (self.pending.remove(&ticket), answer) {
            (Some(Pending::Join(spec)), Ok(Some(given))) if given.room.shard == self.options.id => {
                self.take_seat(now, ticket, *spec, given, self.options.id);
            }
            (Some(Pending::Join(spec)), Ok(Some(given))) => {
                let seat = Box::new(Seat { spec: *spec, given, asker: self.options.id });
                self.actions.push_back(Action::HandOver { ticket, to: given.room.shard, seat });
            }
            (Some(Pending::Join(spec)), Ok(None)) => {
                if self.takes_nobody() {
                    self.turn_away(ticket, &spec);
                } else {
                    self.admit(now, ticket, *spec, None);
                }
            }
            (Some(Pending::Join(spec)), Err(problem)) => {
                if !COUNTED_NOT.contains(&problem.code) {
                    self.release(spec.app, spec.address);
                }
                let problem = problem.for_page(spec.cors_origin);
                self.actions.push_back(Action::Refuse { ticket, problem });
            }
            (Some(Pending::Left(app, address)), answer) => {
                match answer {
                    Ok(Some(given)) => self.give_back(self.options.id, given.number),
                    Err(problem) if COUNTED_NOT.contains(&problem.code) => return,
                    _ => {}
                }
                self.release(app, address);
            }
            (Some(Pending::Subscribe { client, want }), answer) => self.on_subscribe_answer(now, client, *want, answer),
            (_, Ok(Some(given))) => self.give_back(self.options.id, given.number),
            _ => {}
        }
    }

    /// A socket came from another shard with its seat. Returns the ticket under which it waits here.
    pub fn on_seat(&mut self, now: Now, seat: Seat) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.take_seat(now, ticket, seat.spec, seat.given, seat.asker);
        ticket
    }

    /// The room's own cap decides; a full room sends the viewer back to the orchestrator.
    fn take_seat(&mut self, now: Now, ticket: u64, mut spec: JoinSpec, given: Given, asker: ShardId) {
        let last = &mut self.processed[usize::from(asker.0)];
        *last = (*last).max(given.number);
        self.schedule_report(now);
        if self.takes_nobody() {
            self.turn_away(ticket, &spec);
            return;
        }
        let full = spec.channel.as_ref().is_some_and(|topic| self.room_is_full(topic, given.room.n));
        if !full {
            self.admit(now, ticket, spec, Some(given));
            return;
        }
        spec.attempts += 1;
        if spec.attempts >= self.options.attempts_max {
            self.release(spec.app, spec.address);
            let problem = all_full().for_page(spec.cors_origin);
            self.actions.push_back(Action::Refuse { ticket, problem });
            return;
        }
        let (channel, refused, attempt) = (spec.channel.clone(), Some(given.room), spec.attempts + 1);
        let (app, user) = (spec.app, user_of(&spec));
        self.pending.insert(ticket, Pending::Join(Box::new(spec)));
        let (asker, first, address, here) = (self.options.id, false, None, false);
        let ask = ToOrchestrator::AskSeat { ticket, asker, app, first, channel, user, address, attempt, refused, here };
        self.actions.push_back(Action::Ask(ask));
    }

    /// It drains, or came to its ceiling while the seat was on its way.
    fn takes_nobody(&self) -> bool {
        self.draining.is_some() || self.occupied() >= self.options.clients_max
    }

    /// Places that are taken, also by sockets that are being taken down: a place more would lie beyond the ring's.
    fn occupied(&self) -> u32 {
        (self.places.len() - self.free.len()) as u32
    }

    fn turn_away(&mut self, ticket: u64, spec: &JoinSpec) {
        self.release(spec.app, spec.address);
        let problem = Problem::new(503, "connections_full", "this core takes no more connections").retry_after(5);
        let problem = problem.for_page(spec.cors_origin.clone());
        self.actions.push_back(Action::Refuse { ticket, problem });
    }

    pub(super) fn room_is_full(&self, topic: &Topic, room: u32) -> bool {
        self.index
            .find(Scope::Channel, topic.hash, topic.app.as_str(), topic.name.as_str())
            .is_some_and(|no| self.index.room_count(no, room) >= self.options.room_capacity)
    }

    /// The echo endpoint's socket becomes a client that watches nothing.
    pub fn on_echo(&mut self, now: Now, accept: &str) -> Result<u64, Problem> {
        self.check_ceilings()?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let id = self.new_client(now, AppId(0), None);
        if let Some(client) = self.client_mut(id) {
            client.echo = true;
        }
        self.actions.push_back(Action::Install { ticket, client: id });
        self.say_first(id, &[switching_protocols(accept, None)]);
        Ok(ticket)
    }

    fn admit(&mut self, now: Now, ticket: u64, spec: JoinSpec, given: Option<Given>) {
        let id = self.new_client(now, spec.app, spec.identity);
        let mut heartbeat_at_s = 0;
        if let Some(client) = self.client_mut(id) {
            client.dialect = spec.dialect;
            client.address = spec.address;
            client.heartbeat_s = spec.heartbeat_s;
            heartbeat_at_s = match client.beat_s() {
                0 => 0,
                beat_s => now.mono_s() as u32 + u32::from(beat_s),
            };
            client.heartbeat_at_s = heartbeat_at_s;
        }
        self.schedule_check(id, heartbeat_at_s);
        self.actions.push_back(Action::Install { ticket, client: id });
        let head = if spec.dialect == Dialect::Sse {
            sse_head(spec.cors_origin.as_deref())
        } else {
            switching_protocols(&spec.accept, spec.names_dialect.then_some(spec.dialect))
        };
        self.say_first(id, &[head]);
        self.watch_identity(now, id, &spec.app_name);
        self.ask_bans(id, &spec.app_name);
        self.schedule_expiry(now, id);
        if let (Some(topic), Some(given)) = (spec.channel, given) {
            let owed = Owed { id: None, first: true, since: spec.since, viewers: given.viewers };
            self.subscribe(now, id, &topic, given.room.n, spec.filter, owed);
        } else {
            let conn = self.client(id).map_or(0, |client| client.conn);
            self.say_first(id, &[reply::ready_without_channel(&show_conn(conn), self.options.ping_after_s)]);
        }
    }

    fn new_client(&mut self, now: Now, app: AppId, identity: Option<Identity>) -> ClientId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        // Opaque, and no way to guess another's: the number is hashed with the process's secret.
        let counter = self.next_conn;
        self.next_conn += 1;
        let key = [&self.options.id.0.to_le_bytes()[..], &counter.to_le_bytes()].concat();
        let conn = self.hasher.hash_bytes(&key).max(1);
        let client = Client {
            conn,
            phase: Phase::Open,
            echo: false,
            paused: false,
            app,
            dialect: Dialect::Json,
            identity: identity.map(Box::new),
            places: Few::default(),
            address: None,
            first: None,
            more: Few::default(),
            codec: crate::wire::socket::Codec::default(),
            behind: None,
            since_s: now.mono_s() as u32,
            seen_s: now.mono_s() as u32,
            check_s: 0,
            heartbeat_at_s: 0,
            heartbeat_s: 0,
            ping: Ping::Never,
            rates: None,
            expiry_told: false,
            closing: None,
        };
        self.places[slot as usize].client = Some(Box::new(client));
        self.clients += 1;
        self.stages.joined += 1;
        self.schedule_report(now);
        let id = self.id_of(slot);
        // The first pings of a storm of joins come in the later half of the time, evenly; those after them are as far apart.
        let half_s = self.options.ping_after_s / 2;
        let early_s = conn as u32 % (half_s + 1);
        self.schedule_check(id, now.mono_s() as u32 + self.options.ping_after_s - early_s);
        id
    }

    /// Makes the connection findable by its user and its tags.
    pub(super) fn watch_identity(&mut self, now: Now, id: ClientId, app: &Name) {
        let Some(identity) = self.client(id).and_then(|client| client.identity.as_ref()) else { return };
        let user = self.hasher.topic(Scope::User, app, &identity.user);
        let tags = identity.tags.iter().map(|tag| self.hasher.topic(Scope::Tag, app, tag));
        let topics: Vec<Topic> = std::iter::once(user).chain(tags).collect();
        for topic in topics {
            let Ok(subscribed) = self.index.subscribe(&topic, 0, id.slot, TickNo::FIRST) else {
                // A ban would not reach it.
                self.close(now, id, Closing::Overloaded("this core knows as many users or tags as it may"));
                return;
            };
            if let Some(client) = self.client_mut(id) {
                client.places.push((subscribed.topic, subscribed.position));
            }
        }
    }

    fn give_back(&mut self, asker: ShardId, number: u64) {
        self.actions.push_back(Action::Ask(ToOrchestrator::GiveBack { asker, number }));
    }

    /// A connection that was counted is none any more.
    pub(super) fn release(&mut self, app: AppId, address: Option<AddressKey>) {
        *self.released_apps.entry(app).or_default() += 1;
        if let Some(address) = address {
            *self.released.entry(address).or_default() += 1;
        }
    }

    /// The socket of a client is taken down: its place may be given to another.
    pub fn on_closed(&mut self, id: ClientId) {
        let Some(place) = self.places.get_mut(id.slot as usize) else { return };
        if place.generation != id.generation || place.client.is_none() {
            return;
        }
        debug_assert!(place.client.as_ref().is_some_and(|c| c.phase == Phase::Ending), "it was ended before");
        place.client = None;
        place.flags = 0;
        place.generation = (place.generation + 1) & GENERATION_MASK;
        self.free.push(id.slot);
    }
}

/// Who watches, or reads what is stored, has a token that says so, if it has one.
pub(super) fn must_read(identity: &Identity) -> Result<(), Problem> {
    if identity.read {
        return Ok(());
    }
    Err(Problem::new(403, "no_right_to_read", "the token does not allow reading"))
}

/// Tags are the app's word, so they come from a token; the connection says only which of them it carries.
fn carry(identity: Option<&mut Identity>, tags: &[Name]) -> Result<(), Problem> {
    let Some(identity) = identity else {
        return Err(Problem::new(401, "token_needed", "tags ask for a token that grants them"));
    };
    if let Some(tag) = tags.iter().find(|tag| !identity.tags.contains(tag)) {
        return Err(Problem::new(403, "no_such_tag", format!("the token does not grant the tag {:?}", tag.as_str())));
    }
    identity.tags = tags.to_vec();
    Ok(())
}

/// A connection's opaque number as text.
#[must_use]
pub(super) fn show_conn(conn: u64) -> String {
    format!("{conn:016x}")
}

/// The app and the user that a join speaks for.
fn user_of(spec: &JoinSpec) -> Option<(Name, Name)> {
    let identity = spec.identity.as_ref()?;
    Some((spec.app_name.clone(), identity.user.clone()))
}

pub(super) fn no_right(channel: &str) -> Problem {
    Problem::new(403, "no_right", format!("the token does not allow channel {channel:?}"))
}

pub(super) fn all_full() -> Problem {
    Problem::new(429, "room_full", "every room that was tried was full").retry_after(1)
}
