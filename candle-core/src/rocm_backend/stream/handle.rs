//! HIP's stream on one GPU: binding the GPU to a thread, checking calls, waiting.
use super::wait::{deadline_from_env, StreamWait, Unfinished};
use crate::rocm_backend::error::{notes, RocmError};
use crate::Result;
use rocm_rs::hip::{self, bindings};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

/// Unique identifier of a stream in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamId(usize);

impl StreamId {
    fn next() -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(1);
        Self(COUNTER.fetch_add(1, Ordering::Relaxed))
    }
}

/// `hipEventDisableTiming`: an event that is only waited for costs less without.
const DISABLE_TIMING: u32 = 2;

/// One stream of one GPU: everything on it happens in the order in which it was enqueued.
pub(crate) struct StreamHandle {
    id: StreamId,
    ordinal: usize,
    /// `rocm:0 (gfx1100)`, as errors name the device.
    label: String,
    gpu: hip::Device,
    wait: Arc<StreamWait>,
    /// True once the work on the stream is given up: see [`Self::finish_or_give_up`].
    given_up: AtomicBool,
    stream: hip::Stream,
}

// SAFETY: stream and device handles are plain handles that HIP lets any thread use; each use binds the GPU to the
// calling thread first. Everything else in here is Send by itself.
unsafe impl Send for StreamHandle {}
// SAFETY: as above; HIP serialises concurrent calls on one stream.
unsafe impl Sync for StreamHandle {}

impl StreamHandle {
    /// Makes a stream on GPU `ordinal`, which stays bound. `label` names the GPU in errors.
    ///
    /// # Errors
    /// If HIP fails, or a variable is not understood.
    pub(super) fn open(ordinal: usize, label: String) -> Result<Self> {
        let device = || label.clone();
        let gpu = check(hip::Device::new(ordinal as i32), device, || "hipGetDeviceCount".to_string())?;
        check(gpu.set_current(), device, || format!("hipSetDevice({ordinal})"))?;
        let flags = hip::stream::stream_flags::NON_BLOCKING;
        let stream = check(gpu.get_stream_with_flags(flags), device, || {
            "hipStreamCreateWithFlags(hipStreamNonBlocking)".to_string()
        })?;
        let deadline = deadline_from_env().map_err(RocmError::Setting)?;
        let wait = Arc::new(StreamWait::of(&stream, deadline));
        let (id, given_up) = (StreamId::next(), AtomicBool::new(false));
        Ok(Self { id, ordinal, label, gpu, wait, given_up, stream })
    }

    /// Leaves the stream to the end of the process.
    pub(super) fn abandon(&mut self) {
        // A stream without a handle is not destroyed.
        let none = hip::Stream::from_raw(std::ptr::null_mut());
        std::mem::forget(std::mem::replace(&mut self.stream, none));
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

    pub(crate) fn wait(&self) -> &StreamWait {
        &self.wait
    }

    pub(super) fn shared_wait(&self) -> Arc<StreamWait> {
        self.wait.clone()
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

    /// Makes the GPU the calling thread's current one, unless it is already: HIP keeps one per thread.
    pub(crate) fn bind(&self) -> Result<()> {
        match rocm_loader::bound_device() {
            Some(ordinal) if ordinal == self.ordinal as i32 => Ok(()),
            _ => self.bind_anew(),
        }
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
    /// A failure of the stream, or a deadline that passed; `purpose` names the wait.
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

    /// Returns what failed on the stream so far, as far as HIP knows without waiting.
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
