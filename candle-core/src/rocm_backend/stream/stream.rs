//! A stream with its memory, upload ring and deferred launches, and its order relative to other streams.
use super::capture_id;
use super::capturing::{self, CapturedStream, DeviceBlock, GraphMemory};
use super::handle::StreamHandle;
use super::memory::{Memory, SetupError, SystemMemory};
use super::staging::{Ring, Staging};
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
    fn retain(&self, memory: DeviceBlock, bytes: usize) -> Option<DeviceBlock>;
}

pub(crate) struct Stream {
    /// Event that other streams wait for; created on first use.
    event: Mutex<Option<hip::Event>>,
    /// Rings by purpose; created on first use.
    staging: [Mutex<Option<Staging>>; 3],
    memory: Memory,
    /// True if launches are deferred: for execution, and for the capture in progress.
    has_deferred: [AtomicBool; 2],
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
    /// Opens a stream on GPU `ordinal`. `label` names the GPU in errors, `system` its memory; `shared_with_display`
    /// selects a larger memory reserve.
    ///
    /// # Errors
    /// If HIP fails, or an environment variable is invalid.
    pub(crate) fn open(
        ordinal: usize,
        label: String,
        system: SystemMemory,
        shared_with_display: bool,
    ) -> Result<Arc<Self>> {
        let handle = StreamHandle::open(ordinal, label)?;
        let memory = Memory::of_bound_device(handle.shared_wait(), ordinal, system, shared_with_display);
        let memory = match memory {
            Ok(memory) => memory,
            Err(SetupError::Hip(error, call)) => return handle.check(Err(error), || call),
            Err(SetupError::Setting(text)) => return Err(RocmError::InvalidSetting(text).into()),
        };
        let stream = Arc::new(Self {
            event: Mutex::default(),
            staging: Default::default(),
            memory,
            has_deferred: Default::default(),
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

    /// Calls `work` with a ring, which is created on first use. The GPU is bound.
    pub(super) fn with_staging<R>(
        &self,
        ring: Ring,
        work: impl FnOnce(&mut Staging) -> Result<R>,
    ) -> Result<R> {
        let mut staging = self.staging[ring as usize].lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *staging {
            Some(staging) => work(staging),
            empty => work(empty.insert(Staging::of(self, ring)?)),
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

    /// Returns true if the calling thread has deferred launches. Those of a capture are separate.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.has_deferred[usize::from(self.is_capturing())].load(Ordering::Acquire)
    }

    pub(crate) fn set_has_deferred(&self, has_deferred: bool) {
        self.has_deferred[usize::from(self.is_capturing())].store(has_deferred, Ordering::Release);
    }

    /// Makes later work on this stream wait for the work enqueued on `other`. The host does not wait.
    ///
    /// In a capture, a stream that waits for a recorded one joins the capture. If a recorded stream waits for another,
    /// launches of the graph will.
    ///
    /// # Errors
    /// If HIP fails.
    pub(crate) fn wait_for_stream(&self, other: &Self) -> Result<()> {
        if self.id() == other.id() {
            return Ok(());
        }
        match (self.is_capturing(), other.is_capturing()) {
            (false, true) => self.join_capture()?,
            (true, false) => {
                if let Some(other) = other.shared() {
                    capturing::add_source(other.id(), other);
                }
                return Ok(());
            }
            _ => {}
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

    /// Makes the calling thread's capture record this stream, too.
    #[cold]
    fn join_capture(&self) -> Result<()> {
        capture_id::outside(|| self.bind_and_flush())?;
        let joined = match self.shared() {
            Some(stream) if self.begin_recording(capture_id::get())?.is_some() => Some(stream),
            _ => None,
        };
        let Some(stream) = joined else {
            let (operation, device) = ("capturing by another thread".to_string(), self.label().to_string());
            let remedy = "wait until the other thread has captured its graph";
            return Err(RocmError::NotCapturable { operation, device, remedy }.into());
        };
        let memory = stream.new_graph_memory();
        memory.begin(capture_id::get());
        capturing::join((self.id(), stream, memory));
        Ok(())
    }

    /// Creates memory for graphs of this stream.
    pub(super) fn new_graph_memory(self: &Arc<Self>) -> Arc<GraphMemory> {
        GraphMemory::new(self.memory.of_same_device(), self.id(), self.clone())
    }

    /// Returns a shared reference to this stream.
    fn shared(&self) -> Option<Arc<Self>> {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|stream| std::ptr::eq(stream.as_ptr(), self));
        found.and_then(Weak::upgrade)
    }

    /// Allocates at least `bytes` bytes of uninitialized device memory for use on this stream.
    pub(super) fn alloc_memory(&self, bytes: usize) -> Result<DeviceBlock> {
        self.bind()?;
        let graph = if self.is_capturing() { capturing::memory_of(self.id()) } else { None };
        let allocated = match &graph {
            None => self.memory.alloc(bytes, || self.release_siblings()),
            Some(graph) => graph.memory().alloc(bytes, || {
                let own = self.memory.release_idle();
                self.release_siblings() || own > 0
            }),
        };
        match allocated {
            Ok(allocation) => {
                rocm_loader::parts::allocated(self.raw(), allocation.address, bytes);
                Ok(DeviceBlock { address: allocation.address, id: allocation.block, graph })
            }
            Err(error) => self.alloc_error(error),
        }
    }

    /// Releases memory of `bytes` bytes. Work enqueued on the stream and deferred launches may still use it.
    pub(super) fn release_memory(&self, block: DeviceBlock, bytes: usize) {
        let unused = match self.deferred_launches.get() {
            Some(deferred) if self.has_deferred() => deferred.retain(block, bytes),
            _ => Some(block),
        };
        if let Some(block) = unused {
            self.return_memory(block);
        }
    }

    /// Releases memory that no deferred launch needs.
    pub(crate) fn return_memory(&self, block: DeviceBlock) {
        // Called from drops, which cannot return an error.
        let _ = self.bind();
        match &block.graph {
            None => capture_id::outside(|| {
                rocm_loader::parts::freed(self.raw(), block.address);
                self.memory.release(block.id);
            }),
            Some(graph) if graph.is_recording() => {
                rocm_loader::parts::freed(self.raw(), block.address);
                graph.memory().release(block.id);
            }
            // Launches of the graph still use it.
            Some(_) => {}
        }
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

impl CapturedStream for Stream {
    fn finish_before_free(&self) -> bool {
        let has_finished = self.finish_or_abandon();
        // Freeing memory needs the GPU, even if the stream has failed.
        let _ = self.bind();
        has_finished
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Memory must not be freed while a kernel runs. A drop cannot return errors.
        if !self.finish_or_abandon() {
            let rings = self
                .staging
                .each_mut()
                .map(|ring| ring.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            let event = self.event.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget((rings, event));
            self.memory.abandon();
            self.handle.abandon();
        }
    }
}
