//! The outbox against a twin that keeps three plain lists and searches them from end to end.

use crate::{Rng, for_seeds};
use ringcast::base::{Account, Class};
use ringcast::fanout::gap::Gap;
use ringcast::fanout::outbox::{Entry, Outbox, Popped, Verdict};
use ringcast::fanout::score::OutboxOptions;
use ringcast::wire::event::{EventKind, REGISTRY};
use std::collections::BTreeMap;

type Item = Popped<u64>;

/// Three lists of events, `born` telling the younger of two, with gaps among the ordered ones.
#[derive(Default)]
struct Twin {
    lanes: [Vec<(u64, Item)>; 3],
    born: u64,
}

fn event(item: &Item) -> Option<&Entry<u64>> {
    match item {
        Popped::Entry(entry) => Some(entry),
        Popped::Gap(_) => None,
    }
}

fn priority(entry: &Entry<u64>) -> u8 {
    entry.kind.row().priority
}

/// Stored events and gaps: what gaps of this channel must not pass.
fn is_mark(item: &Item, channel: u32) -> bool {
    match item {
        Popped::Entry(entry) => entry.channel == channel && entry.seq != 0,
        Popped::Gap(gap) => gap.channel == channel,
    }
}

impl Twin {
    fn events(&self) -> impl Iterator<Item = &Entry<u64>> {
        self.lanes.iter().flatten().filter_map(|(_, item)| event(item))
    }

    fn bytes(&self) -> u64 {
        self.events().map(|entry| u64::from(entry.bytes)).sum()
    }

    fn waiting(&self, class: Class) -> usize {
        self.lanes[class as usize].iter().filter(|(_, item)| event(item).is_some()).count()
    }

    /// Lane and position of the lowest score in the lanes of `classes`.
    fn lowest(&self, classes: &[Class]) -> Option<(usize, usize)> {
        let lanes = classes.iter().filter(|&&class| class != Class::Critical).map(|&class| class as usize);
        lanes
            .flat_map(|lane| self.lanes[lane].iter().enumerate().map(move |(at, (born, item))| (lane, at, *born, item)))
            .filter_map(|(lane, at, born, item)| Some((priority(event(item)?), born, lane, at)))
            .filter(|&(priority, ..)| priority < 255)
            .min()
            .map(|(_, _, lane, at)| (lane, at))
    }

    /// Counts a loss in a gap that ends the channel, or in a new one behind everything.
    fn tell(&mut self, lost: &Entry<u64>) {
        let lane = &mut self.lanes[Class::Ordered as usize];
        let last = lane.iter_mut().rev().map(|(_, item)| item).find(|item| is_mark(item, lost.channel));
        if let Some(Popped::Gap(gap)) = last {
            join(gap, &gap_of(lost));
        } else {
            lane.push((0, Popped::Gap(gap_of(lost))));
        }
    }

    /// Takes an event out and tells it: a stored one where it stood, with the gaps beside it drawn in.
    fn lose(&mut self, account: &mut Account, lane: usize, at: usize) {
        let (_, Popped::Entry(lost)) = self.lanes[lane].remove(at) else { panic!("a gap is not lost") };
        account.of_mut(lost.kind.row().class).evicted += 1;
        if lost.seq == 0 {
            return self.tell(&lost);
        }
        let list = &mut self.lanes[lane];
        let mut gap = gap_of(&lost);
        let mut at = at;
        if let Some(next) = (at..list.len()).find(|&i| is_mark(&list[i].1, lost.channel))
            && let Popped::Gap(later) = &list[next].1
        {
            join(&mut gap, later);
            list.remove(next);
        }
        if let Some(before) = (0..at).rev().find(|&i| is_mark(&list[i].1, lost.channel))
            && let Popped::Gap(earlier) = &list[before].1
        {
            join(&mut gap, earlier);
            list.remove(before);
            at = before;
        }
        list.insert(at, (0, Popped::Gap(gap)));
    }

