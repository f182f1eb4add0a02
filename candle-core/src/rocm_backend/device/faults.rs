//! The record in which indexing kernels leave an index that was out of range.
use crate::rocm_backend::stream::{clear, upload, Stream};
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::{
    DevicePtr, FAULT_EMBEDDING, FAULT_EXPERT, FAULT_GATHER, FAULT_INDEX_ADD, FAULT_INDEX_SELECT,
    FAULT_SCATTER, FAULT_SCATTER_ADD,
};
use rocm_rs::hip;
use std::ffi::c_void;
use std::sync::atomic::{fence, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// `CandleFault` of candle-kernels/faults.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fault {
    /// Which op, see [`op_name`]; 0 while nothing happened.
    op: u32,
    /// How many faults were taken. The device counts how many it wrote, and writes only while the two are equal.
    turn: u32,
    index: i64,
    bound: u64,
}

/// The global of a module that points to the record, and to how many faults were written.
const GLOBAL: &str = "candle_faults";

/// What the kernels of one stream report, in pinned host memory that the device writes to: reading it after a wait
/// costs no copy.
pub(crate) struct FaultRecord {
    stream: Arc<Stream>,
    record: OnceLock<Pinned>,
    /// In device memory, one for all modules.
    written: OnceLock<Counter>,
    /// Held while a fault is taken, so that each is taken once.
    taking: Mutex<()>,
}

struct Counter(hip::DeviceMemory<u32>);

// SAFETY: the allocation is fixed and owned; only kernels touch it.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

struct Pinned(hip::PinnedMemory<Fault>);

// SAFETY: the allocation is fixed and owned; it is read and written through volatile accesses only.
unsafe impl Send for Pinned {}
// SAFETY: as above, and writing takes the mutex.
unsafe impl Sync for Pinned {}

impl Drop for FaultRecord {
    fn drop(&mut self) {
        if self.stream.is_given_up() {
            // A kernel that does not end may still write to it.
            std::mem::forget((self.record.take(), self.written.take()));
        }
    }
}

impl FaultRecord {
    pub(super) fn of(stream: &Arc<Stream>) -> Arc<Self> {
        Arc::new(Self {
            stream: stream.clone(),
            record: OnceLock::new(),
            written: OnceLock::new(),
            taking: Mutex::new(()),
        })
    }

    pub(super) fn is_of(&self, stream: &Stream) -> bool {
        self.stream.id() == stream.id()
    }

    /// Allocates the record and tells a freshly loaded module where it is. The GPU is bound.
    pub(super) fn attach(&self, module: &hip::Module) -> Result<()> {
        let stream = &*self.stream;
        let record = match self.record.get() {
            Some(record) => record,
            None => {
                let flags = hip::ffi::hipHostMallocMapped | hip::ffi::hipHostMallocCoherent;
                let mut memory = stream.check(hip::PinnedMemory::<Fault>::with_flags(1, flags), || {
                    "hipHostMalloc(index fault record)".to_string()
                })?;
                // SAFETY: one Fault was allocated, all its bit patterns are valid, and no kernel knows it yet.
                unsafe { memory.as_mut_ptr().write(Fault { op: 0, turn: 0, index: 0, bound: 0 }) };
                self.record.get_or_init(|| Pinned(memory))
            }
        };
        let written = match self.written.get() {
            Some(written) => written,
            None => {
                let memory = hip::DeviceMemory::new(1);
                let memory = stream.check(memory, || "hipMalloc(count of index faults)".to_string())?;
                // SAFETY: so many bytes were allocated.
                unsafe { clear(stream, DevicePtr(memory.as_ptr()), size_of::<u32>())? };
                self.written.get_or_init(|| Counter(memory))
            }
        };
        let record = stream.check(record.0.get_device_pointer(), || "hipHostGetDevicePointer".to_string())?;
        let global = stream
            .check(module.get_global::<*mut c_void>(GLOBAL), || format!("hipModuleGetGlobal({GLOBAL})"))?;
        let pointers = [record.expose_provenance(), written.0.as_ptr().expose_provenance()];
        // SAFETY: the global is two pointers. The module's kernels run on the same stream, after the copy.
        unsafe { upload(stream, &pointers, DevicePtr(global.cast())) }
    }

    /// Reports and clears what the kernels have left. Those asked about have ended.
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
        // SAFETY: as above; while `op` is set no kernel writes the record, also not one that another thread enqueued.
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

    /// What went wrong on the record's stream, as far as it is known without waiting.
    pub(super) fn take_all(&self) -> Result<()> {
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
        _ => "indexing",
    }
}
