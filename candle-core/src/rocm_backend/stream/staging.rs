//! Copies between host and device through a ring of pinned memory. HIP never receives a pointer to mapped files or to large
//! pageable memory, for which its copies are slow or hang on some systems.
use super::handle::StreamHandle;
use crate::Result;
use hip_kernels::contract::DevicePtr;
use rocm_rs::hip::{self, bindings};

/// Number of chunks of a ring. While one is filled, copies from the others may be in progress.
const CHUNKS: usize = 4;

/// Alignment of every upload in bytes, sufficient for the widest element.
const ALIGNMENT: usize = 64;

/// Purpose of a ring. A stream has one ring for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// Copies from memory of the host.
    Upload,
    /// Copies to memory of the host.
    Download,
    /// Copies of files. It is a ring of its own, so that a slow file does not keep others from uploading.
    File,
}

impl Ring {
    /// Returns the maximum number of bytes per copy, which is the size of a chunk; larger copies are split. Chunks for files
    /// are so long that many threads can each read a part of one.
    pub(super) fn chunk_bytes(self) -> usize {
        match self {
            Self::Upload | Self::Download => 4 << 20,
            Self::File => 16 << 20,
        }
    }
}

/// A ring of chunks of pinned memory, which are allocated on first use. A chunk is only written again after the copies from
/// it are done.
pub(super) struct Staging {
    chunk_bytes: usize,
    chunks: Vec<Chunk>,
    /// The chunk that is being filled, and the number of bytes used.
    chunk: usize,
    used: usize,
}

struct Chunk {
    memory: hip::PinnedMemory<u8>,
    /// Event recorded after the last copy from the chunk.
    copied: Option<hip::Event>,
}

// SAFETY: the ring and its events are owned, and only accessed while the stream's mutex is locked.
unsafe impl Send for Staging {}

impl Staging {
    /// Creates a ring with one chunk. The GPU is bound.
    pub(super) fn of(stream: &StreamHandle, ring: Ring) -> Result<Self> {
        let chunk_bytes = ring.chunk_bytes();
        let chunks = vec![Chunk::of(stream, chunk_bytes)?];
        Ok(Self { chunk_bytes, chunks, chunk: 0, used: 0 })
    }

    /// Returns `bytes` bytes (at most those of a chunk) of the ring, to be written by the host. A copy from them must be
    /// enqueued before the next call. The GPU is bound.
    pub(super) fn reserve(&mut self, stream: &StreamHandle, bytes: usize) -> Result<&mut [u8]> {
        if self.used + bytes > self.chunk_bytes {
            self.next_chunk(stream)?;
        }
        let begin = self.used;
        self.used += bytes.next_multiple_of(ALIGNMENT);
        Ok(&mut self.chunks[self.chunk].memory.as_slice_mut()[begin..begin + bytes])
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
        let most = self.chunk_bytes;
        for first in (0..bytes).step_by(most) {
            self.next_chunk(stream)?;
            let part = most.min(bytes - first);
            self.used = most;
            let chunk = self.chunks[self.chunk].memory.as_slice_mut().as_mut_ptr();
            // SAFETY: the chunk has space for the part, and the caller guarantees the source.
            let code = unsafe {
                bindings::hipMemcpyAsync(chunk.cast(), src.0.byte_add(first), part, kind, stream.raw())
            };
            stream.check_code(code, || format!("hipMemcpyAsync(device to host, {part} of {bytes} B)"))?;
            if let Some((earlier, at)) = arriving.replace((self.chunk, first)) {
                if let Some(event) = &self.chunks[earlier].copied {
                    // Waiting for an event has no deadline.
                    stream.finish_if_bounded("downloading")?;
                    stream.check(event.synchronize(), || "hipEventSynchronize (downloading)".to_string())?;
                }
                // SAFETY: the chunk has arrived, it was full, and `dst` has space for it at this offset.
                unsafe { self.take(earlier, dst.add(at), most) };
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
        let part = &self.chunks[chunk].memory.as_slice()[..bytes];
        // SAFETY: guaranteed by the caller, and the ring is owned.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), dst, bytes) };
    }

    /// Records an event for the current chunk, and waits until the copies from the next chunk are done.
    fn next_chunk(&mut self, stream: &StreamHandle) -> Result<()> {
        let copied = &mut self.chunks[self.chunk].copied;
        let event = match copied.take() {
            Some(event) => event,
            None => stream.make_event()?,
        };
        stream.check(event.record(stream.hip()), || "hipEventRecord".to_string())?;
        *copied = Some(event);
        let next = (self.chunk + 1) % CHUNKS;
        if next == self.chunks.len() {
            self.chunks.push(Chunk::of(stream, self.chunk_bytes)?);
        }
        if let Some(event) = &self.chunks[next].copied {
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

impl Chunk {
    fn of(stream: &StreamHandle, bytes: usize) -> Result<Self> {
        let memory = stream
            .check(hip::PinnedMemory::new(bytes), || format!("hipHostMalloc({bytes} B of a staging ring)"))?;
        Ok(Self { memory, copied: None })
    }
}
