//! Matrix products: of few rows by a kernel of ours, which takes the time of reading the right side; else by rocBLAS.
//!
//! rocBLAS is column-major: a row-major C = A B is its C' = B' A', so the right side goes in first and m and n change
//! places. Whatever strides BLAS can express is used where it lies; anything else is made dense first.
use super::{computing, found, strided, MAX_GRID};
use crate::error::MatMulUnexpectedStriding;
use crate::rocm_backend::device::{LaunchConfig, ProductLibrary, RocmDevice};
use crate::rocm_backend::error::{dtype_mismatch, unsupported_dtype};
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result};
use half::f16;
use hip_kernels::contract::{DevicePtr, Product, ProductKind, BLOCK, PACK_BYTES, PRODUCT_ROWS, PRODUCT_TILE};
use rocm_rs::rocblas::{self, ffi};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

const OP: &str = "matmul";
/// Of few rows: threads that leave no large GPU idle, and the fewest that share a column, so that they read whole lines.
const ENOUGH_THREADS: usize = 1 << 17;
const LEAST_WIDTH: usize = 32;

/// One side of a product as BLAS sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operand {
    /// Whether rows are apart by 1 and columns by the leading dimension, instead of the other way round.
    transposed: bool,
    leading: usize,
    /// Elements from one matrix of the batch to the next; 0 where all share one.
    batch_stride: usize,
}

impl Operand {
    /// How BLAS can read the matrices of `layout`, if it can.
    fn of(layout: &Layout, rows: usize, columns: usize) -> Option<Self> {
        let (dims, strides) = (layout.dims(), layout.stride());
        let rank = dims.len();
        let (row_stride, column_stride) = (strides[rank - 2], strides[rank - 1]);
        // The stride along a dim of size 1 is never walked.
        let (transposed, leading) =
            if (column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1) {
                (false, if rows == 1 { columns } else { row_stride })
            } else if (row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1) {
                (true, if columns == 1 { rows } else { column_stride })
            } else {
                return None;
            };
        let batch_stride = batch_stride(&dims[..rank - 2], &strides[..rank - 2])?;
        Some(Self { transposed, leading: leading.max(1), batch_stride })
    }

    fn dense(rows: usize, columns: usize) -> Self {
        Self { transposed: false, leading: columns.max(1), batch_stride: rows * columns }
    }

    fn operation(self) -> ffi::rocblas_operation {
        if self.transposed {
            ffi::rocblas_operation__rocblas_operation_transpose
        } else {
            ffi::rocblas_operation__rocblas_operation_none
        }
    }
}

/// The single stride that walks through all batch dims in order, if there is one.
fn batch_stride(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let mut walked = None;
    let mut next_outer = 0;
    for (&dim, &stride) in dims.iter().zip(strides).rev().filter(|(&dim, _)| dim != 1) {
        match walked {
            None => walked = Some(stride),
            Some(_) if stride != next_outer => return None,
            Some(_) => {}
        }
        next_outer = stride.checked_mul(dim)?;
    }
    Some(walked.unwrap_or(0))
}

/// `lhs` (b, m, k) times `rhs` (b, k, n), as a dense (b, m, n). For f16, bf16, f32 and f64; f16 and bf16 are summed in
/// f32 unless reduced precision is allowed.
pub(crate) fn matmul(
    lhs: &RocmStorage,
    rhs: &RocmStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_layout: &Layout,
    rhs_layout: &Layout,
) -> Result<RocmStorage> {
    let (b, m, n, k) = bmnk;
    let dtype = lhs.slice.dtype();
    if dtype != rhs.slice.dtype() {
        return Err(dtype_mismatch(OP, dtype, rhs.slice.dtype()));
    }
    if !multiplies(dtype) {
        return Err(unsupported_dtype(OP, dtype));
    }
    if k == 0 {
        return strided::zeros(&lhs.device, dtype, b * m * n);
    }
    // SAFETY: every element is written by the product.
    let dst = unsafe { RocmStorage::alloc(&lhs.device, dtype, b * m * n, OP)? };
    if b * m * n == 0 {
        return Ok(dst);
    }
    let out = Output { device: &lhs.device, ptr: dst.slice.ptr(), row_stride: n, batch_stride: m * n };
    product(lhs, rhs, bmnk, lhs_layout, rhs_layout, out)?;
    Ok(dst)
}

/// Whether there are products of this dtype: f16, bf16, f32 and f64, as on the CPU device.
pub(crate) fn multiplies(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Where a product (b, m, n) is written, and on whose stream: rows are dense, and apart by `row_stride` elements.
pub(crate) struct Output<'a> {
    pub device: &'a RocmDevice,
    pub ptr: DevicePtr,
    pub row_stride: usize,
    pub batch_stride: usize,
}

