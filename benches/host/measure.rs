//! Time, heap allocations and driver calls of one operation.
use super::driver::Calls;
use anyhow::{Context, Result};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The system's allocator; counts requests while it is asked to.
pub struct CountingAllocator;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count_allocation() {
    if COUNTING.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: each method passes its arguments on to the system's allocator as they are.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller's conditions.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller's conditions.
        unsafe { System.realloc(address, layout, size) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's conditions.
        unsafe { System.dealloc(address, layout) }
    }
}

/// An operation, done once; its result is dropped.
pub type Work<'a> = &'a dyn Fn() -> candle_core::Result<()>;

/// Done before anything is measured: kernels are loaded, memory is there.
const WARMING: usize = 64;
/// Operations of a batch: short, so that some batches meet no other program.
const BATCH: usize = 256;
const BATCHES: usize = 200;
/// All operations take turns so often.
pub const ROUNDS: usize = 10;
/// Operations that are counted, with and without valgrind.
pub const COUNTED: usize = 100;

/// Nanoseconds of one operation, one value per batch.
#[derive(Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// Adds a round.
    pub fn measure(&mut self, work: Work) -> Result<()> {
        repeat(work, WARMING)?;
        for _ in 0..BATCHES {
            let start = Instant::now();
            repeat(work, BATCH)?;
            self.0.push(start.elapsed().as_secs_f64() * 1e9 / BATCH as f64);
        }
        Ok(())
    }

    /// The least and the median.
    pub fn least_and_median(&mut self) -> Result<(f64, f64)> {
        self.0.sort_by(f64::total_cmp);
        let least = self.0.first().context("nothing was measured")?;
        Ok((*least, self.0[self.0.len() / 2]))
    }
}

fn repeat(work: Work, times: usize) -> Result<()> {
    for _ in 0..times {
        work()?;
    }
    Ok(())
}

/// The function whose instructions valgrind counts, by its name.
pub const COUNTED_FUNCTION: &str = "host_bench_counted";

#[unsafe(no_mangle)]
#[inline(never)]
fn host_bench_counted(work: Work) -> Result<()> {
    repeat(work, COUNTED)
}

/// Has valgrind count the instructions of [`COUNTED`] operations.
pub fn count_instructions(work: Work) -> Result<()> {
    repeat(work, WARMING)?;
    host_bench_counted(work)
}

/// What one operation asks for, on average.
pub struct Counts {
    pub allocations: f64,
    pub driver_calls: f64,
    pub set_device: f64,
}

impl Counts {
    pub fn of(work: Work, calls: &Calls) -> Result<Self> {
        repeat(work, WARMING)?;
        let read = || [ALLOCATIONS.load(Ordering::Relaxed), calls.all(), calls.of(c"hipSetDevice")];
        let before = read();
        COUNTING.store(true, Ordering::Relaxed);
        let done = repeat(work, COUNTED);
        COUNTING.store(false, Ordering::Relaxed);
        let after = read();
        done?;
        let each = |i: usize| (after[i] - before[i]) as f64 / COUNTED as f64;
        Ok(Self { allocations: each(0), driver_calls: each(1), set_device: each(2) })
    }
}
