//! Attention of a decoding step that also writes the cache: the kernel prepares the heads of one row of each sequence, and
//! appends its key and value.
use super::attention_plan::Sizes;
use super::attention_rows::{aligned_rows, invalid, AttentionOperand, Rows};
use crate::backend::BackendStorage;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{DevicePtr, ATTENTION_DECODE_ROWS, ATTENTION_DECODE_WIDTH, PACK_BYTES};

/// Number of columns of a head that a lane prepares.
const COLUMNS: usize = 8;

/// RMS norms of the heads of queries and keys.
#[derive(Clone, Copy)]
pub struct AppendedNorms<'a> {
    /// Weights of queries (width).
    pub query: AttentionOperand<'a>,
    /// Weights of keys (width).
    pub key: AttentionOperand<'a>,
    /// Summand of the mean square.
    pub eps: f32,
}

/// Projections of one row for each sequence, which attention prepares and appends to the cache before it reads it: adds biases,
/// normalizes and rotates the heads of queries and keys, and writes keys and values. Operands are contiguous unless
/// stated otherwise. Those of floats all have the dtype of attention, or all are f32, if none is stated.
#[derive(Clone, Copy)]
pub struct AppendedHeads<'a> {
    /// Dtype of attention: that of the cache, or of an encoded cache f16 or bf16, to which keys and values are rounded before
    /// they are encoded.
    pub dtype: DType,
    /// Projections to keys (1, key heads, rows, width), with any strides but dense heads.
    pub k: AttentionOperand<'a>,
    /// Projections to values, in the shape of `k`.
    pub v: AttentionOperand<'a>,
    /// Biases of all heads of queries, keys and values.
    pub bias: Option<AttentionOperand<'a>>,
    /// Norms, applied after the bias.
    pub norms: Option<AppendedNorms<'a>>,
    /// Cosines of rotary embeddings, f32 (positions, pairs).
    pub cos: AttentionOperand<'a>,
    /// Sines, likewise.
    pub sin: AttentionOperand<'a>,
    /// If true, pairs are neighbors; otherwise elements of both halves of the rotated elements.
    pub interleaved: bool,
    /// Position of each row, u32.
    pub positions: AttentionOperand<'a>,
    /// Slot of each row in the pages, u32: that of the sequence's last key. With `u32::MAX`, nothing is written, and all keys
    /// are in the cache.
    pub slots: AttentionOperand<'a>,
    /// Declares that no earlier operation of a captured graph writes operands other than the projections, or earlier rows of
    /// the cache: `candle_nn::fused_attention::PagedSequences::constant_history`.
    pub constant_history: bool,
}

/// Arguments of the kernel.
pub(super) struct Appended {
    pub(super) k: Rows,
    pub(super) v: Rows,
    pub(super) bias: DevicePtr,
    pub(super) norms: [DevicePtr; 2],
    pub(super) eps: f32,
    pub(super) angles: [DevicePtr; 2],
    pub(super) positions: DevicePtr,
    pub(super) slots: DevicePtr,
    pub(super) pairs: usize,
    /// Number of rows of the angles.
    pub(super) rows: usize,
    pub(super) is_f32: bool,
    pub(super) interleaved: bool,
    pub(super) constant_history: bool,
}

impl<'a> AppendedHeads<'a> {
    /// Returns true if there is a kernel for attention in `dtype` (f16, bf16, or f32 without an encoding), heads of `width`
    /// columns (a multiple of 8, up to 256), `sharing` query heads for each key head (up to 16), and `pairs` rotated pairs (a
    /// multiple of 8, or of 4 if they are interleaved).
    pub fn has_kernel(dtype: DType, width: usize, sharing: usize, pairs: usize, interleaved: bool) -> bool {
        matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
            && width.is_multiple_of(COLUMNS)
            && (1..=ATTENTION_DECODE_WIDTH).contains(&width)
            && (1..=ATTENTION_DECODE_ROWS).contains(&sharing)
            && pairs.is_multiple_of(if interleaved { COLUMNS / 2 } else { COLUMNS })
            && pairs > 0
    }

