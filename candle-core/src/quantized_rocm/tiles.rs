//! Products of many rows of activations with a matrix of blocks, on matrix units.
use super::product::{count, without_kernel, OP};
use crate::rocm_backend::hip_kernels::contract::{
    BlockFormat, DevicePtr, QuantizedTiles, BLOCK, QTILE_COLUMNS, QTILE_ROWS,
};
use crate::rocm_backend::{LaunchConfig, RocmError};
use crate::{DType, Result, RocmDevice, RocmStorage};

/// The most parts in y of the grid that every GPU takes.
const MAX_PARTS: usize = 65535;
/// The longest row: places within a part are counted in 32 bits.
const LONGEST: usize = 1 << 24;

/// `m` rows of `x`, as quantize_rows writes them, with each of the n rows of blocks, as (m, n) in f32; rows have k
/// elements, whole blocks, and no size is 0.
///
/// # Errors
/// Sizes beyond what one launch takes; no memory for the result.
///
/// # Safety
/// The blocks are n rows of k weights, and `x` has m rows of k bytes with their scales.
pub(super) unsafe fn product(
    device: &RocmDevice,
    format: BlockFormat,
    blocks: DevicePtr,
    x: DevicePtr,
    (m, n, k): (usize, usize, usize),
) -> Result<RocmStorage> {
    let parts = n.div_ceil(QTILE_COLUMNS);
    for (elements, limit) in [(n, MAX_PARTS * QTILE_COLUMNS), (k, LONGEST)] {
        if elements > limit {
            return Err(RocmError::TooManyElements { op: OP, elements, limit }.into());
        }
    }
    let kernel = QuantizedTiles::kernel(format).ok_or_else(|| without_kernel(format))?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    let arguments =
        QuantizedTiles { blocks, x, out: dst.slice.ptr(), m: count(m)?, n: count(n)?, k: count(k)? };
    let grid = (count(m.div_ceil(QTILE_ROWS))?, count(parts)?, 1);
    let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
    // SAFETY: by the caller's word; the output was counted.
    unsafe { device.launch(kernel, config, &arguments)? };
    Ok(dst)
}
