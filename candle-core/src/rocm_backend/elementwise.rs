//! Operations on each element by itself: unary, affine, powers, casts, binary, comparisons, where.
use super::error::{dtype_mismatch, unsupported_dtype};
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::{carrier, is_packed, RocmStorage};
use super::strided;
use crate::op::CmpOp;
use crate::scalar::Scalar;
use crate::{DType, Layout, Result};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::Module;

/// What a function of one element is for integers on the CPU device.
enum OfIntegers {
    /// One that has a kernel.
    Computed,
    /// The element itself.
    Identity,
    /// 0, for whatever element.
    Zero,
    Refused,
}

fn of_integers(kernel: &str, signed: bool) -> OfIntegers {
    match kernel {
        "usign" => OfIntegers::Computed,
        "uabs" | "urelu" if signed => OfIntegers::Computed,
        "uabs" | "urelu" | "uceil" | "ufloor" | "uround" => OfIntegers::Identity,
        "ugelu" | "ugelu_erf" | "uerf" | "usilu" => OfIntegers::Zero,
        _ => OfIntegers::Refused,
    }
}

/// `kernel` of module unary on every element, with an optional parameter (elu's alpha, powf's exponent) in the
/// tensor's dtype. The result is dense. Functions that have no meaning for integers refuse them, as `op`.
pub(super) fn unary(
    src: &RocmStorage,
    layout: &Layout,
    op: &'static str,
    kernel: &'static str,
    parameter: Option<f64>,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let of_integers = match dtype {
        DType::U8 | DType::U32 => of_integers(kernel, false),
        DType::I16 | DType::I32 | DType::I64 => of_integers(kernel, true),
        dtype if is_packed(dtype) => OfIntegers::Refused,
        _ => OfIntegers::Computed,
    };
    let names = match of_integers {
        OfIntegers::Computed => [kernel, dtype.as_str()],
        OfIntegers::Identity => ["ucopy", carrier(dtype)],
        OfIntegers::Zero => return strided::zeros_of(src, layout, op),
        OfIntegers::Refused => return Err(unsupported_dtype(op, dtype)),
    };
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, op)? };
    if elements == 0 {
        return Ok(dst);
    }
    let (from, to) = (src.ptr(layout, op)?, dst.slice.ptr());
    let strided = Strided::of(op, &[layout])?;
    let config = LaunchConfig::for_elements(op, elements)?;
    let function = src.device.kernel(Module::Unary, &names)?;
    let launch = function.launch(config).arg(&elements).strided(&strided);
    match parameter {
        // SAFETY: (numel, num_dims, info, inp, out); `from` was checked against its buffer.
        None => unsafe { launch.arg(&from).arg(&to).run()? },
        Some(value) => {
            let value = scalar(value, dtype, op)?;
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
    let (mul, add) = (scalar(mul, dtype, OP)?, scalar(add, dtype, OP)?);
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
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
    if let Some(&packed) = [to, from].iter().find(|&&dtype| is_packed(dtype)) {
        return Err(unsupported_dtype(OP, packed));
    }
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, to, elements, OP)? };
    let kernel = src.device.kernel(Module::Cast, &["cast", from.as_str(), to.as_str()])?;
    if elements == 0 {
        return Ok(dst);
    }
    let (inp, out) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let strided = Strided::of(OP, &[layout])?;
    // As CastPack in cast.cu.
    let width = (16 / from.size_in_bytes().max(to.size_in_bytes())).min(8);
    let launch = kernel.launch(LaunchConfig::for_packs(OP, elements, &strided, width)?);
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
    op: &'static str,
    kernel: &'static str,
    result: Option<DType>,
) -> Result<RocmStorage> {
    let dtype = computing_dtype(lhs, rhs, op)?;
    let elements = lhs_layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&lhs.device, result.unwrap_or(dtype), elements, op)? };
    if elements == 0 {
        return Ok(dst);
    }
    let (x, y, out) = (lhs.ptr(lhs_layout, op)?, rhs.ptr(rhs_layout, op)?, dst.slice.ptr());
    lhs.order_after(rhs)?;
    let strided = Strided::of(op, &[lhs_layout, rhs_layout])?;
    let function = lhs.device.kernel(Module::Binary, &[kernel, dtype.as_str()])?;
    let launch =
        function.launch(LaunchConfig::for_packs(op, elements, &strided, 16 / dtype.size_in_bytes())?);
    // SAFETY: (numel, num_dims, dims_and_strides, lhs, rhs, out); both inputs were checked against their buffers.
    unsafe { launch.arg(&elements).strided(&strided).arg(&x).arg(&y).arg(&out).run()? };
    Ok(dst)
}

/// The dtype of both operands. Two of a packed dtype mismatch as well: that is what the CPU device says of them.
fn computing_dtype(lhs: &RocmStorage, rhs: &RocmStorage, op: &'static str) -> Result<DType> {
    let (lhs, rhs) = (lhs.slice.dtype(), rhs.slice.dtype());
    if lhs == rhs && !is_packed(lhs) {
        Ok(lhs)
    } else {
        Err(dtype_mismatch(op, lhs, rhs))
    }
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
    let dtype = computing_dtype(t, f, OP)?;
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
    let kernel = cond.device.kernel(Module::Ternary, &["where", condition, carrier(dtype)])?;
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
