//! The fused layers on ROCm: one kernel each of the modules `reduce` and `unary`.
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::Module;
use candle::rocm::{DevicePtr, LaunchConfig, RocmStorage, Strided};
use candle::{bail, Layout, Result, Shape};

/// Threads that share a row in the softmax kernel: it combines them with shuffles of this width.
const SOFTMAX_THREADS: u32 = 32;

/// The kernels number the elements of a tensor with an `int`.
const MAX_ELEMENTS: usize = i32::MAX as usize;

/// 1 / (1 + exp(-x)), any strides, for f16, bf16, f32, f64 and f8e4m3.
pub fn sigmoid(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "sigmoid";
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(x.device(), x.dtype(), elements, OP)? };
    if elements > 0 {
        let (from, to) = (x.ptr(layout, OP)?, output(&dst)?);
        let strided = Strided::of(OP, &[layout])?;
        let kernel = x.device().kernel(Module::Unary, &["usigmoid", x.dtype().as_str()])?;
        let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
        // SAFETY: usigmoid(numel, num_dims, info, inp, out); `from` was checked against its buffer.
        unsafe { launch.arg(&elements).strided(&strided).arg(&from).arg(&to).run()? };
    }
    Ok((dst, layout.shape().clone()))
}

/// Rows of a contiguous tensor: its last dim, and how many there are of it.
struct Rows {
    from: DevicePtr,
    count: usize,
    columns: usize,
}

impl Rows {
    fn of(op: &'static str, x: &RocmStorage, layout: &Layout) -> Result<Self> {
        let from = x.contiguous_ptr(layout, op)?;
        let elements = layout.shape().elem_count();
        let Some(&columns) = layout.dims().last() else { bail!("{op}: a scalar has no last dim") };
        if elements > MAX_ELEMENTS {
            bail!("{op}: {elements} elements, at most {MAX_ELEMENTS} are possible on ROCm");
        }
        Ok(Self { from, count: elements.checked_div(columns).unwrap_or(0), columns })
    }

    /// A factor or summand per column.
    fn per_column(
        &self,
        op: &'static str,
        x: &RocmStorage,
        like: &RocmStorage,
        layout: &Layout,
    ) -> Result<DevicePtr> {
        if x.dtype() != like.dtype() {
            bail!("{op}: dtype mismatch, x: {:?}, weight: {:?}", like.dtype(), x.dtype());
        }
        if layout.shape().elem_count() != self.columns {
            bail!("{op}: rows of {} elements with a weight of shape {:?}", self.columns, layout.dims());
        }
        x.contiguous_ptr(layout, op)
    }

    /// Threads per row of the norms: a wave's worth for short rows, as many as there may be for long ones.
    fn norm_threads(&self) -> u32 {
        if self.columns < 1024 {
            32
        } else {
            1024
        }
    }
}

/// Softmax over the last dim of a contiguous tensor, for f16, bf16, f32 and f64.
pub fn softmax_last_dim(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "softmax-last-dim";
    let rows = Rows::of(OP, x, layout)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(x.device(), x.dtype(), rows.count * rows.columns, OP)? };
    if rows.count > 0 {
        let to = output(&dst)?;
        let columns = rows.columns as i32;
        let mut config = LaunchConfig::for_rows(OP, rows.count, SOFTMAX_THREADS)?;
        config.block = (1, SOFTMAX_THREADS, 1);
        let kernel = x.device().kernel(Module::Reduce, &["softmax", x.dtype().as_str()])?;
        // SAFETY: softmax(src, dst, n_cols), one workgroup per row.
        unsafe { kernel.launch(config).arg(&rows.from).arg(&to).arg(&columns).run()? };
    }
    Ok((dst, layout.shape().clone()))
}

/// x / sqrt(mean(x^2) + eps) * alpha over the last dim of a contiguous tensor, for f16, bf16, f32 and f64; the sums
/// are in f32.
pub fn rms_norm(
    eps: f32,
    x: &RocmStorage,
    lx: &Layout,
    alpha: &RocmStorage,
    lalpha: &Layout,
) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "rms-norm";
    let rows = Rows::of(OP, x, lx)?;
    let alpha = rows.per_column(OP, alpha, x, lalpha)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(x.device(), x.dtype(), rows.count * rows.columns, OP)? };
    if rows.count > 0 {
        let to = output(&dst)?;
        let threads = rows.norm_threads();
        let (columns, block) = (rows.columns as i32, threads as i32);
        let kernel = x.device().kernel(Module::Reduce, &["rmsnorm", x.dtype().as_str()])?;
        let launch = kernel.launch(LaunchConfig::for_rows(OP, rows.count, threads)?);
        let launch = launch.arg(&rows.from).arg(&to).arg(&alpha);
        // SAFETY: rmsnorm(src, dst, alpha, n_cols, block_size, eps), one workgroup per row.
        unsafe { launch.arg(&columns).arg(&block).arg(&eps).run()? };
    }
    Ok((dst, lx.shape().clone()))
}

/// (x - mean) / sqrt(variance + eps) * alpha + beta over the last dim of a contiguous tensor, for f16, bf16, f32 and
/// f64; the sums are in f32.
pub fn layer_norm(
    eps: f32,
    x: &RocmStorage,
    lx: &Layout,
    alpha: &RocmStorage,
    lalpha: &Layout,
    beta: &RocmStorage,
    lbeta: &Layout,
) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "layer-norm";
    let rows = Rows::of(OP, x, lx)?;
    let alpha = rows.per_column(OP, alpha, x, lalpha)?;
    let beta = rows.per_column(OP, beta, x, lbeta)?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(x.device(), x.dtype(), rows.count * rows.columns, OP)? };
    if rows.count > 0 {
        let to = output(&dst)?;
        let threads = rows.norm_threads();
        let (columns, block) = (rows.columns as i32, threads as i32);
        let kernel = x.device().kernel(Module::Reduce, &["layernorm", x.dtype().as_str()])?;
        let launch = kernel.launch(LaunchConfig::for_rows(OP, rows.count, threads)?);
        let launch = launch.arg(&rows.from).arg(&to).arg(&alpha).arg(&beta);
        // SAFETY: layernorm(src, dst, alpha, beta, n_cols, block_size, eps), one workgroup per row.
        unsafe { launch.arg(&columns).arg(&block).arg(&eps).run()? };
    }
    Ok((dst, lx.shape().clone()))
}

