//! Elementwise operations: unary, affine, powers, casts, binary, comparisons, where.
use super::{computing, for_packs, found, strided, Operand};
use crate::op::{BackpropOp, BinaryOpT, CmpOp, UnaryOpT};
use crate::rocm_backend::device::{LaunchConfig, RocmDevice};
use crate::rocm_backend::error::{dtype_mismatch, unsupported_dtype};
use crate::rocm_backend::layout::{in_pieces, Strided};
use crate::rocm_backend::storage::{copy_element, is_packed, offset_by_elements, RocmStorage};
use crate::scalar::TensorScalar;
use crate::{DType, Layout, Result, Storage, Tensor};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{
    Affine, Binary, BinaryOp, Bits, Cast, CastForm, Clamp, DevicePtr, Element, Gated, GatedOp, KernelLayout,
    MultiplyAdd, SimpleUnary, Unary, UnaryOp, UnaryWithParameter, UnaryWithParameterOp, Where, ABS, ADD,
    CEIL, EQUAL, FLOOR, LESS, MAXIMUM, MINIMUM, MUL, NEG, NEITHER, RELU, ROUND, SIGN, SQR, SUB,
};

/// A unary operation: a separate kernel, or a function of the kernel that simple operations share.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum UnaryFunction {
    Own(UnaryOp),
    Simple(usize),
}

/// A binary operation: a kernel and its argument `function`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct BinaryFunction {
    pub(crate) kernel: BinaryOp,
    pub(crate) function: usize,
}

impl BinaryFunction {
    pub(crate) const ADD: Self = Self::arithmetic(ADD);
    pub(crate) const MUL: Self = Self::arithmetic(MUL);

    const fn arithmetic(function: usize) -> Self {
        Self { kernel: BinaryOp::Arithmetic, function }
    }
}

/// The contract's operation for one of upstream's operations, looked up at compile time.
pub(crate) struct ContractOp<T>(std::marker::PhantomData<T>);

impl<U: UnaryOpT> ContractOp<U> {
    /// The contract's unary operation. Its names lack upstream's leading u.
    pub(crate) const UNARY: UnaryFunction = {
        let name = U::KERNEL.split_at(1).1;
        match UnaryOp::of(name) {
            Some(op) => UnaryFunction::Own(op),
            None => UnaryFunction::Simple(match name.as_bytes() {
                b"abs" => ABS,
                b"relu" => RELU,
                b"sign" => SIGN,
                b"neg" => NEG,
                b"sqr" => SQR,
                b"ceil" => CEIL,
                b"floor" => FLOOR,
                b"round" => ROUND,
                _ => panic!("upstream has a unary operation that the kernels' contract lacks"),
            }),
        }
    };
}

impl<B: BinaryOpT> ContractOp<B> {
    pub(crate) const BINARY: BinaryFunction = match B::KERNEL.as_bytes() {
        b"badd" => BinaryFunction::ADD,
        b"bsub" => BinaryFunction::arithmetic(SUB),
        b"bmul" => BinaryFunction::MUL,
        b"bminimum" => BinaryFunction::arithmetic(MINIMUM),
        b"bmaximum" => BinaryFunction::arithmetic(MAXIMUM),
        b"bdiv" => BinaryFunction { kernel: BinaryOp::Divide, function: 0 },
        _ => panic!("upstream has a binary operation that the kernels' contract lacks"),
    };
}

/// Behavior of a unary operation on integers, as on the CPU device.
enum IntegerBehavior {
    /// Computed by a kernel.
    Computed,
    /// Returns the element.
    Identity,
    /// Always returns 0.
    Zero,
    Unsupported,
}

