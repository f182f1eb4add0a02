//! Scaled dot-product attention with an online softmax, which does not materialize the scores.
//!
//! The queries of all heads that share a key head form consecutive rows. With many rows, each workgroup processes 128 rows
//! and iterates over the unmasked keys. With few rows, as in decoding, a workgroup has 4 or 8 rows. If there are too few
//! workgroups to fill the GPU, the keys are split between workgroups, too.
use super::attention_append::{Appended, AppendedHeads};
use super::attention_encoded::{
    check_encoded, encoded_rows, sequences_to_decode, DecodedCache, EncodedCache, ENCODED_WIDTHS,
};
use super::attention_plan::{columns, Plan, Sizes};
use super::attention_rows::{aligned_rows, invalid, AttentionOperand, Rows};
use super::found;
use crate::backend::{BackendDevice, BackendStorage};
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::storage::{element, RocmStorage};
use crate::rocm_backend::{RocmError, Strided};
use crate::{DType, Layout, Result, RocmDevice, Shape};
use hip_kernels::contract::{
    dim_word, AttentionAppend, AttentionAppendEncoded, AttentionDecode, AttentionDecodeEncoded,
    AttentionParts, AttentionRows, AttentionRowsEncoded, AttentionRowsWidth, DecodeEncoding, DecodeKeys,
    DecodeRows, DevicePtr, KernelOf, ATTENTION_COLUMNS, ATTENTION_ROWS, BLOCK, PACK_BYTES,
};

/// Head widths that have kernels of attention_rows, some of them only for 16-bit dtypes; other widths use the next larger
/// one.
const WIDTHS: [(usize, AttentionRowsWidth); 6] = [
    (48, AttentionRowsWidth::W48),
    (64, AttentionRowsWidth::W64),
    (96, AttentionRowsWidth::W96),
    (128, AttentionRowsWidth::W128),
    (256, AttentionRowsWidth::W256),
    (512, AttentionRowsWidth::W512),
];

/// Maximum head width.
pub const ATTENTION_MAX_WIDTH: usize = 512;
/// Limit for the number of positions; as a window it means unlimited.
const UNLIMITED: usize = 1 << 30;

/// Concatenated sequences of different lengths.
pub struct AttentionSequences<'a> {
    /// Cumulative lengths of the queries, u32 (sequences + 1).
    pub queries: AttentionOperand<'a>,
    /// Cumulative lengths of the keys, u32 (sequences + 1). For paged keys, only the lengths matter.
    pub keys: AttentionOperand<'a>,
    /// Maximum number of queries of a sequence; results of queries beyond it are not written.
    pub max_queries: usize,
    /// Maximum number of keys of a sequence.
    pub max_keys: usize,
}

/// Attention: softmax(scale q kᵀ + bias) v, computed in f32.
#[derive(Default)]
pub struct Attention<'a> {
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap c: scores become c tanh(scale q kᵀ / c). No effect if c is not positive.
    pub softcap: Option<f32>,
    /// Number of keys before and after its position that a query attends to; `None` is unlimited. The last query has the
    /// position of the last key. (None, Some(0)) is a causal mask.
    pub window: (Option<usize>, Option<usize>),
    /// ALiBi slopes, f32 (heads): the distance of a key times the slope is subtracted from its score.
    pub slopes: Option<AttentionOperand<'a>>,
    /// Scores of sinks, f32 (heads): a further key that all queries of a head see, whose value is zero. Softcap, window and
    /// mask do not change its score.
    pub sinks: Option<AttentionOperand<'a>>,
    /// Bias that is added to the scores (batch, heads, queries, keys), in the dtype of q, or of attention if rows are appended,
    /// with any strides.
    pub mask: Option<AttentionOperand<'a>>,
    /// Ranges of positions, i32 (batch, n, 2) as [start, end), that attend to each other regardless of the window.
    pub ranges: Option<AttentionOperand<'a>>,
    /// Concatenated sequences instead of a batch. q is then (1, heads, all queries, width), and k and v accordingly.
    pub sequences: Option<AttentionSequences<'a>>,
    /// Page table, u32 or i32 (sequences, maximum pages per sequence). Keys and values are then pages of shape
    /// (pages, key heads, rows of a page, width).
    pub pages: Option<AttentionOperand<'a>>,
    /// Scales of encoded keys and values, bf16 (pages, rows of a page, key heads, 2), dense: each row of a head of a page is the
    /// product of its elements and its scale, the first for keys and the second for values. Keys and values are then in pages,
    /// with rows that are dense, either E4M3 or u8, which are integers plus 128; queries are f16 or bf16.
    pub scales: Option<AttentionOperand<'a>>,
    /// Projections of the step's rows, which are appended to the cache first; `q` is then a projection, too. Keys and values are
    /// in pages with equal strides, with one row for each sequence, and `statistics` is false.
    pub append: Option<AppendedHeads<'a>>,
    /// If true, returns the log-sum-exp of the scores, which gradients need, and sets rows that belong to no sequence
    /// to zero. Otherwise these rows are not written.
    pub statistics: bool,
}

