//! Flow 2, the last stretch: a sealed event from the bus becomes part of its channel's tick.
//!
//! Always true: stored events are appended in the order of their seqs, each once; a hole is filled from the store
//! before what lies behind it is appended; per event the shard touches the channel and no viewer.

use super::access::ends_access;
use super::channel::{Channel, HELD_MAX, Head};
use super::{Pending, Shard};
use crate::base::{Class, ClientId, Now, Ulid};
use crate::fanout::behind::Payload;
use crate::fanout::index::{TOMBSTONE, TopicNo};
use crate::fanout::outbox::Entry;
use crate::fanout::sub::SubState;
use crate::fanout::tick::Appended;
use crate::post::letters::{Page, Range};
use crate::wire::dialect::Dialect;
use crate::wire::event::{EventKind, MergeKey};
use crate::wire::problem::Problem;
use crate::wire::sealed::{ArchivedMember, Sealed};
use crate::wire::topic::Scope;

/// Rows asked for at once when a hole is filled or a client resumes.
const PAGE_ROWS: u32 = 64;
/// Whom on a shard an event interests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// At least one connection watches what it is for.
    Somebody,
    /// No connection does.
    Nobody,
}

impl Shard {
    /// An event came from the bus. Returns whom it interests here.
    pub fn on_sealed(&mut self, now: Now, sealed: &Sealed) -> Interest {
        self.stages.events_seen += 1;
        let names = || (sealed.topic().app.as_str(), sealed.topic().name.as_str());
        let Some(no) = self.index.wanted(sealed.scope(), sealed.topic_hash(), names) else { return Interest::Nobody };
        if sealed.scope() == Scope::Channel {
            self.deliver_to_channel(no, sealed);
        } else {
            self.deliver_to_members(now, no, sealed);
        }
        Interest::Somebody
    }

