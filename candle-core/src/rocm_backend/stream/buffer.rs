//! Typed device memory, through which tensors allocate and release all their device memory.
use super::capture_id;
use super::capturing::{self, DeviceBlock, GraphMemory};
use super::Stream;
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::DevicePtr;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Device memory for `len` elements of type `T`, released on drop.
///
/// Created by [`RocmDevice::alloc`](crate::RocmDevice::alloc) and similar methods. An empty buffer has a null pointer.
pub struct Buffer<T> {
    /// `None` if the buffer is empty.
    memory: Option<DeviceBlock>,
    len: usize,
    stream: Arc<Stream>,
    users: Mutex<Users>,
    elements: PhantomData<T>,
}

/// Other work that uses a buffer's memory, in addition to that of its stream.
#[derive(Default)]
struct Users {
    streams: Vec<Weak<Stream>>,
    /// Memory of the graphs whose launches use the buffer.
    graphs: Vec<Weak<GraphMemory>>,
}

/// Memory of a dropped buffer. Dropping it returns the memory to the stream.
struct Released {
    block: Option<DeviceBlock>,
    bytes: usize,
    stream: Arc<Stream>,
    users: Vec<Weak<Stream>>,
}

impl<T> Buffer<T> {
    /// Allocates uninitialized memory for `len` elements.
    pub(crate) fn on(stream: &Arc<Stream>, len: usize) -> Result<Self> {
        // Whole words, because atomic additions of narrow elements access the word around them.
        let bytes = len.saturating_mul(size_of::<T>());
        let bytes = bytes.checked_next_multiple_of(size_of::<u32>()).unwrap_or(bytes);
        let memory = if bytes == 0 { None } else { Some(stream.alloc_memory(bytes)?) };
        Ok(Self { memory, len, stream: stream.clone(), users: Mutex::default(), elements: PhantomData })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the size in bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Returns the address of the first element.
    ///
    /// In a capture, the graph uses the buffer from then on: its memory is not reused before the graph is dropped.
    pub fn ptr(&self) -> DevicePtr {
        if capturing::is_active() {
            self.record_graph();
        }
        let address = self.memory.as_ref().map_or(0, |memory| memory.address);
        DevicePtr(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Returns the address of element `offset`.
    ///
    /// # Errors
    /// If `offset` is greater than the length.
    pub fn ptr_at(&self, offset: usize) -> Result<DevicePtr> {
        if offset > self.len {
            return Err(RocmError::Unsupported(format!(
                "offset {offset} is beyond a buffer of {} elements on {}",
                self.len,
                self.stream.label()
            ))
            .into());
        }
        Ok(DevicePtr(self.ptr().0.wrapping_byte_add(offset * size_of::<T>())))
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Records that work on `other` uses this memory, so that it is not reused before that work is done.
    pub(crate) fn record_stream(&self, other: &Arc<Stream>) {
        if other.id() == self.stream.id() || self.memory.is_none() {
            return;
        }
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if !users.streams.iter().any(|user| std::ptr::eq(user.as_ptr(), Arc::as_ptr(other))) {
            users.streams.push(Arc::downgrade(other));
        }
    }

    /// Records that the graph that the calling thread captures uses this memory.
    #[cold]
    fn record_graph(&self) {
        let own = self.memory.as_ref().and_then(|block| block.graph.as_ref());
        let (Some(graph), false) = (capturing::origin_memory(), own.is_some_and(|own| own.is_recording()))
        else {
            return;
        };
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.graphs.retain(|known| known.strong_count() > 0);
        if !users.graphs.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(&graph))) {
            users.graphs.push(Arc::downgrade(&graph));
        }
    }
}

/// Returns memory to its stream after the streams that use it.
fn release(stream: &Stream, block: DeviceBlock, bytes: usize, users: &[Weak<Stream>]) {
    // A dropped stream has been waited for.
    for user in users.iter().filter_map(Weak::upgrade) {
        if stream.wait_for_stream(&user).is_err() && user.bind().is_ok() {
            let _ = user.finish("releasing memory that another stream uses");
        }
    }
    stream.release_memory(block, bytes);
}

impl Drop for Released {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            capture_id::outside(|| release(&self.stream, block, self.bytes, &self.users));
        }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let Some(block) = self.memory.take() else { return };
        let bytes = self.size_in_bytes();
        let users = std::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        let stream = &self.stream;
        if !users.graphs.is_empty() {
            let released =
                Released { block: Some(block), bytes, stream: stream.clone(), users: users.streams };
            let kept: Arc<dyn Any + Send + Sync> = Arc::new(released);
            // If no graph is left, this was the only reference, and the memory is released.
            users.graphs.iter().filter_map(Weak::upgrade).for_each(|graph| {
                graph.keep(&kept);
            });
        } else if block.graph.as_ref().is_some_and(|graph| graph.is_recording()) {
            release(stream, block, bytes, &users.streams);
        } else {
            capture_id::outside(|| release(stream, block, bytes, &users.streams));
        }
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = std::any::type_name::<T>();
        write!(f, "Buffer<{name}>({} elements on {})", self.len, self.stream.label())
    }
}
