//! Measures all-reduce over several GPUs of one process, and checks the sums.
//!
//! ```sh
//! cargo run --release --features rocm --example all_reduce -- --devices 2
//! ```
//!
//! Each device has a thread of its own. The time of an operation is that of many in a row, divided by their number. The
//! bandwidths are those of nccl-tests: the bytes of the tensor per time, and this times 2 (n - 1) / n, which is the load
//! of each link for n devices.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::rocm::collective::{Communicator, Id, ReduceOp};
use candle_core::{DType, Device, Tensor};
use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(about = "Measures all-reduce over several GPUs of one process, and checks the sums")]
struct Args {
    /// Number of devices, from rocm:0 on.
    #[arg(long, default_value_t = 2)]
    devices: usize,
    /// Sizes of the tensor in bytes, separated by commas; with a suffix K, M or G.
    #[arg(long, value_delimiter = ',', default_value = "8K,64M,1G", value_parser = parse_bytes)]
    sizes: Vec<usize>,
    /// Type of the elements.
    #[arg(long, value_enum, default_value_t = Kind::F32)]
    dtype: Kind,
    /// Minimum time of a measurement in milliseconds.
    #[arg(long, default_value_t = 500)]
    milliseconds: u64,
    /// Replay the operations in a graph, as steps of the engine do.
    #[arg(long)]
    graph: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    F32,
    F16,
    Bf16,
}

impl Kind {
    fn dtype(self) -> DType {
        match self {
            Kind::F32 => DType::F32,
            Kind::F16 => DType::F16,
            Kind::Bf16 => DType::BF16,
        }
    }
}

fn parse_bytes(text: &str) -> Result<usize> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().with_context(|| format!("{text:?} is not a number of bytes"))?;
    number.checked_mul(1 << shift).context("too many bytes")
}

/// Number of operations before the measurement.
const WARM_UP: usize = 5;
const MAX_OPERATIONS: usize = 20_000;
/// Number of operations in a graph.
const CAPTURED: usize = 32;

/// Returns the value that rank `rank` adds to each sum. All sums are exact in every type.
fn summand(rank: usize) -> f64 {
    (rank + 1) as f64
}

/// Checks all elements of a sum on the device.
fn check(sum: &Tensor, world_size: usize) -> Result<()> {
    let expected: f64 = (0..world_size).map(summand).sum();
    let least = sum.flatten_all()?.min(0)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    let greatest = sum.flatten_all()?.max(0)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    ensure!(
        (least, greatest) == (expected, expected),
        "sums from {least} to {greatest} instead of {expected}"
    );
    Ok(())
}

/// Returns the time of one operation.
fn measure(rank: &Communicator, bytes: usize, args: &Args) -> Result<Duration> {
    let dtype = args.dtype.dtype();
    let elements = bytes / dtype.size_in_bytes();
    let x = Tensor::full(summand(rank.rank()) as f32, elements, rank.device())?.to_dtype(dtype)?;
    let operations_in_a_row = |count: usize| -> candle_core::Result<Tensor> {
        let mut sum = rank.all_reduce(&x, ReduceOp::Sum)?;
        for _ in 1..count {
            sum = rank.all_reduce(&x, ReduceOp::Sum)?;
        }
        Ok(sum)
    };
    // The first operation connects the ranks, which a capture cannot do.
    operations_in_a_row(1)?;
    let capture = || rank.device().as_rocm_device()?.capture(|| operations_in_a_row(CAPTURED));
    let graph = args.graph.then(capture).transpose()?;
    let repeat = |operations: usize| -> Result<(Duration, Tensor)> {
        // All ranks begin at the same time.
        operations_in_a_row(1)?;
        rank.device().synchronize()?;
        let begun = Instant::now();
        let sum = match &graph {
            Some((graph, sum)) => {
                for _ in 0..operations / CAPTURED {
                    graph.replay()?;
                }
                sum.clone()
            }
            None => operations_in_a_row(operations)?,
        };
        rank.device().synchronize()?;
        Ok((begun.elapsed(), sum))
    };
    let done = if args.graph { CAPTURED } else { WARM_UP };
    let (time, sum) = repeat(done)?;
    check(&sum, rank.world_size())?;
    // All ranks must make as many operations: the greatest number that one of them needs.
    let target = Duration::from_millis(args.milliseconds).as_secs_f64();
    let wanted = (target * done as f64 / time.as_secs_f64().max(1e-9)).ceil() as usize;
    let wanted = wanted.clamp(1, MAX_OPERATIONS).next_multiple_of(done) as u32;
    let wanted = Tensor::new(&[wanted], rank.device())?;
    let operations = rank.all_reduce(&wanted, ReduceOp::Max)?.to_vec1::<u32>()?[0] as usize;
    let (time, sum) = repeat(operations)?;
    check(&sum, rank.world_size())?;
    Ok(time / operations as u32)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let available = candle_core::rocm::rocm_loader::device_archs()?.len();
    if args.devices == 0 || args.devices > available {
        bail!("--devices {}: there are {available} devices", args.devices);
    }
    let driver = candle_core::rocm::rocm_loader::driver()?;
    println!("{}{}", driver.description(), driver.note().map_or(String::new(), |note| format!(" ({note})")));
    println!("{} devices, {:?}", args.devices, args.dtype.dtype());
    println!("{:>12} {:>14} {:>16} {:>16}", "bytes", "time", "algorithm GB/s", "bus GB/s");
    let id = Id::new()?;
    let run = |rank: usize| -> Result<Vec<Duration>> {
        let communicator = Communicator::new(&Device::new_rocm(rank)?, rank, args.devices, &id)?;
        args.sizes
            .iter()
            .map(|bytes| {
                let time = measure(&communicator, *bytes, &args)?;
                if rank == 0 {
                    let rate = *bytes as f64 / time.as_secs_f64() / 1e9;
                    let links = 2. * (args.devices - 1) as f64 / args.devices as f64;
                    let micros = time.as_secs_f64() * 1e6;
                    println!("{bytes:>12} {micros:>11.1} us {rate:>16.2} {:>16.2}", rate * links);
                }
                Ok(time)
            })
            .collect()
    };
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.devices).map(|rank| scope.spawn(move || run(rank))).collect();
        for (rank, thread) in threads.into_iter().enumerate() {
            match thread.join() {
                Ok(result) => result.with_context(|| format!("rank {rank}"))?,
                Err(_) => bail!("rank {rank} has panicked"),
            };
        }
        Ok(())
    })?;
    println!("all_reduce: ok");
    Ok(())
}
