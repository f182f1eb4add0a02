//! Residual sums with RMS norms in one launch.
use super::{contiguous, count, output};
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{AddNorm, PACK_BYTES, RESIDUAL_BLOCK, ROW_PACKS};
use candle::rocm::{element, DevicePtr, LaunchConfig, RocmStorage};
use candle::{bail, Result, Storage, Tensor};

const OP: &str = "add-rms-norm";
/// Number of threads that saturates a large GPU. Beyond it, a thread processes as much of a row as it can keep.
const FULL_THREADS: usize = 1 << 16;

/// Computes `sum = residual + x`, or `residual + rms_norm(x, post)`, and `rms_norm(sum, alpha)`, in one launch. Returns both,
/// or `None` if separate operations must be used: on other devices, if gradients are tracked, for other dtypes, strided
/// operands, no rows, and rows that are too long. The caller has checked the shapes.
///
/// # Errors
/// If there is not enough memory for the results.
pub fn add_rms_norm(
    x: &Tensor,
    residual: &Tensor,
    post: Option<&Tensor>,
    alpha: &Tensor,
    eps: f32,
) -> Result<Option<(Tensor, Tensor)>> {
    let operands = [Some(x), Some(residual), post, Some(alpha)];
    let held = operands.map(|operand| operand.map(|tensor| (tensor, tensor.storage_and_layout())));
    let Some((_, (storage, layout))) = &held[0] else { return Ok(None) };
    let Storage::Rocm(first) = &**storage else { return Ok(None) };
    let Some(kernel) = element(x.dtype()).and_then(AddNorm::kernel) else { return Ok(None) };
    let mut pointers = [DevicePtr::NULL; 4];
    for (held, pointer) in held.iter().zip(&mut pointers) {
        let Some((tensor, (storage, layout))) = held else { continue };
        let Storage::Rocm(storage) = &**storage else { bail!("{OP}: operands are on several devices") };
        if tensor.track_op() || tensor.dtype() != x.dtype() || !layout.is_contiguous() {
            return Ok(None);
        }
        first.order_after(storage)?;
        *pointer = contiguous(OP, "operand", storage, layout)?;
    }
    let columns = layout.dims().last().copied().unwrap_or(0);
    let elements = layout.shape().elem_count();
    let rows = elements / columns.max(1);
    if elements == 0 {
        return Ok(None);
    }
    let alloc = || {
        // SAFETY: every element is written by the kernel.
        unsafe { RocmStorage::alloc(first.device(), x.dtype(), elements, OP) }
    };
    let (sum, dst) = (alloc()?, alloc()?);
    let (sum_at, dst_at) = (output(&sum)?, output(&dst)?);
    let size = x.dtype().size_in_bytes();
    let bits =
        pointers.iter().chain([&sum_at, &dst_at]).fold(columns * size, |bits, ptr| bits | ptr.0.addr());
    let in_packs = bits % PACK_BYTES == 0;
    let packs = if in_packs { columns * size / PACK_BYTES } else { columns };
    let least = packs.div_ceil(ROW_PACKS).next_power_of_two();
    if least > RESIDUAL_BLOCK {
        return Ok(None);
    }
    let wanted = (FULL_THREADS / rows).max(1).next_power_of_two().min(packs.next_power_of_two());
    let width = wanted.clamp(least, RESIDUAL_BLOCK);
    let block = rows.saturating_mul(width).next_power_of_two().clamp(32, 128).max(width);
    let config = LaunchConfig::for_rows(OP, rows.div_ceil(block / width), block as u32)?;
    let [x, residual, post, alpha] = pointers;
    let arguments = AddNorm {
        x,
        residual,
        post,
        alpha,
        sum: sum_at,
        dst: dst_at,
        rows: count(OP, rows)?,
        columns: count(OP, columns)?,
        width: width as u32,
        in_packs,
        eps,
    };
    // SAFETY: operands and results have all rows, and the weights have an element for each column.
    unsafe { first.device().launch(kernel, config, &arguments)? };
    let result = |storage| {
        Tensor::from_storage(Storage::Rocm(storage), layout.shape().clone(), BackpropOp::none(), false)
    };
    Ok(Some((result(sum), result(dst))))
}
