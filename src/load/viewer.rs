//! One viewer without its socket: the handshake, the greeting, and every event into the account.
//!
//! Socket bytes and the time of their reading flow in, counts in the [`Desk`] and the viewer's [`Tally`] flow out; what
//! is always true is that the first event of a viewer is `connection.ready`, and that a delivery is found by scanning,
//! never by parsing JSON, so that the load generator is not what is measured.

use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

use super::audit::{Tally, Verdict};
use super::desk::Desk;
use super::frames::{self, BadFrame, Opcode};
use super::plan::{Count, Plan, channel_name};
use super::probe::{self, Probe};

/// The longest answer to an upgrade.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A mark and the numbers behind it.
const PROBE_BYTES_MAX: usize = 96;

/// Where a viewer is on its way. The times are those of its connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not begun.
    Idle,
    /// TCP is under way.
    Connecting(u64),
    /// The upgrade was asked for.
    Upgrading(u64),
    /// 101 came, `connection.ready` has not.
    Greeting(u64),
    /// Watching.
    Open,
    /// The connection ended after the greeting.
    Ended,
    /// The join failed.
    Failed,
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The upgrade was answered with another status than 101.
    Refused(u16),
    /// The node closed, with this code.
    Closed(u16),
    /// The node broke the protocol.
    Misbehaved(String),
}

impl From<BadFrame> for Ending {
    fn from(bad: BadFrame) -> Self {
        Self::Misbehaved(format!("the node sent {bad}"))
    }
}

/// `connection.ready`, as far as it matters here.
#[derive(Deserialize)]
struct Ready<'a> {
    seq: Option<u64>,
    recovered: Option<bool>,
    #[serde(borrow)]
    epoch: Option<&'a RawValue>,
}

/// `gap`: `dropped` counts by type.
#[derive(Deserialize)]
struct Gap {
    from_seq: Option<u64>,
    to_seq: Option<u64>,
    #[serde(default)]
    dropped: BTreeMap<String, u64>,
}

/// One viewer. Thousands exist, so it owns no memory while nothing of it is half read.
pub(super) struct Viewer {
    /// What it watches.
    pub(super) channel: u32,
    /// Whether it stops reading for a while.
    pub(super) slow: bool,
    /// Where it is.
    pub(super) phase: Phase,
    /// Its account.
    pub(super) tally: Tally,
    /// It was here before, and comes back with its position.
    returns: bool,
    /// A head or a frame that was cut by the end of a read.
    pending: Vec<u8>,
}

impl Viewer {
    /// The viewer of that number.
    pub(super) fn new(plan: &Plan, number: u32) -> Self {
        Self {
            channel: plan.channel(number),
            slow: plan.is_slow(number),
            phase: Phase::Idle,
            tally: Tally::default(),
            returns: false,
            pending: Vec::new(),
        }
    }

