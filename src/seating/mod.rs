//! Which room a new viewer gets, and how many viewers each channel has.
//!
//! Questions of shards and their reports flow in; seats, totals and changes of rooms flow out. Always true: a seat is
//! the first room with space in the order of creation, so a channel uses no more rooms than it needs; what a room holds
//! is what its shard counted last plus the seats given since, so a report in flight never undoes a seat; equal calls
//! give equal seats; and no answer waits for a disk or for another core.
//!
//! The counts here are optimistic. The backstop is the room's own cap on its shard: a room that is full after all says
//! so, is left alone until its shard reports again, and the viewer asks once more, up to `attempts_max` times.

mod ledger;
mod rooms;
mod seat;

use crate::base::{ChannelKey, Gauge, Given, Name, Now, RoomChange, RoomId, RoomReport, ShardId};
use ledger::{Claim, Ledger};
use rooms::Channel;
pub use seat::{Ask, SeatError, SeatingOptions};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a shard's connections.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    reported: u32,
    /// Connections on their way there.
    coming: u32,
}

/// The seats of all channels.
#[derive(Debug)]
pub struct Seating {
    options: SeatingOptions,
    slot_of: BTreeMap<ChannelKey, u32>,
    /// Channels by slot; a slot is free once its channel is empty and everything about it was told.
    channels: Vec<Option<Channel>>,
    free: Vec<u32>,
    /// Channels of each app that has some.
    of_app: BTreeMap<Name, u32>,
    ledger: Ledger,
    loads: Vec<Load>,
    /// The rooms of each shard, so that a report can find those it leaves out.
    rooms_of: Vec<BTreeSet<(u32, RoomId)>>,
    reports: u64,
    rooms_used: u32,
    /// Rooms whose viewers differ from what was written.
    unwritten: BTreeSet<(u32, RoomId)>,
}

impl Seating {
    /// No channel, no room, nobody.
    ///
    /// # Panics
    /// If there is no shard.
    #[must_use]
    pub fn new(options: SeatingOptions) -> Self {
        assert!(options.shards > 0, "seating needs a shard");
        let options = SeatingOptions { room_capacity: options.room_capacity.max(1), ..options };
        let shards = usize::from(options.shards);
        Self {
            options,
            slot_of: BTreeMap::new(),
            channels: Vec::new(),
            free: Vec::new(),
            of_app: BTreeMap::new(),
            ledger: Ledger::new(options.shards),
            loads: vec![Load::default(); shards],
            rooms_of: vec![BTreeSet::new(); shards],
            reports: 0,
            rooms_used: 0,
            unwritten: BTreeSet::new(),
        }
    }

    /// Takes in the rooms of the last process, empty, so that viewers who come back find their channel where it was.
    /// Rooms on shards that are no more, or beyond the limit, are given up and come out as changes. A room that nobody
    /// has come to by the first report of its shard goes the way of all empty rooms.
    pub fn adopt(&mut self, rooms: impl IntoIterator<Item = (ChannelKey, RoomId)>) {
        for (key, id) in rooms {
            let slot = self.slot(&key);
            if id.shard.0 < self.options.shards && self.rooms_used < self.options.rooms_max {
                self.add_room(slot, id);
            } else {
                self.mark(slot, id);
            }
        }
    }

    /// Gives a seat: the first room with space, or a new one.
    ///
    /// # Errors
    /// [`SeatError::NoSpace`] after too many tries, [`SeatError::RoomsFull`] when no more rooms may be made.
    ///
    /// # Panics
    /// If asker or `on_shard` is none of the shards.
    pub fn seat(&mut self, now: Now, ask: &Ask<'_>) -> Result<Given, SeatError> {
        let shards = self.options.shards;
        assert!(ask.asker.0 < shards && ask.on_shard.is_none_or(|on| on.0 < shards), "{ask:?} of {shards} shards");
        let known = self.slot_of.get(ask.topic).copied();
        if let (Some(slot), Some(refused)) = (known, ask.refused) {
            self.change(slot, refused, |room| room.barred = true);
        }
        if ask.attempt > self.options.attempts_max {
            return Err(SeatError::NoSpace);
        }
        let open = known.and_then(|slot| Some((slot, self.channel(slot)?.first_open(ask.on_shard)?)));
        let (slot, room) = match open {
            Some(found) => found,
            None => self.new_room(ask)?,
        };
        let brings_socket = ask.on_shard.is_none();
        let number = self.ledger.enter(now, ask.asker, Claim { slot, room, brings_socket });
        self.loads[usize::from(room.shard.0)].coming += u32::from(brings_socket);
        self.change(slot, room, |room| room.outstanding += 1);
        let viewers = self.channel(slot).map_or(0, Channel::total);
        Ok(Given { room, number, viewers })
    }

