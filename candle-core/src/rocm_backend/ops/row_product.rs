//! Products of one to four rows of activations with up to three matrices of one kind in one launch, with the operations
//! around them in a decoder layer.
use crate::rocm_backend::device::{DeviceState, LaunchConfig, Order};
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::ops::quantized_row::lds_activation_bytes;
use crate::rocm_backend::storage::element;
use crate::rocm_backend::RocmError;
use crate::{DType, Result};
use hip_kernels::contract::{
    BlockFormat, DevicePtr, KernelId, QuantizedRow, RowCount, RowProduct, ACTIVATION_NONE, FLOAT_BF16,
    FLOAT_F16, FLOAT_F32, PACK_BYTES, PRODUCT_ROWS, QUANTIZED_PIECE, ROW_PRODUCT_BLOCK, ROW_PRODUCT_SUMS,
};

/// The name of the operation in errors.
const OP: &str = "row-product";
/// Maximum number of bytes of weights for each multiprocessor of a small product: one that leaves multiprocessors to attention.
const SMALL_PRODUCT_BYTES: usize = 96 << 10;
/// A small product has the workgroups of all multiprocessors but one in this number, so that attention can start beside them
/// (measured, docs/explanation/performance.md).
const FREE_MULTIPROCESSORS_DIVISOR: usize = 3;
/// Number of threads of a workgroup that multiplies one row of floats where launches overlap, unless more share a row of a matrix.
const OVERLAPPING_BLOCK: usize = 256;
/// Maximum number of matrices in one launch.
pub(crate) const MAX_MATRICES: usize = 3;
/// Maximum number of elements of all rows whose quantized bytes, scales and zeros fit into 64 KiB of LDS beside the sums.
pub(super) const MAX_QUANTIZED_ELEMENTS: usize = 32768;
/// Number of lanes that shuffles combine.
pub(super) const LANES: usize = 32;

/// A matrix of `n` rows, and memory for its `n` results of each row.
#[derive(Clone, Copy)]
pub(crate) struct RowMatrix {
    pub(crate) weights: DevicePtr,
    pub(crate) n: usize,
    pub(crate) out: DevicePtr,
}

/// Storage of the matrices' rows.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RowWeights {
    /// Floats of the dtype of the activations, in whole packs.
    Floats,
    /// Whole blocks.
    Blocks(BlockFormat),
}

/// Products of dense rows of `k` elements with several matrices.
pub(crate) struct RowProducts<'a> {
    pub(crate) weights: RowWeights,
    /// Number of rows and of their elements, for which [`has_row_kernel`] is true.
    pub(crate) rows: usize,
    pub(crate) k: usize,
    /// Dtype of all inputs other than the matrices and the summand: f16, bf16 or f32.
    pub(crate) dtype: DType,
    /// Dtype of the results: f16, bf16 or f32.
    pub(crate) out_dtype: DType,
    pub(crate) x: DevicePtr,
    /// If present, the row is `silu(x)` times this; only for one row of f32 and blocks, without a norm.
    pub(crate) gate: Option<DevicePtr>,
    /// Weights and epsilon of the RMS norm of the rows.
    pub(crate) norm: Option<(DevicePtr, f32)>,
    /// One element for each row of all matrices.
    pub(crate) bias: Option<DevicePtr>,
    /// Code of the activation of a gate. There are then two matrices of `n` rows, the gate and up, with one result.
    pub(crate) activation: usize,
    /// If present, these rows of f16, bf16 or f32 are added to the result.
    pub(crate) summand: Option<(DevicePtr, DType)>,
    /// True if no launch of a captured graph writes the matrices, see `FusedProduct::constant_weight`.
    pub(crate) is_constant: bool,
    /// The matrices: at least one, at most [`MAX_MATRICES`].
    pub(crate) matrices: &'a [RowMatrix],
}

/// Returns true if a kernel multiplies `rows` rows of `k` elements with a kind of matrices.
pub(crate) fn has_row_kernel(weights: RowWeights, rows: usize, k: usize) -> bool {
    let few = (1..=PRODUCT_ROWS).contains(&rows);
    match weights {
        RowWeights::Floats => few,
        RowWeights::Blocks(format) => {
            few && rows * k <= MAX_QUANTIZED_ELEMENTS && QuantizedRow::kernel(count(rows), format).is_some()
        }
    }
}

/// Returns the number of rows that the kernel for `rows` rows holds.
fn count(rows: usize) -> RowCount {
    if rows == 1 {
        RowCount::R1
    } else {
        RowCount::R4
    }
}

