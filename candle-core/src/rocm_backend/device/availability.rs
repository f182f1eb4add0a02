//! Checks before a device is used: whether there is a GPU, which one is the default, and whether it computes correctly.
use super::device::RocmDevice;
use super::properties::properties;
use crate::rocm_backend::RocmError;
use crate::{Device, Result, Tensor};
use std::sync::OnceLock;
use std::time::Duration;

/// Time limit of a device's self-test, unless a deadline is set.
const SELF_TEST_TIMEOUT: Duration = Duration::from_secs(30);

impl RocmDevice {
    /// Returns true if a device can be opened: driver, runtime and GPU exist and the process may use them. It opens
    /// no device and creates no context. The result is cached. If it is false, the error of
    /// [`crate::Device::new_rocm`] names the cause.
    pub fn gpu_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| rocm_loader::is_available() && rocm_loader::device_archs().is_ok())
    }

    /// Returns the number of the default GPU: the first discrete GPU, or 0 if all are integrated. Integrated GPUs
    /// share the processor's memory and are slow, and HIP often numbers them first.
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

    /// Opens GPU `ordinal` and runs a self-test on it: a computation with a known result. The time limit is
    /// `CANDLE_ROCM_DEADLINE`, or 30 seconds if that is not set.
    ///
    /// # Errors
    /// See [`crate::Device::new_rocm`]. Also [`RocmError::DeadlineExceeded`] if the GPU does not finish in time, and
    /// [`RocmError::WrongResult`] if the result is wrong.
    pub fn new_checked(ordinal: usize) -> Result<Self> {
        Self::self_tested(ordinal)?;
        Self::open(ordinal)
    }

    /// Returns a device on which the self-test has passed.
    pub(super) fn self_tested(ordinal: usize) -> Result<Self> {
        // A separate stream, so that the test does not wait for other work and its deadline does not apply to it.
        let device = Self::new_with_stream(ordinal)?;
        device.set_deadline(Some(device.deadline().unwrap_or(SELF_TEST_TIMEOUT)));
        let (sum, expected) = self_test(&Device::Rocm(device.clone()))?;
        if sum != expected {
            let computation = format!("self-test failed: expected a sum of {expected}, got {sum}");
            return Err(
                RocmError::WrongResult { device: device.state().label().to_string(), computation }.into()
            );
        }
        Ok(device)
    }
}

/// Runs an upload, an elementwise kernel, a reduction and a download. Returns the computed and the expected sum.
fn self_test(device: &Device) -> Result<(f32, f32)> {
    const COUNT: u32 = 1000;
    let values = Tensor::new((0..COUNT).map(|i| i as f32).collect::<Vec<_>>(), device)?;
    let sum = values.affine(2.0, 1.0)?.sum_all()?.to_scalar::<f32>()?;
    // The sum of 2 i + 1 for i below n is n squared, which f32 represents exactly below 2^24 in any order of addition.
    Ok((sum, (COUNT * COUNT) as f32))
}