    fn push(&mut self, options: &OutboxOptions, account: &mut Account, entry: Entry<u64>) -> Verdict {
        let class = entry.kind.row().class;
        self.born += 1;
        let list = &mut self.lanes[class as usize];
        let same = |item: &Item| {
            let member = |kind| matches!(kind, EventKind::MemberJoined | EventKind::MemberLeft);
            event(item).is_some_and(|older| {
                let replaces = older.kind == entry.kind || (member(older.kind) && member(entry.kind));
                replaces && older.merge_key == entry.merge_key
            })
        };
        let place = list.iter().position(|(_, item)| class == Class::Mergeable && same(item));
        if let Some(at) = place {
            list.remove(at);
            account.of_mut(class).merged += 1;
        }
        let lane_full = place.is_none() && self.waiting(class) >= options.capacity(class);
        let outscored = |older: &Entry<u64>| priority(older) < 255 && priority(older) <= priority(&entry);
        let kept: u64 = self
            .events()
            .filter(|older| older.kind.row().class == Class::Critical || !outscored(older))
            .map(|older| u64::from(older.bytes))
            .sum();
        let victim = self.lowest(&[class]).filter(|&(lane, at)| event(&self.lanes[lane][at].1).is_some_and(outscored));
        if (lane_full && victim.is_none()) || kept + u64::from(entry.bytes) > u64::from(options.bytes_max) {
            if priority(&entry) == 255 {
                account.of_mut(class).lost += 1;
                return Verdict::Overrun;
            }
            account.of_mut(class).evicted += 1;
            self.tell(&entry);
            return Verdict::Refused;
        }
        let mut evicted = 0;
        let mut place = place;
        while (lane_full && evicted == 0) || self.bytes() + u64::from(entry.bytes) > u64::from(options.bytes_max) {
            let classes: &[Class] = if lane_full && evicted == 0 { &[class] } else { &Class::ALL };
            let (lane, at) = self.lowest(classes).expect("something with a lower score");
            self.lose(account, lane, at);
            if lane == class as usize {
                place = place.map(|place| if at < place { place - 1 } else { place });
            }
            evicted += 1;
        }
        let list = &mut self.lanes[class as usize];
        list.insert(place.unwrap_or(list.len()), (self.born, Popped::Entry(entry)));
        match (evicted, place) {
            (0, None) => Verdict::Queued,
            (0, Some(_)) => Verdict::Merged,
            _ => Verdict::Evicted(evicted),
        }
    }

    fn pop(&mut self, now_ms: u64, account: &mut Account) -> Option<Item> {
        for (class, list) in Class::ALL.into_iter().zip(&mut self.lanes) {
            while !list.is_empty() {
                let (_, item) = list.remove(0);
                let limit_ms = event(&item).and_then(|entry| entry.kind.row().stale_after_ms);
                match (limit_ms, event(&item)) {
                    (Some(limit_ms), Some(entry)) if now_ms > entry.at_ms + u64::from(limit_ms) => {
                        account.of_mut(class).stale += 1;
                    }
                    _ => return Some(item),
                }
            }
        }
        None
    }
}

fn gap_of(lost: &Entry<u64>) -> Gap {
    Gap { channel: lost.channel, from_seq: lost.seq, to_seq: lost.seq, dropped: vec![(lost.kind, 1)] }
}

fn join(gap: &mut Gap, other: &Gap) {
    let seqs = [gap.from_seq, other.from_seq].into_iter().filter(|&seq| seq != 0);
    (gap.from_seq, gap.to_seq) = (seqs.min().unwrap_or(0), gap.to_seq.max(other.to_seq));
    let mut counts: BTreeMap<EventKind, u32> = gap.dropped.iter().copied().collect();
    for &(kind, count) in &other.dropped {
        *counts.entry(kind).or_default() += count;
    }
    gap.dropped = counts.into_iter().collect();
}

fn options(random: &mut Rng) -> OutboxOptions {
    let standard = OutboxOptions::default();
    match random.below(4) {
        0 => standard,
        1 => OutboxOptions { events_min: 1, events_max: 4, ..standard },
        2 => OutboxOptions { bytes_max: 1 + random.below(600) as u32, ..standard },
        _ => OutboxOptions { lag_budget_ms: random.below(300) as u32, events_min: 0, bytes_max: 900, ..standard },
    }
}

/// What a client can know of a channel: the last stored seq it was given or told of.
#[derive(Default)]
struct Reader {
    known: BTreeMap<u32, u64>,
    popped: [u64; 3],
}

impl Reader {
    /// Stored events come in order, and between two of them every missing one was told before.
    fn take(&mut self, item: &Item, pushed: &BTreeMap<u32, Vec<u64>>) {
        let (channel, from, to) = match item {
            Popped::Entry(entry) => {
                self.popped[entry.kind.row().class as usize] += 1;
                (entry.channel, entry.seq, entry.seq)
            }
            Popped::Gap(gap) => {
                assert!(!gap.dropped.is_empty() && gap.dropped.is_sorted_by_key(|&(kind, _)| kind));
                (gap.channel, gap.from_seq, gap.to_seq)
            }
        };
        if from != 0 {
            let known = self.known.entry(channel).or_default();
            assert!(from > *known && to >= from, "seq {from}–{to} of channel {channel} after {known}");
            let missed = pushed[&channel].iter().find(|&&seq| seq > *known && seq < from);
            assert_eq!(missed, None, "channel {channel} goes on at {from} and the missing one was never told");
            *known = to;
        }
    }
}

