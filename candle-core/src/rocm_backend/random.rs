//! Random numbers made on the device by Philox4x32-10: the same seed gives the same numbers on every GPU.
use super::device::RocmDevice;
use super::error::unsupported_dtype;
use super::launch::LaunchConfig;
use super::storage::RocmStorage;
use crate::{DType, Result};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::Module;
use std::sync::{MutexGuard, PoisonError};

/// The seed of a device that was given none; upstream's CUDA devices start with the same.
const DEFAULT_SEED: u64 = 299_792_458;

/// Where a device stands in its sequence: the key and the next unused counter block.
pub(super) struct Rng {
    seed: u64,
    next_block: u64,
}

impl Default for Rng {
    fn default() -> Self {
        Self { seed: DEFAULT_SEED, next_block: 0 }
    }
}

impl RocmDevice {
    fn rng(&self) -> MutexGuard<'_, Rng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the sequence of `seed` from its beginning.
    pub(super) fn reseed(&self, seed: u64) {
        *self.rng() = Rng { seed, next_block: 0 };
    }

    pub(super) fn seed(&self) -> u64 {
        self.rng().seed
    }

    /// Takes `blocks` counter blocks out of the sequence.
    fn draw(&self, blocks: u64) -> (u64, u64) {
        let mut rng = self.rng();
        let first = rng.next_block;
        rng.next_block = first.wrapping_add(blocks);
        (rng.seed, first)
    }
}

/// Numbers evenly spread over `[low, high)`: `rand_uniform`.
///
/// # Errors
/// As on the CPU device: for dtypes that are no floats, and for ranges that are empty or not finite in the dtype.
pub(super) fn uniform(
    device: &RocmDevice,
    dtype: DType,
    elements: usize,
    low: f64,
    high: f64,
) -> Result<RocmStorage> {
    const OP: &str = "rand_uniform";
    let (low, high) = (rounded(low, dtype, OP)?, rounded(high, dtype, OP)?);
    let finite = low.is_finite() && high.is_finite() && rounded(high - low, dtype, OP)?.is_finite();
    if !finite {
        return Err(crate::Error::wrap(rand::distr::uniform::Error::NonFinite));
    }
    if low >= high {
        return Err(crate::Error::wrap(rand::distr::uniform::Error::EmptyRange));
    }
    fill(device, OP, dtype, elements, low, high)
}

/// Numbers of a normal distribution: `rand_normal`.
///
/// # Errors
/// As on the CPU device: for dtypes that are no floats, and for a deviation that is not finite in the dtype.
pub(super) fn normal(
    device: &RocmDevice,
    dtype: DType,
    elements: usize,
    mean: f64,
    deviation: f64,
) -> Result<RocmStorage> {
    const OP: &str = "rand_normal";
    let (mean, deviation) = (rounded(mean, dtype, OP)?, rounded(deviation, dtype, OP)?);
    if !deviation.is_finite() {
        return Err(crate::Error::wrap(rand_distr::NormalError::BadVariance));
    }
    fill(device, OP, dtype, elements, mean, deviation)
}

/// `value` as the dtype has it.
fn rounded(value: f64, dtype: DType, op: &'static str) -> Result<f64> {
    match dtype {
        DType::F64 => Ok(value),
        DType::F32 => Ok(f64::from(value as f32)),
        DType::F16 => Ok(f16::from_f64(value).to_f64()),
        DType::BF16 => Ok(bf16::from_f64(value).to_f64()),
        DType::F8E4M3 => Ok(f64::from(F8E4M3::from_f64(value).to_f32())),
        _ => Err(unsupported_dtype(op, dtype)),
    }
}

fn fill(
    device: &RocmDevice,
    kernel: &'static str,
    dtype: DType,
    elements: usize,
    first: f64,
    second: f64,
) -> Result<RocmStorage> {
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, dtype, elements, kernel)? };
    if elements == 0 {
        return Ok(dst);
    }
    // A block is four 32-bit words; an f64 takes two of them.
    let per_block = if dtype == DType::F64 { 2 } else { 4 };
    let blocks = elements.div_ceil(per_block);
    let function = device.kernel(Module::Random, &[kernel, dtype.as_str()])?;
    let config = LaunchConfig::for_elements(kernel, blocks)?;
    let (seed, block) = device.draw(blocks as u64);
    let to = dst.slice.ptr();
    let launch = function.launch(config).arg(&elements).arg(&seed).arg(&block);
    // SAFETY: (numel, seed, offset, low or mean, high or deviation, out).
    unsafe { launch.arg(&first).arg(&second).arg(&to).run()? };
    Ok(dst)
}
