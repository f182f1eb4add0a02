//! Device memory: got from the driver in segments, cut into blocks, and reused without asking the driver.
//!
//! `hipFree` drains the device, so what a tensor leaves behind is kept and handed to the next one. That is sound
//! without waiting because one stream orders all work of a device: what used the memory comes before what will. A
//! buffer that another stream has used lets its own stream wait for that one first.
//!
//! | file | subject |
//! |---|---|
//! | `sizes` | the sizes of blocks and segments |
//! | `lists` | blocks, and lists of free ones by length |
//! | `arena` | which blocks are free, which lie side by side, which segments are idle |
//! | `pool` | when to reuse, when to ask the driver, when to give back |
//! | `shared` | the pool under its lock, and making room with other streams of the GPU |
//! | `timer` | the thread that gives idle memory back |
//! | `limits` | what stays free, what may be kept, what one request should take |
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
mod timer;

use super::wait::StreamWait;
use rocm_rs::hip;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use arena::BlockId;
pub(crate) use limits::bytes;
use limits::Limits;
pub use limits::{IDLE_VARIABLE, PARKED_VARIABLE, RESERVE_VARIABLE, SHARE_VARIABLE};
pub use pool::MemoryStats;
pub(crate) use pool::{Allocation, Refusal};
use pool::{Driver, Pool};
use shared::Shared;
use timer::Timer;

/// On the software GPU so many bytes stay unused behind each request: an access behind a tensor meets them and not its
/// neighbour.
const GAP: usize = 256;

/// Number of times that the timer looks within an idle time, and its shortest period.
const LOOKS: u32 = 4;
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// A call of HIP that failed, with its sizes.
pub(crate) type Failed = (hip::Error, String);

/// The memory of one stream of a device. The device is bound to the calling thread in all that may call HIP.
pub(crate) struct Memory {
    pool: Arc<Shared<Hip>>,
    device: hip::Device,
    /// Start of all idle times.
    begun: Instant,
    /// Gives idle memory back; only while there is an idle time.
    timer: Mutex<Option<Timer>>,
}

/// Why a device's memory could not be set up.
pub(crate) enum SetupError {
    Hip(hip::Error, String),
    Setting(String),
}

/// hipMalloc and hipFree on the device that is bound to the calling thread.
struct Hip {
    wait: Arc<StreamWait>,
}

/// Memory of the driver's. Dropping it calls hipFree.
struct Segment(#[expect(dead_code, reason = "owned for its drop")] hip::DeviceMemory<u8>);

// SAFETY: an address in device memory, never dereferenced on the host; HIP frees it from any thread.
unsafe impl Send for Segment {}

impl Driver for Hip {
    type Segment = Segment;
    type Error = Failed;

    fn allocate(&self, bytes: usize) -> Result<Option<(usize, Segment)>, Failed> {
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

    fn alone(&self) -> Option<MutexGuard<'static, ()>> {
        static ASKING: Mutex<()> = Mutex::new(());
        Some(ASKING.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn may_free(&self) -> bool {
        self.wait.deadline().is_none() || self.wait.finish().is_ok()
    }

    fn info(&self) -> Result<(usize, usize), Failed> {
        let info = hip::memory_info().map_err(|error| (error, "hipMemGetInfo".to_string()))?;
        Ok((info.free, info.total))
    }
}

impl Memory {
    /// The memory of the device that is bound to the calling thread, for a stream that `wait` waits for.
    /// `shared_with_display`: the card draws a screen, or is built into the processor.
    ///
    /// # Errors
    /// If a variable does not parse, HIP fails, or there is no thread for the idle time that a variable sets.
    pub(crate) fn of_bound_device(
        wait: Arc<StreamWait>,
        shared_with_display: bool,
    ) -> Result<Self, SetupError> {
        let driver = Hip { wait };
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

    /// At least `bytes` bytes of device memory, not initialised. Before a request is refused for want of memory,
    /// `siblings_give_back` is called once: it calls [`Self::give_back_idle`] on the memory of *every* other stream of
    /// the GPU and says whether any gave something. No lock is held meanwhile.
    ///
    /// # Errors
    /// If there is not that much without touching the reserve, or HIP fails.
    pub(crate) fn take(
        &self,
        bytes: usize,
        siblings_give_back: impl FnOnce() -> bool,
    ) -> Result<Allocation, Refusal<Failed>> {
        self.pool.take(bytes, siblings_give_back)
    }

    /// Takes memory back. What was enqueued on the stream may still use it.
    pub(crate) fn give(&self, block: BlockId) {
        self.pool.give(block);
    }

    /// Gives all that is idle back to the driver, which waits for the device. Returns the bytes.
    pub(crate) fn give_back_idle(&self) -> usize {
        self.pool.give_back_idle()
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.pool.stats()
    }

    /// Bytes that one request should ask for now: the share of what is free or idle, and no more than the reserve
    /// leaves.
    ///
    /// # Errors
    /// If HIP fails.
    pub(crate) fn allowed(&self) -> Result<usize, Failed> {
        self.pool.with(|pool| pool.allowed())
    }

    /// Sets the percent of the free memory that is advised for one request.
    ///
    /// # Errors
    /// For anything but 1 to 100.
    pub(crate) fn set_share(&self, percent: u8) -> Result<(), String> {
        if !(1..=100).contains(&percent) {
            return Err(format!("a memory share of {percent} percent: it must be 1 to 100"));
        }
        self.pool.with(|pool| pool.limits.share = percent);
        Ok(())
    }

    /// Sets how many bytes may be kept for reuse, and gives back what is more.
    pub(crate) fn set_parked(&self, bytes: Option<usize>) {
        self.pool.with(|pool| {
            pool.limits.parked = bytes;
            pool.give_back_idle(bytes.unwrap_or(usize::MAX));
        });
    }

    /// Sets how many bytes of the card stay free.
    pub(crate) fn set_reserve(&self, bytes: usize) {
        self.pool.with(|pool| pool.limits.reserve = bytes);
    }

    /// Bytes of the card that stay free.
    pub(crate) fn reserve(&self) -> usize {
        self.pool.with(|pool| pool.limits.reserve)
    }

    /// Sets after which time memory that nothing uses goes back to the driver; `None` or zero for never. It goes within
    /// a quarter of that time more.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub(crate) fn set_idle_time(&self, time: Option<Duration>) -> Result<(), String> {
        let time = time.filter(|time| !time.is_zero());
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        // Ends the thread of the time before.
        *timer = None;
        let Some(time) = time else { return Ok(()) };
        let (pool, device, begun) = (Arc::downgrade(&self.pool), self.device.clone(), self.begun);
        let period = (time / LOOKS).max(SHORTEST_PERIOD);
        let started = Timer::start(period, move || {
            let Some(pool) = pool.upgrade() else { return false };
            // A device that cannot be bound has nothing to give back.
            if device.set_current().is_ok() {
                pool.with(|pool| pool.give_back_idle_for(time, begun.elapsed()));
            }
            true
        });
        *timer = Some(started.map_err(|error| format!("no thread gives idle memory back: {error}"))?);
        Ok(())
    }

    /// Leaves all memory to the end of the process.
    pub(crate) fn abandon(&self) {
        self.pool.with(Pool::abandon);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Ends before the pool does, so that its last owner is this one and memory is freed in this thread.
        self.timer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
    }
}