#[test]
fn rule_03_stored_events_never_pass_each_other_and_gaps_stand_in_place() {
    for_seeds(0..400, |random| {
        let options = options(random);
        let (mut outbox, mut account) = (Outbox::new(), Account::default());
        let (mut twin, mut twin_account) = (Twin::default(), Account::default());
        let mut reader = Reader::default();
        let mut pushed: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut published = [0_u64; 3];
        let (channels, slowness) = (1 + random.below(4), random.below(100));
        let mut now_ms = 0;
        for step in 0..800 {
            // Coarse, so that many events are popped at the very end of their time.
            now_ms += 250 * random.below(3);
            match random.below(1_000) {
                0..3 => {
                    let doomed = random.below(step + 1);
                    let keep = |entry: &Entry<u64>| entry.payload % 7 != doomed % 7;
                    let ordered = Class::Ordered as usize;
                    let mut gone = 0;
                    while let Some(at) =
                        twin.lanes[ordered].iter().position(|(_, item)| event(item).is_some_and(|entry| !keep(entry)))
                    {
                        twin.lose(&mut twin_account, ordered, at);
                        gone += 1;
                    }
                    assert_eq!(outbox.retract(&mut account, keep), gone);
                }
                3..5 => {
                    let channel = random.below(channels) as u32;
                    for (class, list) in Class::ALL.into_iter().zip(&mut twin.lanes) {
                        let before = list.iter().filter(|(_, item)| event(item).is_some()).count();
                        list.retain(|(_, item)| match item {
                            Popped::Entry(entry) => entry.channel != channel,
                            Popped::Gap(gap) => gap.channel != channel,
                        });
                        let after = list.iter().filter(|(_, item)| event(item).is_some()).count();
                        twin_account.of_mut(class).lost += (before - after) as u64;
                    }
                    outbox.forget(channel, &mut account);
                    // Who leaves is told nothing, so what it can know begins again.
                    pushed.insert(channel, Vec::new());
                }
                roll if roll % 100 < slowness => {
                    let row = random.pick(&REGISTRY.iter().collect::<Vec<_>>());
                    let channel = random.below(channels) as u32;
                    let entry = Entry {
                        kind: row.kind,
                        channel,
                        seq: if row.stored { step + 1 } else { 0 },
                        merge_key: random.below(6),
                        bytes: random.below(80) as u32,
                        at_ms: now_ms,
                        payload: step,
                    };
                    if row.stored {
                        pushed.entry(channel).or_default().push(entry.seq);
                    }
                    published[row.class as usize] += 1;
                    let verdict = twin.push(&options, &mut twin_account, entry.clone());
                    assert_eq!(outbox.push(&options, &mut account, entry), verdict);
                    if verdict == Verdict::Overrun && row.stored {
                        // The connection would be closed here; this one goes on, with that event out of its sight.
                        pushed.entry(channel).or_default().pop();
                    }
                }
                _ => {
                    let item = twin.pop(now_ms, &mut twin_account);
                    assert_eq!(outbox.pop(now_ms, &mut account), item);
                    if let Some(item) = item {
                        reader.take(&item, &pushed);
                    }
                }
            }
            check(&outbox, &twin, &options);
            twin_account.outbox_bytes = twin.bytes();
            assert_eq!(account, twin_account);
            for class in Class::ALL {
                let column = account.of(class);
                let gone = column.merged + column.evicted + column.stale + column.lost;
                let all = reader.popped[class as usize] + gone + outbox.waiting(class) as u64;
                assert_eq!(published[class as usize], all, "the account of {} balances", class.name());
            }
        }
        while let Some(item) = twin.pop(now_ms, &mut twin_account) {
            assert_eq!(outbox.pop(now_ms, &mut account).as_ref(), Some(&item));
            reader.take(&item, &pushed);
        }
        assert!(outbox.pop(now_ms, &mut account).is_none() && outbox.is_empty());
        // At rest nothing stored is left in the dark.
        for (channel, seqs) in &pushed {
            let known = reader.known.get(channel).copied().unwrap_or(0);
            assert!(seqs.iter().all(|&seq| seq <= known), "channel {channel} was told up to {known} of {seqs:?}");
        }
    });
}

fn check(outbox: &Outbox<u64>, twin: &Twin, options: &OutboxOptions) {
    assert_eq!((outbox.len(), outbox.bytes() as u64), (twin.events().count(), twin.bytes()));
    assert!(outbox.bytes() <= options.bytes_max as usize);
    assert_eq!(outbox.oldest_at_ms(), twin.events().map(|entry| entry.at_ms).min());
    assert_eq!(outbox.is_empty(), twin.lanes.iter().all(Vec::is_empty));
    for class in Class::ALL {
        assert_eq!(outbox.waiting(class), twin.waiting(class));
        assert!(outbox.waiting(class) <= options.capacity(class));
    }
    let stored = twin.events().filter(|entry| entry.seq != 0).count();
    let gaps = twin.lanes.iter().flatten().filter(|(_, item)| event(item).is_none());
    let channels =
        gaps.clone().filter_map(|(_, item)| if let Popped::Gap(gap) = item { Some(gap.channel) } else { None });
    let channels = channels.collect::<std::collections::BTreeSet<_>>().len();
    assert!(gaps.count() <= stored + channels, "the number of gaps is bounded");
}
