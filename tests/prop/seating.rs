//! Seating before shards whose letters and reports are late, lost or replaced, against a twin that derives every count
//! anew from the last reports and a list of all seats.

use crate::rng::Rng;
use ringcast::base::Given;
use ringcast::base::{ChannelKey, Name, Now, RoomCount, RoomId, RoomReport, ShardId};
use ringcast::seating::{Ask, SeatError, Seating, SeatingOptions};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

fn channel(n: u64) -> ChannelKey {
    ChannelKey::new(Name::new("demo").unwrap(), Name::new(&format!("c{n}")).unwrap())
}

#[derive(Clone)]
struct Seat {
    asker: ShardId,
    number: u64,
    key: ChannelKey,
    room: RoomId,
    since_us: u64,
    new_socket: bool,
}

/// What the orchestrator can know, and nothing clever about it.
struct Twin {
    capacity: u32,
    reports: Vec<RoomReport>,
    seats: Vec<Seat>,
    barred: BTreeSet<(ChannelKey, RoomId)>,
}

impl Twin {
    fn rooms(&self) -> BTreeMap<(ChannelKey, RoomId), u32> {
        let mut rooms = BTreeMap::new();
        for report in &self.reports {
            for count in &report.rooms {
                *rooms.entry((count.key.clone(), RoomId { n: count.n, shard: report.shard })).or_default() +=
                    count.viewers;
            }
        }
        for seat in &self.seats {
            *rooms.entry((seat.key.clone(), seat.room)).or_default() += 1;
        }
        rooms.retain(|_, viewers| *viewers > 0);
        rooms
    }

    fn first_open(&self, key: &ChannelKey, on_shard: Option<ShardId>) -> Option<RoomId> {
        let fits = |((of, id), viewers): &(&(ChannelKey, RoomId), &u32)| {
            of == key
                && **viewers < self.capacity
                && on_shard.is_none_or(|shard| id.shard == shard)
                && !self.barred.contains(&(key.clone(), *id))
        };
        self.rooms().iter().find(fits).map(|((_, id), _)| *id)
    }

    fn connections(&self, shard: ShardId) -> u64 {
        let coming = self.seats.iter().filter(|seat| seat.room.shard == shard && seat.new_socket).count();
        u64::from(self.reports[usize::from(shard.0)].connections) + coming as u64
    }

    fn on_report(&mut self, report: RoomReport) {
        let shard = report.shard;
        self.seats.retain(|seat| seat.room.shard != shard || seat.number > report.processed[usize::from(seat.asker.0)]);
        self.barred.retain(|(_, id)| id.shard != shard);
        self.reports[usize::from(shard.0)] = report;
    }
}

/// A shard: rooms with a cap of their own, and the report that lies unread on its way up.
struct Shard {
    rooms: BTreeMap<(ChannelKey, u32), u32>,
    emptied: BTreeSet<(ChannelKey, u32)>,
    processed: Vec<u64>,
    connections: u32,
    unread: Option<RoomReport>,
}

