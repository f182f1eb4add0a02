//! Products by built-in kernels: of few rows, limited by the bandwidth of reading the right operand, and on tiles, if
//! rocBLAS has no kernels for the GPU or the dtype.
use super::operand::{Operand, Output, OP};
use crate::rocm_backend::device::{LaunchConfig, RocmDevice};
use crate::rocm_backend::ops::few_rows::{uses_row_kernel, uses_thin_kernel};
use crate::rocm_backend::ops::row_product::{RowMatrix, RowProducts, RowWeights};
use crate::rocm_backend::ops::{computing, found, MAX_GRID};
use crate::rocm_backend::RocmError;
use crate::{DType, Result};
use hip_kernels::contract::{
    DevicePtr, Product, ProductKind, TileSide, TiledProduct, ACTIVATION_NONE, BLOCK, PACK_BYTES,
    PRODUCT_ROWS, PRODUCT_TILE, THIN_SIDE,
};

/// Number of threads that saturates a large GPU, for products of few rows.
const FULL_THREADS: usize = 1 << 17;
/// Minimum number of threads per column, so that they read whole cache lines.
const MIN_WIDTH: usize = 32;
/// Minimum number of workgroups per multiprocessor for which large tiles are used.
const MIN_LARGE_TILES: usize = 2;

/// Batches, m, n and k.
type Sizes = (usize, usize, usize, usize);
type Matrix = (Operand, DevicePtr);

/// Computes a product of few rows, if the rows of the left operand and the columns of the right operand are dense and
/// aligned for vector loads. Returns false if it does not apply.
///
/// # Safety
/// The operands must have been checked against their buffers, and the output must cover its sizes and strides.
pub(super) unsafe fn few_rows(
    dtype: DType,
    sizes: Sizes,
    left: Matrix,
    right: Matrix,
    out: &Output,
) -> Result<bool> {
    let (b, m, n, k) = sizes;
    let right = match right {
        // A single column can be treated as transposed.
        (w, at) if n == 1 && w.leading == 1 => (Operand { transposed: true, leading: k, ..w }, at),
        right => right,
    };
    if !is_vectorizable(dtype, k, left, right) {
        return Ok(false);
    }
    let is_dense = b == 1 && left.0.leading == k && right.0.leading == k && out.row_stride == n;
    let by_row_kernel = uses_row_kernel(out.device, RowWeights::Floats, dtype, m, k);
    let kind = match m {
        1 => ProductKind::Row,
        _ if m <= PRODUCT_ROWS && (by_row_kernel || !is_dense) => ProductKind::Rows,
        _ if m <= THIN_SIDE && uses_thin_kernel(out.device, dtype) => ProductKind::Thin,
        _ => return Ok(false),
    };
    if is_dense && by_row_kernel {
        let products = RowProducts {
            weights: RowWeights::Floats,
            rows: m,
            k,
            dtype,
            out_dtype: dtype,
            x: left.1,
            gate: None,
            norm: None,
            bias: None,
            activation: ACTIVATION_NONE,
            summand: None,
            is_constant: false,
            matrices: &[RowMatrix { weights: right.1, n, out: out.ptr }],
        };
        out.device.state().stream.bind_and_flush()?;
        // SAFETY: guaranteed by the caller; the operands are dense and aligned.
        unsafe { products.launch(out.device.state())? };
        return Ok(true);
    }
    let packs = k * dtype.size_in_bytes() / PACK_BYTES;
    // Enough threads to saturate a large GPU, but at most one per vector of a column.
    let width = (FULL_THREADS / (n * b)).next_power_of_two().clamp(MIN_WIDTH, BLOCK);
    let width = width.min(packs.next_power_of_two());
    let columns = if kind == ProductKind::Thin { THIN_SIDE } else { BLOCK / width };
    let config = LaunchConfig {
        grid: (count(n.div_ceil(columns))?, 1, b.min(MAX_GRID) as u32),
        block: (BLOCK as u32, 1, 1),
        lds_bytes: 0,
    };
    let kernel = found(Product::kernel(kind, computing(OP, dtype)?), OP, dtype)?;
    let arguments = Product { width: width as u32, ..base_args(sizes, left, right, out)? };
    // SAFETY: guaranteed by the caller.
    unsafe { out.device.launch(kernel, config, &arguments)? };
    Ok(true)
}