/// Result of [`Attention::forward`].
pub struct AttentionOutput {
    /// The result, in the requested layout.
    pub out: RocmStorage,
    /// Log-sum-exp, f32 (batch, heads, queries), or (heads, all queries) for sequences; negative infinity for queries
    /// without keys.
    pub statistics: Option<RocmStorage>,
}

impl Attention<'_> {
    /// Computes attention for q (batch, heads, queries, width), k (batch, key heads, keys, width) and v (batch, key heads,
    /// keys, value width), in f16, bf16 or f32 and with any strides. `heads` must be a multiple of `key heads`; widths are at
    /// most [`ATTENTION_MAX_WIDTH`]. `out` is the layout of the result (batch, heads, queries, value width), which must start
    /// at 0 and have dense rows and no gaps. A query without keys gives zeros. Operands whose rows are not aligned to
    /// 16 bytes are copied first.
    ///
    /// # Errors
    /// If shapes or dtypes do not match or are not supported. A sequence start or page number out of range is reported by
    /// the next call that waits for the device.
    pub fn forward(
        &self,
        op: &'static str,
        q: AttentionOperand,
        k: AttentionOperand,
        v: AttentionOperand,
        out: &Layout,
    ) -> Result<AttentionOutput> {
        let dtype = self.dtype(q.0);
        let device = q.0.device();
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
            return Err(crate::Error::UnsupportedDTypeForOp(dtype, op).bt());
        }
        let sizes = self.sizes(op, q.1, k.1, v.1)?;
        self.check(op, q.0, k.0, v.0, &sizes)?;
        let (outer, rows) = (q.1.dims()[0], q.1.dims()[2]);
        let shape = Shape::from((outer, sizes.heads, rows, sizes.value_width));
        if out.shape() != &shape || out.start_offset() != 0 {
            return Err(invalid(format!("{op}: result must be {shape:?} with offset 0, not {out:?}")));
        }
        let pack = PACK_BYTES / dtype.size_in_bytes();
        let padded = sizes.value_width.next_multiple_of(pack);
        let all_rows = outer * sizes.heads * rows;
        let alloc = |dtype, elements: usize| match self.statistics && self.sequences.is_some() {
            true => device.zeros_impl(&Shape::from(elements), dtype),
            // SAFETY: the kernels write every element that belongs to a sequence.
            false => unsafe { RocmStorage::alloc(device, dtype, elements, op) },
        };
        let dst = alloc(dtype, all_rows * padded)?;
        let statistics = self.statistics.then(|| alloc(DType::F32, all_rows)).transpose()?;
        if all_rows * padded == 0 {
            return Ok(AttentionOutput { out: dst, statistics });
        }
        let [batch, head, row, _] = *out.stride() else { return Err(invalid(format!("{op}: {out:?}"))) };
        let out_strides = [batch, head, row].map(|stride| stride / sizes.value_width * padded);
        let of_cache = |operand| match self.scales {
            Some(_) => encoded_rows(op, operand),
            None => aligned_rows(op, operand),
        };
        let is_fp8 = k.0.dtype() == DType::F8E4M3;
        let (q_rows, k_rows, v_rows) = (aligned_rows(op, q)?, of_cache(k)?, of_cache(v)?);
        let operands = [(q, &q_rows), (k, &k_rows), (v, &v_rows)];
        let appended = self.append.map(|append| append.arguments(op, operands, &sizes, self.statistics));
        let appended = appended.transpose()?;
        let launch = Launch {
            attention: self,
            op,
            device,
            dtype,
            is_fp8,
            appended,
            sizes: Sizes { value_width: padded, ..sizes },
        };
        launch.enqueue_decoded(
            &q_rows,
            &k_rows,
            &v_rows,
            (dst.slice.ptr(), out_strides),
            statistics.as_ref().map(|s| s.slice.ptr()),
        )?;
        if padded == sizes.value_width {
            return Ok(AttentionOutput { out: dst, statistics });
        }
        // SAFETY: every element is written by the copy.
        let mut dense = unsafe { RocmStorage::alloc(device, dtype, all_rows * sizes.value_width, op)? };
        dst.copy2d(&mut dense, all_rows, sizes.value_width, padded, sizes.value_width, 0, 0)?;
        Ok(AttentionOutput { out: dense, statistics })
    }

    /// Returns the dtype in which queries, keys and values are multiplied; projections may have another.
    fn dtype(&self, q: &RocmStorage) -> DType {
        self.append.map_or(q.dtype(), |append| append.dtype)
    }

    /// Returns the window as passed to kernels.
    pub(super) fn window_words(&self) -> [usize; 2] {
        let (left, right) = self.window;
        [left, right].map(|side| side.unwrap_or(UNLIMITED).min(UNLIMITED))
    }

    /// Checks the shapes of q, k and v and returns their sizes.
    pub(super) fn sizes(&self, op: &'static str, q: &Layout, k: &Layout, v: &Layout) -> Result<Sizes> {
        let (outer, heads, queries, width) = q.shape().dims4()?;
        let (k_outer, key_heads, keys, k_width) = k.shape().dims4()?;
        let (v_outer, v_heads, v_keys, value_width) = v.shape().dims4()?;
        if (k_outer, key_heads, keys) != (v_outer, v_heads, v_keys) || k_width != width {
            let other = if (k_outer, key_heads, keys) == (v_outer, v_heads, v_keys) { q } else { v };
            return Err(mismatch(op, k, other));
        }
        if key_heads == 0 || heads % key_heads != 0 {
            return Err(invalid(format!(
                "{op}: {heads} query heads are not a multiple of {key_heads} key heads"
            )));
        }
        if width.max(value_width) > ATTENTION_MAX_WIDTH {
            let widest = width.max(value_width);
            return Err(invalid(format!(
                "{op}: the head width {widest} is too large, at most {ATTENTION_MAX_WIDTH} is supported"
            )));
        }
        let mut sizes = Sizes {
            batches: outer,
            heads,
            key_heads,
            queries,
            keys,
            width,
            value_width,
            total_queries: queries,
            total_keys: keys,
            page: 0,
            pages: 0,
        };
        if self.pages.is_some() {
            (sizes.page, sizes.pages) = (keys, k_outer);
        }
        if let Some(sequences) = &self.sequences {
            let starts = sequences.queries.1.shape().dims1()?;
            if outer != 1 || starts == 0 || starts != sequences.keys.1.shape().dims1()? {
                return Err(invalid(format!(
                    "{op}: sequences need a batch of 1, not {outer}, and equally many starts of queries and keys"
                )));
            }
            sizes.batches = starts - 1;
            (sizes.queries, sizes.keys) =
                (sequences.max_queries.clamp(1, queries.max(1)), sequences.max_keys);
        }
        if self.pages.is_none() && k_outer != outer {
            return Err(mismatch(op, q, k));
        }
        if self.pages.is_some() && self.sequences.is_none() {
            return Err(invalid(format!("{op}: pages require sequences with their lengths")));
        }
        if sizes.keys.max(queries.saturating_mul(heads)).max(k_outer) > UNLIMITED {
            return Err(RocmError::TooManyElements {
                op,
                elements: sizes.keys.max(queries * heads),
                limit: UNLIMITED,
            }
            .into());
        }
        Ok(sizes)
    }

    /// Checks dtypes and devices of all operands, and shapes of the optional ones.
    pub(super) fn check(
        &self,
        op: &'static str,
        q: &RocmStorage,
        k: &RocmStorage,
        v: &RocmStorage,
        sizes: &Sizes,
    ) -> Result<()> {
        let expect = |name: &str, operand: &Option<AttentionOperand>, dtypes: &[DType], dims: &[usize]| {
            let Some((storage, layout)) = operand else { return Ok(()) };
            if !dtypes.contains(&storage.dtype()) || layout.dims().len() != dims.len() {
                return Err(invalid(format!(
                    "{op}: {name} must be one of {dtypes:?} with the shape {dims:?}, not {:?} {layout:?}",
                    storage.dtype()
                )));
            }
            match layout.dims().iter().zip(dims).all(|(dim, wanted)| dim == wanted || *wanted == usize::MAX) {
                true => Ok(()),
                false => Err(invalid(format!("{op}: {name} must have the shape {dims:?}, not {layout:?}"))),
            }
        };
        let any = usize::MAX;
        let Sizes { batches, heads, queries, keys, .. } = *sizes;
        let (dtype, is_encoded) = (self.dtype(q), self.scales.is_some());
        if is_encoded {
            check_encoded(op, (dtype, k.dtype()), sizes, self.pages.is_some())?;
        }
        let of_keys = if is_encoded { k.dtype() } else { dtype };
        let pairs = [Some((of_keys, k)), Some((of_keys, v)), self.mask.map(|(mask, _)| (dtype, mask))];
        for (lhs, rhs) in pairs.into_iter().flatten() {
            let rhs = rhs.dtype();
            if lhs != rhs {
                return Err(crate::Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt());
            }
        }
        expect("scales", &self.scales, &[DType::BF16], &[sizes.pages, sizes.page, sizes.key_heads, 2])?;
        // The kernel reads pairs as words, and appended scales are written to the operand itself, not to a dense copy.
        if let Some((storage, layout)) = self.scales {
            let at = storage.ptr(layout, op)?.0.addr();
            if !layout.is_contiguous() || !at.is_multiple_of(4) {
                return Err(invalid(format!(
                    "{op}: scales must be dense and begin at a multiple of 4 bytes, got {layout:?} at {at:#x}; copy them"
                )));
            }
        }
        expect("slopes", &self.slopes, &[DType::F32], &[heads])?;
        expect("sinks", &self.sinks, &[DType::F32], &[heads])?;
        expect("masks", &self.mask, &[dtype], &[batches, heads, queries, keys])?;
        expect("ranges", &self.ranges, &[DType::I32], &[batches, any, 2])?;
        expect("page tables", &self.pages, &[DType::U32, DType::I32], &[batches, any])?;
        let lengths = self.sequences.as_ref().map(|s| [s.queries, s.keys]);
        for starts in lengths.into_iter().flatten() {
            expect("sequence starts", &Some(starts), &[DType::U32, DType::I32], &[any])?;
        }
        let others = [self.slopes, self.sinks, self.mask, self.ranges, self.pages, self.scales];
        let others = others.into_iter().flatten();
        let appended = self.append.into_iter().flat_map(|append| append.operands());
        let others = others.chain(lengths.into_iter().flatten()).chain(appended).map(|(storage, _)| storage);
        for storage in [k, v].into_iter().chain(others) {
            let (lhs, rhs) = (q.device(), storage.device());
            if lhs.ordinal() != rhs.ordinal() {
                let (lhs, rhs) = (lhs.location(), rhs.location());
                return Err(crate::Error::DeviceMismatchBinaryOp { lhs, rhs, op }.bt());
            }
            q.order_after(storage)?;
        }
        Ok(())
    }
}

