//! An append-only list for lookups during launches: readers take no lock, and entries never move.
use std::sync::OnceLock;

/// A list that threads can append to while others read it. Lookups are linear, so it is meant for a few entries.
pub(super) struct AppendList<T> {
    first: Link<T>,
}

type Link<T> = OnceLock<Box<Node<T>>>;

struct Node<T> {
    entry: T,
    next: Link<T>,
}

impl<T> Default for AppendList<T> {
    fn default() -> Self {
        Self { first: OnceLock::new() }
    }
}

impl<T> AppendList<T> {
    /// Iterates over the entries in the order in which they were appended.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let mut link = &self.first;
        std::iter::from_fn(move || {
            let node = link.get()?;
            link = &node.next;
            Some(&node.entry)
        })
    }

    /// Returns the result of `select` for the first entry for which it is `Some`. If there is none, appends the result
    /// of `make`, which `select` must accept. If threads race, only one entry is appended.
    pub(super) fn select_or_append<'a, R>(
        &'a self,
        select: impl Fn(&'a T) -> Option<R>,
        make: impl Fn() -> T,
    ) -> R {
        let mut link = &self.first;
        loop {
            let node = link.get_or_init(|| Box::new(Node { entry: make(), next: OnceLock::new() }));
            if let Some(selected) = select(&node.entry) {
                return selected;
            }
            link = &node.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AppendList;

    #[test]
    fn racing_threads_append_each_entry_once() {
        let list = AppendList::<usize>::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let list = &list;
                scope.spawn(move || {
                    for wanted in (0..50).map(|i| (i * 7 + thread * 13) % 50) {
                        let found =
                            list.select_or_append(|entry| (*entry == wanted).then_some(entry), || wanted);
                        assert_eq!(*found, wanted);
                    }
                });
            }
        });
        let mut entries: Vec<usize> = list.iter().copied().collect();
        entries.sort_unstable();
        assert_eq!(entries, (0..50).collect::<Vec<_>>());
    }
}
