//! Operations on quantized tensors of every block format.
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::quantized::GgmlDType::{self, *};
use candle_core::quantized::rocm::block_types;
use candle_core::quantized::{QMatMul, QStorage, QTensor};
use candle_core::rocm::hip_kernels::contract::{Quantize, QuantizeKind};
use candle_core::{D, DType, Device, Error, Module, Result, Tensor};

use super::{Calls, Launches, Op, Plan, at_most};
use crate::case::{Case, Operand};
use crate::compare::Bound;
use crate::strategy::Choices;
use crate::values::Domain;

pub fn ops() -> Vec<Op> {
    type Family<'a> = (fn(GgmlDType) -> Op, &'a [GgmlDType]);
    let is_weighted = |format| Quantize::kernel(QuantizeKind::QuantizeWeighted, format).is_some();
    let weighted: Vec<_> =
        block_types().filter(|(_, format)| is_weighted(*format)).map(|(kind, _)| kind).collect();
    let blocks: Vec<_> = block_types().map(|(kind, _)| kind).collect();
    let kinds = [&blocks[..], &[F32, F16, BF16]].concat();
    let families: [Family; 8] = [
        (quantize, &kinds),
        (quantize_imatrix, &weighted),
        (dequantize, &kinds),
        (dequantize_f16, &kinds),
        (embedding, &kinds),
        (product, &kinds),
        (product_via_f16, &kinds),
        (experts, &blocks),
    ];
    let ops = families.iter().flat_map(|(family, kinds)| kinds.iter().map(|kind| family(*kind)));
    ops.map(|op| op.on(domain)).collect()
}

/// Domain of finite numbers: blocks cannot represent NaN or infinities.
fn domain(case: &Case, operand: usize) -> Domain {
    match case.operands[operand].name.as_str() {
        "ids" => Domain::Index(case.dims(0)[0]),
        _ => Domain::Finite(8.0),
    }
}

fn name(family: &str, kind: GgmlDType) -> String {
    format!("{family}/{}", format!("{kind:?}").to_lowercase())
}

/// Number of columns of a small matrix.
fn columns(kind: GgmlDType) -> usize {
    kind.block_size().max(64)
}

/// Returns true if the CPU device's product panics in a build with debug assertions, because a row has an odd
/// number of blocks. Padding with a block of zeros avoids the panic and does not change the product.
fn cpu_product_panics(kind: GgmlDType, w: &Tensor) -> Result<bool> {
    Ok(kind.block_size() == 32 && w.dim(D::Minus1)? / 32 % 2 == 1)
}

/// Returns a number of columns of a few blocks, seldom with a partial block.
fn some_columns(c: &mut Choices, kind: GgmlDType) -> usize {
    let blocks = if kind.block_size() == 256 { c.between(1, 2) } else { c.one_of(&[2, 1, 3, 5, 9]) };
    blocks * kind.block_size().max(32) + usize::from(c.seldom(32))
}

/// Quantizes an operand on the CPU and copies the blocks to its device. The last blocks are cached, so that
/// the copies are not counted when a case runs again.
pub(super) fn blocks(case: &Case, operand: usize, values: &Tensor, kind: GgmlDType) -> Result<Arc<QTensor>> {
    static LAST: Mutex<Option<(String, Arc<QTensor>)>> = Mutex::new(None);
    let device = values.device();
    let key = format!("{case} {operand} {:?}", device.location());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, blocks)) = last.as_ref().filter(|(of, _)| *of == key) {
        return Ok(blocks.clone());
    }
    let made = QTensor::quantize(&values.to_device(&Device::Cpu)?.force_contiguous()?, kind)?;
    let made = if device.is_cpu() {
        made
    } else {
        QTensor::new(QStorage::from_data(made.data()?, device, kind)?, made.shape())?
    };
    Ok(last.insert((key, Arc::new(made))).1.clone())
}

/// Returns the dequantized numbers of an operand in f64.
pub(super) fn values(case: &Case, operand: usize, t: &Tensor, kind: GgmlDType) -> Result<Tensor> {
    blocks(case, operand, t, kind)?.dequantize(&Device::Cpu)?.to_dtype(DType::F64)
}

/// Returns a copy with its own storage: for a dense part of another tensor, upstream quantizes the whole
/// storage.
fn own_storage(part: &Tensor) -> Result<Tensor> {
    part.force_contiguous()
}

