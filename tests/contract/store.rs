//! The contract of `Store`: the same suite for the database and for the memory of simulations.

use ringcast::base::{ChannelKey, Name, RoomChange, RoomId, ShardId, Ulid};
use ringcast::store::{
    AlarmChange, Appended, Ban, FirstAnswer, IDEMPOTENCY_KEPT_MS, Memory, NewEvent, OpenError, OpenOptions, Page,
    PageAsk, Pages, Position, Retention, Sqlite, Store, StoreError,
};
use ringcast::wire::event::EventKind;
use std::path::PathBuf;

/// Makes a store and puts it through what may happen to one.
pub(crate) trait Factory {
    type Kind: Store;
    fn fresh() -> Self;
    fn store(&mut self) -> &mut Self::Kind;
    /// Ends the process and begins the next one.
    fn reopen(&mut self);
    /// Begins the next process on a copy that was put back.
    fn restore(&mut self, seed: u64);
    /// Lets the next commit of many bytes fail for want of room.
    fn starve(&mut self);
    /// Ends what `starve` began.
    fn feed(&mut self);
}

pub(crate) struct OnDisk {
    path: PathBuf,
    store: Option<Sqlite>,
    _dir: tempfile::TempDir,
}

impl OnDisk {
    fn open(&mut self, options: &OpenOptions) {
        self.store = None;
        self.store = Some(Sqlite::open(&self.path, options).unwrap());
    }
}

impl Factory for OnDisk {
    type Kind = Sqlite;

    fn fresh() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut this = Self { path: dir.path().join("ringcast.db"), store: None, _dir: dir };
        this.open(&OpenOptions { fresh_epoch_seed: 1, ..OpenOptions::default() });
        this
    }

    fn store(&mut self) -> &mut Sqlite {
        self.store.as_mut().unwrap()
    }

    fn reopen(&mut self) {
        self.open(&OpenOptions { fresh_epoch_seed: 99, ..OpenOptions::default() });
    }

    fn restore(&mut self, seed: u64) {
        self.store = None;
        let options = OpenOptions { fresh_epoch_seed: seed, ..OpenOptions::default() };
        self.store = Some(Sqlite::restored(&self.path, &options).unwrap());
    }

    fn starve(&mut self) {
        self.open(&OpenOptions { bytes_max: 1, ..OpenOptions::default() });
    }

    fn feed(&mut self) {
        self.reopen();
    }
}

pub(crate) struct InMemory(Memory);

impl Factory for InMemory {
    type Kind = Memory;

    fn fresh() -> Self {
        Self(Memory::new(1))
    }

    fn store(&mut self) -> &mut Memory {
        &mut self.0
    }

    fn reopen(&mut self) {
        self.0 = self.0.clone().reopened();
    }

    fn restore(&mut self, seed: u64) {
        self.0 = self.0.clone().restored(seed);
    }

    fn starve(&mut self) {
        self.0.fail_next(1, StoreError::Full);
    }

    fn feed(&mut self) {
        self.0.fail_next(0, StoreError::Full);
    }
}

