//! Scaled dot product attention with an online softmax: scores are never in memory.
//!
//! Rows are the queries of all heads that share a key head, behind each other. Many rows: each workgroup has 128 of them and
//! walks over the keys that they see. Few rows: a workgroup has 16, and the keys are shared out over workgroups.
use super::found;
use crate::backend::{BackendDevice, BackendStorage};
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::storage::{element, RocmStorage};
use crate::rocm_backend::{RocmError, Strided};
use crate::{DType, Layout, Result, RocmDevice, Shape};
use hip_kernels::contract::{
    AttentionKeys, AttentionKeysWidth, AttentionParts, AttentionRows, AttentionRowsWidth, DevicePtr,
    ATTENTION_COLUMNS, ATTENTION_FEW, ATTENTION_PARTS, ATTENTION_ROWS, ATTENTION_SPLIT_THREADS, BLOCK,
    PACK_BYTES,
};

/// A storage and the layout of what is used of it.
pub type AttentionOperand<'a> = (&'a RocmStorage, &'a Layout);

/// Widths of heads that kernels are made for; others are computed as the next.
const WIDTHS: [(usize, AttentionRowsWidth, AttentionKeysWidth); 4] = [
    (64, AttentionRowsWidth::W64, AttentionKeysWidth::W64),
    (128, AttentionRowsWidth::W128, AttentionKeysWidth::W128),
    (256, AttentionRowsWidth::W256, AttentionKeysWidth::W256),
    (512, AttentionRowsWidth::W512, AttentionKeysWidth::W512),
];

/// The widest head.
pub const ATTENTION_MAX_WIDTH: usize = 512;
/// Parts of the keys below this are not worth the sums that they leave in memory.
const LEAST_PART: usize = 256;
/// Workgroups for each multiprocessor that keep enough reads under way.
const WORKGROUPS: usize = 4;
/// Rows of keys are not further apart than this many elements: 64 of them are less than 4 GiB.
const FURTHEST_ROW: usize = 1 << 24;
/// More positions than any sequence has, and as a window as good as none.
const FAR: usize = 1 << 30;

/// Sequences of different lengths behind each other.
pub struct AttentionSequences<'a> {
    /// u32 (sequences + 1): where each sequence's queries begin and end.
    pub queries: AttentionOperand<'a>,
    /// Likewise the keys; of paged ones only how many there are matters.
    pub keys: AttentionOperand<'a>,
    /// No sequence has more queries; what is beyond is left as it is.
    pub max_queries: usize,
    /// No sequence has more keys.
    pub max_keys: usize,
}

/// softmax(scale q kᵀ + what else goes into the scores) v, computed in f32.
#[derive(Default)]
pub struct Attention<'a> {
    /// Factor of the scores.
    pub scale: f32,
    /// With c, c tanh(scale q kᵀ / c) takes the place of scale q kᵀ. Not if 0 or less.
    pub softcap: Option<f32>,
    /// How many keys before its own position and behind it a query sees; none for all. The last query's position is the last
    /// key's. (None, Some(0)) is a causal mask.
    pub window: (Option<usize>, Option<usize>),
    /// f32 (heads): the score of a key at a distance is less by the product with it (ALiBi).
    pub slopes: Option<AttentionOperand<'a>>,
    /// Summands of the scores (batch, heads, queries, keys), in the dtype of q, of any strides.
    pub mask: Option<AttentionOperand<'a>>,
    /// i32 (batch, n, 2): positions from the first to before the second see each other beyond the window.
    pub ranges: Option<AttentionOperand<'a>>,
    /// Sequences instead of a batch: q is then (1, heads, all queries, width), k and v likewise.
    pub sequences: Option<AttentionSequences<'a>>,
    /// u32 or i32 (sequences, most pages of one): keys and values are pages (pages, key heads, rows of a page, width), and
    /// this tells which of them a sequence has.
    pub pages: Option<AttentionOperand<'a>>,
    /// Whether the logarithms of the sums of exponents are wanted. If so, rows of no sequence are zeros, not left as they
    /// are: gradients are computed of what a pass with statistics makes.
    pub statistics: bool,
}

