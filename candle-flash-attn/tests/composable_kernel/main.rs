//! Tests of Composable Kernel's code objects. CI has none and runs only the tests of invalid folders. With a folder:
//! `CANDLE_ROCM_DRIVER=emulator:gfx90a CANDLE_ROCM_CK=$PWD/.cache/ck cargo test -p candle-flash-attn --features
//! ck,rocm-emulator --test composable_kernel -- --ignored --nocapture`
mod candles;
mod counters;
mod formula;
mod refusals;

use candle::rocm::RocmDevice;
use candle::{bail, Device, Error, Result};
use candle_flash_attn::ck::{Library, FOLDER_VARIABLE};

/// Returns the device and the library built for it.
fn built() -> Result<(RocmDevice, &'static Library)> {
    let device = Device::new_rocm(0)?.as_rocm_device()?.clone();
    match Library::from_environment(device.arch()).map_err(Error::wrap)? {
        Some(library) => Ok((device, library)),
        None => bail!(
            "{FOLDER_VARIABLE} must name the folder that `cargo xtask ck` has built for {}",
            device.arch()
        ),
    }
}
