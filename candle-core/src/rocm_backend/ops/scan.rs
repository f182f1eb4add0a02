//! Cumulative sums along a dim, in one launch, or in two for few long lines.
use super::{computing, found};
use crate::op::BackpropOp;
use crate::rocm_backend::device::{max_elements, LaunchConfig};
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::RocmError;
use crate::{DType, Result, Storage, Tensor};
use hip_kernels::contract::{Cumsum, DevicePtr, BLOCK, PACK_BYTES, ROW_BLOCK};

const OP: &str = "cumsum";
/// Number of threads that saturates a large GPU.
const FULL_THREADS: usize = 1 << 16;
/// Minimum number and length of the parts of a line; below them, a second launch costs more than it saves.
const MIN_PARTS: usize = 4;
const MIN_LENGTH: usize = 512;
const MAX_PARTS: usize = 1024;
/// Number of threads with adjacent lines that keeps the accesses of a wave coalesced.
const ADJACENT: usize = 32;

/// Computes cumulative sums of floats along `dim`, each rounded once. Returns `None` on other devices, for other dtypes, and
/// if gradients are tracked; upstream's operations must be used then.
///
/// # Errors
/// [`RocmError::TooManyElements`] for a line above 2^31 elements, or an error if memory runs out.
pub(crate) fn cumsum(x: &Tensor, dim: usize) -> Result<Option<Tensor>> {
    let (dtype, elements, limit) = (x.dtype(), x.elem_count(), max_elements());
    let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    if !x.device().is_rocm() || !is_float || x.track_op() || elements == 0 {
        return Ok(None);
    }
    let x = x.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Rocm(storage) = &*storage else { return Ok(None) };
    let (device, src) = (&storage.device, storage.ptr(layout, OP)?);
    let kernel = found(Cumsum::kernel(computing(OP, dtype)?), OP, dtype)?;
    let (length, inner) = (x.dims()[dim], x.dims()[dim + 1..].iter().product());
    let lines = elements / length;
    if length > limit || lines > limit {
        return Err(RocmError::TooManyElements { op: OP, elements: length.max(lines), limit }.into());
    }
    // SAFETY: the last launch writes every element.
    let dst = unsafe { RocmStorage::alloc(device, dtype, elements, OP)? };
    let Plan { width, part, block } = Plan::of(lines, length, inner, dtype.size_in_bytes());
    let wide = if dtype.size_in_bytes() < 4 { DType::F32 } else { DType::F64 };
    let launch = |parts: usize, dst: DevicePtr, partials: DevicePtr| {
        let mut config = LaunchConfig::for_rows(OP, lines.div_ceil(block / width), block as u32)?;
        config.grid.1 = parts as u32;
        config.lds_bytes = (2 * block * wide.size_in_bytes()) as u32;
        let [lines, length, inner, part, width] = [lines, length, inner, part, width].map(|n| n as u32);
        let arguments = Cumsum { lines, length, inner, part, width, src, dst, partials };
        // SAFETY: source and result have all elements, `partials` one for each part and line, and LDS two per thread.
        unsafe { device.launch(kernel, config, &arguments) }
    };
    let parts = length.div_ceil(part);
    if parts == 1 {
        launch(1, dst.slice.ptr(), DevicePtr::NULL)?;
    } else {
        // SAFETY: the first launch writes everything that the second reads.
        let partials = unsafe { RocmStorage::alloc(device, wide, lines * (parts - 1), OP)? };
        launch(parts - 1, DevicePtr::NULL, partials.slice.ptr())?;
        launch(parts, dst.slice.ptr(), partials.slice.ptr())?;
    }
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), x.shape(), BackpropOp::none(), false)))
}

/// Distribution of the lines over threads.
struct Plan {
    /// Number of threads per line and part, a power of two.
    width: usize,
    part: usize,
    block: usize,
}

impl Plan {
    fn of(lines: usize, length: usize, inner: usize, size: usize) -> Self {
        let each = 2 * PACK_BYTES / size;
        let most = length.div_ceil(each).next_power_of_two();
        // If elements of a line are adjacent, so are its threads; otherwise adjacent threads have adjacent lines.
        let width = if inner == 1 {
            most.min(ROW_BLOCK)
        } else {
            let wanted = (FULL_THREADS / lines).next_power_of_two();
            most.min(wanted).min(ROW_BLOCK / ADJACENT.min(lines.next_power_of_two()))
        };
        let parts =
            (FULL_THREADS / (lines * width)).min(length / MIN_LENGTH.max(each * width)).min(MAX_PARTS);
        let part = if parts < MIN_PARTS { length } else { length.div_ceil(parts).next_multiple_of(64) };
        let block = lines.saturating_mul(width).next_power_of_two().clamp(ADJACENT, BLOCK).max(width);
        let block =
            if inner == 1 { block } else { block.max(width * ADJACENT.min(lines.next_power_of_two())) };
        Self { width, part, block }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_cover_all_shapes() {
        for lines in [1, 2, 3, 31, 100, 4096, 1 << 20, 1 << 31] {
            for length in [1, 2, 5, 16, 33, 1000, 1 << 16, (1 << 24) + 1, 1 << 31] {
                for (inner, size) in [(1, 2), (1, 4), (1, 8), (7, 4), (7, 8)] {
                    let Plan { width, part, block } = Plan::of(lines, length, inner, size);
                    let what =
                        format!("{lines} x {length}, {inner} apart, {size} bytes: {width} {part} {block}");
                    assert!(width.is_power_of_two() && block.is_power_of_two() && width <= block, "{what}");
                    assert!((32..=ROW_BLOCK).contains(&block) && part > 0, "{what}");
                    assert!(
                        part == length || (part % 64 == 0 && length.div_ceil(part) <= MAX_PARTS),
                        "{what}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_long_line_is_shared_by_many_workgroups() {
        let plan = Plan::of(1, 1 << 22, 1, 4);
        assert!((1usize << 22).div_ceil(plan.part) >= 32);
    }
}