    fn deliver_to_channel(&mut self, no: TopicNo, sealed: &Sealed) {
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return };
        let seq = sealed.seq();
        match &mut channel.head {
            Head::Asked { held, .. } if held.len() < HELD_MAX => held.push(sealed.clone()),
            Head::Asked { .. } => self.stages.lost_before_fanout += u64::from(seq == 0),
            Head::Open { .. } if seq == 0 => self.append(no, sealed),
            Head::Open { last_seq, .. } if seq <= *last_seq => self.stages.duplicates += 1,
            Head::Open { last_seq, .. } if seq == *last_seq + 1 => {
                *last_seq = seq;
                self.append(no, sealed);
            }
            Head::Open { last_seq, .. } => {
                let since = *last_seq;
                channel.head = Head::Asked { held: vec![sealed.clone()], since: Some(since) };
                self.stages.refetches += 1;
                self.refetch(no, since);
            }
        }
    }

    fn refetch(&mut self, no: TopicNo, since: u64) {
        if let Some(topic) = self.index.topic(no).cloned() {
            let ticket = self.ask_page(Pending::Head(no), topic, Range::Since(since), PAGE_ROWS);
            if let Some(channel) = self.channel_mut(no) {
                channel.asked = ticket;
            }
        }
    }

    fn append(&mut self, no: TopicNo, sealed: &Sealed) {
        let row = sealed.kind().row();
        let (tail, bytes_max) = (self.options.tail_events as usize, self.options.tick_bytes_max as usize);
        let key = self.merge_key(sealed);
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return };
        let live = channel.audience(&self.index);
        if row.stored {
            channel.remember(sealed, tail);
        }
        if matches!(row.kind, EventKind::MessageDeleted | EventKind::MessageRetracted) {
            self.forget_message(no, sealed);
        }
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return };
        let account = self.account.of_mut(row.class);
        account.published += live;
        match channel.open.append(sealed, no.0, key, !channel.entered, bytes_max) {
            Appended::Added => {}
            Appended::Merged => account.merged += live,
            Appended::Overflowed => account.evicted += live,
        }
        if !channel.full && channel.open.bytes() > bytes_max / 2 {
            channel.full = true;
            self.full += 1;
        }
        // Most find the channel where it is already.
        if !channel.queued || row.class == Class::Critical {
            self.queue_walk(no);
        }
    }

    /// What a mergeable event replaces, once an event.
    fn merge_key(&self, sealed: &Sealed) -> u64 {
        let row = sealed.kind().row();
        let topic = sealed.topic();
        let user = || self.hasher.hash_bytes(sealed.event().user_id.as_bytes());
        match row.merge {
            MergeKey::None => 0,
            MergeKey::Channel => topic.hash,
            MergeKey::User => user(),
            MergeKey::ChannelAndUser => topic.hash ^ user().rotate_left(1),
        }
    }

    /// To the connections of a user or a tag, one by one: there are few of them.
    fn deliver_to_members(&mut self, now: Now, no: TopicNo, sealed: &Sealed) {
        let slots: Vec<u32> =
            self.index.members(no).iter().map(|member| member.client).filter(|&slot| slot != TOMBSTONE).collect();
        let row = sealed.kind().row();
        let merge_key = self.merge_key(sealed);
        let topic_is_user = sealed.topic().scope == Scope::User;
        for slot in slots {
            let id = self.id_of(slot);
            self.account.of_mut(row.class).published += 1;
            let knows_it = topic_is_user && ends_access(sealed.kind()) && self.knows_ban(id, sealed);
            if knows_it || self.client(id).is_some_and(|client| client.conn == sealed.exclude()) {
                self.account.of_mut(row.class).excluded += 1;
                continue;
            }
            let payload = Payload::Event(sealed.clone());
            self.enqueue(now, id, entry(now, sealed.kind(), super::write::NO_CHANNEL, 0, merge_key, payload));
            if topic_is_user && ends_access(sealed.kind()) {
                self.end_access(now, id, sealed);
            }
        }
    }

    /// A message was taken back: its text, and those of its edits, leave the queues of those who are behind, and the memory
    /// of the last events.
    fn forget_message(&mut self, no: TopicNo, sealed: &Sealed) {
        let Some(target) = target_of(sealed) else { return };
        let says_it = |event: &Sealed| {
            let has_text = event.event().text.is_some() || event.event().data.is_some();
            event.event().id == target.0.to_be_bytes() || (has_text && target_of(event) == Some(target))
        };
        if let Some(channel) = self.channel_mut(no)
            && let Some(at) = channel.tail.iter().rposition(says_it)
        {
            // The tail has no holes: what is older goes with it, and is read from the store if somebody asks.
            channel.tail.drain(..=at);
        }
        for slot in self.behind.iter().collect::<Vec<u32>>() {
            let client = self.places[slot as usize].client.as_mut().filter(|client| client.sub(no).is_some());
            if let Some(behind) = client.and_then(|client| client.behind.as_mut()) {
                behind.outbox.retract(&mut self.account, |entry| match &entry.payload {
                    Payload::Event(event) => !says_it(event),
                    Payload::Own(_) => true,
                });
            }
        }
    }

    pub(super) fn on_page_answer(&mut self, now: Now, ticket: u64, answer: Result<Page, Problem>) {
        match self.pending.remove(&ticket) {
            Some(Pending::Head(no)) if self.channel_mut(no).is_some_and(|channel| channel.asked == ticket) => {
                match answer {
                    Ok(page) => self.on_head(now, no, page),
                    Err(_) => self.retry_heads.push(no),
                }
            }
            Some(Pending::Resume { client, topic }) => self.on_resume_page(now, ticket, client, topic, answer),
            Some(Pending::History { client, id, channel, latest }) => {
                self.on_history_page(now, client, id.as_deref(), &channel, latest, answer);
            }
            Some(Pending::Request(waiting)) => self.on_request_page(ticket, &waiting, answer),
            _ => {}
        }
    }

    /// The store has answered what a channel's head is, or what stands in a hole.
    fn on_head(&mut self, now: Now, no: TopicNo, page: Page) {
        let Some(channel) = self.channel_mut(no) else { return };
        let Head::Asked { held, since } = &mut channel.head else { return };
        let (held, since) = (std::mem::take(held), *since);
        channel.first_kept = page.first_kept;
        match since {
            None => {
                channel.tail = page.events.into();
                channel.head = Head::Open { epoch: page.epoch, last_seq: page.head };
            }
            Some(since) => {
                let first = page.events.first().map_or(page.head + 1, Sealed::seq);
                if first > since + 1 {
                    // Retention was faster: what nobody has any more is told at the end of the open tick, and what
                    // follows waits for the next one.
                    channel.open.lose(no.0, since + 1, first - 1);
                    channel.head = Head::Asked { held, since: Some(first - 1) };
                    self.queue_walk(no);
                    self.retry_heads.push(no);
                    return;
                }
                let mut last = since;
                for sealed in &page.events {
                    last = sealed.seq();
                    self.append(no, sealed);
                }
                let Some(channel) = self.channel_mut(no) else { return };
                // More than a page is missing, and the store has it.
                if last < page.head && !page.events.is_empty() {
                    channel.head = Head::Asked { held, since: Some(last) };
                    self.refetch(no, last);
                    return;
                }
                channel.head = Head::Open { epoch: page.epoch, last_seq: last.max(page.head) };
            }
        }
        for sealed in &held {
            self.deliver_to_channel(no, sealed);
        }
        let Some(channel) = self.channel_mut(no) else { return };
        // What was held may have shown another hole; then the answer waits for that too.
        if matches!(channel.head, Head::Open { .. }) {
            for id in std::mem::take(&mut channel.waiting) {
                self.answer_member(now, id, no);
                self.refresh(id.slot);
            }
        }
    }

    /// Asks again for heads that the store could not tell.
    pub(super) fn retry_heads(&mut self) {
        for no in std::mem::take(&mut self.retry_heads) {
            let since = match self.channel_mut(no).map(|channel| &channel.head) {
                Some(Head::Asked { since, .. }) => *since,
                _ => continue,
            };
            match (since, self.index.topic(no).cloned()) {
                (Some(since), Some(_)) => self.refetch(no, since),
                (None, Some(topic)) => self.ask_head(no, &topic),
                _ => {}
            }
        }
    }

    /// Gives a client that resumes its next stored events, when the last ones are written.
    pub(super) fn continue_resume(&mut self, now: Now, id: ClientId, no: TopicNo) {
        // What its filter leaves out is not written, so no end of a write would call again.
        while self.resume_some(now, id, no) {}
    }

    /// The next step of a recovery; true if nothing was said and the next one is due.
    fn resume_some(&mut self, now: Now, id: ClientId, no: TopicNo) -> bool {
        let bytes_max = self.options.write_bytes as usize;
        let Some(place) = self.places.get_mut(id.slot as usize) else { return false };
        let Some(client) = place.client.as_mut().filter(|_| place.generation == id.generation) else { return false };
        // Somebody may recover many channels at once: the next one's turn comes when this is written.
        if client.holds_much(&self.options.outbox) {
            return false;
        }
        let dialect = client.dialect;
        let Some(SubState::Resuming { next_seq, asked: 0 }) = client.sub(no).map(|sub| sub.state.clone()) else {
            return false;
        };
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return false };
        let Head::Open { last_seq, .. } = channel.head else {
            self.retry_resumes.push((id, no));
            return false;
        };
        if next_seq > last_seq {
            self.end_resume(now, id, no);
            return false;
        }
        let from = match (channel.tail.front(), channel.tail.back()) {
            (Some(first), Some(last)) if first.seq() <= next_seq && next_seq <= last.seq() => {
                channel.tail.partition_point(|sealed| sealed.seq() < next_seq)
            }
            _ => {
                let Some(topic) = self.index.topic(no).cloned() else { return false };
                let pending = Pending::Resume { client: id, topic: no };
                let asked = self.ask_page(pending, topic, Range::Since(next_seq - 1), PAGE_ROWS);
                if let Some(sub) = self.client_mut(id).and_then(|client| client.sub_mut(no)) {
                    sub.state = SubState::Resuming { next_seq, asked: asked as u32 };
                }
                return false;
            }
        };
        let mut bytes = 0;
        let events: Vec<Sealed> = channel
            .tail
            .range(from..)
            .take_while(|sealed| {
                let fits = bytes < bytes_max;
                bytes += sealed.json_frame().len();
                fits
            })
            .cloned()
            .collect();
        !self.give_recovered(id, no, next_seq, &events, dialect)
    }

    /// The cursor has come to the head: from here on it gets what is live. What lies in ticks was appended while it
    /// read: what is stored among it came by the cursor, so none of it is sent again, but critical events.
    fn end_resume(&mut self, now: Now, id: ClientId, no: TopicNo) {
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return };
        let client = self.places[id.slot as usize].client.as_mut();
        let Some(client) = client else { return };
        let conn = client.conn;
        let Some(sub) = client.sub_mut(no) else { return };
        let member = self.index.members(no).get(sub.position as usize);
        let owed = member.map(|member| channel.owed(member, sub)).unwrap_or_default();
        (sub.state, sub.begins) = (SubState::Live, channel.begins());
        self.refresh(id.slot);
        for sealed in owed {
            let class = sealed.kind().row().class;
            if sealed.exclude() == conn {
                self.account.of_mut(class).excluded += 1;
            } else if class == Class::Critical {
                self.enqueue(now, id, entry(now, sealed.kind(), no.0, 0, 0, Payload::Event(sealed)));
            } else {
                self.account.of_mut(class).filtered += 1;
            }
        }
    }

    fn on_resume_page(&mut self, now: Now, ticket: u64, id: ClientId, no: TopicNo, answer: Result<Page, Problem>) {
        let Some(client) = self.client_mut(id) else { return };
        let dialect = client.dialect;
        let Some(sub) = client.sub_mut(no) else { return };
        // It may have left and come again, or the number may be that of another channel by now.
        let SubState::Resuming { next_seq, asked } = sub.state else { return };
        if asked != ticket as u32 {
            return;
        }
        sub.state = SubState::Resuming { next_seq, asked: 0 };
        // Pages of other channels have come before this one: it is asked for again when they are written.
        if self.client(id).is_some_and(|client| client.holds_much(&self.options.outbox)) {
            return;
        }
        // The store may be ahead of the bus: what was not appended here yet comes live, kept or not.
        let live_seq = self.appended(no) + 1;
        match answer {
            Ok(page) if page.events.is_empty() && page.head >= next_seq && live_seq > next_seq => {
                // Retention was faster than the reader: what is gone is told.
                self.tell_unkept(id, no, next_seq, page.first_kept.max(next_seq + 1).min(live_seq));
            }
            Ok(page) => {
                if !self.give_recovered(id, no, next_seq, &page.events, dialect) {
                    self.continue_resume(now, id, no);
                }
            }
            Err(_) => self.retry_resumes.push((id, no)),
        }
        self.list(id.slot);
    }

    /// The last stored seq of a channel that came here by the bus.
    fn appended(&mut self, no: TopicNo) -> u64 {
        match self.channel_mut(no).map(|channel| &channel.head) {
            Some(Head::Open { last_seq, .. }) => *last_seq,
            Some(Head::Asked { since, .. }) => since.unwrap_or(0),
            None => 0,
        }
    }

    fn tell_unkept(&mut self, id: ClientId, no: TopicNo, from_seq: u64, next_seq: u64) {
        let name = self.channel_mut(no).map(|channel: &mut Channel| channel.name.clone()).unwrap_or_default();
        let lost = (next_seq - from_seq).min(u64::from(u32::MAX)) as u32;
        let frame = crate::wire::reply::gap(&name, from_seq, next_seq - 1, &[(EventKind::MessageNew, lost)]);
        if let Some(sub) = self.client_mut(id).and_then(|client| client.sub_mut(no)) {
            sub.state = SubState::Resuming { next_seq, asked: 0 };
        }
        self.say_first(id, &[frame]);
    }

    /// Says the next stored events; false if there was nothing to say.
    fn give_recovered(
        &mut self,
        id: ClientId,
        no: TopicNo,
        next_seq: u64,
        events: &[Sealed],
        dialect: Dialect,
    ) -> bool {
        let filter = self.client(id).and_then(|c| c.sub(no)).map_or(crate::wire::event::KindSet::ALL, |s| s.filter);
        // What was not appended here yet comes live, and must not come twice; nor is it told as gone.
        let appended = self.appended(no);
        let kept = events.first().map_or(0, Sealed::seq).min(appended + 1);
        let said = kept > next_seq;
        if said {
            self.tell_unkept(id, no, next_seq, kept);
        }
        let (mut frames, mut bytes) = (Vec::new(), 0);
        let mut next = next_seq.max(kept);
        for sealed in events.iter().filter(|sealed| (next_seq..=appended).contains(&sealed.seq())) {
            // The rest comes when this is written, so that who reads nothing holds no more than that.
            if bytes >= self.options.outbox.bytes_max as usize {
                break;
            }
            next = sealed.seq() + 1;
            if filter.contains(sealed.kind()) {
                let frame = dialect.event(sealed).into_owned();
                bytes += frame.len();
                frames.push(frame);
            }
        }
        if let Some(sub) = self.client_mut(id).and_then(|client| client.sub_mut(no)) {
            sub.state = SubState::Resuming { next_seq: next, asked: 0 };
        }
        self.say_first(id, &frames);
        said || !frames.is_empty()
    }
}

/// An entry for an outbox.
pub(super) fn entry(
    now: Now,
    kind: EventKind,
    channel: u32,
    seq: u64,
    merge_key: u64,
    payload: Payload,
) -> Entry<Payload> {
    let bytes = payload.bytes() as u32;
    Entry { kind, channel, seq, merge_key, bytes, at_ms: now.mono_ms(), payload }
}

/// The message that an event speaks of, if it is not one itself.
fn target_of(sealed: &Sealed) -> Option<Ulid> {
    let members = &sealed.event().members;
    match &members.iter().find(|pair| pair.0 == "message")?.1 {
        ArchivedMember::Text(text) => Ulid::parse(text.as_str()),
        _ => None,
    }
}
