//! Typed device memory, through which tensors allocate and release all their device memory.
use super::memory::Allocation;
use super::Stream;
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::DevicePtr;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Device memory for `len` elements of type `T`, released on drop.
///
/// Created by [`RocmDevice::alloc`](crate::RocmDevice::alloc) and similar methods. An empty buffer has a null pointer.
pub struct Buffer<T> {
    /// `None` if the buffer is empty.
    memory: Option<Allocation>,
    len: usize,
    stream: Arc<Stream>,
    /// Other streams with work that uses this memory.
    users: Mutex<Vec<Weak<Stream>>>,
    elements: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// Allocates uninitialized memory for `len` elements.
    pub(crate) fn on(stream: &Arc<Stream>, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>());
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
    pub fn ptr(&self) -> DevicePtr {
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
        if !users.iter().any(|user| std::ptr::eq(user.as_ptr(), Arc::as_ptr(other))) {
            users.push(Arc::downgrade(other));
        }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let bytes = self.size_in_bytes();
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A dropped stream has been waited for.
        for user in users.iter().filter_map(Weak::upgrade) {
            if self.stream.wait_for_stream(&user).is_err() && user.bind().is_ok() {
                let _ = user.finish("releasing memory that another stream uses");
            }
        }
        self.stream.release_memory(memory, bytes);
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = std::any::type_name::<T>();
        write!(f, "Buffer<{name}>({} elements on {})", self.len, self.stream.label())
    }
}
