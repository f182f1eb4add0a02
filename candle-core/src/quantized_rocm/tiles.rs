//! Products of many rows of activations with a quantized matrix, on matrix units.
use super::product::{activation_span, count, with_quantized_rows, Operands, OP};
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::{QuantizedTiles, BLOCK, QTILE_COLUMNS, QTILE_ROWS};
use crate::rocm_backend::{float_code, LaunchConfig, RocmError};
use crate::{Result, RocmStorage};

/// Maximum number of workgroups in y that every GPU accepts.
const MAX_GRID_Y: usize = 65535;
/// Maximum row length, so that offsets within a workgroup's rows fit into 32 bits.
const MAX_COLUMNS: usize = 1 << 24;

/// Returns the product, of shape (m, n) in the dtype of the activations.
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
    let dst = unsafe { RocmStorage::alloc(device, x.dtype(), m * n, OP)? };
    let (out, out_dtype) = (dst.slice.ptr(), float_code(x.dtype())?);
    let (rows, columns) = (count(m)?, count(n)?);
    let grid = (count(m.div_ceil(QTILE_ROWS))?, count(n.div_ceil(QTILE_COLUMNS))?, 1);
    let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
    let span = (activation_span(format, device), kernel.id());
    with_quantized_rows(device, x, operands.layout, (m, k), span, |activations| {
        let arguments =
            QuantizedTiles { blocks, x: activations, out, m: rows, n: columns, k: k as u32, out_dtype };
        // SAFETY: the size of the matrix was checked, and activations and output have m rows.
        unsafe { device.state().launch_now(kernel, config, &arguments) }
    })?;
    Ok(dst)
}
