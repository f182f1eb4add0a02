//! Products of activations with a quantized matrix, and the choice of the kernel.
use super::{few, invalid, library, tiles, unexpected, Data, QRocmStorage};
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::{
    BlockFormat, DevicePtr, KernelId, QuantizeRows, QuantizeRowsSpan, QuantizedRows, QuantizedRowsCount,
    ACTIVATION_NONE, PACK_BYTES, QFEW_STEP, QUANTIZED_PIECE, QUANTIZED_ROW_BLOCK,
};
use crate::rocm_backend::{
    activation_bytes, uses_row_kernel, Groups, RowMatrix, RowProduct, RowProducts, RowWeights,
};
use crate::rocm_backend::{element, LaunchConfig, RocmError};
use crate::{DType, Error, Layout, Result, RocmDevice, RocmStorage, Shape};

pub(super) const OP: &str = "quantized-matmul";

/// Number of rows that the dot-product kernel computes per pass over the matrix.
const DOT_ROWS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProductKernel {
    /// One to four rows, which every workgroup quantizes for itself.
    RowKernel,
    /// 8-bit dot products with activations that a previous launch quantized, [`DOT_ROWS`] rows per pass.
    DotProducts,
    /// Matrix units with activations that a previous launch quantized, 16 rows per pass.
    FewRowsOnMatrixUnits,
    /// Tiles of many rows on matrix units, with activations quantized by a previous launch.
    Tiles,
    /// rocBLAS with the matrix dequantized to bf16; [`ProductKernel::Tiles`] if it has no kernels for the GPU.
    Library,
}

/// Chooses the fastest implementation for a product with `rows` rows of activations.
///
/// `has_row` tells that the kernel for one to four rows is the fastest: reading the blocks dominates, and a second launch
/// would cost as much as a small product. Few rows: the blocks are read once or come from the cache, which costs less than
/// the unused rows of a tile. Dot products are compute-bound from two rows on, so that matrix units are used if there are
/// any, and if rows have enough blocks for their kernel.
///
/// Many rows on a data-center GPU: writing and rereading the bf16 values costs less than what rocBLAS gains over tiles
/// that unpack blocks. The same holds against four passes of the few-row kernel. This was measured on an H200; an
/// Instinct has a similar ratio of compute to bandwidth. A Radeon has too little bandwidth for this and uses tiles.
fn choose_kernel(
    (rows, k): (usize, usize),
    has_row: bool,
    format: BlockFormat,
    device: &RocmDevice,
) -> ProductKernel {
    let by_library = uses_library(device);
    let on_units = has_few_rows_kernel(format, k, device);
    // A pass over small blocks takes longer, since each is scaled separately.
    let few = match (by_library, on_units) {
        (true, true) if format.weights() > QUANTIZED_PIECE => 64,
        (true, false) => 16,
        _ => 32,
    };
    match rows {
        _ if has_row => ProductKernel::RowKernel,
        _ if rows <= few && rows > 1 && on_units => ProductKernel::FewRowsOnMatrixUnits,
        _ if rows <= few => ProductKernel::DotProducts,
        _ if by_library => ProductKernel::Library,
        _ => ProductKernel::Tiles,
    }
}

/// Returns true if products of many rows use rocBLAS, if it has kernels for the GPU.
pub(super) fn uses_library(device: &RocmDevice) -> bool {
    device.is_data_center()
}

/// Returns true if the GPU multiplies a few rows of `k` elements of a format on matrix units.
pub(super) fn has_few_rows_kernel(format: BlockFormat, k: usize, device: &RocmDevice) -> bool {
    device.has_matrix_units() && (format.weights() > QUANTIZED_PIECE || k >= QUANTIZED_PIECE * QFEW_STEP)
}

/// Operands of a product: dense rows of activations and a quantized matrix. No size is 0.
pub(super) struct Operands<'a> {
    pub(super) format: BlockFormat,
    pub(super) blocks: DevicePtr,
    /// The matrix, for its decoded copy; `None` if there is none.
    pub(super) matrix: Option<&'a QRocmStorage>,
    /// Activations: `m` rows of f32, f16 or bf16.
    pub(super) x: &'a RocmStorage,
    pub(super) layout: &'a Layout,
    pub(super) m: usize,
    /// Number of rows of the matrix.
    pub(super) n: usize,
    /// Length of the rows of both operands, a multiple of the block size.
    pub(super) k: usize,
}

impl Operands<'_> {
    /// Unwraps `kernel`; `None` becomes the error that no kernel exists for the format.
    pub(super) fn require<K>(&self, kernel: Option<K>) -> Result<K> {
        kernel.ok_or_else(|| no_kernel(self.format))
    }
}

fn no_kernel(format: BlockFormat) -> Error {
    RocmError::Unsupported(format!("{OP}: no kernel for {}", format.name())).into()
}

