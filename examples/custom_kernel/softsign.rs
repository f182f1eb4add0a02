//! `scale * x / (scale + |x|)` as a custom operation: on the CPU in Rust, on ROCm with a kernel of its own,
//! and with a gradient.
use candle_core::backend::BackendStorage;
use candle_core::rocm::{LaunchConfig, RocmStorage, hip_kernels};
use candle_core::{CpuStorage, CustomOp1, DType, Error, Layout, Result, Shape, Tensor, bail};
use half::f16;

/// The code objects that `hip-kernels-build --source` made of `softsign.cu`, by target.
macro_rules! code_objects {
    ($($target:literal),*) => {
        &[$(($target, include_bytes!(concat!("softsign-", $target, ".hsaco")))),*]
    };
}
const CODE_OBJECTS: &[(&str, &[u8])] = code_objects![
    "gfx908",
    "gfx90a",
    "gfx1100",
    "gfx9-4-generic",
    "gfx10-3-generic",
    "gfx11-generic",
    "gfx12-generic"
];

/// The code object that runs on a GPU of this architecture.
///
/// # Errors
/// If there is none: the architecture and what there is are named.
pub fn code_object(arch: &str) -> Result<&'static [u8]> {
    let targets: Vec<&str> = CODE_OBJECTS.iter().map(|(target, _)| *target).collect();
    let best = hip_kernels::best_target(arch, &targets);
    match CODE_OBJECTS.iter().find(|(target, _)| Some(*target) == best) {
        Some((_, bytes)) => Ok(bytes),
        None => bail!("softsign was not compiled for {arch}, only for {targets:?}"),
    }
}

/// For f32 and f16, contiguous.
pub struct Softsign {
    /// The bound of the result; more than 0.
    pub scale: f32,
}

impl Softsign {
    fn of(&self, x: f32) -> f32 {
        self.scale * x / (self.scale + x.abs())
    }
}

impl CustomOp1 for Softsign {
    fn name(&self) -> &'static str {
        "softsign"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((from, to)) = layout.contiguous_offsets() else {
            return Err(Error::RequiresContiguous { op: self.name() }.bt());
        };
        let result = match storage {
            CpuStorage::F32(x) => CpuStorage::F32(x[from..to].iter().map(|&x| self.of(x)).collect()),
            CpuStorage::F16(x) => {
                CpuStorage::F16(x[from..to].iter().map(|&x| f16::from_f32(self.of(x.to_f32()))).collect())
            }
            other => return Err(Error::UnsupportedDTypeForOp(other.dtype(), self.name()).bt()),
        };
        Ok((result, layout.shape().clone()))
    }

    fn rocm_fwd(&self, storage: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
        let device = storage.device();
        let kernel = match storage.dtype() {
            DType::F32 => "softsign_f32",
            DType::F16 => "softsign_f16",
            other => return Err(Error::UnsupportedDTypeForOp(other, self.name()).bt()),
        };
        let from = storage.contiguous_ptr(layout, self.name())?;
        let elements = layout.shape().elem_count();
        // SAFETY: the kernel writes every element.
        let result = unsafe { RocmStorage::alloc(device, storage.dtype(), elements, self.name())? };
        let to = result.ptr(&Layout::contiguous(elements), self.name())?;
        let kernel = device.custom_kernel("softsign", code_object(device.arch())?, kernel)?;
        let launch = kernel.launch(LaunchConfig::for_elements(self.name(), elements)?);
        // SAFETY: softsign(numel, scale, in, out), as declared in softsign.cu; both pointers cover
        // `elements`.
        unsafe { launch.arg(&elements).arg(&self.scale).arg(&from).arg(&to).run()? };
        Ok((result, layout.shape().clone()))
    }

    /// The derivative is (scale / (scale + |x|))².
    fn bwd(&self, x: &Tensor, _result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let scale = f64::from(self.scale);
        let derivative = ((x.abs()? + scale)?.recip()? * scale)?.sqr()?;
        Ok(Some(gradient.mul(&derivative)?))
    }
}