macro_rules! suite {
    ($($test:ident)*) => {
        mod sqlite { $(#[test] fn $test() { super::$test::<super::OnDisk>(); })* }
        mod memory { $(#[test] fn $test() { super::$test::<super::InMemory>(); })* }
    };
}

suite! {
    seq_rises_by_one_a_channel_with_no_hole
    pages_are_cut_and_ordered_as_asked
    rule_04_epoch_is_known_before_the_first_write_and_stays
    rule_13_head_is_a_column_and_survives_retention
    rule_13_a_failed_commit_rereads_the_head
    rule_13_a_restored_database_gets_a_new_epoch
    a_repeat_gets_the_first_answer_also_within_a_batch
    idempotency_keys_are_kept_for_a_day
    a_retracted_message_loses_its_text_everywhere
    every_field_comes_back
    retention_goes_in_slices_and_leaves_no_hole
    room_counts_are_zero_after_a_start
    one_alarm_a_channel_and_the_later_setting_wins
    bans_have_one_slot_each_and_end
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn channel(text: &str) -> ChannelKey {
    ChannelKey::new(name("demo"), name(text))
}

pub(crate) fn message(key: &ChannelKey, n: u64) -> NewEvent {
    NewEvent {
        key: key.clone(),
        kind: EventKind::MessageNew,
        id: Ulid::new(1_000 + n, u128::from(n)),
        ts_ms: 1_000 + n,
        user_id: Some("u1".to_owned()),
        user_name: None,
        text: Some(format!("message {n}")),
        data: None,
        target: None,
        detail: None,
        client_id: None,
        idempotency_key: None,
    }
}

fn messages(key: &ChannelKey, numbers: std::ops::RangeInclusive<u64>) -> Vec<NewEvent> {
    numbers.map(|n| message(key, n)).collect()
}

fn seq(appended: &Appended) -> u64 {
    match appended {
        Appended::New { position } | Appended::Repeat(FirstAnswer { position, .. }) => position.seq,
        Appended::NoTarget => panic!("it has no place"),
    }
}

pub(crate) fn seqs(page: &Page) -> Vec<u64> {
    page.events.iter().map(|event| event.seq).collect()
}

pub(crate) fn latest<S: Store>(store: &mut S, key: &ChannelKey) -> Page {
    store.page(key, PageAsk::Latest { limit: 1_000 }).unwrap()
}

fn seq_rises_by_one_a_channel_with_no_hole<F: Factory>() {
    let mut f = F::fresh();
    let (a, b) = (channel("a"), channel("b"));
    let batch = [message(&a, 1), message(&b, 2), message(&a, 3)];
    let answers = f.store().commit(0, &batch).unwrap();
    assert_eq!(answers.iter().map(seq).collect::<Vec<_>>(), [1, 1, 2]);
    f.reopen();
    let answers = f.store().commit(0, &[message(&a, 4), message(&b, 5)]).unwrap();
    assert_eq!(answers.iter().map(seq).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(seqs(&latest(f.store(), &a)), [1, 2, 3]);
    assert_eq!(f.store().commit(0, &[]), Ok(Vec::new()));
}

fn pages_are_cut_and_ordered_as_asked<F: Factory>() {
    let mut f = F::fresh();
    let key = channel("a");
    f.store().commit(0, &messages(&key, 1..=10)).unwrap();
    for (ask, expected) in [
        (PageAsk::Latest { limit: 3 }, vec![8, 9, 10]),
        (PageAsk::Before { seq: 5, limit: 2 }, vec![3, 4]),
        (PageAsk::Before { seq: 1, limit: 2 }, vec![]),
        (PageAsk::Before { seq: u64::MAX, limit: 1 }, vec![10]),
        (PageAsk::Since { seq: 5, limit: 2 }, vec![6, 7]),
        (PageAsk::Since { seq: 9, limit: 50 }, vec![10]),
        (PageAsk::Since { seq: u64::MAX, limit: 50 }, vec![]),
        (PageAsk::Latest { limit: 0 }, vec![]),
    ] {
        let page = f.store().page(&key, ask).unwrap();
        assert_eq!((seqs(&page), page.head, page.first_kept), (expected, 10, 1), "{ask:?}");
    }
    f.store().commit(0, &messages(&channel("long"), 1..=1_200)).unwrap();
    let page = f.store().page(&channel("long"), PageAsk::Since { seq: 0, limit: u32::MAX }).unwrap();
    assert_eq!(page.events.len(), 1_000);
}

fn rule_04_epoch_is_known_before_the_first_write_and_stays<F: Factory>() {
    let mut f = F::fresh();
    let key = channel("a");
    let before = latest(f.store(), &key);
    assert_eq!((before.head, before.first_kept, before.events.len()), (0, 1, 0));
    assert!((1..1 << 53).contains(&before.epoch));
    assert_ne!(before.epoch, latest(f.store(), &channel("b")).epoch);
    f.reopen();
    assert_eq!(latest(f.store(), &key).epoch, before.epoch);
    let answers = f.store().commit(0, &[message(&key, 1)]).unwrap();
    assert_eq!(answers, [Appended::New { position: Position { epoch: before.epoch, seq: 1 } }]);
    let page = latest(f.store(), &key);
    assert_eq!((page.epoch, page.events[0].epoch), (before.epoch, before.epoch));
}

fn rule_13_head_is_a_column_and_survives_retention<F: Factory>() {
    let mut f = F::fresh();
    let key = channel("a");
    f.store().commit(0, &messages(&key, 1..=5)).unwrap();
    let ask =
        Retention { app: key.app.clone(), from: None, older_than_ms: Some(u64::MAX), keep_last: None, slice: 100 };
    assert_eq!(f.store().retain(&ask).unwrap().deleted, 5);
    f.reopen();
    let page = latest(f.store(), &key);
    assert_eq!((page.head, page.first_kept, page.events.len()), (5, 6, 0));
    assert_eq!(seq(&f.store().commit(0, &[message(&key, 6)]).unwrap()[0]), 6);
}

fn rule_13_a_failed_commit_rereads_the_head<F: Factory>() {
    let mut f = F::fresh();
    let (key, other) = (channel("a"), channel("never-written"));
    f.store().commit(0, &messages(&key, 1..=3)).unwrap();
    f.starve();
    let mut batch = messages(&key, 4..=40);
    batch.push(message(&other, 41));
    for event in &mut batch {
        event.text = Some("x".repeat(16_384));
        event.idempotency_key = Some(format!("key {}", event.ts_ms));
    }
    assert_eq!(f.store().commit(0, &batch), Err(StoreError::Full));
    let page = latest(f.store(), &key);
    assert_eq!((page.head, seqs(&page)), (3, vec![1, 2, 3]));
    assert_eq!(latest(f.store(), &other).head, 0);
    f.feed();
    let answers = f.store().commit(0, &batch).unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Appended::New { .. })), "no key of the failed batch is kept");
    assert_eq!(seq(&answers[0]), 4);
}

fn rule_13_a_restored_database_gets_a_new_epoch<F: Factory>() {
    let mut f = F::fresh();
    let (written, unwritten) = (channel("a"), channel("b"));
    f.store().commit(0, &messages(&written, 1..=2)).unwrap();
    let before = [latest(f.store(), &written).epoch, latest(f.store(), &unwritten).epoch];
    // The very seed that the database was made with: a restore by a copied command line must not bring the old epoch.
    f.restore(1);
    let page = latest(f.store(), &written);
    let after = [page.epoch, latest(f.store(), &unwritten).epoch];
    assert!(before.iter().all(|epoch| !after.contains(epoch)));
    assert_eq!((page.head, seqs(&page), page.events[0].epoch), (2, vec![1, 2], page.epoch));
    assert_eq!(
        f.store().commit(0, &[message(&written, 3)]).unwrap(),
        [Appended::New { position: Position { epoch: after[0], seq: 3 } }]
    );
    f.reopen();
    assert_eq!(latest(f.store(), &written).epoch, after[0]);
}

fn a_repeat_gets_the_first_answer_also_within_a_batch<F: Factory>() {
    let mut f = F::fresh();
    let key = channel("a");
    let keyed = |n: u64, idempotency_key: &str| NewEvent {
        idempotency_key: Some(idempotency_key.to_owned()),
        ..message(&key, n)
    };
    let answers = f.store().commit(5, &[keyed(1, "k"), keyed(2, "k"), message(&key, 3)]).unwrap();
    let Appended::New { position } = answers[0] else { panic!("{answers:?}") };
    let first = FirstAnswer { id: message(&key, 1).id, position, ts_ms: 1_001 };
    let repeat = Appended::Repeat(first);
    assert_eq!(answers[1], repeat);
    assert_eq!((f.store().first_answer(5, "k"), f.store().first_answer(5, "j")), (Ok(Some(first)), Ok(None)));
    assert_eq!(seq(&answers[2]), 2, "a repeat takes no seq");
    f.reopen();
    assert_eq!(f.store().commit(6, &[keyed(4, "k")]).unwrap(), [repeat]);
    assert_eq!(latest(f.store(), &key).head, 2);
}

fn idempotency_keys_are_kept_for_a_day<F: Factory>() {
    let mut f = F::fresh();
    let key = channel("a");
    let keyed = |n: u64| NewEvent { idempotency_key: Some(format!("k{}", n % 10)), ..message(&key, n) };
    let start = 1_796_050_000_000;
    f.store().commit(start, &[keyed(1), keyed(2), keyed(3)]).unwrap();
    let last_moment = start + IDEMPOTENCY_KEPT_MS - 1;
    assert_eq!(f.store().idempotency_sweep(last_moment, 100), Ok(0));
    assert!(matches!(f.store().commit(last_moment, &[keyed(11)]).unwrap()[..], [Appended::Repeat(_)]));
    assert!(f.store().first_answer(last_moment, "k1").unwrap().is_some());
    assert_eq!(f.store().first_answer(last_moment + 1, "k1"), Ok(None));
    // A key that is due to be forgotten is not honoured, whether it was swept or not; it then lives for another day.
    assert!(matches!(f.store().commit(last_moment + 1, &[keyed(21)]).unwrap()[..], [Appended::New { .. }]));
    assert_eq!(f.store().idempotency_sweep(last_moment + 1, 1), Ok(1));
    assert_eq!(f.store().idempotency_sweep(last_moment + 1, 100), Ok(1));
    assert!(matches!(f.store().commit(last_moment + 2, &[keyed(31)]).unwrap()[..], [Appended::Repeat(_)]));
}

fn a_retracted_message_loses_its_text_everywhere<F: Factory>() {
    let mut f = F::fresh();
    let key = channel("a");
    let speaks_of = |n: u64, kind: EventKind| NewEvent { kind, target: Some(message(&key, 1).id), ..message(&key, n) };
    f.store().commit(0, &[message(&key, 1), message(&key, 2), speaks_of(3, EventKind::MessageUpdated)]).unwrap();
    let retraction = NewEvent { text: None, ..speaks_of(4, EventKind::MessageRetracted) };
    f.store().commit(0, &[retraction]).unwrap();
    let texts: Vec<_> = latest(f.store(), &key).events.into_iter().map(|event| event.text.is_some()).collect();
    assert_eq!(texts, [false, true, false, false]);
    let found = f.store().find(&key, message(&key, 1).id).unwrap().unwrap();
    assert_eq!((found.seq, found.user_id.as_deref(), found.text), (1, Some("u1"), None));
    assert_eq!(f.store().find(&channel("b"), found.id), Ok(None));
    assert_eq!(f.store().find(&key, Ulid(1)), Ok(None));
}

fn every_field_comes_back<F: Factory>() {
    let mut f = F::fresh();
    let target = message(&channel("a"), 1);
    let event = NewEvent {
        key: channel("a"),
        kind: EventKind::ReactionNew,
        id: Ulid(u128::MAX),
        ts_ms: 1_796_050_000_123,
        user_id: Some("u1".to_owned()),
        user_name: Some("Ånn 🏁".to_owned()),
        text: Some("a\0b".to_owned()),
        data: Some(r#"{"lap":7}"#.to_owned()),
        target: Some(target.id),
        detail: Some("like".to_owned()),
        client_id: Some(String::new()),
        idempotency_key: Some("k".to_owned()),
    };
    f.store().commit(0, &[target, event.clone()]).unwrap();
    f.reopen();
    let page = latest(f.store(), &event.key);
    let stored = page.events.into_iter().next_back().unwrap();
    assert_eq!((stored.seq, stored.epoch), (2, page.epoch));
    let back = NewEvent {
        key: stored.key,
        kind: stored.kind,
        id: stored.id,
        ts_ms: stored.ts_ms,
        user_id: stored.user_id,
        user_name: stored.user_name,
        text: stored.text,
        data: stored.data,
        target: stored.target,
        detail: stored.detail,
        client_id: stored.client_id,
        idempotency_key: Some("k".to_owned()),
    };
    assert_eq!(back, event);
}

fn retention_goes_in_slices_and_leaves_no_hole<F: Factory>() {
    let mut f = F::fresh();
    let (a, b) = (channel("a"), channel("b"));
    let foreign = ChannelKey::new(name("other"), name("a"));
    f.store().commit(0, &messages(&a, 1..=10)).unwrap();
    f.store().commit(0, &messages(&b, 1..=3)).unwrap();
    f.store().commit(0, &messages(&foreign, 1..=3)).unwrap();
    // One event with a clock that ran ahead holds back what is behind it, so that what is kept has no hole.
    f.store().commit(0, &[NewEvent { ts_ms: 9_000, ..message(&b, 4) }, message(&b, 5)]).unwrap();
    let mut ask =
        Retention { app: a.app.clone(), from: None, older_than_ms: Some(1_006), keep_last: Some(8), slice: 4 };
    let (mut calls, mut deleted) = (0, 0);
    loop {
        let done = f.store().retain(&ask).unwrap();
        assert!(done.deleted <= 4);
        (calls, deleted) = (calls + 1, deleted + done.deleted);
        match done.next {
            Some(next) => ask.from = Some(next),
            None => break,
        }
    }
    assert_eq!((calls, deleted), (3, 8));
    let page = latest(f.store(), &a);
    assert_eq!((page.first_kept, page.head, page.events.len()), (6, 10, 5), "by age: 1001 … 1005 are too old");
    let page = latest(f.store(), &b);
    assert_eq!((page.first_kept, seqs(&page)), (4, vec![4, 5]));
    assert_eq!(latest(f.store(), &foreign).events.len(), 3);
    let ask = Retention { from: None, older_than_ms: None, keep_last: Some(2), slice: 100, ..ask };
    f.store().retain(&ask).unwrap();
    assert_eq!(seqs(&latest(f.store(), &a)), [9, 10]);
}

fn room_counts_are_zero_after_a_start<F: Factory>() {
    let mut f = F::fresh();
    let room = |n, shard| RoomId { n, shard: ShardId(shard) };
    let change = |n, shard, viewers| RoomChange { key: channel("a"), room: room(n, shard), viewers };
    f.store().rooms_save(&[change(1, 0, Some(500)), change(2, 1, Some(3)), change(10, 0, Some(1))]).unwrap();
    f.store().rooms_save(&[change(2, 1, Some(4)), change(10, 0, None)]).unwrap();
    let rooms = |store: &mut F::Kind| -> Vec<_> {
        store.rooms_load().unwrap().into_iter().map(|row| (row.room, row.viewers)).collect()
    };
    assert_eq!(rooms(f.store()), [(room(1, 0), 500), (room(2, 1), 4)]);
    f.reopen();
    assert_eq!(rooms(f.store()), [(room(1, 0), 0), (room(2, 1), 0)]);
}

fn one_alarm_a_channel_and_the_later_setting_wins<F: Factory>() {
    let mut f = F::fresh();
    let (a, b) = (channel("a"), channel("b"));
    assert_eq!(f.store().alarm_next(), Ok(None));
    let old = f.store().alarm_set(&a, 50, "{\"n\":1}").unwrap();
    let version = f.store().alarm_set(&a, 30, "{\"n\":2}").unwrap();
    let other = f.store().alarm_set(&b, 20, "{}").unwrap();
    assert!(old < version && version < other);
    f.reopen();
    assert_eq!(f.store().alarm_next(), Ok(Some(20)));
    assert_eq!(f.store().alarms(19, 10), Ok(Vec::new()));
    let all = f.store().alarms(u64::MAX, 10).unwrap();
    assert_eq!(all.iter().map(|alarm| (alarm.due_ms, alarm.tries)).collect::<Vec<_>>(), [(20, 0), (30, 0)]);
    assert_eq!((all[1].event.as_str(), all[1].version), ("{\"n\":2}", version));
    assert_eq!(f.store().alarms(30, 1).unwrap().len(), 1);
    assert_eq!(
        f.store().alarms_done(&[(a.clone(), old)]),
        Ok(vec![false]),
        "an alarm that rang leaves its successor alone"
    );
    assert_eq!(f.store().alarms_retry(&[((a.clone(), old), 99)]), Ok(vec![false]));
    assert_eq!(f.store().alarms_retry(&[((a.clone(), version), 40)]), Ok(vec![true]));
    let retried = &f.store().alarms(u64::MAX, 10).unwrap()[1];
    assert_eq!((retried.due_ms, retried.tries, retried.version), (40, 1, version));
    assert_eq!(f.store().alarms_done(&[(a.clone(), version)]), Ok(vec![true]));
    assert_eq!(f.store().alarm_clear(&b), Ok(true));
    assert_eq!(f.store().alarm_clear(&b), Ok(false));
    assert!(f.store().alarm_set(&b, 1, "{}").unwrap() > other, "a version is never given twice");
    // Together, in their order, the last of a slot counts.
    let set = |key, due_ms| AlarmChange { key, set: Some((due_ms, "{}")) };
    let changes = [set(&a, 7), set(&b, 8), AlarmChange { key: &a, set: None }, set(&b, 9)];
    assert_eq!(f.store().alarms_change(&changes), Ok(()));
    f.reopen();
    let all = f.store().alarms(u64::MAX, 10).unwrap();
    assert_eq!(all.iter().map(|alarm| (&alarm.key, alarm.due_ms, alarm.tries)).collect::<Vec<_>>(), [(&b, 9, 0)]);
    assert_eq!(f.store().alarms_change(&[]), Ok(()));
}

fn bans_have_one_slot_each_and_end<F: Factory>() {
    let mut f = F::fresh();
    let ban = |user: &str, channel: Option<&str>, expires_ms| Ban {
        app: name("demo"),
        user: name(user),
        channel: channel.map(name),
        expires_ms,
    };
    for set in [ban("ann", None, Some(10)), ban("ann", None, Some(20)), ban("ann", Some("a"), None)] {
        f.store().ban_set(&set).unwrap();
    }
    f.store().ban_set(&ban("bob", None, Some(20))).unwrap();
    f.reopen();
    assert_eq!(
        f.store().bans(19).unwrap(),
        [ban("ann", None, Some(20)), ban("ann", Some("a"), None), ban("bob", None, Some(20))]
    );
    assert_eq!(f.store().bans(20).unwrap(), [ban("ann", Some("a"), None)]);
    assert_eq!(f.store().bans_sweep(20, 1), Ok(1));
    assert_eq!(f.store().bans_sweep(20, 10), Ok(1));
    assert_eq!(f.store().ban_clear(&name("demo"), &name("ann"), None), Ok(false));
    assert_eq!(f.store().ban_clear(&name("demo"), &name("ann"), Some(&name("a"))), Ok(true));
    assert_eq!(f.store().bans(0).unwrap(), []);
}

/// What only a file can do.
mod file {
    use super::*;
    use std::fs;

    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ringcast.db");
        (dir, path)
    }

    fn open(path: &std::path::Path) -> Result<Sqlite, OpenError> {
        Sqlite::open(path, &OpenOptions { fresh_epoch_seed: 1, ..OpenOptions::default() })
    }

    fn names_the_file(error: &OpenError, path: &std::path::Path) {
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()) && !text.contains('\n'), "{text}");
    }

    #[test]
    fn sqlite_is_new_enough_for_wal() {
        assert!(Sqlite::library_version() >= 3_051_003);
    }

    #[test]
    fn a_foreign_file_is_left_untouched() {
        let (dir, path) = scratch();
        let mut foreign_sqlite = b"SQLite format 3\0".to_vec();
        foreign_sqlite.resize(8_192, 7);
        for bytes in [b"not a database".to_vec(), vec![0; 5_000], foreign_sqlite] {
            fs::write(&path, &bytes).unwrap();
            let error = open(&path).unwrap_err();
            assert_eq!(error, OpenError::NotOurs { path: path.clone() });
            names_the_file(&error, &path);
            assert_eq!(fs::read(&path).unwrap(), bytes);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        }
    }

    #[test]
    fn a_newer_schema_is_left_untouched() {
        let (_dir, path) = scratch();
        open(&path).unwrap().close().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
        fs::write(&path, &bytes).unwrap();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
        names_the_file(&error, &path);
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn damage_is_found_at_opening() {
        let (_dir, path) = scratch();
        let mut store = open(&path).unwrap();
        store.commit(0, &messages(&channel("a"), 1..=500)).unwrap();
        store.close().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..].fill(0xA5);
        fs::write(&path, &bytes).unwrap();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
        names_the_file(&error, &path);
    }

    #[test]
    fn one_process_at_a_time() {
        let (_dir, path) = scratch();
        let store = open(&path).unwrap();
        let error = open(&path).unwrap_err();
        assert_eq!(error, OpenError::Locked { path: path.clone() });
        names_the_file(&error, &path);
        drop(store);
        open(&path).unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_written() {
        let (dir, _) = scratch();
        for path in [dir.path().join("missing").join("ringcast.db"), dir.path().to_owned()] {
            let error = open(&path).unwrap_err();
            assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
            names_the_file(&error, &path);
        }
    }

    #[test]
    fn an_empty_file_is_a_new_database() {
        let (_dir, path) = scratch();
        fs::write(&path, b"").unwrap();
        assert_eq!(open(&path).unwrap().generation(), 1);
        assert_eq!(Sqlite::restored(&path, &OpenOptions::default()).unwrap().generation(), 2);
    }

    #[test]
    fn rule_04_the_reader_sees_what_was_committed_and_nothing_else() {
        let (_dir, path) = scratch();
        let mut store = open(&path).unwrap();
        let mut reader = Sqlite::reader(&path, &OpenOptions::default()).unwrap();
        let key = channel("a");
        let before = reader.page(&key, PageAsk::Latest { limit: 10 }).unwrap();
        assert_eq!((before.head, before.epoch), (0, latest(&mut store, &key).epoch));
        store.commit(0, &messages(&key, 1..=3)).unwrap();
        let page = reader.page(&key, PageAsk::Since { seq: 1, limit: 10 }).unwrap();
        assert_eq!((page.head, page.epoch, seqs(&page)), (3, before.epoch, vec![2, 3]));
        assert_eq!(reader.find(&key, message(&key, 2).id).unwrap().map(|event| event.seq), Some(2));
        assert_eq!(store.tidy(), Ok(0), "a reader between two pages holds nothing up");
    }

    #[test]
    fn a_reader_of_a_foreign_file_is_refused() {
        let (_dir, path) = scratch();
        let missing = Sqlite::reader(&path, &OpenOptions::default()).unwrap_err();
        assert!(matches!(missing, OpenError::NotWritable { .. }), "{missing}");
        fs::write(&path, vec![7; 5_000]).unwrap();
        let error = Sqlite::reader(&path, &OpenOptions::default()).unwrap_err();
        assert_eq!(error, OpenError::NotOurs { path });
    }

    #[test]
    fn what_was_committed_is_in_the_file_when_the_process_is_killed() {
        let (dir, path) = scratch();
        let mut store = open(&path).unwrap();
        store.commit(0, &messages(&channel("a"), 1..=7)).unwrap();
        // The files as a killed process leaves them: nothing was closed, the log was not moved into the database.
        let copy = dir.path().join("copy.db");
        fs::copy(&path, &copy).unwrap();
        fs::copy(dir.path().join("ringcast.db-wal"), dir.path().join("copy.db-wal")).unwrap();
        let mut after = open(&copy).unwrap();
        assert_eq!(seqs(&latest(&mut after, &channel("a"))), (1..=7).collect::<Vec<_>>());
    }
}
