//! Products of a few rows of activations with a matrix of blocks, on matrix units.
use super::product::{count, with_bytes, Operands, OP};
use crate::rocm_backend::hip_kernels::contract::{
    BlockFormat, QuantizeRowsSpan, QuantizedFew, BLOCK, QFEW_SIDE,
};
use crate::rocm_backend::LaunchConfig;
use crate::{DType, Result, RocmDevice, RocmStorage};

/// Threads of the workgroups of a multiprocessor that keep its memory busy.
const ENOUGH_THREADS: usize = 384;

/// Whether there are such products with this format, on this device.
pub(super) fn are_made_of(format: BlockFormat, device: &RocmDevice) -> bool {
    device.has_matrix_units() && QuantizedFew::kernel(format).is_some()
}

/// The product, as (m, n) in f32.
///
/// # Errors
/// Another format than [`are_made_of`] says; sizes beyond what one launch takes; no memory.
pub(super) fn product(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, m, n, k, .. } = *operands;
    let device = &x.device;
    let kernel = operands.found(QuantizedFew::kernel(format))?;
    let (rows, columns, depth) = (count(m)?, count(n)?, count(k)?);
    let (width, height) = (n.div_ceil(QFEW_SIDE), m.div_ceil(QFEW_SIDE));
    // Its waves share the blocks of each row. Workgroups that are many have the fewer of them.
    let many = width * height * BLOCK / 2 >= device.multiprocessors() * ENOUGH_THREADS;
    let threads = if many { BLOCK / 2 } else { BLOCK };
    let config = LaunchConfig {
        grid: (count(width)?, count(height)?, 1),
        block: (threads as u32, 1, 1),
        lds_bytes: 0,
    };
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    let out = dst.slice.ptr();
    with_bytes(device, x, operands.layout, (m, k), (QuantizeRowsSpan::S256, kernel.id()), |activations| {
        let arguments = QuantizedFew { blocks, x: activations, out, m: rows, n: columns, k: depth };
        // SAFETY: the matrix was counted, and activations and output have m rows.
        unsafe { device.state().launch_now(kernel, config, &arguments) }
    })?;
    Ok(dst)
}
