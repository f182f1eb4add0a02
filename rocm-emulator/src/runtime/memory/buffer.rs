//! Host memory that backs device memory.
use super::pages::Pages;

/// Unused bytes on both sides of an allocation, so that small overruns are detected.
const GUARD: usize = 256;

/// Zeroed host memory that is committed when it is first touched.
#[derive(Debug)]
pub struct HostBuffer {
    /// Owns the memory.
    _pages: Pages,
    base: usize,
    len: usize,
}

// SAFETY: the buffer owns plain memory. Code that accesses it through its address handles races, as for any device
// memory.
unsafe impl Send for HostBuffer {}
// SAFETY: as for `Send`; no method returns references into the memory.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates `len` bytes at a multiple of `alignment` (a power of two), with a guard on both sides. `None` if the host
    /// lacks memory.
    pub fn new(len: usize, alignment: usize) -> Option<Self> {
        Self::with_guard(len, alignment, GUARD)
    }

    /// Like [`Self::new`], with `guard` bytes on both sides.
    pub fn with_guard(len: usize, alignment: usize, guard: usize) -> Option<Self> {
        let size = len.checked_add(guard.checked_mul(2)?)?.checked_add(alignment)?;
        let pages = Pages::new(size)?;
        let base = (pages.start().as_ptr().expose_provenance() + guard).next_multiple_of(alignment);
        Some(Self { _pages: pages, base, len })
    }

    /// Returns the first address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Fills the buffer with `byte`.
    pub(super) fn fill(&mut self, byte: u8) {
        // SAFETY: base..base+len is inside the allocation, and `&mut self` means that it is not shared.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(self.base).write_bytes(byte, self.len);
        }
    }

    /// Copies `bytes` to `offset`. Returns false if they do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        if offset > self.len || bytes.len() > self.len - offset {
            return false;
        }
        // SAFETY: the target is inside the allocation (checked above) and not shared (`&mut self`).
        unsafe {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(self.base + offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
        true
    }
}
