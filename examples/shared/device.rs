//! Opens the device of an example by its name on the command line.
use anyhow::{Result, bail};
use candle_core::Device;

/// Opens `cpu`, `rocm:N`, or for `rocm` the first discrete GPU.
///
/// # Errors
/// If the name is invalid, or the device cannot be opened.
pub fn open(name: &str) -> Result<Device> {
    match name.split_once(':').unwrap_or((name, "")) {
        ("cpu", "") => Ok(Device::Cpu),
        #[cfg(feature = "rocm")]
        ("rocm", number) => {
            use anyhow::Context;
            let ordinal = match number {
                "" => candle_core::rocm::RocmDevice::default_ordinal(),
                number => Ok(number.parse().with_context(|| format!("no device number in '{name}'"))?),
            };
            ordinal.and_then(Device::new_rocm).with_context(|| format!("cannot open device '{name}'"))
        }
        _ => bail!("unknown device '{name}': use cpu, or rocm or rocm:N in a build with the feature rocm"),
    }
}