/// Returns the address of an optional operand. One that is not dense is copied; `copies` keeps the copy until the launch.
pub(super) fn dense_ptr(
    op: &'static str,
    operand: Option<AttentionOperand>,
    copies: &mut Vec<RocmStorage>,
) -> Result<DevicePtr> {
    let Some((storage, layout)) = operand else { return Ok(DevicePtr::NULL) };
    if layout.is_contiguous() {
        return storage.ptr(layout, op);
    }
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the copy.
    let mut copy = unsafe { RocmStorage::alloc(storage.device(), storage.dtype(), elements, op)? };
    storage.copy_strided_src(&mut copy, 0, layout)?;
    let at = copy.slice.ptr();
    copies.push(copy);
    Ok(at)
}

/// Kernel for many queries.
enum RowsKernel {
    Plain(KernelOf<AttentionRows<'static>>),
    Encoded(KernelOf<AttentionRowsEncoded<'static>>),
}

struct Launch<'a> {
    attention: &'a Attention<'a>,
    op: &'static str,
    device: &'a RocmDevice,
    dtype: DType,
    /// True if keys and values are E4M3.
    is_fp8: bool,
    /// Arguments of the rows that are appended first.
    appended: Option<Appended>,
    sizes: Sizes,
}

impl Launch<'_> {
    /// Like [`Self::enqueue`]; with many queries, decodes an encoded cache first, that of some sequences at a time.
    fn enqueue_decoded(
        &self,
        q: &Rows,
        k: &Rows,
        v: &Rows,
        out: (DevicePtr, [usize; 3]),
        statistics: Option<DevicePtr>,
    ) -> Result<()> {
        let (op, whole, sizes) = (self.op, self.attention, &self.sizes);
        let is_plain = whole.mask.is_none() && whole.ranges.is_none() && self.appended.is_none();
        let (Some(scales), Some(sequences), Some(pages), true) =
            (whole.scales, &whole.sequences, whole.pages, is_plain)
        else {
            return self.enqueue(q, k, v, out, statistics);
        };
        let table_row = pages.1.dims()[1];
        let Some(each) = sequences_to_decode(self.device, sizes, [k, v], table_row)? else {
            return self.enqueue(q, k, v, out, statistics);
        };
        for first in (0..sizes.batches).step_by(each) {
            let batches = each.min(sizes.batches - first);
            let query_layout = sequences.queries.1.narrow(0, first, batches + 1)?;
            let key_layout = sequences.keys.1.narrow(0, first, batches + 1)?;
            let table_layout = pages.1.narrow(0, first, batches)?;
            let (queries, keys) = ((sequences.queries.0, &query_layout), (sequences.keys.0, &key_layout));
            let mut copies = Vec::new();
            let mut dense = |operand| dense_ptr(op, Some(operand), &mut copies);
            let cache = EncodedCache {
                keys: k,
                values: v,
                scales: dense(scales)?,
                query_starts: dense(queries)?,
                key_starts: dense(keys)?,
                table: dense((pages.0, &table_layout))?,
                table_row,
                left: whole.window_words()[0],
                is_fp8: self.is_fp8,
            };
            let sizes = Sizes { batches, ..*sizes };
            let sequences = AttentionSequences { queries, keys, ..*sequences };
            let DecodedCache { keys, values, table, page } =
                DecodedCache::of(op, (self.device, self.dtype), &sizes, &cache)?;
            let pages = Some((&table.0, &table.1));
            let attention = Attention { sequences: Some(sequences), pages, scales: None, ..*whole };
            let sizes = Sizes { page, pages: batches, ..sizes };
            let launch = Launch { attention: &attention, is_fp8: false, appended: None, sizes, ..*self };
            launch.enqueue(q, &keys, &values, out, statistics)?;
        }
        Ok(())
    }

