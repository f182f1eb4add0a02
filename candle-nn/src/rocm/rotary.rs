//! Rotary embeddings: the kernels rope, rope_i and rope_thd of module `reduce`.
use super::{contiguous, has_kernels, output, MAX_ELEMENTS};
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::Module;
use candle::rocm::{DevicePtr, LaunchConfig, RocmStorage};
use candle::{bail, Layout, Result, Shape};

/// What the three rotary embeddings share: checked operands and the launch of half as many threads as
/// elements.
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
        let dtypes = [x.dtype(), cos.dtype(), sin.dtype()];
        if !has_kernels(x.dtype()) || dtypes != [x.dtype(); 3] {
            bail!("unsupported dtype for {op} {dtypes:?}");
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
        x.order_after(cos)?;
        x.order_after(sin)?;
        let from = contiguous(op, "src", x, lx)?;
        let (cos, sin) = (contiguous(op, "cos", cos, lcos)?, contiguous(op, "sin", sin, lsin)?);
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
