//! Caching allocator for device memory: segments from the driver are split into blocks, which are reused.
//!
//! `hipFree` synchronizes the device, so released memory is cached for later tensors. Reuse without waiting is sound
//! because one stream orders all work of a device: work that used the memory precedes work that will use it. If another
//! stream has used a buffer, the buffer's stream first waits for that stream on the device.
//!
//! | file | subject |
//! |---|---|
//! | `sizes` | sizes of blocks and segments |
//! | `lists` | blocks, and lists of free blocks by length |
//! | `arena` | bookkeeping: free blocks, adjacent blocks, idle segments |
//! | `pool` | policy: when to reuse memory, to allocate from the driver, and to release to it |
//! | `shared` | the pool with its lock, and releasing memory of other streams of the GPU |
//! | `timer` | the thread that releases idle memory |
//! | `system` | memory as Linux reports it |
//! | `limits` | reserve, cache size, idle time, and the recommended size of an allocation |
mod arena;
mod limits;
mod lists;
mod pool;
#[cfg(test)]
mod pool_tests;
mod shared;
mod sizes;
#[cfg(test)]
mod step_tests;
mod system;
mod timer;

use super::wait::StreamWait;
use rocm_rs::hip;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use arena::BlockId;
pub(crate) use limits::bytes;
use limits::Limits;
pub use limits::{CACHE_VARIABLE, IDLE_VARIABLE, RESERVE_VARIABLE, SHARE_VARIABLE};
pub use pool::MemoryStats;
pub(crate) use pool::{AllocError, Allocation};
use pool::{Driver, Pool};
use shared::Shared;
pub(crate) use system::{system_file, SystemMemory};
pub use system::{MemoryPools, PoolSize};
use timer::Timer;

/// Number of unused bytes after each allocation on the software GPU, which detects accesses to them.
const GAP: usize = 256;

/// Number of checks of the timer per idle time, and its minimum period.
const CHECKS_PER_IDLE_TIME: u32 = 4;
const MIN_PERIOD: Duration = Duration::from_millis(10);

/// Error of a HIP call, and the call with its sizes.
pub(crate) type Failed = (hip::Error, String);

/// The memory of one stream. The device must be bound to the calling thread in all methods that may call HIP.
pub(crate) struct Memory {
    pool: Arc<Shared<Hip>>,
    device: hip::Device,
    /// Reference point for idle times.
    begun: Instant,
    /// Releases idle memory; `None` if no idle time is set.
    timer: Mutex<Option<Timer>>,
}

pub(crate) enum SetupError {
    Hip(hip::Error, String),
    Setting(String),
}

/// hipMalloc and hipFree on the device that is bound to the calling thread.
#[derive(Clone)]
struct Hip {
    wait: Arc<StreamWait>,
    system: SystemMemory,
    /// Bytes of all segments of the GPU in this process.
    held: Arc<AtomicUsize>,
}

/// Memory allocated by hipMalloc. Dropping it calls hipFree.
struct Segment {
    _memory: hip::DeviceMemory<u8>,
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Returns the number of bytes of all segments of a GPU.
fn held_on(ordinal: usize) -> Arc<AtomicUsize> {
    static HELD: Mutex<BTreeMap<usize, Arc<AtomicUsize>>> = Mutex::new(BTreeMap::new());
    HELD.lock().unwrap_or_else(PoisonError::into_inner).entry(ordinal).or_default().clone()
}

// SAFETY: the address is never dereferenced on the host, and HIP can free it from any thread.
unsafe impl Send for Segment {}

impl Driver for Hip {
    type Segment = Segment;
    type Error = Failed;

    fn allocate(&self, bytes: usize) -> Result<Option<(usize, Segment)>, Failed> {
        match hip::DeviceMemory::<u8>::new(bytes) {
            Ok(memory) => {
                self.held.fetch_add(bytes, Ordering::Relaxed);
                let address = memory.as_ptr().expose_provenance();
                Ok(Some((address, Segment { _memory: memory, bytes, held: self.held.clone() })))
            }
            Err(error) if error.is_out_of_memory() => {
                // HIP keeps the last error; clear it so that an unrelated call does not return it.
                let _ = hip::get_last_error();
                Ok(None)
            }
            Err(error) => Err((error, format!("hipMalloc({bytes} B)"))),
        }
    }

    fn lock_allocation(&self) -> Option<MutexGuard<'static, ()>> {
        static ALLOCATING: Mutex<()> = Mutex::new(());
        Some(ALLOCATING.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn may_free(&self) -> bool {
        !self.wait.is_bounded() || self.wait.finish().is_ok()
    }

    /// The free memory is the least of three: HIP ignores a desktop's share, and on integrated GPUs it may report more
    /// than there is; Linux does not know what HIP limits.
    fn info(&self) -> Result<(usize, usize), Failed> {
        let info = hip::memory_info().map_err(|error| (error, "hipMemGetInfo".to_string()))?;
        Ok(self.system.info((info.free, info.total), self.held.load(Ordering::Relaxed)))
    }
}

impl Memory {
    /// Creates the memory of the device `ordinal`, which is bound to the calling thread, for the stream of `wait`.
    /// `shared_with_display` is true if a display is attached or the GPU is integrated.
    ///
    /// # Errors
    /// If an environment variable is invalid, HIP fails, or the timer thread cannot be started.
    pub(crate) fn of_bound_device(
        wait: Arc<StreamWait>,
        ordinal: usize,
        system: SystemMemory,
        shared_with_display: bool,
    ) -> Result<Self, SetupError> {
        let driver = Hip { wait, system, held: held_on(ordinal) };
        let (_, total) = driver.info().map_err(|(error, call)| SetupError::Hip(error, call))?;
        let device =
            hip::Device::current().map_err(|error| SetupError::Hip(error, "hipGetDevice".to_string()))?;
        let software = rocm_loader::driver().is_ok_and(|driver| driver.is_software());
        let limits = Limits::of(total, shared_with_display && !software).map_err(SetupError::Setting)?;
        let pool = Arc::new(Shared::new(Pool::new(driver, limits, if software { GAP } else { 0 })));
        let memory = Self { pool, device, begun: Instant::now(), timer: Mutex::default() };
        memory.set_idle_time(limits.idle).map_err(SetupError::Setting)?;
        Ok(memory)
    }

