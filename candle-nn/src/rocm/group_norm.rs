//! GroupNorm: the groups of each image are normalized as rows, with a weight and a bias per channel.
use super::kernel;
use super::norm::{Rows, Shares, SATURATING_PARTS};
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{dim_word, GroupNorm, PACK_BYTES, ROW_BLOCK, ROW_PACKS};
use candle::rocm::{offset_by_elements, DevicePtr, RocmStorage};
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
    compute(x, [weight, bias], (num_groups, eps), None, false)
}

/// Like [`group_norm`] of the sum of `x` and `summands` (batch, channels), with SiLU at the end if `silu` is true.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn group_norm_with(
    x: &Tensor,
    summands: Option<&Tensor>,
    norm: &crate::fused_image::GroupNorm,
    silu: bool,
) -> Result<Option<Tensor>> {
    let (channels, groups) = (norm.weight.elem_count(), norm.groups);
    if x.rank() < 3 || x.dims()[1] != channels || groups == 0 || channels % groups != 0 {
        return Ok(None);
    }
    compute(x, [&norm.weight, &norm.bias], (groups, norm.eps), summands, silu)
}

fn compute(
    x: &Tensor,
    [weight, bias]: [&Tensor; 2],
    (num_groups, eps): (usize, f64),
    summands: Option<&Tensor>,
    silu: bool,
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
    if summands.is_some_and(|s| s.dims() != &x.dims()[..2] || s.dtype() != x.dtype() || s.track_op()) {
        return Ok(None);
    }
    let summands = summands.map(Tensor::contiguous).transpose()?;
    let summands = summands.as_ref().map(Tensor::storage_and_layout);
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
    let summands = match &summands {
        Some((storage, layout)) => match &**storage {
            Storage::Rocm(storage) => Some((storage, *layout)),
            _ => return Ok(None),
        },
        None => None,
    };
    let dst = groups.normalize((weights, w_layout), (biases, b_layout), eps, summands, silu)?;
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
        summands: Option<(&RocmStorage, &Layout)>,
        silu: bool,
    ) -> Result<RocmStorage> {
        let x = self.rows.x;
        let channels = self.rows.columns * self.num_groups / self.channel;
        let summands = match summands {
            Some((storage, layout)) => {
                x.order_after(storage)?;
                storage.ptr(layout, OP)?
            }
            None => DevicePtr::NULL,
        };
        let kernel = kernel(OP, x.dtype(), GroupNorm::kernel)?;
        x.order_after(weight)?;
        x.order_after(bias)?;
        let (alpha, beta) = (weight.ptr(w_layout, OP)?, bias.ptr(b_layout, OP)?);
        let (channel, groups) = (dim_word(self.channel), dim_word(self.num_groups));
        self.rows.result(|[src, dst, partials], shares, config| {
            let Shares { first, rows, columns, part, width } = *shares;
            let group = (first % self.num_groups) as u32;
            let image = first / self.num_groups;
            let summands = match summands == DevicePtr::NULL {
                true => summands,
                false => offset_by_elements(summands, x.dtype(), image * channels),
            };
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
                summands,
                silu,
            };
            // SAFETY: source and result have all rows, and the caller checked that alpha and beta match the channels.
            unsafe { x.device().launch(kernel, config, &arguments) }
        })
    }
}
