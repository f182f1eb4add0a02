//! Products of activations with a matrix of blocks, and which kernel makes which.
use super::{refused, unexpected, Data, QRocmStorage};
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::{
    BlockFormat, DevicePtr, QuantizeRows, QuantizedRow, QuantizedRows, QuantizedRowsCount, BLOCK,
    QUANTIZED_BESIDE, QUANTIZED_PIECE,
};
use crate::rocm_backend::{element, Buffer, LaunchConfig, RocmError};
use crate::{DType, Layout, Result, RocmDevice, RocmStorage, Shape};

const OP: &str = "quantized-matmul";

/// Bytes of the scale and the sums of QUANTIZED_PIECE activations, behind their bytes.
const SCALE_BYTES: usize = 8;
/// Rows that the kernel for few rows takes at a time.
const FEW: usize = 4;
/// The longest row whose bytes and scales fit into the LDS of a workgroup, on every GPU.
const LONGEST_IN_LDS: usize = 32768;
/// Threads that leave no large GPU idle, and the fewest of them that read neighbouring pieces of a row of blocks.
const ENOUGH_THREADS: usize = 1 << 17;
const LEAST_WIDTH: usize = 32;

/// How a product is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One row of f32, whose bytes every workgroup makes for itself.
    Row,
    /// Dot products of bytes, with activations that were made bytes by a launch before; [`FEW`] rows at a time.
    FewRows,
    /// The matrix as f32, and a dense product.
    Dense,
}

/// The most rows of each way, the first that fits being taken.
///
/// One row: reading the blocks takes all the time there is, and a launch more would cost as much as a small product. A
/// few: the blocks are still read once, or so often from the cache that they take less than the dense matrix, which is
/// eight times as large in f32 as blocks of 4 bits and is written and read besides.
fn way(rows: usize, columns: usize, dtype: DType) -> Way {
    match rows {
        1 if dtype == DType::F32 && columns <= LONGEST_IN_LDS => Way::Row,
        ..=16 => Way::FewRows,
        _ => Way::Dense,
    }
}

/// See [`QRocmStorage::fwd`].
pub(super) fn forward(
    matrix: &QRocmStorage,
    shape: &Shape,
    x: &RocmStorage,
    layout: &Layout,
) -> Result<(RocmStorage, Shape)> {
    if !layout.is_contiguous() {
        return Err(refused(format!("input tensor is not contiguous {layout:?}")));
    }
    let (n, k) = shape.dims2()?;
    let [outer @ .., last] = layout.dims() else {
        return Err(refused(format!("input tensor has only one dimension {layout:?}")));
    };
    if outer.is_empty() {
        return Err(refused(format!("input tensor has only one dimension {layout:?}")));
    }
    if *last != k {
        return Err(refused(format!("input tensor {layout:?} incompatible with {shape:?}")));
    }
    let dtype = x.dtype();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(refused(format!("Expected f32/f16/bf16")));
    }
    matrix.check_holds(n * k, OP)?;
    let rows: usize = outer.iter().product();
    let result = Shape::from([outer, &[n]].concat());
    if rows * n * k == 0 {
        let zeros = crate::backend::BackendDevice::zeros_impl(&x.device, &result, dtype)?;
        return Ok((zeros, result));
    }
    let out = match &matrix.data {
        Data::Floats(_) => dense(matrix, x, layout, (rows, n, k))?,
        Data::Blocks(format, blocks) => match way(rows, k, dtype) {
            Way::Row => one_row(*format, blocks.ptr(), x, layout, (n, k))?,
            Way::FewRows => few_rows(*format, blocks.ptr(), x, layout, (rows, n, k))?,
            Way::Dense => dense(matrix, x, layout, (rows, n, k))?,
        },
    };
    match out.dtype() == dtype {
        true => Ok((out, result)),
        false => Ok((out.to_dtype(&Layout::contiguous(&result), dtype)?, result)),
    }
}