/// Returns the kernel for one row and a kind of matrices.
///
/// # Errors
/// If there is none.
pub(crate) fn row_kernel(weights: RowWeights, dtype: DType) -> Result<KernelId> {
    let one = RowCount::R1;
    let id = match weights {
        RowWeights::Floats => {
            element(dtype).and_then(|of| RowProduct::kernel(one, of)).map(|kernel| kernel.id())
        }
        RowWeights::Blocks(format) => QuantizedRow::kernel(one, format).map(|kernel| kernel.id()),
    };
    id.ok_or_else(|| match weights {
        RowWeights::Floats => unsupported_dtype(OP, dtype),
        RowWeights::Blocks(format) => {
            RocmError::Unsupported(format!("{OP}: no kernel for {}", format.name())).into()
        }
    })
}

/// Returns the code of f16, bf16 or f32 in the arguments of kernels.
///
/// # Errors
/// For any other dtype.
pub(crate) fn float_code(dtype: DType) -> Result<u32> {
    Ok(match dtype {
        DType::F32 => FLOAT_F32,
        DType::F16 => FLOAT_F16,
        DType::BF16 => FLOAT_BF16,
        _ => return Err(unsupported_dtype(OP, dtype)),
    } as u32)
}

/// Returns the number of threads that share a row of `k` elements of a matrix, for `rows` rows of activations. It depends only
/// on the length of the row, so that results do not depend on the other matrices of a launch.
pub(super) fn lanes(weights: RowWeights, rows: usize, k: usize, dtype: DType) -> usize {
    let is_one = rows == 1;
    // Units of a row, and units per lane, as in row.cuh.
    let (units, per_lane) = match weights {
        RowWeights::Floats => (k * dtype.size_in_bytes() / PACK_BYTES, if is_one { 4 } else { 2 }),
        RowWeights::Blocks(format) => {
            let row_bytes = k / format.weights() * format.bytes();
            match (format.weights() / QUANTIZED_PIECE, format) {
                (1, BlockFormat::Q80) if row_bytes.is_multiple_of(PACK_BYTES) => {
                    (row_bytes / PACK_BYTES, if is_one { 2 } else { 1 })
                }
                (1, BlockFormat::Q40 | BlockFormat::Q41) if row_bytes.is_multiple_of(PACK_BYTES) => {
                    (row_bytes / PACK_BYTES, 1)
                }
                (1, _) => (k / QUANTIZED_PIECE, if is_one { 2 } else { 1 }),
                _ => (k / (2 * QUANTIZED_PIECE), 1),
            }
        }
    };
    match units.div_ceil(per_lane) {
        few if few < LANES => few.max(if is_one { 1 } else { PRODUCT_ROWS }).next_power_of_two(),
        lanes => lanes.next_multiple_of(LANES).min(ROW_PRODUCT_BLOCK),
    }
}

/// Returns the number of results of a workgroup, and the number of workgroups: `resident`, which run at once, or a multiple if
/// their sums, `sums` for each result, do not fit into LDS. Each workgroup reads the row, so that more would repeat that work.
pub(super) fn shares(results: usize, sums: usize, resident: usize) -> (usize, usize) {
    let passes = results.div_ceil(resident * (ROW_PRODUCT_SUMS / sums));
    let each = results.div_ceil(resident * passes.max(1)).max(1);
    (each, results.div_ceil(each))
}

/// Returns the number of multiprocessors, of `all`, for a product with weights of `bytes` bytes that attention follows, if
/// launches overlap.
fn used_multiprocessors(bytes: usize, all: usize) -> usize {
    match bytes <= SMALL_PRODUCT_BYTES * all {
        true => all - all / FREE_MULTIPROCESSORS_DIVISOR,
        false => all,
    }
}

/// Returns the number of threads of a workgroup of one row of floats if `lanes` share a row of a matrix and launches overlap.
/// Several workgroups then run on each multiprocessor: when one ends, one of the next launch begins to read its weights. Large
/// workgroups are better if all small ones together would have fewer groups of lanes.
fn overlapping_threads(lanes: usize) -> usize {
    let small = if lanes < LANES { OVERLAPPING_BLOCK } else { lanes * (OVERLAPPING_BLOCK / lanes).max(1) };
    let groups = |threads: usize| ROW_PRODUCT_BLOCK / threads * (threads / lanes);
    if groups(small) < groups(ROW_PRODUCT_BLOCK) {
        ROW_PRODUCT_BLOCK
    } else {
        small
    }
}

