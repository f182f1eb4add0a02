//! A stream with its memory, upload ring and deferred launches, and its order relative to other streams.
use super::handle::StreamHandle;
use super::memory::{Allocation, Memory, SetupError};
use super::staging::Staging;
use crate::rocm_backend::error::RocmError;
use crate::Result;
use rocm_rs::hip;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Launches that a higher layer defers in order to fuse them with later ones. The layer registers itself with
/// [`Stream::set_deferred_launches`]; a stream has at most one.
pub(crate) trait DeferredLaunches: Send + Sync {
    /// Enqueues the deferred launches. The GPU is bound.
    ///
    /// # Errors
    /// If a launch fails, or failed in an earlier call of [`Self::enqueue_silently`].
    fn enqueue(&self) -> Result<()>;
    /// Like [`Self::enqueue`]; an error is returned by the next call of [`Self::enqueue`].
    fn enqueue_silently(&self);
    /// Takes ownership of released memory of `bytes` bytes if a deferred launch needs it; otherwise returns it.
    fn retain(&self, memory: Allocation, bytes: usize) -> Option<Allocation>;
}

pub(crate) struct Stream {
    /// Event that other streams wait for; created on first use.
    event: Mutex<Option<hip::Event>>,
    staging: Mutex<Option<Staging>>,
    memory: Memory,
    has_deferred: AtomicBool,
    deferred_launches: OnceLock<Box<dyn DeferredLaunches>>,
    // Dropped last, since all other fields depend on it.
    handle: StreamHandle,
}

// SAFETY: HIP allows an event to be used from any thread, and the other fields are Send.
unsafe impl Send for Stream {}
// SAFETY: as above; a mutex guards the event.
unsafe impl Sync for Stream {}

impl Deref for Stream {
    type Target = StreamHandle;

    fn deref(&self) -> &StreamHandle {
        &self.handle
    }
}

static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