struct World {
    rng: Rng,
    now: Now,
    options: SeatingOptions,
    seating: Seating,
    twin: Twin,
    shards: Vec<Shard>,
    letters: BTreeMap<(ShardId, ShardId), VecDeque<Seat>>,
    refused: Vec<(ChannelKey, RoomId)>,
    written: BTreeMap<(ChannelKey, RoomId), u32>,
    given: BTreeMap<ShardId, u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let options = SeatingOptions {
            room_capacity: 1 + rng.below(4) as u32,
            shards: 1 + rng.below(3) as u16,
            rooms_max: 20,
            attempts_max: 10,
            outstanding_expiry_ms: 1,
        };
        let empty = |shard| RoomReport { shard, processed: vec![], rooms: vec![], connections: 0 };
        let shard = |_| Shard {
            rooms: BTreeMap::new(),
            emptied: BTreeSet::new(),
            processed: vec![0; usize::from(options.shards)],
            connections: 0,
            unread: None,
        };
        Self {
            rng,
            now: Now::default(),
            options,
            seating: Seating::new(options),
            twin: Twin {
                capacity: options.room_capacity,
                reports: (0..options.shards).map(ShardId).map(empty).collect(),
                seats: vec![],
                barred: BTreeSet::new(),
            },
            shards: (0..options.shards).map(shard).collect(),
            letters: BTreeMap::new(),
            refused: vec![],
            written: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    fn any_shard(&mut self) -> ShardId {
        ShardId(self.rng.below(u64::from(self.options.shards)) as u16)
    }

    fn join(&mut self) {
        let asker = self.any_shard();
        let on_shard = self.rng.chance(30).then(|| self.any_shard());
        let again = if self.rng.chance(60) { self.refused.pop() } else { None };
        let (key, refused) = match again {
            Some((key, room)) => (key, Some(room)),
            None => (channel(self.rng.below(3)), None),
        };
        let ask = Ask { topic: &key, asker, attempt: 1, refused, on_shard };
        let before = self.twin.rooms();
        if let Some(room) = refused
            && before.contains_key(&(key.clone(), room))
        {
            self.twin.barred.insert((key.clone(), room));
        }
        let expected = self.twin.first_open(&key, on_shard);
        let Given { room, number, viewers } = match self.seating.seat(self.now, &ask) {
            Ok(given) => given,
            Err(error) => {
                assert_eq!((error, expected), (SeatError::RoomsFull, None));
                assert!(before.len() >= 20);
                return;
            }
        };
        if let Some(expected) = expected {
            assert_eq!(room, expected, "the first room with space");
        } else {
            assert!(before.keys().all(|(of, id)| *of != key || id.n < room.n), "a new room is the youngest");
            let fewest = (0..self.options.shards).map(|shard| self.twin.connections(ShardId(shard))).min();
            let emptiest = || Some(self.twin.connections(room.shard)) == fewest;
            let right = on_shard.map_or_else(emptiest, |shard| shard == room.shard);
            assert!(right, "a new room goes where the fewest connections are");
        }
        let last = self.given.entry(asker).or_default();
        *last += 1;
        assert_eq!(number, *last);
        let new_socket = on_shard.is_none();
        let seat = Seat { asker, number, key: key.clone(), room, since_us: self.now.mono_us, new_socket };
        self.twin.seats.push(seat.clone());
        assert_eq!(viewers, self.seating.total(&key));
        if self.rng.chance(10) {
            self.give_back(&seat);
        } else {
            self.letters.entry((asker, room.shard)).or_default().push_back(seat);
        }
    }

    fn give_back(&mut self, seat: &Seat) {
        self.seating.give_back(seat.asker, seat.number);
        self.twin.seats.retain(|other| (other.asker, other.number) != (seat.asker, seat.number));
    }

    /// The next letter of one queue arrives, or is lost with its socket.
    fn deliver(&mut self) {
        let (asker, shard) = (self.any_shard(), self.any_shard());
        let Some(seat) = self.letters.get_mut(&(asker, shard)).and_then(VecDeque::pop_front) else { return };
        if self.rng.chance(5) {
            // A letter that could not be handed over is given back; one that vanished is left to the expiry.
            if self.rng.chance(50) {
                self.give_back(&seat);
            }
            return;
        }
        let owner = &mut self.shards[usize::from(shard.0)];
        owner.processed[usize::from(asker.0)] = seat.number;
        let viewers = owner.rooms.entry((seat.key.clone(), seat.room.n)).or_default();
        if *viewers >= self.options.room_capacity {
            self.refused.push((seat.key, seat.room));
            return;
        }
        *viewers += 1;
        owner.connections += u32::from(seat.new_socket);
        if self.rng.chance(10) {
            // Given back after it was taken, and perhaps after a report has covered it: once is enough either way.
            self.give_back(&seat);
        }
    }

    fn leave(&mut self) {
        let shard = self.any_shard();
        let shard = &mut self.shards[usize::from(shard.0)];
        let taken: Vec<_> = shard.rooms.iter().filter(|(_, viewers)| **viewers > 0).map(|(id, _)| id.clone()).collect();
        if taken.is_empty() {
            return;
        }
        let id = taken[self.rng.below(taken.len() as u64) as usize].clone();
        let viewers = shard.rooms.get_mut(&id).unwrap();
        *viewers -= 1;
        shard.connections = shard.connections.saturating_sub(1);
        if *viewers == 0 {
            shard.rooms.remove(&id);
            shard.emptied.insert(id);
        }
    }

    /// The shard writes a report; what lies unread is replaced.
    fn report(&mut self, shard: ShardId) {
        let from = &mut self.shards[usize::from(shard.0)];
        let taken = from.rooms.iter().filter(|(_, viewers)| **viewers > 0).map(|(id, viewers)| (id.clone(), *viewers));
        let emptied = std::mem::take(&mut from.emptied).into_iter().filter(|id| !from.rooms.contains_key(id));
        let rooms = taken.chain(emptied.map(|id| (id, 0)));
        let rooms = rooms.map(|((key, n), viewers)| RoomCount { key, n, viewers }).collect();
        let processed = from.processed.clone();
        from.unread = Some(RoomReport { shard, processed, rooms, connections: from.connections });
    }

    fn read_report(&mut self, shard: ShardId) {
        let Some(report) = self.shards[usize::from(shard.0)].unread.take() else { return };
        self.seating.on_report(self.now, &report);
        self.twin.on_report(report);
    }

    fn expire(&mut self) {
        let until = self.now.mono_us.checked_sub(1_000);
        let before = self.twin.seats.len();
        self.twin.seats.retain(|seat| until.is_none_or(|until| seat.since_us > until));
        assert_eq!(self.seating.expire(self.now) as usize, before - self.twin.seats.len());
    }

    fn tell(&mut self) {
        for change in self.seating.take_changes() {
            match change.viewers {
                Some(viewers) => self.written.insert((change.key, change.room), viewers),
                None => self.written.remove(&(change.key, change.room)),
            };
        }
        let rooms = self.twin.rooms();
        assert_eq!(self.written, rooms, "what was written down is what there is");
    }

    fn check(&mut self) {
        let rooms = self.twin.rooms();
        self.twin.barred.retain(|room| rooms.contains_key(room));
        for key in (0..3).map(channel) {
            let expected: Vec<_> =
                rooms.iter().filter(|((of, _), _)| *of == key).map(|((_, id), viewers)| (*id, *viewers)).collect();
            assert_eq!(self.seating.rooms(&key), expected);
            assert_eq!(self.seating.total(&key), expected.iter().map(|(_, viewers)| u64::from(*viewers)).sum::<u64>());
        }
        let known: Vec<_> = (0..3).map(channel).filter(|key| self.seating.knows(key)).collect();
        assert!(rooms.keys().all(|(key, _)| known.contains(key)), "who has a room is known");
        assert_eq!(self.seating.channels_of(&channel(0).app), known.len() as u32);
        for shard in (0..self.options.shards).map(ShardId) {
            assert_eq!(self.seating.connections(shard), self.twin.connections(shard));
        }
        assert_eq!(self.seating.gauge().used, rooms.len() as u64);
        assert_eq!(self.seating.outstanding(), self.twin.seats.len() as u64);
    }

    fn step(&mut self) {
        self.now.mono_us += self.rng.below(20);
        let shard = self.any_shard();
        match self.rng.below(20) {
            0..=6 => self.join(),
            7..=11 => self.deliver(),
            12..=13 => self.leave(),
            14..=15 => self.report(shard),
            16..=17 => self.read_report(shard),
            18 => self.expire(),
            _ => self.tell(),
        }
        self.check();
    }

    /// All letters arrive, all reports are read: then the counts are those of the shards.
    fn come_to_rest(&mut self) {
        while self.letters.values().any(|queue| !queue.is_empty()) {
            self.deliver();
        }
        self.now.mono_us += 2_000;
        self.expire();
        for shard in (0..self.options.shards).map(ShardId) {
            self.report(shard);
            self.read_report(shard);
        }
        self.check();
        self.tell();
        let counted: u32 = self.shards.iter().flat_map(|shard| shard.rooms.values()).sum();
        let seated: u64 = (0..3).map(|n| self.seating.total(&channel(n))).sum();
        assert_eq!((seated, self.seating.outstanding()), (u64::from(counted), 0), "totals converge");
        assert!(self.shards.iter().flat_map(|shard| shard.rooms.values()).all(|n| *n <= self.options.room_capacity));
    }
}

#[test]
fn rule_14_every_count_is_the_last_report_and_the_seats_given_since() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        let run = std::panic::AssertUnwindSafe(|| {
            for _ in 0..400 {
                world.step();
            }
            world.come_to_rest();
        });
        if let Err(cause) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(cause);
        }
    }
}

