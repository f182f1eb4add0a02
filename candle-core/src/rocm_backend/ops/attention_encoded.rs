//! Attention over an encoded cache: keys and values are bytes, and each row of a head has scales.
//!
//! The kernels decode a key for each tile of query rows. With many queries, all keys are decoded once, before a kernel for
//! floats.
use super::attention_plan::Sizes;
use super::attention_rows::{invalid, AttentionOperand, Rows, MAX_ROW_STRIDE};
use super::found;
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::storage::{element, RocmStorage};
use crate::{DType, Layout, Result, RocmDevice};
use hip_kernels::contract::{
    dim_word, AttentionRowsEncodedWidth, CacheDecoded, DevicePtr, ATTENTION_ROWS, BLOCK,
};

/// Head widths that have kernels of attention_rows for encoded keys and values; other widths use the next larger one.
pub(super) const ENCODED_WIDTHS: [(usize, AttentionRowsEncodedWidth); 3] = [
    (64, AttentionRowsEncodedWidth::W64),
    (128, AttentionRowsEncodedWidth::W128),
    (ATTENTION_MAX_ENCODED_WIDTH, AttentionRowsEncodedWidth::W256),
];

/// Maximum head width of encoded keys and values.
pub const ATTENTION_MAX_ENCODED_WIDTH: usize = 256;
/// Number of elements of encoded keys and values that the kernels read together; head widths are multiples of it.
pub const ATTENTION_ENCODED_STEP: usize = 8;

/// Minimum number of query rows of a key head, as a mean of the sequences, with which keys are decoded in advance. A key is
/// then read by at least two workgroups.
const MIN_ROWS_TO_DECODE: usize = 2 * ATTENTION_ROWS;
/// Minimum number of query rows on GPUs with products of warpgroups, which only the kernel for floats uses (measured,
/// docs/explanation/performance.md).
const MIN_ROWS_WITH_WARPGROUPS: usize = ATTENTION_ROWS / 2;
/// Maximum size of decoded keys and values, in bytes.
const MAX_DECODED_BYTES: usize = 512 << 20;
/// Maximum number of sequences that are decoded together, which is y of the grid.
const MAX_DECODED_SEQUENCES: usize = 0xffff;
/// Maximum number of workgroups that decode the keys of a sequence.
const MAX_DECODING_GROUPS: usize = 4096;

/// Operands of a launch that decodes keys and values of a cache.
pub(super) struct EncodedCache<'a> {
    pub(super) keys: &'a Rows,
    pub(super) values: &'a Rows,
    pub(super) scales: DevicePtr,
    pub(super) query_starts: DevicePtr,
    pub(super) key_starts: DevicePtr,
    pub(super) table: DevicePtr,
    /// Page numbers of a sequence in the table.
    pub(super) table_row: usize,
    /// Number of keys before its position that a query sees.
    pub(super) left: usize,
    pub(super) is_fp8: bool,
}

/// Decoded keys and values, with a page for each sequence.
pub(super) struct DecodedCache {
    /// Rows of keys, whose memory contains the values too.
    pub(super) keys: Rows,
    pub(super) values: Rows,
    /// Page numbers, u32 (sequences, 1).
    pub(super) table: (RocmStorage, Layout),
    /// Rows of a page.
    pub(super) page: usize,
}

/// Returns the number of sequences whose keys are decoded together; `None` if the attention kernels decode them. `table_row`
/// is the number of pages of a sequence.
///
/// Nothing is decoded in advance within a capture, where the memory would belong to the graph, or if memory is scarce.
///
/// # Errors
/// If HIP fails.
pub(super) fn sequences_to_decode(
    device: &RocmDevice,
    sizes: &Sizes,
    [k, v]: [&Rows; 2],
    table_row: usize,
) -> Result<Option<usize>> {
    let min_rows = match device.arch() == "sm_90" {
        true => MIN_ROWS_WITH_WARPGROUPS,
        false => MIN_ROWS_TO_DECODE,
    };
    let rows = sizes.heads / sizes.key_heads * sizes.total_queries;
    let have_equal_layouts = sizes.width == sizes.value_width && k.strides == v.strides;
    let bytes =
        decoded_rows(sizes, table_row) * 2 * sizes.key_heads * sizes.width * DType::F16.size_in_bytes();
    let is_useful = have_equal_layouts && bytes > 0 && rows >= min_rows * sizes.batches;
    if !is_useful || device.state().stream.is_capturing() {
        return Ok(None);
    }
    let fitting = |max_bytes: usize| (max_bytes / bytes).min(sizes.batches).min(MAX_DECODED_SEQUENCES);
    // The pool has the block of the layer before. The driver is only asked if it has not.
    let most = fitting(MAX_DECODED_BYTES);
    let sequences = match device.state().stream.memory().has_free(most * bytes) {
        true => most,
        false => most.min(fitting(device.safe_alloc_size()?)),
    };
    Ok((sequences > 0).then_some(sequences))
}

