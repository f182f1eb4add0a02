//! Where the model runs, and what there is to say about it.
use std::fmt::Write;

use anyhow::Result;
use candle_core::Device;

/// The kinds of devices, one to a binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// An AMD card.
    Rocm,
    /// An NVIDIA card.
    Cuda,
}

impl DeviceKind {
    /// The name of a package's binary for it: of `llm-worker` that is `llm-worker-rocm`.
    pub fn binary(self, package: &str) -> String {
        let device = match self {
            Self::Cpu => "cpu",
            Self::Rocm => "rocm",
            Self::Cuda => "cuda",
        };
        format!("{package}-{device}")
    }
}

/// A device that was opened.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// The device.
    pub device: Device,
    /// Its number, where it has one.
    pub ordinal: Option<usize>,
}

/// Opens the device; `ordinal` is the number of the AMD card, or none for the first that works.
///
/// # Errors
/// Says what is missing: the device, its driver, or the feature that this binary was not built with.
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
    anyhow::bail!("this binary was built without ROCm: build it with `--features rocm`")
}

/// What the device is, in a few words.
pub fn describe(device: &Device) -> String {
    match device {
        #[cfg(feature = "rocm")]
        Device::Rocm(rocm) => format!("{} ({}, driver {})", rocm.name(), rocm.arch(), rocm.driver_name()),
        Device::Cpu => "the CPU".to_owned(),
        other => format!("{:?}", other.location()),
    }
}

/// Bytes of a card's memory that this process holds; 0 where there is no card, or it does not say.
pub fn vram_bytes(device: &Device) -> u64 {
    match device {
        #[cfg(feature = "rocm")]
        Device::Rocm(rocm) => rocm.memory_stats().live as u64,
        _ => 0,
    }
}

/// Bytes of the host's memory that this process holds; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Returns a report about this machine; `binary` is the program's name.
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
            Ok(_) => "it opens".to_owned(),
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
