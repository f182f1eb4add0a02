//! Small uploads without waiting: the data goes through a ring of pinned memory.
use super::device::DeviceState;
use crate::Result;
use rocm_rs::hip;

/// Size of the ring in bytes.
const RING: usize = 1 << 20;

/// Uploads above this size wait for their copy instead of going through the ring.
pub(super) const MAX_STAGED: usize = RING / 4;

/// Pinned memory whose parts are handed out in turn. A part is not reused before the stream has been waited for.
pub(super) struct Staging {
    memory: hip::PinnedMemory<u8>,
    next: usize,
}

// SAFETY: the ring is owned, and only touched under the device's mutex around it.
unsafe impl Send for Staging {}

impl Staging {
    /// Allocates the ring. The device is bound.
    pub(super) fn new(state: &DeviceState) -> Result<Self> {
        let memory =
            state.check(hip::PinnedMemory::new(RING), || format!("hipHostMalloc({RING} B upload ring)"))?;
        Ok(Self { memory, next: 0 })
    }

    /// Copies `bytes` bytes (at most [`MAX_STAGED`]) from `src` into the ring; the result stays valid until the ring
    /// has gone round.
    ///
    /// # Safety
    /// `src` must be readable for `bytes` bytes.
    pub(super) unsafe fn stage(
        &mut self,
        state: &DeviceState,
        src: *const u8,
        bytes: usize,
    ) -> Result<*const u8> {
        if self.next + bytes > RING {
            state.finish("the upload ring is full")?;
            self.next = 0;
        }
        let part = &mut self.memory.as_slice_mut()[self.next..self.next + bytes];
        // SAFETY: `part` has `bytes` bytes, `src` as well by the caller's word, and the ring is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(src, part.as_mut_ptr(), bytes) };
        // The next part starts aligned for the widest element.
        self.next += bytes.next_multiple_of(64);
        Ok(part.as_ptr())
    }
}
