//! Custom operation `scale * x / (scale + |x|)`: in Rust on the CPU, with a custom kernel on ROCm, and with
//! a gradient.
use candle_core::backend::BackendStorage;
use candle_core::rocm::{LaunchConfig, RocmStorage, hip_kernels};
use candle_core::{CpuStorage, CustomOp1, DType, Error, Layout, Result, Shape, Tensor, bail};
use half::f16;

/// Code objects that `hip-kernels-build --source` compiled from `softsign.cu`, by target.
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

/// Returns the code object for a GPU architecture.
///
/// # Errors
/// If there is none; the error names the architecture and the available targets.
pub fn code_object(arch: &str) -> Result<&'static [u8]> {
    let targets: Vec<&str> = CODE_OBJECTS.iter().map(|(target, _)| *target).collect();
    let best = hip_kernels::best_target(arch, &targets);
    match CODE_OBJECTS.iter().find(|(target, _)| Some(*target) == best) {
        Some((_, bytes)) => Ok(bytes),
        None => bail!("softsign was not compiled for {arch}, only for {targets:?}"),
    }
}

/// Softsign of contiguous f32 and f16 tensors.
pub struct Softsign {
    /// Limit of the result's magnitude; must be positive.
    pub scale: f32,
}

impl Softsign {
    fn value(&self, x: f32) -> f32 {
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
            CpuStorage::F32(x) => CpuStorage::F32(x[from..to].iter().map(|&x| self.value(x)).collect()),
            CpuStorage::F16(x) => {
                CpuStorage::F16(x[from..to].iter().map(|&x| f16::from_f32(self.value(x.to_f32()))).collect())
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
        // SAFETY: the kernel's parameters are (numel, scale, in, out), as in softsign.cu, and both pointers
        // are valid for `elements` elements.
        unsafe { launch.arg(&elements).arg(&self.scale).arg(&from).arg(&to).run()? };
        Ok((result, layout.shape().clone()))
    }

    /// Multiplies the gradient by the derivative, (scale / (scale + |x|))².
    fn bwd(&self, x: &Tensor, _result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let scale = f64::from(self.scale);
        let derivative = ((x.abs()? + scale)?.recip()? * scale)?.sqr()?;
        Ok(Some(gradient.mul(&derivative)?))
    }
}
