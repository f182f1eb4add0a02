//! Measures time, heap allocations and driver calls of one operation.
use super::driver::Calls;
use anyhow::{Context, Result};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// System allocator that counts allocations while [`COUNTING`] is set.
pub struct CountingAllocator;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count_allocation() {
    if COUNTING.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: each method passes its arguments unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation();
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(address, layout, size) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(address, layout) }
    }
}

/// Runs an operation once and drops its result.
pub type Work<'a> = &'a dyn Fn() -> candle_core::Result<()>;

/// Number of warm-up operations, which load kernels and allocate memory.
const WARM_UP: usize = 64;
/// Operations per batch. Batches are short, so that some run without interruption by other programs.
const BATCH: usize = 256;
const BATCHES: usize = 200;
/// Number of rounds over all operations.
pub const ROUNDS: usize = 10;
/// Number of operations whose allocations, calls and instructions are counted.
pub const COUNTED: usize = 100;

/// Nanoseconds per operation, one value per batch.
#[derive(Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// Measures one round.
    pub fn measure(&mut self, work: Work) -> Result<()> {
        repeat(work, WARM_UP)?;
        for _ in 0..BATCHES {
            let start = Instant::now();
            repeat(work, BATCH)?;
            self.0.push(start.elapsed().as_secs_f64() * 1e9 / BATCH as f64);
        }
        Ok(())
    }

    /// Returns minimum and median.
    pub fn min_and_median(&mut self) -> Result<(f64, f64)> {
        self.0.sort_by(f64::total_cmp);
        let min = self.0.first().context("nothing was measured")?;
        Ok((*min, self.0[self.0.len() / 2]))
    }
}

fn repeat(work: Work, times: usize) -> Result<()> {
    for _ in 0..times {
        work()?;
    }
    Ok(())
}

/// Name of the function whose instructions valgrind counts.
pub const COUNTED_FUNCTION: &str = "host_bench_counted";

#[unsafe(no_mangle)]
#[inline(never)]
fn host_bench_counted(work: Work) -> Result<()> {
    repeat(work, COUNTED)
}

/// Runs [`COUNTED`] operations in the function whose instructions valgrind counts.
pub fn count_instructions(work: Work) -> Result<()> {
    repeat(work, WARM_UP)?;
    host_bench_counted(work)
}

/// Average counts per operation.
pub struct Counts {
    pub allocations: f64,
    pub driver_calls: f64,
    pub set_device: f64,
}

impl Counts {
    pub fn of(work: Work, calls: &Calls) -> Result<Self> {
        repeat(work, WARM_UP)?;
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