    /// Its connection is cut; true if it had one. What it has seen it keeps.
    pub(super) fn cut(&mut self) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        (self.phase, self.returns, self.pending) = (Phase::Idle, true, Vec::new());
        true
    }

    /// It was cut off and is not back yet.
    pub(super) fn is_away(&self) -> bool {
        self.returns && !matches!(self.phase, Phase::Open | Phase::Ended | Phase::Failed)
    }

    /// Takes what was read at `now_ns`.
    ///
    /// # Errors
    /// Why the connection is over; the viewer's phase is the caller's to change then.
    pub(super) fn on_bytes(&mut self, now_ns: u64, bytes: &[u8], desk: &mut Desk) -> Result<(), Ending> {
        if desk.stream {
            self.on_stream(now_ns, bytes, desk);
            return Ok(());
        }
        let behind_head;
        let mut bytes = bytes;
        if let Phase::Upgrading(since) = self.phase {
            self.pending.extend_from_slice(bytes);
            let Some(end) = memchr::memmem::find(&self.pending, b"\r\n\r\n") else {
                return if self.pending.len() > HEAD_BYTES_MAX {
                    Err(Ending::Misbehaved("the answer to the upgrade does not end".into()))
                } else {
                    Ok(())
                };
            };
            let head = std::mem::take(&mut self.pending);
            check_upgrade(&head[..end], &desk.accept)?;
            self.phase = Phase::Greeting(since);
            if let Some(say) = desk.says.take() {
                // No greeting is known of it: the upgrade is the join.
                self.open(now_ns, since, desk);
                let channel = channel_name(self.channel);
                for text in &say {
                    frames::put_text(&mut desk.pongs, text.replace("{channel}", &channel).as_bytes());
                }
                desk.says = Some(say);
            }
            behind_head = head;
            bytes = &behind_head[end + 4..];
        }
        // Fields are borrowed one by one, so that frames can be read from `pending` while they are counted.
        let mut pending = std::mem::take(&mut self.pending);
        let result = frames::feed(&mut pending, bytes, &mut |opcode, payload: &[u8]| match opcode {
            Opcode::Text | Opcode::Binary if desk.says.is_some() => {
                self.on_foreign(now_ns, payload, desk);
                Ok(())
            }
            Opcode::Text => self.on_event(now_ns, payload, desk),
            Opcode::Ping => {
                // The mask is any four bytes; what matters is only that they are not always the same.
                frames::put_pong(&mut desk.pongs, payload, (now_ns as u32).to_be_bytes());
                Ok(())
            }
            Opcode::Pong => Ok(()),
            Opcode::Close => {
                Err(Ending::Closed(payload.first_chunk::<2>().map_or(1005, |code| u16::from_be_bytes(*code))))
            }
            Opcode::Binary => Err(Ending::Misbehaved("the node sent a binary frame into a JSON stream".into())),
        });
        self.pending = pending;
        result
    }

    /// The viewer has joined a server that greets nobody.
    pub(super) fn open(&mut self, now_ns: u64, since: u64, desk: &mut Desk) {
        self.tally = Tally::after(0);
        self.phase = Phase::Open;
        desk.joins.record(now_ns.saturating_sub(since));
        desk.last_greeting_ns = desk.last_greeting_ns.max(Some(now_ns));
    }

    /// Every probe in what another server sent.
    fn on_foreign(&mut self, now_ns: u64, mut bytes: &[u8], desk: &mut Desk) {
        while let Some(at) = desk.mark.find(bytes) {
            bytes = &bytes[at + probe::MARK.len()..];
            if let Some(probe) = Probe::read(bytes).filter(|probe| probe.run == desk.run) {
                let verdict = self.tally.message(probe.in_channel, true);
                self.count(now_ns, verdict, Some(probe), desk);
            }
        }
    }

    /// Bytes without frames: a probe that may be cut waits for the rest.
    fn on_stream(&mut self, now_ns: u64, bytes: &[u8], desk: &mut Desk) {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let tail = all.len().saturating_sub(PROBE_BYTES_MAX);
        let last = memchr::memmem::rfind(&all[tail..], probe::MARK).map(|at| tail + at);
        let cut = last.filter(|&at| Probe::read(&all[at + probe::MARK.len()..]).is_none());
        let begun = (1..probe::MARK.len()).rev().find(|&length| all.ends_with(&probe::MARK[..length])).unwrap_or(0);
        let whole = cut.unwrap_or(all.len() - begun);
        self.on_foreign(now_ns, &all[..whole], desk);
        all.drain(..whole);
        // Thousands of viewers wait: none keeps more than it needs.
        self.pending = if all.is_empty() { Vec::new() } else { all };
    }

    fn on_event(&mut self, now_ns: u64, event: &[u8], desk: &mut Desk) -> Result<(), Ending> {
        let kind = kind_of(event).ok_or_else(|| misread("an event without a type", event))?;
        if let Phase::Greeting(since) = self.phase {
            return if kind == b"connection.ready" {
                self.on_ready(now_ns, since, event, desk)
            } else {
                Err(misread("another event before connection.ready", event))
            };
        }
        match kind {
            b"message.new" => self.on_stored(now_ns, event, desk),
            b"custom.load" if desk.ephemeral => {
                self.on_ephemeral(now_ns, event, desk);
                Ok(())
            }
            b"custom.load" => {
                desk.heard.custom += u64::from(Self::probe(event, desk).is_some());
                Ok(())
            }
            b"typing.start" | b"typing.stop" => {
                desk.heard.typing += 1;
                Ok(())
            }
            b"gap" => self.on_gap(event, desk),
            b"viewers.updated" => {
                desk.others += 1;
                desk.heard.totals += 1;
                // A paused viewer reads a count from the past.
                if !self.slow
                    && let Some(connections) = number_behind(&desk.connections, event)
                {
                    desk.channels[self.channel as usize].count = Some(Count { connections, at_ns: now_ns });
                }
                Ok(())
            }
            b"connection.ready" => Err(misread("a second greeting", event)),
            _ if kind.starts_with(b"message.") || kind.starts_with(b"reaction.") => self.on_stored(now_ns, event, desk),
            _ => {
                desk.others += 1;
                Ok(())
            }
        }
    }

    fn on_ready(&mut self, now_ns: u64, since: u64, event: &[u8], desk: &mut Desk) -> Result<(), Ending> {
        let ready: Ready<'_> =
            serde_json::from_slice(event).map_err(|_| misread("a connection.ready that cannot be read", event))?;
        let head = ready.seq.unwrap_or(0);
        if !self.returns {
            self.tally = Tally::after(if desk.ephemeral { 0 } else { head });
        } else if ready.recovered != Some(true) {
            return Err(misread("a position that is not honoured", event));
        }
        self.phase = Phase::Open;
        desk.joins.record(now_ns.saturating_sub(since));
        desk.last_greeting_ns = desk.last_greeting_ns.max(Some(now_ns));
        let seen = &mut desk.channels[self.channel as usize];
        match (&seen.epoch, ready.epoch) {
            (None, Some(epoch)) => seen.epoch = Some(epoch.get().to_owned()),
            (Some(known), Some(epoch)) if known != epoch.get() => desk.epoch_changes += 1,
            _ => {}
        }
        Ok(())
    }

    /// This run's probe in `event`, if there is one.
    fn probe(event: &[u8], desk: &Desk) -> Option<Probe> {
        let at = desk.mark.find(event)? + probe::MARK.len();
        Probe::read(&event[at..]).filter(|probe| probe.run == desk.run)
    }

    fn on_stored(&mut self, now_ns: u64, event: &[u8], desk: &mut Desk) -> Result<(), Ending> {
        if desk.ephemeral {
            desk.foreign += 1;
            return Ok(());
        }
        let seq = number_behind(&desk.seq, event).ok_or_else(|| misread("a message without a seq", event))?;
        let probe = Self::probe(event, desk);
        let verdict = self.tally.message(seq, probe.is_some());
        self.count(now_ns, verdict, probe, desk);
        Ok(())
    }

    fn on_ephemeral(&mut self, now_ns: u64, event: &[u8], desk: &mut Desk) {
        let probe = Self::probe(event, desk);
        let verdict = probe.map_or(Verdict::Delivered, |probe| self.tally.message(probe.in_channel, true));
        self.count(now_ns, verdict, probe, desk);
    }

    fn count(&self, now_ns: u64, verdict: Verdict, probe: Option<Probe>, desk: &mut Desk) {
        let Some(probe) = probe else {
            desk.foreign += 1;
            return;
        };
        desk.delivered += 1;
        if verdict == Verdict::Delivered && probe.due_ns >= desk.measure_from_ns {
            let latency = now_ns.saturating_sub(probe.due_ns);
            if self.slow { &mut desk.slow } else { &mut desk.healthy }.record(latency);
        }
    }

    fn on_gap(&mut self, event: &[u8], desk: &mut Desk) -> Result<(), Ending> {
        let gap: Gap = serde_json::from_slice(event).map_err(|_| misread("a gap that cannot be read", event))?;
        let counted = |kind: &str| {
            if desk.ephemeral {
                kind.starts_with("custom.")
            } else {
                kind.starts_with("message.") || kind.starts_with("reaction.")
            }
        };
        let told = |begin: &str| -> u64 {
            gap.dropped.iter().filter(|(kind, _)| kind.starts_with(begin)).map(|(_, count)| count).sum()
        };
        desk.heard.typing_told += told("typing.");
        if !desk.ephemeral {
            desk.heard.custom_told += told("custom.");
        }
        let lost = gap.dropped.iter().filter(|(kind, _)| counted(kind)).map(|(_, count)| count).sum();
        // Seqs say where stored events were lost; of others only the number is told.
        let range = gap.from_seq.zip(gap.to_seq).filter(|_| !desk.ephemeral);
        self.tally.gap(range, lost);
        Ok(())
    }
}

