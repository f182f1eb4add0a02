//! Convolutions, pooling and resizing of (batch, channel, ...) tensors.
//!
//! Float convolutions unfold their input (im2col) and multiply; integer ones use the direct kernels.
use super::error::dtype_mismatch;
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::RocmStorage;
use super::{matmul, RocmError};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::{DType, Layout, Result};
use hip_kernels::Module;

fn is_float(storage: &RocmStorage) -> bool {
    matches!(storage.slice.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

fn check_rank(op: &'static str, layout: &Layout, rank: usize) -> Result<()> {
    if layout.dims().len() == rank {
        return Ok(());
    }
    Err(RocmError::Unsupported(format!("{op}: expected {rank} dims, got {:?}", layout.dims())).into())
}

fn check_dtypes(op: &'static str, src: &RocmStorage, kernel: &RocmStorage) -> Result<()> {
    let (lhs, rhs) = (src.slice.dtype(), kernel.slice.dtype());
    if lhs != rhs {
        return Err(dtype_mismatch(op, lhs, rhs));
    }
    src.order_after(kernel)
}

/// (b, c_in, l) with a kernel (c_out, c_in, k) to (b, c_out, l_out).
pub(super) fn conv1d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConv1D,
) -> Result<RocmStorage> {
    const OP: &str = "conv1d";
    check_rank(OP, layout, 3)?;
    check_dtypes(OP, src, kernel)?;
    let l_out = p.l_out();
    let dtype = src.slice.dtype().as_str();
    let from = src.ptr(layout, OP)?;
    if is_float(src) {
        let (rows, columns) = (p.b_size * l_out, p.c_in * p.k_size);
        // SAFETY: every element is written by the kernel.
        let unfolded = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), rows * columns, OP)? };
        let to = unfolded.slice.ptr();
        let info = Strided::verbatim(OP, &[layout.dims(), layout.stride()])?;
        let threads = p.b_size * l_out * p.c_in;
        let function = src.device.kernel(Module::Conv, &["im2col1d", dtype])?;
        let launch = function.launch(LaunchConfig::for_elements(OP, threads)?);
        let launch = launch.arg(&threads).arg(&l_out).arg(&p.k_size).arg(&p.stride).arg(&p.padding);
        // SAFETY: im2col1d(numel, l_out, l_k, stride, padding, dilation, info, src, dst).
        unsafe { launch.arg(&p.dilation).arg(&info).arg(&from).arg(&to).run()? };
        return product(kernel, kernel_layout, &unfolded, p.b_size, p.c_out, l_out, columns);
    }
    let weights = kernel.ptr(kernel_layout, OP)?;
    // SAFETY: every element is written by the kernel.
    let elements = p.b_size * p.c_out * l_out;
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    let info = verbatim2(OP, layout, kernel_layout)?;
    let (numel, to) = (layout.shape().elem_count(), dst.slice.ptr());
    let function = src.device.kernel(Module::Conv, &[OP, dtype])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&numel).arg(&l_out).arg(&p.stride).arg(&p.padding).arg(&p.dilation);
    // SAFETY: conv1d(src_numel, l_out, stride, padding, dilation, info, src, kernel, dst).
    unsafe { launch.arg(&info).arg(&from).arg(&weights).arg(&to).run()? };
    Ok(dst)
}

