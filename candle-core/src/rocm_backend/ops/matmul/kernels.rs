//! Products by kernels of ours: of few rows, in the time of reading the right side, and on tiles, where rocBLAS has no
//! kernels for the GPU or the dtype.
use super::operand::{Operand, Output, OP};
use crate::rocm_backend::device::{LaunchConfig, RocmDevice};
use crate::rocm_backend::ops::{computing, found, MAX_GRID};
use crate::rocm_backend::RocmError;
use crate::{DType, Result};
use hip_kernels::contract::{
    DevicePtr, Product, ProductKind, TileSide, TiledProduct, BLOCK, PACK_BYTES, PRODUCT_ROWS, PRODUCT_TILE,
    THIN_SIDE,
};

/// Of few rows: threads that leave no large GPU idle, and the fewest that share a column, so that they read whole lines.
const ENOUGH_THREADS: usize = 1 << 17;
const LEAST_WIDTH: usize = 32;
/// Workgroups of the larger tiles are worth it if each multiprocessor has so many.
const LARGE_FOR_EACH: usize = 2;

/// Batches, m, n and k.
type Sizes = (usize, usize, usize, usize);
type Placed = (Operand, DevicePtr);

/// Computes a product of so few rows that reading the right side takes all the time, if rows of the left side and columns
/// of the right one are dense, and whole packs. Says whether it did.
///
/// # Safety
/// The operands were checked against their buffers, and the output has the room that its strides say.
pub(super) unsafe fn few_rows(
    dtype: DType,
    sizes: Sizes,
    left: Placed,
    right: Placed,
    out: &Output,
) -> Result<bool> {
    let (b, m, n, k) = sizes;
    let right = match right {
        // A single column is dense.
        (w, at) if n == 1 && w.leading == 1 => (Operand { transposed: true, leading: k, ..w }, at),
        right => right,
    };
    let kind = match m {
        1 => ProductKind::Row,
        _ if m <= PRODUCT_ROWS => ProductKind::Rows,
        _ if m <= THIN_SIDE && multiplies_thin(out.device, dtype) => ProductKind::Thin,
        _ => return Ok(false),
    };
    if !in_packs(dtype, k, left, right) {
        return Ok(false);
    }
    let packs = k * dtype.size_in_bytes() / PACK_BYTES;
    // Threads enough to keep a large GPU's memory busy, and a pack for each.
    let width = (ENOUGH_THREADS / (n * b)).next_power_of_two().clamp(LEAST_WIDTH, BLOCK);
    let width = width.min(packs.next_power_of_two());
    let columns = if kind == ProductKind::Thin { THIN_SIDE } else { BLOCK / width };
    let config = LaunchConfig {
        grid: (count(n.div_ceil(columns))?, 1, b.min(MAX_GRID) as u32),
        block: (BLOCK as u32, 1, 1),
        lds_bytes: 0,
    };
    let kernel = found(Product::kernel(kind, computing(OP, dtype)?), OP, dtype)?;
    let arguments = Product { width: width as u32, ..plain(sizes, left, right, out)? };
    // SAFETY: by the caller's word.
    unsafe { out.device.launch(kernel, config, &arguments)? };
    Ok(true)
}

/// Returns true if our kernel makes products of few rows that are more than one thread sums.
fn multiplies_thin(device: &RocmDevice, dtype: DType) -> bool {
    match dtype {
        // Measured (docs/performance.md): without matrix units of f32, cuBLAS takes 0.6 of the time.
        DType::F32 => !device.arch().starts_with("sm_"),
        _ => !device.state().drops_denormals(),
    }
}

fn in_packs(dtype: DType, k: usize, (a, rows): Placed, (w, columns): Placed) -> bool {
    let bits = k | a.leading | w.leading | a.batch_stride | w.batch_stride;
    let ends = rows.0.addr() | columns.0.addr();
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
        && !a.transposed
        && w.transposed
        && ((bits * dtype.size_in_bytes()) | ends).is_multiple_of(PACK_BYTES)
}

/// The product on tiles, of any operands: f16, bf16, f32, f8e4m3, which are summed in f32, and f64.
///
/// # Safety
/// See [`few_rows`].
pub(super) unsafe fn tiled(
    dtype: DType,
    sizes: Sizes,
    left: Placed,
    right: Placed,
    out: &Output,
) -> Result<()> {
    let (b, m, n, _) = sizes;
    // The kernels go through z in steps of the grid, the plain one through y as well.
    let batches = b.min(MAX_GRID) as u32;
    let arguments = plain(sizes, left, right, out)?;
    if dtype == DType::F64 {
        let tile = PRODUCT_TILE;
        let grid = (count(n.div_ceil(tile))?, m.div_ceil(tile).min(MAX_GRID) as u32, batches);
        let config = LaunchConfig { grid, block: (tile as u32, tile as u32, 1), lds_bytes: 0 };
        let kernel = found(Product::kernel(ProductKind::Product, computing(OP, dtype)?), OP, dtype)?;
        // SAFETY: by the caller's word.
        return unsafe { out.device.launch(kernel, config, &arguments) };
    }
    let (side, length) = side(out.device, m, n, b);
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
    // SAFETY: by the caller's word.
    unsafe { out.device.launch(kernel, config, &arguments) }
}

/// Large tiles read less; small ones keep more multiprocessors busy.
fn side(device: &RocmDevice, rows: usize, columns: usize, batches: usize) -> (TileSide, usize) {
    let large = rows.div_ceil(128) * columns.div_ceil(128) * batches;
    match rows > 64 && columns > 64 && large >= LARGE_FOR_EACH * device.multiprocessors() {
        true => (TileSide::S128, 128),
        false => (TileSide::S64, 64),
    }
}

/// Arguments that all kernels take.
fn plain((b, m, n, k): Sizes, (left, a): Placed, (right, w): Placed, out: &Output) -> Result<Product> {
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
