//! Zeroed memory from the host: small pieces from the allocator, large ones as mappings. Freed mappings are kept for
//! reuse, because the page faults of new memory cost more than most kernels that use it. Huge pages do not help: the host
//! may need long to find free ones.
use std::alloc::Layout;
use std::ptr::NonNull;

#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
use mapping::Mapping;

/// Zeroed memory that is committed when it is first touched.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Allocator(Layout),
    #[cfg(target_os = "linux")]
    /// `None` only while the pages are dropped.
    Mapping(Option<Mapping>),
}

impl Pages {
    /// Allocates `size` bytes (not zero), aligned to 16. `None` if the host lacks memory.
    pub fn new(size: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if size >= mapping::LARGE
            && let Some(mapping) = Mapping::new(size)
        {
            return Some(Self { start: mapping.start(), source: Source::Mapping(Some(mapping)) });
        }
        // The allocator returns lazily committed zero pages only for its natural alignment.
        let layout = Layout::from_size_align(size, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { start, source: Source::Allocator(layout) })
    }

    /// Returns the first address.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match &mut self.source {
            // SAFETY: allocated in `new` with the same layout.
            Source::Allocator(layout) => unsafe { std::alloc::dealloc(self.start.as_ptr(), *layout) },
            #[cfg(target_os = "linux")]
            Source::Mapping(mapping) => mapping.take().into_iter().for_each(Mapping::retire),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_every_size_are_zeroed_and_writable() {
        for size in [1, 4096, (4 << 20) - 1, 4 << 20, (5 << 20) + 3] {
            let pages = Pages::new(size).unwrap();
            let start = pages.start();
            assert_eq!(start.as_ptr().addr() % 16, 0);
            // SAFETY: the offsets are below the size, and only this test uses the memory.
            unsafe {
                let places = [0, size / 2, size - 1].map(|offset| start.add(offset));
                places.iter().for_each(|place| assert_eq!(place.read(), 0));
                places.iter().for_each(|place| place.write(7));
                places.iter().for_each(|place| assert_eq!(place.read(), 7));
            }
        }
    }

    #[test]
    fn memory_that_was_used_before_is_zeroed_again() {
        for round in 1..=3u8 {
            let mut pages: Vec<Pages> = (0..round).map(|_| Pages::new((6 << 20) + 5).unwrap()).collect();
            for pages in &mut pages {
                // SAFETY: only this test uses the memory, and it has this size.
                let bytes = unsafe { std::slice::from_raw_parts_mut(pages.start().as_ptr(), (6 << 20) + 5) };
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(round);
            }
        }
    }

    #[test]
    fn an_impossible_size_is_rejected() {
        assert!(Pages::new(usize::MAX / 2).is_none());
        assert!(Pages::new(usize::MAX).is_none());
    }
}
