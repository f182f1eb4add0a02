//! Stresses a GPU: many threads, changing shapes, tensors dropped in any order, devices dropped before their tensors.
//!
//! ```text
//! cargo run --release --features rocm --example stress -- --minutes 5
//! ```
//!
//! Every round runs each scenario once; results are compared with the CPU device, and after each scenario nothing
//! may be left on a GPU. The last line is `stress: ok iterations=N leaked_bytes=0 driver_allocs=N`; the status is 1
//! if anything was wrong.
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

/// Stresses a GPU and fails if memory is lost or a result is wrong.
#[derive(Parser)]
struct Args {
    /// Duration in minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Duration in hours.
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<f64>,
    /// Repeats the same choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The GPUs under stress.
struct Gpus {
    first: RocmDevice,
    /// Another GPU, if there is one.
    second: Option<RocmDevice>,
}

impl Gpus {
    fn open() -> Result<Self> {
        let first = RocmDevice::default_ordinal()?;
        let count = candle_core::rocm::rocm_loader::device_archs()?.len();
        let second = (0..count).find(|ordinal| *ordinal != first).map(RocmDevice::new_checked);
        // A GPU that this binary holds no kernels for is not used.
        Ok(Self { first: RocmDevice::new_checked(first)?, second: second.and_then(Result::ok) })
    }

    fn all(&self) -> impl Iterator<Item = &RocmDevice> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// Bytes that tensors hold.
    fn live(&self) -> usize {
        self.all().map(|gpu| gpu.memory_stats().live).sum()
    }

    /// Free bytes, after everything that is kept for reuse was given back.
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

/// What these rounds load (modules of kernels, rocBLAS' workspace) stays. Shapes are random: not all is met in one.
const WARM_ROUNDS: u64 = 16;

/// What is done once a round.
type Scenario = fn(&Gpus, &mut StdRng) -> Result<()>;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("allocations on many threads", allocations::on_threads),
    ("dropped in random order", allocations::in_random_order),
    ("decoding with changing shapes", decoding::changing_shapes),
    ("inference on one device", inference::on_one),
    ("inference on two devices", inference::on_two),
    ("tensors moved between threads", threads::moved),
    ("devices dropped before their tensors", threads::after_their_device),
];

fn main() -> Result<()> {
    let args = Args::parse();
    let seconds = args.hours.map_or(args.minutes * 60.0, |hours| hours * 3600.0);
    let limit = Duration::try_from_secs_f64(seconds).context("the time must be a number from 0")?;
    let gpus = Gpus::open()?;
    for gpu in gpus.all() {
        println!("rocm:{} {}, {}, {} driver", gpu.ordinal(), gpu.name(), gpu.arch(), gpu.driver_name());
    }
    let mut rng = StdRng::seed_from_u64(args.seed);
    let progress = ProgressBar::new(limit.as_secs());
    progress.set_style(ProgressStyle::with_template("{elapsed_precise} {wide_bar} {msg}")?);
    let begun = Instant::now();
    let mut iterations = 0u64;
    let mut free_before = None;
    while iterations <= WARM_ROUNDS || begun.elapsed() < limit {
        for (name, scenario) in SCENARIOS {
            progress.set_message(*name);
            progress.set_position(begun.elapsed().as_secs());
            let live = gpus.live();
            let context = || format!("{name}, iteration {}, seed {}", iterations + 1, args.seed);
            scenario(&gpus, &mut rng).with_context(context)?;
            let left = gpus.live();
            ensure!(left == live, "{}: {left} bytes are in use, {live} before", context());
        }
        iterations += 1;
        if iterations == WARM_ROUNDS {
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
