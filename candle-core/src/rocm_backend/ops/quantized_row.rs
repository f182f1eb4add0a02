//! Distribution of the rows of a quantized matrix over threads, for products with rows that were quantized before.
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::{QUANTIZED_PIECE, ROWS_PER_LANE_GROUP};

/// Minimum number of threads that read adjacent pieces of a row of blocks.
const MIN_WIDTH: usize = 32;
/// Bytes of the scale and the sum of QUANTIZED_PIECE activations, which follow their quantized bytes.
const SCALE_BYTES: usize = 8;

/// Maximum number of bytes of zeros in place of headers for the activations of a piece: 4 in each of two planes, for Q4_1.
const MAX_HEADER_BYTES: usize = 8;

/// Returns the size in bytes of quantized rows of activations with their scales.
pub(crate) fn activation_bytes(rows: usize, columns: usize) -> usize {
    rows * columns + rows * columns / QUANTIZED_PIECE * SCALE_BYTES
}

/// Returns the LDS in bytes that the kernels for one to four rows need for quantized rows of activations. Some arrange them like the
/// weights (`StreamBytes` in row_parts.cuh).
pub(crate) fn lds_activation_bytes(rows: usize, columns: usize) -> usize {
    activation_bytes(rows, columns) + rows * columns / QUANTIZED_PIECE * MAX_HEADER_BYTES
}

/// Distribution of the rows of a matrix over the threads of kernels for quantized products.
pub(crate) struct Groups {
    /// Number of threads that share ROWS_PER_LANE_GROUP rows, enough to read whole cache lines if the rows are long enough.
    pub(crate) width: u32,
    /// Number of workgroups.
    pub(crate) grid: u32,
}

impl Groups {
    /// Returns groups for kernels that first load several rows of activations to LDS. Few threads share a row of blocks,
    /// so that each workgroup uses the loaded rows for many rows of blocks.
    pub(crate) fn in_lds(rows: usize, columns: usize, block: usize) -> Result<Self> {
        let groups = rows.div_ceil(ROWS_PER_LANE_GROUP);
        let pieces = columns / QUANTIZED_PIECE;
        // At least two pieces per thread, since some formats are unpacked in units of two pieces.
        let width = 1 << MIN_WIDTH.min(block).min((pieces / 2).max(1)).ilog2();
        match u32::try_from(groups.div_ceil(block / width)).ok().filter(|_| rows < 1 << 31) {
            Some(grid) => Ok(Self { width: width as u32, grid }),
            None => {
                let limit = (1 << 31) - 1;
                Err(RocmError::TooManyElements { op: "quantized-matmul", elements: rows, limit }.into())
            }
        }
    }
}