/// Returns the number of activations that share a scale, as `qfew` and `qtiles` expect it: those of a block if the GPU has
/// matrix units, for which scales are folded into the weights of large blocks.
pub(super) fn activation_span(format: BlockFormat, device: &RocmDevice) -> QuantizeRowsSpan {
    if format.weights() > QUANTIZED_PIECE && device.has_matrix_units() {
        QuantizeRowsSpan::S256
    } else {
        QuantizeRowsSpan::S32
    }
}

pub(super) fn forward(
    matrix: &QRocmStorage,
    shape: &Shape,
    x: &RocmStorage,
    layout: &Layout,
) -> Result<(RocmStorage, Shape)> {
    if !layout.is_contiguous() {
        return Err(invalid(format!("input tensor is not contiguous {layout:?}")));
    }
    let (n, k) = shape.dims2()?;
    let [outer @ .., last] = layout.dims() else {
        return Err(invalid(format!("input tensor has only one dimension {layout:?}")));
    };
    if outer.is_empty() {
        return Err(invalid(format!("input tensor has only one dimension {layout:?}")));
    }
    if *last != k {
        return Err(invalid(format!("input tensor {layout:?} incompatible with {shape:?}")));
    }
    let dtype = x.dtype();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(invalid("Expected f32/f16/bf16".to_string()));
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
        Data::Blocks(format, blocks) => {
            let blocks = blocks.ptr();
            let operands =
                Operands { format: *format, blocks, matrix: Some(matrix), x, layout, m: rows, n, k };
            let has_row = uses_row_kernel(&x.device, RowWeights::Blocks(*format), dtype, rows, k);
            match choose_kernel((rows, k), has_row, *format, &x.device) {
                ProductKernel::RowKernel => row_kernel(&operands)?,
                ProductKernel::DotProducts => dot_products(&operands)?,
                ProductKernel::FewRowsOnMatrixUnits => few::product(&operands)?,
                ProductKernel::Tiles => tiles::product(&operands)?,
                ProductKernel::Library => match library::product(&operands)? {
                    Some(product) => product,
                    None => tiles::product(&operands)?,
                },
            }
        }
    };
    match out.dtype() == dtype {
        true => Ok((out, result)),
        false => Ok((out.to_dtype(&Layout::contiguous(&result), dtype)?, result)),
    }
}

/// Multiplies with a matrix that is stored as floats. Returns f32.
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

/// Returns the address of dense activations if it is aligned for vector loads, otherwise that of a copy.
pub(super) fn aligned<'a>(
    x: &'a RocmStorage,
    layout: &Layout,
    copy: &'a mut Option<RocmStorage>,
) -> Result<DevicePtr> {
    let at = x.contiguous_ptr(layout, OP)?;
    if at.0.addr().is_multiple_of(PACK_BYTES) {
        return Ok(at);
    }
    // SAFETY: every element is written by the copy.
    let mut dense = unsafe { RocmStorage::alloc(&x.device, x.dtype(), layout.shape().elem_count(), OP)? };
    x.copy_strided_src(&mut dense, 0, layout)?;
    Ok(copy.insert(dense).slice.ptr())
}

/// Multiplies one to four rows. Returns (m, n) in the dtype of the rows.
fn row_kernel(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, layout, m, n, k, .. } = *operands;
    let (dtype, device) = (x.dtype(), &x.device);
    let mut copy = None;
    let row = aligned(x, layout, &mut copy)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, dtype, m * n, OP)? };
    let out = dst.slice.ptr();
    if dtype == DType::F32 && m == 1 {
        // SAFETY: the sizes of the row, the matrix and the output were checked.
        unsafe { device.defer_product(RowProduct { format, blocks, n, k, x: row, out })? };
        return Ok(dst);
    }
    let products = RowProducts {
        weights: RowWeights::Blocks(format),
        rows: m,
        k,
        dtype,
        out_dtype: dtype,
        x: row,
        gate: None,
        norm: None,
        bias: None,
        activation: ACTIVATION_NONE,
        summand: None,
        is_constant: false,
        matrices: &[RowMatrix { weights: blocks, n, out }],
    };
    device.state().stream.bind_and_flush()?;
    // SAFETY: as above.
    unsafe { products.launch(device.state())? };
    Ok(dst)
}

