//! The contract of `Store` about what is said of a message: an edit, a reaction, a deletion or a retraction is stored while
//! the message stands, and not behind its end.

use crate::store::{Factory, InMemory, OnDisk, channel, latest, message, name, seqs};
use ringcast::base::{ChannelKey, Ulid};
use ringcast::store::{Appended, FirstAnswer, IDEMPOTENCY_KEPT_MS, NewEvent, Position, Retention, Store};
use ringcast::wire::event::EventKind;

suite! {
    nothing_is_stored_behind_the_end_of_its_message
    the_order_within_a_batch_decides
    only_a_message_of_the_channel_is_spoken_of
    a_message_that_retention_took_is_gone_too
    a_repeat_gets_the_first_answer_though_its_message_is_gone
    a_key_of_what_was_not_stored_is_not_remembered
    a_key_that_ran_out_is_swept_once
}

/// All that speaks of a message.
const KINDS: [EventKind; 5] = [
    EventKind::MessageUpdated,
    EventKind::MessageDeleted,
    EventKind::MessageRetracted,
    EventKind::ReactionNew,
    EventKind::ReactionDeleted,
];

/// Speaks of the message with the number `of`; an edit has a text.
fn speaks(key: &ChannelKey, n: u64, kind: EventKind, of: u64) -> NewEvent {
    let text = (kind == EventKind::MessageUpdated).then(|| "a secret".to_owned());
    NewEvent { kind, text, target: Some(message(key, of).id), ..message(key, n) }
}

fn keyed(event: NewEvent, key: &str) -> NewEvent {
    NewEvent { idempotency_key: Some(key.to_owned()), ..event }
}

/// What a commit says, with the epoch left out: the seq of what is stored.
fn places(answers: &[Appended]) -> Vec<Option<u64>> {
    let place = |answer: &Appended| match answer {
        Appended::New { position } => Some(position.seq),
        Appended::NoTarget => None,
        Appended::Repeat(_) => panic!("nobody repeats: {answer:?}"),
    };
    answers.iter().map(place).collect()
}

fn nothing_is_stored_behind_the_end_of_its_message<F: Factory>() {
    for end in [EventKind::MessageDeleted, EventKind::MessageRetracted] {
        let (mut f, key) = (F::fresh(), channel("a"));
        let only_data = NewEvent { text: None, data: Some("[1]".to_owned()), ..message(&key, 2) };
        f.store().commit(0, &[message(&key, 1), only_data]).unwrap();
        for of in [1, 2] {
            let answers = f.store().commit(0, &[speaks(&key, 10 + of, EventKind::ReactionNew, of)]).unwrap();
            assert!(matches!(answers[..], [Appended::New { .. }]), "it stands: {answers:?}");
            f.store().commit(0, &[speaks(&key, 20 + of, end, of)]).unwrap();
        }
        let before = latest(f.store(), &key);
        f.reopen();
        for (n, kind) in (30..).zip(KINDS) {
            for of in [1, 2] {
                assert_eq!(f.store().commit(0, &[speaks(&key, n, kind, of)]), Ok(vec![Appended::NoTarget]), "{kind:?}");
            }
        }
        assert_eq!(latest(f.store(), &key), before);
        assert_eq!(places(&f.store().commit(0, &[message(&key, 40)]).unwrap()), [Some(7)], "no seq was taken");
    }
}

fn the_order_within_a_batch_decides<F: Factory>() {
    let (mut f, key) = (F::fresh(), channel("a"));
    let batch = [
        message(&key, 1),
        speaks(&key, 2, EventKind::MessageUpdated, 1),
        speaks(&key, 3, EventKind::MessageRetracted, 1),
        speaks(&key, 4, EventKind::MessageUpdated, 1),
        message(&key, 5),
        speaks(&key, 6, EventKind::MessageDeleted, 1),
        speaks(&key, 7, EventKind::MessageUpdated, 5),
    ];
    let answers = f.store().commit(0, &batch).unwrap();
    assert_eq!(places(&answers), [Some(1), Some(2), Some(3), None, Some(4), None, Some(5)]);
    let page = latest(f.store(), &key);
    let texts: Vec<_> = page.events.iter().map(|event| event.text.as_deref()).collect();
    assert_eq!(texts, [None, None, None, Some("message 5"), Some("a secret")]);
    assert_eq!((page.head, seqs(&page)), (5, vec![1, 2, 3, 4, 5]));
}

