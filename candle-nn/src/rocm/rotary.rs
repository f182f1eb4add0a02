//! Rotary embeddings: one kernel that turns pairs of each row by the angles of its position.
use super::{contiguous, count, kernel, output};
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::contract::{Rope, RopePairs};
use candle::rocm::{further, LaunchConfig, RocmStorage};
use candle::{bail, Layout, Result, Shape};

type Operand<'a> = (&'a RocmStorage, &'a Layout);

/// The most pairs of one launch.
const MAX_PAIRS: usize = 1 << 31;

/// Rotary embedding of a contiguous x of four dims. `time` is the dim that counts positions; cos and sin have a row of
/// half as many angles as x has columns for each position, per batch if they have three dims.
fn turned(
    op: &'static str,
    pairs: RopePairs,
    time: usize,
    (x, lx): Operand,
    (cos, lcos): Operand,
    (sin, lsin): Operand,
) -> Result<(RocmStorage, Shape)> {
    let dtypes = [x.dtype(), cos.dtype(), sin.dtype()];
    if dtypes != [x.dtype(); 3] {
        bail!("unsupported dtype for {op} {dtypes:?}");
    }
    let kernel = kernel(op, x.dtype(), |element| Rope::kernel(pairs, element))?;
    let dims = lx.shape().dims4()?;
    if dims.3 % 2 != 0 {
        bail!("{op}: the last dim of {:?} has no halves", lx.dims());
    }
    let (batch, half, positions) = (dims.0, dims.3 / 2, lx.dims()[time]);
    let rows = dims.1 * dims.2;
    let per_batch = lcos.dims().len() == 3 && lsin.dims().len() == 3;
    let angles = positions * half * if per_batch { batch } else { 1 };
    for layout in [lcos, lsin] {
        if layout.shape().elem_count() < angles {
            bail!("{op}: x of shape {:?} needs {angles} angles, got {:?}", lx.dims(), layout.dims());
        }
    }
    x.order_after(cos)?;
    x.order_after(sin)?;
    let src = contiguous(op, "src", x, lx)?;
    let (cos, sin) = (contiguous(op, "cos", cos, lcos)?, contiguous(op, "sin", sin, lsin)?);
    let elements = lx.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(x.device(), x.dtype(), elements, op)? };
    if elements == 0 {
        return Ok((dst, lx.shape().clone()));
    }
    let image = rows * half;
    if image > MAX_PAIRS {
        bail!("{op}: {image} pairs of a batch, at most {MAX_PAIRS} are possible on ROCm");
    }
    // As many batches at a time as one launch can count.
    let (to, step) = (output(&dst)?, MAX_PAIRS / image);
    let at = |ptr, elements| further(ptr, x.dtype(), elements);
    for first in (0..batch).step_by(step) {
        let numel = step.min(batch - first) * image;
        let batch_stride = if per_batch { positions * half } else { 0 };
        let arguments = Rope {
            numel,
            half: count(op, half)?,
            rows: count(op, rows)?,
            // Rows of the dims after `time` share its position.
            inner: count(op, lx.dims()[time + 1..3].iter().product())?,
            positions: count(op, positions)?,
            batch_stride: count(op, batch_stride)?,
            src: at(src, 2 * first * image),
            cos: at(cos, first * batch_stride),
            sin: at(sin, first * batch_stride),
            dst: at(to, 2 * first * image),
        };
        // SAFETY: both ends hold all rows, and the tables were checked to hold all positions.
        unsafe { x.device().launch(kernel, LaunchConfig::for_elements(op, numel)?, &arguments)? };
    }
    Ok((dst, lx.shape().clone()))
}

/// Rotary embedding of (b, h, t, d) by pairs of neighbours.
///
/// # Errors
/// For dtypes other than f16, bf16, f32 and f64, strided tensors, an odd d, or too few angles.
pub fn rope_i(
    x: &RocmStorage,
    lx: &Layout,
    cos: &RocmStorage,
    lcos: &Layout,
    sin: &RocmStorage,
    lsin: &Layout,
) -> Result<(RocmStorage, Shape)> {
    turned("rope-i", RopePairs::Neighbours, 2, (x, lx), (cos, lcos), (sin, lsin))
}

/// Rotary embedding of (b, h, t, d) by pairs from both halves of d.
///
/// # Errors
/// As [`rope_i`].
pub fn rope(
    x: &RocmStorage,
    lx: &Layout,
    cos: &RocmStorage,
    lcos: &Layout,
    sin: &RocmStorage,
    lsin: &Layout,
) -> Result<(RocmStorage, Shape)> {
    turned("rope", RopePairs::Halves, 2, (x, lx), (cos, lcos), (sin, lsin))
}

/// Rotary embedding of (b, t, h, d) by pairs from both halves of d.
///
/// # Errors
/// As [`rope_i`].
pub fn rope_thd(
    x: &RocmStorage,
    lx: &Layout,
    cos: &RocmStorage,
    lcos: &Layout,
    sin: &RocmStorage,
    lsin: &Layout,
) -> Result<(RocmStorage, Shape)> {
    turned("rope-thd", RopePairs::Halves, 1, (x, lx), (cos, lcos), (sin, lsin))
}
