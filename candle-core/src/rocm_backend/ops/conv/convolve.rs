//! Candle's convolutions. One-dimensional convolutions are computed with a height of 1, and all groups together.
use super::operand::{dense, fits_32_bits, flat};
use super::shape::{shape1d, shape2d, transposed_shape1d, transposed_shape2d};
use super::{input, output, weights};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::rocm_backend::device::max_elements;
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::libraries::{Candidate, ConvBackend, ConvMethod, ConvShape, Direction, Plan};
use crate::rocm_backend::ops::matmul::has_matmul;
use crate::rocm_backend::ops::{check_rank, same_computing_dtype, strided, Operand};
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::RocmError;
use crate::{DType, Result};

/// Convolves (b, c_in, l) with a kernel (c_out, c_in, k) to (b, c_out, l_out), for the dtypes of matmul. `c_in` and
/// `c_out` of the parameters are the channels of one group.
pub(crate) fn conv1d(
    (src, layout): Operand,
    (kernel, kernel_layout): Operand,
    p: &ParamsConv1D,
    groups: usize,
) -> Result<RocmStorage> {
    const OP: &str = "conv1d";
    check_rank(layout, 3)?;
    check_rank(kernel_layout, 3)?;
    let shape = shape1d(OP, src.slice.dtype(), p, groups)?;
    compute(OP, &shape, [(src, &flat(layout)), (kernel, &flat(kernel_layout))])
}

/// Like [`conv1d`], from (b, c_in, h, w) with a kernel (c_out, c_in, k_h, k_w) to (b, c_out, h_out, w_out).
pub(crate) fn conv2d(
    (src, layout): Operand,
    (kernel, kernel_layout): Operand,
    p: &ParamsConv2D,
    groups: usize,
) -> Result<RocmStorage> {
    const OP: &str = "conv2d";
    check_rank(layout, 4)?;
    check_rank(kernel_layout, 4)?;
    let shape = shape2d(OP, src.slice.dtype(), p, groups)?;
    compute(OP, &shape, [(src, layout), (kernel, kernel_layout)])
}

/// Transposed convolution of (b, c_in, l) with a kernel (c_in, c_out, k) to (b, c_out, l_out), for every dtype.
pub(crate) fn conv_transpose1d(
    (src, layout): Operand,
    (kernel, kernel_layout): Operand,
    p: &ParamsConvTranspose1D,
    groups: usize,
) -> Result<RocmStorage> {
    const OP: &str = "conv_transpose1d";
    check_rank(layout, 3)?;
    check_rank(kernel_layout, 3)?;
    let shape = transposed_shape1d(OP, src.slice.dtype(), p, groups)?;
    compute(OP, &shape, [(src, &flat(layout)), (kernel, &flat(kernel_layout))])
}

/// Transposed convolution of (b, c_in, h, w) with a kernel (c_in, c_out, k_h, k_w) to (b, c_out, h_out, w_out).
pub(crate) fn conv_transpose2d(
    (src, layout): Operand,
    (kernel, kernel_layout): Operand,
    p: &ParamsConvTranspose2D,
) -> Result<RocmStorage> {
    const OP: &str = "conv_transpose2d";
    check_rank(layout, 4)?;
    check_rank(kernel_layout, 4)?;
    let shape = transposed_shape2d(OP, src.slice.dtype(), p)?;
    compute(OP, &shape, [(src, layout), (kernel, kernel_layout)])
}

/// Computes a convolution by MIOpen or the built-in kernels. The operands are in the order given by the variants of
/// [`Direction`]; the result is dense.
pub(super) fn compute(op: &'static str, shape: &ConvShape, operands: [Operand; 2]) -> Result<RocmStorage> {
    let [(a, a_layout), (b, b_layout)] = operands;
    let dtype = same_computing_dtype(op, a, b)?;
    if shape.direction != Direction::Input && !has_matmul(dtype) {
        return Err(unsupported_dtype(op, dtype));
    }
    for places in [shape.places(), shape.h.size * shape.w.size] {
        if places > max_elements() {
            return Err(RocmError::TooManyElements { op, elements: places, limit: max_elements() }.into());
        }
    }
    let elements: usize = shape.result().iter().product();
    let multiplied: usize = match shape.direction {
        Direction::Output => shape.columns() * shape.h.size * shape.w.size,
        Direction::Input => shape.c_out * shape.h.taps * shape.w.taps * shape.places(),
        Direction::Weights => shape.batch * shape.places() * shape.h.size * shape.w.size,
    };
    // The kernels would read an empty operand.
    if elements == 0 || multiplied == 0 {
        return strided::zeros(&a.device, dtype, elements);
    }
    fits_32_bits(op, a_layout)?;
    fits_32_bits(op, b_layout)?;
    // SAFETY: the library or the built-in kernels write every element.
    let dst = unsafe { RocmStorage::alloc(&a.device, dtype, elements, op)? };
    a.order_after(b)?;
    let own = |method: ConvMethod| match shape.direction {
        Direction::Output => output::compute(op, shape, operands, &dst, method),
        Direction::Input => input::compute(op, shape, operands, &dst, method),
        Direction::Weights => weights::compute(op, shape, operands, &dst),
    };
    let state = a.device.state();
    match state.convolution(shape)? {
        ConvBackend::Own(method) => own(method)?,
        ConvBackend::Library(plan) => {
            if !by_library(op, shape, &plan, operands, &dst)? {
                own(state.own_convolution(dtype))?;
            }
        }
        ConvBackend::Untuned(plans) => {
            state.tune_convolution(shape, &plans, |candidate| match candidate {
                Candidate::Own(method) => own(method).map(|()| true),
                Candidate::Library(plan) => by_library(op, shape, plan, operands, &dst),
            })?;
            // The candidate measured last may have failed, so the result is computed again.
            own(state.own_convolution(dtype))?;
        }
    }
    Ok(dst)
}

/// Calls the library, with copies of operands that are not dense. Returns false if it fails.
fn by_library(
    op: &'static str,
    shape: &ConvShape,
    plan: &Plan,
    operands: [Operand; 2],
    dst: &RocmStorage,
) -> Result<bool> {
    let [a, b] = operands;
    let (dense_a, dense_b) = (dense(op, a)?, dense(op, b)?);
    let pointers = [dense_a.ptr(op, a)?, dense_b.ptr(op, b)?];
    // SAFETY: only the library accesses the workspace.
    let workspace = unsafe { RocmStorage::alloc(&dst.device, DType::U8, plan.workspace(), op)? };
    let at = workspace.slice.ptr();
    // SAFETY: operands and result are dense and match the shape, and the workspace has the size of the plan.
    unsafe { dst.device.state().convolve_by_library(shape, plan, pointers, dst.slice.ptr(), at) }
}
