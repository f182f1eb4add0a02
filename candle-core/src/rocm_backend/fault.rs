//! The record in which indexing kernels leave an index that was out of range.
use super::device::DeviceState;
use super::launch::DevicePtr;
use super::RocmError;
use crate::Result;
use rocm_rs::hip;
use std::ffi::c_void;
use std::sync::atomic::{fence, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// `CandleFault` of candle-kernels/indexing.cu.
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

/// The global of the module that points to the record.
const GLOBAL: &str = "candle_fault";

/// Pinned host memory that the device writes to: reading it after a wait costs no copy.
#[derive(Default)]
pub(super) struct FaultRecord(OnceLock<Pinned>);

struct Pinned {
    record: hip::PinnedMemory<Fault>,
    /// Held while a fault is taken, so that each is taken once.
    taking: Mutex<()>,
}

// SAFETY: the allocation is fixed and owned; it is read and written through volatile accesses only.
unsafe impl Send for Pinned {}
// SAFETY: as above, and writing takes the mutex.
unsafe impl Sync for Pinned {}

impl FaultRecord {
    /// Allocates the record and tells the freshly loaded indexing module where it is. The device is bound.
    pub(super) fn attach(&self, state: &DeviceState, module: &hip::Module) -> Result<()> {
        let record = match self.0.get() {
            Some(record) => record,
            None => {
                let flags = hip::ffi::hipHostMallocMapped | hip::ffi::hipHostMallocCoherent;
                let mut memory = state.check(hip::PinnedMemory::<Fault>::with_flags(1, flags), || {
                    "hipHostMalloc(index fault record)".to_string()
                })?;
                // SAFETY: one Fault was allocated, all its bit patterns are valid, and no kernel knows it yet.
                unsafe { memory.as_mut_ptr().write(Fault { op: 0, turn: 0, index: 0, bound: 0 }) };
                self.0.get_or_init(|| Pinned { record: memory, taking: Mutex::new(()) })
            }
        };
        let device_ptr =
            state.check(record.record.get_device_pointer(), || "hipHostGetDevicePointer".to_string())?;
        let global = state
            .check(module.get_global::<*mut c_void>(GLOBAL), || format!("hipModuleGetGlobal({GLOBAL})"))?;
        // The module's kernels run on the same stream, after the copy.
        super::copy::upload(state, &[device_ptr], DevicePtr(global.cast()))
    }

    /// Reports and clears what the kernels have left. The stream has been waited for.
    pub(super) fn take(&self, state: &DeviceState) -> Result<()> {
        let Some(pinned) = self.0.get() else { return Ok(()) };
        let ptr = pinned.record.as_ptr().cast_mut();
        // SAFETY: the record lives as long as the device.
        let op = || unsafe { (&raw const (*ptr).op).read_volatile() };
        if op() == 0 {
            return Ok(());
        }
        let _taking = pinned.taking.lock().unwrap_or_else(PoisonError::into_inner);
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
            device: state.label(),
        }
        .into())
    }
}

fn op_name(op: u32) -> &'static str {
    match op {
        1 => "index-select",
        2 => "gather",
        3 => "scatter",
        4 => "scatter-add",
        5 => "index-add",
        _ => "indexing",
    }
}
