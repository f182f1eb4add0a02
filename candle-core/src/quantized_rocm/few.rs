//! Products of a few rows of activations with a quantized matrix, on matrix units.
use super::product::{activation_span, aligned, count, with_quantized_rows, Operands, OP};
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::{QuantizedFew, QuantizedFewHalves, BLOCK, QFEW_SIDE};
use crate::rocm_backend::{float_code, LaunchConfig};
use crate::{DType, Result, RocmStorage};

/// Number of threads per multiprocessor that saturates the memory bandwidth.
const SATURATING_THREADS: usize = 384;

/// Number of rows up to which f16 activations are multiplied as they are. More of them would cost more to read than to quantize.
const MAX_ROWS_OF_HALVES: usize = QFEW_SIDE / 2;

/// Returns the product, of shape (m, n) in the dtype of the activations.
///
/// # Errors
/// If there is no kernel for the format, a size is too large for one launch, or memory runs out.
pub(super) fn product(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, m, n, k, .. } = *operands;
    let device = &x.device;
    let (rows, columns, depth) = (count(m)?, count(n)?, count(k)?);
    let (width, height) = (n.div_ceil(QFEW_SIDE), m.div_ceil(QFEW_SIDE));
    // The waves of a workgroup split the blocks of each row. If there are many workgroups, half the waves suffice.
    let saturated = width * height * BLOCK / 2 >= device.multiprocessors() * SATURATING_THREADS;
    let threads = if saturated { BLOCK / 2 } else { BLOCK };
    let config = LaunchConfig {
        grid: (count(width)?, count(height)?, 1),
        block: (threads as u32, 1, 1),
        lds_bytes: 0,
    };
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, x.dtype(), m * n, OP)? };
    let (out, out_dtype) = (dst.slice.ptr(), float_code(x.dtype())?);
    if let Some(kernel) =
        QuantizedFewHalves::kernel(format).filter(|_| x.dtype() == DType::F16 && m <= MAX_ROWS_OF_HALVES)
    {
        let mut copy = None;
        let x = aligned(x, operands.layout, &mut copy)?;
        let arguments = QuantizedFewHalves { blocks, x, out, m: rows, n: columns, k: depth, out_dtype };
        // SAFETY: the size of the matrix was checked, and activations and output have m rows.
        unsafe { device.launch(kernel, config, &arguments)? };
        return Ok(dst);
    }
    let kernel = operands.require(QuantizedFew::kernel(format))?;
    let span = (activation_span(format, device), kernel.id());
    with_quantized_rows(device, x, operands.layout, (m, k), span, |activations| {
        let arguments =
            QuantizedFew { blocks, x: activations, out, m: rows, n: columns, k: depth, out_dtype };
        // SAFETY: as above.
        unsafe { device.state().launch_now(kernel, config, &arguments) }
    })?;
    Ok(dst)
}