/// Returns the maximum number of keys of a sequence.
fn decoded_rows(sizes: &Sizes, table_row: usize) -> usize {
    sizes.keys.min(table_row * sizes.page)
}

impl DecodedCache {
    /// Decodes the keys of `sizes.batches` sequences to `dtype`.
    ///
    /// # Errors
    /// If there is no kernel for the dtype or not enough memory, or the launch fails.
    pub(super) fn of(
        op: &'static str,
        (device, dtype): (&RocmDevice, DType),
        sizes: &Sizes,
        cache: &EncodedCache,
    ) -> Result<Self> {
        let page = decoded_rows(sizes, cache.table_row);
        let strides = [page * sizes.key_heads * sizes.width, sizes.width, sizes.key_heads * sizes.width];
        // SAFETY: attention reads only the rows that the kernel writes.
        let alloc = |dtype, elements| unsafe { RocmStorage::alloc(device, dtype, elements, op) };
        let elements = sizes.batches * strides[0];
        // One block, so that the pool finds it again in the next layer. Rows are multiples of 16 bytes.
        let both = alloc(dtype, 2 * elements)?;
        let keys = both.slice.ptr();
        let values = DevicePtr(keys.0.wrapping_byte_add(elements * dtype.size_in_bytes()));
        let table = alloc(DType::U32, sizes.batches)?;
        let packs = sizes.width / ATTENTION_ENCODED_STEP;
        let [page_stride, head_stride, row_stride] = cache.keys.strides;
        let kernel = found(element(dtype).and_then(CacheDecoded::kernel), op, dtype)?;
        let groups = (page * sizes.key_heads * packs).div_ceil(BLOCK).clamp(1, MAX_DECODING_GROUPS);
        let config = LaunchConfig::for_grid(op, (groups, sizes.batches, 1), BLOCK as u32)?;
        let arguments = CacheDecoded {
            capacity: page as u32,
            left: cache.left as u32,
            pages: sizes.pages as u32,
            table_row: cache.table_row as u32,
            is_fp8: cache.is_fp8,
            page: dim_word(sizes.page),
            heads: dim_word(sizes.key_heads),
            packs: dim_word(packs),
            page_stride,
            head_stride,
            row_stride,
            keys: cache.keys.at,
            values: cache.values.at,
            scales: cache.scales,
            query_starts: cache.query_starts,
            key_starts: cache.key_starts,
            table: cache.table,
            out_keys: keys,
            out_values: values,
            out_table: table.slice.ptr(),
        };
        // SAFETY: the operands were checked against their buffers for these sizes. The kernel checks page numbers, and writes
        // at most `page` rows of each sequence.
        unsafe { device.launch(kernel, config, &arguments)? };
        let rows = |at, storage| Rows { at, copy: storage, strides };
        let table = (table, Layout::contiguous((sizes.batches, 1)));
        Ok(Self { keys: rows(keys, Some(both)), values: rows(values, None), table, page })
    }
}

/// Checks dtypes and widths of encoded keys and values.
pub(super) fn check_encoded(
    op: &'static str,
    (queries, dtype): (DType, DType),
    sizes: &Sizes,
    is_paged: bool,
) -> Result<()> {
    let widest = sizes.width.max(sizes.value_width);
    if !is_paged {
        return Err(invalid(format!("{op}: encoded keys and values must be in pages")));
    }
    if !matches!(queries, DType::F16 | DType::BF16) || !matches!(dtype, DType::U8 | DType::F8E4M3) {
        return Err(invalid(format!(
            "{op}: queries of {queries:?} with encoded keys of {dtype:?} are not supported; use F16 or BF16, and U8 or \
             F8E4M3"
        )));
    }
    if widest > ATTENTION_MAX_ENCODED_WIDTH
        || [sizes.width, sizes.value_width].iter().any(|width| width % ATTENTION_ENCODED_STEP != 0)
    {
        return Err(invalid(format!(
            "{op}: heads of {} and {} elements are not supported with encoded keys; use multiples of \
             {ATTENTION_ENCODED_STEP} up to {ATTENTION_MAX_ENCODED_WIDTH}",
            sizes.width, sizes.value_width
        )));
    }
    Ok(())
}

/// Returns rows of bytes, which must be dense and begin at multiples of the bytes that kernels read together.
pub(super) fn encoded_rows(op: &'static str, (storage, layout): AttentionOperand) -> Result<Rows> {
    let at = storage.ptr(layout, op)?;
    let [batch, head, row, column] = *layout.stride() else {
        return Err(invalid(format!("{op}: {layout:?}")));
    };
    let aligned = [batch, head, row, at.0.addr()].iter().all(|n| n % ATTENTION_ENCODED_STEP == 0);
    if !aligned || column != 1 || row >= MAX_ROW_STRIDE || batch.max(head) >= u32::MAX as usize {
        return Err(invalid(format!(
            "{op}: the rows of encoded keys and values must be dense and aligned to {ATTENTION_ENCODED_STEP} bytes, not \
             {layout:?}"
        )));
    }
    Ok(Rows { copy: None, at, strides: [batch, head, row] })
}