/// The type of an event. The node writes it first; elsewhere it is looked for.
fn kind_of(event: &[u8]) -> Option<&[u8]> {
    const FIRST: &[u8] = b"{\"type\":\"";
    const ELSEWHERE: &[u8] = b"\"type\":\"";
    let kind = match event.strip_prefix(FIRST) {
        Some(rest) => rest,
        None => &event[memchr::memmem::find(event, ELSEWHERE)? + ELSEWHERE.len()..],
    };
    Some(&kind[..memchr::memchr(b'"', kind)?])
}

/// The number that follows the first occurrence of a key.
fn number_behind(key: &Finder<'_>, event: &[u8]) -> Option<u64> {
    let at = key.find(event)? + key.needle().len();
    probe::digits(event[at..].trim_ascii_start()).map(|(number, _)| number)
}

fn misread(what: &str, event: &[u8]) -> Ending {
    Ending::Misbehaved(format!("{what}: {}", String::from_utf8_lossy(&event[..event.len().min(160)])))
}

/// Checks the head of the answer to an upgrade, without its empty line.
fn check_upgrade(head: &[u8], accept: &str) -> Result<(), Ending> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).and_then(|rest| rest.get(..3));
    match status.and_then(|status| status.parse().ok()) {
        Some(101) => {}
        Some(status) => return Err(Ending::Refused(status)),
        None => return Err(Ending::Misbehaved("the answer to the upgrade has no status".into())),
    }
    let accepted = lines
        .filter_map(|line| line.split_once(':'))
        .any(|(name, value)| name.eq_ignore_ascii_case("sec-websocket-accept") && value.trim() == accept);
    if accepted { Ok(()) } else { Err(Ending::Misbehaved("a 101 with a wrong Sec-WebSocket-Accept".into())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::audit::{ChannelTarget, Side};
    use crate::load::plan::tests::plan;

    fn text(payload: &str) -> Vec<u8> {
        let mut out = vec![0x81];
        if payload.len() < 126 {
            out.push(payload.len() as u8);
        } else {
            out.push(126);
            out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        }
        out.extend_from_slice(payload.as_bytes());
        out
    }

    fn message(seq: u64, due_ns: u64) -> Vec<u8> {
        let mut probe = Vec::new();
        Probe { run: 1, number: seq, in_channel: seq, due_ns }.put(&mut probe, 80);
        let probe = String::from_utf8(probe).unwrap();
        text(&format!(
            r#"{{"type":"message.new","channel":"load-0","seq":{seq},"id":"01J","user":{{"id":"load"}},"text":"{probe}"}}"#
        ))
    }

    fn greeted() -> Vec<u8> {
        let accept = tungstenite::handshake::derive_accept_key(b"key");
        let mut bytes =
            format!("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nsec-websocket-accept: {accept}\r\n\r\n")
                .into_bytes();
        bytes.extend(text(r#"{"type":"connection.ready","conn":"a","room":"r","epoch":"e1","seq":4,"viewers":1}"#));
        bytes
    }

    fn viewer() -> (Viewer, Desk) {
        let plan = plan(1, 1, 0.0);
        let mut viewer = Viewer::new(&plan, 0);
        viewer.phase = Phase::Upgrading(0);
        let mut desk = Desk::new(&plan, "key");
        desk.measure_from_ns = 100;
        (viewer, desk)
    }

    #[test]
    fn a_stream_cut_anywhere_is_the_same_story() {
        let mut stream = greeted();
        stream.extend(message(5, 50));
        stream.extend([0x89, 2, b'h', b'i']);
        stream.extend(message(6, 1_000_100));
        stream.extend(text(r#"{"type":"viewers.updated","channel":"load-0","connections":17,"users":0}"#));
        stream.extend(text(
            r#"{"type":"gap","channel":"load-0","from_seq":7,"to_seq":8,"dropped":{"message.new":2,"custom.x":9}}"#,
        ));
        stream.extend(message(9, 2_000_100));
        for cut in 0..=stream.len() {
            let (mut viewer, mut desk) = viewer();
            viewer.on_bytes(5_000_100, &stream[..cut], &mut desk).unwrap();
            viewer.on_bytes(5_000_100, &stream[cut..], &mut desk).unwrap();
            assert_eq!(viewer.phase, Phase::Open);
            assert_eq!(desk.healthy.len(), 2, "what was due before the measurement is not timed");
            assert!((desk.healthy.max_ms() - 4.0).abs() < 0.01 || (desk.healthy.max_ms() - 5.0).abs() < 0.01);
            assert_eq!(desk.channels[0].count.unwrap().connections, 17);
            assert_eq!(desk.channels[0].epoch.as_deref(), Some("\"e1\""));
            assert_eq!(desk.pongs.len(), 8);
            let mut side = Side::default();
            viewer.tally.settle(ChannelTarget { acked: 5, last: 9 }, false, &mut side);
            assert!(side.clean(), "{side:?}");
            assert_eq!((side.delivered, side.told_gaps), (3, 2));
            assert!(viewer.pending.is_empty() && viewer.pending.capacity() == 0);
        }
    }

    #[test]
    fn refusals_wrong_answers_and_wrong_first_events_end_the_join() {
        let (mut one, mut desk) = viewer();
        assert_eq!(
            one.on_bytes(0, b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\r\n", &mut desk),
            Err(Ending::Refused(503))
        );
        let (mut one, mut desk) = viewer();
        let wrong = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: nonsense\r\n\r\n";
        assert!(matches!(one.on_bytes(0, wrong, &mut desk), Err(Ending::Misbehaved(_))));
        let (mut one, mut desk) = viewer();
        let head = greeted();
        let end = memchr::memmem::find(&head, b"\r\n\r\n").unwrap() + 4;
        one.on_bytes(0, &head[..end], &mut desk).unwrap();
        assert!(matches!(one.on_bytes(0, &message(5, 0), &mut desk), Err(Ending::Misbehaved(_))));
    }

    #[test]
    fn closes_are_told_by_code_and_foreign_messages_move_the_position() {
        let (mut one, mut desk) = viewer();
        one.on_bytes(0, &greeted(), &mut desk).unwrap();
        one.on_bytes(0, &text(r#"{"type":"message.new","seq":5,"text":"somebody else"}"#), &mut desk).unwrap();
        assert_eq!((desk.foreign, one.tally.last, one.tally.delivered), (1, 5, 0));
        assert_eq!(one.on_bytes(0, &[0x88, 2, 0x11, 0x9C], &mut desk), Err(Ending::Closed(4508)));
    }

    #[test]
    fn events_that_are_not_stored_are_counted_by_the_probe() {
        let mut plan = plan(1, 1, 0.0);
        plan.ephemeral = true;
        let mut viewer = Viewer::new(&plan, 0);
        viewer.phase = Phase::Upgrading(0);
        let mut desk = Desk::new(&plan, "key");
        viewer.on_bytes(0, &greeted(), &mut desk).unwrap();
        for in_channel in [1, 2, 4] {
            let mut probe = Vec::new();
            Probe { run: 1, number: 0, in_channel, due_ns: 0 }.put(&mut probe, 0);
            let probe = String::from_utf8(probe).unwrap();
            let event = format!(r#"{{"type":"custom.load","channel":"load-0","data":{{"probe":"{probe}"}}}}"#);
            viewer.on_bytes(0, &text(&event), &mut desk).unwrap();
        }
        let mut side = Side::default();
        viewer.tally.settle(ChannelTarget { acked: 4, last: 4 }, false, &mut side);
        assert_eq!((side.delivered, side.missing), (3, 1));
    }
}
