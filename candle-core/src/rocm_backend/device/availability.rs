//! Asking before opening: is there a GPU, which one to take, does it compute.
use super::device::RocmDevice;
use super::properties::properties;
use crate::rocm_backend::RocmError;
use crate::{Device, Result, Tensor};
use std::sync::OnceLock;
use std::time::Duration;

/// Time limit of a device's trial computation, unless a deadline is set.
const TRIAL: Duration = Duration::from_secs(30);

impl RocmDevice {
    /// Whether a device can be opened: false without driver, runtime, GPU or the permission to use it. Opens no
    /// device and no context on one; the answer is kept, so that asking again costs nothing. What is missing is said
    /// by [`crate::Device::new_rocm`].
    pub fn gpu_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| rocm_loader::is_available() && rocm_loader::device_archs().is_ok())
    }

    /// The GPU to take when none is named: the first that is not built into the processor, or 0 if all are. Built-in
    /// GPUs share the processor's memory and are slow, and HIP often numbers them first.
    ///
    /// # Errors
    /// If there is no driver or no GPU, or HIP fails.
    pub fn default_ordinal() -> Result<usize> {
        let count = rocm_loader::device_archs().map_err(RocmError::from)?.len();
        for ordinal in 0..count {
            if !properties(ordinal)?.integrated {
                return Ok(ordinal);
            }
        }
        Ok(0)
    }

    /// Opens GPU `ordinal` and has it compute something that is known, within 30 seconds or the deadline of
    /// `CANDLE_ROCM_DEADLINE`.
    ///
    /// # Errors
    /// See [`crate::Device::new_rocm`]; [`RocmError::Overdue`] if the GPU does not answer in time,
    /// [`RocmError::WrongResult`] if it computes something else.
    pub fn new_checked(ordinal: usize) -> Result<Self> {
        // On a stream of its own, so that neither waits for what others have enqueued nor limits them.
        let device = Self::new_with_stream(ordinal)?;
        device.set_deadline(Some(device.deadline().unwrap_or(TRIAL)));
        let (sum, expected) = trial(&Device::Rocm(device.clone()))?;
        if sum != expected {
            let computation = format!("a sum that must be {expected} came out as {sum}");
            return Err(
                RocmError::WrongResult { device: device.state().label().to_string(), computation }.into()
            );
        }
        Self::open(ordinal)
    }
}

/// An upload, a kernel over elements, a reduction, a download: what comes out, and what must.
fn trial(device: &Device) -> Result<(f32, f32)> {
    const COUNT: u32 = 1000;
    let values = Tensor::new((0..COUNT).map(|i| i as f32).collect::<Vec<_>>(), device)?;
    let sum = values.affine(2.0, 1.0)?.sum_all()?.to_scalar::<f32>()?;
    // The sum of 2 i + 1 for i below n is n squared; below 2^24 f32 is exact in any order of adding.
    Ok((sum, (COUNT * COUNT) as f32))
}