/// (b, c_in, h, w) with a kernel (c_out, c_in, k_h, k_w) to (b, c_out, h_out, w_out).
pub(super) fn conv2d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConv2D,
) -> Result<RocmStorage> {
    const OP: &str = "conv2d";
    check_rank(OP, layout, 4)?;
    check_dtypes(OP, src, kernel)?;
    let (h_out, w_out) = (p.out_h(), p.out_w());
    let dtype = src.slice.dtype().as_str();
    let from = src.ptr(layout, OP)?;
    if is_float(src) {
        let columns = p.c_in * p.k_h * p.k_w;
        let elements = p.b_size * h_out * w_out * columns;
        // SAFETY: every element is written by the kernel.
        let unfolded = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
        let to = unfolded.slice.ptr();
        let info = Strided::verbatim(OP, &[layout.dims(), layout.stride()])?;
        let function = src.device.kernel(Module::Conv, &["im2col", dtype])?;
        let launch = function.launch(LaunchConfig::for_elements(OP, elements)?);
        let launch = launch.arg(&elements).arg(&h_out).arg(&w_out).arg(&p.k_h).arg(&p.k_w).arg(&p.stride);
        // SAFETY: im2col(numel, h_out, w_out, h_k, w_k, stride, padding, dilation, info, src, dst).
        unsafe { launch.arg(&p.padding).arg(&p.dilation).arg(&info).arg(&from).arg(&to).run()? };
        return product(kernel, kernel_layout, &unfolded, p.b_size, p.c_out, h_out * w_out, columns);
    }
    let weights = kernel.ptr(kernel_layout, OP)?;
    let elements = p.b_size * p.c_out * h_out * w_out;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    let info = verbatim2(OP, layout, kernel_layout)?;
    let (numel, to) = (layout.shape().elem_count(), dst.slice.ptr());
    let function = src.device.kernel(Module::Conv, &[OP, dtype])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&numel).arg(&w_out).arg(&h_out).arg(&p.stride).arg(&p.padding).arg(&p.dilation);
    // SAFETY: conv2d(src_numel, w_out, h_out, stride, padding, dilation, info, src, kernel, dst).
    unsafe { launch.arg(&info).arg(&from).arg(&weights).arg(&to).run()? };
    Ok(dst)
}

/// Kernel (c_out, columns) times the unfolded input (b, places, columns), transposed: (b, c_out, places), which is
/// the result as it should lie.
fn product(
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    unfolded: &RocmStorage,
    batch: usize,
    c_out: usize,
    places: usize,
    columns: usize,
) -> Result<RocmStorage> {
    let dense;
    let (kernel, offset) = if kernel_layout.is_contiguous() {
        (kernel, kernel_layout.start_offset())
    } else {
        dense = kernel.dense(kernel_layout, "conv")?;
        (&dense, 0)
    };
    let lhs = Layout::new((batch, c_out, columns).into(), vec![0, columns, 1], offset);
    let rhs = Layout::contiguous((batch, places, columns)).transpose(1, 2)?;
    matmul::matmul(kernel, unfolded, (batch, c_out, places, columns), &lhs, &rhs)
}

