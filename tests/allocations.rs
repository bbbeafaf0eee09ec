//! A delivery costs the same memory operations whatever the audience: the tick is built once, and an idle viewer that
//! keeps up costs none.

#![allow(missing_docs, reason = "a test, not a library")]
#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringcast::shard::ShardOptions;
use ringcast::wire::event::EventKind;
use stage::Stage;

mod stage;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting what this thread asks of it.
struct Counting;

// SAFETY: every call is handed to the system's allocator as it is; counting touches a thread-local of plain data.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's own.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many allocations one delivery to `viewers` takes.
fn allocations(viewers: u64) -> u64 {
    let mut stage = Stage::new(ShardOptions { room_capacity: u32::MAX, ..ShardOptions::default() });
    for _ in 0..viewers {
        stage.join(&mut |_| {});
        stage.settle();
    }
    assert_eq!(u64::from(stage.shard.connections()), viewers);
    let mut counts = Vec::new();
    for seq in 1..=100 {
        let sealed = stage.event(EventKind::MessageNew, seq, "hello");
        let before = COUNT.with(Cell::get);
        stage.shard.on_sealed(stage.now, &sealed);
        let sends = stage.settle();
        let after = COUNT.with(Cell::get);
        assert_eq!(sends, viewers, "each viewer gets one send");
        counts.push(after - before);
    }
    // The first deliveries grow buffers that stay, and the tail of the channel until it has its length.
    let last = counts[99];
    assert!(counts[70..].iter().all(|count| *count == last), "{viewers}: {counts:?}");
    last
}

#[test]
fn a_delivery_allocates_as_often_for_ten_thousand_as_for_a_thousand() {
    let (few, many) = (allocations(1_000), allocations(10_000));
    assert_eq!(few, many);
    assert!(few <= 6, "{few} allocations for one event");
}
