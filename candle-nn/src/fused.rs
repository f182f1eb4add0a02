//! Fused operations of decoders, which take one launch on ROCm. On other devices, and for operands that have no kernel, they
//! consist of separate operations with the same results up to rounding.
use crate::encoded_cache::{CacheEncoding, CacheScales};
use crate::ops::rms_norm;
use crate::rotary_emb::{rope_i, rope_thd};
use candle::{bail, DType, Result, Tensor, D};

/// Computes `sum = residual + x`, or with `post_norm` `residual + rms_norm(x, post_norm)`, and `rms_norm(sum, weight)`.
/// Returns both. `x` and `residual` have equal shapes, and the weights have an element for each column.
///
/// # Errors
/// If shapes, dtypes or devices do not match.
pub fn add_rms_norm(
    x: &Tensor,
    residual: &Tensor,
    post_norm: Option<&Tensor>,
    weight: &Tensor,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let columns = x.dim(D::Minus1)?;
    let widths = [Some(weight), post_norm].into_iter().flatten().map(Tensor::dims);
    if x.dims() != residual.dims() || widths.clone().any(|dims| dims != [columns]) {
        let (widths, residual) = (widths.collect::<Vec<_>>(), residual.shape());
        bail!("add-rms-norm: x {:?}, residual {residual:?} and weights {widths:?} do not match", x.shape())
    }
    #[cfg(feature = "rocm")]
    if let Some(results) = crate::rocm::add_rms_norm(x, residual, post_norm, weight, eps)? {
        return Ok(results);
    }
    let sum = match post_norm {
        Some(post_norm) => (residual + rms_norm(&x.contiguous()?, post_norm, eps)?)?,
        None => (residual + x)?,
    };
    let normed = rms_norm(&sum, weight, eps)?;
    Ok((sum, normed))
}

/// RMS norms of the heads of queries and keys.
#[derive(Clone, Copy)]
pub struct HeadNorms<'a> {
    /// Weights for queries (width).
    pub query: &'a Tensor,
    /// Weights for keys (width).
    pub key: &'a Tensor,
    /// Epsilon that is added to the mean square.
    pub eps: f32,
}

/// Rotary embedding of the first `2 * pairs` elements of a head.
#[derive(Clone, Copy)]
pub struct Rotary<'a> {
    /// Cosines, f32 (positions, pairs).
    pub cos: &'a Tensor,
    /// Sines, f32 (positions, pairs).
    pub sin: &'a Tensor,
    /// If true, neighboring elements form pairs; otherwise elements of both halves of the rotated elements do.
    pub interleaved: bool,
}

/// Preparation of projected rows for attention over a paged cache: adds biases, normalizes and rotates the heads of queries
/// and keys, and writes keys and values to their slots of the cache in place.
#[derive(Clone, Copy)]
pub struct CacheHeads<'a> {
    /// Projections to queries (rows, heads · width). Rows of all projections may be strided.
    pub q: &'a Tensor,
    /// Projections to keys (rows, key heads · width).
    pub k: &'a Tensor,
    /// Projections to values (rows, key heads · width).
    pub v: &'a Tensor,
    /// Biases of queries, keys and values, concatenated.
    pub bias: Option<&'a Tensor>,
    /// Norms of queries and keys, applied after the bias.
    pub norms: Option<HeadNorms<'a>>,
    /// Rotary embedding of queries and keys, applied last.
    pub rotary: Rotary<'a>,
    /// Position of each row, u32 (rows).
    pub positions: &'a Tensor,
    /// Slot of each row, u32 (rows). Rows with `u32::MAX` are not written.
    pub slots: &'a Tensor,
    /// Keys of the cache, contiguous (.., key heads, width); the first dims number the slots.
    pub keys: &'a Tensor,
    /// Values of the cache, with the shape and dtype of the keys.
    pub values: &'a Tensor,
    /// Scales of an encoded cache, whose dtype is that of a [`CacheEncoding`]; `None` for caches of floats.
    pub scales: Option<CacheScales<'a>>,
}

