//! GroupNorm: the groups of each image are rows, of which each channel has a factor and a summand.
use super::kernel;
use super::norm::{Rows, Shares, ENOUGH_PARTS};
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{dim_word, GroupNorm, PACK_BYTES, ROW_BLOCK, ROW_PACKS};
use candle::rocm::RocmStorage;
use candle::{DType, Layout, Result, Storage, Tensor};

const OP: &str = "group-norm";
/// Kernels divide numbers below 2^31, the sum of two in one case.
const LARGEST: usize = 1 << 30;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of each group of channels, with a weight and a bias for each
/// channel, for f16, bf16, f32 and f64; one launch, or two where groups are few and long. None where gradients are
/// tracked, whose operations are upstream's, or the kernel does not take it: then upstream's have its errors.
///
/// # Errors
/// If there is no memory for the result.
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
    if !fits(weight) || !fits(bias) || columns >= 2 * LARGEST || num_groups > LARGEST {
        return Ok(None);
    }
    let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
    let ((xs, x_layout), (weights, w_layout), (biases, b_layout)) =
        (x.storage_and_layout(), weight.storage_and_layout(), bias.storage_and_layout());
    let (Storage::Rocm(xs), Storage::Rocm(weights), Storage::Rocm(biases)) = (&*xs, &*weights, &*biases)
    else {
        return Ok(None);
    };
    let rows = Groups {
        rows: rows_of(xs, x_layout, columns)?,
        channel: columns * num_groups / channels,
        num_groups,
    };
    let dst = rows.normalised((weights, w_layout), (biases, b_layout), eps)?;
    Ok(Some(Tensor::from_storage(Storage::Rocm(dst), x.shape(), BackpropOp::none(), false)))
}

/// Rows of `columns` elements. A few long ones are cut into parts that a workgroup keeps, so that nothing but the second
/// launch reads them again; many fill the GPU by themselves.
fn rows_of<'a>(x: &'a RocmStorage, layout: &Layout, columns: usize) -> Result<Rows<'a>> {
    let rows = layout.shape().elem_count() / columns;
    let kept = ROW_BLOCK * ROW_PACKS * PACK_BYTES / x.dtype().size_in_bytes();
    let few = rows < 4 * ENOUGH_PARTS;
    let most_parts = if few { (columns / kept).clamp(ENOUGH_PARTS / rows, ENOUGH_PARTS) } else { 1 };
    Ok(Rows { op: OP, x, from: x.ptr(layout, OP)?, rows, columns, most_parts })
}

/// What is normalised.
struct Groups<'a> {
    rows: Rows<'a>,
    /// Elements of a channel.
    channel: usize,
    num_groups: usize,
}

impl Groups<'_> {
    fn normalised(
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
        self.rows.result(|[src, dst, known], shares, config| {
            let Shares { first, rows, columns, part, width } = *shares;
            let group = (first % self.num_groups) as u32;
            let arguments = GroupNorm {
                src,
                dst,
                alpha,
                beta,
                known,
                rows,
                columns,
                part,
                width,
                channel,
                groups,
                group,
                eps,
            };
            // SAFETY: source and result hold all rows, alpha and beta were checked to have an element per channel.
            unsafe { x.device().launch(kernel, config, &arguments) }
        })
    }
}
