//! Products of one row of activations with up to three quantized matrices in one launch, and the distribution of matrix
//! rows over threads, which all kernels for quantized products share.
use crate::rocm_backend::device::{DeviceState, LaunchConfig};
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::{
    BlockFormat, DevicePtr, QuantizedRow, QUANTIZED_PIECE, QUANTIZED_ROW_BLOCK, ROWS_PER_LANE_GROUP,
};

/// Maximum number of matrices in one launch.
pub(crate) const MAX_MATRICES: usize = 3;
/// Number of threads per multiprocessor that saturates the memory bandwidth: half of the minimum that GPUs can hold.
const FULL_THREADS: usize = 1024;
/// Minimum number of threads that read adjacent pieces of a row of blocks.
const MIN_WIDTH: usize = 32;
/// Bytes of the scale and the sum of QUANTIZED_PIECE activations, which follow their quantized bytes.
const SCALE_BYTES: usize = 8;

/// Returns the size in bytes of quantized rows of activations with their scales.
pub(crate) fn activation_bytes(rows: usize, columns: usize) -> usize {
    rows * columns + rows * columns / QUANTIZED_PIECE * SCALE_BYTES
}

/// Distribution of the rows of a matrix over the threads of kernels for quantized products.
pub(crate) struct Groups {
    /// Number of threads that share ROWS_PER_LANE_GROUP rows, enough to read whole cache lines if the rows are long enough.
    pub(crate) width: u32,
    /// Number of workgroups.
    pub(crate) grid: u32,
}

impl Groups {
    /// Returns groups for `rows` rows in workgroups of `block` threads, with enough threads to saturate the memory
    /// bandwidth.
    fn saturating(device: &DeviceState, rows: usize, columns: usize, block: usize) -> Result<Self> {
        let groups = rows.div_ceil(ROWS_PER_LANE_GROUP);
        let wanted = device.multiprocessors() * FULL_THREADS / groups;
        Self::of(rows, columns, block, wanted.max(MIN_WIDTH))
    }

    /// Returns groups for kernels that first load several rows of activations to LDS. Few threads share a row of blocks,
    /// so that each workgroup uses the loaded rows for many rows of blocks.
    pub(crate) fn in_lds(rows: usize, columns: usize, block: usize) -> Result<Self> {
        Self::of(rows, columns, block, MIN_WIDTH)
    }

    fn of(rows: usize, columns: usize, block: usize, wanted: usize) -> Result<Self> {
        let groups = rows.div_ceil(ROWS_PER_LANE_GROUP);
        let pieces = columns / QUANTIZED_PIECE;
        // At least two pieces per thread, since some formats are unpacked in units of two pieces.
        let width = 1 << wanted.min(block).min((pieces / 2).max(1)).ilog2();
        match u32::try_from(groups.div_ceil(block / width)).ok().filter(|_| rows < 1 << 31) {
            Some(grid) => Ok(Self { width: width as u32, grid }),
            None => {
                let limit = (1 << 31) - 1;
                Err(RocmError::TooManyElements { op: "quantized-matmul", elements: rows, limit }.into())
            }
        }
    }
}

/// A quantized matrix of `n` rows, and memory for the result of `n` elements of f32.
#[derive(Clone, Copy)]
pub(crate) struct RowMatrix {
    pub(crate) blocks: DevicePtr,
    pub(crate) n: usize,
    pub(crate) out: DevicePtr,
}

/// Products of one row of `k` elements of f32 with several matrices of one format.
pub(crate) struct RowProducts<'a> {
    pub(crate) format: BlockFormat,
    pub(crate) k: usize,
    pub(crate) x: DevicePtr,
    /// If present, the row is `silu(x)` times this.
    pub(crate) gate: Option<DevicePtr>,
    /// If present, this is added to the product; there must be only one matrix.
    pub(crate) summand: Option<DevicePtr>,
    /// The matrices: at least one, at most [`MAX_MATRICES`].
    pub(crate) matrices: &'a [RowMatrix],
}

impl RowProducts<'_> {
    /// Enqueues the products in one launch. The GPU is bound.
    ///
    /// # Errors
    /// If the matrices have too many rows for a launch, or HIP fails.
    ///
    /// # Safety
    /// Each pointer must cover the given sizes and be aligned for vector loads.
    pub(crate) unsafe fn launch(&self, device: &DeviceState) -> Result<()> {
        let Some(kernel) = QuantizedRow::kernel(self.format) else { return Ok(()) };
        let null = DevicePtr(std::ptr::null_mut());
        let end = |count: usize| self.matrices.iter().take(count).map(|matrix| matrix.n).sum::<usize>();
        let blocks = |at: usize| self.matrices.get(at).map_or(null, |matrix| matrix.blocks);
        let out = |at: usize| self.matrices.get(at).map_or(null, |matrix| matrix.out);
        let Groups { width, grid } =
            Groups::saturating(device, end(MAX_MATRICES), self.k, QUANTIZED_ROW_BLOCK)?;
        let arguments = QuantizedRow {
            x: self.x,
            gate: self.gate.unwrap_or(null),
            summand: self.summand.unwrap_or(null),
            w0: blocks(0),
            w1: blocks(1),
            w2: blocks(2),
            out0: out(0),
            out1: out(1),
            out2: out(2),
            end0: end(1) as u32,
            end1: end(2) as u32,
            end2: end(3) as u32,
            pieces: (self.k / QUANTIZED_PIECE) as u32,
            width,
        };
        // One additional piece, because quantized bytes are permuted within two pieces.
        let lds_bytes = (activation_bytes(1, self.k) + QUANTIZED_PIECE) as u32;
        // Each workgroup quantizes the row, so more workgroups would repeat that work.
        let grid = grid.min((device.multiprocessors() * FULL_THREADS / QUANTIZED_ROW_BLOCK) as u32);
        let block = (QUANTIZED_ROW_BLOCK as u32, 1, 1);
        let config = LaunchConfig { grid: (grid, 1, 1), block, lds_bytes };
        // SAFETY: guaranteed by the caller.
        unsafe { device.launch_now(kernel, config, &arguments) }
    }
}
