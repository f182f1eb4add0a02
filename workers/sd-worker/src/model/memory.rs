//! Free memory of a device, and checks that weights fit into it before they are loaded.
use candle_core::{Device, Result};

/// Number of bytes that stay free for activations while a model is loaded. At 1024 x 1024 pixels, a step of Flux needs 0.4 GB,
/// the VAE 1.9 GB for a whole image in half precision, and a tile of the VAE of XL in f32 1 GiB.
pub const ACTIVATION_BYTES: usize = 2 << 30;

/// Location of the weights of a T5 text encoder between prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum T5Memory {
    /// In the memory of the device if all weights and [`ACTIVATION_BYTES`] fit into it, or if its free memory is unknown;
    /// otherwise in the file.
    #[default]
    Auto,
    /// In the memory of the device.
    Resident,
    /// In the file. For each new prompt, they are read block by block.
    Streamed,
}

/// Number of bytes that the weights of a model need in the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequiredBytes {
    /// All weights.
    pub resident: usize,
    /// All weights except those of T5, plus the maximum that T5 has in memory while it is read block by block.
    pub least: usize,
}

impl RequiredBytes {
    /// Returns the requirement of a model that needs all weights in memory.
    pub fn all(bytes: usize) -> Self {
        Self { resident: bytes, least: bytes }
    }

    /// Returns the number of bytes that a model with [`T5Memory::Auto`] will use if `free` bytes are free, if that is known.
    pub fn planned(self, free: Option<usize>) -> usize {
        match free {
            Some(free) if free < self.resident.saturating_add(ACTIVATION_BYTES) => self.least,
            _ => self.resident,
        }
    }
}

/// Decoded copies may take 1 / `DECODED_PART` of the memory that remains after weights and [`ACTIVATION_BYTES`].
const DECODED_PART: usize = 8;

/// Use of the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryPlan {
    /// If true, the weights of T5 are read for each new prompt.
    pub is_t5_streamed: bool,
    /// Maximum memory for decoded copies of quantized matrices, in bytes.
    pub decoded_bytes: usize,
}

/// Returns the maximum memory for decoded copies of quantized matrices if weights take `planned` of the `free` bytes. The default
/// is a part of the rest. A size of the options, `wanted`, is limited to the rest, less the bytes `reserved` for other models.
pub(super) fn decoded_bytes(
    free: Option<usize>,
    planned: usize,
    reserved: usize,
    wanted: Option<usize>,
) -> usize {
    let left = free.map_or(0, |free| free.saturating_sub(planned.saturating_add(ACTIVATION_BYTES)));
    // The default leaves most of the rest to other models.
    let Some(wanted) = wanted else { return left / DECODED_PART };
    let limit = left.saturating_sub(reserved);
    if free.is_some() && wanted > limit {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        tracing::info!(
            wanted_mib = mib(wanted),
            used_mib = mib(limit),
            "decoded copies take less memory than --decoded-memory, since weights, activations and other models need the rest"
        );
    }
    wanted.min(limit)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_copies_leave_memory_for_activations() {
        const GIB: usize = 1 << 30;
        for (free, planned, reserved, wanted, expected) in [
            (Some(192 * GIB), 14 * GIB, 0, None, 22 * GIB),
            (Some(192 * GIB), 14 * GIB, 0, Some(30 * GIB), 30 * GIB),
            (Some(20 * GIB), 14 * GIB, 0, Some(30 * GIB), 4 * GIB),
            (Some(15 * GIB), 14 * GIB, 0, Some(30 * GIB), 0),
            (Some(192 * GIB), 14 * GIB, 0, Some(0), 0),
            (None, 14 * GIB, 0, Some(GIB), 0),
            // Three of four parts are reserved for other models.
            (Some(192 * GIB), 24 * GIB, 144 * GIB, None, 83 * GIB / 4),
            (Some(192 * GIB), 24 * GIB, 144 * GIB, Some(30 * GIB), 22 * GIB),
            (Some(192 * GIB), 56 * GIB, 144 * GIB, None, 67 * GIB / 4),
            (Some(192 * GIB), 56 * GIB, 144 * GIB, Some(GIB), 0),
            (None, 14 * GIB, GIB, None, 0),
        ] {
            let found = decoded_bytes(free, planned, reserved, wanted);
            assert_eq!(found, expected, "{free:?}, {planned}, {reserved}, {wanted:?}");
        }
    }
}
