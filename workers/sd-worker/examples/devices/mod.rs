//! Devices that the examples measure: their selection and their memory.
use anyhow::{Result, bail};
use candle_core::Device;

/// Returns the device named `cpu`, `rocm` or `rocm:N`.
///
/// # Errors
/// Returns an error for other names, and if the device cannot be opened.
pub fn device(name: &str) -> Result<Device> {
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", _) => Ok(Device::Cpu),
        #[cfg(feature = "rocm")]
        ("rocm", ordinal) => Ok(Device::new_rocm(ordinal.parse()?)?),
        _ => bail!("device {name:?} is not supported; use cpu, or rocm:N in a build with the feature rocm"),
    }
}

/// Memory of a device in bytes; 0 if the device does not report it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Memory {
    /// Size of the tensors.
    pub live: usize,
    /// Maximum of `live` so far.
    pub peak: usize,
    /// Memory allocated from the driver: tensors, and memory kept for reuse.
    pub reserved: usize,
}

/// Returns the memory in use.
pub fn memory(device: &Device) -> Memory {
    match device {
        #[cfg(feature = "rocm")]
        Device::Rocm(device) => {
            let stats = device.memory_stats();
            Memory { live: stats.live, peak: stats.peak, reserved: stats.live + stats.cached }
        }
        _ => Memory::default(),
    }
}