impl RowProducts<'_> {
    /// Enqueues the products in one launch. The GPU is bound.
    ///
    /// # Errors
    /// If the matrices have too many rows for a launch, or HIP fails.
    ///
    /// # Safety
    /// Each pointer must cover the given sizes. Inputs and matrices must be aligned to packs, except for bias and summand.
    pub(crate) unsafe fn launch(&self, device: &DeviceState) -> Result<()> {
        let null = DevicePtr(std::ptr::null_mut());
        let end = |count: usize| self.matrices.iter().take(count).map(|matrix| matrix.n).sum::<usize>();
        let weights = |at: usize| self.matrices.get(at).map_or(null, |matrix| matrix.weights);
        let out = |at: usize| self.matrices.get(at).map_or(null, |matrix| matrix.out);
        let (limit, elements) = ((1 << 31) - 1, end(MAX_MATRICES).max(self.k).max(self.rows * self.k));
        if elements > limit {
            return Err(RocmError::TooManyElements { op: OP, elements, limit }.into());
        }
        debug_assert!(self.gate.is_none() || self.norm.is_none(), "the kernels ignore the gate of a norm");
        let lanes = lanes(self.weights, self.rows, self.k, self.dtype);
        let results = if self.activation == ACTIVATION_NONE { end(MAX_MATRICES) } else { end(1) };
        let held = if self.rows == 1 { 1 } else { PRODUCT_ROWS };
        let sums = held * (lanes / LANES).max(1) * if self.activation == ACTIVATION_NONE { 1 } else { 2 };
        let row_bytes = match self.weights {
            RowWeights::Floats => self.k * self.dtype.size_in_bytes(),
            RowWeights::Blocks(format) => self.k / format.weights() * format.bytes(),
        };
        // In a decoder, attention follows the product to queries, keys and values. The others have a gate or a residual.
        let precedes_attention = self.activation == ACTIVATION_NONE && self.summand.is_none();
        let used = match self.is_constant && precedes_attention && device.overlaps_launches() {
            true => used_multiprocessors(end(MAX_MATRICES) * row_bytes, device.multiprocessors()),
            false => device.multiprocessors(),
        };
        let overlaps = device.overlaps_launches() && self.rows == 1 && self.weights == RowWeights::Floats;
        let threads = if overlaps { overlapping_threads(lanes) } else { ROW_PRODUCT_BLOCK };
        let (each, grid) = shares(results, sums, used * (ROW_PRODUCT_BLOCK / threads));
        let lds_bytes = match self.weights {
            RowWeights::Floats => 0,
            RowWeights::Blocks(_) => lds_activation_bytes(self.rows, self.k) as u32,
        };
        let block = (threads as u32, 1, 1);
        let config = LaunchConfig { grid: (grid as u32, 1, 1), block, lds_bytes };
        let (norm, eps) = self.norm.unwrap_or((null, 0.0));
        let (summand, summand_dtype) = self.summand.unwrap_or((null, self.out_dtype));
        let rows = count(self.rows);
        let order = if self.is_constant { Order::Overlapping } else { Order::Serial };
        macro_rules! launch {
            ($family:ident, $kernel:expr) => {{
                let Some(kernel) = $kernel else { return row_kernel(self.weights, self.dtype).map(drop) };
                let arguments = $family {
                    x: self.x,
                    gate: self.gate.unwrap_or(null),
                    norm,
                    bias: self.bias.unwrap_or(null),
                    summand,
                    w0: weights(0),
                    w1: weights(1),
                    w2: weights(2),
                    out0: out(0),
                    out1: out(1),
                    out2: out(2),
                    end0: end(1) as u32,
                    end1: end(2) as u32,
                    end2: end(3) as u32,
                    k: self.k as u32,
                    rows: self.rows as u32,
                    results: each as u32,
                    lanes: lanes as u32,
                    dtype: float_code(self.dtype)?,
                    summand_dtype: float_code(summand_dtype)?,
                    out_dtype: float_code(self.out_dtype)?,
                    activation: self.activation as u32,
                    eps,
                };
                // SAFETY: guaranteed by the caller.
                unsafe { device.launch_in(order, kernel, config, &arguments) }
            }};
        }
        match self.weights {
            RowWeights::Floats => {
                launch!(RowProduct, element(self.dtype).and_then(|of| RowProduct::kernel(rows, of)))
            }
            RowWeights::Blocks(format) => launch!(QuantizedRow, QuantizedRow::kernel(rows, format)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{overlapping_threads, used_multiprocessors};

    #[test]
    fn small_workgroups_have_as_many_groups_of_lanes() {
        let expected = [
            (1, 256),
            (8, 256),
            (64, 256),
            (96, 512),
            (160, 160),
            (192, 192),
            (256, 256),
            (448, 448),
            (512, 512),
        ];
        for (lanes, threads) in expected {
            assert_eq!(overlapping_threads(lanes), threads, "{lanes} lanes");
        }
    }

    #[test]
    fn small_products_leave_multiprocessors_to_attention() {
        // Weights in f16 of TinyLlama and of Llama 3.1 8B.
        assert_eq!(used_multiprocessors(2560 * 4096, 132), 88);
        assert_eq!(used_multiprocessors(6144 * 8192, 132), 132);
        assert_eq!(used_multiprocessors(0, 1), 1);
        assert_eq!(used_multiprocessors(1, 0), 0);
    }
}
