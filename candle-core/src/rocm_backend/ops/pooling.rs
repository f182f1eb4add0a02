//! Pooling and resizing of (batch, channel, height, width), for every dtype.
use super::conv::fits_32_bits;
use super::{check_computes, check_rank, computing, for_planes, found, strided};
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::layout::{magic, Strided};
use crate::rocm_backend::storage::{copy_element, RocmStorage};
use crate::sizes::{check_pooling, check_resizing};
use crate::{Layout, Result};
use hip_kernels::contract::{KernelFamily, KernelLayout, Pool, PoolKind, UpsampleBilinear, UpsampleNearest};

/// Computes `avg_pool2d` or `max_pool2d` with windows of `k` and a step of `stride`; both are (height, width).
///
/// As on the CPU device, the average of integers is their sum times the integer 1 / window, which is 0 except for windows
/// of one element. The maximum is NaN only if the first element of the window is NaN.
pub(crate) fn pool2d(
    src: &RocmStorage,
    layout: &Layout,
    kind: PoolKind,
    k: (usize, usize),
    stride: (usize, usize),
) -> Result<RocmStorage> {
    let op = match kind {
        PoolKind::Avg => "avg_pool2d",
        PoolKind::Max => "max_pool2d",
    };
    check_rank(layout, 4)?;
    let dtype = src.slice.dtype();
    let kernel = found(Pool::kernel(kind, computing(op, dtype)?), op, dtype)?;
    let dims = layout.dims();
    check_pooling(dims, k, stride)?;
    let (h_out, w_out) = ((dims[2] - k.0) / stride.0 + 1, (dims[3] - k.1) / stride.1 + 1);
    let places = h_out * w_out;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, dims[0] * dims[1] * places, op)? };
    let (config, info) = planes(op, layout, places, 1)?;
    let arguments = Pool {
        places,
        w_out,
        w_magic: magic(w_out),
        k_h: k.0,
        k_w: k.1,
        stride_h: stride.0,
        stride_w: stride.1,
        info: &info,
        src: src.ptr(layout, op)?,
        dst: dst.slice.ptr(),
    };
    // SAFETY: the input was checked against its buffer, and the output holds its results.
    unsafe { src.device.launch(kernel, config, &arguments)? };
    Ok(dst)
}

/// Resizes (b, c, l) to (b, c, l_out) by nearest-neighbor interpolation.
pub(crate) fn upsample_nearest1d(src: &RocmStorage, layout: &Layout, l_out: usize) -> Result<RocmStorage> {
    const OP: &str = "upsample_nearest1d";
    check_rank(layout, 3)?;
    let step = layout.dims()[2] as f64 / l_out as f64;
    upsample_nearest(OP, src, &super::conv::flat(layout), (1, l_out), (0.0, step))
}

/// Resizes (b, c, h, w) to (b, c, h_out, w_out) by nearest-neighbor interpolation.
pub(crate) fn upsample_nearest2d(
    src: &RocmStorage,
    layout: &Layout,
    h_out: usize,
    w_out: usize,
) -> Result<RocmStorage> {
    check_rank(layout, 4)?;
    let dims = layout.dims();
    let steps = (dims[2] as f64 / h_out as f64, dims[3] as f64 / w_out as f64);
    upsample_nearest("upsample_nearest2d", src, layout, (h_out, w_out), steps)
}

fn upsample_nearest(
    op: &'static str,
    src: &RocmStorage,
    layout: &Layout,
    (h_out, w_out): (usize, usize),
    (h_step, w_step): (f64, f64),
) -> Result<RocmStorage> {
    let dst = resized(op, src, layout, h_out, w_out)?;
    if dst.slice.is_empty() {
        return Ok(dst);
    }
    let kernel = found(UpsampleNearest::kernel(copy_element(src.slice.dtype())), op, src.slice.dtype())?;
    let per_thread = UpsampleNearest::PACK_BYTES / src.slice.dtype().size_in_bytes();
    let (places, w_magic) = (h_out * w_out, magic(w_out));
    let (config, info) = planes(op, layout, places, per_thread)?;
    let (info, src_ptr, to) = (&info, src.ptr(layout, op)?, dst.slice.ptr());
    let arguments = UpsampleNearest { places, w_out, w_magic, h_step, w_step, info, src: src_ptr, dst: to };
    // SAFETY: the input was checked against its buffer, and the output holds its results.
    unsafe { src.device.launch(kernel, config, &arguments)? };
    Ok(dst)
}

/// Resizes (b, c, h, w) to (b, c, h_out, w_out) by bilinear interpolation, computed in f64.
pub(crate) fn upsample_bilinear2d(
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
    let dtype = src.slice.dtype();
    let kernel = found(UpsampleBilinear::kernel(computing(OP, dtype)?), OP, dtype)?;
    if dims[2..] == [h_out, w_out] {
        // As on the CPU; interpolation would give NaN if a neighbor with weight 0 is not finite.
        return strided::dense(src, layout, OP);
    }
    let dst = resized(OP, src, layout, h_out, w_out)?;
    if dst.slice.is_empty() {
        return Ok(dst);
    }
    // Step in the input per element of the output.
    let step = |size: usize, out: usize, scale: Option<f64>| match scale {
        _ if align_corners && out > 1 => (size.max(1) - 1) as f64 / (out - 1) as f64,
        _ if align_corners => 0.0,
        Some(scale) => 1.0 / scale,
        None => size as f64 / out as f64,
    };
    let (h_step, w_step) = (step(dims[2], h_out, scale_h), step(dims[3], w_out, scale_w));
    let (places, w_magic) = (h_out * w_out, magic(w_out));
    let (config, info) = planes(OP, layout, places, 1)?;
    let (info, from, to) = (&info, src.ptr(layout, OP)?, dst.slice.ptr());
    let arguments =
        UpsampleBilinear { places, w_out, w_magic, h_step, w_step, align_corners, info, src: from, dst: to };
    // SAFETY: the input was checked against its buffer, and the output holds its results.
    unsafe { src.device.launch(kernel, config, &arguments)? };
    Ok(dst)
}

/// Returns the geometry of a launch with `places` results per plane, and the layout of the planes.
fn planes(
    op: &'static str,
    layout: &Layout,
    places: usize,
    per_thread: usize,
) -> Result<(LaunchConfig, KernelLayout)> {
    let dims = layout.dims();
    fits_32_bits(op, layout)?;
    let info = Strided::verbatim(op, &[dims, layout.stride()])?;
    Ok((for_planes(op, places, per_thread, dims[1], dims[0])?, info))
}

/// Allocates the result of resizing the last two dims of `src`.
fn resized(
    op: &'static str,
    src: &RocmStorage,
    layout: &Layout,
    h_out: usize,
    w_out: usize,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    check_computes(op, dtype)?;
    let dims = layout.dims();
    let elements = dims[0] * dims[1] * h_out * w_out;
    check_resizing(op, dims, &[h_out, w_out])?;
    // SAFETY: every element is written by the kernel that the caller launches.
    unsafe { RocmStorage::alloc(&src.device, dtype, elements, op) }
}
