//! Free memory of a device, and checks that weights fit into it before they are loaded.
use candle_core::{Device, Result};

/// Remedies for a model that does not fit into the memory of the device.
pub const TOO_LARGE: &str = "use a smaller or quantized model, or a card with more memory";

/// Returns the number of bytes that are free for weights on the device, if that is known.
///
/// # Errors
/// The device fails.
pub fn available_bytes(device: &Device) -> Result<Option<usize>> {
    #[cfg(feature = "rocm")]
    if let Device::Rocm(device) = device {
        return Ok(Some(device.free_memory()?.saturating_sub(device.memory_reserve())));
    }
    let _ = device;
    Ok(None)
}

/// Checks that `bytes` fit into the free memory of the device, if that is known. `what` begins the message, such as
/// "the weights of the model need", and `help` ends it.
///
/// # Errors
/// They do not fit, or the device fails.
pub(super) fn check(device: &Device, bytes: usize, what: &str, help: &str) -> Result<()> {
    let Some(free) = available_bytes(device)?.filter(|free| bytes > *free) else { return Ok(()) };
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    let message = format!("{what} {} MiB, but the device has {} MiB free; {help}", mib(bytes), mib(free));
    Err(std::io::Error::new(std::io::ErrorKind::OutOfMemory, message).into())
}