fn ask(seating: &mut Seating, asker: u16) -> Given {
    let key = channel(0);
    let ask = Ask { topic: &key, asker: ShardId(asker), attempt: 1, refused: None, on_shard: None };
    seating.seat(Now::default(), &ask).unwrap()
}

fn report(processed: [u64; 2], viewers: u32) -> RoomReport {
    let rooms = vec![RoomCount { key: channel(0), n: 1, viewers }];
    RoomReport { shard: ShardId(0), processed: processed.to_vec(), rooms, connections: viewers }
}

fn ask_again(seating: &mut Seating, attempt: u8, refused: Option<RoomId>) -> Result<RoomId, SeatError> {
    let key = channel(0);
    let ask = Ask { topic: &key, asker: ShardId(0), attempt, refused, on_shard: Some(ShardId(0)) };
    seating.seat(Now::default(), &ask).map(|given| given.room)
}

#[test]
fn a_room_that_answered_full_is_left_alone_until_its_next_report() {
    let mut seating = Seating::new(SeatingOptions { rooms_max: 2, ..SeatingOptions::default() });
    let first = ask_again(&mut seating, 1, None).unwrap();
    let second = ask_again(&mut seating, 2, Some(first)).unwrap();
    assert_ne!(first, second);
    assert_eq!(ask_again(&mut seating, 3, Some(second)), Err(SeatError::RoomsFull));
    let count = |n| RoomCount { key: channel(0), n, viewers: 1 };
    let report = RoomReport { shard: ShardId(0), processed: vec![2], rooms: vec![count(1), count(2)], connections: 2 };
    seating.on_report(Now::default(), &report);
    assert_eq!(ask_again(&mut seating, 10, None), Ok(first));
    assert_eq!(ask_again(&mut seating, 11, Some(first)), Err(SeatError::NoSpace), "after ten tries: come back");
    assert_eq!(ask_again(&mut seating, 1, None), Ok(second));
    assert_eq!((SeatError::NoSpace.status(), SeatError::RoomsFull.status()), (429, 503));
}