fn is_vectorizable(dtype: DType, k: usize, (a, rows): Matrix, (w, columns): Matrix) -> bool {
    let bits = k | a.leading | w.leading | a.batch_stride | w.batch_stride;
    let ends = rows.0.addr() | columns.0.addr();
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
        && !a.transposed
        && w.transposed
        && ((bits * dtype.size_in_bytes()) | ends).is_multiple_of(PACK_BYTES)
}

/// Computes a product on tiles, for any strides, in f16, bf16, f32 and f8e4m3, which are summed in f32, or in f64.
///
/// # Safety
/// See [`few_rows`].
pub(super) unsafe fn tiled(
    dtype: DType,
    sizes: Sizes,
    left: Matrix,
    right: Matrix,
    out: &Output,
) -> Result<()> {
    let (b, m, n, _) = sizes;
    // The kernels stride over batches in z; the one for f64 also strides over rows in y.
    let batches = b.min(MAX_GRID) as u32;
    let arguments = base_args(sizes, left, right, out)?;
    if dtype == DType::F64 {
        let tile = PRODUCT_TILE;
        let grid = (count(n.div_ceil(tile))?, m.div_ceil(tile).min(MAX_GRID) as u32, batches);
        let config = LaunchConfig { grid, block: (tile as u32, tile as u32, 1), lds_bytes: 0 };
        let kernel = found(Product::kernel(ProductKind::Product, computing(OP, dtype)?), OP, dtype)?;
        // SAFETY: guaranteed by the caller.
        return unsafe { out.device.launch(kernel, config, &arguments) };
    }
    let (side, length) = tile_side(out.device, m, n, b);
    let parts = m.div_ceil(length).saturating_mul(n.div_ceil(length));
    let config =
        LaunchConfig { grid: (count(parts)?, 1, batches), block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
    let kernel = found(TiledProduct::kernel(side, computing(OP, dtype)?), OP, dtype)?;
    let Product { a, b, c, m, n, k, batches, a_row, a_column, a_batch, b_row, b_column, .. } = arguments;
    let Product { b_batch, c_row, c_batch, .. } = arguments;
    let arguments = TiledProduct {
        a,
        b,
        c,
        m,
        n,
        k,
        batches,
        a_row,
        a_column,
        a_batch,
        b_row,
        b_column,
        b_batch,
        c_row,
        c_batch,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { out.device.launch(kernel, config, &arguments) }
}

/// Chooses the tile size: large tiles read less memory, small tiles use more multiprocessors.
fn tile_side(device: &RocmDevice, rows: usize, columns: usize, batches: usize) -> (TileSide, usize) {
    let large = rows.div_ceil(128) * columns.div_ceil(128) * batches;
    match rows > 64 && columns > 64 && large >= MIN_LARGE_TILES * device.multiprocessors() {
        true => (TileSide::S128, 128),
        false => (TileSide::S64, 64),
    }
}

/// Returns the arguments that all kernels share.
fn base_args((b, m, n, k): Sizes, (left, a): Matrix, (right, w): Matrix, out: &Output) -> Result<Product> {
    let strides = |operand: Operand| match operand.transposed {
        false => (operand.leading, 1),
        true => (1, operand.leading),
    };
    let ((a_row, a_column), (b_row, b_column)) = (strides(left), strides(right));
    Ok(Product {
        a,
        b: w,
        c: out.ptr,
        m: count(m)?,
        n: count(n)?,
        k: count(k)?,
        batches: count(b)?,
        a_row,
        a_column,
        a_batch: left.batch_stride,
        b_row,
        b_column,
        b_batch: right.batch_stride,
        c_row: out.row_stride,
        c_batch: out.batch_stride,
        width: 0,
    })
}

fn count(value: usize) -> Result<u32> {
    u32::try_from(value)
        .map_err(|_| RocmError::TooManyElements { op: OP, elements: value, limit: u32::MAX as usize }.into())
}
