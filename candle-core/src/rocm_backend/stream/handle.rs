//! A HIP stream: binding its GPU to a thread, checking calls, waiting.
use super::capture_id;
use super::wait::{deadline_from_env, StreamWait, WaitError};
use crate::rocm_backend::error::{notes, RocmError};
use crate::Result;
use rocm_rs::hip::{self, bindings};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamId(usize);

impl StreamId {
    fn next() -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(1);
        Self(COUNTER.fetch_add(1, Ordering::Relaxed))
    }
}

/// `hipEventDisableTiming`, since events without timing cost less.
const DISABLE_TIMING: u32 = 2;

/// A stream of a GPU, which executes work in the order in which it is enqueued.
pub(crate) struct StreamHandle {
    id: StreamId,
    ordinal: usize,
    /// Name of the device in errors, such as `rocm:0 (gfx1100)`.
    label: String,
    gpu: hip::Device,
    wait: Arc<StreamWait>,
    /// True if the stream did not finish within the deadline, see [`Self::finish_or_abandon`].
    abandoned: AtomicBool,
    /// Identifier of the capture that records the work of its thread; 0 for none.
    capture: AtomicU64,
    /// The stream that records work; created for the first capture.
    recorder: OnceLock<hip::Stream>,
    stream: hip::Stream,
}

// SAFETY: HIP allows stream and device handles to be used from any thread; each use binds the GPU to the calling
// thread first. The other fields are Send.
unsafe impl Send for StreamHandle {}
// SAFETY: as above; HIP serializes concurrent calls on one stream.
unsafe impl Sync for StreamHandle {}

impl StreamHandle {
    /// Creates a stream on GPU `ordinal`, which stays bound. `label` names the GPU in errors.
    ///
    /// # Errors
    /// If HIP fails, or an environment variable is invalid.
    pub(super) fn open(ordinal: usize, label: String) -> Result<Self> {
        let device = || label.clone();
        let gpu = check(hip::Device::new(ordinal as i32), device, || "hipGetDeviceCount".to_string())?;
        check(gpu.set_current(), device, || format!("hipSetDevice({ordinal})"))?;
        let flags = hip::stream::stream_flags::NON_BLOCKING;
        let stream = check(gpu.get_stream_with_flags(flags), device, || {
            "hipStreamCreateWithFlags(hipStreamNonBlocking)".to_string()
        })?;
        let deadline = deadline_from_env().map_err(RocmError::InvalidSetting)?;
        let wait = Arc::new(StreamWait::of(&stream, deadline));
        let (id, abandoned) = (StreamId::next(), AtomicBool::new(false));
        let (capture, recorder) = (AtomicU64::new(0), OnceLock::new());
        Ok(Self { id, ordinal, label, gpu, wait, abandoned, capture, recorder, stream })
    }

    /// Makes what the calling thread enqueues go to a separate stream, the recorder, which is returned. Returns `None`
    /// if another thread's work is recorded.
    ///
    /// # Errors
    /// If HIP cannot create the recorder.
    pub(super) fn begin_recording(&self, capture: u64) -> Result<Option<bindings::hipStream_t>> {
        if self.capture.compare_exchange(0, capture, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Ok(None);
        }
        if self.recorder.get().is_none() {
            let flags = hip::stream::stream_flags::NON_BLOCKING;
            let created = self.check(self.gpu.get_stream_with_flags(flags), || {
                "hipStreamCreateWithFlags(hipStreamNonBlocking)".to_string()
            });
            match created {
                // Only the thread that captures sets it.
                Ok(recorder) => drop(self.recorder.set(recorder)),
                Err(error) => {
                    self.end_recording();
                    return Err(error);
                }
            }
        }
        Ok(self.recorder.get().map(hip::Stream::as_raw))
    }

    pub(super) fn end_recording(&self) {
        self.capture.store(0, Ordering::Release);
    }

