//! Attention over an encoded cache: keys and values are bytes, and each row of a head has scales.
use super::attention_plan::Sizes;
use super::attention_rows::{invalid, AttentionOperand, Rows, MAX_ROW_STRIDE};
use crate::{DType, Result};
use hip_kernels::contract::{
    AttentionDecodeEncoded, AttentionDecodeEncodedEncoding, AttentionDecodeEncodedRows,
    AttentionRowsEncodedWidth, Element, KernelOf,
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

/// Returns the kernel for few queries.
pub(super) fn decode_kernel(
    rows: usize,
    queries: Element,
    is_fp8: bool,
) -> Option<KernelOf<AttentionDecodeEncoded<'static>>> {
    let rows = if rows == 4 { AttentionDecodeEncodedRows::R4 } else { AttentionDecodeEncodedRows::R8 };
    let encoding = match is_fp8 {
        true => AttentionDecodeEncodedEncoding::Fp8,
        false => AttentionDecodeEncodedEncoding::Int8,
    };
    AttentionDecodeEncoded::kernel(rows, queries, encoding)
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
    Ok(Rows { _copy: None, at, strides: [batch, head, row] })
}
