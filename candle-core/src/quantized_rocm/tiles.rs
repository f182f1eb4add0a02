//! Products of many rows of activations with a quantized matrix, on matrix units.
use super::few;
use super::product::{count, with_quantized_rows, Operands, OP};
use crate::rocm_backend::hip_kernels::contract::{
    QuantizeRowsSpan, QuantizedTiles, BLOCK, QTILE_COLUMNS, QTILE_ROWS,
};
use crate::rocm_backend::{LaunchConfig, RocmError};
use crate::{DType, Result, RocmStorage};

/// Maximum number of workgroups in y that every GPU accepts.
const MAX_GRID_Y: usize = 65535;
/// Maximum row length, so that offsets within a workgroup's rows fit into 32 bits.
const MAX_COLUMNS: usize = 1 << 24;

/// Returns the product, of shape (m, n) in f32.
///
/// # Errors
/// If a size is too large for one launch, or memory runs out.
pub(super) fn product(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, m, n, k, .. } = *operands;
    for (elements, limit) in [(n, MAX_GRID_Y * QTILE_COLUMNS), (k, MAX_COLUMNS)] {
        if elements > limit {
            return Err(RocmError::TooManyElements { op: OP, elements, limit }.into());
        }
    }
    let device = &x.device;
    let kernel = operands.require(QuantizedTiles::kernel(format))?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    let out = dst.slice.ptr();
    let (rows, columns) = (count(m)?, count(n)?);
    let grid = (count(m.div_ceil(QTILE_ROWS))?, count(n.div_ceil(QTILE_COLUMNS))?, 1);
    let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
    // Formats whose block scales are folded into the bytes need one activation scale per block.
    let span = match few::is_supported(format, device) {
        true => QuantizeRowsSpan::S256,
        false => QuantizeRowsSpan::S32,
    };
    with_quantized_rows(device, x, operands.layout, (m, k), (span, kernel.id()), |activations| {
        let arguments = QuantizedTiles { blocks, x: activations, out, m: rows, n: columns, k: k as u32 };
        // SAFETY: the size of the matrix was checked, and activations and output have m rows.
        unsafe { device.state().launch_now(kernel, config, &arguments) }
    })?;
    Ok(dst)
}
