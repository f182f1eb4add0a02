//! Checks that weights fit into the memory of a device before they are loaded.
use candle_core::{Device, Result};

/// Checks that `bytes` fit into the free memory of the device, if that is known. `what` begins the message, such as
/// "the weights of the model need", and `help` ends it.
///
/// # Errors
/// They do not fit, or the device fails.
pub(super) fn check(device: &Device, bytes: usize, what: &str, help: &str) -> Result<()> {
    #[cfg(feature = "rocm")]
    if let Device::Rocm(device) = device {
        let free = device.free_memory()?.saturating_sub(device.memory_reserve());
        if bytes > free {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let message =
                format!("{what} {} MiB, but the device has {} MiB free; {help}", mib(bytes), mib(free));
            return Err(std::io::Error::new(std::io::ErrorKind::OutOfMemory, message).into());
        }
    }
    let _ = (device, bytes, what, help);
    Ok(())
}
