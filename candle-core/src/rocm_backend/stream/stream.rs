//! One stream of one GPU: everything on it happens in the order in which it was enqueued.
use super::memory::{Memory, SetupError, Taken};
use super::staging::Staging;
use super::wait::{deadline_from_env, StreamWait, Unfinished};
use crate::rocm_backend::error::{notes, RocmError};
use crate::Result;
use rocm_rs::hip::{self, bindings};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Unique identifier of a stream in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamId(usize);

impl StreamId {
    fn next() -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(1);
        Self(COUNTER.fetch_add(1, Ordering::Relaxed))
    }
}

/// Launches that a higher floor holds back from a stream, to merge them with what follows. The floor registers itself
/// with [`Stream::set_held_launches`]; a stream has one.
pub(crate) trait HeldLaunches: Send + Sync {
    /// Enqueues them. The GPU is bound.
    ///
    /// # Errors
    /// Those of the launches, also of an earlier call of [`Self::enqueue_silently`].
    fn enqueue(&self) -> Result<()>;
    /// Like [`Self::enqueue`] where no error can be returned: the next call of it returns the error.
    fn enqueue_silently(&self);
    /// Takes over memory of `bytes` bytes that its owner gives back, if a held launch needs it. Else it is returned.
    fn retain(&self, memory: Taken, bytes: usize) -> Option<Taken>;
}

/// A stream with the memory that is handed out in its order.
pub(crate) struct Stream {
    id: StreamId,
    ordinal: usize,
    /// `rocm:0 (gfx1100)`, as errors name the device.
    label: String,
    gpu: hip::Device,
    /// Recorded for other streams to wait for; made when first needed.
    event: Mutex<Option<hip::Event>>,
    staging: Mutex<Option<Staging>>,
    memory: Memory,
    wait: Arc<StreamWait>,
    /// Whether what is on the stream is not waited for any more: see [`Self::finish_or_give_up`].
    given_up: AtomicBool,
    /// Whether `held_launches` holds anything back.
    has_held: AtomicBool,
    held_launches: OnceLock<Box<dyn HeldLaunches>>,
    // The last to be dropped: everything above is used on it.
    stream: hip::Stream,
}

// SAFETY: stream, event and device handles are plain handles that HIP lets any thread use; each use binds the
// GPU to the calling thread first. Everything else in here is Send by itself.
unsafe impl Send for Stream {}
// SAFETY: as above; HIP serialises concurrent calls on one stream.
unsafe impl Sync for Stream {}

/// Every open stream.
static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

/// `hipEventDisableTiming`: an event that is only waited for costs less without.
const DISABLE_TIMING: u32 = 2;

