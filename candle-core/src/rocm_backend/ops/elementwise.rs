//! Operations on each element by itself: unary, affine, powers, casts, binary, comparisons, where.
use super::{computing, for_packs, found, strided, Operand};
use crate::op::{BinaryOpT, CmpOp, UnaryOpT};
use crate::rocm_backend::device::{LaunchConfig, RocmDevice};
use crate::rocm_backend::error::{dtype_mismatch, unsupported_dtype};
use crate::rocm_backend::layout::{in_pieces, Strided};
use crate::rocm_backend::storage::{carrier, is_packed, offset_by_elements, RocmStorage};
use crate::{DType, Layout, Result};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{
    Affine, Binary, BinaryOp, Bits, Cast, DevicePtr, KernelLayout, KernelOf, Swiglu, Unary, UnaryOp,
    UnaryWithParameter, UnaryWithParameterOp, Where,
};

/// The contract's operation for one of upstream's, found when this is compiled.
pub(crate) struct ContractOp<T>(std::marker::PhantomData<T>);

impl<U: UnaryOpT> ContractOp<U> {
    /// The contract names its functions without upstream's leading u.
    pub(crate) const UNARY: UnaryOp = match UnaryOp::of(U::KERNEL.split_at(1).1) {
        Some(op) => op,
        None => panic!("upstream has a unary operation that the kernels' contract lacks"),
    };
}

impl<B: BinaryOpT> ContractOp<B> {
    pub(crate) const BINARY: BinaryOp = match BinaryOp::of(B::KERNEL) {
        Some(op) => op,
        None => panic!("upstream has a binary operation that the kernels' contract lacks"),
    };
}

/// Behaviour of a function of one element for integers on the CPU device.
enum OfIntegers {
    /// One that has a kernel.
    Computed,
    /// The element itself.
    Identity,
    /// 0, for whatever element.
    Zero,
    Refused,
}

fn of_integers(op: UnaryOp, signed: bool) -> OfIntegers {
    use UnaryOp as U;
    match op {
        U::Sign => OfIntegers::Computed,
        U::Abs | U::Relu if signed => OfIntegers::Computed,
        U::Abs | U::Relu | U::Ceil | U::Floor | U::Round => OfIntegers::Identity,
        U::Gelu | U::GeluErf | U::Erf | U::Silu => OfIntegers::Zero,
        _ => OfIntegers::Refused,
    }
}

/// Upstream's operation `U` on every element. The result is dense. Functions that have no meaning for integers refuse
/// them.
pub(crate) fn unary<U: UnaryOpT>(src: &RocmStorage, layout: &Layout) -> Result<RocmStorage> {
    let op = U::NAME;
    let dtype = src.slice.dtype();
    let of_integers = match dtype {
        DType::U8 | DType::U32 => of_integers(ContractOp::<U>::UNARY, false),
        DType::I16 | DType::I32 | DType::I64 => of_integers(ContractOp::<U>::UNARY, true),
        _ => OfIntegers::Computed,
    };
    let kernel = match of_integers {
        OfIntegers::Computed => Unary::kernel(ContractOp::<U>::UNARY, computing(op, dtype)?),
        OfIntegers::Identity => return strided::dense(src, layout, op),
        OfIntegers::Zero => return strided::zeros_of(src, layout, op),
        OfIntegers::Refused => None,
    };
    run_unary(op, found(kernel, op, dtype)?, src, layout)
}

/// A function of every element by its kernel, with errors that name `op`. The result is dense and of the same dtype.
///
/// # Errors
/// [`crate::Error::UnsupportedDTypeForOp`] if there is no such kernel, or if there is no memory for the result.
pub fn unary_function(
    src: &RocmStorage,
    layout: &Layout,
    function: UnaryOp,
    op: &'static str,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let kernel = Unary::kernel(function, computing(op, dtype)?);
    run_unary(op, found(kernel, op, dtype)?, src, layout)
}

/// Operands of a launch: number of elements, where those of each operand lie, and where the result goes.
struct Elements<'a, const N: usize> {
    config: LaunchConfig,
    numel: usize,
    num_dims: usize,
    info: &'a KernelLayout,
    from: [DevicePtr; N],
    out: DevicePtr,
}