/// The same into memory that is there, for sizes and operands of one dtype that [`matmul`] would take, none of them 0.
/// The output has the room that its strides say.
pub(crate) fn product(
    lhs: &RocmStorage,
    rhs: &RocmStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_layout: &Layout,
    rhs_layout: &Layout,
    out: Output,
) -> Result<()> {
    let (b, m, n, k) = bmnk;
    let fits = |layout: &Layout, rows, columns| {
        matches!(layout.dims(), [batch @ .., r, c]
            if *r == rows && *c == columns && batch.iter().product::<usize>() == b)
    };
    if !fits(lhs_layout, m, k) || !fits(rhs_layout, k, n) {
        return Err(crate::Error::MatMulUnexpectedStriding(Box::new(MatMulUnexpectedStriding {
            lhs_l: lhs_layout.clone(),
            rhs_l: rhs_layout.clone(),
            bmnk,
            msg: "the dims do not fit the sizes",
        }))
        .bt());
    }
    let (dense_lhs, dense_rhs);
    let (a, a_ptr, a_memory) = match Operand::of(lhs_layout, m, k) {
        Some(operand) => (operand, lhs.ptr(lhs_layout, OP)?, &lhs.slice),
        None => {
            dense_lhs = strided::dense(lhs, lhs_layout, OP)?;
            (Operand::dense(m, k), dense_lhs.slice.ptr(), &dense_lhs.slice)
        }
    };
    let (w, w_ptr, w_memory) = match Operand::of(rhs_layout, k, n) {
        Some(operand) => (operand, rhs.ptr(rhs_layout, OP)?, &rhs.slice),
        None => {
            dense_rhs = strided::dense(rhs, rhs_layout, OP)?;
            (Operand::dense(k, n), dense_rhs.slice.ptr(), &dense_rhs.slice)
        }
    };
    // All batches times one matrix, with rows that follow each other: one taller product.
    let joins = !a.transposed && a.batch_stride == m * a.leading && out.batch_stride == m * out.row_stride;
    let (b, m) = if b > 1 && w.batch_stride == 0 && joins { (1, b * m) } else { (b, m) };
    // Each operand was made dense on its own stream.
    let device = out.device;
    device.state().order_after(lhs.device.state())?;
    device.state().order_after(rhs.device.state())?;
    a_memory.used_by(&device.state().stream);
    w_memory.used_by(&device.state().stream);
    let (dtype, sizes) = (lhs.slice.dtype(), (b, m, n, k));
    if m <= PRODUCT_ROWS && in_packs(dtype, k, (a, a_ptr), (w, w_ptr)) {
        return by_kernel(dtype, sizes, (a, a_ptr), (w, w_ptr), &out, true);
    }
    device.state().with_products(|library| match library {
        ProductLibrary::Rocblas(handle) => {
            gemm(&handle.0, (dtype, dtype), sizes, (a, a_ptr), (w, w_ptr), &out)
        }
        ProductLibrary::Own => by_kernel(dtype, sizes, (a, a_ptr), (w, w_ptr), &out, false),
    })
}

/// Whether rows of the left side and columns of the right one are dense, and whole packs.
fn in_packs(
    dtype: DType,
    k: usize,
    (a, rows): (Operand, DevicePtr),
    (w, columns): (Operand, DevicePtr),
) -> bool {
    let bits = k | a.leading | w.leading | a.batch_stride | w.batch_stride;
    let ends = rows.0.addr() | columns.0.addr();
    dtype != DType::F64
        && !a.transposed
        && w.transposed
        && ((bits * dtype.size_in_bytes()) | ends).is_multiple_of(PACK_BYTES)
}