impl Stream {
    /// A stream of its own on GPU `ordinal`. `label` names the GPU in errors; `shared_with_display` asks for more
    /// of its memory to be left free.
    ///
    /// # Errors
    /// If HIP fails, or a variable is not understood.
    pub(crate) fn open(ordinal: usize, label: String, shared_with_display: bool) -> Result<Arc<Self>> {
        let device = || label.clone();
        let gpu = check(hip::Device::new(ordinal as i32), device, || "hipGetDeviceCount".to_string())?;
        check(gpu.set_current(), device, || format!("hipSetDevice({ordinal})"))?;
        let flags = hip::stream::stream_flags::NON_BLOCKING;
        let stream = check(gpu.get_stream_with_flags(flags), device, || {
            "hipStreamCreateWithFlags(hipStreamNonBlocking)".to_string()
        })?;
        let deadline = deadline_from_env().map_err(RocmError::Setting)?;
        let wait = Arc::new(StreamWait::of(&stream, deadline));
        let memory = match Memory::of_bound_device(wait.clone(), shared_with_display) {
            Ok(memory) => memory,
            Err(SetupError::Hip(error, call)) => return check(Err(error), device, || call),
            Err(SetupError::Setting(text)) => return Err(RocmError::Setting(text).into()),
        };
        let (event, staging) = (Mutex::default(), Mutex::default());
        let stream = Arc::new(Self {
            id: StreamId::next(),
            ordinal,
            label,
            gpu,
            event,
            staging,
            memory,
            wait,
            given_up: AtomicBool::new(false),
            has_held: AtomicBool::new(false),
            held_launches: OnceLock::new(),
            stream,
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|stream| stream.strong_count() > 0);
        all.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    pub(crate) fn id(&self) -> StreamId {
        self.id
    }

    pub(crate) fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn wait(&self) -> &StreamWait {
        &self.wait
    }

    pub(crate) fn hip(&self) -> &hip::Stream {
        &self.stream
    }

    pub(crate) fn raw(&self) -> bindings::hipStream_t {
        self.stream.as_raw()
    }

    /// An event to wait for. The GPU is bound.
    pub(super) fn make_event(&self) -> Result<hip::Event> {
        self.check(hip::Event::with_flags(DISABLE_TIMING), || {
            "hipEventCreateWithFlags(hipEventDisableTiming)".to_string()
        })
    }

    /// The ring through which uploads go, made at the first one. The GPU is bound.
    pub(super) fn with_staging<R>(&self, work: impl FnOnce(&mut Staging) -> Result<R>) -> Result<R> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *staging {
            Some(ring) => work(ring),
            empty => work(empty.insert(Staging::of(self)?)),
        }
    }

    /// Makes the GPU the calling thread's current one, unless it is already: HIP keeps one per thread.
    pub(crate) fn bind(&self) -> Result<()> {
        match rocm_loader::bound_device() {
            Some(ordinal) if ordinal == self.ordinal as i32 => Ok(()),
            _ => self.bind_anew(),
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

    /// Whether launches are held back.
    pub(crate) fn has_held(&self) -> bool {
        self.has_held.load(Ordering::Acquire)
    }

    /// Notes whether launches are held back.
    pub(crate) fn set_has_held(&self, has_held: bool) {
        self.has_held.store(has_held, Ordering::Release);
    }

    /// Like [`Self::bind`], whatever the thread's current GPU seems to be.
    #[cold]
    pub(crate) fn bind_anew(&self) -> Result<()> {
        self.check(self.gpu.set_current(), || format!("hipSetDevice({})", self.ordinal))
    }

    /// Turns HIP's result into ours; `call` is only made up on failure.
    pub(crate) fn check<T>(&self, result: hip::Result<T>, call: impl FnOnce() -> String) -> Result<T> {
        check(result, || self.label.clone(), call)
    }

    /// Like [`Self::check`], for a raw status code.
    #[inline]
    pub(crate) fn check_code(&self, code: bindings::hipError_t, call: impl FnOnce() -> String) -> Result<()> {
        match code {
            bindings::hipError_t_hipSuccess => Ok(()),
            code => self.check(hip::Error::from_hip_error(code), call),
        }
    }

    /// Waits for all that is on the stream now. The GPU is bound.
    ///
    /// # Errors
    /// What failed on it, or that the deadline has passed; `purpose` says what was waited for.
    pub(crate) fn finish(&self, purpose: &'static str) -> Result<()> {
        match self.wait.finish() {
            Ok(()) => Ok(()),
            Err(Unfinished::Failed(error)) => {
                self.check(Err(error), || format!("hipStreamSynchronize ({purpose})"))
            }
            Err(Unfinished::Overdue { after, recent }) => {
                let launches = match recent.is_empty() {
                    true => "no kernel since the deadline was set".to_string(),
                    false => recent.join(", "),
                };
                let seconds = after.as_secs_f64();
                Err(RocmError::Overdue { device: self.label.clone(), seconds, purpose, launches }.into())
            }
        }
    }

    /// [`Self::finish`], but only if there is a deadline: for what comes before a call that waits by itself.
    pub(super) fn finish_if_limited(&self, purpose: &'static str) -> Result<()> {
        self.wait.deadline().map_or(Ok(()), |_| self.finish(purpose))
    }

    /// What failed on the stream so far, as far as HIP knows without waiting.
    pub(crate) fn failure(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the handle is this live stream's.
        match unsafe { bindings::hipStreamQuery(self.raw()) } {
            bindings::hipError_t_hipErrorNotReady => Ok(()),
            code => self.check_code(code, || "hipStreamQuery".to_string()),
        }
    }

    /// Waits for the stream before what is used on it is given back. If it does not end within the deadline, it is taken
    /// to be stuck from here on: what it uses is left to the end of the process, since giving it back would wait.
    ///
    /// Returns whether it has ended.
    pub(crate) fn finish_or_give_up(&self) -> bool {
        if !self.is_given_up()
            && self.bind().is_ok()
            && matches!(self.wait.finish(), Err(Unfinished::Overdue { .. }))
        {
            self.given_up.store(true, Ordering::Relaxed);
        }
        !self.is_given_up()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Lets this stream go on only after what `other` has to do now. The host does not wait.
    ///
    /// # Errors
    /// If HIP fails.
    pub(crate) fn follow(&self, other: &Self) -> Result<()> {
        if self.id == other.id {
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
        other.check(event.record(&other.stream), || "hipEventRecord".to_string())?;
        self.bind()?;
        self.check(self.stream.wait_event(event, 0), || "hipStreamWaitEvent".to_string())
    }

    /// At least `bytes` bytes of device memory, not initialised, for use in this stream's order.
    pub(super) fn take_memory(&self, bytes: usize) -> Result<Taken> {
        self.bind()?;
        match self.memory.take(bytes, || self.siblings_give_back()) {
            Ok(taken) => {
                rocm_loader::parts::taken(self.raw(), taken.address, bytes);
                Ok(taken)
            }
            Err(refusal) => self.refused(refusal),
        }
    }

    /// Takes memory of `bytes` bytes back. What is on the stream may still use it, and what is held back.
    pub(super) fn give_memory(&self, taken: Taken, bytes: usize) {
        let left = match self.held_launches.get() {
            Some(held) if self.has_held() => held.retain(taken, bytes),
            _ => Some(taken),
        };
        if let Some(taken) = left {
            self.release_memory(taken);
        }
    }

    /// Takes back memory that no held launch needs.
    pub(crate) fn release_memory(&self, taken: Taken) {
        // An error cannot be reported from a drop, and the memory is kept or gone in any case.
        let _ = self.bind();
        rocm_loader::parts::given(self.raw(), taken.address);
        self.memory.give(taken.block);
    }

    #[cold]
    fn refused<T>(&self, refusal: super::memory::Refusal<(hip::Error, String)>) -> Result<T> {
        use super::memory::Refusal;
        let device = self.label.clone();
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
            .filter(|stream| stream.ordinal == self.ordinal && stream.id != self.id)
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
            // A stream without a handle is not destroyed.
            let none = hip::Stream::from_raw(std::ptr::null_mut());
            std::mem::forget(std::mem::replace(&mut self.stream, none));
        }
    }
}

/// Turns HIP's result into ours; `device` and `call` are only made up on failure.
pub(crate) fn check<T>(
    result: hip::Result<T>,
    device: impl FnOnce() -> String,
    call: impl FnOnce() -> String,
) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(error) => {
            let notes = notes(Some(error.code()));
            // HIP keeps the last error for whoever asks next; it has been told here.
            let _ = hip::get_last_error();
            Err(RocmError::Hip { call: call(), device: device(), error, notes }.into())
        }
    }
}
