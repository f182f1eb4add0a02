//! Tensors that leave the thread or outlive the device they were made with.
use super::Gpus;
use anyhow::{Context, Result, ensure};
use candle_core::rocm::RocmDevice;
use candle_core::{Device, Tensor};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::mpsc;

const MOVED: usize = 60;

/// One thread makes tensors of every device, another computes with them, a third drops them.
pub fn moved(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let devices: Vec<Device> = gpus.all().cloned().map(Device::Rocm).collect();
    let lengths: Vec<usize> = (0..MOVED).map(|_| rng.random_range(1..5000)).collect();
    let (made, to_compute) = mpsc::sync_channel::<(usize, Tensor)>(8);
    let (computed, to_drop) = mpsc::sync_channel::<(usize, Tensor, Tensor)>(8);
    std::thread::scope(|scope| {
        let maker = scope.spawn(move || -> Result<()> {
            for (i, length) in lengths.into_iter().enumerate() {
                made.send((
                    length,
                    Tensor::ones(length, candle_core::DType::F32, &devices[i % devices.len()])?,
                ))?;
            }
            Ok(())
        });
        let computer = scope.spawn(move || -> Result<()> {
            for (length, tensor) in to_compute {
                let sum = tensor.affine(2.0, 1.0)?.sum_all()?;
                computed.send((length, tensor, sum))?;
            }
            Ok(())
        });
        for (length, tensor, sum) in to_drop {
            let sum = sum.to_scalar::<f32>()?;
            ensure!(sum == 3.0 * length as f32, "{length} threes add up to {sum}");
            drop(tensor);
        }
        maker.join().expect("the maker panicked")?;
        computer.join().expect("the computer panicked")
    })
}

/// Devices with streams of their own are dropped before their tensors, which still compute.
pub fn after_their_device(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let free = gpus.first.memory_info()?.0 + gpus.first.memory_stats().parked;
    for _ in 0..3 {
        let length = rng.random_range(1..5000);
        let tensors = {
            let device = Device::Rocm(RocmDevice::new_with_stream(gpus.first.ordinal())?);
            let make = |i: u32| Tensor::full(i as f32, length, &device);
            (0..8).map(make).collect::<candle_core::Result<Vec<_>>>()?
        };
        let sum = tensors.iter().skip(1).try_fold(tensors[0].clone(), |sum, t| sum + t)?;
        let first = sum.get(0)?.to_scalar::<f32>().context("after its device was dropped")?;
        ensure!(first == 28.0, "0 to 7 add up to {first}");
    }
    let left = gpus.first.memory_info()?.0 + gpus.first.memory_stats().parked;
    ensure!(left >= free, "{} bytes stayed with dropped devices", free - left);
    Ok(())
}