/// The product by a kernel of ours: that for few rows, which reads the right side once, or a plain one.
fn by_kernel(
    dtype: DType,
    (b, m, n, k): (usize, usize, usize, usize),
    (left, a): (Operand, DevicePtr),
    (right, w): (Operand, DevicePtr),
    out: &Output,
    few: bool,
) -> Result<()> {
    let count = |value: usize| {
        u32::try_from(value).map_err(|_| {
            let limit = u32::MAX as usize;
            crate::Error::from(RocmError::TooManyElements { op: OP, elements: value, limit })
        })
    };
    let strides = |operand: Operand| match operand.transposed {
        false => (operand.leading, 1),
        true => (1, operand.leading),
    };
    let kind = match few {
        true if m == 1 => ProductKind::Row,
        true => ProductKind::Rows,
        false => ProductKind::Product,
    };
    let kernel = found(Product::kernel(kind, computing(OP, dtype)?), OP, dtype)?;
    let (tile, packs) = (PRODUCT_TILE, k * dtype.size_in_bytes() / PACK_BYTES);
    // Threads enough to keep a large GPU's memory busy, and a pack for each.
    let width = (ENOUGH_THREADS / (n * b)).next_power_of_two().clamp(LEAST_WIDTH, BLOCK);
    let width = width.min(packs.next_power_of_two());
    let ((a_row, a_column), (b_row, b_column)) = (strides(left), strides(right));
    let arguments = Product {
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
        width: width as u32,
    };
    // The kernels go through y and z in steps of the grid.
    let batches = b.min(MAX_GRID) as u32;
    let (grid, block) = match few {
        true => ((count(n.div_ceil(BLOCK / width))?, 1, batches), (BLOCK as u32, 1, 1)),
        false => {
            let grid = (count(n.div_ceil(tile))?, m.div_ceil(tile).min(MAX_GRID) as u32, batches);
            (grid, (tile as u32, tile as u32, 1))
        }
    };
    let config = LaunchConfig { grid, block, lds_bytes: 0 };
    // SAFETY: the operands were checked against their buffers, and the output has the room that its strides say.
    unsafe { out.device.launch(kernel, config, &arguments) }
}

/// `m` dense rows of `k` bf16 at `a` times the transpose of a dense (n, k) at `w`, as rows of f32, by rocBLAS. No size
/// is 0.
///
/// # Errors
/// rocBLAS' own; if it has no kernels for the GPU, which `has_product_library` tells before.
///
/// # Safety
/// So much lies there, written by what was enqueued on the output's stream before, and the output has the room that its
/// row stride says.
pub(crate) unsafe fn widening_product(
    (m, n, k): (usize, usize, usize),
    a: DevicePtr,
    w: DevicePtr,
    out: &Output,
) -> Result<()> {
    let left = Operand::dense(m, k);
    let right = Operand { transposed: true, leading: k, batch_stride: n * k };
    out.device.state().with_products(|library| match library {
        ProductLibrary::Rocblas(handle) => {
            gemm(&handle.0, (DType::BF16, DType::F32), (1, m, n, k), (left, a), (right, w), out)
        }
        ProductLibrary::Own => Err(RocmError::Unsupported(
            "rocBLAS has no kernels for this GPU: no product of bf16 in f32".into(),
        )
        .into()),
    })
}

/// The product by rocBLAS, of operands of one dtype into another: both the same, or bf16 and f32.
fn gemm(
    handle: &rocblas::Handle,
    (dtype, out_dtype): (DType, DType),
    (b, m, n, k): (usize, usize, usize, usize),
    (a, a_ptr): (Operand, DevicePtr),
    (w, w_ptr): (Operand, DevicePtr),
    out: &Output,
) -> Result<()> {
    let state = &out.device.state();
    let int = |value: usize| {
        i32::try_from(value).map_err(|_| {
            let limit = i32::MAX as usize;
            crate::Error::from(RocmError::TooManyElements { op: OP, elements: value, limit })
        })
    };
    let type_of = |dtype| match dtype {
        DType::F16 => ffi::rocblas_datatype__rocblas_datatype_f16_r,
        DType::BF16 => ffi::rocblas_datatype__rocblas_datatype_bf16_r,
        DType::F64 => ffi::rocblas_datatype__rocblas_datatype_f64_r,
        _ => ffi::rocblas_datatype__rocblas_datatype_f32_r,
    };
    let (data_type, out_type) = (type_of(dtype), type_of(out_dtype));
    // The factors have the type that is computed in.
    let (one_f16, zero_f16) = (f16::ONE, f16::ZERO);
    let (one_f32, zero_f32) = (1f32, 0f32);
    let (one_f64, zero_f64) = (1f64, 0f64);
    fn address<T>(value: &T) -> *const c_void {
        (value as *const T).cast()
    }
    let (compute_type, alpha, beta) = match dtype {
        DType::F16 if gemm_reduced_precision_f16() => (data_type, address(&one_f16), address(&zero_f16)),
        DType::F64 => (data_type, address(&one_f64), address(&zero_f64)),
        _ => (ffi::rocblas_datatype__rocblas_datatype_f32_r, address(&one_f32), address(&zero_f32)),
    };
    let (rows, columns, inner, batches) = (int(n)?, int(m)?, int(k)?, int(b)?);
    let (lda, ldb, ldc) = (int(w.leading)?, int(a.leading)?, int(out.row_stride)?);
    state.stream.begin()?;
    // SAFETY: the operands were checked against their buffers, the output holds b * m * n elements; the factors are
    // read during the call (pointer mode host, the handle's default); the handle is locked.
    let status = unsafe {
        // rocm-rs binds it but keeps it to itself.
        rocm_loader::rocblas::rocblas_gemm_strided_batched_ex(
            handle.as_raw(),
            w.operation(),
            a.operation(),
            rows,
            columns,
            inner,
            alpha,
            w_ptr.0,
            data_type,
            lda,
            w.batch_stride as i64,
            a_ptr.0,
            data_type,
            ldb,
            a.batch_stride as i64,
            beta,
            out.ptr.0,
            out_type,
            ldc,
            out.batch_stride as i64,
            out.ptr.0,
            out_type,
            ldc,
            out.batch_stride as i64,
            batches,
            compute_type,
            ffi::rocblas_gemm_algo__rocblas_gemm_algo_standard,
            0,
            ffi::rocblas_gemm_flags__rocblas_gemm_flags_none,
        )
    };
    let result = match status {
        ffi::rocblas_status__rocblas_status_success => Ok(()),
        status => Err(rocblas::Error::new(status)),
    };
    state.checked(result, || {
        format!("rocblas_gemm_strided_batched_ex({dtype:?} to {out_dtype:?}, batch {b}, m {m}, n {n}, k {k})")
    })
}

