//! Softmax and norms over the last dim of a contiguous tensor, in one launch, or in two for few long rows.
use super::{contiguous, count, kernel, output};
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::contract::{
    LayerNorm, RmsNorm, Softmax, SoftmaxOp, PACK_BYTES, ROW_BLOCK, ROW_PACKS,
};
use candle::rocm::{offset_by_elements, DevicePtr, LaunchConfig, RocmStorage};
use candle::{bail, CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};

/// Number of threads that saturates a large GPU. Below it, more threads share each row.
const FULL_THREADS: usize = 1 << 16;
/// Minimum length of a part of a row; shorter parts are not worth a workgroup.
const MIN_PART: usize = 16 * ROW_BLOCK;
/// Minimum number of parts; for fewer, a second launch costs more than it saves.
const MIN_PARTS: usize = 4;
/// Number of workgroups that saturates a large GPU.
pub(super) const SATURATING_PARTS: usize = 256;

/// The rows of a tensor to normalize.
pub(super) struct Rows<'a> {
    pub op: &'static str,
    pub x: &'a RocmStorage,
    pub from: DevicePtr,
    pub rows: usize,
    pub columns: usize,
    /// Maximum number of parts per row.
    pub max_parts: usize,
}

impl<'a> Rows<'a> {
    fn of(op: &'static str, x: &'a RocmStorage, layout: &'a Layout) -> Result<Self> {
        let from = contiguous(op, "input", x, layout)?;
        let Some(&columns) = layout.dims().last() else { bail!("{op}: a scalar has no last dim") };
        count(op, columns)?;
        let rows = layout.shape().elem_count().checked_div(columns).unwrap_or(0);
        let max_parts = SATURATING_PARTS.checked_div(rows).unwrap_or(0);
        Ok(Self { op, x, from, rows, columns, max_parts })
    }

    /// Checks a tensor with one element per column and returns its address.
    fn per_column(&self, name: &str, weight: &RocmStorage, layout: &Layout) -> Result<DevicePtr> {
        if weight.dtype() != self.x.dtype() {
            bail!("{}: dtype mismatch, x: {:?}, {name}: {:?}", self.op, self.x.dtype(), weight.dtype());
        }
        if layout.shape().elem_count() != self.columns {
            bail!("{}: rows of {} elements, {name} of shape {:?}", self.op, self.columns, layout.dims());
        }
        self.x.order_after(weight)?;
        contiguous(self.op, name, weight, layout)
    }

    /// Allocates a dense result and calls `launch` to write it. `launch` receives the addresses of the rows, of their
    /// results and of the statistics of their parts. If rows have several parts, a first launch without an address for
    /// results computes the statistics. Rows that exceed the limit of a launch take several.
    pub fn result(
        &self,
        launch: impl Fn([DevicePtr; 3], &Shares, LaunchConfig) -> Result<()>,
    ) -> Result<RocmStorage> {
        let (dtype, device, op) = (self.x.dtype(), self.x.device(), self.op);
        // SAFETY: the kernel writes every element of every row.
        let dst = unsafe { RocmStorage::alloc(device, dtype, self.rows * self.columns, op)? };
        if self.rows == 0 {
            return Ok(dst);
        }
        let to = output(&dst)?;
        let (shares, block) = self.shares();
        let parts = self.columns.div_ceil(shares.part as usize);
        let mut partials = None;
        if parts > 1 {
            let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            // SAFETY: the first launch writes everything that the second reads.
            partials = Some(unsafe { RocmStorage::alloc(device, wide, 3 * self.rows * parts, op)? });
        }
        let partials = partials.as_ref().map_or(Ok(DevicePtr::NULL), output)?;
        // HIP limits the number of threads of a launch to 32 bits.
        let per_block = (block / shares.width) as usize;
        let step = (u32::MAX / block) as usize / parts * per_block;
        for first in (0..self.rows).step_by(step) {
            let at = |ptr| offset_by_elements(ptr, dtype, first * self.columns);
            let rows = step.min(self.rows - first);
            let shares = Shares { first, rows: rows as u32, ..shares };
            let mut config = LaunchConfig::for_rows(op, rows.div_ceil(per_block), block)?;
            config.grid.1 = parts as u32;
            if parts > 1 {
                launch([at(self.from), DevicePtr::NULL, partials], &shares, config)?;
            }
            launch([at(self.from), at(to), partials], &shares, config)?;
        }
        Ok(dst)
    }

    /// Returns the distribution of the rows over threads, and the number of threads per workgroup.
    fn shares(&self) -> (Shares, u32) {
        let Self { rows, columns, max_parts, .. } = *self;
        let size = self.x.dtype().size_in_bytes();
        let pack = PACK_BYTES / size;
        // If rows are not aligned, threads also process single elements at both ends.
        let is_aligned = columns % pack == 0 && (self.from.0 as usize).is_multiple_of(PACK_BYTES);
        let least = if is_aligned { 4 } else { 2 * pack };
        let packs = columns.div_ceil(pack).next_power_of_two();
        let full = if size == 8 { packs } else { packs / ROW_PACKS };
        let width = full.max(packs.min((FULL_THREADS / rows).next_power_of_two())).clamp(least, ROW_BLOCK);
        let parts = (columns / MIN_PART).min(max_parts);
        let part = if parts < MIN_PARTS { columns } else { columns.div_ceil(parts).next_multiple_of(64) };
        let block = rows.saturating_mul(width).next_power_of_two().clamp(32, 128).max(width);
        let [part, width, columns] = [part, width, columns].map(|n| n as u32);
        (Shares { first: 0, rows: 0, columns, part, width }, block as u32)
    }
}