fn integer_behavior(function: UnaryFunction, signed: bool) -> IntegerBehavior {
    use UnaryFunction::{Own, Simple};
    use UnaryOp as U;
    match function {
        Simple(SIGN) => IntegerBehavior::Computed,
        Simple(ABS | RELU) if signed => IntegerBehavior::Computed,
        Simple(ABS | RELU | CEIL | FLOOR | ROUND) => IntegerBehavior::Identity,
        Own(U::Gelu | U::GeluErf | U::Erf | U::Silu) => IntegerBehavior::Zero,
        _ => IntegerBehavior::Unsupported,
    }
}

/// Applies upstream's operation `U` to every element. The result is dense. Operations that are undefined on integers
/// return an error for them.
pub(crate) fn unary<U: UnaryOpT>(src: &RocmStorage, layout: &Layout) -> Result<RocmStorage> {
    let op = U::NAME;
    let dtype = src.slice.dtype();
    let behavior = match dtype {
        DType::U8 | DType::U32 => integer_behavior(ContractOp::<U>::UNARY, false),
        DType::I16 | DType::I32 | DType::I64 => integer_behavior(ContractOp::<U>::UNARY, true),
        _ => IntegerBehavior::Computed,
    };
    match behavior {
        IntegerBehavior::Computed => run_unary(op, ContractOp::<U>::UNARY, src, layout),
        IntegerBehavior::Identity => strided::dense(src, layout, op),
        IntegerBehavior::Zero => strided::zeros_of(src, layout, op),
        IntegerBehavior::Unsupported => Err(unsupported_dtype(op, dtype)),
    }
}

/// Applies `function` to every element. Errors name the operation `op`. The result is dense and has the same dtype.
///
/// # Errors
/// [`crate::Error::UnsupportedDTypeForOp`] if there is no kernel for the dtype, or an error if memory runs out.
pub fn unary_function(
    src: &RocmStorage,
    layout: &Layout,
    function: UnaryOp,
    op: &'static str,
) -> Result<RocmStorage> {
    run_unary(op, UnaryFunction::Own(function), src, layout)
}

/// Arguments of a launch: number of elements, layout, addresses of the operands and of the result.
struct Elements<'a, const N: usize> {
    config: LaunchConfig,
    numel: usize,
    num_dims: usize,
    info: &'a KernelLayout,
    from: [DevicePtr; N],
    out: DevicePtr,
}

/// Allocates a dense result of `dtype` and calls `launch` for each piece of the operands, which are checked against their
/// buffers. `in_rows` must equal the template argument of the kernel's `map`.
#[inline]
fn map_elements<const N: usize>(
    op: &'static str,
    dtype: DType,
    operands: [Operand; N],
    in_rows: bool,
    launch: impl Fn(&RocmDevice, Elements<'_, N>) -> Result<()>,
) -> Result<RocmStorage> {
    let (head, layout) = operands[0];
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&head.device, dtype, layout.shape().elem_count(), op)? };
    map_elements_to(op, dtype, operands, in_rows, dst.slice.ptr(), launch)?;
    Ok(dst)
}

/// Minimum number of elements for which a transposed operand is first copied: its strided accesses then cost more than the
/// copy, which is coalesced on both sides.
const MIN_TRANSPOSED: usize = 1 << 18;

/// Returns true if reading `layout` in row-major order is much slower than transposing it first.
fn is_slow_to_read(op: &'static str, layout: &Layout) -> bool {
    layout.shape().elem_count() >= MIN_TRANSPOSED
        && !layout.is_contiguous()
        && !layout.stride().contains(&0)
        && Strided::of(op, &[layout]).is_ok_and(|strided| strided.transposition().is_some())
}

