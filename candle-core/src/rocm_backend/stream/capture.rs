//! Capturing the work of a stream into a graph.
use super::capture_id;
use super::capturing::{self, CapturedStream, GraphMemory};
use super::Stream;
use crate::rocm_backend::error::RocmError;
use crate::Result;
use rocm_rs::hip::bindings;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// The capture of a stream by the calling thread. Dropping it ends the capture and discards what was recorded.
pub(crate) struct Capture {
    stream: Arc<Stream>,
    /// The HIP stream that records.
    recorder: bindings::hipStream_t,
    has_ended: bool,
    /// The capture belongs to the thread.
    thread: PhantomData<*const ()>,
}

/// Work that was captured.
pub(crate) struct Captured {
    /// Destroyed by the receiver.
    pub(crate) graph: bindings::hipGraph_t,
    /// Other streams whose work is part of the graph.
    pub(crate) joined: Vec<Arc<Stream>>,
    /// Other streams that launches must wait for.
    pub(crate) sources: Vec<Arc<Stream>>,
    /// Memory of each captured stream, first that of the stream on which the capture began.
    pub(crate) memory: Vec<Arc<GraphMemory>>,
    /// Number of kernel launches in the graph.
    pub(crate) kernels: u64,
}

fn to_stream(stream: Arc<dyn CapturedStream>) -> Option<Arc<Stream>> {
    let any: Arc<dyn Any + Send + Sync> = stream;
    any.downcast().ok()
}

impl Capture {
    /// Begins to record what the calling thread enqueues on a stream. Allocations are taken from `memory`, which must
    /// belong to the stream, or from new memory.
    ///
    /// # Errors
    /// If the calling thread captures already, another thread captures this stream or into this memory, or HIP fails.
    pub(crate) fn begin(stream: &Arc<Stream>, memory: Option<Arc<GraphMemory>>) -> Result<Self> {
        let refused = |operation: &str, remedy| {
            let (operation, device) = (operation.to_string(), stream.label().to_string());
            Err(RocmError::NotCapturable { operation, device, remedy }.into())
        };
        if capturing::is_active() {
            return refused("capturing another graph", "capture one graph after the other");
        }
        stream.bind_and_flush()?;
        let id = capture_id::next();
        let recorder = match stream.begin_recording(id)? {
            Some(recorder) => recorder,
            None => {
                return refused(
                    "capturing by another thread",
                    "wait until the other thread has captured its graph",
                )
            }
        };
        let memory = memory.unwrap_or_else(|| stream.new_graph_memory());
        if !memory.begin(id) {
            stream.end_recording();
            return refused("capturing into the memory of that graph", "use separate memory for each thread");
        }
        // Other threads may allocate memory and wait for the device meanwhile.
        let mode = bindings::hipStreamCaptureMode_hipStreamCaptureModeRelaxed;
        // SAFETY: the recorder belongs to the stream, which is alive.
        let begun = stream.check_code(unsafe { bindings::hipStreamBeginCapture(recorder, mode) }, || {
            "hipStreamBeginCapture".to_string()
        });
        capturing::enter(id, (stream.id(), stream.clone(), memory));
        let capture =
            Self { stream: stream.clone(), recorder, has_ended: begun.is_err(), thread: PhantomData };
        match begun {
            Ok(()) => Ok(capture),
            Err(error) => {
                capture.leave();
                Err(error)
            }
        }
    }

    /// Ends the capture and returns what was recorded.
    ///
    /// # Errors
    /// If deferred launches cannot be recorded, or HIP reports that the capture is invalid.
    pub(crate) fn end(mut self) -> Result<Captured> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Captured> {
        self.has_ended = true;
        let stream = self.stream.clone();
        let joined = self.join();
        let recorded = self.leave();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the recorder belongs to the stream, which is alive; the pointer is valid for a write.
        let code = unsafe { bindings::hipStreamEndCapture(self.recorder, &mut graph) };
        let ended = stream.check_code(code, || "hipStreamEndCapture".to_string());
        if ended.is_err() && self.is_recording() {
            // The call itself failed. Otherwise the stream could not be captured again.
            // SAFETY: as above.
            let _ = unsafe { bindings::hipStreamEndCapture(self.recorder, &mut graph) };
        }
        let outcome = joined.and(ended);
        let captured = recorded.map(|recorded| {
            let streams = recorded.streams.iter().skip(1).map(|(_, stream, _)| stream.clone());
            Captured {
                graph,
                joined: streams.filter_map(to_stream).collect(),
                sources: recorded.sources.into_iter().filter_map(|(_, stream)| to_stream(stream)).collect(),
                memory: recorded.streams.into_iter().map(|(.., memory)| memory).collect(),
                kernels: recorded.kernels,
            }
        });
        match (outcome, captured) {
            (Ok(()), Some(captured)) => Ok(captured),
            (outcome, captured) => {
                if !graph.is_null() {
                    // SAFETY: the graph was just created.
                    let _ = unsafe { bindings::hipGraphDestroy(graph) };
                }
                drop(captured);
                outcome?;
                Err(RocmError::Unsupported("internal error: a capture without streams".to_string()).into())
            }
        }
    }

    /// Returns true if HIP still records.
    fn is_recording(&self) -> bool {
        let mut status = bindings::hipStreamCaptureStatus_hipStreamCaptureStatusNone;
        // SAFETY: the recorder belongs to the stream, which is alive; the pointer is valid for a write.
        let code = unsafe { bindings::hipStreamIsCapturing(self.recorder, &mut status) };
        code == bindings::hipError_t_hipSuccess
            && status != bindings::hipStreamCaptureStatus_hipStreamCaptureStatusNone
    }

    /// Records the deferred launches, and makes the stream wait for the other streams of the capture, as HIP requires.
    fn join(&self) -> Result<()> {
        let mut outcome = Ok(());
        for stream in capturing::streams().into_iter().filter_map(to_stream) {
            outcome = outcome.and(stream.bind_and_flush());
            if stream.id() != self.stream.id() {
                outcome = outcome.and(self.stream.wait_for_stream(&stream));
            }
        }
        outcome
    }

    fn leave(&self) -> Option<capturing::Recorded> {
        let recorded = capturing::leave();
        for (_, stream, _) in recorded.iter().flat_map(|recorded| &recorded.streams) {
            if let Some(stream) = to_stream(stream.clone()) {
                stream.end_recording();
            }
        }
        recorded
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if let Ok(captured) = self.finish() {
            // SAFETY: the graph was just created. A drop cannot return errors.
            let _ = unsafe { bindings::hipGraphDestroy(captured.graph) };
        }
    }
}