    /// Returns all operands.
    pub(super) fn operands(&self) -> impl Iterator<Item = AttentionOperand<'a>> {
        let norms = self.norms.map(|norms| [norms.query, norms.key]);
        let optional = self.bias.into_iter().chain(norms.into_iter().flatten());
        [self.k, self.v, self.cos, self.sin, self.positions, self.slots].into_iter().chain(optional)
    }

    /// Checks shapes, dtypes and alignment for attention of these sizes. Queries, keys and values have their aligned rows.
    pub(super) fn arguments(
        &self,
        op: &'static str,
        [(q, q_rows), (k, k_rows), (v, v_rows)]: [(AttentionOperand, &Rows); 3],
        sizes: &Sizes,
        has_statistics: bool,
    ) -> Result<Appended> {
        let Sizes { heads, key_heads, queries, width, value_width, batches, page, .. } = *sizes;
        let (dtype, of_rows) = (self.dtype, q.0.dtype());
        let (positions, pairs) = self.cos.1.shape().dims2()?;
        let sharing = heads / key_heads;
        if queries != 1 || width != value_width || page == 0 || q.1.dims()[2] != batches {
            return Err(invalid(format!(
                "{op}: appending needs pages, one row for each sequence and equal widths, got pages of {page} rows, {} rows for \
                 {batches} sequences of up to {queries} queries, and widths {width} and {value_width}; write the cache in a \
                 separate launch",
                q.1.dims()[2]
            )));
        }
        if has_statistics {
            return Err(invalid(format!(
                "{op}: appending returns no statistics, but they were requested; write the cache in a separate launch"
            )));
        }
        if k_rows.strides != v_rows.strides {
            return Err(invalid(format!(
                "{op}: appending needs keys and values with equal strides, got {:?} and {:?}; write the cache in a separate launch",
                k_rows.strides, v_rows.strides
            )));
        }
        let has_dtype = of_rows == dtype || of_rows == DType::F32;
        if !has_dtype || !Self::has_kernel(dtype, width, sharing, pairs, self.interleaved) {
            return Err(invalid(format!(
                "{op}: no kernel appends {of_rows:?} for attention in {dtype:?} with heads of {width} columns, {sharing} query heads \
                 for each key head and {pairs} rotated pairs (interleaved: {}); write the cache in a separate launch",
                self.interleaved
            )));
        }
        let all = (heads + 2 * key_heads) * width;
        let address = |name: &str, (storage, layout): AttentionOperand, of: DType, dims: &[usize]| {
            let at = storage.ptr(layout, op)?;
            let is_aligned = at.0.addr().is_multiple_of(if of == DType::U32 { 4 } else { PACK_BYTES });
            if storage.dtype() == of && layout.dims() == dims && layout.is_contiguous() && is_aligned {
                return Ok(at);
            }
            let got = storage.dtype();
            Err(invalid(format!(
                "{op}: {name} must be {of:?} {dims:?}, dense and aligned, not {got:?} {layout:?}"
            )))
        };
        // The kernel writes to the cache itself, and not to an aligned copy.
        let check_rows = |name: &str, layout: &Layout, rows: &Rows, head_stride: Option<usize>| {
            let has_heads =
                layout.dims()[1] == 1 || head_stride.is_none_or(|stride| rows.strides[1] == stride);
            match rows.is_copy() || !has_heads {
                true => Err(invalid(format!("{op}: {name} must have dense, aligned heads, not {layout:?}"))),
                false => Ok(()),
            }
        };
        let projection = |name: &str, operand: AttentionOperand| {
            let (expected, dtype, got) = ([1, key_heads, batches, width], operand.0.dtype(), operand.1);
            if dtype != of_rows || got.dims() != expected {
                return Err(invalid(format!(
                    "{op}: {name} must be {of_rows:?} {expected:?}, not {dtype:?} {got:?}"
                )));
            }
            let rows = aligned_rows(op, operand)?;
            check_rows(name, got, &rows, Some(width)).map(|()| rows)
        };
        check_rows("queries", q.1, q_rows, Some(width))?;
        check_rows("keys", k.1, k_rows, None)?;
        check_rows("values", v.1, v_rows, None)?;
        let none = DevicePtr::NULL;
        let bias = self.bias.map_or(Ok(none), |bias| address("bias", bias, of_rows, &[all]))?;
        let (norms, eps) = match self.norms {
            Some(AppendedNorms { query, key, eps }) => {
                let norm = |operand| address("weights of norms", operand, of_rows, &[width]);
                ([norm(query)?, norm(key)?], eps)
            }
            None => ([none; 2], 0.0),
        };
        let angle = |operand| address("cos and sin", operand, DType::F32, &[positions, pairs]);
        let number = |name, operand| address(name, operand, DType::U32, &[batches]);
        Ok(Appended {
            k: projection("appended keys", self.k)?,
            v: projection("appended values", self.v)?,
            bias,
            norms,
            eps,
            angles: [angle(self.cos)?, angle(self.sin)?],
            positions: number("positions", self.positions)?,
            slots: number("slots", self.slots)?,
            pairs,
            rows: positions,
            is_f32: of_rows == DType::F32,
            interleaved: self.interleaved,
            constant_history: self.constant_history,
        })
    }
}
