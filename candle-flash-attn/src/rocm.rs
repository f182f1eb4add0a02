//! Checks operands with upstream's error messages, and computes with [`candle::rocm::Attention`].
use std::sync::OnceLock;

use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::{Attention, AttentionOperand, AttentionOutput, AttentionSequences, ATTENTION_MAX_WIDTH};
use candle::{bail, DType, Layout, Result, RocmStorage, Shape, Storage, StorageRef, Tensor};

use crate::op::AttentionOp;
use crate::varlen::{FlashAttnVarLen, Pages};
use crate::FlashAttn;

/// Head widths must be a multiple of this.
const WIDTH_STEP: usize = 8;
/// The number of rows of a page must be a multiple of this.
const PAGE_STEP: usize = 16;

/// Storages and layouts of q, k and v.
pub(crate) type Operands<'a> = [AttentionOperand<'a>; 3];

/// Parameters derived from checked operands.
pub(crate) struct Checked<'a> {
    attention: Attention<'a>,
    result: Shape,
    statistics: Shape,
}

/// Computes the forward pass, and the statistics if the op keeps them.
pub(crate) fn forward<O: AttentionOp>(op: &O, operands: Operands) -> Result<(RocmStorage, Shape)> {
    op.checked(operands, |Checked { attention, result, statistics }| {
        let attention = Attention { statistics: op.statistics().is_some(), ..attention };
        let made = attend(O::NAME, &attention, operands, &result)?;
        if let (Some(kept), Some(storage)) = (op.statistics(), made.statistics) {
            kept.get_or_init(|| tensor(storage, statistics));
        }
        Ok((made.out, result))
    })
}

fn attend(
    op: &'static str,
    attention: &Attention,
    operands: Operands,
    result: &Shape,
) -> Result<AttentionOutput> {
    let [q, k, v] = operands;
    let (q_rows, k_rows, v_rows) = (by_heads(q.1)?, by_heads(k.1)?, by_heads(v.1)?);
    let out = by_heads(&Layout::contiguous(result))?;
    let [q, k, v] = [(q.0, &q_rows), (k.0, &k_rows), (v.0, &v_rows)];
    #[cfg(feature = "ck")]
    if let Some(made) = crate::ck::try_forward(attention, op, [q, k, v], &out)? {
        return Ok(made);
    }
    attention.forward(op, q, k, v, &out)
}

/// Computes the gradients of those of q, k and v that track gradients.
pub(crate) fn backward<O: AttentionOp>(
    op: &O,
    arguments: [&Tensor; 3],
    result: &Tensor,
    grad: &Tensor,
) -> Result<[Option<Tensor>; 3]> {
    let [q, k, v] = arguments.map(Tensor::storage_and_layout);
    let [(q, q_layout), (k, k_layout), (v, v_layout)] = [rocm("q", &q)?, rocm("k", &k)?, rocm("v", &v)?];
    let operands = [(q, q_layout), (k, k_layout), (v, v_layout)];
    let made = op.checked(operands, |checked| {
        let attention = Attention { statistics: true, ..checked.attention };
        let kept = op.statistics().and_then(OnceLock::get).map(Tensor::storage_and_layout);
        let attended = match &kept {
            Some(_) => None,
            // The op was applied directly, without keeping statistics.
            None => attend(O::NAME, &attention, operands, &checked.result)?.statistics,
        };
        let statistics = match (optional("statistics", &kept)?, &attended) {
            (Some((kept, _)), _) => kept,
            (None, Some(attended)) => attended,
            (None, None) => bail!("{}: statistics were not computed", O::NAME),
        };
        let [result, grad] = [result, grad].map(Tensor::storage_and_layout);
        let [(result, result_layout), (grad, grad_layout)] = [rocm("result", &result)?, rocm("grad", &grad)?];
        let dense = |layout: &Layout| by_heads(&Layout::contiguous(layout.shape()));
        attention.backward(
            O::NAME,
            [(q, &by_heads(q_layout)?), (k, &by_heads(k_layout)?), (v, &by_heads(v_layout)?)],
            (result, &by_heads(result_layout)?),
            statistics,
            (grad, &by_heads(grad_layout)?),
            [&dense(q_layout)?, &dense(k_layout)?, &dense(v_layout)?],
        )
    })?;
    let asked =
        |argument: &Tensor, storage| argument.track_op().then(|| tensor(storage, argument.shape().clone()));
    let [q, k, v] = arguments;
    Ok([asked(q, made.q), asked(k, made.k), asked(v, made.v)])
}

