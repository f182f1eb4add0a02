//! Softmax and the norms over the last dim of a contiguous tensor: one workgroup per row.
use super::{contiguous, count, kernel, output};
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::contract::{LayerNorm, RmsNorm, Softmax, ROW_BLOCK};
use candle::rocm::{further, DevicePtr, LaunchConfig, RocmStorage};
use candle::{bail, Layout, Result, Shape};

/// A thread of a row is worth starting for this many elements.
const PER_THREAD: usize = 4;

/// The tensor whose rows are normalised, and its result.
struct Rows<'a> {
    op: &'static str,
    x: &'a RocmStorage,
    from: DevicePtr,
    rows: usize,
    columns: usize,
}

impl<'a> Rows<'a> {
    fn of(op: &'static str, x: &'a RocmStorage, layout: &'a Layout) -> Result<Self> {
        let from = contiguous(op, "input", x, layout)?;
        let Some(&columns) = layout.dims().last() else { bail!("{op}: a scalar has no last dim") };
        count(op, columns)?;
        let rows = layout.shape().elem_count().checked_div(columns).unwrap_or(0);
        Ok(Self { op, x, from, rows, columns })
    }

    /// A factor or summand per column.
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

    /// A dense result that `launch` writes: it gets where some rows and their results begin, how long rows are, and a
    /// workgroup for each row. More rows than one launch can count take several.
    fn result(
        &self,
        launch: impl Fn(DevicePtr, DevicePtr, u32, LaunchConfig) -> Result<()>,
    ) -> Result<RocmStorage> {
        let dtype = self.x.dtype();
        // SAFETY: the kernel writes every element of every row.
        let dst = unsafe { RocmStorage::alloc(self.x.device(), dtype, self.rows * self.columns, self.op)? };
        if self.rows == 0 {
            return Ok(dst);
        }
        let to = output(&dst)?;
        let columns = self.columns as u32;
        let block = self.columns.div_ceil(PER_THREAD).next_power_of_two().clamp(32, ROW_BLOCK) as u32;
        // HIP counts the threads of a launch in 32 bits.
        let step = (u32::MAX / block) as usize;
        for first in (0..self.rows).step_by(step) {
            let at = |ptr| further(ptr, dtype, first * self.columns);
            let config = LaunchConfig::for_rows(self.op, step.min(self.rows - first), block)?;
            launch(at(self.from), at(to), columns, config)?;
        }
        Ok(dst)
    }
}

/// Softmax over the last dim, for f16, bf16, f32 and f64.
///
/// # Errors
/// For other dtypes, strided tensors and scalars.
pub fn softmax_last_dim(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "softmax-last-dim";
    let kernel = kernel(OP, x.dtype(), Softmax::kernel)?;
    let dst = Rows::of(OP, x, layout)?.result(|src, dst, columns, config| {
        // SAFETY: source and result hold all rows.
        unsafe { x.device().launch(kernel, config, &Softmax { src, dst, columns }) }
    })?;
    Ok((dst, layout.shape().clone()))
}

/// x / sqrt(mean(x^2) + eps) * alpha, for f16, bf16, f32 and f64; narrow floats are summed in f32.
///
/// # Errors
/// For other dtypes, strided tensors and scalars, or an alpha that has not one element per column.
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
    let dst = rows.result(|src, dst, columns, config| {
        // SAFETY: source and result hold all rows, alpha was checked to have an element per column.
        unsafe { x.device().launch(kernel, config, &RmsNorm { src, dst, alpha, columns, eps }) }
    })?;
    Ok((dst, layout.shape().clone()))
}

/// (x - mean) / sqrt(variance + eps) * alpha + beta, for f16, bf16, f32 and f64; narrow floats are summed in f32.
///
/// # Errors
/// For other dtypes, strided tensors and scalars, or an alpha or beta that has not one element per column.
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
    let dst = rows.result(|src, dst, columns, config| {
        // SAFETY: source and result hold all rows, alpha and beta were checked to have an element per column.
        unsafe { x.device().launch(kernel, config, &LayerNorm { src, dst, alpha, beta, columns, eps }) }
    })?;
    Ok((dst, layout.shape().clone()))
}
