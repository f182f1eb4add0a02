//! Uploads without waiting: the data goes through a ring of pinned memory.
use super::handle::StreamHandle;
use crate::Result;
use rocm_rs::hip;

/// Bytes that go through the ring at once; larger uploads go in parts.
pub(super) const MAX_STAGED: usize = 4 << 20;

/// The ring is filled chunk by chunk: with four of them the copies of three may still be under way.
const CHUNKS: usize = 4;

/// Every part starts aligned for the widest element.
const ALIGNMENT: usize = 64;

/// Pinned memory whose parts are handed out in turn. A chunk is not written again before the copies out of it are
/// done.
pub(super) struct Staging {
    memory: hip::PinnedMemory<u8>,
    /// The chunk that is being filled, and how far.
    chunk: usize,
    used: usize,
    /// Behind the last copy out of each chunk that was filled.
    filled: [Option<hip::Event>; CHUNKS],
}

// SAFETY: the ring and its events are owned, and only touched under the stream's mutex around them.
unsafe impl Send for Staging {}

impl Staging {
    /// Allocates the ring. The GPU is bound.
    pub(super) fn of(stream: &StreamHandle) -> Result<Self> {
        let bytes = CHUNKS * MAX_STAGED;
        let memory = stream
            .check(hip::PinnedMemory::new(bytes), || format!("hipHostMalloc({bytes} B upload ring)"))?;
        Ok(Self { memory, chunk: 0, used: 0, filled: [const { None }; CHUNKS] })
    }

    /// Copies `bytes` bytes (at most [`MAX_STAGED`]) from `src` into the ring. The result stays valid until the ring
    /// has gone round, for a copy that is enqueued before the next call. The GPU is bound.
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
        // SAFETY: `part` has `bytes` bytes, `src` as well by the caller's word, and the ring is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(src, part.as_mut_ptr(), bytes) };
        self.used += bytes.next_multiple_of(ALIGNMENT);
        Ok(part.as_ptr())
    }

    /// Leaves the chunk to its copies, and goes on in the next one as soon as its own are done.
    fn next_chunk(&mut self, stream: &StreamHandle) -> Result<()> {
        let event = match self.filled[self.chunk].take() {
            Some(event) => event,
            None => stream.make_event()?,
        };
        stream.check(event.record(stream.hip()), || "hipEventRecord".to_string())?;
        self.filled[self.chunk] = Some(event);
        let next = (self.chunk + 1) % CHUNKS;
        if let Some(event) = &self.filled[next] {
            // An event knows no deadline.
            stream.finish_if_limited("the upload ring is full")?;
            stream
                .check(event.synchronize(), || "hipEventSynchronize (the upload ring is full)".to_string())?;
        }
        (self.chunk, self.used) = (next, 0);
        Ok(())
    }
}
