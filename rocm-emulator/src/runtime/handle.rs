//! Handles: opaque pointers for streams, events, modules and functions.
//!
//! A handle is a number, never an address, so that an invalid handle causes an error instead of a crash.
use super::error::{ErrorCode, Result, fail};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Table of the live objects of one kind, by handle.
pub struct Handles<T> {
    live: RwLock<HashMap<usize, Arc<T>>>,
    next: AtomicUsize,
    /// Name of a handle in errors, and the code of the error if it is not live.
    what: &'static str,
    code: ErrorCode,
}

impl<T> Handles<T> {
    /// Creates a table. `kind` distinguishes the handles of different tables; `what` names one in errors with `code`.
    pub fn new(kind: u8, what: &'static str, code: ErrorCode) -> Self {
        let next = AtomicUsize::new((usize::from(kind) << 40) + 16);
        Self { live: RwLock::default(), next, what, code }
    }

    /// Adds an object and returns its handle.
    pub fn insert(&self, object: Arc<T>) -> *mut c_void {
        let handle = self.next.fetch_add(16, Ordering::Relaxed);
        self.live.write().insert(handle, object);
        std::ptr::without_provenance_mut(handle)
    }

    /// Returns the object of a handle.
    ///
    /// # Errors
    /// The table's code if it is not live.
    pub fn get(&self, handle: *mut c_void) -> Result<Arc<T>> {
        self.found(handle, self.live.read().get(&handle.addr()).cloned())
    }

    /// Removes a handle and returns its object.
    ///
    /// # Errors
    /// The table's code if it is not live.
    pub fn remove(&self, handle: *mut c_void) -> Result<Arc<T>> {
        self.found(handle, self.live.write().remove(&handle.addr()))
    }

    fn found(&self, handle: *mut c_void, object: Option<Arc<T>>) -> Result<Arc<T>> {
        object.map_or_else(|| fail(self.code, format!("{handle:?} is not {}", self.what)), Ok)
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
        let table = Handles::new(1, "a number", ErrorCode::InvalidHandle);
        let (one, two) = (table.insert(Arc::new(1)), table.insert(Arc::new(2)));
        assert_ne!(one, two);
        assert_eq!(table.get(one).as_deref(), Ok(&1));
        assert_eq!(table.remove(one).as_deref(), Ok(&1));
        assert!(table.remove(one).is_err());
        let error = table.get(one).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidHandle);
        assert!(error.detail.ends_with("is not a number"), "{error}");
        assert_eq!(table.remove_where(|n| *n == 2).len(), 1);
        assert!(table.get(two).is_err());
    }

    #[test]
    fn tables_do_not_share_handles() {
        let [a, b] = [1, 2].map(|kind| Handles::new(kind, "a unit", ErrorCode::InvalidHandle));
        let handle = a.insert(Arc::new(()));
        b.insert(Arc::new(()));
        assert!(b.get(handle).is_err());
        assert!(a.get(std::ptr::null_mut()).is_err());
    }
}