/// What the three rotary embeddings share: checked operands and the launch of half as many threads as elements.
struct Rope<'a> {
    op: &'static str,
    x: &'a RocmStorage,
    layout: &'a Layout,
    dims: (usize, usize, usize, usize),
    from: DevicePtr,
    cos: DevicePtr,
    sin: DevicePtr,
    /// Elements of x per batch if cos and sin are given per batch, else 0.
    batch_stride: u32,
}

impl<'a> Rope<'a> {
    /// `time` is the dim of x that counts positions.
    fn new(
        op: &'static str,
        time: usize,
        (x, lx): (&'a RocmStorage, &'a Layout),
        (cos, lcos): (&RocmStorage, &Layout),
        (sin, lsin): (&RocmStorage, &Layout),
    ) -> Result<Self> {
        if x.dtype() != cos.dtype() || x.dtype() != sin.dtype() {
            bail!("{op}: dtype mismatch, x: {:?}, cos: {:?}, sin: {:?}", x.dtype(), cos.dtype(), sin.dtype());
        }
        let dims = lx.shape().dims4()?;
        if dims.3 % 2 != 0 {
            bail!("{op}: the last dim of {:?} has no halves", lx.dims());
        }
        let elements = lx.shape().elem_count();
        if elements > MAX_ELEMENTS {
            bail!("{op}: {elements} elements, at most {MAX_ELEMENTS} are possible on ROCm");
        }
        let per_batch = lcos.dims().len() == 3 && lsin.dims().len() == 3;
        // Each thread turns one pair by the angle of its position.
        let angles = lx.dims()[time] * (dims.3 / 2) * if per_batch { dims.0 } else { 1 };
        for layout in [lcos, lsin] {
            if layout.shape().elem_count() < angles {
                bail!("{op}: x of shape {:?} needs {angles} angles, got {:?}", lx.dims(), layout.dims());
            }
        }
        let batch_stride = if per_batch { (elements / dims.0.max(1)) as u32 } else { 0 };
        let from = x.contiguous_ptr(lx, op)?;
        let (cos, sin) = (cos.contiguous_ptr(lcos, op)?, sin.contiguous_ptr(lsin, op)?);
        Ok(Self { op, x, layout: lx, dims, from, cos, sin, batch_stride })
    }

    /// Launches `kernel`(src, cos, sin, dst, sizes..., stride_b).
    fn run(&self, kernel: &'static str, sizes: &[u32]) -> Result<(RocmStorage, Shape)> {
        let elements = self.layout.shape().elem_count();
        // SAFETY: every element is written by the kernel.
        let dst = unsafe { RocmStorage::alloc(self.x.device(), self.x.dtype(), elements, self.op)? };
        if elements > 0 {
            let to = output(&dst)?;
            let kernel = self.x.device().kernel(Module::Reduce, &[kernel, self.x.dtype().as_str()])?;
            let launch = kernel.launch(LaunchConfig::for_elements(self.op, elements / 2)?);
            let launch = launch.arg(&self.from).arg(&self.cos).arg(&self.sin).arg(&to);
            let launch = sizes.iter().fold(launch, |launch, size| launch.arg(size));
            // SAFETY: the arguments of the rope kernels, whose tables were checked to hold all positions.
            unsafe { launch.arg(&self.batch_stride).run()? };
        }
        Ok((dst, self.layout.shape().clone()))
    }
}

/// Rotary embedding of (b, h, t, d) by pairs of neighbours.
pub fn rope_i(
    x: &RocmStorage,
    lx: &Layout,
    cos: &RocmStorage,
    lcos: &Layout,
    sin: &RocmStorage,
    lsin: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let rope = Rope::new("rope-i", 2, (x, lx), (cos, lcos), (sin, lsin))?;
    let (b, h, t, d) = rope.dims;
    rope.run("rope_i", &[(b * h) as u32, (t * d) as u32])
}

/// Rotary embedding of (b, h, t, d) by pairs from both halves of d.
pub fn rope(
    x: &RocmStorage,
    lx: &Layout,
    cos: &RocmStorage,
    lcos: &Layout,
    sin: &RocmStorage,
    lsin: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let rope = Rope::new("rope", 2, (x, lx), (cos, lcos), (sin, lsin))?;
    let (b, h, t, d) = rope.dims;
    rope.run("rope", &[(b * h) as u32, (t * d) as u32, d as u32])
}

/// The same as [`rope`] for (b, t, h, d).
pub fn rope_thd(
    x: &RocmStorage,
    lx: &Layout,
    cos: &RocmStorage,
    lcos: &Layout,
    sin: &RocmStorage,
    lsin: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let rope = Rope::new("rope-thd", 1, (x, lx), (cos, lcos), (sin, lsin))?;
    let (b, t, h, d) = rope.dims;
    rope.run("rope_thd", &[b as u32, t as u32, h as u32, d as u32])
}

/// Where a kernel writes: the first element of a fresh storage.
fn output(dst: &RocmStorage) -> Result<DevicePtr> {
    dst.ptr(&Layout::contiguous(()), "output")
}