fn bytes(tensor: &QTensor) -> Result<Tensor> {
    let data: Cow<'_, [u8]> = tensor.data()?;
    Tensor::from_slice(&data, data.len(), &Device::Cpu)
}

fn quantize(kind: GgmlDType) -> Op {
    Op::new(
        name("quantize", kind),
        format!("x=3x{}", columns(kind)),
        move |c| {
            let (columns, rows) = (some_columns(c, kind), c.one_of(&[1, 2, 3, 7]));
            let dims = [&vec![2; c.pick(3)][..], &[rows, columns]].concat();
            Plan::of([c.operand("x", &dims)])
        },
        move |_, t| bytes(&QTensor::quantize(&own_storage(&t[0])?, kind)?),
    )
    .calling(Calls { launches: Launches::AtMost(4), copies: 3 })
    .reading_back()
}

fn quantize_imatrix(kind: GgmlDType) -> Op {
    let columns = columns(kind);
    Op::new(
        name("quantize_imatrix", kind),
        format!("x=3x{columns} weights={columns}@f32"),
        move |c| {
            let (columns, rows) = (some_columns(c, kind), c.one_of(&[1, 2, 3, 7]));
            let weights = columns + usize::from(c.seldom(32));
            Plan::of([
                c.operand("x", &[rows, columns]),
                Operand::new("weights", &[weights]).with_dtype(DType::F32),
            ])
        },
        move |_, t| {
            let weights = t[1].abs()?.to_vec1()?;
            bytes(&QTensor::quantize_imatrix(&own_storage(&t[0])?, &weights, kind)?)
        },
    )
    // The weights are copied to the host and back.
    .calling(Calls { launches: Launches::AtMost(5), copies: 5 })
    .reading_back()
}

fn dequantize(kind: GgmlDType) -> Op {
    Op::new(
        name("dequantize", kind),
        format!("w=3x{}", columns(kind)),
        move |c| table(c, kind),
        move |case, t| blocks(case, 0, &t[0], kind)?.dequantize(t[0].device()),
    )
    .calling(Calls { launches: Launches::AtMost(1), copies: 1 })
}

fn dequantize_f16(kind: GgmlDType) -> Op {
    Op::new(
        name("dequantize_f16", kind),
        format!("w=3x{}", columns(kind)),
        move |c| table(c, kind),
        move |case, t| blocks(case, 0, &t[0], kind)?.dequantize_f16(t[0].device()),
    )
    .calling(Calls { launches: Launches::AtMost(1), copies: 1 })
}

/// Generates a matrix of blocks, or a stack of matrices.
fn table(c: &mut Choices, kind: GgmlDType) -> Plan {
    let (columns, rows) = (some_columns(c, kind), c.one_of(&[1, 2, 3, 5, 8]));
    let dims = [&vec![2; c.pick(3)][..], &[rows, columns]].concat();
    Plan::of([Operand::new("w", &dims)])
}

fn embedding(kind: GgmlDType) -> Op {
    Op::new(
        name("quantized_embedding", kind),
        format!("w=5x{} ids=3@u32", columns(kind)),
        move |c| {
            let (columns, rows) = (some_columns(c, kind), c.one_of(&[1, 2, 3, 5, 8]));
            let dims: Vec<usize> = (0..c.between(1, 2)).map(|_| c.one_of(&[1, 2, 3, 7, 33, 0])).collect();
            let dtype = c.one_of(&[DType::U32, DType::I64, DType::U8]);
            Plan::of([Operand::new("w", &[rows, columns]), c.mostly_dense("ids", &dims).with_dtype(dtype)])
        },
        move |case, t| blocks(case, 0, &t[0], kind)?.embedding(&t[1]),
    )
    // Two launches for a cast and a dense copy of the ids.
    .calling(at_most(3))
}

/// Numbers of rows around the limits between different kernels.
const ROWS: [usize; 14] = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 70, 0];

/// Numbers of outputs, mostly not divisible by tile sizes.
const OUTPUTS: [usize; 8] = [1, 2, 3, 5, 8, 17, 33, 65];

