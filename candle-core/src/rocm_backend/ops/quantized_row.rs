//! Products of one row of activations with matrices of blocks, up to three of them in a launch; and how the kernels for
//! quantized products share out the rows of a matrix.
use crate::rocm_backend::device::{DeviceState, LaunchConfig};
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::{
    BlockFormat, DevicePtr, QuantizedRow, QUANTIZED_BESIDE, QUANTIZED_PIECE, QUANTIZED_ROW_BLOCK,
};

/// Maximum number of matrices in one launch.
pub(crate) const MAX_MATRICES: usize = 3;
/// Threads of a multiprocessor that keep its memory busy: half of those that every GPU has room for.
const ENOUGH_THREADS: usize = 1024;
/// The fewest threads that read neighbouring pieces of a row of blocks.
const LEAST_WIDTH: usize = 32;
/// Bytes of the scale and the sums of QUANTIZED_PIECE activations, behind their bytes.
const SCALE_BYTES: usize = 8;

/// Bytes of rows of activations and their scales.
pub(crate) fn activation_bytes(rows: usize, columns: usize) -> usize {
    rows * columns + rows * columns / QUANTIZED_PIECE * SCALE_BYTES
}

/// Distribution of the rows of a matrix over the threads of kernels for quantized products.
pub(crate) struct Groups {
    /// Threads that share QUANTIZED_BESIDE rows: whole lines where it can be, and a piece of the row for each.
    pub(crate) width: u32,
    /// Workgroups.
    pub(crate) grid: u32,
}

impl Groups {
    /// Groups for `rows` rows, in workgroups of `block` threads that each read a row of activations once: as many
    /// threads as keep the memory busy.
    fn of_device(device: &DeviceState, rows: usize, columns: usize, block: usize) -> Result<Self> {
        let groups = rows.div_ceil(QUANTIZED_BESIDE);
        Self::of(rows, columns, block, (device.multiprocessors() * ENOUGH_THREADS / groups).max(LEAST_WIDTH))
    }

    /// Groups in workgroups that first bring several rows of activations to LDS: the fewest threads for a row of
    /// blocks, so that they serve many of them.
    pub(crate) fn in_lds(rows: usize, columns: usize, block: usize) -> Result<Self> {
        Self::of(rows, columns, block, LEAST_WIDTH)
    }

    fn of(rows: usize, columns: usize, block: usize, wanted: usize) -> Result<Self> {
        let groups = rows.div_ceil(QUANTIZED_BESIDE);
        let pieces = columns / QUANTIZED_PIECE;
        // A unit of a row for each is a piece, or two of the formats whose blocks have eight.
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

/// A matrix of `n` rows of blocks, and memory for as many f32.
#[derive(Clone, Copy)]
pub(crate) struct RowMatrix {
    pub(crate) blocks: DevicePtr,
    pub(crate) n: usize,
    pub(crate) out: DevicePtr,
}

/// One row of `k` f32 with the rows of several matrices of one format.
pub(crate) struct RowProducts<'a> {
    pub(crate) format: BlockFormat,
    pub(crate) k: usize,
    pub(crate) x: DevicePtr,
    /// The row is `silu(x)` times this.
    pub(crate) gate: Option<DevicePtr>,
    /// Added to the products, of which there is one.
    pub(crate) summand: Option<DevicePtr>,
    /// At least one and at most [`MAX_MATRICES`].
    pub(crate) matrices: &'a [RowMatrix],
}

impl RowProducts<'_> {
    /// Enqueues them in one launch. The GPU is bound.
    ///
    /// # Errors
    /// If the matrices have more rows than a launch counts, or HIP fails.
    ///
    /// # Safety
    /// Each pointer covers what the sizes say, in packs.
    pub(crate) unsafe fn launch(&self, device: &DeviceState) -> Result<()> {
        let Some(kernel) = QuantizedRow::kernel(self.format) else { return Ok(()) };
        let null = DevicePtr(std::ptr::null_mut());
        let end = |count: usize| self.matrices.iter().take(count).map(|matrix| matrix.n).sum::<usize>();
        let blocks = |at: usize| self.matrices.get(at).map_or(null, |matrix| matrix.blocks);
        let out = |at: usize| self.matrices.get(at).map_or(null, |matrix| matrix.out);
        let Groups { width, grid } =
            Groups::of_device(device, end(MAX_MATRICES), self.k, QUANTIZED_ROW_BLOCK)?;
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
        // Runs of bytes change places within two pieces.
        let lds_bytes = (activation_bytes(1, self.k) + QUANTIZED_PIECE) as u32;
        // More would make bytes of the same row once more each.
        let grid = grid.min((device.multiprocessors() * ENOUGH_THREADS / QUANTIZED_ROW_BLOCK) as u32);
        let block = (QUANTIZED_ROW_BLOCK as u32, 1, 1);
        let config = LaunchConfig { grid: (grid, 1, 1), block, lds_bytes };
        // SAFETY: by the caller's word.
        unsafe { device.launch_now(kernel, config, &arguments) }
    }
}
