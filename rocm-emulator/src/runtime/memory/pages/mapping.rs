//! Anonymous mappings that are kept for reuse.
use parking_lot::Mutex;
use std::ptr::NonNull;

/// Pieces of so many bytes are worth a mapping.
pub const LARGE: usize = 1 << 20;
/// Their sizes are rounded up to multiples of this, so that more of them fit.
const UNIT: usize = 64 << 10;
/// Bytes that wait for reuse at most.
const CAPACITY: usize = 256 << 20;

/// A private mapping.
#[derive(Debug)]
pub struct Mapping {
    /// What the host gave, and its bytes.
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory, and belongs to no thread.
unsafe impl Send for Mapping {}

/// Mappings that were let go, the last one at the end.
static RETIRED: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

impl Mapping {
    /// At least `size` zeros from [`Self::start`] on.
    pub fn new(size: usize) -> Option<Self> {
        let bytes = size.checked_next_multiple_of(UNIT)?;
        let retired = {
            let mut retired = RETIRED.lock();
            let place = retired.iter().rposition(|mapping| mapping.bytes == bytes);
            place.map(|place| retired.remove(place))
        };
        if let Some(mapping) = retired {
            // SAFETY: the mapping has these bytes, and nobody else uses it any more.
            unsafe { mapping.start().write_bytes(0, size) };
            return Some(mapping);
        }
        Self::fresh(bytes)
    }

    fn fresh(bytes: usize) -> Option<Self> {
        // SAFETY: a private mapping at an address of the host's choice touches nothing that exists.
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

    /// The first address, that of a page.
    pub fn start(&self) -> NonNull<u8> {
        self.address
    }

    /// Keeps the memory for reuse or gives it back to the host; the caller uses it no more.
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