#[test]
fn rooms_of_the_last_process_are_filled_again_or_given_up() {
    let mut seating = two_shards();
    let room = |n, shard| RoomId { n, shard: ShardId(shard) };
    seating.adopt([(channel(0), room(4, 1)), (channel(0), room(5, 7))]);
    let given_up: Vec<_> = seating.take_changes().into_iter().map(|change| (change.room, change.viewers)).collect();
    assert_eq!(given_up, [(room(5, 7), None)], "that shard is no more");
    assert_eq!(ask(&mut seating, 0).room, room(4, 1));
}

fn two_shards() -> Seating {
    Seating::new(SeatingOptions { shards: 2, ..SeatingOptions::default() })
}

#[test]
fn rule_14_a_report_in_flight_never_undoes_a_seat() {
    let mut seating = two_shards();
    let (first, second, third) = (ask(&mut seating, 0), ask(&mut seating, 1), ask(&mut seating, 0));
    assert_eq!((first.number, second.number, third.number), (1, 1, 2), "numbers run by asker");
    assert!([first, second, third].iter().all(|given| given.room == RoomId { n: 1, shard: ShardId(0) }));
    // Written when only the first had arrived.
    seating.on_report(Now::default(), &report([1, 0], 1));
    assert_eq!(seating.total(&channel(0)), 3);
    // The askers' letters are queues of their own: the second asker's may be far behind.
    seating.on_report(Now::default(), &report([2, 0], 2));
    assert_eq!((seating.total(&channel(0)), seating.outstanding()), (3, 1));
    seating.on_report(Now::default(), &report([2, 1], 3));
    assert_eq!((seating.total(&channel(0)), seating.connections(ShardId(0))), (3, 3));
}

#[test]
fn rule_14_a_newer_report_replaces_an_unread_older_one() {
    let (mut all, mut last) = (two_shards(), two_shards());
    for seating in [&mut all, &mut last] {
        for _ in 0..5 {
            ask(seating, 0);
        }
    }
    let reports = [report([1, 0], 1), report([3, 0], 3), report([4, 0], 2)];
    for report in &reports {
        all.on_report(Now::default(), report);
    }
    last.on_report(Now::default(), &reports[2]);
    assert_eq!(all.rooms(&channel(0)), last.rooms(&channel(0)));
    assert_eq!(last.total(&channel(0)), 3);
}

#[test]
fn rule_14_a_seat_given_back_is_not_counted_again() {
    let mut seating = two_shards();
    let (kept, gone) = (ask(&mut seating, 0), ask(&mut seating, 0));
    seating.give_back(ShardId(0), gone.number);
    seating.give_back(ShardId(0), gone.number);
    assert_eq!(seating.total(&channel(0)), 1);
    seating.on_report(Now::default(), &report([kept.number, 0], 1));
    seating.give_back(ShardId(0), kept.number);
    assert_eq!(seating.total(&channel(0)), 1, "a report has covered it: it is the shard's to count");
}

#[test]
fn a_lost_letter_leaves_no_ghost() {
    let mut seating = two_shards();
    ask(&mut seating, 0);
    let expiry_ms = u64::from(SeatingOptions::default().outstanding_expiry_ms);
    assert_eq!(seating.expire(Now::default().plus_ms(expiry_ms - 1)), 0);
    assert_eq!(seating.expire(Now::default().plus_ms(expiry_ms)), 1);
    assert_eq!((seating.total(&channel(0)), seating.gauge().used), (0, 0));
    // It was late, not lost: the report puts the room back.
    seating.on_report(Now::default(), &report([1, 0], 1));
    assert_eq!((seating.total(&channel(0)), seating.gauge().used), (1, 1));
}
