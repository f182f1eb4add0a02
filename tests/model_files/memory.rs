//! Counts what a thread has allocated, and the most it had at once.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that ends may free after its counters are gone.
    let _ = USED.try_with(|used| {
        used.set(used.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(used.get())));
    });
}

// SAFETY: every request goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new are there at once where the block moves.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `work` and tells how many bytes this thread had at most beyond what it had before.
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
