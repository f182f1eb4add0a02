//! Products of activations with a matrix of blocks, and which kernel makes which.
use super::{few, library, refused, tiles, unexpected, Data, QRocmStorage};
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::{
    BlockFormat, DevicePtr, KernelId, QuantizeRows, QuantizeRowsSpan, QuantizedRows, QuantizedRowsCount,
    QUANTIZED_PIECE, QUANTIZED_ROW_BLOCK,
};
use crate::rocm_backend::{activation_bytes, Groups, RowProduct};
use crate::rocm_backend::{element, LaunchConfig, RocmError};
use crate::{DType, Error, Layout, Result, RocmDevice, RocmStorage, Shape};

pub(super) const OP: &str = "quantized-matmul";

/// Rows that the kernel for few rows takes at a time.
const FEW: usize = 8;
/// The longest row whose bytes and scales fit into the LDS of a workgroup, on every GPU.
const LONGEST_IN_LDS: usize = 32768;

/// How a product is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One row of f32, whose bytes every workgroup makes for itself.
    Row,
    /// Dot products of bytes, with activations that were made bytes by a launch before; [`FEW`] rows at a time.
    FewRows,
    /// Products on matrix units, with such activations; 16 rows at a time.
    FewOnUnits,
    /// Tiles of products on matrix units, likewise.
    Tiles,
    /// rocBLAS, with the matrix' values in bf16; where it has no kernels for the GPU, [`Way::Tiles`].
    Library,
}

/// The most rows of each way, the first that fits being taken.
///
/// One row: reading the blocks takes all the time there is, and a launch more would cost as much as a small product. A
/// few: the blocks are still read once, or so often from the cache that it takes less than the many unused rows of a tile;
/// on matrix units, if the format's scales can be part of the bytes, since dot products take longer than the reading from
/// two rows on.
///
/// More: writing and reading the values, of 2 bytes each, takes a GPU of the data centre less than the difference between
/// its library's product of bf16 and tiles that unpack blocks, and so do four rounds of a few on matrix units (measured on
/// an H200; an Instinct has matrix units and memory in a like proportion). A Radeon has less memory bandwidth for its
/// matrix units: tiles.
fn way(rows: usize, columns: usize, dtype: DType, on_units: bool, arch: &str) -> Way {
    let library = arch.starts_with("gfx9") || arch.starts_with("sm_");
    let few = match (library, on_units) {
        (true, true) => 64,
        (true, false) => 16,
        (false, _) => 32,
    };
    match rows {
        1 if dtype == DType::F32 && columns <= LONGEST_IN_LDS => Way::Row,
        _ if rows <= few && rows > 1 && on_units => Way::FewOnUnits,
        _ if rows <= few => Way::FewRows,
        _ if library => Way::Library,
        _ => Way::Tiles,
    }
}

/// Dense rows of activations, and the matrix of blocks that they are multiplied with. No size is 0.
pub(super) struct Operands<'a> {
    pub(super) format: BlockFormat,
    pub(super) blocks: DevicePtr,
    /// `m` rows of f32, f16 or bf16.
    pub(super) x: &'a RocmStorage,
    pub(super) layout: &'a Layout,
    pub(super) m: usize,
    /// Rows of the matrix.
    pub(super) n: usize,
    /// Elements of each row of both, whole blocks.
    pub(super) k: usize,
}

impl Operands<'_> {
    /// The kernel, or the error that there is none for the format.
    pub(super) fn found<K>(&self, kernel: Option<K>) -> Result<K> {
        kernel.ok_or_else(|| no_kernel(self.format))
    }
}

fn no_kernel(format: BlockFormat) -> Error {
    RocmError::Unsupported(format!("{OP}: no kernel for {}", format.name())).into()
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
        return Err(refused("Expected f32/f16/bf16".to_string()));
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
            let operands = Operands { format: *format, blocks: blocks.ptr(), x, layout, m: rows, n, k };
            let on_units = few::are_made_of(*format, &x.device);
            match way(rows, k, dtype, on_units, x.device.arch()) {
                Way::Row => one_row(&operands)?,
                Way::FewRows => few_rows(&operands)?,
                Way::FewOnUnits => few::product(&operands)?,
                Way::Tiles => tiles::product(&operands)?,
                Way::Library => match library::product(&operands)? {
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
fn one_row(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, layout, n, k, .. } = *operands;
    let mut copy = None;
    let row = in_packs(x, layout, &mut copy)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&x.device, DType::F32, n, OP)? };
    let product = RowProduct { format, blocks, n, k, x: row, out: dst.slice.ptr() };
    // SAFETY: the row, the matrix and the output were counted.
    unsafe { x.device.defer_product(product)? };
    Ok(dst)
}

