//! Products of a few rows of activations with a matrix of blocks, on matrix units.
use super::product::{count, with_bytes, OP};
use crate::rocm_backend::hip_kernels::contract::{
    BlockFormat, DevicePtr, QuantizeRowsSpan, QuantizedFew, BLOCK, QFEW_SIDE,
};
use crate::rocm_backend::{LaunchConfig, RocmError};
use crate::{DType, Layout, Result, RocmDevice, RocmStorage};

/// Threads of the workgroups of a multiprocessor that keep its memory busy.
const ENOUGH_THREADS: usize = 384;

/// Whether there are such products with this format, on this device.
pub(super) fn are_made_of(format: BlockFormat, device: &RocmDevice) -> bool {
    device.has_matrix_units() && QuantizedFew::kernel(format).is_some()
}

/// `m` dense rows of f32, f16 or bf16 with each of the n rows of blocks, as (m, n) in f32; rows have k elements, whole
/// blocks, and no size is 0.
///
/// # Errors
/// Another format than [`are_made_of`] says; sizes beyond what one launch takes; no memory.
pub(super) fn product(
    format: BlockFormat,
    blocks: DevicePtr,
    x: &RocmStorage,
    layout: &Layout,
    (m, n, k): (usize, usize, usize),
) -> Result<RocmStorage> {
    let device = &x.device;
    let Some(kernel) = QuantizedFew::kernel(format) else {
        let name = format.name();
        return Err(RocmError::Unsupported(format!("no kernel multiplies a few rows with {name}")).into());
    };
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
    with_bytes(device, x, layout, (m, k), (QuantizeRowsSpan::S256, kernel.id()), |activations| {
        let arguments = QuantizedFew { blocks, x: activations, out, m: rows, n: columns, k: depth };
        // SAFETY: the matrix was counted, and activations and output have m rows.
        unsafe { device.state().launch_now(kernel, config, &arguments) }
    })?;
    Ok(dst)
}
