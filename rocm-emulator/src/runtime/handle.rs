//! Handles: opaque pointers for streams, events, modules and functions.
//!
//! A handle is a number, never an address, so that an invalid handle causes an error instead of a crash.
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Table of the live objects of one kind, by handle.
pub struct Handles<T> {
    live: RwLock<HashMap<usize, Arc<T>>>,
    next: AtomicUsize,
}

impl<T> Handles<T> {
    /// Creates a table. `kind` distinguishes the handles of different tables.
    pub fn new(kind: u8) -> Self {
        Self { live: RwLock::default(), next: AtomicUsize::new((usize::from(kind) << 40) + 16) }
    }

    /// Adds an object and returns its handle.
    pub fn insert(&self, object: Arc<T>) -> *mut c_void {
        let handle = self.next.fetch_add(16, Ordering::Relaxed);
        self.live.write().insert(handle, object);
        std::ptr::without_provenance_mut(handle)
    }

    /// Returns the object of a handle; `None` if it is not live.
    pub fn get(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.live.read().get(&handle.addr()).cloned()
    }

    /// Removes a handle and returns its object.
    pub fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.live.write().remove(&handle.addr())
    }

    /// Removes every handle whose object `gone` selects. Returns the objects so that the caller drops them outside the
    /// table's lock.
    pub fn remove_where(&self, gone: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut live = self.live.write();
        let handles: Vec<usize> = live.iter().filter(|(_, object)| gone(object)).map(|(h, _)| *h).collect();
        handles.iter().filter_map(|handle| live.remove(handle)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_lives_until_it_is_removed() {
        let table = Handles::new(1);
        let (one, two) = (table.insert(Arc::new(1)), table.insert(Arc::new(2)));
        assert_ne!(one, two);
        assert_eq!(table.get(one).as_deref(), Some(&1));
        assert_eq!(table.remove(one).as_deref(), Some(&1));
        assert!(table.get(one).is_none() && table.remove(one).is_none());
        assert_eq!(table.remove_where(|n| *n == 2).len(), 1);
        assert!(table.get(two).is_none());
    }

    #[test]
    fn tables_do_not_share_handles() {
        let (a, b) = (Handles::new(1), Handles::new(2));
        let handle = a.insert(Arc::new(()));
        b.insert(Arc::new(()));
        assert!(b.get(handle).is_none());
        assert!(a.get(std::ptr::null_mut()).is_none());
    }
}