fn tensor(storage: RocmStorage, shape: Shape) -> Tensor {
    Tensor::from_storage(Storage::Rocm(storage), shape, BackpropOp::none(), false)
}

/// Converts (batch, rows, heads, width), or (rows, heads, width) as a batch of one, to (batch, heads, rows, width).
fn by_heads(layout: &Layout) -> Result<Layout> {
    let (&[rows, heads, width], &[row, head, column]) = (layout.dims(), layout.stride()) else {
        return layout.transpose(1, 2);
    };
    Ok(Layout::new(Shape::from((1, heads, rows, width)), vec![0, head, row, column], layout.start_offset()))
}

/// A locked storage and its layout.
type Guard<'a> = (StorageRef<'a>, &'a Layout);

fn rocm<'a>(name: &str, (storage, layout): &'a Guard) -> Result<AttentionOperand<'a>> {
    match &**storage {
        Storage::Rocm(storage) => Ok((storage, layout)),
        _ => bail!("{name} must be a rocm tensor"),
    }
}

fn lock(tensor: Option<&Tensor>) -> Option<Guard<'_>> {
    tensor.map(Tensor::storage_and_layout)
}

fn optional<'a>(name: &str, held: &'a Option<Guard>) -> Result<Option<AttentionOperand<'a>>> {
    held.as_ref().map(|held| rocm(name, held)).transpose()
}

fn check_dtype(q: &RocmStorage) -> Result<()> {
    match q.dtype() {
        DType::F16 | DType::BF16 | DType::F32 => Ok(()),
        dtype => bail!("flash-attn is only supported for f16/bf16/f32 ({dtype:?})"),
    }
}

fn check_dense_rows(layouts: [&Layout; 3]) -> Result<()> {
    for (name, layout) in ["q", "k", "v"].into_iter().zip(layouts) {
        let stride = layout.stride();
        if stride.last() != Some(&1) {
            bail!("the last dim of {name} must be contiguous {stride:?}")
        }
    }
    Ok(())
}

fn check_heads(heads: usize, key_heads: usize, widths: [usize; 2]) -> Result<()> {
    for width in widths {
        if width > ATTENTION_MAX_WIDTH {
            bail!("only supports head dimension at most {ATTENTION_MAX_WIDTH} (got {width})")
        }
        if width % WIDTH_STEP != 0 {
            bail!("only supports head sizes that are a multiple of {WIDTH_STEP} (got {width})")
        }
    }
    if key_heads == 0 || !heads.is_multiple_of(key_heads) {
        bail!("number of k/v heads {key_heads} must divide number of heads in query {heads}")
    }
    Ok(())
}