// Off by default: products of narrow floats are summed in f32.
static REDUCED_F16: AtomicBool = AtomicBool::new(false);
static REDUCED_BF16: AtomicBool = AtomicBool::new(false);
static REDUCED_F32: AtomicBool = AtomicBool::new(false);

/// Whether f16 products may be summed in f16.
pub fn gemm_reduced_precision_f16() -> bool {
    REDUCED_F16.load(Ordering::Relaxed)
}

/// Lets f16 products be summed in f16.
pub fn set_gemm_reduced_precision_f16(allowed: bool) {
    REDUCED_F16.store(allowed, Ordering::Relaxed);
}

/// Whether bf16 products may be summed in less than f32. rocBLAS has no such mode: kept, without effect.
pub fn gemm_reduced_precision_bf16() -> bool {
    REDUCED_BF16.load(Ordering::Relaxed)
}

/// See [`gemm_reduced_precision_bf16`].
pub fn set_gemm_reduced_precision_bf16(allowed: bool) {
    REDUCED_BF16.store(allowed, Ordering::Relaxed);
}

/// Whether f32 products may be computed with fewer bits. No AMD GPU needs it here: kept, without effect.
pub fn gemm_reduced_precision_f32() -> bool {
    REDUCED_F32.load(Ordering::Relaxed)
}

/// See [`gemm_reduced_precision_f32`].
pub fn set_gemm_reduced_precision_f32(allowed: bool) {
    REDUCED_F32.store(allowed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn operand(dims: &[usize], strides: &[usize]) -> Option<Operand> {
        let layout = Layout::new(Shape::from(dims), strides.to_vec(), 0);
        let [.., rows, columns] = dims else { return None };
        Operand::of(&layout, *rows, *columns)
    }

    #[test]
    fn rows_columns_and_batches_as_blas_sees_them() {
        let op = |transposed, leading, batch_stride| Some(Operand { transposed, leading, batch_stride });
        assert_eq!(operand(&[2, 3, 4], &[12, 4, 1]), op(false, 4, 12));
        assert_eq!(operand(&[2, 3, 4], &[12, 1, 3]), op(true, 3, 12));
        // A narrowed row keeps its parent's leading dimension.
        assert_eq!(operand(&[3, 4], &[10, 1]), op(false, 10, 0));
        // Heads of an attention, (b, h, t, d) from (b, t, h, d): the batch dims do not walk as one.
        assert_eq!(operand(&[2, 5, 3, 4], &[60, 4, 20, 1]), None);
        assert_eq!(operand(&[1, 5, 3, 4], &[60, 4, 20, 1]), op(false, 20, 4));
        // Broadcast over all batches, and over one of two.
        assert_eq!(operand(&[2, 5, 3, 4], &[0, 0, 4, 1]), op(false, 4, 0));
        assert_eq!(operand(&[2, 5, 3, 4], &[12, 0, 4, 1]), None);
        // Neither rows nor columns are dense.
        assert_eq!(operand(&[3, 4], &[8, 2]), None);
        // A broadcast row has no leading dimension.
        assert_eq!(operand(&[3, 4], &[0, 1]), None);
    }

    #[test]
    fn single_rows_and_columns_ignore_their_stride() {
        assert_eq!(
            operand(&[1, 4], &[99, 1]),
            Some(Operand { transposed: false, leading: 4, batch_stride: 0 })
        );
        assert_eq!(
            operand(&[4, 1], &[5, 99]),
            Some(Operand { transposed: false, leading: 5, batch_stride: 0 })
        );
        assert_eq!(
            operand(&[1, 4], &[1, 7]),
            Some(Operand { transposed: true, leading: 7, batch_stride: 0 })
        );
    }
}