/// Result of [`Attention::forward`].
pub struct Attended {
    /// Laid out as was asked for.
    pub out: RocmStorage,
    /// f32 (batch, heads, queries), or (heads, all queries) of sequences; negative infinity where no key is seen.
    pub statistics: Option<RocmStorage>,
}

/// Sizes of the operands of a launch.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batches: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    /// The most of a sequence.
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) width: usize,
    pub(super) value_width: usize,
    /// Totals over all sequences.
    pub(super) total_queries: usize,
    pub(super) total_keys: usize,
    /// Rows of a page, and how many pages there are; 0 if keys are not paged.
    page: usize,
    pages: usize,
}

impl Sizes {
    /// Rows that share a key head.
    pub(super) fn rows(&self) -> usize {
        self.heads / self.key_heads * self.queries
    }

    /// The sizes in the form that kernels read.
    pub(super) fn words(&self) -> [usize; 7] {
        let Self { batches, heads, key_heads, queries, keys, width, value_width, .. } = *self;
        [heads, key_heads, batches, queries, keys, width, value_width]
    }

    /// Strides of batches and heads.
    pub(super) fn statistics_strides(&self) -> [usize; 2] {
        [self.heads * self.total_queries, self.total_queries]
    }
}

/// Where rows of an operand lie: aligned, with batches, heads and rows apart by so many elements.
pub(super) struct Rows {
    /// Keeps a copy alive until the launch.
    _copy: Option<RocmStorage>,
    pub(super) at: DevicePtr,
    pub(super) strides: [usize; 3],
}