/// A dense result of `dtype`, each element of which `launch` computes from one of each operand. It is called once for
/// every piece of the operands, which were checked against their buffers. `in_rows` is what the kernel's `map` has.
#[inline]
fn each<const N: usize>(
    op: &'static str,
    dtype: DType,
    operands: [Operand; N],
    in_rows: bool,
    launch: impl Fn(&RocmDevice, Elements<'_, N>) -> Result<()>,
) -> Result<RocmStorage> {
    let (head, layout) = operands[0];
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&head.device, dtype, layout.shape().elem_count(), op)? };
    each_to(op, dtype, operands, in_rows, dst.slice.ptr(), launch)?;
    Ok(dst)
}

/// Like [`each`], to memory that is there: also that of an operand that lies there just as densely.
#[inline]
fn each_to<const N: usize>(
    op: &'static str,
    dtype: DType,
    operands: [Operand; N],
    in_rows: bool,
    to: DevicePtr,
    launch: impl Fn(&RocmDevice, Elements<'_, N>) -> Result<()>,
) -> Result<()> {
    let (head, _) = operands[0];
    operands[1..].iter().try_for_each(|(other, _)| head.order_after(other))?;
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

/// Computes each element by a kernel of a family, whose operands are named as the family does; other arguments follow.
macro_rules! map {
    ($family:ident { $($from:ident),+ $(; $($more:ident),+)? }, $kernel:ident, $op:expr, $dtype:expr, $operands:expr, $in_rows:literal) => {
        each($op, $dtype, $operands, $in_rows, |device, e| {
            let Elements { config, numel, num_dims, info, from: [$($from),+], out } = e;
            let arguments = $family { numel, num_dims, info, $($from,)+ out $(, $($more),+)? };
            // SAFETY: `each` has checked the operands, and `out` has room.
            unsafe { device.launch($kernel, config, &arguments) }
        })
    };
}

/// Adds `rhs` to a storage of dense elements `dims` that nobody else has; its layout has the same dims.
pub(crate) fn add_to(
    dst: &mut RocmStorage,
    dims: &[usize],
    rhs: &RocmStorage,
    layout: &Layout,
) -> Result<()> {
    const OP: &str = "add";
    let dtype = dst.slice.dtype();
    let kernel = found(Binary::kernel(BinaryOp::Badd, computing(OP, dtype)?), OP, dtype)?;
    let (own, to) = (Layout::contiguous(dims), dst.slice.ptr());
    each_to(OP, dtype, [(&*dst, &own), (rhs, layout)], true, to, |device, e| {
        let Elements { config, numel, num_dims, info, from: [lhs, rhs], out } = e;
        // SAFETY: `each_to` has checked the operands; a thread reads the elements that it writes before it does.
        unsafe { device.launch(kernel, config, &Binary { numel, num_dims, info, lhs, rhs, out }) }
    })
}

/// One of the kernels of a single operand. The result is dense and of the same dtype.
fn run_unary(
    op: &'static str,
    kernel: KernelOf<Unary<'static>>,
    src: &RocmStorage,
    layout: &Layout,
) -> Result<RocmStorage> {
    map!(Unary { inp }, kernel, op, src.slice.dtype(), [(src, layout)], false)
}

/// A function of each element and a parameter, which is rounded to the tensor's dtype first: elu and powf.
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

/// `x * mul + add`, computed in the tensor's dtype as on the CPU.
pub(crate) fn affine(src: &RocmStorage, layout: &Layout, mul: f64, add: f64) -> Result<RocmStorage> {
    const OP: &str = "affine";
    let dtype = src.slice.dtype();
    let (mul, add) = (bits(mul, dtype, OP)?, bits(add, dtype, OP)?);
    let kernel = found(Affine::kernel(computing(OP, dtype)?), OP, dtype)?;
    map!(Affine { inp; mul, add }, kernel, OP, dtype, [(src, layout)], true)
}

/// Casts to `to`, as the CPU does: towards zero and to the nearest value that an integer can hold.
pub(crate) fn cast(src: &RocmStorage, layout: &Layout, to: DType) -> Result<RocmStorage> {
    const OP: &str = "to_dtype";
    let from = src.slice.dtype();
    // Of two that are packed the target is named, as on the CPU device.
    let (to_element, from_element) = (computing(OP, to)?, computing(OP, from)?);
    if from == to {
        return strided::dense(src, layout, OP);
    }
    let kernel = found(Cast::kernel(from_element, to_element), OP, to)?;
    map!(Cast { inp }, kernel, OP, to, [(src, layout)], true)
}

/// Upstream's operation `B` on pairs of elements; the layouts have the same dims.
pub(crate) fn binary<B: BinaryOpT>(lhs: Operand, rhs: Operand) -> Result<RocmStorage> {
    zip(B::NAME, ContractOp::<B>::BINARY, [lhs, rhs], None)
}

/// 1 in u8 where the comparison holds, 0 elsewhere; the layouts have the same dims.
pub(crate) fn compare(op: CmpOp, lhs: Operand, rhs: Operand) -> Result<RocmStorage> {
    let op = match op {
        CmpOp::Eq => BinaryOp::Eq,
        CmpOp::Ne => BinaryOp::Ne,
        CmpOp::Lt => BinaryOp::Lt,
        CmpOp::Le => BinaryOp::Le,
        CmpOp::Gt => BinaryOp::Gt,
        CmpOp::Ge => BinaryOp::Ge,
    };
    zip("cmp", op, [lhs, rhs], Some(DType::U8))
}

/// One of the kernels of two operands. The result is dense, of their dtype if no other is given.
fn zip(
    op: &'static str,
    function: BinaryOp,
    operands: [Operand; 2],
    result: Option<DType>,
) -> Result<RocmStorage> {
    let dtype = dtype_of_both(operands[0].0, operands[1].0, op)?;
    let kernel = found(Binary::kernel(function, computing(op, dtype)?), op, dtype)?;
    map!(Binary { lhs, rhs }, kernel, op, result.unwrap_or(dtype), operands, true)
}

/// `silu(lhs) * rhs`, each rounded, for floats; the layouts have the same dims. The result is dense.
///
/// # Errors
/// If the dtypes differ or are no floats, or if there is no memory for the result.
pub fn swiglu(
    lhs: &RocmStorage,
    lhs_layout: &Layout,
    rhs: &RocmStorage,
    rhs_layout: &Layout,
) -> Result<RocmStorage> {
    const OP: &str = "swiglu";
    let dtype = dtype_of_both(lhs, rhs, OP)?;
    let kernel = found(Swiglu::kernel(computing(OP, dtype)?), OP, dtype)?;
    map!(Swiglu { lhs, rhs }, kernel, OP, dtype, [(lhs, lhs_layout), (rhs, rhs_layout)], true)
}

/// The dtype of both operands. Two of a packed dtype mismatch as well: that is what the CPU device says of them.
fn dtype_of_both(lhs: &RocmStorage, rhs: &RocmStorage, op: &'static str) -> Result<DType> {
    let (lhs, rhs) = (lhs.slice.dtype(), rhs.slice.dtype());
    if lhs == rhs && !is_packed(lhs) {
        Ok(lhs)
    } else {
        Err(dtype_mismatch(op, lhs, rhs))
    }
}

/// `t` where the condition is not zero, `f` elsewhere.
pub(crate) fn where_cond(operands: [Operand; 3]) -> Result<RocmStorage> {
    const OP: &str = "where-cond";
    let [condition, t, f] = operands.map(|(storage, _)| storage);
    let condition = condition.slice.dtype();
    let condition_element = computing(OP, condition)?;
    // Dtypes that are no condition are refused before those of the operands are compared.
    let kernel = found(Where::kernel(condition_element, carrier(t.slice.dtype())), OP, condition)?;
    let dtype = dtype_of_both(t, f, OP)?;
    map!(Where { ids, t, f }, kernel, OP, dtype, operands, true)
}

/// `value` in the dtype of the tensor it meets.
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
