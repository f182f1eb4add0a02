//! Random numbers, generated on the device by Philox4x32-10. A seed gives the same numbers on every GPU.
use super::{computing, found};
use crate::rocm_backend::device::{LaunchConfig, Rng, RocmDevice};
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{Random, RandomKind, PACK_BYTES};

/// Maximum number of workgroups, which fills every GPU; for larger tensors, each thread generates several packs.
const MAX_WORKGROUPS: u32 = 1 << 13;

impl RocmDevice {
    /// Restarts the sequence with `seed`.
    pub(crate) fn reseed(&self, seed: u64) {
        *self.rng() = Rng { seed, next_block: 0 };
    }

    pub(crate) fn seed(&self) -> u64 {
        self.rng().seed
    }

    /// Reserves `blocks` counter blocks. Returns the seed and the first block.
    fn reserve_blocks(&self, blocks: u64) -> (u64, u64) {
        let mut rng = self.rng();
        let first = rng.next_block;
        rng.next_block = first.wrapping_add(blocks);
        (rng.seed, first)
    }

    /// Implements `rand_uniform`: numbers uniformly distributed over `[low, high)`.
    ///
    /// # Errors
    /// If the dtype is not a float, or the range is empty or not finite in the dtype; as on the CPU device.
    pub(crate) fn uniform(&self, dtype: DType, elements: usize, low: f64, high: f64) -> Result<RocmStorage> {
        const OP: &str = "rand_uniform";
        let (low, high) = (rounded(low, dtype, OP)?, rounded(high, dtype, OP)?);
        let finite = low.is_finite() && high.is_finite() && rounded(high - low, dtype, OP)?.is_finite();
        if !finite {
            return Err(crate::Error::wrap(rand::distr::uniform::Error::NonFinite));
        }
        if low >= high {
            return Err(crate::Error::wrap(rand::distr::uniform::Error::EmptyRange));
        }
        fill(self, OP, RandomKind::Uniform, dtype, elements, (low, high))
    }

    /// Implements `rand_normal`: normally distributed numbers.
    ///
    /// # Errors
    /// If the dtype is not a float, or the deviation is not finite in the dtype; as on the CPU device.
    pub(crate) fn normal(
        &self,
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
        fill(self, OP, RandomKind::Normal, dtype, elements, (mean, deviation))
    }
}

/// Rounds `value` to the dtype.
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
    op: &'static str,
    kind: RandomKind,
    dtype: DType,
    numel: usize,
    (first, second): (f64, f64),
) -> Result<RocmStorage> {
    let kernel = found(Random::kernel(kind, computing(op, dtype)?), op, dtype)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, dtype, numel, op)? };
    if numel == 0 {
        return Ok(dst);
    }
    // A block is four 32-bit words; an f64 takes two of them.
    let per_block = if dtype == DType::F64 { 2 } else { 4 };
    let blocks = numel.div_ceil(per_block);
    let mut config = LaunchConfig::for_elements(op, numel.div_ceil(PACK_BYTES / dtype.size_in_bytes()))?;
    config.grid.0 = config.grid.0.min(MAX_WORKGROUPS);
    let (seed, offset) = device.reserve_blocks(blocks as u64);
    let (seed, offset, out) = (seed as usize, offset as usize, dst.slice.ptr());
    // SAFETY: `out` holds all elements.
    unsafe { device.launch(kernel, config, &Random { numel, seed, offset, first, second, out })? };
    Ok(dst)
}
