//! How much memory this thread holds at the most while something is read: what grows with a number that an input merely
//! names, and not with the input, is found here.

#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting what this thread holds.
struct Counting;

fn count(bytes: isize) {
    // At the end of a thread there is nothing to count in any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is handed to the system's allocator as it is; counting touches thread-locals of plain data.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system allocator's own.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts from here on.
pub(crate) struct Watch {
    held: isize,
}

impl Watch {
    pub(crate) fn begin() -> Self {
        let held = HELD.with(Cell::get);
        PEAK.with(|peak| peak.set(held));
        Self { held }
    }

    /// The most that was held at once since, in bytes.
    pub(crate) fn peak(&self) -> usize {
        usize::try_from(PEAK.with(Cell::get) - self.held).unwrap_or(0)
    }
}

#[test]
fn an_announced_length_that_is_allocated_shows() {
    let watch = Watch::begin();
    drop(Vec::<u8>::with_capacity(1_000_000));
    assert!(watch.peak() >= 1_000_000);
    assert!(Watch::begin().peak() < 1_000);
}