/// Distribution of the rows of a launch over its threads.
pub(super) struct Shares {
    /// Index of the first row of this launch.
    pub first: usize,
    pub rows: u32,
    pub columns: u32,
    /// Number of elements of a part of a row.
    pub part: u32,
    /// Number of threads per row or part, a power of two.
    pub width: u32,
}

/// Computes softmax over the last dim, in f16, bf16, f32 or f64.
///
/// # Errors
/// If the dtype is not supported, or the tensor is strided or a scalar.
pub fn softmax_last_dim(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    softmax_of_rows("softmax-last-dim", SoftmaxOp::Softmax, x, layout)
}

fn softmax_of_rows(
    name: &'static str,
    op: SoftmaxOp,
    x: &RocmStorage,
    layout: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let kernel = kernel(name, x.dtype(), |dtype| Softmax::kernel(op, dtype))?;
    let dst = Rows::of(name, x, layout)?.result(|[src, dst, partials], shares, config| {
        let Shares { rows, columns, part, width, .. } = *shares;
        let arguments = Softmax { src, dst, partials, rows, columns, part, width };
        // SAFETY: source and result have all rows.
        unsafe { x.device().launch(kernel, config, &arguments) }
    })?;
    Ok((dst, layout.shape().clone()))
}

/// Operation for softmax over the last dim, or its logarithm.
struct LastDim(SoftmaxOp);

impl CustomOp1 for LastDim {
    fn name(&self) -> &'static str {
        match self.0 {
            SoftmaxOp::Softmax => "softmax",
            SoftmaxOp::Logsoftmax => "log-softmax",
        }
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("{}: the fused operation is only supported on ROCm devices", self.name())
    }

    fn rocm_fwd(&self, x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
        softmax_of_rows(self.name(), self.0, x, layout)
    }
}

/// Computes softmax over `dim` in few launches. Returns `None` if upstream's operations must be used: on other devices, if
/// gradients are tracked, or for unsupported operands.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn softmax(x: &Tensor, dim: usize) -> Result<Option<Tensor>> {
    softmax_over_dim(SoftmaxOp::Softmax, x, dim)
}

/// Like [`softmax`], for the logarithm of softmax.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn log_softmax(x: &Tensor, dim: usize) -> Result<Option<Tensor>> {
    softmax_over_dim(SoftmaxOp::Logsoftmax, x, dim)
}

fn softmax_over_dim(op: SoftmaxOp, x: &Tensor, dim: usize) -> Result<Option<Tensor>> {
    let is_float = matches!(x.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    if !x.device().is_rocm() || !is_float || x.track_op() || x.elem_count() == 0 {
        return Ok(None);
    }
    let last = x.rank() - 1;
    if dim == last {
        return x.contiguous()?.apply_op1_no_bwd(&LastDim(op)).map(Some);
    }
    // Transposing makes rows contiguous: two additional passes over memory, but separate operations need five.
    let rows = x.transpose(dim, last)?.contiguous()?.apply_op1_no_bwd(&LastDim(op))?;
    rows.transpose(dim, last)?.contiguous().map(Some)
}

/// Computes x / sqrt(mean(x^2) + eps) * alpha, in f16, bf16, f32 or f64; f16 and bf16 are summed in f32.
///
/// # Errors
/// If the dtype is not supported, or the tensor is strided or a scalar, or if alpha does not have one element per column.
pub fn rms_norm(
    eps: f32,
    x: &RocmStorage,
    layout: &Layout,
    alpha: &RocmStorage,
    alpha_layout: &Layout,
) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "rms-norm";
    let kernel = kernel(OP, x.dtype(), RmsNorm::kernel)?;
    let rows = Rows::of(OP, x, layout)?;
    let alpha = rows.per_column("alpha", alpha, alpha_layout)?;
    let dst = rows.result(|[src, dst, partials], shares, config| {
        let Shares { rows, columns, part, width, .. } = *shares;
        let arguments = RmsNorm { src, dst, alpha, partials, rows, columns, part, width, eps };
        // SAFETY: source and result have all rows, and alpha has an element per column.
        unsafe { x.device().launch(kernel, config, &arguments) }
    })?;
    Ok((dst, layout.shape().clone()))
}

/// Computes (x - mean) / sqrt(variance + eps) * alpha + beta, in f16, bf16, f32 or f64; f16 and bf16 are summed in f32.
///
/// # Errors
/// If the dtype is not supported, or the tensor is strided or a scalar, or if alpha or beta does not have one element per column.
pub fn layer_norm(
    eps: f32,
    x: &RocmStorage,
    layout: &Layout,
    alpha: &RocmStorage,
    alpha_layout: &Layout,
    beta: &RocmStorage,
    beta_layout: &Layout,
) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "layer-norm";
    let kernel = kernel(OP, x.dtype(), LayerNorm::kernel)?;
    let rows = Rows::of(OP, x, layout)?;
    let alpha = rows.per_column("alpha", alpha, alpha_layout)?;
    let beta = rows.per_column("beta", beta, beta_layout)?;
    let dst = rows.result(|[src, dst, partials], shares, config| {
        let Shares { rows, columns, part, width, .. } = *shares;
        let arguments = LayerNorm { src, dst, alpha, beta, partials, rows, columns, part, width, eps };
        // SAFETY: source and result have all rows, and alpha and beta have an element per column.
        unsafe { x.device().launch(kernel, config, &arguments) }
    })?;
    Ok((dst, layout.shape().clone()))
}
