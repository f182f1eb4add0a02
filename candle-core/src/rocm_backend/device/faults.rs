//! The record to which indexing kernels write an index that is out of range.
use crate::rocm_backend::stream::{upload, Stream};
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::{
    DevicePtr, FAULT_CACHE, FAULT_EMBEDDING, FAULT_EXPERT, FAULT_GATHER, FAULT_INDEX_ADD, FAULT_INDEX_SELECT,
    FAULT_PAGE, FAULT_POSITION, FAULT_SCATTER, FAULT_SCATTER_ADD, FAULT_SEQUENCE,
};
use rocm_rs::hip;
use std::ffi::c_void;
use std::sync::atomic::{fence, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Rust equivalent of `CandleFault` in candle-kernels/faults.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fault {
    /// Code of the operation, see [`op_name`]; 0 if there is no fault.
    op: u32,
    /// Number of faults read by the host. Kernels write at most one fault for each value.
    turn: u32,
    index: i64,
    bound: u64,
}

/// Name of the global variable in a module that points to the record.
pub(super) const GLOBAL: &str = "candle_fault";

/// Fault reported by the kernels of one stream, in pinned host memory, so that the host reads it without a copy.
pub(crate) struct FaultRecord {
    stream: Arc<Stream>,
    record: OnceLock<Pinned>,
    /// Held while a fault is read, so that each is returned only once.
    taking: Mutex<()>,
}

struct Pinned(hip::PinnedMemory<Fault>);

// SAFETY: the allocation is owned and never moves; it is only accessed through volatile reads and writes.
unsafe impl Send for Pinned {}
// SAFETY: as above, and the host writes only while it holds the mutex.
unsafe impl Sync for Pinned {}

impl Drop for FaultRecord {
    fn drop(&mut self) {
        if self.stream.is_abandoned() {
            // A kernel that has not ended may still write to it.
            std::mem::forget(self.record.take());
        }
    }
}

impl FaultRecord {
    pub(super) fn new(stream: &Arc<Stream>) -> Arc<Self> {
        Arc::new(Self { stream: stream.clone(), record: OnceLock::new(), taking: Mutex::new(()) })
    }

    pub(super) fn belongs_to(&self, stream: &Stream) -> bool {
        self.stream.id() == stream.id()
    }

    /// Allocates the record on first use, and writes its address to a newly loaded module. The GPU is bound.
    pub(super) fn attach(&self, module: &hip::Module) -> Result<()> {
        let stream = &*self.stream;
        let record = match self.record.get() {
            Some(record) => record,
            None => {
                let flags = hip::ffi::hipHostMallocMapped | hip::ffi::hipHostMallocCoherent;
                let mut memory = stream.check(hip::PinnedMemory::<Fault>::with_flags(1, flags), || {
                    "hipHostMalloc(index fault record)".to_string()
                })?;
                // SAFETY: one Fault was allocated, all its bit patterns are valid, and no kernel has its address yet.
                unsafe { memory.as_mut_ptr().write(Fault { op: 0, turn: 0, index: 0, bound: 0 }) };
                self.record.get_or_init(|| Pinned(memory))
            }
        };
        let address =
            stream.check(record.0.get_device_pointer(), || "hipHostGetDevicePointer".to_string())?;
        let global = stream
            .check(module.get_global::<*mut c_void>(GLOBAL), || format!("hipModuleGetGlobal({GLOBAL})"))?;
        // SAFETY: the global is one pointer. The module's kernels run on the same stream, after the copy.
        unsafe { upload(stream, &[address.expose_provenance()], DevicePtr(global.cast())) }
    }

    /// Returns the recorded fault as an error, and clears it. The kernels concerned must have ended.
    pub(super) fn take(&self) -> Result<()> {
        let Some(Pinned(record)) = self.record.get() else { return Ok(()) };
        let ptr = record.as_ptr().cast_mut();
        // SAFETY: the record lives as long as this.
        let op = || unsafe { (&raw const (*ptr).op).read_volatile() };
        if op() == 0 {
            return Ok(());
        }
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        if op() == 0 {
            return Ok(());
        }
        // SAFETY: as above; while `op` is set, no kernel writes the record, even if another thread enqueued it.
        let fault = unsafe { ptr.read_volatile() };
        // SAFETY: as above.
        unsafe {
            (&raw mut (*ptr).turn).write_volatile(fault.turn.wrapping_add(1));
            fence(Ordering::SeqCst);
            (&raw mut (*ptr).op).write_volatile(0);
        }
        Err(RocmError::IndexOutOfRange {
            op: op_name(fault.op),
            index: fault.index,
            bound: fault.bound,
            device: self.stream.label().to_string(),
        }
        .into())
    }

    /// Like [`Self::take`], and also returns a failure of the stream that is known without waiting.
    pub(super) fn take_with_stream_failure(&self) -> Result<()> {
        self.stream.failure()?;
        self.take()
    }
}

fn op_name(op: u32) -> &'static str {
    match op as usize {
        FAULT_INDEX_SELECT => "index-select",
        FAULT_GATHER => "gather",
        FAULT_SCATTER => "scatter",
        FAULT_SCATTER_ADD => "scatter-add",
        FAULT_INDEX_ADD => "index-add",
        FAULT_EMBEDDING => "quantized-embedding",
        FAULT_EXPERT => "experts",
        FAULT_SEQUENCE => "sequence starts",
        FAULT_PAGE => "page table",
        FAULT_CACHE => "cache slot",
        FAULT_POSITION => "rotary position",
        _ => "indexing",
    }
}
