//! GroupNorm: the groups of each image are normalized as rows, with a weight and a bias per channel.
use super::kernel;
use super::norm::{Rows, Shares, SATURATING_PARTS};
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{dim_word, GroupNorm, PACK_BYTES, ROW_BLOCK, ROW_PACKS};
use candle::rocm::RocmStorage;
use candle::{DType, Layout, Result, Storage, Tensor};

const OP: &str = "group-norm";
/// Limit for numbers that kernels divide, so that the sum of two stays below 2^31.
const MAX_SIZE: usize = 1 << 30;

/// Computes `(x - mean) / sqrt(variance + eps) * weight + bias` for each group of channels, with a weight and a bias per
/// channel, in f16, bf16, f32 or f64. Takes one launch, or two for few long groups. Returns `None` if upstream's
/// operations must be used: if gradients are tracked, or for unsupported or invalid operands.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    num_groups: usize,
    eps: f64,
) -> Result<Option<Tensor>> {
    let is_float = matches!(x.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    if !x.device().is_rocm() || !is_float || x.rank() < 2 || x.elem_count() == 0 || x.track_op() {
        return Ok(None);
    }
    let channels = x.dims()[1];
    let columns = x.elem_count() / x.dims()[0] / num_groups;
    let fits = |t: &Tensor| {
        t.device().is_rocm() && t.dtype() == x.dtype() && t.elem_count() == channels && !t.track_op()
    };
    if !fits(weight) || !fits(bias) || columns >= 2 * MAX_SIZE || num_groups > MAX_SIZE {
        return Ok(None);
    }
    let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
    let ((xs, x_layout), (weights, w_layout), (biases, b_layout)) =
        (x.storage_and_layout(), weight.storage_and_layout(), bias.storage_and_layout());
    let (Storage::Rocm(xs), Storage::Rocm(weights), Storage::Rocm(biases)) = (&*xs, &*weights, &*biases)
    else {
        return Ok(None);
    };
    let groups = Groups {
        rows: group_rows(xs, x_layout, columns)?,
        channel: columns * num_groups / channels,
        num_groups,
    };
    let dst = groups.normalize((weights, w_layout), (biases, b_layout), eps)?;
    Ok(Some(Tensor::from_storage(Storage::Rocm(dst), x.shape(), BackpropOp::none(), false)))
}

/// Returns rows of `columns` elements. A few long rows are split into parts that fit into the registers of a workgroup, so
/// that each launch reads them only once; many rows need no parts.
fn group_rows<'a>(x: &'a RocmStorage, layout: &Layout, columns: usize) -> Result<Rows<'a>> {
    let rows = layout.shape().elem_count() / columns;
    let kept = ROW_BLOCK * ROW_PACKS * PACK_BYTES / x.dtype().size_in_bytes();
    let few = rows < 4 * SATURATING_PARTS;
    let max_parts = if few { (columns / kept).clamp(SATURATING_PARTS / rows, SATURATING_PARTS) } else { 1 };
    Ok(Rows { op: OP, x, from: x.ptr(layout, OP)?, rows, columns, max_parts })
}

/// Groups of channels to normalize.
struct Groups<'a> {
    rows: Rows<'a>,
    /// Number of elements of a channel.
    channel: usize,
    num_groups: usize,
}

impl Groups<'_> {
    fn normalize(
        &self,
        (weight, w_layout): (&RocmStorage, &Layout),
        (bias, b_layout): (&RocmStorage, &Layout),
        eps: f64,
    ) -> Result<RocmStorage> {
        let x = self.rows.x;
        let kernel = kernel(OP, x.dtype(), GroupNorm::kernel)?;
        x.order_after(weight)?;
        x.order_after(bias)?;
        let (alpha, beta) = (weight.ptr(w_layout, OP)?, bias.ptr(b_layout, OP)?);
        let (channel, groups) = (dim_word(self.channel), dim_word(self.num_groups));
        self.rows.result(|[src, dst, partials], shares, config| {
            let Shares { first, rows, columns, part, width } = *shares;
            let group = (first % self.num_groups) as u32;
            let arguments = GroupNorm {
                src,
                dst,
                alpha,
                beta,
                partials,
                rows,
                columns,
                part,
                width,
                channel,
                groups,
                group,
                eps,
            };
            // SAFETY: source and result have all rows, and the caller checked that alpha and beta match the channels.
            unsafe { x.device().launch(kernel, config, &arguments) }
        })
    }
}