impl FlashAttn {
    /// Returns the score parameters for `keys` keys.
    fn attention<'a>(&self, slopes: &'a Option<Guard>, heads: usize, keys: usize) -> Result<Attention<'a>> {
        let slopes = optional("alibi_slopes", slopes)?;
        if let Some((storage, layout)) = slopes {
            let (dtype, expected) = (storage.dtype(), DType::F32);
            if dtype != expected {
                bail!("DType mismatch alibi_slopes {dtype:?}, expected {expected:?}")
            }
            if layout.shape().dims1()? != heads {
                bail!("shape mismatch alibi_slopes {:?}, expected {heads:?}", layout.shape())
            }
        }
        let within = |size: Option<usize>| size.filter(|size| *size <= keys);
        let window = (within(self.window_size_left), within(self.window_size_right));
        Ok(Attention {
            scale: self.softmax_scale,
            softcap: self.softcap,
            window,
            slopes,
            ..Attention::default()
        })
    }

    /// Checks q, k and v, and calls `compute` with the result.
    pub(crate) fn check<T>(&self, of: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T> {
        let [q, k, v] = of;
        check_dtype(q.0)?;
        let layouts = [q.1, k.1, v.1];
        let [q_rank, k_rank, v_rank] = layouts.map(|layout| layout.dims().len());
        if [q_rank, k_rank, v_rank] != [4; 3] {
            bail!("flash-attn expects input tensors of rank 4 (q: {q_rank}, k: {k_rank}, v: {v_rank})")
        }
        check_dense_rows(layouts)?;
        let (batch, queries, heads, width) = q.1.shape().dims4()?;
        let (k_batch, keys, key_heads, k_width) = k.1.shape().dims4()?;
        if (k_batch, k_width) != (batch, width) {
            bail!("shape mismatch q {:?} and k {:?}", q.1.shape(), k.1.shape())
        }
        let (v_batch, v_keys, v_heads, value_width) = v.1.shape().dims4()?;
        if (v_batch, v_keys, v_heads) != (batch, keys, key_heads) {
            bail!("shape mismatch q {:?} and v {:?}", q.1.shape(), v.1.shape())
        }
        check_heads(heads, key_heads, [width, value_width])?;
        let slopes = lock(self.alibi_slopes.as_ref());
        compute(Checked {
            attention: self.attention(&slopes, heads, keys)?,
            result: Shape::from((batch, queries, heads, value_width)),
            statistics: Shape::from((batch, heads, queries)),
        })
    }
}

