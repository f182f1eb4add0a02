//! The operations. Each checks its operands, allocates its result, and enqueues kernels or library calls.
pub(super) mod attention;
pub(super) mod attention_append;
pub(super) mod attention_encoded;
pub(super) mod attention_gradients;
mod attention_plan;
pub(super) mod attention_rows;
pub(super) mod conv;
pub(super) mod copy_from_host;
pub(super) mod elementwise;
pub(super) mod expert_rows;
pub(super) mod few_rows;
pub(super) mod indexing;
pub(super) mod linear;
pub(super) mod matmul;
pub(super) mod norm;
pub(super) mod pooling;
pub(super) mod quantized_row;
pub(super) mod random;
pub(super) mod reduce;
pub(super) mod route;
pub(super) mod row_product;
pub(super) mod sampling;
pub(super) mod scan;
pub(super) mod sort;
pub(super) mod strided;

use super::device::{max_elements, LaunchConfig};
use super::error::{dtype_mismatch, unsupported_dtype};
use super::layout::Strided;
use super::storage::{element, RocmStorage};
use super::RocmError;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{Element, KernelOf, BLOCK, BYTES_IN_FLIGHT, PACKS_IN_FLIGHT, PACK_BYTES};

/// A storage and the layout of an operand in it.
pub(crate) type Operand<'a> = (&'a RocmStorage, &'a Layout);

/// Maximum number of workgroups in y and z that every GPU accepts.
const MAX_GRID: usize = 65535;

/// Returns the element type with which kernels compute.
///
/// # Errors
/// The CPU device's error for packed dtypes, which can only be copied.
#[inline]
fn computing(op: &'static str, dtype: DType) -> Result<Element> {
    element(dtype).ok_or_else(|| unsupported_dtype(op, dtype))
}

/// Returns an error for packed dtypes, which can only be copied.
fn check_computes(op: &'static str, dtype: DType) -> Result<()> {
    computing(op, dtype).map(drop)
}

/// Unwraps a kernel.
///
/// # Errors
/// The CPU device's error for a dtype that `op` does not support, if the kernel is `None`.
#[inline]
fn found<F>(kernel: Option<KernelOf<F>>, op: &'static str, dtype: DType) -> Result<KernelOf<F>> {
    kernel.ok_or_else(|| unsupported_dtype(op, dtype))
}

/// Maximum number of packs (vectors) with a thread each; for more, each thread processes several.
const MAX_SINGLE_PACKS: usize = 1 << 18;

/// Returns the launch of an elementwise kernel. The choice of the pack width must match `pack.cuh`. `sizes` are the bytes of
/// an element of the result and of each input. `lists` is the number of stride lists, or 0 for kernels that access strided
/// elements one by one.
#[inline]
fn for_packs(
    op: &'static str,
    elements: usize,
    strided: &Strided,
    sizes: &[usize],
    lists: usize,
) -> Result<LaunchConfig> {
    let (widest, narrowest) = sizes.iter().fold((1, 8), |(w, n), &size| (size.max(w), size.min(n)));
    let widest_pack = (PACK_BYTES / widest).max(4 / narrowest.max(1));
    let read: usize = sizes[1..].iter().sum();
    // Rows that are not whole packs are processed in packs too if they are read.
    let in_packs = strided.in_packs(widest_pack, lists)
        || (lists > 0 && read > 0 && strided.row().is_some_and(|row| row >= widest_pack));
    let width = if in_packs { widest_pack } else { 1 };
    let packs = elements.div_ceil(width);
    let each = match packs > MAX_SINGLE_PACKS {
        true => (BYTES_IN_FLIGHT / (read * width).max(1)).clamp(1, PACKS_IN_FLIGHT),
        false => 1,
    };
    LaunchConfig::for_elements(op, packs.div_ceil(each))
}

/// Returns the launch of a kernel on planes. Threads in x have `per_thread` positions each; y and z stride over channels and
/// images, so that index calculations are shared and about as many threads are launched as a GPU can hold.
fn for_planes(
    op: &'static str,
    places: usize,
    per_thread: usize,
    channels: usize,
    images: usize,
) -> Result<LaunchConfig> {
    let limit = max_elements();
    if places > limit {
        return Err(RocmError::TooManyElements { op, elements: places, limit }.into());
    }
    let threads = places.div_ceil(per_thread);
    let block = threads.next_power_of_two().clamp(32, BLOCK);
    let chunks = threads.div_ceil(block);
    // Divide the work evenly over about 2048 workgroups.
    let share = |all: usize, groups: usize| {
        let steps = all.div_ceil((2048 * BLOCK / block / groups).clamp(1, MAX_GRID));
        all.div_ceil(steps.max(1))
    };
    let y = share(channels, chunks);
    let z = share(images, chunks * y.max(1));
    Ok(LaunchConfig { grid: (chunks as u32, y as u32, z as u32), block: (block as u32, 1, 1), lds_bytes: 0 })
}

fn check_rank(layout: &Layout, expected: usize) -> Result<()> {
    let got = layout.dims().len();
    if got == expected {
        return Ok(());
    }
    Err(crate::Error::UnexpectedNumberOfDims { expected, got, shape: layout.shape().clone() }.bt())
}

/// Checks that both operands have the same dtype and that it is not packed. Returns the dtype.
fn same_computing_dtype(op: &'static str, lhs: &RocmStorage, rhs: &RocmStorage) -> Result<DType> {
    let (lhs, rhs) = (lhs.slice.dtype(), rhs.slice.dtype());
    if lhs != rhs {
        return Err(dtype_mismatch(op, lhs, rhs));
    }
    check_computes(op, lhs)?;
    Ok(lhs)
}