/// Sizes of the operands of [`CacheHeads`].
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) width: usize,
    pub(crate) pairs: usize,
    /// Number of rows of the rotary tables.
    pub(crate) positions: usize,
    pub(crate) slots: usize,
}

/// Maximum number of rows per scatter launch of the separate operations, since each GPU thread scans all of them.
const MAX_ROWS_PER_SCATTER: usize = 64;

impl CacheHeads<'_> {
    /// Writes keys and values, and returns the rotated queries (rows, heads, width) in the dtype of the cache, or in that of
    /// [`CacheScales::queries`].
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match. A position or slot out of range returns an error on the CPU. On a GPU, the
    /// next call that waits for the device does; a row without a slot is not written to the cache, and one without a
    /// position is rotated like the first.
    pub fn forward(&self) -> Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(queries) = crate::rocm::cache_heads(self)? {
            return Ok(queries);
        }
        self.forward_separately()
    }

    /// Like [`Self::forward`], with separate operations on all devices.
    ///
    /// # Errors
    /// See [`Self::forward`].
    pub fn forward_separately(&self) -> Result<Tensor> {
        let Sizes { rows, heads, key_heads, width, .. } = self.sizes()?;
        let cache = self.queries_dtype();
        if rows == 0 {
            return Tensor::zeros((rows, heads, width), cache, self.q.device());
        }
        let angles = |table: &Tensor| table.index_select(self.positions, 0)?.to_dtype(self.q.dtype());
        let (cos, sin) = (angles(self.rotary.cos)?, angles(self.rotary.sin)?);
        let prepare = |x: &Tensor, first: usize, heads: usize, norm: Option<&Tensor>| {
            let x = match self.bias {
                Some(bias) => x.broadcast_add(&bias.narrow(0, first * width, heads * width)?)?,
                None => x.contiguous()?,
            };
            let x = x.reshape((rows, heads, width))?;
            match (norm, self.norms) {
                (Some(weight), Some(norms)) => rms_norm(&x, weight, norms.eps),
                _ => Ok(x),
            }
        };
        let rotate = |x: Tensor| rotate(&x, &cos, &sin, self.rotary.interleaved)?.to_dtype(cache);
        let q = prepare(self.q, 0, heads, self.norms.map(|norms| norms.query))?;
        let k = prepare(self.k, heads, key_heads, self.norms.map(|norms| norms.key))?;
        let v = prepare(self.v, heads + key_heads, key_heads, None)?.to_dtype(cache)?;
        let slots_of = |cache: &Tensor| cache.reshape(((), key_heads * width));
        let mut k = rotate(k)?;
        let mut v = v;
        if let (Some(encoding), Some(CacheScales { scales, .. })) = (self.encoding(), self.scales) {
            let ((keys, of_keys), (values, of_values)) = (encoding.encode(&k)?, encoding.encode(&v)?);
            let both = Tensor::stack(&[of_keys, of_values], D::Minus1)?.flatten_from(1)?;
            write_rows(self.slots, &[(scales.reshape(((), 2 * key_heads))?, both)])?;
            (k, v) = (keys, values);
        }
        let keys = (slots_of(self.keys)?, k.flatten_from(1)?);
        write_rows(self.slots, &[keys, (slots_of(self.values)?, v.flatten_from(1)?)])?;
        rotate(q)
    }

    /// Returns the encoding of the cache; `None` for caches of floats.
    fn encoding(&self) -> Option<CacheEncoding> {
        CacheEncoding::of(self.keys.dtype())
    }

    /// Returns the dtype of the rotated queries.
    pub(crate) fn queries_dtype(&self) -> DType {
        self.scales.map_or(self.keys.dtype(), |scales| scales.queries)
    }

    /// Returns true if the cache has scales that match it, or needs none.
    fn has_matching_scales(&self) -> bool {
        let dims = self.keys.dims();
        let Some(CacheScales { scales, queries }) = self.scales else { return self.encoding().is_none() };
        self.encoding().is_some()
            && scales.dtype() == DType::BF16
            && scales.dims().split_last() == Some((&2, &dims[..dims.len() - 1]))
            && scales.is_contiguous()
            && matches!(queries, DType::F16 | DType::BF16 | DType::F32)
    }

    /// Checks all shapes.
    pub(crate) fn sizes(&self) -> Result<Sizes> {
        let [.., key_heads, width] = *self.keys.dims() else {
            bail!("cache-heads: keys must be (.., key heads, width), got {:?}", self.keys.shape())
        };
        let ((rows, columns), key_columns) = (self.q.dims2()?, key_heads * width);
        let heads = columns.checked_div(width).unwrap_or(0);
        let (positions, pairs) = self.rotary.cos.dims2()?;
        let slots = self.keys.elem_count().checked_div(key_columns).unwrap_or(0);
        let all = columns + 2 * key_columns;
        let norms =
            self.norms.is_none_or(|norms| [norms.query, norms.key].iter().all(|norm| norm.dims() == [width]));
        let tables = self.rotary.sin.dims() == [positions, pairs] && 2 * pairs <= width && positions > 0;
        let matches = [
            ("q", width > 0 && heads > 0 && columns == heads * width),
            ("k", self.k.dims() == [rows, key_columns]),
            ("v", self.v.dims() == [rows, key_columns]),
            ("bias", self.bias.is_none_or(|bias| bias.dims() == [all])),
            ("norms", norms),
            ("cos and sin", tables),
            ("positions", self.positions.dims() == [rows]),
            ("slots", self.slots.dims() == [rows]),
            ("values", self.values.dims() == self.keys.dims() && self.values.dtype() == self.keys.dtype()),
            ("the pair of scales of each row of a head, bf16,", self.has_matching_scales()),
            ("keys and values", self.keys.is_contiguous() && self.values.is_contiguous()),
        ];
        if let Some((name, _)) = matches.iter().find(|(_, matches)| !matches) {
            bail!(
                "cache-heads: {name} does not match q {:?} and keys {:?}",
                self.q.shape(),
                self.keys.shape()
            )
        }
        Ok(Sizes { rows, heads, key_heads, width, pairs, positions, slots })
    }
}