fn only_a_message_of_the_channel_is_spoken_of<F: Factory>() {
    let (mut f, key, other) = (F::fresh(), channel("a"), channel("b"));
    let foreign = ChannelKey::new(name("other"), name("a"));
    let edit = speaks(&key, 2, EventKind::MessageUpdated, 1);
    f.store().commit(0, &[message(&key, 1), edit, message(&other, 9)]).unwrap();
    let epoch = latest(f.store(), &foreign).epoch;
    for kind in KINDS {
        let batch = [
            // One that there never was, one of another channel and of another app, and one that is no message.
            NewEvent { target: Some(Ulid(7)), ..speaks(&key, 3, kind, 1) },
            speaks(&other, 4, kind, 1),
            speaks(&foreign, 5, kind, 1),
            speaks(&key, 6, kind, 2),
        ];
        assert_eq!(f.store().commit(0, &batch).unwrap(), [Appended::NoTarget; 4], "{kind:?}");
    }
    f.reopen();
    let heads = [&key, &other, &foreign].map(|key| latest(f.store(), key).head);
    assert_eq!(heads, [2, 1, 0]);
    assert_eq!(
        f.store().commit(0, &[message(&foreign, 8)]).unwrap(),
        [Appended::New { position: Position { epoch, seq: 1 } }]
    );
}

fn a_message_that_retention_took_is_gone_too<F: Factory>() {
    let (mut f, key) = (F::fresh(), channel("a"));
    f.store().commit(0, &[message(&key, 1), message(&key, 2)]).unwrap();
    let ask = Retention { app: key.app.clone(), from: None, older_than_ms: None, keep_last: Some(1), slice: 100 };
    assert_eq!(f.store().retain(&ask).unwrap().deleted, 1);
    let batch = [1, 2].map(|of| speaks(&key, 10 + of, EventKind::ReactionNew, of));
    assert_eq!(places(&f.store().commit(0, &batch).unwrap()), [None, Some(3)]);
}

fn a_repeat_gets_the_first_answer_though_its_message_is_gone<F: Factory>() {
    for end in [EventKind::MessageDeleted, EventKind::MessageRetracted] {
        let (mut f, key) = (F::fresh(), channel("a"));
        let edit = keyed(speaks(&key, 2, EventKind::MessageUpdated, 1), "edit");
        let gone = keyed(speaks(&key, 3, end, 1), "end");
        let again = keyed(speaks(&key, 4, end, 1), "end");
        let answers = f.store().commit(5, &[message(&key, 1), edit.clone(), gone.clone(), again.clone()]).unwrap();
        let [_, Appended::New { position: edited }, Appended::New { position: ended }, repeat] = answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!(repeat, Appended::Repeat(FirstAnswer { id: gone.id, position: ended, ts_ms: gone.ts_ms }));
        f.reopen();
        let stranger = keyed(speaks(&key, 6, end, 1), "end of another");
        let edited = Appended::Repeat(FirstAnswer { id: edit.id, position: edited, ts_ms: edit.ts_ms });
        assert_eq!(f.store().commit(6, &[again, stranger, edit]).unwrap(), [repeat, Appended::NoTarget, edited]);
        let page = latest(f.store(), &key);
        assert_eq!((page.head, page.events.iter().all(|event| event.text.is_none())), (3, true));
    }
}

fn a_key_of_what_was_not_stored_is_not_remembered<F: Factory>() {
    let (mut f, key) = (F::fresh(), channel("a"));
    let early = keyed(speaks(&key, 2, EventKind::MessageDeleted, 1), "k");
    // Twice in one batch, and again in the next: it is never taken for its own repeat.
    assert_eq!(f.store().commit(5, &[early.clone(), early.clone()]).unwrap(), [Appended::NoTarget; 2]);
    assert_eq!(f.store().commit(6, std::slice::from_ref(&early)).unwrap(), [Appended::NoTarget]);
    assert_eq!(places(&f.store().commit(7, &[message(&key, 1), early]).unwrap()), [Some(1), Some(2)]);
}

fn a_key_that_ran_out_is_swept_once<F: Factory>() {
    let (mut f, key) = (F::fresh(), channel("a"));
    let start = 1_796_050_000_000;
    let end = keyed(speaks(&key, 2, EventKind::MessageRetracted, 1), "k");
    f.store().commit(start, &[message(&key, 1), end.clone()]).unwrap();
    let over = start + IDEMPOTENCY_KEPT_MS;
    assert!(matches!(f.store().commit(over - 1, std::slice::from_ref(&end)).unwrap()[..], [Appended::Repeat(_)]));
    assert_eq!(f.store().commit(over, &[end]).unwrap(), [Appended::NoTarget]);
    assert_eq!(f.store().idempotency_sweep(over, 100), Ok(1));
    assert_eq!(f.store().idempotency_sweep(over, 100), Ok(0));
}
