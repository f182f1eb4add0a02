//! A small cache of values that are expensive to create.
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Cache of the most recently used values, by key.
pub(super) struct LruCache<K, V> {
    /// Most recently used last.
    entries: Mutex<VecDeque<(K, V)>>,
    capacity: usize,
}

impl<K: PartialEq + Clone, V> LruCache<K, V> {
    /// Creates a cache of at most `capacity` values.
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: Mutex::default(), capacity }
    }

    /// Returns `copy` of the value of `key`. If there is no value, creates it without blocking other keys.
    ///
    /// # Errors
    /// Returns the error of `create`, which is not stored.
    pub(super) fn get<T, E>(
        &self,
        key: &K,
        copy: impl Fn(&V) -> T,
        create: impl FnOnce() -> Result<V, E>,
    ) -> Result<T, E> {
        if let Some(found) = self.find(key, &copy) {
            return Ok(found);
        }
        let created = create()?;
        let result = copy(&created);
        let mut entries = self.lock();
        entries.retain(|(other, _)| other != key);
        while entries.len() >= self.capacity {
            entries.pop_front();
        }
        entries.push_back((key.clone(), created));
        Ok(result)
    }

    fn find<T>(&self, key: &K, copy: impl Fn(&V) -> T) -> Option<T> {
        let mut entries = self.lock();
        let index = entries.iter().position(|(other, _)| other == key)?;
        let entry = entries.remove(index)?;
        let found = copy(&entry.1);
        entries.push_back(entry);
        Some(found)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(K, V)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_least_recently_used_value_is_created_again() {
        let (cache, created) = (LruCache::new(2), RefCell::new(Vec::new()));
        let get = |key: u32| {
            let create = || {
                created.borrow_mut().push(key);
                if key == 9 { Err("nine") } else { Ok(key * 10) }
            };
            cache.get(&key, |value| *value, create)
        };
        for key in [1, 1, 2, 1, 3, 1, 2, 9, 9, 2] {
            assert_eq!(get(key), if key == 9 { Err("nine") } else { Ok(key * 10) });
        }
        assert_eq!(*created.borrow(), [1, 2, 3, 2, 9, 9]);
    }
}
