//! What an operation executes on the software GPU, in place of how long it takes: `cargo xtask paper` reads it.
use crate::case::Case;
use anyhow::{Context, Result};
use candle_core::Device;
use serde_json::Value;

/// The kernels of one operation, as the software GPU's profile describes them.
///
/// # Errors
/// The operation's, or that the device keeps no profile.
pub fn kernels(device: &Device, case: &Case) -> Result<Value> {
    let mut work = (case.prepare)(device)?;
    // The first call loads modules, and uploads what is kept.
    work()?;
    device.synchronize()?;
    taken()?;
    work()?;
    device.synchronize()?;
    taken()
}

/// What was executed since the last call.
#[cfg(feature = "rocm-emulator")]
fn taken() -> Result<Value> {
    let text = rocm_emulator::take_profile()
        .context("there is no profile to take: set CANDLE_ROCM_EMULATOR=profile=FILE")?;
    Ok(serde_json::from_str::<Value>(&text)?["kernels"].take())
}

#[cfg(not(feature = "rocm-emulator"))]
fn taken() -> Result<Value> {
    anyhow::bail!("scale paper needs the software GPU: --features rocm-emulator")
}
