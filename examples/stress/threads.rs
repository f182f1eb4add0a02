//! Moves tensors between threads, and drops devices before their tensors.
use super::Gpus;
use anyhow::{Context, Result, ensure};
use candle_core::rocm::RocmDevice;
use candle_core::{Device, Tensor};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::mpsc;

const COUNT: usize = 60;

/// Allocates tensors of all devices on one thread, computes with them on a second, and drops them on a third.
pub fn moved_between_threads(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let devices: Vec<Device> = gpus.all().cloned().map(Device::Rocm).collect();
    let lengths: Vec<usize> = (0..COUNT).map(|_| rng.random_range(1..5000)).collect();
    let (allocated, to_compute) = mpsc::sync_channel::<(usize, Tensor)>(8);
    let (computed, to_drop) = mpsc::sync_channel::<(usize, Tensor, Tensor)>(8);
    std::thread::scope(|scope| {
        let allocator = scope.spawn(move || -> Result<()> {
            for (i, length) in lengths.into_iter().enumerate() {
                allocated.send((
                    length,
                    Tensor::ones(length, candle_core::DType::F32, &devices[i % devices.len()])?,
                ))?;
            }
            Ok(())
        });
        let worker = scope.spawn(move || -> Result<()> {
            for (length, tensor) in to_compute {
                let sum = tensor.affine(2.0, 1.0)?.sum_all()?;
                computed.send((length, tensor, sum))?;
            }
            Ok(())
        });
        for (length, tensor, sum) in to_drop {
            let sum = sum.to_scalar::<f32>()?;
            ensure!(sum == 3.0 * length as f32, "the sum of {length} threes is {sum}");
            drop(tensor);
        }
        allocator.join().expect("the allocating thread panicked")?;
        worker.join().expect("the computing thread panicked")
    })
}

/// Drops devices with their own streams, and then computes with their tensors.
pub fn device_dropped_first(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let free = gpus.first.memory_info()?.0 + gpus.first.memory_stats().cached;
    for _ in 0..3 {
        let length = rng.random_range(1..5000);
        let tensors = {
            let device = Device::Rocm(RocmDevice::new_with_stream(gpus.first.ordinal())?);
            let make = |i: u32| Tensor::full(i as f32, length, &device);
            (0..8).map(make).collect::<candle_core::Result<Vec<_>>>()?
        };
        let sum = tensors.iter().skip(1).try_fold(tensors[0].clone(), |sum, t| sum + t)?;
        let first = sum.get(0)?.to_scalar::<f32>().context("after its device was dropped")?;
        ensure!(first == 28.0, "the sum of 0 to 7 is {first}, expected 28");
    }
    let left = gpus.first.memory_info()?.0 + gpus.first.memory_stats().cached;
    ensure!(left >= free, "dropped devices leaked {} bytes", free - left);
    Ok(())
}
