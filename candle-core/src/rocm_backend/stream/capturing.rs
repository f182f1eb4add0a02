//! The graph capture of the calling thread: which streams it records, and the memory of the graph.
//!
//! While a thread captures a stream, its work goes to a separate HIP stream that records it. Work that other threads
//! enqueue on the stream is executed as usual.
use super::capture_id;
pub(crate) use super::capture_id::outside;
use super::handle::StreamId;
use super::memory::{BlockId, Memory};
use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    static CURRENT: RefCell<Option<Recorded>> = const { RefCell::new(None) };
}

/// A stream, as needed by code that it depends on.
pub(crate) trait CapturedStream: Any + Send + Sync {
    /// Waits for the stream and binds its GPU. Returns false if it hangs, so that its memory must not be freed.
    fn finish_before_free(&self) -> bool;
}

/// The streams of a capture.
pub(crate) struct Recorded {
    /// Streams whose work is recorded, the first being the one on which the capture began, and their memory.
    pub(super) streams: Vec<(StreamId, Arc<dyn CapturedStream>, Arc<GraphMemory>)>,
    /// Streams with operands of the graph that are written outside of it.
    pub(super) sources: Vec<(StreamId, Arc<dyn CapturedStream>)>,
    /// Number of recorded kernel launches.
    pub(super) kernels: u64,
}

/// Returns true if the calling thread captures work.
#[inline]
pub(crate) fn is_active() -> bool {
    capture_id::get() != 0
}

/// Makes `id` the capture of the calling thread, which records `stream`.
pub(super) fn enter(id: u64, stream: (StreamId, Arc<dyn CapturedStream>, Arc<GraphMemory>)) {
    CURRENT.set(Some(Recorded { streams: vec![stream], sources: Vec::new(), kernels: 0 }));
    capture_id::set(id);
}

/// Ends the capture of the calling thread.
pub(super) fn leave() -> Option<Recorded> {
    capture_id::set(0);
    let recorded = CURRENT.take()?;
    recorded.streams.iter().for_each(|(.., memory)| memory.recording.store(0, Ordering::Relaxed));
    Some(recorded)
}

/// Calls `work` with the streams of the calling thread's capture, if it captures.
fn with_current<R>(work: impl FnOnce(&mut Recorded) -> R) -> Option<R> {
    match is_active() {
        true => CURRENT.with_borrow_mut(|current| current.as_mut().map(work)),
        false => None,
    }
}

/// Returns the streams whose work is recorded.
pub(super) fn streams() -> Vec<Arc<dyn CapturedStream>> {
    let streams =
        |current: &mut Recorded| current.streams.iter().map(|(_, stream, _)| stream.clone()).collect();
    with_current(streams).unwrap_or_default()
}

/// Adds a stream whose work is recorded from now on.
pub(super) fn join(stream: (StreamId, Arc<dyn CapturedStream>, Arc<GraphMemory>)) {
    with_current(|current| current.streams.push(stream));
}

/// Adds a stream that launches of the graph must wait for.
pub(super) fn add_source(id: StreamId, stream: Arc<dyn CapturedStream>) {
    with_current(|current| {
        if current.sources.iter().all(|(known, _)| *known != id) {
            current.sources.push((id, stream));
        }
    });
}

/// Returns the memory for what a recorded stream allocates.
pub(super) fn memory_of(id: StreamId) -> Option<Arc<GraphMemory>> {
    with_current(|current| {
        current.streams.iter().find(|(known, ..)| *known == id).map(|(.., memory)| memory.clone())
    })?
}

/// Counts a recorded kernel launch.
pub(crate) fn count_launch() {
    with_current(|current| current.kernels += 1);
}

/// Returns the memory of the stream on which the calling thread's capture began.
pub(super) fn origin_memory() -> Option<Arc<GraphMemory>> {
    with_current(|current| current.streams.first().map(|(.., memory)| memory.clone()))?
}

/// Memory of one or more graphs of a stream: what their closures allocated, and what they use of other memory.
///
/// Blocks are reused only while a capture records into this memory. It returns to the driver when all graphs and all
/// tensors in it are dropped.
pub(crate) struct GraphMemory {
    /// Memory of dropped tensors that the graphs use. Dropped after the stream has finished.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    memory: Memory,
    /// Identifier of the capture that records into this memory; 0 for none.
    recording: AtomicU64,
    /// Number of graphs that use this memory.
    graphs: AtomicUsize,
    id: StreamId,
    // Dropped last, since the memory belongs to the stream.
    stream: Arc<dyn CapturedStream>,
}

impl GraphMemory {
    /// Creates memory for graphs of the stream with this identifier.
    pub(super) fn new(memory: Memory, id: StreamId, stream: Arc<dyn CapturedStream>) -> Arc<Self> {
        let (kept, recording, graphs) = (Mutex::default(), AtomicU64::new(0), AtomicUsize::new(0));
        Arc::new(Self { kept, memory, recording, graphs, id, stream })
    }

    /// Returns true if the memory was created for this stream.
    pub(crate) fn belongs_to(&self, stream: StreamId) -> bool {
        self.id == stream
    }

    /// Makes the calling thread's capture record into this memory. Returns false if another capture does.
    pub(super) fn begin(&self, id: u64) -> bool {
        self.recording.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns true if the calling thread's capture records into this memory.
    pub(super) fn is_recording(&self) -> bool {
        let id = capture_id::get();
        id != 0 && self.recording.load(Ordering::Relaxed) == id
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the number of bytes allocated from the driver.
    pub(crate) fn bytes(&self) -> usize {
        let stats = self.memory.stats();
        stats.live + stats.cached
    }

    pub(crate) fn add_graph(&self) {
        self.graphs.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops what the graphs kept if this was the last one. Its launches must have ended.
    pub(crate) fn remove_graph(&self) {
        if self.graphs.fetch_sub(1, Ordering::AcqRel) == 1 {
            let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
            drop(kept);
        }
    }

    /// Keeps memory until the graphs are dropped. Returns false if there are none.
    pub(super) fn keep(&self, memory: &Arc<dyn Any + Send + Sync>) -> bool {
        let is_used = self.graphs.load(Ordering::Acquire) > 0 || self.recording.load(Ordering::Relaxed) != 0;
        if is_used {
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(memory.clone());
        }
        is_used
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        // Launches of dropped graphs may still run, and a tensor may be in use.
        if !outside(|| self.stream.finish_before_free()) {
            self.memory.abandon();
        }
    }
}

/// A block of device memory.
pub(crate) struct DeviceBlock {
    pub(crate) address: usize,
    pub(super) id: BlockId,
    /// Memory that the block belongs to, if it was allocated during a capture.
    pub(super) graph: Option<Arc<GraphMemory>>,
}