/// Quantizes `rows` dense rows of f32, f16 or bf16 to 8 bits, with one scale per span, and passes their address to `launch`.
/// `k` is a multiple of the span. `launch` must enqueue `kernel` and nothing else. If the preceding product had the same
/// rows, its quantized activations are reused.
pub(super) fn with_quantized_rows(
    device: &RocmDevice,
    x: &RocmStorage,
    layout: &Layout,
    (rows, k): (usize, usize),
    (span, kernel): (QuantizeRowsSpan, KernelId),
    launch: impl FnOnce(DevicePtr) -> Result<()>,
) -> Result<()> {
    let mut copy = None;
    let from = aligned(x, layout, &mut copy)?;
    let quantizer = element(x.dtype())
        .and_then(|of| QuantizeRows::kernel(span, of))
        .ok_or_else(|| unexpected(DType::F32, x.dtype()))?;
    let make = || {
        // SAFETY: the kernel writes everything that products read.
        let bytes = unsafe { device.alloc::<u8>(activation_bytes(rows, k))? };
        let arguments = QuantizeRows { x: from, out: bytes.ptr(), numel: rows * k };
        // The grid may be smaller than the rows, since threads stride over them.
        let config = LaunchConfig::for_elements(OP, (rows * k / 4).min(1 << 22))?;
        // SAFETY: the layout was checked against the input, and the output holds the bytes and the scales.
        unsafe { device.state().launch_now(quantizer, config, &arguments)? };
        Ok(bytes)
    };
    device.with_activations(from, (rows, k), [quantizer.id(), kernel], make, launch)
}

/// Arguments of products with a stack of matrices of n rows each; an ordinary matrix is a stack of one.
pub(super) struct Stacked<'a> {
    pub(super) format: BlockFormat,
    pub(super) blocks: DevicePtr,
    pub(super) n: usize,
    pub(super) matrices: usize,
    /// Index of the matrix of each product, as u32.
    pub(super) experts: Option<DevicePtr>,
    /// Output row of each product, as u32.
    pub(super) order: Option<DevicePtr>,
    /// Factor for each output row, as f32.
    pub(super) factors: Option<DevicePtr>,
    /// Number of output rows that share a row of activations.
    pub(super) rows_per_activation: usize,
    pub(super) device: &'a RocmDevice,
}

impl Stacked<'_> {
    /// Enqueues `products` products of dense rows of activations, each written to `out` as a row of n elements of f32.
    /// `max_shared` is the number of adjacent products that may share a matrix; if it is 1, the kernel for one is used.
    ///
    /// # Safety
    /// The pointers must cover the given sizes, and the activations must have a row for each output row.
    pub(super) unsafe fn launch(
        &self,
        x: &RocmStorage,
        layout: &Layout,
        (rows, k): (usize, usize),
        (products, max_shared): (usize, usize),
        out: DevicePtr,
    ) -> Result<()> {
        let or_null = |ptr: Option<DevicePtr>| ptr.unwrap_or(DevicePtr(std::ptr::null_mut()));
        let (kind, step) =
            if max_shared == 1 { (QuantizedRowsCount::C1, 1) } else { (QuantizedRowsCount::C8, DOT_ROWS) };
        let kernel = QuantizedRows::kernel(kind, self.format).ok_or_else(|| no_kernel(self.format))?;
        let Groups { width, grid } = Groups::in_lds(self.n, k, QUANTIZED_ROW_BLOCK)?;
        // The kernel indexes pieces of activations with 32 bits.
        count(rows * k / QUANTIZED_PIECE)?;
        let device = self.device;
        let mut arguments = QuantizedRows {
            activations: DevicePtr(std::ptr::null_mut()),
            weights: self.blocks,
            experts: or_null(self.experts),
            order: or_null(self.order),
            factors: or_null(self.factors),
            out,
            all: rows,
            count: count(products)?,
            n: count(self.n)?,
            stack: count(self.matrices)?,
            rows_per_activation: count(self.rows_per_activation)?,
            pieces: count(k / QUANTIZED_PIECE)?,
            width,
        };
        let chunks = products.div_ceil(step).min(65535) as u32;
        let config =
            LaunchConfig { grid: (grid, chunks, 1), block: (QUANTIZED_ROW_BLOCK as u32, 1, 1), lds_bytes: 0 };
        let bytes_for = (QuantizeRowsSpan::S32, kernel.id());
        with_quantized_rows(device, x, layout, (rows, k), bytes_for, |activations| {
            arguments.activations = activations;
            // SAFETY: the caller guarantees that the pointers cover the sizes, which were checked for overflow.
            unsafe { device.state().launch_now(kernel, config, &arguments) }
        })
    }
}

/// Multiplies with 8-bit dot products. Returns (m, n) in f32.
fn dot_products(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, layout, m, n, k, .. } = *operands;
    let device = &x.device;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    let (experts, order, factors) = (None, None, None);
    let stacked =
        Stacked { format, blocks, n, matrices: 1, experts, order, factors, rows_per_activation: 1, device };
    // SAFETY: activations and output have m rows, and the matrix has n rows of k elements.
    unsafe { stacked.launch(x, layout, (m, k), (m, m), dst.slice.ptr())? };
    Ok(dst)
}

/// Converts a size to u32; returns an error from 2^31 on.
pub(super) fn count(value: usize) -> Result<u32> {
    u32::try_from(value)
        .ok()
        .filter(|&value| value < 1 << 31)
        .ok_or_else(|| RocmError::TooManyElements { op: OP, elements: value, limit: (1 << 31) - 1 }.into())
}
