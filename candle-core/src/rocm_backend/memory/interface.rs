//! What users ask of a device's memory, and set.
use super::MemoryStats;
use crate::rocm_backend::RocmDevice;
#[cfg(doc)]
use crate::rocm_backend::RocmError;
use crate::Result;
use rocm_rs::hip;

impl RocmDevice {
    /// Free and total memory of the GPU in bytes.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.state.bind()?;
        let info = self.state.check(hip::memory_info(), || "hipMemGetInfo".to_string())?;
        Ok((info.free, info.total))
    }

    /// What the memory of this device is used for.
    pub fn memory_stats(&self) -> MemoryStats {
        self.state.memory_stats()
    }

    /// Gives the memory that is parked for reuse back to the driver; returns how many bytes. Waits for the device,
    /// as hipFree does. Only worth it before other programs or libraries need the memory.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn empty_cache(&self) -> Result<usize> {
        self.state.give_back_parked()
    }

    /// Bytes that tensors could still use: free on the GPU, or parked for reuse and not bound by a live tensor.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn free_memory(&self) -> Result<usize> {
        let stats = self.memory_stats();
        Ok(self.memory_info()?.0.saturating_add(stats.parked - stats.held))
    }

    /// The largest request that is granted now: by default 70 percent of [`Self::free_memory`], see
    /// [`Self::set_memory_share`].
    ///
    /// # Errors
    /// If HIP fails.
    pub fn safe_alloc_size(&self) -> Result<usize> {
        self.state.allowed_memory()
    }

    /// Whether one request for `bytes` bytes would be granted now.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn can_allocate(&self, bytes: usize) -> Result<bool> {
        Ok(bytes <= self.safe_alloc_size()?)
    }

    /// Sets the share of the free memory that one request may take, in percent. `CANDLE_ROCM_MEMORY_SHARE` sets it
    /// for devices that are opened later; the default is 70, which leaves a desktop alive.
    ///
    /// # Errors
    /// [`RocmError::Setting`] for anything but 1 to 100.
    pub fn set_memory_share(&self, percent: u8) -> Result<()> {
        self.state.set_memory_share(percent)
    }

    /// Sets how many bytes may be parked for reuse, and gives back what is more; 0 turns reuse off.
    /// `CANDLE_ROCM_MEMORY_PARKED` sets it for devices that are opened later; the default is an eighth of the GPU's
    /// memory, and 0 on the software GPU, which checks the bounds of what the driver gave.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn set_parked_memory(&self, bytes: usize) -> Result<()> {
        self.state.set_parked_memory(bytes)
    }
}
