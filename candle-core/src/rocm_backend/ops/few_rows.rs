//! Selects the kernels for products of few rows: those of `row_product`, which include the operations around a
//! product, or those that use matrix units.
use crate::rocm_backend::ops::row_product::{has_row_kernel, RowWeights};
use crate::rocm_backend::RocmDevice;
use crate::DType;

/// Returns true if products of up to THIN_SIDE rows of floats are computed by our kernel on matrix units, `thin`, instead of
/// a library.
pub(crate) fn uses_thin_kernel(device: &RocmDevice, dtype: DType) -> bool {
    match dtype {
        // Measured (docs/explanation/performance.md): on NVIDIA GPUs, which have no matrix units for f32, cuBLAS
        // takes 0.6 times as long.
        DType::F32 => !device.arch().starts_with("sm_"),
        _ => !device.state().drops_denormals(),
    }
}

/// Returns true if a dense product of `rows` rows of `k` elements is computed by a kernel of `row_product`.
///
/// From two rows on, a data-center GPU reads weights faster than its lanes can multiply them. Its matrix units are then
/// faster, although norm, gate and residual then take separate launches (measured, docs/explanation/performance.md).
pub(crate) fn uses_row_kernel(
    device: &RocmDevice,
    weights: RowWeights,
    dtype: DType,
    rows: usize,
    k: usize,
) -> bool {
    let on_units = match weights {
        RowWeights::Floats => dtype != DType::F32 && uses_thin_kernel(device, dtype),
        RowWeights::Blocks(_) => true,
    };
    let by_units = rows > 1 && device.is_data_center() && device.has_matrix_units() && on_units;
    !by_units && has_row_kernel(weights, rows, k)
}