impl Attention<'_> {
    /// q is (batch, heads, queries, width), k (batch, key heads, keys, width) and v (batch, key heads, keys, value width) of
    /// any strides, f16, bf16 or f32; `heads` is a multiple of `key heads`, no width is above [`ATTENTION_MAX_WIDTH`]. `out`
    /// is the layout of the result (batch, heads, queries, value width): from the start of the storage on, without holes and
    /// with dense rows. A query that sees no key gives zeros. Rows that do not lie at multiples of 16 bytes are copied first.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are others than these; a length or page that does not exist comes back
    /// from the next call that waits for the device.
    pub fn forward(
        &self,
        op: &'static str,
        q: AttentionOperand,
        k: AttentionOperand,
        v: AttentionOperand,
        out: &Layout,
    ) -> Result<Attended> {
        let (device, dtype) = (q.0.device(), q.0.dtype());
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
            return Err(crate::Error::UnsupportedDTypeForOp(dtype, op).bt());
        }
        let sizes = self.sizes(op, q.1, k.1, v.1)?;
        self.check(op, q.0, k.0, v.0, &sizes)?;
        let (outer, rows) = (q.1.dims()[0], q.1.dims()[2]);
        let shape = Shape::from((outer, sizes.heads, rows, sizes.value_width));
        if out.shape() != &shape || out.start_offset() != 0 {
            return Err(refused(format!("{op}: the result is {shape:?} from the start on, not {out:?}")));
        }
        let pack = PACK_BYTES / dtype.size_in_bytes();
        let padded = sizes.value_width.next_multiple_of(pack);
        let all_rows = outer * sizes.heads * rows;
        let made = |dtype, elements: usize| match self.statistics && self.sequences.is_some() {
            true => device.zeros_impl(&Shape::from(elements), dtype),
            // SAFETY: every element is written by the kernels, or of no sequence.
            false => unsafe { RocmStorage::alloc(device, dtype, elements, op) },
        };
        let dst = made(dtype, all_rows * padded)?;
        let statistics = self.statistics.then(|| made(DType::F32, all_rows)).transpose()?;
        if all_rows * padded == 0 {
            return Ok(Attended { out: dst, statistics });
        }
        let [batch, head, row, _] = *out.stride() else { return Err(refused(format!("{op}: {out:?}"))) };
        let out_strides = [batch, head, row].map(|stride| stride / sizes.value_width * padded);
        let (q, k, v) = (in_packs(op, q)?, in_packs(op, k)?, in_packs(op, v)?);
        let launch =
            Launch { attention: self, op, device, dtype, sizes: Sizes { value_width: padded, ..sizes } };
        launch.enqueue(
            &q,
            &k,
            &v,
            (dst.slice.ptr(), out_strides),
            statistics.as_ref().map(|s| s.slice.ptr()),
        )?;
        if padded == sizes.value_width {
            return Ok(Attended { out: dst, statistics });
        }
        // SAFETY: every element is written by the copy.
        let mut dense = unsafe { RocmStorage::alloc(device, dtype, all_rows * sizes.value_width, op)? };
        dst.copy2d(&mut dense, all_rows, sizes.value_width, padded, sizes.value_width, 0, 0)?;
        Ok(Attended { out: dense, statistics })
    }

    /// The window as kernels read it.
    pub(super) fn seen(&self) -> [usize; 2] {
        let (left, right) = self.window;
        [left, right].map(|side| side.unwrap_or(FAR).min(FAR))
    }

    pub(super) fn sizes(&self, op: &'static str, q: &Layout, k: &Layout, v: &Layout) -> Result<Sizes> {
        let (outer, heads, queries, width) = q.shape().dims4()?;
        let (k_outer, key_heads, keys, k_width) = k.shape().dims4()?;
        let (v_outer, v_heads, v_keys, value_width) = v.shape().dims4()?;
        if (k_outer, key_heads, keys) != (v_outer, v_heads, v_keys) || k_width != width {
            let other = if (k_outer, key_heads, keys) == (v_outer, v_heads, v_keys) { q } else { v };
            return Err(mismatch(op, k, other));
        }
        if key_heads == 0 || heads % key_heads != 0 {
            return Err(refused(format!(
                "{op}: {heads} query heads are no multiple of {key_heads} key heads"
            )));
        }
        if width.max(value_width) > ATTENTION_MAX_WIDTH {
            let widest = width.max(value_width);
            return Err(refused(format!(
                "{op}: heads of width {widest}, at most {ATTENTION_MAX_WIDTH} are possible"
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
                return Err(refused(format!(
                    "{op}: sequences are in a batch of 1, not {outer}, and have as many starts of queries as of keys"
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
            return Err(refused(format!("{op}: pages are of sequences, whose lengths are missing")));
        }
        if sizes.keys.max(queries.saturating_mul(heads)).max(k_outer) > FAR {
            return Err(RocmError::TooManyElements {
                op,
                elements: sizes.keys.max(queries * heads),
                limit: FAR,
            }
            .into());
        }
        Ok(sizes)
    }

    /// Dtypes, devices and shapes of all further operands.
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
                return Err(refused(format!(
                    "{op}: {name} are {dtypes:?} of {dims:?}, not {:?} of {layout:?}",
                    storage.dtype()
                )));
            }
            match layout.dims().iter().zip(dims).all(|(dim, wanted)| dim == wanted || *wanted == usize::MAX) {
                true => Ok(()),
                false => Err(refused(format!("{op}: {name} are of {dims:?}, not {layout:?}"))),
            }
        };
        let any = usize::MAX;
        let Sizes { batches, heads, queries, keys, .. } = *sizes;
        for other in [k, v].into_iter().chain(self.mask.map(|(mask, _)| mask)) {
            let (lhs, rhs) = (q.dtype(), other.dtype());
            if lhs != rhs {
                return Err(crate::Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt());
            }
        }
        expect("slopes", &self.slopes, &[DType::F32], &[heads])?;
        expect("masks", &self.mask, &[q.dtype()], &[batches, heads, queries, keys])?;
        expect("ranges", &self.ranges, &[DType::I32], &[batches, any, 2])?;
        expect("page tables", &self.pages, &[DType::U32, DType::I32], &[batches, any])?;
        let lengths = self.sequences.as_ref().map(|s| [s.queries, s.keys]);
        for starts in lengths.into_iter().flatten() {
            expect("starts of sequences", &Some(starts), &[DType::U32, DType::I32], &[any])?;
        }
        let others = [self.slopes, self.mask, self.ranges, self.pages].into_iter().flatten();
        let others = others.chain(lengths.into_iter().flatten()).map(|(storage, _)| storage);
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

/// The operand, or a copy of it whose rows begin and end at multiples of 16 bytes, with zeros behind them.
pub(super) fn in_packs(op: &'static str, (storage, layout): AttentionOperand) -> Result<Rows> {
    let (outer, heads, rows, width) = layout.shape().dims4()?;
    let pack = PACK_BYTES / storage.dtype().size_in_bytes();
    let at = storage.ptr(layout, op)?;
    let strides: Vec<_> = layout
        .dims()
        .iter()
        .zip(layout.stride())
        .map(|(dim, stride)| if *dim > 1 { *stride } else { 0 })
        .collect();
    let [batch, head, row, column] = *strides else { return Err(refused(format!("{op}: {layout:?}"))) };
    let aligned =
        [batch, head, row, at.0.addr() / storage.dtype().size_in_bytes()].iter().all(|n| n % pack == 0);
    if aligned
        && (column == 1 || width == 1)
        && width % pack == 0
        && row < FURTHEST_ROW
        && batch.max(head) < u32::MAX as usize
    {
        return Ok(Rows { _copy: None, at, strides: [batch, head, row] });
    }
    let (device, dtype) = (storage.device(), storage.dtype());
    let (count, padded) = (outer * heads * rows, width.next_multiple_of(pack));
    // SAFETY: every element is written by the copy.
    let mut copy = unsafe { RocmStorage::alloc(device, dtype, count * width, op)? };
    storage.copy_strided_src(&mut copy, 0, layout)?;
    if padded != width {
        let mut wider = device.zeros_impl(&Shape::from(count * padded), dtype)?;
        copy.copy2d(&mut wider, count, width, width, padded, 0, 0)?;
        copy = wider;
    }
    let at = copy.slice.ptr();
    Ok(Rows { _copy: Some(copy), at, strides: [heads * rows * padded, rows * padded, padded] })
}

/// Where an operand lies, if there is one, or a copy of one that is not dense, which `copies` holds until the launch.
pub(super) fn in_order(
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

struct Launch<'a> {
    attention: &'a Attention<'a>,
    op: &'static str,
    device: &'a RocmDevice,
    dtype: DType,
    sizes: Sizes,
}

/// Distribution of the work over workgroups.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// Few rows a workgroup.
    few: bool,
    grid: (usize, usize, usize),
}

impl Plan {
    fn of(sizes: &Sizes, columns: usize, multiprocessors: usize) -> Self {
        let rows = sizes.rows();
        let pieces = sizes.value_width.div_ceil(columns);
        let blocks = |rows_each: usize| rows.div_ceil(rows_each) * sizes.key_heads * sizes.batches;
        // With a few times as many rows, a workgroup that has them all leaves most of the GPU idle over long keys.
        let idle = rows <= 4 * ATTENTION_FEW && 2 * blocks(ATTENTION_ROWS) * pieces <= multiprocessors;
        if rows > ATTENTION_FEW && !(idle && sizes.keys > 4 * LEAST_PART) {
            return Self { few: false, grid: (blocks(ATTENTION_ROWS), pieces, 1) };
        }
        let blocks = blocks(ATTENTION_FEW);
        let wanted = (WORKGROUPS * multiprocessors) / (blocks * pieces).max(1);
        let parts = wanted.min(sizes.keys.div_ceil(LEAST_PART)).clamp(1, ATTENTION_PARTS);
        Self { few: true, grid: (blocks, pieces, parts) }
    }
}

/// Columns of values of a workgroup, of heads that are computed as so wide: registers hold the sums of 256 of them where a
/// matrix unit makes these from two bytes each, as `attention.cu` has it.
fn columns(width: usize, dtype: DType, matrix_units: bool) -> usize {
    let whole = if matrix_units && dtype.size_in_bytes() == 2 { 256 } else { ATTENTION_COLUMNS };
    if width > whole {
        ATTENTION_COLUMNS
    } else {
        width
    }
}

impl Launch<'_> {
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
        let mut dense = |operand| in_order(op, operand, &mut copies);
        let (mask, mask_strides) = match attention.mask {
            Some((storage, layout)) => (storage.ptr(layout, op)?, layout.stride().to_vec()),
            None => (DevicePtr::NULL, vec![0; 4]),
        };
        let starts = attention.sequences.as_ref();
        let (query_starts, key_starts) =
            (dense(starts.map(|starts| starts.queries))?, dense(starts.map(|starts| starts.keys))?);
        let (table, slopes, ranges) =
            (dense(attention.pages)?, dense(attention.slopes)?, dense(attention.ranges)?);
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
                &[sizes.page, sizes.pages, table_row],
                &sizes.statistics_strides(),
                &attention.seen(),
                &[range_count, 2 * range_count],
            ],
        )?;
        let wanted = sizes.width.max(sizes.value_width);
        let Some((most, rows_width, keys_width)) = WIDTHS.into_iter().find(|(most, ..)| wanted <= *most)
        else {
            return Err(refused(format!(
                "{op}: heads of width {wanted}, at most {ATTENTION_MAX_WIDTH} are possible"
            )));
        };
        let columns = columns(most, self.dtype, device.has_matrix_units());
        let Plan { few, grid } = Plan::of(sizes, columns, device.multiprocessors());
        let threads = if few { ATTENTION_SPLIT_THREADS } else { BLOCK } as u32;
        let config = LaunchConfig::for_grid(op, grid, threads)?;
        // What all kernels are given, and what one is given besides.
        macro_rules! arguments {
            ($kernel:ident $(, $further:ident)*) => {
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
                    $($further,)*
                }
            };
        }
        let of = element(self.dtype);
        if !few {
            let kernel = found(of.and_then(|of| AttentionRows::kernel(rows_width, of)), op, self.dtype)?;
            // SAFETY: all layouts were checked against their buffers and each other; the kernel checks lengths and pages.
            return unsafe { device.launch(kernel, config, &arguments!(AttentionRows)) };
        }
        let (x, y, z) = grid;
        // Sums of a piece's columns, the highest score and the sum of weights of each row.
        let scratch_len = if z > 1 { x * y * z * ATTENTION_FEW * (columns + 2) } else { 0 };
        // SAFETY: what the second launch reads is written by the first.
        let sums = unsafe { device.alloc::<f32>(scratch_len)? };
        let partial = sums.ptr();
        let kernel = found(of.and_then(|of| AttentionKeys::kernel(keys_width, of)), op, self.dtype)?;
        // SAFETY: as above; there is room for the sums of all parts.
        unsafe { device.launch(kernel, config, &arguments!(AttentionKeys, partial))? };
        if z == 1 {
            return Ok(());
        }
        let kernel = found(of.and_then(AttentionParts::kernel), op, self.dtype)?;
        let rows = (x, y, sizes.rows().min(ATTENTION_FEW));
        let config = LaunchConfig::for_grid(op, rows, ATTENTION_PARTS as u32)?;
        let (parts, columns) = (z as u32, columns as u32);
        // SAFETY: as above.
        unsafe { device.launch(kernel, config, &arguments!(AttentionParts, partial, parts, columns)) }
    }
}

fn mismatch(op: &'static str, lhs: &Layout, rhs: &Layout) -> crate::Error {
    let (lhs, rhs) = (lhs.shape().clone(), rhs.shape().clone());
    crate::Error::ShapeMismatchBinaryOp { lhs, rhs, op }.bt()
}

pub(super) fn refused(text: String) -> crate::Error {
    crate::Error::Msg(text).bt()
}