    /// Takes a seat back that was never taken: the socket died, or the hand-over failed. What was given back before,
    /// or what a report has covered, is left as it is.
    ///
    /// # Panics
    /// If asker is none of the shards.
    pub fn give_back(&mut self, asker: ShardId, number: u64) {
        assert!(asker.0 < self.options.shards, "{asker:?} of {} shards", self.options.shards);
        if let Some(claim) = self.ledger.take_back(asker, number) {
            self.release(claim);
            self.drop_if_empty(claim.slot, claim.room);
        }
    }

    /// Takes a shard's report in. What it says holds for the seats it covers; the seats given after those are added.
    /// A room of that shard which it does not name is empty. A report of no shard of ours is passed over.
    pub fn on_report(&mut self, _now: Now, report: &RoomReport) {
        let (shard, shards) = (report.shard, self.options.shards);
        if shard.0 >= shards {
            return;
        }
        for (asker, processed) in (0..shards).map(ShardId).zip(&report.processed) {
            while let Some(claim) = self.ledger.pop_covered(shard, asker, *processed) {
                self.release(claim);
            }
        }
        self.loads[usize::from(shard.0)].reported = report.connections;
        self.reports += 1;
        let named_by = self.reports;
        for count in &report.rooms {
            let id = RoomId { n: count.n, shard };
            let known = self.slot_of.get(&count.key).copied();
            let slot = match known {
                Some(slot) => slot,
                // A room that was given up here, when its only seat was thought lost, and is in use after all.
                None if count.viewers > 0 => self.slot(&count.key),
                None => continue,
            };
            if count.viewers > 0 && self.channel(slot).is_some_and(|channel| channel.room(id).is_none()) {
                self.add_room(slot, id);
            }
            self.change(slot, id, |room| {
                (room.reported, room.barred, room.named_by) = (count.viewers, false, named_by);
            });
        }
        for (slot, id) in self.rooms_of[usize::from(shard.0)].clone() {
            let room = self.channel(slot).and_then(|channel| channel.room(id));
            if room.is_some_and(|room| room.named_by != named_by) {
                self.change(slot, id, |room| (room.reported, room.barred) = (0, false));
            }
            self.drop_if_empty(slot, id);
        }
    }

    /// Lets seats go that no report has covered in time, so that a lost letter leaves no ghost in a room. To be called
    /// every second or so; says how many went.
    pub fn expire(&mut self, now: Now) -> u32 {
        let Some(until_us) = now.mono_us.checked_sub(u64::from(self.options.outstanding_expiry_ms) * 1_000) else {
            return 0;
        };
        let mut gone = 0;
        for shard in (0..self.options.shards).map(ShardId) {
            for asker in (0..self.options.shards).map(ShardId) {
                while let Some(claim) = self.ledger.pop_old(shard, asker, until_us) {
                    self.release(claim);
                    self.drop_if_empty(claim.slot, claim.room);
                    gone += 1;
                }
            }
        }
        gone
    }

    /// What became of rooms since the last call, for the store. To be called regularly: a channel is forgotten only after
    /// its end was written; a seat waits for no disk.
    pub fn take_changes(&mut self) -> Vec<RoomChange> {
        let unwritten = std::mem::take(&mut self.unwritten);
        let mut changes = Vec::with_capacity(unwritten.len());
        for (slot, room) in unwritten {
            let Some(channel) = self.channels[slot as usize].as_mut() else { continue };
            let viewers = channel.write_down(room);
            changes.push(RoomChange { key: channel.key.clone(), room, viewers });
            self.forget_if_done(slot);
        }
        changes
    }

    /// Viewers of a channel: what its shards counted, and the seats given since.
    #[must_use]
    pub fn total(&self, topic: &ChannelKey) -> u64 {
        self.find(topic).map_or(0, Channel::total)
    }

    /// The rooms of a channel in the order of creation, with their viewers.
    #[must_use]
    pub fn rooms(&self, topic: &ChannelKey) -> Vec<(RoomId, u32)> {
        self.find(topic).into_iter().flat_map(Channel::rooms).map(|(id, room)| (id, room.viewers())).collect()
    }

