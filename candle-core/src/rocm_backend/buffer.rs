//! Typed device memory. The one place where device memory is got and given back.
use super::device::DeviceState;
use super::launch::DevicePtr;
use super::RocmError;
use crate::Result;
use rocm_rs::hip;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// `len` elements of type `T` in the memory of one device, freed on drop.
///
/// Made by [`RocmDevice::alloc`](super::RocmDevice::alloc) and its kin. An empty buffer has a null pointer.
pub struct Buffer<T> {
    memory: ManuallyDrop<hip::DeviceMemory<T>>,
    len: usize,
    state: Arc<DeviceState>,
}

// SAFETY: the pointer is an address in device memory, never dereferenced on the host; HIP's calls may be made from
// any thread once the device is bound, which every use here does.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: as above; shared use only reads the address.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl<T> Buffer<T> {
    /// Uninitialised memory for `len` elements.
    pub(super) fn new(state: &Arc<DeviceState>, len: usize) -> Result<Self> {
        let Some(bytes) = len.checked_mul(size_of::<T>()) else {
            return Err(out_of_memory(state, usize::MAX));
        };
        state.bind()?;
        match hip::DeviceMemory::new(len) {
            Ok(memory) => Ok(Self { memory: ManuallyDrop::new(memory), len, state: state.clone() }),
            Err(error) if error.is_out_of_memory() => {
                let _ = hip::get_last_error();
                Err(out_of_memory(state, bytes))
            }
            Err(error) => state.check(Err(error), || format!("hipMalloc({bytes} B)")),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The address of the first element.
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.memory.as_ptr())
    }

    /// The address of element `offset`.
    ///
    /// # Errors
    /// If `offset` is beyond the end.
    pub fn ptr_at(&self, offset: usize) -> Result<DevicePtr> {
        if offset > self.len {
            return Err(RocmError::Unsupported(format!(
                "offset {offset} is beyond a buffer of {} elements on {}",
                self.len,
                self.state.label()
            ))
            .into());
        }
        Ok(DevicePtr(self.memory.as_ptr().wrapping_byte_add(offset * size_of::<T>())))
    }

    pub(super) fn state(&self) -> &Arc<DeviceState> {
        &self.state
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // hipFree waits for what is still running on the device, so work on this buffer is over when it goes.
        // An error cannot be reported from here, and there is nothing to be done about one.
        let _ = self.state.bind();
        // SAFETY: dropped once, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.memory) }
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = std::any::type_name::<T>();
        write!(f, "Buffer<{name}>({} elements on {})", self.len, self.state.label())
    }
}

fn out_of_memory(state: &DeviceState, requested: usize) -> crate::Error {
    let (free, total) = hip::memory_info().map(|m| (m.free, m.total)).unwrap_or_default();
    RocmError::OutOfMemory { requested, free, total, device: state.label() }.into()
}
