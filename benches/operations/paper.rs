//! Counts the instructions of an operation on the software GPU, for `cargo xtask paper`.
use crate::case::Case;
use anyhow::{Context, Result};
use candle_core::Device;
use serde_json::Value;

/// Returns the kernels of one operation in the format of the software GPU's profile.
///
/// # Errors
/// Returns the operation's error, or an error if profiling is not enabled.
pub fn kernels(device: &Device, case: &Case) -> Result<Value> {
    let mut work = (case.prepare)(device)?;
    // The first call loads modules and uploads constants.
    work()?;
    device.synchronize()?;
    take_kernels()?;
    work()?;
    device.synchronize()?;
    take_kernels()
}

/// Returns the profile since the last call.
#[cfg(feature = "rocm-emulator")]
fn take_kernels() -> Result<Value> {
    let text = rocm_emulator::take_profile()
        .context("profiling is not enabled: set CANDLE_ROCM_EMULATOR=profile=FILE")?;
    Ok(serde_json::from_str::<Value>(&text)?["kernels"].take())
}

#[cfg(not(feature = "rocm-emulator"))]
fn take_kernels() -> Result<Value> {
    anyhow::bail!("scale paper needs the software GPU: --features rocm-emulator")
}
