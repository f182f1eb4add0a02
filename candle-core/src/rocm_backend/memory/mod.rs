//! Device memory: got from the driver in segments, cut into blocks, and reused without asking the driver.
//!
//! `hipFree` drains the device, so what a tensor leaves behind is parked and handed to the next one. That is sound
//! without waiting because one stream orders all work of a device: what used the memory comes before what will. A
//! buffer that another stream has used lets its own stream wait for that one first ([`super::buffer`]).
//!
//! | file | subject |
//! |---|---|
//! | `sizes` | the sizes of blocks and segments |
//! | `arena` | which blocks are free, which lie side by side |
//! | `pool` | when to reuse, when to ask the driver, when to give back |
//! | `shared` | the pool under its lock, and making room with other streams of the GPU |
//! | `interface` | what users ask and set |
//! | `limits` | how much one request may take, how much may be parked |
mod arena;
mod interface;
mod limits;
mod pool;
#[cfg(test)]
mod pool_tests;
mod shared;
mod sizes;

use super::device::DeviceState;
use super::wait::StreamWait;
use super::RocmError;
use crate::Result;
use limits::Limits;
pub use limits::{PARKED_VARIABLE, SHARE_VARIABLE};
pub use pool::MemoryStats;
use pool::{Driver, Pool, Refusal};
use rocm_loader::DriverKind;
use rocm_rs::hip;
use shared::Shared;
use std::sync::Arc;

/// The memory of one device.
pub(super) struct Memory(Shared<Hip>);

/// hipMalloc and hipFree on the device that is bound to the calling thread.
struct Hip {
    wait: Arc<StreamWait>,
}

/// Memory of the driver's. Dropping it calls hipFree.
struct Segment(#[allow(dead_code, reason = "owned for its drop")] hip::DeviceMemory<u8>);

// SAFETY: an address in device memory, never dereferenced on the host; HIP frees it from any thread.
unsafe impl Send for Segment {}

impl Driver for Hip {
    type Segment = Segment;
    type Error = (hip::Error, String);

    fn allocate(&self, bytes: usize) -> std::result::Result<Option<(usize, Segment)>, Self::Error> {
        match hip::DeviceMemory::<u8>::new(bytes) {
            Ok(memory) => Ok(Some((memory.as_ptr().expose_provenance(), Segment(memory)))),
            Err(error) if error.is_out_of_memory() => {
                // HIP keeps the last error for whoever asks next.
                let _ = hip::get_last_error();
                Ok(None)
            }
            Err(error) => Err((error, format!("hipMalloc({bytes} B)"))),
        }
    }

    fn may_free(&self) -> bool {
        self.wait.deadline().is_none() || self.wait.finish().is_ok()
    }

    fn info(&self) -> std::result::Result<(usize, usize), Self::Error> {
        let info = hip::memory_info().map_err(|error| (error, "hipMemGetInfo".to_string()))?;
        Ok((info.free, info.total))
    }
}

impl Memory {
    /// The memory of the device that is bound to the calling thread.
    ///
    /// # Errors
    /// [`RocmError::Setting`] for a variable that does not parse, [`RocmError::Hip`] if HIP fails.
    pub(super) fn of_bound_device(wait: Arc<StreamWait>) -> std::result::Result<Self, Trouble> {
        let driver = Hip { wait };
        let (_, total) = driver.info().map_err(Trouble::Hip)?;
        let software = rocm_loader::driver().is_ok_and(|driver| driver.kind() == DriverKind::Emulator);
        let limits = Limits::of(total, software).map_err(Trouble::Setting)?;
        Ok(Self(Shared::new(Pool::new(driver, limits))))
    }

    /// Leaves all memory to the end of the process.
    pub(super) fn abandon(&self) {
        self.0.with(Pool::abandon);
    }
}

/// Why a device's memory could not be set up.
pub(super) enum Trouble {
    Hip((hip::Error, String)),
    Setting(String),
}

impl DeviceState {
    /// The address of at least `bytes` bytes of device memory, not initialised.
    pub(super) fn take_memory(&self, bytes: usize) -> Result<usize> {
        self.bind()?;
        let refusal = match self.memory.0.take(bytes, || self.siblings_give_back()) {
            Ok(address) => return Ok(address),
            Err(refusal) => refusal,
        };
        Err(match refusal {
            Refusal::OutOfMemory { requested, free, total } => {
                RocmError::OutOfMemory { requested, free, total, device: self.label() }.into()
            }
            Refusal::BeyondShare { requested, allowed, free, total } => {
                let share = self.memory.0.with(|pool| pool.limits.share);
                RocmError::BeyondShare { requested, allowed, share, free, total, device: self.label() }.into()
            }
            Refusal::Failed((error, call)) => return self.check(Err(error), || call),
        })
    }

    /// Takes memory back. What was enqueued on the stream may still use it.
    pub(super) fn give_memory(&self, address: usize) {
        // An error cannot be reported from a drop, and the memory is kept or gone in any case.
        let _ = self.bind();
        let known = self.memory.0.give(address);
        debug_assert!(known, "0x{address:x} is no memory of {}", self.label());
    }

    /// Gives all that is parked back to the driver. Returns the bytes.
    pub(super) fn give_back_parked(&self) -> Result<usize> {
        self.bind()?;
        Ok(self.memory.0.give_back_parked())
    }

    pub(super) fn memory_stats(&self) -> MemoryStats {
        self.memory.0.stats()
    }

    /// Bytes that one request may take now.
    pub(super) fn allowed_memory(&self) -> Result<usize> {
        self.bind()?;
        let allowed = self.memory.0.with(|pool| pool.allowed());
        allowed.or_else(|(error, call)| self.check(Err(error), || call))
    }

    /// Sets the percent of the free memory that one request may take.
    pub(super) fn set_memory_share(&self, percent: u8) -> Result<()> {
        if !(1..=100).contains(&percent) {
            return Err(RocmError::Setting(format!(
                "a memory share of {percent} percent: it must be 1 to 100"
            ))
            .into());
        }
        self.memory.0.with(|pool| pool.limits.share = percent);
        Ok(())
    }

    /// Sets how many bytes may be parked, and gives back what is more.
    pub(super) fn set_parked_memory(&self, bytes: usize) -> Result<()> {
        self.bind()?;
        self.memory.0.with(|pool| {
            pool.limits.parked = bytes;
            pool.give_back_idle(bytes);
        });
        Ok(())
    }
}
