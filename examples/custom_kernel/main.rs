//! Runs a custom operation with its own kernel on a ROCm device and on the CPU.
//!
//! `cargo run --features rocm-emulator --example custom_kernel` (set `CANDLE_ROCM_DRIVER=emulator` on a
//! machine without an AMD GPU). `docs/how-to/write-your-own-kernel.md` explains how the kernel is compiled.
mod softsign;

use candle_core::rocm::RocmDevice;
use candle_core::{Device, Result, Tensor, Var};
use softsign::Softsign;

fn main() -> Result<()> {
    let device = Device::new_rocm(RocmDevice::default_ordinal()?)?;
    let rocm = device.as_rocm_device()?;
    println!("rocm:{} is {} ({}), driver: {}", rocm.ordinal(), rocm.name(), rocm.arch(), rocm.driver_name());

    let x = Var::from_tensor(&Tensor::arange_step(-3f32, 3.5, 0.5, &device)?)?;
    let y = x.apply_op1(Softsign { scale: 1.5 })?;
    println!("softsign  {y}");
    let on_cpu = x.to_device(&Device::Cpu)?.apply_op1(Softsign { scale: 1.5 })?;
    let difference = (y.to_device(&Device::Cpu)? - &on_cpu)?.abs()?.max(0)?.to_scalar::<f32>()?;
    println!("maximum difference from the CPU: {difference:e}");

    let gradients = y.sum_all()?.backward()?;
    if let Some(gradient) = gradients.get(&x) {
        println!("gradient  {gradient}");
    }
    Ok(())
}
