//! Devices that are compared.
use anyhow::{Context, Result};
use candle_core::Device;
use serde_json::{Map, Value};
use std::time::Instant;

/// Kind of device, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Rocm,
    /// Candle's own CUDA backend, which needs the feature `cuda`.
    Cuda,
    Cpu,
}

/// Opened device with its description in the results.
pub struct Opened {
    pub kind: Kind,
    pub device: Device,
    pub name: &'static str,
    pub driver: &'static str,
    pub gpu: String,
    pub arch: String,
    pub note: Option<&'static str>,
    pub versions: Map<String, Value>,
    /// Time to open the device, in microseconds.
    pub init_us: f64,
}

impl Kind {
    /// Opens the device. Fails if it does not exist, or if this binary was built without its backend.
    pub fn open(self) -> Result<Opened> {
        let start = Instant::now();
        let device = match self {
            Self::Rocm => Device::new_rocm(0),
            Self::Cuda => Device::new_cuda(0),
            Self::Cpu => Ok(Device::Cpu),
        };
        let device = device.with_context(|| match self {
            Self::Cuda if cfg!(not(feature = "cuda")) => {
                "this benchmark was built without Candle's CUDA backend: build it with --features cuda \
                 (docs/explanation/performance.md lists the requirements)"
            }
            _ => "cannot open the device",
        })?;
        let init_us = start.elapsed().as_secs_f64() * 1e6;
        let (name, driver, gpu, arch, note) = match &device {
            Device::Rocm(rocm) => {
                let driver = rocm.driver()?;
                ("rocm", driver.name(), rocm.name().to_string(), rocm.arch().to_string(), driver.note())
            }
            Device::Cpu => ("cpu", "-", cpu_name(), std::env::consts::ARCH.to_string(), None),
            _ => cuda(&device)?,
        };
        let versions = versions(&device)?;
        Ok(Opened { kind: self, device, name, driver, gpu, arch, note, versions, init_us })
    }
}

type Description = (&'static str, &'static str, String, String, Option<&'static str>);

/// Returns the versions of Candle, of the GPU's kernel module, and of the libraries behind a ROCm device.
fn versions(device: &Device) -> Result<Map<String, Value>> {
    let mut versions = Map::new();
    versions.insert("candle".to_string(), env!("CARGO_PKG_VERSION").into());
    if device.is_cpu() {
        return Ok(versions);
    }
    for module in ["amdgpu", "nvidia"] {
        if let Ok(text) = std::fs::read_to_string(format!("/sys/module/{module}/version")) {
            versions.insert(module.to_string(), text.trim().into());
        }
    }
    if let Device::Rocm(device) = device {
        let served = device.driver()?.versions();
        let hip =
            served.hip_runtime.map(|v| format!("{}.{}.{}", v / 10_000_000, v / 100_000 % 100, v % 100_000));
        for (name, version) in [("hip", hip), ("rocblas", served.rocblas)] {
            versions.extend(version.map(|version| (name.to_string(), version.into())));
        }
    }
    Ok(versions)
}

/// Note for all results of Candle's CUDA backend.
#[cfg(feature = "cuda")]
const NOTE: &str = "NVIDIA, for development: no AMD figure";

#[cfg(feature = "cuda")]
fn cuda(device: &Device) -> Result<Description> {
    let stream = device.as_cuda_device()?.cuda_stream();
    let context = stream.context();
    let (major, minor) = context.compute_capability()?;
    Ok(("cuda", "-", context.name()?, format!("sm_{major}{minor}"), Some(NOTE)))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: &Device) -> Result<Description> {
    anyhow::bail!("unsupported device: only rocm, cuda and cpu are measured")
}

fn cpu_name() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or("unknown", |(_, name)| name).to_string()
}
