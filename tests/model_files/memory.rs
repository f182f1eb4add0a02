//! Counts the current and the peak number of allocated bytes per thread.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct CountingAllocator;

fn count(bytes: isize) {
    // A thread may free memory after its thread-local counters are destroyed.
    let _ = USED.try_with(|used| {
        used.set(used.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(used.get())));
    });
}

// SAFETY: every request is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // If the block moves, old and new exist at the same time.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Runs `work`; returns its result and the peak number of bytes that this thread allocated in addition.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = USED.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before).max(0) as usize)
}

#[test]
fn the_peak_is_counted() {
    let ((), peak) = peak_of(|| drop((vec![0u8; 3000], vec![1u8; 2000])));
    assert!((5000..6000).contains(&peak), "{peak}");
    let ((), peak) = peak_of(|| (0..10).for_each(|_| drop(vec![0u8; 1000])));
    assert!((1000..2000).contains(&peak), "{peak}");
}
