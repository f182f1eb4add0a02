//! Typed device memory. The one place where tensors get and give back device memory.
use super::device::DeviceState;
use super::launch::DevicePtr;
use super::RocmError;
use crate::Result;
use rocm_rs::hip;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// `len` elements of type `T` in the memory of one device, given back on drop.
///
/// Made by [`RocmDevice::alloc`](super::RocmDevice::alloc) and its kin. An empty buffer has a null pointer.
pub struct Buffer<T> {
    address: usize,
    len: usize,
    state: Arc<DeviceState>,
    /// Other streams that were given work on this memory.
    users: Mutex<Vec<Weak<DeviceState>>>,
    elements: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// Uninitialised memory for `len` elements.
    pub(super) fn new(state: &Arc<DeviceState>, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>());
        let address = if bytes == 0 { 0 } else { state.take_memory(bytes)? };
        Ok(Self { address, len, state: state.clone(), users: Mutex::default(), elements: PhantomData })
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
        DevicePtr(std::ptr::with_exposed_provenance_mut(self.address))
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
        Ok(DevicePtr(self.ptr().0.wrapping_byte_add(offset * size_of::<T>())))
    }

    pub(super) fn state(&self) -> &Arc<DeviceState> {
        &self.state
    }

    /// Notes that work on `other`'s stream uses this memory: it is not reused before that work is done.
    pub(super) fn used_by(&self, other: &Arc<DeviceState>) {
        if other.id == self.state.id || self.address == 0 {
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
        if self.address == 0 {
            return;
        }
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A device that is gone has waited for its stream.
        for user in users.iter().filter_map(Weak::upgrade) {
            if wait_for(&self.state, &user).is_err() {
                let _ = user.synchronize();
            }
        }
        self.state.give_memory(self.address);
    }
}

/// Lets the stream of `state` go on only after what the stream of `other` has to do now.
fn wait_for(state: &DeviceState, other: &DeviceState) -> Result<()> {
    let disable_timing = 2;
    other.bind()?;
    let call = || "hipEventRecord".to_string();
    let event =
        other.check(hip::Event::with_flags(disable_timing), || "hipEventCreateWithFlags".to_string())?;
    other.check(event.record(&other.stream), call)?;
    state.bind()?;
    state.check(state.stream.wait_event(&event, 0), || "hipStreamWaitEvent".to_string())
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = std::any::type_name::<T>();
        write!(f, "Buffer<{name}>({} elements on {})", self.len, self.state.label())
    }
}