/// The product with the matrix' values, in f32.
fn dense(
    matrix: &QRocmStorage,
    x: &RocmStorage,
    layout: &Layout,
    (rows, n, k): (usize, usize, usize),
) -> Result<RocmStorage> {
    let values = matrix.values(n * k, DType::F32)?;
    let transposed = Layout::new((k, n).into(), vec![1, k], 0);
    let flat = Layout::new((rows, k).into(), vec![k, 1], layout.start_offset());
    if x.dtype() == DType::F32 {
        return x.matmul(&values, (1, rows, n, k), &flat, &transposed);
    }
    let wide = x.to_dtype(&flat, DType::F32)?;
    wide.matmul(&values, (1, rows, n, k), &Layout::contiguous((rows, k)), &transposed)
}

/// Where the first of dense activations lies, if kernels can read it in packs; else that of a copy.
fn in_packs<'a>(x: &'a RocmStorage, layout: &Layout, copy: &'a mut Option<RocmStorage>) -> Result<DevicePtr> {
    let at = x.contiguous_ptr(layout, OP)?;
    if at.0.addr().is_multiple_of(4 * x.dtype().size_in_bytes()) {
        return Ok(at);
    }
    // SAFETY: every element is written by the copy.
    let mut dense = unsafe { RocmStorage::alloc(&x.device, x.dtype(), layout.shape().elem_count(), OP)? };
    x.copy_strided_src(&mut dense, 0, layout)?;
    Ok(copy.insert(dense).slice.ptr())
}

/// One row of f32 with one matrix, as (n).
fn one_row(
    format: BlockFormat,
    blocks: DevicePtr,
    x: &RocmStorage,
    layout: &Layout,
    (n, k): (usize, usize),
) -> Result<RocmStorage> {
    let mut copy = None;
    let row = in_packs(x, layout, &mut copy)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&x.device, DType::F32, n, OP)? };
    let none = DevicePtr(std::ptr::null_mut());
    let Groups { width, grid } = Groups::of(n, k)?;
    let end = count(n)?;
    let arguments = QuantizedRow {
        x: row,
        gate: none,
        summand: none,
        w0: blocks,
        w1: none,
        w2: none,
        out0: dst.slice.ptr(),
        out1: none,
        out2: none,
        end0: end,
        end1: end,
        end2: end,
        pieces: count(k / QUANTIZED_PIECE)?,
        width,
    };
    let lds_bytes = count(bytes_of_rows(1, k))?;
    let config = LaunchConfig { grid: (grid, 1, 1), block: (BLOCK as u32, 1, 1), lds_bytes };
    let kernel = QuantizedRow::kernel(format).ok_or_else(|| without_kernel(format))?;
    // SAFETY: the row, the matrix and the output were counted.
    unsafe { x.device.launch(kernel, config, &arguments)? };
    Ok(dst)
}

/// Activations as bytes with scales.
pub(super) struct Activations {
    bytes: Buffer<u8>,
    rows: usize,
    k: usize,
}

impl Activations {
    /// Of `rows` dense rows of f32, f16 or bf16; `k` is whole pieces.
    pub(super) fn of(x: &RocmStorage, layout: &Layout, (rows, k): (usize, usize)) -> Result<Self> {
        let mut copy = None;
        let from = in_packs(x, layout, &mut copy)?;
        let Some(kernel) = element(x.dtype()).and_then(QuantizeRows::kernel) else {
            return Err(unexpected(DType::F32, x.dtype()));
        };
        // SAFETY: all that products read is written by the kernel.
        let bytes = unsafe { x.device.alloc::<u8>(bytes_of_rows(rows, k))? };
        let arguments = QuantizeRows { x: from, out: bytes.ptr(), numel: rows * k };
        // Threads go on in steps of the grid.
        let config = LaunchConfig::for_elements(OP, (rows * k / 4).min(1 << 22))?;
        // SAFETY: the layout was checked against the input, and the output has room for bytes and scales.
        unsafe { x.device.launch(kernel, config, &arguments)? };
        Ok(Self { bytes, rows, k })
    }
}

/// Products with a stack of matrices of n rows each, or with the only one.
pub(super) struct Stacked<'a> {
    pub(super) format: BlockFormat,
    pub(super) blocks: DevicePtr,
    pub(super) n: usize,
    pub(super) matrices: usize,
    /// As u32, the matrix of each product.
    pub(super) experts: Option<DevicePtr>,
    /// As u32, the row of the output of each.
    pub(super) order: Option<DevicePtr>,
    /// As f32, a factor for each row of the output.
    pub(super) factors: Option<DevicePtr>,
    /// Rows of the output that share a row of activations.
    pub(super) per: usize,
    pub(super) device: &'a RocmDevice,
}