/// Rotates the first elements of contiguous heads (rows, heads, width) by angles (rows, pairs).
fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, interleaved: bool) -> Result<Tensor> {
    let (width, rotated) = (x.dim(D::Minus1)?, 2 * cos.dim(D::Minus1)?);
    if rotated < width {
        let first = rotate(&x.narrow(D::Minus1, 0, rotated)?.contiguous()?, cos, sin, interleaved)?;
        return Tensor::cat(&[&first, &x.narrow(D::Minus1, rotated, width - rotated)?], D::Minus1);
    }
    if !interleaved {
        return rope_thd(&x.unsqueeze(0)?, cos, sin)?.squeeze(0);
    }
    // `rope_i` requires (batch, heads, positions, width): rows become batches of one position.
    rope_i(&x.unsqueeze(2)?, &cos.unsqueeze(1)?, &sin.unsqueeze(1)?)?.squeeze(2)
}

/// Writes rows (rows, width) in place to the rows of each tensor (slots, width) that the u32 `slots` (rows) number. All
/// tensors have the same width.
///
/// # Errors
/// If shapes do not match or the device fails. A slot out of range is reported as by `scatter_set`.
pub fn write_rows(slots: &Tensor, tensors: &[(Tensor, Tensor)]) -> Result<()> {
    let Some((_, rows)) = tensors.first() else { return Ok(()) };
    let (count, width) = rows.dims2()?;
    for first in (0..count).step_by(MAX_ROWS_PER_SCATTER) {
        let count = MAX_ROWS_PER_SCATTER.min(count - first);
        let slots = slots.narrow(0, first, count)?.reshape((count, 1))?;
        let slots = slots.broadcast_as((count, width))?.contiguous()?;
        for (to, rows) in tensors {
            to.scatter_set(&slots, &rows.narrow(0, first, count)?, 0)?;
        }
    }
    Ok(())
}