fn product(kind: GgmlDType) -> Op {
    Op::new(
        name("quantized_matmul", kind),
        format!("x=3x{0} w=5x{0}@f32", columns(kind)),
        move |c| factors(c, kind),
        move |case, t| {
            let blocks = blocks(case, 1, &t[1], kind)?;
            match t[0].device() {
                Device::Cpu if cpu_product_panics(kind, &t[1])? && t[0].is_contiguous() => {
                    let wider = |t: &Tensor| t.pad_with_zeros(D::Minus1, 0, 32);
                    let blocks = QTensor::quantize(&wider(&t[1])?, kind)?;
                    QMatMul::from_qtensor(blocks)?.forward(&wider(&t[0])?)
                }
                _ => QMatMul::from_arc(blocks)?.forward(&t[0]),
            }
        },
    )
    .with_reference(move |case, t| product_with(&t[0], &values(case, 1, &t[1], kind)?))
    .within(
        Bound::ulps(1.0)
            .sum_with(roundings, move |case, t| product_magnitude(&t[0], &values(case, 1, &t[1], kind)?))
            .and_steps(move |case, t| {
                let w = values(case, 1, &t[1], kind)?.abs()?;
                match kind.block_size() {
                    1 => product_with(&t[0].zeros_like()?, &w),
                    _ => product_with(&half_steps(&t[0], span(&t[0], kind)?)?, &w),
                }
            }),
    )
    // Quantization of activations, the product and a cast; or the calls of a dense product.
    .calling(Calls { launches: Launches::AtMost(4), copies: 1 })
    .accepting_more()
}

fn product_via_f16(kind: GgmlDType) -> Op {
    Op::new(
        name("quantized_matmul_via_f16", kind),
        format!("x=3x{0} w=5x{0}@f32", columns(kind)),
        move |c| factors(c, kind),
        move |case, t| {
            if !t[0].dtype().is_float() {
                candle_core::bail!("forward_via_f16 does not support integers")
            }
            QMatMul::from_arc(blocks(case, 1, &t[1], kind)?)?.forward_via_f16(&t[0])
        },
    )
    .with_reference(move |case, t| product_with(&t[0], &values(case, 1, &t[1], kind)?))
    // Both factors and the product are rounded to f16; the sum is at most 2 * 8 * 8 * 512, which may overflow
    // f16.
    .within(
        Bound::ulps(1.0)
            .sum_with(roundings, move |case, t| product_magnitude(&t[0], &values(case, 1, &t[1], kind)?))
            .and_steps(move |case, t| {
                let w = values(case, 1, &t[1], kind)?.abs()?;
                (product_with(&t[0].abs()?, &w)? * (4.0 * 2f64.powi(-11)))? + 2f64.powi(-14)
            }),
    )
    // Dequantization to f16, two casts, a dense product and its operand copies.
    .calling(Calls { launches: Launches::AtMost(7), copies: 1 })
    .accepting_more()
}

fn factors(c: &mut Choices, kind: GgmlDType) -> Plan {
    let (k, n, rows) = (some_columns(c, kind), c.one_of(&OUTPUTS), c.one_of(&ROWS));
    let batch: Vec<usize> = (0..c.pick(3)).map(|_| c.between(1, 3)).collect();
    let rows = if batch.is_empty() { rows } else { rows.min(9) };
    let inner = if c.seldom(32) { k + 32 } else { k };
    let dims = if c.seldom(32) { vec![inner] } else { [&batch[..], &[rows, inner]].concat() };
    Plan::of([c.mostly_dense("x", &dims), Operand::new("w", &[n, k]).with_dtype(DType::F32)])
}

/// Returns the product of `x` and the transposed `w`.
fn product_with(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.broadcast_matmul(&w.t()?)
}

/// Returns the number of sequential f32 roundings: in a block, and from block to block.
fn roundings(case: &Case) -> f64 {
    8.0 + case.dims(0).last().map_or(0.0, |k| *k as f64 / 32.0)
}

/// Returns the sum of magnitudes in a product. A weight is the difference of a multiple of its scale and a
/// minimum, each of which is up to twice as large as the largest weight.
fn product_magnitude(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let largest = w.abs()?.max_keepdim(D::Minus1)?.broadcast_as(w.shape())?;
    product_with(&x.abs()?, &largest)? * 4.0
}

/// Returns the maximum number of neighbouring activations with the same quantization step.
fn span(x: &Tensor, kind: GgmlDType) -> Result<usize> {
    let rows = x.elem_count() / x.dim(D::Minus1)?;
    Ok(if rows > 1 { kind.block_size().max(32) } else { 32 })
}

