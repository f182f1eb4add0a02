//! A stream with what belongs to it: memory, the upload ring, launches that are held back, and its order among others.
use super::handle::StreamHandle;
use super::memory::{Allocation, Memory, SetupError};
use super::staging::Staging;
use crate::rocm_backend::error::RocmError;
use crate::Result;
use rocm_rs::hip;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Launches that a higher floor holds back from a stream, to merge them with what follows. The floor registers itself
/// with [`Stream::set_held_launches`]; a stream has one.
pub(crate) trait HeldLaunches: Send + Sync {
    /// Enqueues them. The GPU is bound.
    ///
    /// # Errors
    /// The errors of the launches, also of an earlier call of [`Self::enqueue_silently`].
    fn enqueue(&self) -> Result<()>;
    /// Like [`Self::enqueue`] where no error can be returned: the next call of it returns the error.
    fn enqueue_silently(&self);
    /// Takes over memory of `bytes` bytes that its owner gives back, if a held launch needs it. Else it is returned.
    fn retain(&self, memory: Allocation, bytes: usize) -> Option<Allocation>;
}

/// A stream with the memory that is handed out in its order.
pub(crate) struct Stream {
    /// Recorded for other streams to wait for; made when first needed.
    event: Mutex<Option<hip::Event>>,
    staging: Mutex<Option<Staging>>,
    memory: Memory,
    /// True while `held_launches` holds anything back.
    has_held: AtomicBool,
    held_launches: OnceLock<Box<dyn HeldLaunches>>,
    // The last to be dropped: everything above is used on it.
    handle: StreamHandle,
}

// SAFETY: an event is a plain handle that HIP lets any thread use, and the others are Send by themselves.
unsafe impl Send for Stream {}
// SAFETY: as above; the event is used under its mutex.
unsafe impl Sync for Stream {}

impl Deref for Stream {
    type Target = StreamHandle;

    fn deref(&self) -> &StreamHandle {
        &self.handle
    }
}

/// Every open stream.
static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

impl Stream {
    /// A stream of its own on GPU `ordinal`. `label` names the GPU in errors; `shared_with_display` asks for more
    /// of its memory to be left free.
    ///
    /// # Errors
    /// If HIP fails, or a variable is not understood.
    pub(crate) fn open(ordinal: usize, label: String, shared_with_display: bool) -> Result<Arc<Self>> {
        let handle = StreamHandle::open(ordinal, label)?;
        let memory = match Memory::of_bound_device(handle.shared_wait(), shared_with_display) {
            Ok(memory) => memory,
            Err(SetupError::Hip(error, call)) => return handle.check(Err(error), || call),
            Err(SetupError::Setting(text)) => return Err(RocmError::Setting(text).into()),
        };
        let stream = Arc::new(Self {
            event: Mutex::default(),
            staging: Mutex::default(),
            memory,
            has_held: AtomicBool::new(false),
            held_launches: OnceLock::new(),
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

    /// The ring through which uploads go, made at the first one. The GPU is bound.
    pub(super) fn with_staging<R>(&self, work: impl FnOnce(&mut Staging) -> Result<R>) -> Result<R> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *staging {
            Some(ring) => work(ring),
            empty => work(empty.insert(Staging::of(self)?)),
        }
    }

    /// [`Self::bind`], and enqueues the launches that are held back: for whatever enqueues, or waits.
    #[inline]
    pub(crate) fn begin(&self) -> Result<()> {
        self.bind()?;
        match self.has_held() {
            true => self.held_launches.get().map_or(Ok(()), |held| held.enqueue()),
            false => Ok(()),
        }
    }

    /// [`Self::begin`] where no error can be returned.
    pub(crate) fn begin_silently(&self) {
        if let Some(held) = self.held_launches.get().filter(|_| self.has_held() && self.bind().is_ok()) {
            held.enqueue_silently();
        }
    }

    /// Registers the floor that holds launches back; the first one stays.
    pub(crate) fn set_held_launches(&self, held: Box<dyn HeldLaunches>) {
        let _ = self.held_launches.set(held);
    }

    /// Returns true while launches are held back.
    pub(crate) fn has_held(&self) -> bool {
        self.has_held.load(Ordering::Acquire)
    }

    /// Notes whether launches are held back.
    pub(crate) fn set_has_held(&self, has_held: bool) {
        self.has_held.store(has_held, Ordering::Release);
    }

    /// Lets this stream go on only after what `other` has to do now. The host does not wait.
    ///
    /// # Errors
    /// If HIP fails.
    pub(crate) fn follow(&self, other: &Self) -> Result<()> {
        if self.id() == other.id() {
            return Ok(());
        }
        other.begin()?;
        self.begin()?;
        // Held until the wait is enqueued: recording the event again moves what later waits mean, not this one.
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

    /// At least `bytes` bytes of device memory, not initialised, for use in this stream's order.
    pub(super) fn take_memory(&self, bytes: usize) -> Result<Allocation> {
        self.bind()?;
        match self.memory.take(bytes, || self.siblings_give_back()) {
            Ok(allocation) => {
                rocm_loader::parts::taken(self.raw(), allocation.address, bytes);
                Ok(allocation)
            }
            Err(refusal) => self.refused(refusal),
        }
    }

    /// Takes memory of `bytes` bytes back. What is on the stream may still use it, and what is held back.
    pub(super) fn give_memory(&self, allocation: Allocation, bytes: usize) {
        let left = match self.held_launches.get() {
            Some(held) if self.has_held() => held.retain(allocation, bytes),
            _ => Some(allocation),
        };
        if let Some(allocation) = left {
            self.release_memory(allocation);
        }
    }

    /// Takes back memory that no held launch needs.
    pub(crate) fn release_memory(&self, allocation: Allocation) {
        // An error cannot be reported from a drop, and the memory is kept or gone in any case.
        let _ = self.bind();
        rocm_loader::parts::given(self.raw(), allocation.address);
        self.memory.give(allocation.block);
    }

    #[cold]
    fn refused<T>(&self, refusal: super::memory::Refusal<(hip::Error, String)>) -> Result<T> {
        use super::memory::Refusal;
        let device = self.label().to_string();
        Err(match refusal {
            Refusal::OutOfMemory { requested, free, total } => {
                RocmError::OutOfMemory { requested, free, total, device }.into()
            }
            Refusal::BeyondReserve { requested, reserve, free, total } => {
                RocmError::BeyondReserve { requested, reserve, free, total, device }.into()
            }
            Refusal::Failed((error, call)) => return self.check(Err(error), || call),
        })
    }

    /// Has all other streams of this GPU give back what they keep. Returns whether there was anything.
    fn siblings_give_back(&self) -> bool {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let siblings: Vec<Arc<Self>> = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|stream| stream.ordinal() == self.ordinal() && stream.id() != self.id())
            .collect();
        // A stream whose last owner this becomes may lock the list when it is dropped.
        drop(all);
        // Of every one, also if the first has given something.
        siblings.iter().map(|stream| stream.memory.give_back_idle()).sum::<usize>() > 0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Nothing may be freed under a running kernel. Errors have nobody left to go to.
        if !self.finish_or_give_up() {
            let ring = self.staging.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            let event = self.event.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget((ring, event));
            self.memory.abandon();
            self.handle.abandon();
        }
    }
}
