//! Attention of a decoding step with the write of keys and values to a paged cache, in one launch.
use super::operand::Operand;
use crate::fused::{CacheHeads, HeadNorms};
use crate::fused_attention::{PagedSequences, ScoreParams};
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::PACK_BYTES;
use candle::rocm::{AppendedHeads, AppendedNorms, Attention, AttentionSequences};
use candle::{DType, Layout, Result, Shape, Storage, Tensor};

const OP: &str = "append-attention";

/// Computes [`crate::fused_attention::append_and_attend`].
///
/// # Errors
/// If shapes, dtypes or devices do not match, or there is not enough memory for the result.
pub fn append_and_attend(
    op: &CacheHeads,
    over: &PagedSequences,
    scores: &ScoreParams,
) -> Result<Option<Tensor>> {
    let sizes = op.sizes()?;
    let (rows, heads, key_heads, width) = (sizes.rows, sizes.heads, sizes.key_heads, sizes.width);
    let (cache, dtype, of_attention) = (op.keys.dtype(), op.q.dtype(), op.queries_dtype());
    let interleaved = op.rotary.interleaved;
    let sharing = heads.checked_div(key_heads).unwrap_or(0);
    let has_kernel = AppendedHeads::has_kernel(of_attention, width, sharing, sizes.pairs, interleaved)
        && [op.k, op.v].iter().all(|x| x.dtype() == dtype)
        && (dtype == of_attention || dtype == DType::F32)
        && (op.scales.is_none() || of_attention != DType::F32)
        && sharing * key_heads == heads
        && rows > 0
        && over.page_size > 0
        && sizes.slots.is_multiple_of(over.page_size);
    let of = |name, tensor| Operand::of(OP, name, tensor);
    let [q, k, v] = [("q", op.q), ("k", op.k), ("v", op.v)].map(|(name, tensor)| of(name, tensor));
    let Some(x) = q.rocm().filter(|_| has_kernel) else { return Ok(None) };
    let [keys, values] = [("keys", op.keys), ("values", op.values)].map(|(name, tensor)| of(name, tensor));
    let [cos, sin] = [("cos", op.rotary.cos), ("sin", op.rotary.sin)].map(|(name, tensor)| of(name, tensor));
    let bias = op.bias.map(|bias| of("bias", bias));
    let norms = op.norms.map(|HeadNorms { query, key, eps }| (of("q_norm", query), of("k_norm", key), eps));
    let (positions, slots) = (of("positions", op.positions), of("slots", op.slots));
    let sinks = scores.sinks.map(|sinks| of("sinks", sinks));
    let (cu_rows, cu_keys) = (of("cu_rows", over.cu_rows), of("cu_keys", over.cu_keys));
    let table = of("block table", over.block_table);

    let mut is_aligned = true;
    let of_norms = norms.iter().flat_map(|(query, key, _)| [query, key]);
    for operand in [&keys, &values, &cos, &sin].into_iter().chain(&bias).chain(of_norms) {
        let of = match operand.name() {
            "cos" | "sin" => DType::F32,
            "keys" | "values" => cache,
            _ => dtype,
        };
        is_aligned &= operand.address(x, of)?.0.addr().is_multiple_of(PACK_BYTES);
    }
    let mut layouts = Vec::with_capacity(3);
    for (operand, heads) in [(&q, heads), (&k, key_heads), (&v, key_heads)] {
        let (at, stride) = operand.rows(x)?;
        is_aligned &= (at.0.addr() | (stride * dtype.size_in_bytes())).is_multiple_of(PACK_BYTES);
        let strides = vec![0, width, stride, 1];
        layouts.push(Layout::new((1, heads, rows, width).into(), strides, operand.layout().start_offset()));
    }
    if !is_aligned {
        return Ok(None);
    }
    let [q_rows, k_rows, v_rows] = [&layouts[0], &layouts[1], &layouts[2]];
    let page = over.page_size;
    let pages = (sizes.slots / page, key_heads, page, width).into();
    let strides = [page * key_heads * width, width, key_heads * width, 1];
    let paged = |operand: &Operand, pages: &Shape| {
        Layout::new(pages.clone(), strides.to_vec(), operand.layout().start_offset())
    };
    let (key_pages, value_pages) = (paged(&keys, &pages), paged(&values, &pages));
    let norms = match &norms {
        Some((query, key, eps)) => {
            Some(AppendedNorms { query: query.of_attention(x)?, key: key.of_attention(x)?, eps: *eps })
        }
        None => None,
    };
    let dims = [sizes.slots / page, page, key_heads, 2];
    let scales = op.scales.map(|scales| scales.scales.reshape(&dims)).transpose()?;
    let scales = scales.as_ref().map(|scales| Operand::of(OP, "scales", scales));
    let append = AppendedHeads {
        dtype: of_attention,
        k: (k.storage(x)?, k_rows),
        v: (v.storage(x)?, v_rows),
        bias: bias.as_ref().map(|bias| bias.of_attention(x)).transpose()?,
        norms,
        cos: cos.of_attention(x)?,
        sin: sin.of_attention(x)?,
        interleaved,
        positions: positions.of_attention(x)?,
        slots: slots.of_attention(x)?,
        constant_history: over.constant_history,
    };
    let attention = Attention {
        scale: scores.scale,
        softcap: scores.softcap,
        window: (scores.window, Some(0)),
        sinks: sinks.as_ref().map(|sinks| sinks.of_attention(x)).transpose()?,
        sequences: Some(AttentionSequences {
            queries: cu_rows.of_attention(x)?,
            keys: cu_keys.of_attention(x)?,
            max_queries: 1,
            max_keys: over.max_keys,
        }),
        pages: Some(table.of_attention(x)?),
        scales: scales.as_ref().map(|scales| scales.of_attention(x)).transpose()?,
        append: Some(append),
        ..Attention::default()
    };
    // Heads of a row follow each other.
    let shape = Shape::from((1, heads, rows, width));
    let out = Layout::new(shape, vec![rows * heads * width, width, heads * width, 1], 0);
    let (keys, values) = ((keys.storage(x)?, &key_pages), (values.storage(x)?, &value_pages));
    let attended = attention.forward(OP, (x, q_rows), keys, values, &out)?;
    let shape = (rows, heads, width);
    Ok(Some(Tensor::from_storage(Storage::Rocm(attended.out), shape, BackpropOp::none(), false)))
}