/// Like [`map_elements`], to existing memory, which may be that of a dense operand.
#[inline]
fn map_elements_to<const N: usize>(
    op: &'static str,
    dtype: DType,
    operands: [Operand; N],
    in_rows: bool,
    to: DevicePtr,
    launch: impl Fn(&RocmDevice, Elements<'_, N>) -> Result<()>,
) -> Result<()> {
    let (head, layout) = operands[0];
    operands[1..].iter().try_for_each(|(other, _)| head.order_after(other))?;
    let mut copies = [const { None }; N];
    for (copy, (x, layout)) in copies.iter_mut().zip(&operands) {
        if is_slow_to_read(op, layout) {
            *copy = Some(strided::dense(x, layout, op)?);
        }
    }
    // A layout allocates.
    let dense = copies.iter().any(Option::is_some).then(|| Layout::contiguous(layout.shape()));
    let operands: [Operand; N] = std::array::from_fn(|i| match (&copies[i], &dense) {
        (Some(copy), Some(dense)) => (copy, dense),
        _ => operands[i],
    });
    let mut sizes = [dtype.size_in_bytes(); 4];
    sizes[1..].iter_mut().zip(&operands).for_each(|(size, (x, _))| *size = x.slice.dtype().size_in_bytes());
    let lists = if in_rows { N } else { 0 };
    in_pieces(op, operands.map(|(_, layout)| layout), |layouts, strided, first, numel| {
        let mut from = [DevicePtr::NULL; N];
        for ((from, (x, _)), layout) in from.iter_mut().zip(&operands).zip(layouts) {
            *from = x.ptr(layout, op)?;
        }
        let config = for_packs(op, numel, strided, &sizes[..=N], lists)?;
        let Strided { num_dims, layout: info } = strided;
        let out = offset_by_elements(to, dtype, first);
        launch(&head.device, Elements { config, numel, num_dims: *num_dims, info, from, out })
    })
}

/// Launches a kernel of an elementwise family. The identifiers are the family's operands, then its other arguments.
macro_rules! map {
    ($family:ident { $($from:ident),+ $(; $($more:ident),+)? }, $kernel:ident, $op:expr, $dtype:expr, $operands:expr, $in_rows:literal) => {
        map_elements($op, $dtype, $operands, $in_rows, |device, e| {
            let Elements { config, numel, num_dims, info, from: [$($from),+], out } = e;
            let arguments = $family { numel, num_dims, info, $($from,)+ out $(, $($more),+)? };
            // SAFETY: `map_elements` has checked the operands and allocated `out`.
            unsafe { device.launch($kernel, config, &arguments) }
        })
    };
}

/// Adds `rhs` in place to a dense storage of shape `dims`. `layout` must have the same dims.
pub(crate) fn add_to(
    dst: &mut RocmStorage,
    dims: &[usize],
    rhs: &RocmStorage,
    layout: &Layout,
) -> Result<()> {
    const OP: &str = "add";
    let dtype = dst.slice.dtype();
    let BinaryFunction { kernel, function } = BinaryFunction::ADD;
    let kernel = found(Binary::kernel(kernel, computing(OP, dtype)?), OP, dtype)?;
    let (own, to) = (Layout::contiguous(dims), dst.slice.ptr());
    map_elements_to(OP, dtype, [(&*dst, &own), (rhs, layout)], true, to, |device, e| {
        let Elements { config, numel, num_dims, info, from: [lhs, rhs], out } = e;
        // SAFETY: `map_elements_to` has checked the operands; each thread reads its elements before it writes them.
        unsafe { device.launch(kernel, config, &Binary { numel, num_dims, info, function, lhs, rhs, out }) }
    })
}

/// Launches a unary kernel. The result is dense and has the same dtype.
fn run_unary(
    op: &'static str,
    function: UnaryFunction,
    src: &RocmStorage,
    layout: &Layout,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let element = computing(op, dtype)?;
    match function {
        UnaryFunction::Own(function) => {
            let kernel = found(Unary::kernel(function, element), op, dtype)?;
            map!(Unary { inp }, kernel, op, dtype, [(src, layout)], false)
        }
        UnaryFunction::Simple(function) => {
            let kernel = found(SimpleUnary::kernel(element), op, dtype)?;
            map!(SimpleUnary { inp; function }, kernel, op, dtype, [(src, layout)], false)
        }
    }
}

/// Applies a function with a parameter, elu or powf. The parameter is first rounded to the tensor's dtype.
pub(crate) fn with_parameter(
    src: &RocmStorage,
    layout: &Layout,
    function: UnaryWithParameterOp,
    op: &'static str,
    parameter: f64,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let kernel = UnaryWithParameter::kernel(function, computing(op, dtype)?);
    let kernel = found(kernel, op, dtype)?;
    let param = bits(parameter, dtype, op)?;
    map!(UnaryWithParameter { inp; param }, kernel, op, dtype, [(src, layout)], false)
}

/// Computes `x * mul + add` in the tensor's dtype, as on the CPU.
pub(crate) fn affine(src: &RocmStorage, layout: &Layout, mul: f64, add: f64) -> Result<RocmStorage> {
    const OP: &str = "affine";
    let dtype = src.slice.dtype();
    let (mul, add) = (bits(mul, dtype, OP)?, bits(add, dtype, OP)?);
    let kernel = found(Affine::kernel(computing(OP, dtype)?), OP, dtype)?;
    map!(Affine { inp; mul, add }, kernel, OP, dtype, [(src, layout)], true)
}

/// Computes `minimum(maximum(x, low), high)` in one launch if both are scalars. Returns `None` for tensors, on other devices,
/// and if gradients are tracked; upstream's operations must be used then.
///
/// # Errors
/// If the dtype has no kernel, or memory runs out.
pub(crate) fn clamp(x: &Tensor, low: &TensorScalar, high: &TensorScalar) -> Result<Option<Tensor>> {
    const OP: &str = "clamp";
    let (TensorScalar::Scalar(low), TensorScalar::Scalar(high)) = (low, high) else { return Ok(None) };
    if x.track_op() || x.elem_count() == 0 {
        return Ok(None);
    }
    let (storage, layout) = x.storage_and_layout();
    let Storage::Rocm(storage) = &*storage else { return Ok(None) };
    let dtype = x.dtype();
    let kernel = found(Clamp::kernel(computing(OP, dtype)?), OP, dtype)?;
    let (low, high) = (scalar_bits(low, dtype, OP)?, scalar_bits(high, dtype, OP)?);
    let clamped = map!(Clamp { inp; low, high }, kernel, OP, dtype, [(storage, layout)], true)?;
    let clamped = Storage::Rocm(clamped);
    Ok(Some(crate::tensor::from_storage(clamped, x.shape(), BackpropOp::none(), false)))
}

/// Converts a scalar on the CPU to `dtype`, as [`Tensor::to_dtype`] does, and returns its bits.
fn scalar_bits(scalar: &Tensor, dtype: DType, op: &'static str) -> Result<Bits> {
    let scalar = scalar.to_dtype(dtype)?;
    match dtype {
        DType::I64 => Ok(Bits(scalar.to_scalar::<i64>()? as u64)),
        // f64 represents all values of the other dtypes.
        _ => bits(scalar.to_dtype(DType::F64)?.to_scalar()?, dtype, op),
    }
}

/// Casts to `to`, as on the CPU: floats are truncated toward zero and saturate at the range of an integer.
pub(crate) fn cast(src: &RocmStorage, layout: &Layout, to: DType) -> Result<RocmStorage> {
    const OP: &str = "to_dtype";
    let from = src.slice.dtype();
    // If both dtypes are packed, the error names the target, as on the CPU device.
    let (to_element, from_element) = (computing(OP, to)?, computing(OP, from)?);
    if from == to {
        return strided::dense(src, layout, OP);
    }
    let ((from, number, _), (to_form, to_number, count)) = (cast_form(from_element), cast_form(to_element));
    let kernel = found(Cast::kernel(from, to_form), OP, to)?;
    let pair = number * count + to_number;
    map!(Cast { inp; pair }, kernel, OP, to, [(src, layout)], true)
}

/// Returns the form of a dtype in the kernels of conversions, its number among the dtypes of this form, and their count.
fn cast_form(element: Element) -> (CastForm, usize, usize) {
    match element {
        Element::U8 => (CastForm::U8, 0, 1),
        Element::F8e4m3 => (CastForm::F8e4m3, 0, 1),
        Element::I16 => (CastForm::B2, 0, 3),
        Element::Bf16 => (CastForm::B2, 1, 3),
        Element::F16 => (CastForm::B2, 2, 3),
        Element::U32 => (CastForm::B4, 0, 3),
        Element::I32 => (CastForm::B4, 1, 3),
        Element::F32 => (CastForm::B4, 2, 3),
        Element::I64 => (CastForm::B8, 0, 2),
        Element::F64 => (CastForm::B8, 1, 2),
    }
}

/// Applies upstream's operation `B` to pairs of elements. The layouts must have the same dims.
pub(crate) fn binary<B: BinaryOpT>(lhs: Operand, rhs: Operand) -> Result<RocmStorage> {
    zip(B::NAME, ContractOp::<B>::BINARY, [lhs, rhs], None)
}

/// Compares pairs of elements. Returns u8: 1 if the comparison is true, otherwise 0. The layouts must have the same dims.
pub(crate) fn compare(op: CmpOp, lhs: Operand, rhs: Operand) -> Result<RocmStorage> {
    let (function, operands) = match op {
        CmpOp::Eq => (EQUAL, [lhs, rhs]),
        CmpOp::Ne => (LESS | NEITHER, [lhs, rhs]),
        CmpOp::Lt => (LESS, [lhs, rhs]),
        CmpOp::Le => (LESS | EQUAL, [lhs, rhs]),
        CmpOp::Gt => (LESS, [rhs, lhs]),
        CmpOp::Ge => (LESS | EQUAL, [rhs, lhs]),
    };
    // Errors name the operands in the given order.
    dtype_of_both(lhs.0, rhs.0, "cmp")?;
    zip("cmp", BinaryFunction { kernel: BinaryOp::Compare, function }, operands, Some(DType::U8))
}

/// Launches a binary kernel. The result is dense and has the dtype `result`, or that of the operands.
fn zip(
    op: &'static str,
    BinaryFunction { kernel, function }: BinaryFunction,
    operands: [Operand; 2],
    result: Option<DType>,
) -> Result<RocmStorage> {
    let dtype = dtype_of_both(operands[0].0, operands[1].0, op)?;
    let kernel = found(Binary::kernel(kernel, computing(op, dtype)?), op, dtype)?;
    map!(Binary { lhs, rhs; function }, kernel, op, result.unwrap_or(dtype), operands, true)
}

/// Computes `silu(lhs) * rhs` on floats, with both steps rounded. The layouts must have the same dims; the result is dense.
///
/// # Errors
/// If the dtypes differ or are not floats, or memory runs out.
pub fn swiglu(
    lhs: &RocmStorage,
    lhs_layout: &Layout,
    rhs: &RocmStorage,
    rhs_layout: &Layout,
) -> Result<RocmStorage> {
    gated("swiglu", GatedOp::Swiglu, [(lhs, lhs_layout), (rhs, rhs_layout)])
}

/// Like [`swiglu`], for `gelu_erf(lhs) * rhs`.
///
/// # Errors
/// See [`swiglu`].
pub fn geglu(
    lhs: &RocmStorage,
    lhs_layout: &Layout,
    rhs: &RocmStorage,
    rhs_layout: &Layout,
) -> Result<RocmStorage> {
    gated("geglu", GatedOp::Geglu, [(lhs, lhs_layout), (rhs, rhs_layout)])
}

fn gated(op: &'static str, kind: GatedOp, operands: [Operand; 2]) -> Result<RocmStorage> {
    let dtype = dtype_of_both(operands[0].0, operands[1].0, op)?;
    let kernel = found(Gated::kernel(kind, computing(op, dtype)?), op, dtype)?;
    map!(Gated { lhs, rhs }, kernel, op, dtype, operands, true)
}

/// Computes `a + b * c` if `multiplies` is true, and otherwise `a + b + c`, in f32, rounded once. `b` and `c` are broadcast to
/// the shape of `a`. Returns `None` if separate operations must be used: on other devices, if gradients are tracked, and for
/// dtypes other than f16, bf16 and f32.
///
/// # Errors
/// If shapes do not match, or memory runs out.
pub fn multiply_add(a: &Tensor, b: &Tensor, c: &Tensor, multiplies: bool) -> Result<Option<Tensor>> {
    const OP: &str = "multiply-add";
    let (dtype, all) = (a.dtype(), [a, b, c]);
    let has_kernel = matches!(dtype, DType::F16 | DType::BF16 | DType::F32) && a.elem_count() > 0;
    if !has_kernel || all.iter().any(|x| x.track_op() || x.dtype() != dtype) {
        return Ok(None);
    }
    let (b_layout, c_layout) = (b.layout().broadcast_as(a.shape())?, c.layout().broadcast_as(a.shape())?);
    let (a_storage, b_storage, c_storage) = (a.storage(), b.storage(), c.storage());
    let (Storage::Rocm(xs), Storage::Rocm(ys), Storage::Rocm(zs)) = (&*a_storage, &*b_storage, &*c_storage)
    else {
        return Ok(None);
    };
    let kernel = found(MultiplyAdd::kernel(computing(OP, dtype)?), OP, dtype)?;
    let operands: [Operand; 3] = [(xs, a.layout()), (ys, &b_layout), (zs, &c_layout)];
    let dst = map!(MultiplyAdd { a, b, c; multiplies }, kernel, OP, dtype, operands, true)?;
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), a.shape(), BackpropOp::none(), false)))
}

