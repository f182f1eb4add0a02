//! Pooling and resizing of (batch, channel, height, width), for every dtype.
use super::conv::{check_computes, check_rank};
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::{carrier, RocmStorage};
use super::RocmError;
use crate::{Layout, Result};
use hip_kernels::Module;

/// `avg_pool2d` or `max_pool2d` over windows of `k`, apart by `stride`; both are (height, width).
///
/// As on the CPU device, the average of integers is their sum times 1 / window in integers: 0 but for windows of one
/// element; and the maximum keeps a NaN only where it comes first.
pub(super) fn pool2d(
    src: &RocmStorage,
    layout: &Layout,
    op: &'static str,
    k: (usize, usize),
    stride: (usize, usize),
) -> Result<RocmStorage> {
    check_rank(layout, 4)?;
    let dtype = src.slice.dtype();
    check_computes(op, dtype)?;
    let dims = layout.dims();
    let places = |size: usize, k: usize, stride: usize| match size.checked_sub(k) {
        Some(rest) if stride > 0 && k > 0 => Ok(rest / stride + 1),
        _ => Err(crate::Error::from(RocmError::Unsupported(format!(
            "{op}: a window of {k} with stride {stride} does not fit {size} elements"
        )))),
    };
    let elements = dims[0] * dims[1] * places(dims[2], k.0, stride.0)? * places(dims[3], k.1, stride.1)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, op)? };
    let (from, to) = (src.ptr(layout, op)?, dst.slice.ptr());
    let info = Strided::verbatim(op, &[dims, layout.stride()])?;
    let numel = layout.shape().elem_count();
    let function = src.device.kernel(Module::Conv, &[op, dtype.as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(op, elements)?);
    let launch = launch.arg(&numel).arg(&k.0).arg(&k.1).arg(&stride.0).arg(&stride.1);
    // SAFETY: pool2d(src_numel, k_h, k_w, stride_h, stride_w, info, src, dst).
    unsafe { launch.arg(&info).arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// (b, c, l) to (b, c, l_out), the nearest element each.
pub(super) fn upsample_nearest1d(src: &RocmStorage, layout: &Layout, l_out: usize) -> Result<RocmStorage> {
    const OP: &str = "upsample_nearest1d";
    check_rank(layout, 3)?;
    let dst = resized(OP, src, layout, &[l_out])?;
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let info = Strided::verbatim(OP, &[layout.dims(), layout.stride()])?;
    let step = layout.dims()[2] as f64 / l_out as f64;
    let function = src.device.kernel(Module::Conv, &[OP, carrier(src.slice.dtype())])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, dst.slice.len())?);
    // SAFETY: upsample_nearest1d(l_out, step, info, src, dst).
    unsafe { launch.arg(&l_out).arg(&step).arg(&info).arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// (b, c, h, w) to (b, c, h_out, w_out), the nearest element each.
pub(super) fn upsample_nearest2d(
    src: &RocmStorage,
    layout: &Layout,
    h_out: usize,
    w_out: usize,
) -> Result<RocmStorage> {
    const OP: &str = "upsample_nearest2d";
    check_rank(layout, 4)?;
    let dst = resized(OP, src, layout, &[h_out, w_out])?;
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let dims = layout.dims();
    let info = Strided::verbatim(OP, &[dims, layout.stride()])?;
    let (h_step, w_step) = (dims[2] as f64 / h_out as f64, dims[3] as f64 / w_out as f64);
    let function = src.device.kernel(Module::Conv, &[OP, carrier(src.slice.dtype())])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, dst.slice.len())?);
    let launch = launch.arg(&h_out).arg(&w_out).arg(&h_step).arg(&w_step);
    // SAFETY: upsample_nearest2d(h_out, w_out, h_step, w_step, info, src, dst).
    unsafe { launch.arg(&info).arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// (b, c, h, w) to (b, c, h_out, w_out) by weighting the four nearest elements, in f64.
pub(super) fn upsample_bilinear2d(
    src: &RocmStorage,
    layout: &Layout,
    (h_out, w_out): (usize, usize),
    align_corners: bool,
    scale_h: Option<f64>,
    scale_w: Option<f64>,
) -> Result<RocmStorage> {
    const OP: &str = "upsample_bilinear2d";
    check_rank(layout, 4)?;
    let dims = layout.dims();
    check_computes(OP, src.slice.dtype())?;
    if dims[2..] == [h_out, w_out] {
        // As on the CPU: a neighbour of weight 0 that is not finite would make it NaN.
        return src.dense(layout, OP);
    }
    let dst = resized(OP, src, layout, &[h_out, w_out])?;
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let info = Strided::verbatim(OP, &[dims, layout.stride()])?;
    // Of the input, per place of the output.
    let step = |size: usize, out: usize, scale: Option<f64>| match scale {
        _ if align_corners && out > 1 => (size.max(1) - 1) as f64 / (out - 1) as f64,
        _ if align_corners => 0.0,
        Some(scale) => 1.0 / scale,
        None => size as f64 / out as f64,
    };
    let (h_step, w_step) = (step(dims[2], h_out, scale_h), step(dims[3], w_out, scale_w));
    let function = src.device.kernel(Module::Conv, &[OP, src.slice.dtype().as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, dst.slice.len())?);
    let launch = launch.arg(&h_out).arg(&w_out).arg(&align_corners).arg(&h_step).arg(&w_step);
    // SAFETY: upsample_bilinear2d(h_out, w_out, align_corners, h_step, w_step, info, src, dst).
    unsafe { launch.arg(&info).arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// Memory for `src` with its last dims replaced by `sizes`.
fn resized(op: &'static str, src: &RocmStorage, layout: &Layout, sizes: &[usize]) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    check_computes(op, dtype)?;
    let dims = layout.dims();
    let elements = dims[0] * dims[1] * sizes.iter().product::<usize>();
    if elements > 0 && dims[2..].contains(&0) {
        return Err(crate::Error::EmptyTensor { op }.bt());
    }
    // SAFETY: every element is written by the kernel that the caller launches.
    unsafe { RocmStorage::alloc(&src.device, dtype, elements, op) }
}
