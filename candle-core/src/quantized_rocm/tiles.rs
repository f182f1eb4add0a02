//! Products of many rows of activations with a matrix of blocks, on matrix units.
use super::few;
use super::product::{count, with_bytes, Operands, OP};
use crate::rocm_backend::hip_kernels::contract::{
    QuantizeRowsSpan, QuantizedTiles, BLOCK, QTILE_COLUMNS, QTILE_ROWS,
};
use crate::rocm_backend::{LaunchConfig, RocmError};
use crate::{DType, Result, RocmStorage};

/// The most parts in y of the grid that every GPU takes.
const MAX_PARTS: usize = 65535;
/// The longest row: places within a part are counted in 32 bits.
const LONGEST: usize = 1 << 24;

/// The product, as (m, n) in f32.
///
/// # Errors
/// Sizes beyond what one launch takes; no memory.
pub(super) fn product(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, m, n, k, .. } = *operands;
    for (elements, limit) in [(n, MAX_PARTS * QTILE_COLUMNS), (k, LONGEST)] {
        if elements > limit {
            return Err(RocmError::TooManyElements { op: OP, elements, limit }.into());
        }
    }
    let device = &x.device;
    let kernel = operands.found(QuantizedTiles::kernel(format))?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    let out = dst.slice.ptr();
    let (rows, columns) = (count(m)?, count(n)?);
    let grid = (count(m.div_ceil(QTILE_ROWS))?, count(n.div_ceil(QTILE_COLUMNS))?, 1);
    let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
    // Where scales of blocks become part of the bytes on matrix units, activations have one for a block.
    let span = match few::are_made_of(format, device) {
        true => QuantizeRowsSpan::S256,
        false => QuantizeRowsSpan::S32,
    };
    with_bytes(device, x, operands.layout, (m, k), (span, kernel.id()), |activations| {
        let arguments = QuantizedTiles { blocks, x: activations, out, m: rows, n: columns, k: k as u32 };
        // SAFETY: the matrix was counted, and activations and output have m rows.
        unsafe { device.state().launch_now(kernel, config, &arguments) }
    })?;
    Ok(dst)
}
