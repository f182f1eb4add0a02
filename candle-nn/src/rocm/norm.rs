//! Softmax and the norms over the last dim of a contiguous tensor: the kernels softmax, rmsnorm and layernorm
//! of module `reduce`, one workgroup per row.
use super::{contiguous, has_kernels, output, MAX_ELEMENTS};
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::Module;
use candle::rocm::{DevicePtr, LaunchConfig, RocmStorage};
use candle::{bail, Layout, Result, Shape};

/// Threads that share a row in the softmax kernel: it combines them with shuffles of this width.
const SOFTMAX_THREADS: u32 = 32;

/// The tensor whose rows are normalised.
struct Rows<'a> {
    op: &'static str,
    x: &'a RocmStorage,
    shape: &'a Shape,
    from: DevicePtr,
    count: usize,
    columns: usize,
}

impl<'a> Rows<'a> {
    fn of(op: &'static str, x: &'a RocmStorage, layout: &'a Layout) -> Result<Self> {
        if !has_kernels(x.dtype()) {
            bail!("unsupported dtype for {op} {:?}", x.dtype());
        }
        let from = contiguous(op, "input", x, layout)?;
        let elements = layout.shape().elem_count();
        let Some(&columns) = layout.dims().last() else { bail!("{op}: a scalar has no last dim") };
        if elements > MAX_ELEMENTS {
            bail!("{op}: {elements} elements, at most {MAX_ELEMENTS} are possible on ROCm");
        }
        let count = elements.checked_div(columns).unwrap_or(0);
        Ok(Self { op, x, shape: layout.shape(), from, count, columns })
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

    fn result(&self) -> Result<RocmStorage> {
        // SAFETY: the kernel writes every element of every row.
        unsafe { RocmStorage::alloc(self.x.device(), self.x.dtype(), self.count * self.columns, self.op) }
    }

    /// Launches `kernel`(src, dst, weights..., n_cols, block_size, eps).
    fn norm(&self, kernel: &'static str, weights: &[DevicePtr], eps: f32) -> Result<(RocmStorage, Shape)> {
        let dst = self.result()?;
        if self.count > 0 {
            let to = output(&dst)?;
            // One group of shuffling threads for short rows, as many as a workgroup may have for long ones.
            let threads = if self.columns < 1024 { 32 } else { 1024 };
            let (columns, block) = (self.columns as i32, threads as i32);
            let kernel = self.x.device().kernel(Module::Reduce, &[kernel, self.x.dtype().as_str()])?;
            let launch = kernel.launch(LaunchConfig::for_rows(self.op, self.count, threads)?);
            let launch = launch.arg(&self.from).arg(&to);
            let launch = weights.iter().fold(launch, |launch, weight| launch.arg(weight));
            // SAFETY: the arguments named above; every weight was checked to have an element per column.
            unsafe { launch.arg(&columns).arg(&block).arg(&eps).run()? };
        }
        Ok((dst, self.shape.clone()))
    }
}

/// Softmax over the last dim, for f16, bf16, f32 and f64.
pub fn softmax_last_dim(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "softmax-last-dim";
    let rows = Rows::of(OP, x, layout)?;
    let dst = rows.result()?;
    if rows.count > 0 {
        let to = output(&dst)?;
        let columns = rows.columns as i32;
        let mut config = LaunchConfig::for_rows(OP, rows.count, SOFTMAX_THREADS)?;
        config.block = (1, SOFTMAX_THREADS, 1);
        let kernel = x.device().kernel(Module::Reduce, &["softmax", x.dtype().as_str()])?;
        // SAFETY: softmax(src, dst, n_cols).
        unsafe { kernel.launch(config).arg(&rows.from).arg(&to).arg(&columns).run()? };
    }
    Ok((dst, layout.shape().clone()))
}

/// x / sqrt(mean(x^2) + eps) * alpha, for f16, bf16, f32 and f64; the sums are in f32.
pub fn rms_norm(
    eps: f32,
    x: &RocmStorage,
    lx: &Layout,
    alpha: &RocmStorage,
    lalpha: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let rows = Rows::of("rms-norm", x, lx)?;
    rows.norm("rmsnorm", &[rows.per_column("alpha", alpha, lalpha)?], eps)
}

/// (x - mean) / sqrt(variance + eps) * alpha + beta, for f16, bf16, f32 and f64; the sums are in f32.
pub fn layer_norm(
    eps: f32,
    x: &RocmStorage,
    lx: &Layout,
    alpha: &RocmStorage,
    lalpha: &Layout,
    beta: &RocmStorage,
    lbeta: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let rows = Rows::of("layer-norm", x, lx)?;
    let weights = [rows.per_column("alpha", alpha, lalpha)?, rows.per_column("beta", beta, lbeta)?];
    rows.norm("layernorm", &weights, eps)
}
