//! An allocator that counts bytes, for tests of memory.
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts.
pub struct Counting;

fn count(bytes: usize) {
    let now = ALLOCATED.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(now, Relaxed);
}

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the number of allocated bytes.
pub fn allocated() -> usize {
    ALLOCATED.load(Relaxed)
}

/// Returns the highest number of allocated bytes since [`reset_peak`].
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Resets the peak to the present number of allocated bytes, which is returned.
pub fn reset_peak() -> usize {
    let now = allocated();
    PEAK.store(now, Relaxed);
    now
}
