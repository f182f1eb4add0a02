//! Operations on each element by itself: unary, affine, powers, casts, binary, comparisons, where.
use super::error::{dtype_mismatch, unsupported_dtype};
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::{carrier, RocmStorage};
use crate::op::CmpOp;
use crate::scalar::Scalar;
use crate::{DType, Layout, Result};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::Module;

/// `kernel` of module unary on every element, with an optional parameter (elu's alpha, powf's exponent) in the
/// tensor's dtype. The result is dense.
pub(super) fn unary(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &'static str,
    parameter: Option<f64>,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, kernel)? };
    if elements == 0 {
        return Ok(dst);
    }
    let (from, to) = (src.ptr(layout, kernel)?, dst.slice.ptr());
    let strided = Strided::of(kernel, &[layout])?;
    let config = LaunchConfig::for_elements(kernel, elements)?;
    let function = src.device.kernel(Module::Unary, &[kernel, dtype.as_str()])?;
    let launch = function.launch(config).arg(&elements).strided(&strided);
    match parameter {
        // SAFETY: (numel, num_dims, info, inp, out); `from` was checked against its buffer.
        None => unsafe { launch.arg(&from).arg(&to).run()? },
        Some(value) => {
            let value = scalar(value, dtype, kernel)?;
            // SAFETY: (numel, num_dims, info, param, inp, out).
            unsafe { launch.scalar(&value).arg(&from).arg(&to).run()? }
        }
    }
    Ok(dst)
}

/// `x * mul + add`, computed in the tensor's dtype as on the CPU.
pub(super) fn affine(src: &RocmStorage, layout: &Layout, mul: f64, add: f64) -> Result<RocmStorage> {
    const OP: &str = "affine";
    let dtype = src.slice.dtype();
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let (mul, add) = (scalar(mul, dtype, OP)?, scalar(add, dtype, OP)?);
    let strided = Strided::of(OP, &[layout])?;
    let kernel = src.device.kernel(Module::Affine, &[OP, dtype.as_str()])?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&elements).strided(&strided).arg(&from).arg(&to);
    // SAFETY: affine(numel, num_dims, info, inp, out, mul, add).
    unsafe { launch.scalar(&mul).scalar(&add).run()? };
    Ok(dst)
}

/// Casts to `to`, as the CPU does: towards zero and to the nearest value that an integer can hold.
pub(super) fn cast(src: &RocmStorage, layout: &Layout, to: DType) -> Result<RocmStorage> {
    const OP: &str = "to_dtype";
    let from = src.slice.dtype();
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, to, elements, OP)? };
    let kernel = src.device.kernel(Module::Cast, &["cast", from.as_str(), to.as_str()])?;
    if elements == 0 {
        return Ok(dst);
    }
    let (inp, out) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let strided = Strided::of(OP, &[layout])?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    // SAFETY: cast(numel, num_dims, info, inp, out).
    unsafe { launch.arg(&elements).strided(&strided).arg(&inp).arg(&out).run()? };
    Ok(dst)
}

/// `kernel` of module binary on pairs of elements; the layouts have the same dims. `result` is the dtype of the
/// output, that of the inputs if `None`.
pub(super) fn binary(
    lhs: &RocmStorage,
    lhs_layout: &Layout,
    rhs: &RocmStorage,
    rhs_layout: &Layout,
    kernel: &'static str,
    result: Option<DType>,
) -> Result<RocmStorage> {
    let dtype = lhs.slice.dtype();
    if dtype != rhs.slice.dtype() {
        return Err(dtype_mismatch(kernel, dtype, rhs.slice.dtype()));
    }
    let elements = lhs_layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&lhs.device, result.unwrap_or(dtype), elements, kernel)? };
    if elements == 0 {
        return Ok(dst);
    }
    let (x, y, out) = (lhs.ptr(lhs_layout, kernel)?, rhs.ptr(rhs_layout, kernel)?, dst.slice.ptr());
    lhs.order_after(rhs)?;
    let strided = Strided::of(kernel, &[lhs_layout, rhs_layout])?;
    let function = lhs.device.kernel(Module::Binary, &[kernel, dtype.as_str()])?;
    let launch = function.launch(LaunchConfig::for_elements(kernel, elements)?);
    // SAFETY: (numel, num_dims, dims_and_strides, lhs, rhs, out); both inputs were checked against their buffers.
    unsafe { launch.arg(&elements).strided(&strided).arg(&x).arg(&y).arg(&out).run()? };
    Ok(dst)
}

pub(super) fn cmp_kernel(op: CmpOp) -> &'static str {
    match op {
        CmpOp::Eq => "eq",
        CmpOp::Ne => "ne",
        CmpOp::Lt => "lt",
        CmpOp::Le => "le",
        CmpOp::Gt => "gt",
        CmpOp::Ge => "ge",
    }
}

/// `t` where the condition is not zero, `f` elsewhere.
pub(super) fn where_cond(
    cond: &RocmStorage,
    cond_layout: &Layout,
    t: &RocmStorage,
    t_layout: &Layout,
    f: &RocmStorage,
    f_layout: &Layout,
) -> Result<RocmStorage> {
    const OP: &str = "where-cond";
    let condition = match cond.slice.dtype() {
        dtype @ (DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64) => dtype.as_str(),
        dtype => return Err(unsupported_dtype(OP, dtype)),
    };
    let dtype = t.slice.dtype();
    if dtype != f.slice.dtype() {
        return Err(dtype_mismatch(OP, dtype, f.slice.dtype()));
    }
    let elements = cond_layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&cond.device, dtype, elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    let (ids, out) = (cond.ptr(cond_layout, OP)?, dst.slice.ptr());
    let (on_true, on_false) = (t.ptr(t_layout, OP)?, f.ptr(f_layout, OP)?);
    cond.order_after(t)?;
    cond.order_after(f)?;
    let strided = Strided::of(OP, &[cond_layout, t_layout, f_layout])?;
    let kernel = cond.device.kernel(Module::Ternary, &["where", condition, carrier(dtype, OP)?])?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&elements).strided(&strided).arg(&ids).arg(&on_true).arg(&on_false);
    // SAFETY: where(numel, num_dims, info, ids, t, f, out); all inputs were checked against their buffers.
    unsafe { launch.arg(&out).run()? };
    Ok(dst)
}

/// `value` in the dtype of the tensor it meets.
fn scalar(value: f64, dtype: DType, op: &'static str) -> Result<Scalar> {
    use crate::WithDType;
    Ok(match dtype {
        DType::U8 => Scalar::U8(u8::from_f64(value)),
        DType::U32 => Scalar::U32(u32::from_f64(value)),
        DType::I16 => Scalar::I16(i16::from_f64(value)),
        DType::I32 => Scalar::I32(i32::from_f64(value)),
        DType::I64 => Scalar::I64(i64::from_f64(value)),
        DType::BF16 => Scalar::BF16(bf16::from_f64(value)),
        DType::F16 => Scalar::F16(f16::from_f64(value)),
        DType::F32 => Scalar::F32(value as f32),
        DType::F64 => Scalar::F64(value),
        DType::F8E4M3 => Scalar::F8E4M3(F8E4M3::from_f64(value)),
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
            return Err(unsupported_dtype(op, dtype))
        }
    })
}
