//! Random numbers made on the device by Philox4x32-10: the same seed gives the same numbers on every GPU.
use super::device::RocmDevice;
use super::error::unsupported_dtype;
use super::launch::LaunchConfig;
use super::storage::RocmStorage;
use crate::{DType, Result};
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

/// Numbers evenly spread over `[low, high)`: `uniform`; or of a normal distribution with mean `low` and standard
/// deviation `high`: `normal`. For f16, bf16, f32 and f64.
pub(super) fn fill(
    device: &RocmDevice,
    kernel: &'static str,
    dtype: DType,
    elements: usize,
    low: f64,
    high: f64,
) -> Result<RocmStorage> {
    // A block is four 32-bit words; an f64 takes two of them.
    let per_block = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => 4,
        DType::F64 => 2,
        _ => return Err(unsupported_dtype(kernel, dtype)),
    };
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, dtype, elements, kernel)? };
    if elements == 0 {
        return Ok(dst);
    }
    let blocks = elements.div_ceil(per_block);
    let function = device.kernel(Module::Random, &[kernel, dtype.as_str()])?;
    let config = LaunchConfig::for_elements(kernel, blocks)?;
    let (seed, first) = device.draw(blocks as u64);
    let to = dst.slice.ptr();
    let launch = function.launch(config).arg(&elements).arg(&seed).arg(&first);
    // SAFETY: (numel, seed, offset, low, high, out).
    unsafe { launch.arg(&low).arg(&high).arg(&to).run()? };
    Ok(dst)
}