/// Returns the common dtype of both operands. Packed dtypes are a mismatch too, as on the CPU device.
fn dtype_of_both(lhs: &RocmStorage, rhs: &RocmStorage, op: &'static str) -> Result<DType> {
    let (lhs, rhs) = (lhs.slice.dtype(), rhs.slice.dtype());
    if lhs == rhs && !is_packed(lhs) {
        Ok(lhs)
    } else {
        Err(dtype_mismatch(op, lhs, rhs))
    }
}

/// Selects elements of `t` where the condition is not zero, and of `f` elsewhere.
pub(crate) fn where_cond(operands: [Operand; 3]) -> Result<RocmStorage> {
    const OP: &str = "where-cond";
    let [condition, t, f] = operands.map(|(storage, _)| storage);
    let condition = condition.slice.dtype();
    let condition_element = computing(OP, condition)?;
    // The dtype of the condition is checked first, so that errors equal those of the CPU device.
    let kernel = found(Where::kernel(condition_element, copy_element(t.slice.dtype())), OP, condition)?;
    let dtype = dtype_of_both(t, f, OP)?;
    map!(Where { ids, t, f }, kernel, OP, dtype, operands, true)
}

/// Converts `value` to `dtype` and returns its bits.
fn bits(value: f64, dtype: DType, op: &'static str) -> Result<Bits> {
    use crate::WithDType;
    Ok(Bits(match dtype {
        DType::U8 => u8::from_f64(value).into(),
        DType::U32 => u32::from_f64(value).into(),
        DType::I16 => (i16::from_f64(value) as u16).into(),
        DType::I32 => (i32::from_f64(value) as u32).into(),
        DType::I64 => i64::from_f64(value) as u64,
        DType::BF16 => bf16::from_f64(value).to_bits().into(),
        DType::F16 => f16::from_f64(value).to_bits().into(),
        DType::F32 => (value as f32).to_bits().into(),
        DType::F64 => value.to_bits(),
        DType::F8E4M3 => F8E4M3::from_f64(value).to_bits().into(),
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
            return Err(unsupported_dtype(op, dtype))
        }
    }))
}
