//! The choice of the experts of each row in a mixture of experts, in one launch.
use super::found;
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::RocmError;
use crate::{DType, Result};
use hip_kernels::contract::{DevicePtr, Route, BLOCK};

/// The name of the operation in errors.
const OP: &str = "route";
/// Rows of a workgroup.
const ROWS: usize = BLOCK / 32;

/// Sizes and constants of a router, as the kernel reads them.
pub(crate) struct RouteSettings {
    pub(crate) rows: usize,
    /// Number of experts, at most ROUTE_EXPERTS.
    pub(crate) stack: usize,
    /// Number of experts of a row, at most ROUTE_USED and `stack`.
    pub(crate) used: usize,
    /// Number of groups, at most ROUTE_USED, of `stack` / `groups` experts each, and number of groups that are chosen.
    pub(crate) groups: (usize, usize),
    /// Code of the function.
    pub(crate) function: usize,
    pub(crate) tolerance: f32,
    pub(crate) normalized: bool,
    pub(crate) scale: f32,
}

/// Returns the experts of each row, u32 (rows, used), and their weights, f32.
///
/// # Errors
/// If there are too many rows for a launch, or memory runs out.
///
/// # Safety
/// `scores` must have `rows` rows of `stack` elements of f32, and `correction`, if it is not null, `stack`.
pub(crate) unsafe fn route(
    like: &RocmStorage,
    (scores, correction): (DevicePtr, DevicePtr),
    settings: &RouteSettings,
) -> Result<[RocmStorage; 2]> {
    let RouteSettings { rows, stack, used, groups, function, tolerance, normalized, scale } = *settings;
    let limit = (1 << 31) - 1;
    if rows > limit {
        return Err(RocmError::TooManyElements { op: OP, elements: rows, limit }.into());
    }
    // SAFETY: the kernel writes every element.
    let alloc = |dtype| unsafe { RocmStorage::alloc(&like.device, dtype, rows * used, OP) };
    let (experts, weights) = (alloc(DType::U32)?, alloc(DType::F32)?);
    if rows * used == 0 {
        return Ok([experts, weights]);
    }
    let arguments = Route {
        scores,
        correction,
        experts: experts.slice.ptr(),
        weights: weights.slice.ptr(),
        rows: rows as u32,
        stack: stack as u32,
        used: used as u32,
        groups: groups.0 as u32,
        used_groups: groups.1 as u32,
        function: function as u32,
        normalized: normalized.into(),
        scale,
        tolerance,
    };
    let kernel = found(Route::kernel(), OP, DType::F32)?;
    let config = LaunchConfig::for_rows(OP, rows.div_ceil(ROWS), BLOCK as u32)?;
    // SAFETY: guaranteed by the caller, and results have all rows.
    unsafe { like.device.launch(kernel, config, &arguments)? };
    Ok([experts, weights])
}