/// Transposed convolution: (b, c_in, l) with a kernel (c_in, c_out, k) to (b, c_out, l_out).
pub(super) fn conv_transpose1d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConvTranspose1D,
) -> Result<RocmStorage> {
    const OP: &str = "conv_transpose1d";
    check_rank(OP, layout, 3)?;
    check_dtypes(OP, src, kernel)?;
    let l_out = p.l_out();
    let elements = p.b_size * p.c_out * l_out;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    let (from, weights, to) = (src.ptr(layout, OP)?, kernel.ptr(kernel_layout, OP)?, dst.slice.ptr());
    let info = verbatim2(OP, layout, kernel_layout)?;
    let numel = layout.shape().elem_count();
    let function = src.device.kernel(Module::Conv, &[OP, src.slice.dtype().as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&numel).arg(&l_out).arg(&p.stride).arg(&p.padding).arg(&p.output_padding);
    // SAFETY: conv_transpose1d(src_numel, l_out, stride, padding, out_padding, dilation, info, src, kernel, dst).
    unsafe { launch.arg(&p.dilation).arg(&info).arg(&from).arg(&weights).arg(&to).run()? };
    Ok(dst)
}

/// Transposed convolution: (b, c_in, h, w) with a kernel (c_in, c_out, k_h, k_w) to (b, c_out, h_out, w_out).
pub(super) fn conv_transpose2d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConvTranspose2D,
) -> Result<RocmStorage> {
    const OP: &str = "conv_transpose2d";
    check_rank(OP, layout, 4)?;
    check_dtypes(OP, src, kernel)?;
    let (w_out, h_out) = (p.out_w(), p.out_h());
    let elements = p.b_size * p.c_out * h_out * w_out;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    let (from, weights, to) = (src.ptr(layout, OP)?, kernel.ptr(kernel_layout, OP)?, dst.slice.ptr());
    let info = verbatim2(OP, layout, kernel_layout)?;
    let numel = layout.shape().elem_count();
    let function = src.device.kernel(Module::Conv, &[OP, src.slice.dtype().as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&numel).arg(&w_out).arg(&h_out).arg(&p.stride).arg(&p.padding);
    let launch = launch.arg(&p.output_padding).arg(&p.dilation).arg(&info).arg(&from);
    // SAFETY: conv_transpose2d(src_numel, w_out, h_out, stride, padding, out_padding, dilation, info, src, kernel, dst).
    unsafe { launch.arg(&weights).arg(&to).run()? };
    Ok(dst)
}

/// `avg_pool2d` or `max_pool2d` over windows of `k`, (b, c, h, w); `k` and `stride` are (height, width).
pub(super) fn pool2d(
    src: &RocmStorage,
    layout: &Layout,
    op: &'static str,
    k: (usize, usize),
    stride: (usize, usize),
) -> Result<RocmStorage> {
    check_rank(op, layout, 4)?;
    let dims = layout.dims();
    let places = |size: usize, k: usize, stride: usize| match size.checked_sub(k) {
        Some(rest) if stride > 0 => Ok(rest / stride + 1),
        _ => Err(crate::Error::from(RocmError::Unsupported(format!(
            "{op}: a window of {k} with stride {stride} does not fit {size} elements"
        )))),
    };
    let elements = dims[0] * dims[1] * places(dims[2], k.0, stride.0)? * places(dims[3], k.1, stride.1)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, op)? };
    let (from, to) = (src.ptr(layout, op)?, dst.slice.ptr());
    let info = Strided::verbatim(op, &[dims, layout.stride()])?;
    let numel = layout.shape().elem_count();
    let function = src.device.kernel(Module::Conv, &[op, src.slice.dtype().as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(op, elements)?);
    let launch = launch.arg(&numel).arg(&k.0).arg(&k.1).arg(&stride.0).arg(&stride.1);
    // SAFETY: pool2d(src_numel, w_k, h_k, w_stride, h_stride, info, src, dst); what the kernel calls w is dims[2].
    unsafe { launch.arg(&info).arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// (b, c, h, w) to (b, c, out_h, out_w), the nearest element each.
pub(super) fn upsample_nearest2d(
    src: &RocmStorage,
    layout: &Layout,
    out_h: usize,
    out_w: usize,
) -> Result<RocmStorage> {
    const OP: &str = "upsample_nearest2d";
    check_rank(OP, layout, 4)?;
    let dims = layout.dims();
    let elements = dims[0] * dims[1] * out_h * out_w;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let info = Strided::verbatim(OP, &[dims, layout.stride()])?;
    let (scale_h, scale_w) = (dims[2] as f64 / out_h as f64, dims[3] as f64 / out_w as f64);
    let function = src.device.kernel(Module::Conv, &[OP, src.slice.dtype().as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&out_h).arg(&out_w).arg(&scale_h).arg(&scale_w);
    // SAFETY: upsample_nearest2d(w_out, h_out, w_scale, h_scale, info, src, dst); the kernel's w is dims[2].
    unsafe { launch.arg(&info).arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// (b, c, h, w) to (b, c, out_h, out_w) by weighting the four nearest elements.
pub(super) fn upsample_bilinear2d(
    src: &RocmStorage,
    layout: &Layout,
    (out_h, out_w): (usize, usize),
    align_corners: bool,
    scale_h: Option<f64>,
    scale_w: Option<f64>,
) -> Result<RocmStorage> {
    const OP: &str = "upsample_bilinear2d";
    check_rank(OP, layout, 4)?;
    let dims = layout.dims();
    let elements = dims[0] * dims[1] * out_h * out_w;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let info = Strided::verbatim(OP, &[dims, layout.stride()])?;
    let (has_h, has_w) = (scale_h.is_some(), scale_w.is_some());
    let (scale_h, scale_w) = (scale_h.unwrap_or(0.0), scale_w.unwrap_or(0.0));
    let function = src.device.kernel(Module::Conv, &[OP, src.slice.dtype().as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&out_w).arg(&out_h).arg(&align_corners).arg(&has_h).arg(&scale_h);
    // SAFETY: upsample_bilinear2d(w_out, h_out, align_corners, has_scale_h, scale_h, has_scale_w, scale_w, info, src,
    // dst).
    unsafe { launch.arg(&has_w).arg(&scale_w).arg(&info).arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// Dims and strides of the input, then those of the kernel.
fn verbatim2(op: &'static str, src: &Layout, kernel: &Layout) -> Result<super::KernelLayout> {
    Strided::verbatim(op, &[src.dims(), src.stride(), kernel.dims(), kernel.stride()])
}
