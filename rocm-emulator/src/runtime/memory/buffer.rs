//! Host memory that stands for the memory of a device.
use super::pages::Pages;

/// Bytes on both sides of an allocation that belong to no other, so that small overruns are seen.
const GUARD: usize = 256;

/// Zeroed host memory that is committed when it is first touched.
#[derive(Debug)]
pub struct HostBuffer {
    /// Keeps the memory.
    _pages: Pages,
    base: usize,
    len: usize,
}

// SAFETY: the buffer is plain memory that it owns; whoever reads or writes it through its address takes
// care of races, as for any device memory.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; no method hands out references into it.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `len` bytes at a multiple of `alignment` (a power of two), with a guard on both sides.
    /// `None` when the host has no such memory.
    pub fn new(len: usize, alignment: usize) -> Option<Self> {
        Self::with_guard(len, alignment, GUARD)
    }

    /// The same with `guard` bytes on both sides.
    pub fn with_guard(len: usize, alignment: usize, guard: usize) -> Option<Self> {
        let size = len.checked_add(guard.checked_mul(2)?)?.checked_add(alignment)?;
        let pages = Pages::new(size)?;
        let base = (pages.start().as_ptr().expose_provenance() + guard).next_multiple_of(alignment);
        Some(Self { _pages: pages, base, len })
    }

    /// The first address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes `byte` everywhere; only for a buffer that nobody else uses yet.
    pub(super) fn fill(&mut self, byte: u8) {
        // SAFETY: base..base+len lies inside the allocation, and `&mut self` says that it is not shared.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(self.base).write_bytes(byte, self.len);
        }
    }

    /// Copies `bytes` to `offset`; only for a buffer that nobody else uses yet. False where they do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        if offset > self.len || bytes.len() > self.len - offset {
            return false;
        }
        // SAFETY: the target lies inside the allocation (checked above) and is not shared (`&mut self`).
        unsafe {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(self.base + offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
        true
    }
}
