//! Public queries and settings of a device's memory.
use super::device::RocmDevice;
use super::properties::pci_address;
use crate::rocm_backend::stream::memory::{MemoryPools, MemoryStats};
use crate::rocm_backend::RocmError;
use crate::Result;
use std::time::Duration;

/// Returns the sizes of the memory pools of GPU `ordinal`, which need not be open.
pub(super) fn memory_pools(ordinal: usize) -> MemoryPools {
    MemoryPools::of(pci_address(ordinal).as_deref())
}

impl RocmDevice {
    /// Returns the free and total memory of the GPU in bytes. The free memory is the least of what HIP reports, what Linux
    /// reports, and the total without the allocations of this process.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let stream = &self.state().stream;
        stream.bind()?;
        stream.memory().info().or_else(|(error, call)| stream.check(Err(error), || call))
    }

    /// Returns the sizes of the memory pools that the GPU can use, as Linux reports them.
    pub fn memory_pools(&self) -> MemoryPools {
        memory_pools(self.ordinal())
    }

    /// Returns statistics on this device's memory.
    pub fn memory_stats(&self) -> MemoryStats {
        self.state().stream.memory().stats()
    }

    /// Returns memory that is cached for reuse to the driver, and returns its size in bytes. Waits for the device,
    /// like hipFree. Call it before other programs or libraries need the memory; when this process runs out of
    /// memory, the cache is released automatically.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn empty_cache(&self) -> Result<usize> {
        self.state().stream.bind()?;
        Ok(self.state().stream.memory().release_idle())
    }

    /// Returns the number of bytes that are free on the GPU or cached and not used by a live tensor. This includes
    /// the reserve.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn free_memory(&self) -> Result<usize> {
        let stats = self.memory_stats();
        Ok(self.memory_info()?.0.saturating_add(stats.cached - stats.held))
    }

    /// Returns the number of bytes that always stay free on the GPU, see [`Self::set_memory_reserve`].
    pub fn memory_reserve(&self) -> usize {
        self.state().stream.memory().reserve()
    }

    /// Sets the number of bytes of the GPU that stay free for the desktop, the driver and libraries. Memory is only
    /// requested from the driver if at least this much remains free afterwards.
    ///
    /// The default is 5 percent but at least 512 MB if a display is attached or the GPU is integrated, otherwise
    /// 1 percent but at least 128 MB. It is at most a quarter of the memory. `CANDLE_ROCM_MEMORY_RESERVE` sets it for
    /// devices that are opened later.
    pub fn set_memory_reserve(&self, bytes: usize) {
        self.state().stream.memory().set_reserve(bytes);
    }

    /// Returns a recommended maximum size for one allocation: by default 70 percent of [`Self::free_memory`], and no
    /// more than the reserve permits. Larger allocations are not rejected because of it.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn safe_alloc_size(&self) -> Result<usize> {
        self.state().stream.bind()?;
        let allowed = self.state().stream.memory().allowed();
        allowed.or_else(|(error, call)| self.state().stream.check(Err(error), || call))
    }

    /// Returns true if `bytes` is at most [`Self::safe_alloc_size`].
    ///
    /// # Errors
    /// If HIP fails.
    pub fn can_allocate(&self, bytes: usize) -> Result<bool> {
        Ok(bytes <= self.safe_alloc_size()?)
    }

    /// Sets the percentage of free memory for [`Self::safe_alloc_size`]. `CANDLE_ROCM_MEMORY_SHARE` sets it for devices
    /// that are opened later; the default is 70.
    ///
    /// # Errors
    /// [`RocmError::InvalidSetting`] if `percent` is not in 1 to 100.
    pub fn set_memory_share(&self, percent: u8) -> Result<()> {
        Ok(self.state().stream.memory().set_share(percent).map_err(RocmError::InvalidSetting)?)
    }

    /// Limits the number of bytes that are cached for reuse, and returns the excess to the driver. `Some(0)` disables
    /// caching; `None`, the default, sets no limit. `CANDLE_ROCM_MEMORY_CACHE` sets it for devices that are opened later.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn set_memory_cache_limit(&self, bytes: impl Into<Option<usize>>) -> Result<()> {
        self.state().stream.bind()?;
        self.state().stream.memory().set_cache_limit(bytes.into());
        Ok(())
    }

    /// Sets the time after which unused cached memory is returned to the driver, even while this process is idle.
    /// `None`, the default, keeps it. `CANDLE_ROCM_MEMORY_IDLE`, in seconds, sets it for devices that are opened
    /// later.
    ///
    /// # Errors
    /// [`RocmError::InvalidSetting`] if the timer thread cannot be started.
    pub fn set_memory_idle_time(&self, time: Option<Duration>) -> Result<()> {
        self.state().stream.bind()?;
        Ok(self.state().stream.memory().set_idle_time(time).map_err(RocmError::InvalidSetting)?)
    }
}
