//! Attention by Composable Kernel's code objects. CI has none and runs what is said of wrong folders; with a folder of them:
//! `CANDLE_ROCM_DRIVER=emulator:gfx90a CANDLE_ROCM_CK=$PWD/.cache/ck cargo test -p candle-flash-attn --features
//! ck,rocm-emulator --test composable_kernel -- --ignored --nocapture`
mod candles;
mod counters;
mod formula;
mod refusals;

use candle::rocm::RocmDevice;
use candle::{bail, Device, Error, Result};
use candle_flash_attn::ck::{Library, FOLDER_VARIABLE};

/// The device and what was built for it.
fn built() -> Result<(RocmDevice, &'static Library)> {
    let device = Device::new_rocm(0)?.as_rocm_device()?.clone();
    match Library::from_environment(device.arch()).map_err(Error::wrap)? {
        Some(library) => Ok((device, library)),
        None => bail!("{FOLDER_VARIABLE} must name what `cargo xtask ck` has built for {}", device.arch()),
    }
}
