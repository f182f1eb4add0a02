//! Where the model runs, and what there is to say about it.
use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_core::rocm::RocmDevice;

/// Parses `cpu`, `rocm` or `rocm:N`. Without a name it is the first GPU, or the CPU after saying why.
pub fn choose(name: Option<&str>) -> Result<Device> {
    let Some(name) = name else {
        return Ok(RocmDevice::default_ordinal().and_then(Device::new_rocm).unwrap_or_else(|reason| {
            eprintln!("on the CPU, since there is no ROCm device: {reason}");
            Device::Cpu
        }));
    };
    let opened = match name.split_once(':') {
        None if name == "cpu" => return Ok(Device::Cpu),
        None if name == "rocm" => RocmDevice::default_ordinal().and_then(Device::new_rocm),
        Some(("rocm", ordinal)) => {
            Device::new_rocm(ordinal.parse().with_context(|| format!("no device number in '{name}'"))?)
        }
        _ => bail!("unknown device '{name}': use cpu, rocm or rocm:N"),
    };
    opened.with_context(|| format!("cannot open device '{name}'"))
}

/// The device with its driver, and whether its speed is that of hardware.
pub fn describe(device: &Device) -> String {
    let Device::Rocm(rocm) = device else { return "the CPU".into() };
    let note = match rocm.driver_name() {
        "emulator" => "; this is the software GPU: its speeds are no hardware figures",
        "nvidia" => "; this is for development: its speeds are no AMD figures",
        _ => "",
    };
    format!("{}, arch {}, driver {}{note}", rocm.name(), rocm.arch(), rocm.driver_name())
}

/// The memory that the run took.
pub fn memory(device: &Device) -> Result<String> {
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    Ok(match device {
        Device::Rocm(rocm) => {
            let (stats, (_, total)) = (rocm.memory_stats(), rocm.memory_info()?);
            format!("{} in use, {} at most, of {}", mib(stats.live), mib(stats.peak), mib(total))
        }
        _ => match peak_of_process() {
            Some(bytes) => format!("{} at most, the whole program", mib(bytes)),
            None => "not known on this system".into(),
        },
    })
}

/// The most memory that this process had, where Linux says it.
fn peak_of_process() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
}

/// Kernels that a device launched so far.
pub fn kernels_launched(device: &Device) -> u64 {
    match device {
        Device::Rocm(rocm) => rocm.kernels_launched(),
        _ => 0,
    }
}
