//! Copies between host and device through a ring of pinned memory. HIP never receives a pointer to mapped files or to large
//! pageable memory, for which its copies are slow or hang on some systems.
use super::handle::StreamHandle;
use crate::Result;
use hip_kernels::contract::DevicePtr;
use rocm_rs::hip::{self, bindings};

/// Maximum number of bytes per copy; larger uploads and downloads are split.
pub(super) const MAX_STAGED: usize = 4 << 20;

/// Number of chunks of the ring. While one is filled, copies from the others may be in progress.
const CHUNKS: usize = 4;

/// Alignment of every upload in bytes, sufficient for the widest element.
const ALIGNMENT: usize = 64;

/// A ring of pinned memory. A chunk is only written again after the copies from it are done.
pub(super) struct Staging {
    memory: hip::PinnedMemory<u8>,
    /// The chunk that is being filled, and the number of bytes used.
    chunk: usize,
    used: usize,
    /// Events recorded after the last copy from each chunk that was filled.
    filled: [Option<hip::Event>; CHUNKS],
}

// SAFETY: the ring and its events are owned, and only accessed while the stream's mutex is locked.
unsafe impl Send for Staging {}

impl Staging {
    /// Allocates the ring. The GPU is bound.
    pub(super) fn of(stream: &StreamHandle) -> Result<Self> {
        let bytes = CHUNKS * MAX_STAGED;
        let memory = stream
            .check(hip::PinnedMemory::new(bytes), || format!("hipHostMalloc({bytes} B staging ring)"))?;
        Ok(Self { memory, chunk: 0, used: 0, filled: [const { None }; CHUNKS] })
    }

    /// Returns `bytes` bytes (at most [`MAX_STAGED`]) of the ring, to be written by the host. A copy from them must be
    /// enqueued before the next call. The GPU is bound.
    pub(super) fn reserve(&mut self, stream: &StreamHandle, bytes: usize) -> Result<&mut [u8]> {
        if self.used + bytes > MAX_STAGED {
            self.next_chunk(stream)?;
        }
        let begin = self.chunk * MAX_STAGED + self.used;
        self.used += bytes.next_multiple_of(ALIGNMENT);
        Ok(&mut self.memory.as_slice_mut()[begin..begin + bytes])
    }

    /// Copies `bytes` bytes at `src` on the device to `dst` and waits for the stream. While the host copies one chunk, the
    /// next arrives. The GPU is bound.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `bytes` bytes.
    pub(super) unsafe fn download(
        &mut self,
        stream: &StreamHandle,
        src: DevicePtr,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        let kind = bindings::hipMemcpyKind_hipMemcpyDeviceToHost;
        let mut arriving = None;
        for first in (0..bytes).step_by(MAX_STAGED) {
            self.next_chunk(stream)?;
            let part = MAX_STAGED.min(bytes - first);
            self.used = MAX_STAGED;
            let chunk = self.memory.as_slice_mut()[self.chunk * MAX_STAGED..].as_mut_ptr();
            // SAFETY: the chunk has space for the part, and the caller guarantees the source.
            let code = unsafe {
                bindings::hipMemcpyAsync(chunk.cast(), src.0.byte_add(first), part, kind, stream.raw())
            };
            stream.check_code(code, || format!("hipMemcpyAsync(device to host, {part} of {bytes} B)"))?;
            if let Some((earlier, at)) = arriving.replace((self.chunk, first)) {
                if let Some(event) = &self.filled[earlier] {
                    // Waiting for an event has no deadline.
                    stream.finish_if_bounded("downloading")?;
                    stream.check(event.synchronize(), || "hipEventSynchronize (downloading)".to_string())?;
                }
                // SAFETY: the chunk has arrived, it was full, and `dst` has space for it at this offset.
                unsafe { self.take(earlier, dst.add(at), MAX_STAGED) };
            }
        }
        stream.finish("downloading")?;
        if let Some((last, at)) = arriving {
            // SAFETY: as above, with the rest of the bytes.
            unsafe { self.take(last, dst.add(at), bytes - at) };
        }
        Ok(())
    }

    /// Copies the first `bytes` bytes of a chunk to `dst`.
    ///
    /// # Safety
    /// `dst` must be writable for `bytes` bytes.
    unsafe fn take(&self, chunk: usize, dst: *mut u8, bytes: usize) {
        let part = &self.memory.as_slice()[chunk * MAX_STAGED..][..bytes];
        // SAFETY: guaranteed by the caller, and the ring is owned.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), dst, bytes) };
    }

    /// Records an event for the current chunk, and waits until the copies from the next chunk are done.
    fn next_chunk(&mut self, stream: &StreamHandle) -> Result<()> {
        let event = match self.filled[self.chunk].take() {
            Some(event) => event,
            None => stream.make_event()?,
        };
        stream.check(event.record(stream.hip()), || "hipEventRecord".to_string())?;
        self.filled[self.chunk] = Some(event);
        let next = (self.chunk + 1) % CHUNKS;
        if let Some(event) = &self.filled[next] {
            // Waiting for an event has no deadline.
            stream.finish_if_bounded("the staging ring is full")?;
            stream.check(event.synchronize(), || {
                "hipEventSynchronize (the staging ring is full)".to_string()
            })?;
        }
        (self.chunk, self.used) = (next, 0);
        Ok(())
    }
}