impl Stacked<'_> {
    /// `products` of them, written to `out`: a row of n for each, in f32. Up to `at_once` neighbours share what is read.
    ///
    /// # Safety
    /// Pointers cover what the sizes say: activations for the rows of the output, these for the products.
    pub(super) unsafe fn launch(
        &self,
        activations: &Activations,
        products: usize,
        at_once: usize,
        out: DevicePtr,
    ) -> Result<()> {
        let or_null = |ptr: Option<DevicePtr>| ptr.unwrap_or(DevicePtr(std::ptr::null_mut()));
        let (kind, step) =
            if at_once == 1 { (QuantizedRowsCount::C1, 1) } else { (QuantizedRowsCount::C4, FEW) };
        let Some(kernel) = QuantizedRows::kernel(kind, self.format) else {
            return Err(without_kernel(self.format));
        };
        let Groups { width, grid } = Groups::of(self.n, activations.k)?;
        // The kernel counts pieces of activations in 32 bits.
        count(activations.rows * activations.k / QUANTIZED_PIECE)?;
        let arguments = QuantizedRows {
            activations: activations.bytes.ptr(),
            weights: self.blocks,
            experts: or_null(self.experts),
            order: or_null(self.order),
            factors: or_null(self.factors),
            out,
            all: activations.rows,
            count: count(products)?,
            n: count(self.n)?,
            stack: count(self.matrices)?,
            per: count(self.per)?,
            pieces: count(activations.k / QUANTIZED_PIECE)?,
            width,
        };
        let chunks = products.div_ceil(step).min(65535) as u32;
        let config = LaunchConfig { grid: (grid, chunks, 1), block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
        // SAFETY: by the caller's word; what is in the arguments was counted.
        unsafe { self.device.launch(kernel, config, &arguments) }
    }
}

/// Some rows with one matrix, as (rows, n) in f32.
fn few_rows(
    format: BlockFormat,
    blocks: DevicePtr,
    x: &RocmStorage,
    layout: &Layout,
    (rows, n, k): (usize, usize, usize),
) -> Result<RocmStorage> {
    let device = &x.device;
    let activations = Activations::of(x, layout, (rows, k))?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, rows * n, OP)? };
    let (experts, order, factors) = (None, None, None);
    let stacked = Stacked { format, blocks, n, matrices: 1, experts, order, factors, per: 1, device };
    // SAFETY: activations and output have `rows` rows, the matrix n of k.
    unsafe { stacked.launch(&activations, rows, rows, dst.slice.ptr())? };
    Ok(dst)
}

/// How threads are shared out among the rows of a matrix.
struct Groups {
    /// Threads that share QUANTIZED_BESIDE rows: whole lines where it can be, and a piece of the row for each.
    width: u32,
    /// Workgroups.
    grid: u32,
}

impl Groups {
    fn of(n: usize, k: usize) -> Result<Self> {
        let groups = n.div_ceil(QUANTIZED_BESIDE);
        let pieces = k / QUANTIZED_PIECE;
        let width = (ENOUGH_THREADS / groups).next_power_of_two().clamp(LEAST_WIDTH, BLOCK);
        let width = width.min(1 << pieces.ilog2());
        Ok(Self { width: width as u32, grid: count(groups.div_ceil(BLOCK / width))? })
    }
}

/// Bytes of rows of activations and their scales.
fn bytes_of_rows(rows: usize, k: usize) -> usize {
    rows * k + rows * k / QUANTIZED_PIECE * SCALE_BYTES
}

fn count(value: usize) -> Result<u32> {
    u32::try_from(value)
        .ok()
        .filter(|&value| value < 1 << 31)
        .ok_or_else(|| RocmError::TooManyElements { op: OP, elements: value, limit: (1 << 31) - 1 }.into())
}

fn without_kernel(format: BlockFormat) -> crate::Error {
    RocmError::Unsupported(format!("no kernel multiplies {}", format.name())).into()
}
