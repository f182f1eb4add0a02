//! Anonymous mappings that are cached for reuse.
use parking_lot::Mutex;
use std::ptr::NonNull;

/// Minimum size in bytes for which a mapping is used.
pub const LARGE: usize = 1 << 20;
/// Granularity of mapping sizes in bytes. Rounding up makes reuse more likely.
const UNIT: usize = 64 << 10;
/// Maximum number of bytes cached for reuse.
const CAPACITY: usize = 256 << 20;

/// A private mapping.
#[derive(Debug)]
pub struct Mapping {
    /// Address and size in bytes of the mapping.
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory that is not bound to a thread.
unsafe impl Send for Mapping {}

/// Cached mappings; the most recently retired one is last.
static RETIRED: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

impl Mapping {
    /// Returns a mapping with at least `size` zero bytes at [`Self::start`].
    pub fn new(size: usize) -> Option<Self> {
        let bytes = size.checked_next_multiple_of(UNIT)?;
        let retired = {
            let mut retired = RETIRED.lock();
            let place = retired.iter().rposition(|mapping| mapping.bytes == bytes);
            place.map(|place| retired.remove(place))
        };
        if let Some(mapping) = retired {
            // SAFETY: the mapping has this size and is not used elsewhere.
            unsafe { mapping.start().write_bytes(0, size) };
            return Some(mapping);
        }
        Self::fresh(bytes)
    }

    fn fresh(bytes: usize) -> Option<Self> {
        // SAFETY: a private mapping at an address chosen by the host does not affect existing memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return None;
        }
        Some(Self { address: NonNull::new(address.cast())?, bytes })
    }

    /// Returns the first address, which is page-aligned.
    pub fn start(&self) -> NonNull<u8> {
        self.address
    }

    /// Caches the memory for reuse or returns it to the host.
    pub fn retire(self) {
        let mut gone = Vec::new();
        {
            let mut retired = RETIRED.lock();
            retired.push(self);
            let mut kept: usize = retired.iter().map(|mapping| mapping.bytes).sum();
            while kept > CAPACITY && !retired.is_empty() {
                let oldest = retired.remove(0);
                kept -= oldest.bytes;
                gone.push(oldest);
            }
        }
        for Mapping { address, bytes } in gone {
            // SAFETY: mapped in `fresh` with the same size. Unmapping a whole mapping does not fail.
            let _ = unsafe { libc::munmap(address.as_ptr().cast(), bytes) };
        }
    }
}