/// Returns half a quantization step of each activation, which ROCm quantizes to 8 bits: the largest of a span
/// is 127 steps. The error of a product is at most this, times the magnitude of the weight.
pub(super) fn half_steps(x: &Tensor, span: usize) -> Result<Tensor> {
    let (dims, k) = (x.dims(), x.dim(D::Minus1)?);
    let blocks = x.abs()?.reshape([&dims[..dims.len() - 1], &[k / span, span]].concat())?;
    let largest = blocks.max_keepdim(D::Minus1)?.broadcast_as(blocks.shape())?;
    largest.contiguous()?.reshape(dims)? / 254.0
}

fn experts(kind: GgmlDType) -> Op {
    Op::new(
        name("indexed_moe_forward", kind),
        format!("w=4x5x{0}@f32 x=3x2x{0} ids=3x2@u32", columns(kind)),
        move |c| {
            let (k, n, stack) = (some_columns(c, kind), c.one_of(&OUTPUTS), c.one_of(&[1, 2, 4]));
            let (batch, chosen) = (c.one_of(&[1, 2, 3, 9]), c.one_of(&[1, 2, 3]));
            let rows = if c.pick(2) == 0 { 1 } else { chosen };
            let inner = if c.seldom(32) { k + 32 } else { k };
            Plan::of([
                Operand::new("w", &[stack, n, k]).with_dtype(DType::F32),
                c.mostly_dense("x", &[batch, rows, inner]),
                c.mostly_dense("ids", &[batch, chosen]).with_dtype(DType::U32),
            ])
        },
        move |case, t| {
            let (w, dtype) = (blocks(case, 0, &t[0], kind)?, t[1].dtype());
            let products = match t[0].device() {
                Device::Cpu => moe_reference(&t[1], &w.dequantize(&Device::Cpu)?, &t[2])?,
                _ => w.indexed_moe_forward(&t[1], &t[2])?,
            };
            // Products are f32 for all dtypes of activations.
            products.to_dtype(dtype)
        },
    )
    .with_reference(move |case, t| selected_products(&t[1], &values(case, 0, &t[0], kind)?, &t[2]))
    .within(
        Bound::ulps(1.0)
            .sum_with(roundings, move |case, t| {
                let w = values(case, 0, &t[0], kind)?.abs()?;
                let largest = w.max_keepdim(D::Minus1)?.broadcast_as(w.shape())?.contiguous()?;
                selected_products(&t[1].abs()?, &largest, &t[2])? * 4.0
            })
            .and_steps(move |case, t| {
                selected_products(&half_steps(&t[1], 32)?, &values(case, 0, &t[0], kind)?.abs()?, &t[2])
            }),
    )
    .calling(at_most(4))
}

/// Reference for the CPU device, which panics in this operation: computes the products and returns the
/// expected errors.
fn moe_reference(x: &Tensor, w: &Tensor, ids: &Tensor) -> Result<Tensor> {
    if x.dim(D::Minus1)? != w.dim(D::Minus1)? {
        candle_core::bail!("row lengths differ")
    }
    if !x.is_contiguous() || !ids.is_contiguous() {
        return Err(Error::RequiresContiguous { op: "indexed_moe_forward" });
    }
    if !matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnexpectedDType { msg: "activations", expected: DType::F32, got: x.dtype() });
    }
    let size = w.dim(0)?;
    match ids.flatten_all()?.to_vec1::<u32>()?.into_iter().find(|id| *id as usize >= size) {
        Some(id) => Err(Error::InvalidIndex { op: "indexed_moe_forward", index: id as usize, size }),
        None => selected_products(&x.to_dtype(DType::F32)?, w, ids),
    }
}

/// Multiplies each row of `x` with the matrices selected by its indexes. `x` has one row for all selected
/// matrices, or one row for each.
fn selected_products(x: &Tensor, w: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (batch, chosen) = ids.dims2()?;
    let (stack, n, k) = w.dims3()?;
    let matrices = w.reshape((stack, n * k))?.index_select(&ids.flatten_all()?, 0)?;
    let x = x.broadcast_as((batch, chosen, k))?.contiguous()?.reshape((batch * chosen, 1, k))?;
    let matrices = matrices.reshape((batch * chosen, n, k))?.transpose(1, 2)?.contiguous()?;
    x.matmul(&matrices)?.reshape((batch, chosen, n))
}
