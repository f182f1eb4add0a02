//! Memory of a device: figures and settings for users.
use super::device::RocmDevice;
use crate::rocm_backend::stream::memory::MemoryStats;
use crate::rocm_backend::RocmError;
use crate::Result;
use rocm_rs::hip;
use std::time::Duration;

impl RocmDevice {
    /// Free and total memory of the GPU in bytes.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let stream = &self.state().stream;
        stream.bind()?;
        let info = stream.check(hip::memory_info(), || "hipMemGetInfo".to_string())?;
        Ok((info.free, info.total))
    }

    /// Returns what the memory of this device is used for.
    pub fn memory_stats(&self) -> MemoryStats {
        self.state().stream.memory().stats()
    }

    /// Gives the memory that is kept for reuse back to the driver; returns how many bytes. Waits for the device,
    /// as hipFree does. Only worth it before other programs or libraries need the memory: under pressure it goes
    /// back by itself.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn empty_cache(&self) -> Result<usize> {
        self.state().stream.bind()?;
        Ok(self.state().stream.memory().give_back_idle())
    }

    /// Bytes that tensors could still use: free on the GPU, or kept for reuse and not bound by a live tensor. The
    /// reserve is a part of them.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn free_memory(&self) -> Result<usize> {
        let stats = self.memory_stats();
        Ok(self.memory_info()?.0.saturating_add(stats.parked - stats.held))
    }

    /// Bytes of the GPU that stay free, whatever is requested: see [`Self::set_memory_reserve`].
    pub fn memory_reserve(&self) -> usize {
        self.state().stream.memory().reserve()
    }

    /// Sets how many bytes of the GPU stay free for the desktop, the driver and libraries. It counts over all requests
    /// together: the driver is asked for memory only if so much is left afterwards.
    ///
    /// The default is the larger of 5 percent and 512 MB where a display is attached or the GPU is built into the
    /// processor, else of 1 percent and 128 MB; of a small card no more than a quarter. `CANDLE_ROCM_MEMORY_RESERVE`
    /// sets it for devices that are opened later.
    pub fn set_memory_reserve(&self, bytes: usize) {
        self.state().stream.memory().set_reserve(bytes);
    }

    /// A size for one request that leaves others room: by default 70 percent of [`Self::free_memory`], and no more
    /// than the reserve leaves. An advice for those who ask first: larger requests are not refused for it.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn safe_alloc_size(&self) -> Result<usize> {
        self.state().stream.bind()?;
        let allowed = self.state().stream.memory().allowed();
        allowed.or_else(|(error, call)| self.state().stream.check(Err(error), || call))
    }

    /// Whether `bytes` bytes are no more than [`Self::safe_alloc_size`].
    ///
    /// # Errors
    /// If HIP fails.
    pub fn can_allocate(&self, bytes: usize) -> Result<bool> {
        Ok(bytes <= self.safe_alloc_size()?)
    }

    /// Sets the percentage behind [`Self::safe_alloc_size`]. `CANDLE_ROCM_MEMORY_SHARE` sets it for devices that are
    /// opened later; the default is 70.
    ///
    /// # Errors
    /// [`RocmError::Setting`] for anything but 1 to 100.
    pub fn set_memory_share(&self, percent: u8) -> Result<()> {
        Ok(self.state().stream.memory().set_share(percent).map_err(RocmError::Setting)?)
    }

    /// Bounds the bytes that are kept for reuse, and gives back what is more: `Some(0)` turns reuse off, `None`, the
    /// default, sets no bound. `CANDLE_ROCM_MEMORY_PARKED` sets it for devices that are opened later.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn set_parked_memory(&self, bytes: impl Into<Option<usize>>) -> Result<()> {
        self.state().stream.bind()?;
        self.state().stream.memory().set_parked(bytes.into());
        Ok(())
    }

    /// Sets after which time memory that no tensor uses goes back to the driver, also while this process does
    /// nothing. `None`, the default, keeps it. `CANDLE_ROCM_MEMORY_IDLE`, in seconds, sets it for devices that are
    /// opened later.
    ///
    /// # Errors
    /// [`RocmError::Setting`] if the system has no thread for it.
    pub fn set_memory_idle_time(&self, time: Option<Duration>) -> Result<()> {
        self.state().stream.bind()?;
        Ok(self.state().stream.memory().set_idle_time(time).map_err(RocmError::Setting)?)
    }
}