    fn enqueue(
        &self,
        q: &Rows,
        k: &Rows,
        v: &Rows,
        (out, out_strides): (DevicePtr, [usize; 3]),
        statistics: Option<DevicePtr>,
    ) -> Result<()> {
        let (op, device, sizes, attention) = (self.op, self.device, &self.sizes, self.attention);
        let mut copies = Vec::new();
        let mut dense = |operand| dense_ptr(op, operand, &mut copies);
        let (mask, mask_strides) = match attention.mask {
            Some((storage, layout)) => (storage.ptr(layout, op)?, layout.stride().to_vec()),
            None => (DevicePtr::NULL, vec![0; 4]),
        };
        let starts = attention.sequences.as_ref();
        let (query_starts, key_starts) =
            (dense(starts.map(|starts| starts.queries))?, dense(starts.map(|starts| starts.keys))?);
        let (table, slopes, ranges) =
            (dense(attention.pages)?, dense(attention.slopes)?, dense(attention.ranges)?);
        let sinks = dense(attention.sinks)?;
        let scales = dense(attention.scales)?;
        let (is_encoded, is_fp8) = (attention.scales.is_some(), self.is_fp8);
        let table_row = attention.pages.map_or(0, |(_, layout)| layout.dims()[1]);
        let range_count = attention.ranges.map_or(0, |(_, layout)| layout.dims()[1]);
        let info = Strided::verbatim(
            op,
            &[
                &sizes.words(),
                &q.strides,
                &k.strides,
                &v.strides,
                &out_strides,
                &mask_strides,
                &[dim_word(sizes.page), sizes.pages, table_row],
                &sizes.statistics_strides(),
                &attention.window_words(),
                &[range_count, 2 * range_count],
            ],
        )?;
        let wanted = sizes.width.max(sizes.value_width);
        let of = element(self.dtype);
        let fits = |most: usize| wanted <= most;
        let found_width = match is_encoded {
            true => ENCODED_WIDTHS.into_iter().filter(|(most, _)| fits(*most)).find_map(|(most, width)| {
                Some((most, RowsKernel::Encoded(AttentionRowsEncoded::kernel(width, of?)?)))
            }),
            false => WIDTHS.into_iter().filter(|(most, _)| fits(*most)).find_map(|(most, width)| {
                Some((most, RowsKernel::Plain(AttentionRows::kernel(width, of?)?)))
            }),
        };
        let Some((most, of_rows)) = found_width else {
            return Err(invalid(format!(
                "{op}: the head width {wanted} is too large, at most {ATTENTION_MAX_WIDTH} is supported"
            )));
        };
        let columns = columns(most, self.dtype, device.has_matrix_units());
        let wide_decode = self.dtype.size_in_bytes() == 2;
        let multiprocessors = device.multiprocessors();
        let of_few_keys =
            self.appended.as_ref().and_then(|_| Plan::of_few_keys(sizes, self.dtype, multiprocessors));
        let Plan { rows, keys, grid } =
            of_few_keys.unwrap_or_else(|| Plan::of(sizes, columns, wide_decode, multiprocessors));
        let (x, y, parts) = grid;
        let is_decode = rows != ATTENTION_ROWS;
        let config = LaunchConfig::for_grid(op, grid, BLOCK as u32)?;
        // The common arguments of all kernels, followed by those of one kernel.
        macro_rules! arguments {
            ($kernel:ident { $($extra:tt)* }) => {
                $kernel {
                    q: q.at,
                    k: k.at,
                    v: v.at,
                    mask,
                    out,
                    statistics: statistics.unwrap_or(DevicePtr::NULL),
                    slopes,
                    query_starts,
                    key_starts,
                    table,
                    ranges,
                    info: &info,
                    scale: attention.scale,
                    softcap: attention.softcap.unwrap_or(0.0),
                    total_queries: sizes.total_queries as u32,
                    total_keys: sizes.total_keys as u32,
                    sinks,
                    $($extra)*
                }
            };
        }
        let decode_rows = if rows == 4 { DecodeRows::R4 } else { DecodeRows::R8 };
        let encoding = if is_fp8 { DecodeEncoding::Fp8 } else { DecodeEncoding::Int8 };
        if let Some(appended) = &self.appended {
            let keys = if keys == 2 { DecodeKeys::K2 } else { DecodeKeys::K4 };
            let Appended { k, v, norms: [q_norm, k_norm], angles: [cos, sin], .. } = appended;
            macro_rules! launch {
                ($kernel:ident($($encoding:ident)?) { $($extra:ident),* }) => {{
                    let kernel = of.and_then(|of| $kernel::kernel(decode_rows, keys, of, $($encoding)?));
                    let arguments = arguments!($kernel {
                        own_k: k.at,
                        own_v: v.at,
                        bias: appended.bias,
                        q_norm: *q_norm,
                        k_norm: *k_norm,
                        cos: *cos,
                        sin: *sin,
                        position_of: appended.positions,
                        slot_of: appended.slots,
                        q_stride: q.strides[2] as u32,
                        k_stride: k.strides[2] as u32,
                        v_stride: v.strides[2] as u32,
                        pairs: appended.pairs as u32,
                        positions: appended.rows as u32,
                        is_f32: appended.is_f32,
                        interleaved: appended.interleaved,
                        // Copies of operands are launches of the same graph.
                        constant_history: appended.constant_history && copies.is_empty(),
                        eps: appended.eps,
                        $($extra),*
                    });
                    // SAFETY: `AppendedHeads::arguments` checked shapes, dtypes and alignment, and its limits select a plan of
                    // attention_decode. The kernel checks lengths, pages, positions and slots. The module's memory suffices
                    // for the plan.
                    unsafe { device.launch_overlapping(found(kernel, op, self.dtype)?, config, &arguments) }
                }};
            }
            return match is_encoded {
                true => launch!(AttentionAppendEncoded(encoding) { scales, is_fp8 }),
                false => launch!(AttentionAppend() {}),
            };
        }
        if is_decode && is_encoded {
            let kernel = of.and_then(|of| AttentionDecodeEncoded::kernel(decode_rows, of, encoding));
            let kernel = found(kernel, op, self.dtype)?;
            let arguments = arguments!(AttentionDecodeEncoded { scales, is_fp8 });
            // SAFETY: the layouts were checked against their buffers and each other; the kernel checks lengths and pages.
            // The module's memory suffices for the plan.
            return unsafe { device.launch_overlapping(kernel, config, &arguments) };
        }
        if is_decode {
            let kernel = found(of.and_then(|of| AttentionDecode::kernel(decode_rows, of)), op, self.dtype)?;
            // SAFETY: as above.
            return unsafe { device.launch_overlapping(kernel, config, &arguments!(AttentionDecode {})) };
        }
        // Per row and part: the partial sums of the columns, the maximum score and the sum of the weights.
        let scratch_len = if parts > 1 { x * y * parts * rows * (columns + 2) } else { 0 };
        // SAFETY: the kernels read only what they have written.
        let sums = unsafe { device.alloc::<f32>(scratch_len)? };
        let partial = sums.ptr();
        match of_rows {
            // SAFETY: the layouts were checked as above. `partial` has space for all parts.
            RowsKernel::Plain(kernel) => unsafe {
                device.launch(kernel, config, &arguments!(AttentionRows { partial }))?
            },
            // SAFETY: as above.
            RowsKernel::Encoded(kernel) => unsafe {
                device.launch(
                    kernel,
                    config,
                    &arguments!(AttentionRowsEncoded { partial, scales, is_fp8 }),
                )?
            },
        }
        if parts == 1 {
            return Ok(());
        }
        let kernel = found(of.and_then(AttentionParts::kernel), op, self.dtype)?;
        let rows = (x, y, sizes.rows().min(ATTENTION_ROWS));
        let config = LaunchConfig::for_grid(op, rows, ATTENTION_COLUMNS as u32)?;
        let (parts, columns) = (parts as u32, columns as u32);
        // SAFETY: as above; the kernel reads no keys and values.
        unsafe { device.launch(kernel, config, &arguments!(AttentionParts { partial, parts, columns })) }
    }
}

fn mismatch(op: &'static str, lhs: &Layout, rhs: &Layout) -> crate::Error {
    let (lhs, rhs) = (lhs.shape().clone(), rhs.shape().clone());
    crate::Error::ShapeMismatchBinaryOp { lhs, rhs, op }.bt()
}
