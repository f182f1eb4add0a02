//! The device that the model runs on: selection, description, memory use and diagnostics.
use std::fmt::Write;

use anyhow::Result;
use candle_core::Device;

/// Kind of device. Each binary supports one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// CPU.
    Cpu,
    /// AMD GPU, through ROCm.
    Rocm,
    /// NVIDIA GPU, through CUDA.
    Cuda,
}

impl DeviceKind {
    /// Returns the name of a package's binary for this kind of device, such as `llm-worker-rocm`.
    pub fn binary(self, package: &str) -> String {
        let device = match self {
            Self::Cpu => "cpu",
            Self::Rocm => "rocm",
            Self::Cuda => "cuda",
        };
        format!("{package}-{device}")
    }
}

/// An open device.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// The device.
    pub device: Device,
    /// Its ordinal; `None` for the CPU.
    pub ordinal: Option<usize>,
}

/// Opens a device. `ordinal` selects an AMD GPU; `None` selects the first usable one.
///
/// # Errors
/// The device or its driver is missing, or the binary was built without the required Cargo feature.
pub fn open(kind: DeviceKind, ordinal: Option<usize>) -> Result<OpenDevice> {
    match kind {
        DeviceKind::Cpu => Ok(OpenDevice { device: Device::Cpu, ordinal: None }),
        DeviceKind::Rocm => rocm(ordinal),
        DeviceKind::Cuda => Ok(OpenDevice { device: Device::new_cuda(0)?, ordinal: Some(0) }),
    }
}

#[cfg(feature = "rocm")]
fn rocm(ordinal: Option<usize>) -> Result<OpenDevice> {
    let ordinal = match ordinal {
        Some(ordinal) => ordinal,
        None => candle_core::rocm::RocmDevice::default_ordinal()?,
    };
    Ok(OpenDevice { device: Device::new_rocm(ordinal)?, ordinal: Some(ordinal) })
}

#[cfg(not(feature = "rocm"))]
fn rocm(_ordinal: Option<usize>) -> Result<OpenDevice> {
    anyhow::bail!("this binary was built without ROCm support; rebuild it with `--features rocm`")
}

/// Returns a short description of the device.
pub fn describe(device: &Device) -> String {
    match device {
        #[cfg(feature = "rocm")]
        Device::Rocm(rocm) => format!("{} ({}, driver {})", rocm.name(), rocm.arch(), rocm.driver_name()),
        Device::Cpu => "the CPU".to_owned(),
        other => format!("{:?}", other.location()),
    }
}

/// Returns the device memory that this process has allocated, in bytes; 0 if unknown, or for the CPU.
pub fn vram_bytes(device: &Device) -> u64 {
    match device {
        #[cfg(feature = "rocm")]
        Device::Rocm(rocm) => rocm.memory_stats().live as u64,
        _ => 0,
    }
}

/// Returns memory that is cached for later tensors to the driver, and freed host memory to the operating system.
///
/// # Errors
/// The device fails.
pub fn release_memory(device: &Device) -> candle_core::Result<()> {
    crate::memory::release_unused();
    match device {
        #[cfg(feature = "rocm")]
        Device::Rocm(rocm) => rocm.empty_cache().map(drop),
        _ => Ok(()),
    }
}

/// Returns the resident set size of this process in bytes, or 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Returns the number of objects of the GPU driver that were created and not destroyed; `None` without the software GPU.
pub(crate) fn driver_objects() -> Option<u64> {
    #[cfg(feature = "rocm")]
    return candle_core::rocm::rocm_loader::symbols::open_objects().map(|count| count.max(0) as u64);
    #[cfg(not(feature = "rocm"))]
    None
}

/// Returns a diagnostic report about this machine; `binary` is the name of the program.
pub fn doctor(kind: DeviceKind, binary: &str) -> String {
    let mut text = format!("{binary} {}\n", env!("CARGO_PKG_VERSION"));
    #[cfg(feature = "rocm")]
    if kind == DeviceKind::Rocm {
        let _ = writeln!(text, "{}", candle_core::rocm::Report::gather());
        return text;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let _ = writeln!(text, "{} on {}, {threads} threads", std::env::consts::OS, std::env::consts::ARCH);
    if kind == DeviceKind::Cuda {
        let found = match Device::new_cuda(0) {
            Ok(_) => "available".to_owned(),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(text, "CUDA device 0: {found}");
    }
    for name in ["MemTotal", "MemAvailable"] {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if let Some(line) = memory.lines().find(|line| line.starts_with(name)) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}
