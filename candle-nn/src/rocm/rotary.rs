//! Rotary embeddings: a kernel rotates pairs of elements of each row by the angles of its position.
use super::{contiguous, count, kernel, output};
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::contract::{Rope, RopePairs, PACK_BYTES};
use candle::rocm::{LaunchConfig, RocmStorage};
use candle::{bail, Layout, Result, Shape};

type Operand<'a> = (&'a RocmStorage, &'a Layout);

/// Number of threads that saturates a large GPU; beyond it, each thread processes up to `MAX_HEADS_EACH` heads.
const SATURATING_THREADS: usize = 1 << 18;
const MAX_HEADS_EACH: usize = 8;
/// HIP's limit for y and z of a grid; kernels stride over more.
const MAX_GRID: usize = 0xffff;

/// Applies a rotary embedding to a contiguous x of four dims. `time` is the dim of positions. cos and sin have one row per
/// position, with half as many angles as x has columns; with three dims, they have separate rows per batch.
fn rotate(
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
        bail!("{op}: the last dim of {:?} must be even", lx.dims());
    }
    let (batch, half, positions) = (dims.0, dims.3 / 2, lx.dims()[time]);
    let heads = lx.dims()[3 - time];
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
    let to = output(&dst)?;
    let size = x.dtype().size_in_bytes();
    let bits = [src, cos, sin].iter().fold(half * size, |bits, ptr| bits | ptr.0 as usize);
    let in_packs = bits % PACK_BYTES == 0;
    let threads = positions * half / if in_packs { PACK_BYTES / size } else { 1 };
    let mut config = LaunchConfig::for_elements(op, threads)?;
    config.block.0 = config.block.0.min(threads.next_power_of_two().max(32) as u32);
    // With enough threads, each reads its angles once for several heads.
    let heads_each = (threads * heads * batch).div_ceil(SATURATING_THREADS).min(MAX_HEADS_EACH);
    config.grid.1 = heads.div_ceil(heads_each).min(MAX_GRID) as u32;
    config.grid.2 = batch.min(MAX_GRID) as u32;
    // Strides of positions and of heads, in rows.
    let (position_rows, head_rows) = if time == 1 { (heads, 1) } else { (1, positions) };
    let batch_angles = if per_batch { positions * half } else { 0 };
    let arguments = Rope {
        half: count(op, half)?,
        positions: count(op, positions)?,
        heads: count(op, heads)?,
        batches: count(op, batch)?,
        position_rows: count(op, position_rows)?,
        head_rows: count(op, head_rows)?,
        batch_angles: count(op, batch_angles)?,
        in_packs,
        src,
        cos,
        sin,
        dst: to,
    };
    // SAFETY: source and result have all rows, and the tables have all positions.
    unsafe { x.device().launch(kernel, config, &arguments)? };
    Ok((dst, lx.shape().clone()))
}

macro_rules! rotary_embedding {
    ($(#[$doc:meta])* $name:ident, $op:literal, $pairs:ident, $time:literal) => {
        $(#[$doc])*
        pub fn $name(
            x: &RocmStorage,
            lx: &Layout,
            cos: &RocmStorage,
            lcos: &Layout,
            sin: &RocmStorage,
            lsin: &Layout,
        ) -> Result<(RocmStorage, Shape)> {
            rotate($op, RopePairs::$pairs, $time, (x, lx), (cos, lcos), (sin, lsin))
        }
    };
}
rotary_embedding!(
    /// Applies a rotary embedding to (b, h, t, d), rotating pairs of adjacent elements.
    ///
    /// # Errors
    /// If the dtype is not f16, bf16, f32 or f64, a tensor is strided, d is odd, or there are too few angles.
    rope_i, "rope-i", Neighbours, 2
);
rotary_embedding!(
    /// Applies a rotary embedding to (b, h, t, d), rotating pairs of elements from both halves of d.
    ///
    /// # Errors
    /// See [`rope_i`].
    rope, "rope", Halves, 2
);
rotary_embedding!(
    /// Applies a rotary embedding to (b, t, h, d), rotating pairs of elements from both halves of d.
    ///
    /// # Errors
    /// See [`rope_i`].
    rope_thd, "rope-thd", Halves, 1
);
