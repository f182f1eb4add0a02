//! Pooling and resizing of (batch, channel, height, width), for every dtype.
use super::{check_computes, check_rank, computing, found, strided};
use crate::rocm_backend::device::{max_elements, LaunchConfig};
use crate::rocm_backend::layout::{runs, Strided};
use crate::rocm_backend::storage::{carrier, further, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{Layout, Result};
use hip_kernels::contract::{DevicePtr, Pool, PoolKind, UpsampleBilinear, UpsampleNearest};

/// `avg_pool2d` or `max_pool2d` over windows of `k`, apart by `stride`; both are (height, width).
///
/// As on the CPU device, the average of integers is their sum times 1 / window in integers: 0 but for windows of one
/// element; and the maximum keeps a NaN only where it comes first.
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
    let places = |size: usize, k: usize, stride: usize| match size.checked_sub(k) {
        Some(rest) if stride > 0 && k > 0 => Ok(rest / stride + 1),
        _ => Err(crate::Error::from(RocmError::Unsupported(format!(
            "{op}: a window of {k} with stride {stride} does not fit {size} elements"
        )))),
    };
    let image = dims[1] * places(dims[2], k.0, stride.0)? * places(dims[3], k.1, stride.1)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, dims[0] * image, op)? };
    by_images(op, src, layout, &dst, image, |info, from, to, config| {
        let arguments =
            Pool { k_h: k.0, k_w: k.1, stride_h: stride.0, stride_w: stride.1, info, src: from, dst: to };
        // SAFETY: the images were checked against their buffer, and the output holds their results.
        unsafe { src.device.launch(kernel, config, &arguments) }
    })?;
    Ok(dst)
}

/// (b, c, l) to (b, c, l_out), the nearest element each.
pub(crate) fn upsample_nearest1d(src: &RocmStorage, layout: &Layout, l_out: usize) -> Result<RocmStorage> {
    const OP: &str = "upsample_nearest1d";
    check_rank(layout, 3)?;
    let step = layout.dims()[2] as f64 / l_out as f64;
    upsample_nearest(OP, src, &super::conv::flat(layout), (1, l_out), (0.0, step))
}

/// (b, c, h, w) to (b, c, h_out, w_out), the nearest element each.
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
    let kernel = found(UpsampleNearest::kernel(carrier(src.slice.dtype())), op, src.slice.dtype())?;
    by_images(op, src, layout, &dst, layout.dims()[1] * h_out * w_out, |info, from, to, config| {
        let arguments = UpsampleNearest { h_out, w_out, h_step, w_step, info, src: from, dst: to };
        // SAFETY: the images were checked against their buffer, and the output holds their results.
        unsafe { src.device.launch(kernel, config, &arguments) }
    })?;
    Ok(dst)
}

/// (b, c, h, w) to (b, c, h_out, w_out) by weighting the four nearest elements, in f64.
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
        // As on the CPU: a neighbour of weight 0 that is not finite would make it NaN.
        return strided::dense(src, layout, OP);
    }
    let dst = resized(OP, src, layout, h_out, w_out)?;
    // Of the input, per place of the output.
    let step = |size: usize, out: usize, scale: Option<f64>| match scale {
        _ if align_corners && out > 1 => (size.max(1) - 1) as f64 / (out - 1) as f64,
        _ if align_corners => 0.0,
        Some(scale) => 1.0 / scale,
        None => size as f64 / out as f64,
    };
    let (h_step, w_step) = (step(dims[2], h_out, scale_h), step(dims[3], w_out, scale_w));
    by_images(OP, src, layout, &dst, dims[1] * h_out * w_out, |info, from, to, config| {
        let arguments =
            UpsampleBilinear { h_out, w_out, align_corners, h_step, w_step, info, src: from, dst: to };
        // SAFETY: the images were checked against their buffer, and the output holds their results.
        unsafe { src.device.launch(kernel, config, &arguments) }
    })?;
    Ok(dst)
}

/// Calls `launch` for as many images at a time as one launch can count, with the layout of these images, where they
/// begin, where their results of `image` elements each begin, and a thread for each.
fn by_images(
    op: &'static str,
    src: &RocmStorage,
    layout: &Layout,
    dst: &RocmStorage,
    image: usize,
    launch: impl Fn(&hip_kernels::contract::KernelLayout, DevicePtr, DevicePtr, LaunchConfig) -> Result<()>,
) -> Result<()> {
    let (dims, dtype) = (layout.dims(), src.slice.dtype());
    if image == 0 {
        return Ok(());
    }
    let (from, to) = (src.ptr(layout, op)?, dst.slice.ptr());
    let step = (max_elements() / image).max(1);
    for (first, images) in runs(dims[0], step) {
        let info = Strided::verbatim(op, &[&[images, dims[1], dims[2], dims[3]], layout.stride()])?;
        let (from, to) =
            (further(from, dtype, first * layout.stride()[0]), further(to, dtype, first * image));
        launch(&info, from, to, LaunchConfig::for_elements(op, images * image)?)?;
    }
    Ok(())
}

/// Memory for `src` with other sizes of its last two dims.
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
    if elements > 0 && dims[2..].contains(&0) {
        return Err(crate::Error::EmptyTensor { op }.bt());
    }
    // SAFETY: every element is written by the kernel that the caller launches.
    unsafe { RocmStorage::alloc(&src.device, dtype, elements, op) }
}
