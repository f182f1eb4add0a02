//! GPU that the tests of each program run on.
use candle_core::Device;

/// Returns the ROCm device: the one that the environment selects, or a software GPU.
pub fn rocm() -> Device {
    if matches!(rocm_loader::driver(), Err(rocm_loader::LoadError::NoGpu { .. })) {
        rocm_loader::select("emulator:gfx1100").unwrap();
    }
    Device::new_rocm(0).unwrap()
}