impl Stream {
    /// Opens a stream on GPU `ordinal`. `label` names the GPU in errors; `shared_with_display` selects a larger memory
    /// reserve.
    ///
    /// # Errors
    /// If HIP fails, or an environment variable is invalid.
    pub(crate) fn open(ordinal: usize, label: String, shared_with_display: bool) -> Result<Arc<Self>> {
        let handle = StreamHandle::open(ordinal, label)?;
        let memory = match Memory::of_bound_device(handle.shared_wait(), shared_with_display) {
            Ok(memory) => memory,
            Err(SetupError::Hip(error, call)) => return handle.check(Err(error), || call),
            Err(SetupError::Setting(text)) => return Err(RocmError::InvalidSetting(text).into()),
        };
        let stream = Arc::new(Self {
            event: Mutex::default(),
            staging: Mutex::default(),
            memory,
            has_deferred: AtomicBool::new(false),
            deferred_launches: OnceLock::new(),
            handle,
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|stream| stream.strong_count() > 0);
        all.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Calls `work` with the upload ring, which is created on first use. The GPU is bound.
    pub(super) fn with_staging<R>(&self, work: impl FnOnce(&mut Staging) -> Result<R>) -> Result<R> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *staging {
            Some(ring) => work(ring),
            empty => work(empty.insert(Staging::of(self)?)),
        }
    }

    /// Binds the GPU and enqueues deferred launches. Must be called before other work is enqueued or waited for.
    #[inline]
    pub(crate) fn bind_and_flush(&self) -> Result<()> {
        self.bind()?;
        match self.has_deferred() {
            true => self.deferred_launches.get().map_or(Ok(()), |deferred| deferred.enqueue()),
            false => Ok(()),
        }
    }

    /// Like [`Self::bind_and_flush`]; an error is returned by the next call of it.
    pub(crate) fn bind_and_flush_silently(&self) {
        let is_ready = || self.has_deferred() && self.bind().is_ok();
        if let Some(deferred) = self.deferred_launches.get().filter(|_| is_ready()) {
            deferred.enqueue_silently();
        }
    }

    /// Registers the layer that defers launches; only the first call has an effect.
    pub(crate) fn set_deferred_launches(&self, deferred: Box<dyn DeferredLaunches>) {
        let _ = self.deferred_launches.set(deferred);
    }

    pub(crate) fn has_deferred(&self) -> bool {
        self.has_deferred.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_deferred(&self, has_deferred: bool) {
        self.has_deferred.store(has_deferred, Ordering::Release);
    }

    /// Makes later work on this stream wait for the work enqueued on `other`. The host does not wait.
    ///
    /// # Errors
    /// If HIP fails.
    pub(crate) fn wait_for_stream(&self, other: &Self) -> Result<()> {
        if self.id() == other.id() {
            return Ok(());
        }
        other.bind_and_flush()?;
        self.bind_and_flush()?;
        // Locked until the wait is enqueued; recording the event again later does not affect this wait.
        let mut event = other.event.lock().unwrap_or_else(PoisonError::into_inner);
        other.bind()?;
        let event = match &mut *event {
            Some(event) => event,
            empty => empty.insert(other.make_event()?),
        };
        other.check(event.record(other.hip()), || "hipEventRecord".to_string())?;
        self.bind()?;
        self.check(self.hip().wait_event(event, 0), || "hipStreamWaitEvent".to_string())
    }

    /// Allocates at least `bytes` bytes of uninitialized device memory for use on this stream.
    pub(super) fn alloc_memory(&self, bytes: usize) -> Result<Allocation> {
        self.bind()?;
        match self.memory.alloc(bytes, || self.release_siblings()) {
            Ok(allocation) => {
                rocm_loader::parts::allocated(self.raw(), allocation.address, bytes);
                Ok(allocation)
            }
            Err(error) => self.alloc_error(error),
        }
    }

    /// Releases memory of `bytes` bytes. Work enqueued on the stream and deferred launches may still use it.
    pub(super) fn release_memory(&self, allocation: Allocation, bytes: usize) {
        let unused = match self.deferred_launches.get() {
            Some(deferred) if self.has_deferred() => deferred.retain(allocation, bytes),
            _ => Some(allocation),
        };
        if let Some(allocation) = unused {
            self.return_memory(allocation);
        }
    }

    /// Releases memory that no deferred launch needs.
    pub(crate) fn return_memory(&self, allocation: Allocation) {
        // Called from drops, which cannot return an error.
        let _ = self.bind();
        rocm_loader::parts::freed(self.raw(), allocation.address);
        self.memory.release(allocation.block);
    }

    #[cold]
    fn alloc_error<T>(&self, error: super::memory::AllocError<(hip::Error, String)>) -> Result<T> {
        use super::memory::AllocError;
        let device = self.label().to_string();
        Err(match error {
            AllocError::OutOfMemory { requested, free, total } => {
                RocmError::OutOfMemory { requested, free, total, device }.into()
            }
            AllocError::BeyondReserve { requested, reserve, free, total } => {
                RocmError::BeyondReserve { requested, reserve, free, total, device }.into()
            }
            AllocError::Failed((error, call)) => return self.check(Err(error), || call),
        })
    }

    /// Makes all other streams of this GPU release their idle memory. Returns true if there was any.
    fn release_siblings(&self) -> bool {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let siblings: Vec<Arc<Self>> = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|stream| stream.ordinal() == self.ordinal() && stream.id() != self.id())
            .collect();
        // Unlock first: dropping the last reference to a stream may lock the list.
        drop(all);
        // All of them, even if the first has released enough.
        siblings.iter().map(|stream| stream.memory.release_idle()).sum::<usize>() > 0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Memory must not be freed while a kernel runs. A drop cannot return errors.
        if !self.finish_or_abandon() {
            let ring = self.staging.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            let event = self.event.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget((ring, event));
            self.memory.abandon();
            self.handle.abandon();
        }
    }
}