    /// Creates separate memory with the same driver and limits. It is released when it is dropped, not before.
    pub(crate) fn of_same_device(&self) -> Self {
        let pool = Arc::new(Shared::new(self.pool.with(|pool| pool.new_like())));
        Self { pool, device: self.device.clone(), begun: Instant::now(), timer: Mutex::default() }
    }

    /// Allocates at least `bytes` bytes of uninitialized device memory. Before a request fails, `release_siblings` is
    /// called once, without a lock. It must call [`Self::release_idle`] on the memory of *every* other stream of the
    /// GPU and return true if any memory was released.
    ///
    /// # Errors
    /// If there is not enough memory besides the reserve, or HIP fails.
    pub(crate) fn alloc(
        &self,
        bytes: usize,
        release_siblings: impl FnOnce() -> bool,
    ) -> Result<Allocation, AllocError<Failed>> {
        self.pool.alloc(bytes, release_siblings)
    }

    /// Releases memory. Work enqueued on the stream may still use it.
    pub(crate) fn release(&self, block: BlockId) {
        self.pool.release(block);
    }

    /// Releases all idle memory to the driver, which waits for the device. Returns the number of bytes.
    pub(crate) fn release_idle(&self) -> usize {
        self.pool.release_idle()
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.pool.stats()
    }

    /// Returns the free and total memory of the GPU in bytes.
    ///
    /// # Errors
    /// If HIP fails.
    pub(crate) fn info(&self) -> Result<(usize, usize), Failed> {
        self.pool.with(|pool| pool.driver().info())
    }

    /// Returns the recommended maximum of an allocation in bytes: the share of the free and idle memory, and no more than
    /// the reserve permits.
    ///
    /// # Errors
    /// If HIP fails.
    pub(crate) fn allowed(&self) -> Result<usize, Failed> {
        self.pool.with(|pool| pool.allowed())
    }

    /// Returns true if `bytes` bytes are free in one block of the pool. Unlike the other figures, this calls no driver.
    pub(crate) fn has_free(&self, bytes: usize) -> bool {
        self.pool.with(|pool| pool.has_free(bytes))
    }

    /// Sets the recommended maximum of an allocation in percent of the free memory.
    ///
    /// # Errors
    /// If `percent` is not in 1 to 100.
    pub(crate) fn set_share(&self, percent: u8) -> Result<(), String> {
        if !(1..=100).contains(&percent) {
            return Err(format!("memory share of {percent} percent is out of range; must be 1 to 100"));
        }
        self.pool.with(|pool| pool.limits.share = percent);
        Ok(())
    }

    /// Sets the maximum number of bytes cached for reuse, and releases the excess.
    pub(crate) fn set_cache_limit(&self, bytes: Option<usize>) {
        self.pool.with(|pool| {
            pool.limits.cached = bytes;
            pool.release_idle(bytes.unwrap_or(usize::MAX));
        });
    }

    pub(crate) fn set_reserve(&self, bytes: usize) {
        self.pool.with(|pool| pool.limits.reserve = bytes);
    }

    pub(crate) fn reserve(&self) -> usize {
        self.pool.with(|pool| pool.limits.reserve)
    }

    /// Sets the time after which unused memory is released to the driver; `None` or zero disables this. The release may
    /// be late by up to a quarter of the time.
    ///
    /// # Errors
    /// If the timer thread cannot be started.
    pub(crate) fn set_idle_time(&self, time: Option<Duration>) -> Result<(), String> {
        let time = time.filter(|time| !time.is_zero());
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        // Ends the previous thread.
        *timer = None;
        let Some(time) = time else { return Ok(()) };
        let (pool, device, begun) = (Arc::downgrade(&self.pool), self.device.clone(), self.begun);
        let period = (time / CHECKS_PER_IDLE_TIME).max(MIN_PERIOD);
        let started = Timer::start(period, move || {
            let Some(pool) = pool.upgrade() else { return false };
            // A device that cannot be bound has no memory to release.
            if device.set_current().is_ok() {
                pool.with(|pool| pool.release_idle_for(time, begun.elapsed()));
            }
            true
        });
        *timer = Some(started.map_err(|error| format!("cannot start the timer of idle memory: {error}"))?);
        Ok(())
    }

    /// Leaks all memory until the process ends.
    pub(crate) fn abandon(&self) {
        self.pool.with(Pool::abandon);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The timer ends before the pool is dropped, so that memory is freed in this thread.
        self.timer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
    }
}