    /// Channels of an app that are watched, or of whose end there is still something to tell or to write.
    #[must_use]
    pub fn channels_of(&self, app: &Name) -> u32 {
        self.of_app.get(app).copied().unwrap_or(0)
    }

    /// Somebody watches this channel, or has done so until a moment ago.
    #[must_use]
    pub fn knows(&self, topic: &ChannelKey) -> bool {
        self.slot_of.contains_key(topic)
    }

    /// Connections of a shard: what it counted, and those on their way. 0 for a shard that is none of ours.
    #[must_use]
    pub fn connections(&self, shard: ShardId) -> u64 {
        let load = self.loads.get(usize::from(shard.0)).copied().unwrap_or_default();
        u64::from(load.reported) + u64::from(load.coming)
    }

    /// Rooms in use and how many there may be. Rooms that a shard reports are counted even beyond the limit.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge::new(u64::from(self.rooms_used), u64::from(self.options.rooms_max))
    }

    /// Seats that no report has covered yet.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.ledger.open()
    }

    /// Makes a room on the shard that must have it, or on the one with the fewest connections. Among equals the asker
    /// is taken, where the socket is already, and then the first.
    fn new_room(&mut self, ask: &Ask<'_>) -> Result<(u32, RoomId), SeatError> {
        if self.gauge().is_full() {
            return Err(SeatError::RoomsFull);
        }
        let fewest = |shard: &ShardId| (self.connections(*shard), *shard != ask.asker);
        let emptiest = (0..self.options.shards).map(ShardId).min_by_key(fewest).unwrap_or(ask.asker);
        let slot = self.slot(ask.topic);
        let shard = ask.on_shard.unwrap_or(emptiest);
        let id = self.channel(slot).map_or(RoomId { n: 1, shard }, |channel| channel.next_id(shard));
        self.add_room(slot, id);
        Ok((slot, id))
    }

    fn add_room(&mut self, slot: u32, id: RoomId) {
        let capacity = self.options.room_capacity;
        if self.channels[slot as usize].as_mut().is_some_and(|channel| channel.add(id, capacity)) {
            self.rooms_of[usize::from(id.shard.0)].insert((slot, id));
            self.rooms_used += 1;
        }
    }

    /// A seat is no longer outstanding.
    fn release(&mut self, claim: Claim) {
        self.loads[usize::from(claim.room.shard.0)].coming -= u32::from(claim.brings_socket);
        self.change(claim.slot, claim.room, |room| room.outstanding -= 1);
    }

    fn change(&mut self, slot: u32, id: RoomId, change: impl FnOnce(&mut rooms::Room)) {
        let capacity = self.options.room_capacity;
        let Some(channel) = self.channels[slot as usize].as_mut() else { return };
        if channel.change(id, capacity, change) {
            self.mark(slot, id);
        }
    }

    fn mark(&mut self, slot: u32, id: RoomId) {
        if self.unwritten.insert((slot, id))
            && let Some(channel) = self.channels[slot as usize].as_mut()
        {
            channel.unwritten += 1;
        }
    }

    fn drop_if_empty(&mut self, slot: u32, id: RoomId) {
        if self.channels[slot as usize].as_mut().is_some_and(|channel| channel.remove_if_empty(id)) {
            self.rooms_of[usize::from(id.shard.0)].remove(&(slot, id));
            self.rooms_used -= 1;
            self.mark(slot, id);
        }
    }

    /// Frees the slot of a channel that has no room, and of which nothing is left to write.
    fn forget_if_done(&mut self, slot: u32) {
        let done = |channel: &mut Channel| channel.is_empty() && channel.unwritten == 0;
        if let Some(channel) = self.channels[slot as usize].take_if(done) {
            self.slot_of.remove(&channel.key);
            if let Some(count) = self.of_app.get_mut(&channel.key.app) {
                *count -= 1;
                if *count == 0 {
                    self.of_app.remove(&channel.key.app);
                }
            }
            self.free.push(slot);
        }
    }

    /// The slot of a channel, a new one if it has none.
    fn slot(&mut self, key: &ChannelKey) -> u32 {
        if let Some(slot) = self.slot_of.get(key) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or(self.channels.len() as u32);
        let channel = Some(Channel::new(key.clone()));
        match self.channels.get_mut(slot as usize) {
            Some(place) => *place = channel,
            None => self.channels.push(channel),
        }
        self.slot_of.insert(key.clone(), slot);
        *self.of_app.entry(key.app.clone()).or_default() += 1;
        slot
    }

    fn channel(&self, slot: u32) -> Option<&Channel> {
        self.channels[slot as usize].as_ref()
    }

    fn find(&self, key: &ChannelKey) -> Option<&Channel> {
        self.slot_of.get(key).and_then(|slot| self.channel(*slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::RoomCount;

    fn topic() -> ChannelKey {
        ChannelKey::new(Name::new("demo").unwrap(), Name::new("race-42").unwrap())
    }

    fn seat(seating: &mut Seating, refused: Option<RoomId>) -> Result<Given, SeatError> {
        let ask = Ask { topic: &topic(), asker: ShardId(0), attempt: 1, refused, on_shard: None };
        seating.seat(Now::default(), &ask)
    }

    fn report(seating: &mut Seating, processed: u64, rooms: &[(u32, u32)]) {
        let count = |(n, viewers): &(u32, u32)| RoomCount { key: topic(), n: *n, viewers: *viewers };
        let rooms = rooms.iter().map(count).collect();
        let report = RoomReport { shard: ShardId(0), processed: vec![processed], rooms, connections: 0 };
        seating.on_report(Now::default(), &report);
    }

    #[test]
    fn closing_50_of_the_first_room_and_joining_60_fills_the_first_before_the_second() {
        let mut seating = Seating::new(SeatingOptions::default());
        for _ in 0..600 {
            seat(&mut seating, None).unwrap();
        }
        report(&mut seating, 600, &[(1, 450), (2, 100)]);
        let rooms: Vec<_> = (0..60).map(|_| seat(&mut seating, None).unwrap().room.n).collect();
        assert!(rooms[..50].iter().all(|n| *n == 1) && rooms[50..].iter().all(|n| *n == 2), "{rooms:?}");
        assert_eq!(seating.rooms(&topic()).iter().map(|(_, viewers)| *viewers).collect::<Vec<_>>(), [500, 110]);
        assert_eq!((seating.total(&topic()), seating.gauge().used), (610, 2));
    }

    #[test]
    fn a_room_that_answered_full_is_left_alone_until_its_next_report() {
        let mut seating = Seating::new(SeatingOptions { rooms_max: 2, ..SeatingOptions::default() });
        let first = seat(&mut seating, None).unwrap().room;
        let second = seat(&mut seating, Some(first)).unwrap().room;
        assert_ne!(first, second);
        assert_eq!(seat(&mut seating, Some(second)), Err(SeatError::RoomsFull));
        report(&mut seating, 2, &[(1, 1), (2, 1)]);
        assert_eq!(seat(&mut seating, None).unwrap().room, first);
        let late = Ask { topic: &topic(), asker: ShardId(0), attempt: 11, refused: Some(first), on_shard: None };
        assert_eq!(seating.seat(Now::default(), &late), Err(SeatError::NoSpace));
        assert_eq!(seat(&mut seating, None).unwrap().room, second);
    }

    #[test]
    fn changes_are_told_once_and_an_ended_channel_is_forgotten() {
        let mut seating = Seating::new(SeatingOptions::default());
        let room = seat(&mut seating, None).unwrap().room;
        assert_eq!(seating.total(&topic()), 1);
        assert_eq!(seating.take_changes(), [RoomChange { key: topic(), room, viewers: Some(1) }]);
        report(&mut seating, 1, &[(1, 0)]);
        assert_eq!(seating.total(&topic()), 0);
        assert_eq!(seating.take_changes(), [RoomChange { key: topic(), room, viewers: None }]);
        assert!(seating.slot_of.is_empty() && seating.take_changes().is_empty());
        assert_eq!(seating.gauge().used, 0);
    }

    #[test]
    fn rooms_of_the_last_process_are_filled_again_or_given_up() {
        let mut seating = Seating::new(SeatingOptions::default());
        let room = |n, shard| RoomId { n, shard: ShardId(shard) };
        seating.adopt([(topic(), room(4, 0)), (topic(), room(5, 7))]);
        assert_eq!(seating.take_changes(), [RoomChange { key: topic(), room: room(5, 7), viewers: None }]);
        assert_eq!(seat(&mut seating, None).unwrap().room, room(4, 0));
    }
}
