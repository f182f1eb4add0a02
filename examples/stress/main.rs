//! Stress test of a GPU with many threads, changing shapes, and tensors and devices dropped in any order.
//!
//! ```text
//! cargo run --release --features rocm --example stress -- --minutes 5
//! ```
//!
//! Each iteration runs all scenarios. They compare results with the CPU, and must free all tensors. The last line of
//! a successful run is `stress: ok iterations=N leaked_bytes=0 driver_allocs=N`; after an error, the exit status is 1.
mod allocations;
mod decoding;
mod inference;
mod threads;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use candle_core::rocm::RocmDevice;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Stress-test a GPU; fail if memory leaks or a result is wrong.
#[derive(Parser)]
struct Args {
    /// Duration in minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Duration in hours.
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<f64>,
    /// Random seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

struct Gpus {
    first: RocmDevice,
    /// Second GPU, if there is one.
    second: Option<RocmDevice>,
}

impl Gpus {
    fn open() -> Result<Self> {
        let first = RocmDevice::default_ordinal()?;
        let count = candle_core::rocm::rocm_loader::device_archs()?.len();
        let second = (0..count).find(|ordinal| *ordinal != first).map(RocmDevice::new_checked);
        // A second GPU without kernels in this binary is skipped.
        Ok(Self { first: RocmDevice::new_checked(first)?, second: second.and_then(Result::ok) })
    }

    fn all(&self) -> impl Iterator<Item = &RocmDevice> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// Returns the number of bytes in use by tensors.
    fn live(&self) -> usize {
        self.all().map(|gpu| gpu.memory_stats().live).sum()
    }

    /// Returns the number of free bytes, after freeing cached memory.
    fn free(&self) -> Result<usize> {
        let free = |gpu: &RocmDevice| -> Result<usize> {
            gpu.empty_cache()?;
            Ok(gpu.memory_info()?.0)
        };
        self.all().map(free).sum()
    }

    fn first(&self) -> Device {
        Device::Rocm(self.first.clone())
    }
}

/// Iterations that load kernel modules and rocBLAS workspaces for all random shapes, before the leak check starts.
const WARM_UP_ITERATIONS: u64 = 16;

/// Function of a scenario, called once per iteration.
type Scenario = fn(&Gpus, &mut StdRng) -> Result<()>;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("allocations on many threads", allocations::on_threads),
    ("tensors dropped in random order", allocations::in_random_order),
    ("decoding with changing shapes", decoding::changing_shapes),
    ("inference on one device", inference::on_one_device),
    ("inference on two devices", inference::on_two_devices),
    ("tensors moved between threads", threads::moved_between_threads),
    ("devices dropped before their tensors", threads::device_dropped_first),
];

fn main() -> Result<()> {
    let args = Args::parse();
    let seconds = args.hours.map_or(args.minutes * 60.0, |hours| hours * 3600.0);
    let limit = Duration::try_from_secs_f64(seconds).context("the duration must not be negative")?;
    let gpus = Gpus::open()?;
    for gpu in gpus.all() {
        println!("rocm:{} {}, {}, {} driver", gpu.ordinal(), gpu.name(), gpu.arch(), gpu.driver_name());
    }
    let mut rng = StdRng::seed_from_u64(args.seed);
    let progress = ProgressBar::new(limit.as_secs());
    progress.set_style(ProgressStyle::with_template("{elapsed_precise} {wide_bar} {msg}")?);
    let start = Instant::now();
    let mut iterations = 0u64;
    let mut free_before = None;
    while iterations <= WARM_UP_ITERATIONS || start.elapsed() < limit {
        for (name, scenario) in SCENARIOS {
            progress.set_message(*name);
            progress.set_position(start.elapsed().as_secs());
            let live = gpus.live();
            let context = || format!("{name}, iteration {}, seed {}", iterations + 1, args.seed);
            scenario(&gpus, &mut rng).with_context(context)?;
            let left = gpus.live();
            ensure!(left == live, "{}: {left} bytes are in use, before: {live}", context());
        }
        iterations += 1;
        if iterations == WARM_UP_ITERATIONS {
            free_before = Some(gpus.free()?);
        }
    }
    progress.finish_and_clear();
    let driver_allocs: u64 = gpus.all().map(|gpu| gpu.memory_stats().driver_allocations).sum();
    let leaked = free_before.unwrap_or_default().saturating_sub(gpus.free()?);
    ensure!(leaked == 0, "stress: {leaked} bytes leaked in {iterations} iterations");
    println!("stress: ok iterations={iterations} leaked_bytes={leaked} driver_allocs={driver_allocs}");
    Ok(())
}