    /// Returns true if the calling thread's work on this stream is recorded instead of executed.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        match self.capture.load(Ordering::Relaxed) {
            0 => false,
            capture => capture == capture_id::get(),
        }
    }

    /// Returns an error if the calling thread captures this stream. `operation` names what a graph cannot record.
    pub(crate) fn refuse_capture(
        &self,
        operation: impl FnOnce() -> String,
        remedy: &'static str,
    ) -> Result<()> {
        match self.is_capturing() {
            false => Ok(()),
            true => {
                let (operation, device) = (operation(), self.label.clone());
                Err(RocmError::NotCapturable { operation, device, remedy }.into())
            }
        }
    }

    /// Leaks the stream until the process ends.
    pub(super) fn abandon(&mut self) {
        // A null stream is not destroyed on drop.
        let none = hip::Stream::from_raw(std::ptr::null_mut());
        std::mem::forget(std::mem::replace(&mut self.stream, none));
        std::mem::forget(self.recorder.take());
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

    /// Returns the stream on which the calling thread enqueues work.
    #[inline]
    pub(crate) fn hip(&self) -> &hip::Stream {
        match self.is_capturing() {
            false => &self.stream,
            true => self.recorder.get().unwrap_or(&self.stream),
        }
    }

    /// Like [`Self::hip`], as a handle.
    #[inline]
    pub(crate) fn raw(&self) -> bindings::hipStream_t {
        self.hip().as_raw()
    }

    /// Creates an event. The GPU is bound.
    pub(super) fn make_event(&self) -> Result<hip::Event> {
        self.check(hip::Event::with_flags(DISABLE_TIMING), || {
            "hipEventCreateWithFlags(hipEventDisableTiming)".to_string()
        })
    }

    /// Makes the GPU the calling thread's current HIP device, unless it already is.
    pub(crate) fn bind(&self) -> Result<()> {
        match rocm_loader::bound_device() {
            Some(ordinal) if ordinal == self.ordinal as i32 => Ok(()),
            _ => self.rebind(),
        }
    }

    /// Like [`Self::bind`], without relying on the recorded current device.
    #[cold]
    pub(crate) fn rebind(&self) -> Result<()> {
        self.check(self.gpu.set_current(), || format!("hipSetDevice({})", self.ordinal))
    }

    /// Converts HIP's result; `call` is only evaluated on failure.
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

    /// Waits for all work enqueued on the stream so far. `purpose` appears in errors. The GPU is bound.
    ///
    /// # Errors
    /// If the work failed, or the deadline has passed.
    pub(crate) fn finish(&self, purpose: &'static str) -> Result<()> {
        self.refuse_capture(|| format!("waiting for the stream ({purpose})"), "wait after the capture")?;
        match self.wait.finish() {
            Ok(()) => Ok(()),
            Err(WaitError::Failed(error)) => {
                self.check(Err(error), || format!("hipStreamSynchronize ({purpose})"))
            }
            Err(WaitError::Monitored { error, .. }) => Err(error),
            Err(WaitError::DeadlineExceeded { after, recent }) => {
                let launches = match recent.is_empty() {
                    true => "no kernel since the deadline was set".to_string(),
                    false => recent.join(", "),
                };
                let seconds = after.as_secs_f64();
                Err(RocmError::DeadlineExceeded { device: self.label.clone(), seconds, purpose, launches }
                    .into())
            }
        }
    }

    /// Calls [`Self::finish`] if it is bounded. Used before a call that would wait without bound.
    pub(super) fn finish_if_bounded(&self, purpose: &'static str) -> Result<()> {
        if self.wait.is_bounded() {
            self.finish(purpose)
        } else {
            Ok(())
        }
    }

    /// Returns an error if HIP reports a failure of the stream, without waiting.
    pub(crate) fn failure(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the handle belongs to this stream, which is alive.
        match unsafe { bindings::hipStreamQuery(self.raw()) } {
            bindings::hipError_t_hipErrorNotReady => Ok(()),
            code => self.check_code(code, || "hipStreamQuery".to_string()),
        }
    }

    /// Returns true if the stream has unfinished work. The GPU is bound.
    pub(crate) fn is_busy(&self) -> bool {
        // SAFETY: the handle belongs to this stream, which is alive.
        let code = unsafe { bindings::hipStreamQuery(self.stream.as_raw()) };
        code == bindings::hipError_t_hipErrorNotReady
    }

    /// Waits for the stream before its resources are released. If it does not finish within the deadline, it counts as
    /// hung from then on, and its resources are leaked, since releasing them would wait for it.
    ///
    /// Returns true if the stream has finished.
    pub(crate) fn finish_or_abandon(&self) -> bool {
        if !self.is_abandoned()
            && self.bind().is_ok()
            && matches!(
                self.wait.finish(),
                Err(WaitError::DeadlineExceeded { .. } | WaitError::Monitored { has_finished: false, .. })
            )
        {
            self.abandoned.store(true, Ordering::Relaxed);
        }
        !self.is_abandoned()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// Converts HIP's result; `device` and `call` are only evaluated on failure.
pub(crate) fn check<T>(
    result: hip::Result<T>,
    device: impl FnOnce() -> String,
    call: impl FnOnce() -> String,
) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(error) => {
            let notes = notes(Some(error.code()));
            // HIP keeps the last error; clear it so that an unrelated call does not return it.
            let _ = hip::get_last_error();
            Err(RocmError::Hip { call: call(), device: device(), error, notes }.into())
        }
    }
}
