//! Streams of vector instructions, and launches of an empty kernel.
use super::measure::{time, without_features};
use anyhow::Result;
use candle_core::backend::BackendDevice;
use candle_core::rocm::{LaunchConfig, RocmDevice, RocmStorage};
use candle_core::{DType, Device, Layout, bail};

/// Output of `hip-kernels-build --source streams.cu`, by target.
const CODE_OBJECTS: [(&str, &[u8]); 2] = [
    ("gfx1100", include_bytes!("streams-gfx1100.hsaco")),
    ("gfx90a", include_bytes!("streams-gfx90a.hsaco")),
];
const BLOCKS: u32 = 64;
const BLOCK: u32 = 256;
const ITERATIONS: u32 = 256;
/// Instructions per iteration.
const INSTRUCTIONS: u32 = 128;
const LAUNCHES: usize = 2000;
const ROUNDS: usize = 5;

fn code_object(device: &RocmDevice) -> candle_core::Result<&'static [u8]> {
    match CODE_OBJECTS.iter().find(|(target, _)| *target == without_features(device.arch())) {
        Some((_, bytes)) => Ok(bytes),
        None => bail!("streams.cu was not compiled for {}", device.arch()),
    }
}

/// Measures lane operations per second.
pub fn measure(devices: &[Device]) -> Result<()> {
    let operations = f64::from(BLOCKS * BLOCK) * f64::from(ITERATIONS * INSTRUCTIONS);
    for (what, kernel) in [("v_add_f32", "stream_add"), ("v_fma_f32", "stream_fma")] {
        let device = |device: &Device| Ok(device.as_rocm_device()?.clone());
        time(what, devices, ROUNDS, operations, device, |device| Ok(stream(device, kernel)?))?;
    }
    Ok(())
}

fn stream(device: &RocmDevice, kernel: &str) -> candle_core::Result<RocmStorage> {
    let elements = (BLOCKS * BLOCK) as usize;
    // SAFETY: the kernel writes every element.
    let result = unsafe { RocmStorage::alloc(device, DType::F32, elements, "stream")? };
    let to = result.ptr(&Layout::contiguous(elements), "stream")?;
    let kernel = device.custom_kernel("streams", code_object(device)?, kernel)?;
    let launch = kernel.launch(LaunchConfig { grid: (BLOCKS, 1, 1), block: (BLOCK, 1, 1), lds_bytes: 0 });
    // SAFETY: the parameters are (turns, out), as in streams.cu; `out` has one element per work-item.
    unsafe { launch.arg(&ITERATIONS).arg(&to).run()? };
    Ok(result)
}

/// Measures [`LAUNCHES`] launches of an empty kernel, back to back and with a wait after each one.
pub fn measure_launches(devices: &[Device]) -> Result<()> {
    for (what, waits) in [("launch", false), ("launch and wait", true)] {
        let device = |device: &Device| Ok(device.as_rocm_device()?.clone());
        time(what, devices, ROUNDS, LAUNCHES as f64, device, |device| {
            let kernel = device.custom_kernel("streams", code_object(device)?, "nothing")?;
            for _ in 0..LAUNCHES {
                let launch = kernel.launch(LaunchConfig { grid: (1, 1, 1), block: (64, 1, 1), lds_bytes: 0 });
                // SAFETY: the kernel has no parameters and accesses no memory.
                unsafe { launch.run()? };
                if waits {
                    device.synchronize()?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
