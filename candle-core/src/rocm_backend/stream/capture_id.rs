//! The identifier of the calling thread's graph capture.
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// 0 if the thread captures nothing.
    static ID: Cell<u64> = const { Cell::new(0) };
}

/// Returns an unused identifier.
pub(super) fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the identifier of the calling thread's capture; 0 if it captures nothing.
#[inline]
pub(super) fn get() -> u64 {
    ID.get()
}

pub(super) fn set(id: u64) {
    ID.set(id);
}

/// Calls `work` as if the calling thread captured nothing, so that what it enqueues is executed.
pub(crate) fn outside<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            ID.set(self.0);
        }
    }
    let _restore = Restore(ID.replace(0));
    work()
}
