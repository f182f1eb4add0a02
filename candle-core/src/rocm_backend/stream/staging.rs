//! Asynchronous uploads through a ring of pinned memory.
use super::handle::StreamHandle;
use crate::Result;
use rocm_rs::hip;

/// Maximum number of bytes per copy; larger uploads are split.
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
            .check(hip::PinnedMemory::new(bytes), || format!("hipHostMalloc({bytes} B upload ring)"))?;
        Ok(Self { memory, chunk: 0, used: 0, filled: [const { None }; CHUNKS] })
    }

    /// Copies `bytes` bytes (at most [`MAX_STAGED`]) from `src` into the ring. A copy from the returned address must be
    /// enqueued before the next call. The GPU is bound.
    ///
    /// # Safety
    /// `src` must be readable for `bytes` bytes.
    pub(super) unsafe fn stage(
        &mut self,
        stream: &StreamHandle,
        src: *const u8,
        bytes: usize,
    ) -> Result<*const u8> {
        if self.used + bytes > MAX_STAGED {
            self.next_chunk(stream)?;
        }
        let begin = self.chunk * MAX_STAGED + self.used;
        let part = &mut self.memory.as_slice_mut()[begin..begin + bytes];
        // SAFETY: `part` has `bytes` bytes, so has `src` as guaranteed by the caller, and the ring is owned.
        unsafe { std::ptr::copy_nonoverlapping(src, part.as_mut_ptr(), bytes) };
        self.used += bytes.next_multiple_of(ALIGNMENT);
        Ok(part.as_ptr())
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
            stream.finish_if_deadline("the upload ring is full")?;
            stream
                .check(event.synchronize(), || "hipEventSynchronize (the upload ring is full)".to_string())?;
        }
        (self.chunk, self.used) = (next, 0);
        Ok(())
    }
}