/// Has `launch` enqueue `kernel`, and nothing else, with `rows` dense rows of f32, f16 or bf16 as bytes, of which each span
/// has one scale; k is whole spans. What made the bytes of the product before is not done again for the same rows.
pub(super) fn with_bytes(
    device: &RocmDevice,
    x: &RocmStorage,
    layout: &Layout,
    (rows, k): (usize, usize),
    (span, kernel): (QuantizeRowsSpan, KernelId),
    launch: impl FnOnce(DevicePtr) -> Result<()>,
) -> Result<()> {
    let mut copy = None;
    let from = in_packs(x, layout, &mut copy)?;
    let quantizer = element(x.dtype())
        .and_then(|of| QuantizeRows::kernel(span, of))
        .ok_or_else(|| unexpected(DType::F32, x.dtype()))?;
    let make = || {
        // SAFETY: all that products read is written by the kernel.
        let bytes = unsafe { device.alloc::<u8>(activation_bytes(rows, k))? };
        let arguments = QuantizeRows { x: from, out: bytes.ptr(), numel: rows * k };
        // Threads go on in steps of the grid.
        let config = LaunchConfig::for_elements(OP, (rows * k / 4).min(1 << 22))?;
        // SAFETY: the layout was checked against the input, and the output has room for bytes and scales.
        unsafe { device.state().launch_now(quantizer, config, &arguments)? };
        Ok(bytes)
    };
    device.with_activations(from, (rows, k), [quantizer.id(), kernel], make, launch)
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
    /// The products of dense rows with what [`Stacked`] says, `products` of them, written to `out`: a row of n for each,
    /// in f32. Up to `at_once` neighbours share what is read.
    ///
    /// # Safety
    /// Pointers cover what the sizes say: the activations have rows for all rows of the output.
    pub(super) unsafe fn launch(
        &self,
        x: &RocmStorage,
        layout: &Layout,
        (rows, k): (usize, usize),
        (products, at_once): (usize, usize),
        out: DevicePtr,
    ) -> Result<()> {
        let or_null = |ptr: Option<DevicePtr>| ptr.unwrap_or(DevicePtr(std::ptr::null_mut()));
        let (kind, step) =
            if at_once == 1 { (QuantizedRowsCount::C1, 1) } else { (QuantizedRowsCount::C8, FEW) };
        let kernel = QuantizedRows::kernel(kind, self.format).ok_or_else(|| no_kernel(self.format))?;
        let Groups { width, grid } = Groups::in_lds(self.n, k, QUANTIZED_ROW_BLOCK)?;
        // The kernel counts pieces of activations in 32 bits.
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
            per: count(self.per)?,
            pieces: count(k / QUANTIZED_PIECE)?,
            width,
        };
        let chunks = products.div_ceil(step).min(65535) as u32;
        let config =
            LaunchConfig { grid: (grid, chunks, 1), block: (QUANTIZED_ROW_BLOCK as u32, 1, 1), lds_bytes: 0 };
        let bytes_for = (QuantizeRowsSpan::S32, kernel.id());
        with_bytes(device, x, layout, (rows, k), bytes_for, |activations| {
            arguments.activations = activations;
            // SAFETY: by the caller's word; what is in the arguments was counted.
            unsafe { device.state().launch_now(kernel, config, &arguments) }
        })
    }
}

/// Some rows with one matrix, as (m, n) in f32.
fn few_rows(operands: &Operands) -> Result<RocmStorage> {
    let Operands { format, blocks, x, layout, m, n, k } = *operands;
    let device = &x.device;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    let (experts, order, factors) = (None, None, None);
    let stacked = Stacked { format, blocks, n, matrices: 1, experts, order, factors, per: 1, device };
    // SAFETY: activations and output have m rows, the matrix n of k.
    unsafe { stacked.launch(x, layout, (m, k), (m, m), dst.slice.ptr())? };
    Ok(dst)
}

pub(super) fn count(value: usize) -> Result<u32> {
    u32::try_from(value)
        .ok()
        .filter(|&value| value < 1 << 31)
        .ok_or_else(|| RocmError::TooManyElements { op: OP, elements: value, limit: (1 << 31) - 1 }.into())
}