impl FlashAttnVarLen {
    /// Checks q, k and v, and calls `compute` with the result.
    pub(crate) fn check<T>(&self, of: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T> {
        let [q, k, v] = of;
        check_dtype(q.0)?;
        let [seqlens_q, seqlens_k] = [&self.seqlens_q, &self.seqlens_k].map(Tensor::storage_and_layout);
        let [starts_q, starts_k] = [rocm("seqlens_q", &seqlens_q)?, rocm("seqlens_k", &seqlens_k)?];
        for (name, (_, layout)) in [("seqlens_q", starts_q), ("seqlens_k", starts_k)] {
            if !layout.is_contiguous() {
                bail!("{name} has to be contiguous")
            }
        }
        let layouts = [q.1, k.1, v.1];
        let [q_rank, k_rank, v_rank] = layouts.map(|layout| layout.dims().len());
        if q_rank != 3 || (self.pages.is_none() && [k_rank, v_rank] != [3; 2]) {
            bail!("flash-attn-varlen expects input tensors of rank 3 (q: {q_rank}, k: {k_rank}, v: {v_rank})")
        }
        if self.pages.is_some() && [k_rank, v_rank] != [4; 2] {
            bail!("flash-attn-varlen paged expects k/v tensors of rank 4 (k: {k_rank}, v: {v_rank})")
        }
        check_dense_rows(layouts)?;
        let (total, heads, width) = q.1.shape().dims3()?;
        let (key_heads, value_width) = match &self.pages {
            Some(pages) => pages.check(q.1, k.1, v.1)?,
            None => {
                let (keys, key_heads, k_width) = k.1.shape().dims3()?;
                if k_width != width {
                    bail!("shape mismatch q {:?} and k {:?}", q.1.shape(), k.1.shape())
                }
                let (v_keys, v_heads, value_width) = v.1.shape().dims3()?;
                if (v_keys, v_heads) != (keys, key_heads) {
                    bail!("shape mismatch q {:?} and v {:?}", q.1.shape(), v.1.shape())
                }
                (key_heads, value_width)
            }
        };
        check_heads(heads, key_heads, [width, value_width])?;
        let (starts, key_starts) = (starts_q.1.shape().dims1()?, starts_k.1.shape().dims1()?);
        if starts < 2 {
            bail!("seqlens_q should have a len >= 2 {starts}")
        }
        if key_starts != starts {
            bail!("seqlens_q and seqlens_k should have the same number of elements {starts} <> {key_starts}")
        }
        let ranges = lock(self.mm_prefix_ranges.as_ref());
        let ranges = self.ranges(&ranges, starts - 1)?;
        let table = lock(self.pages.as_ref().map(|pages| &pages.block_table));
        let table = optional("block_table", &table)?;
        if let Some((storage, layout)) = table {
            layout.shape().dims2()?;
            if layout.stride().last() != Some(&1) {
                bail!("block_table last dimension must be contiguous")
            }
            if !matches!(storage.dtype(), DType::U32 | DType::I32) {
                bail!("block_table must be u32 or i32, got {:?}", storage.dtype())
            }
        }
        let sinks = lock(self.sinks.as_ref());
        let sinks = optional("sinks", &sinks)?;
        if let Some((storage, layout)) = sinks {
            if storage.dtype() != DType::F32 || layout.dims() != [heads] {
                bail!(
                    "sinks must be F32 with the shape [{heads}], got {:?} {:?}",
                    storage.dtype(),
                    layout.shape()
                )
            }
        }
        let scales = lock(self.scales.as_ref());
        let scales = optional("scales", &scales)?;
        let slopes = lock(self.scores.alibi_slopes.as_ref());
        let attention = Attention {
            scales,
            sinks,
            ranges,
            sequences: Some(AttentionSequences {
                queries: starts_q,
                keys: starts_k,
                max_queries: self.max_seqlen_q,
                max_keys: self.max_seqlen_k,
            }),
            pages: table,
            ..self.scores.attention(&slopes, heads, self.max_seqlen_k)?
        };
        compute(Checked {
            attention,
            result: Shape::from((total, heads, value_width)),
            statistics: Shape::from((heads, total)),
        })
    }

    fn ranges<'a>(&self, held: &'a Option<Guard>, sequences: usize) -> Result<Option<AttentionOperand<'a>>> {
        let Some((storage, layout)) = optional("mm_prefix_ranges", held)? else { return Ok(None) };
        if storage.dtype() != DType::I32 {
            bail!("mm_prefix_ranges must be i32, got {:?}", storage.dtype())
        }
        let (batch, _, two) = layout.shape().dims3()?;
        if (batch, two) != (sequences, 2) {
            bail!("mm_prefix_ranges shape must be ({sequences}, max_ranges, 2), got {:?}", layout.shape())
        }
        if layout.stride().last() != Some(&1) {
            bail!("mm_prefix_ranges last dimension must be contiguous")
        }
        Ok(Some((storage, layout)))
    }
}

impl Pages {
    /// Checks the pages and returns the number of key heads and the width of values.
    fn check(&self, q: &Layout, k: &Layout, v: &Layout) -> Result<(usize, usize)> {
        let (pages, rows, key_heads, width) = k.shape().dims4()?;
        let (v_pages, v_rows, v_heads, value_width) = v.shape().dims4()?;
        if (v_pages, v_rows, v_heads) != (pages, rows, key_heads) {
            bail!("shape mismatch k {:?} and v {:?}", k.shape(), v.shape())
        }
        if q.dims().last() != Some(&width) {
            bail!("shape mismatch q {:?} and k {:?}", q.shape(), k.shape())
        }
        if self.page_block_size != rows {
            bail!("page_block_size {} does not match k shape {:?}", self.page_block_size, k.shape())
        }
        if rows == 0 || rows % PAGE_STEP != 0 {
            bail!("paged flash-attn requires page_block_size to be a multiple of {PAGE_STEP} (got {rows})")
        }
        if width > ATTENTION_MAX_WIDTH {
            bail!("paged flash-attn supports head sizes up to {ATTENTION_MAX_WIDTH} (got {width})")
        }
        Ok((key_heads, value_width))
    }
}
