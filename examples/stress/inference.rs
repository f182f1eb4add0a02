//! Runs a network on several threads concurrently.
use super::Gpus;
use anyhow::{Result, ensure};
use candle_core::{D, Device, Tensor};
use candle_nn::ops;
use rand::Rng;
use rand::rngs::StdRng;

const THREADS: usize = 4;
const FORWARDS: usize = 5;
const WIDTH: usize = 48;

/// Weights of a small network with residual connections, layer norms and a softmax.
struct Network {
    layers: Vec<Tensor>,
}

impl Network {
    fn new(device: &Device) -> Result<Self> {
        let weight = |layer: usize| {
            let values: Vec<f32> =
                (0..WIDTH * WIDTH).map(|i| ((i * 31 + layer * 7) % 103) as f32 / 500.0 - 0.1).collect();
            Tensor::from_vec(values, (WIDTH, WIDTH), device)
        };
        Ok(Self { layers: (0..3).map(weight).collect::<candle_core::Result<_>>()? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        let (ones, zeros) =
            (Tensor::ones(WIDTH, x.dtype(), x.device())?, Tensor::zeros(WIDTH, x.dtype(), x.device())?);
        for layer in &self.layers {
            let hidden = ops::layer_norm(&x, &ones, &zeros, 1e-5)?.matmul(layer)?.gelu()?;
            x = (x + hidden)?;
        }
        Ok(ops::softmax(&x, D::Minus1)?)
    }
}

fn input(rows: usize, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..rows * WIDTH).map(|i| ((i * 13 % 71) as f32 - 35.0) / 30.0).collect();
    Ok(Tensor::from_vec(values, (rows, WIDTH), device)?)
}

fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let (a, b) = (a.to_device(&Device::Cpu)?, b.to_device(&Device::Cpu)?);
    Ok((a - b)?.abs()?.max_all()?.to_scalar()?)
}

/// Runs four threads per device, with inputs of different lengths.
fn run_concurrently(devices: &[Device], rng: &mut StdRng) -> Result<()> {
    let networks: Vec<Network> = devices.iter().map(Network::new).collect::<Result<_>>()?;
    let reference = Network::new(&Device::Cpu)?;
    let rows: Vec<usize> = (0..THREADS).map(|_| rng.random_range(1..40)).collect();
    let run = |device: &Device, network: &Network, rows: usize| -> Result<()> {
        let expected = reference.forward(&input(rows, &Device::Cpu)?)?;
        for _ in 0..FORWARDS {
            let off = difference(&network.forward(&input(rows, device)?)?, &expected)?;
            ensure!(off < 1e-5, "{rows} rows on {:?}: maximum difference {off}", device.location());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = devices
            .iter()
            .zip(&networks)
            .flat_map(|pair| rows.iter().map(move |rows| (pair, *rows)))
            .map(|((device, network), rows)| scope.spawn(move || run(device, network, rows)))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("an inference thread panicked"))
    })
}

pub fn on_one_device(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    run_concurrently(&[gpus.first()], rng)
}

/// Runs on two devices; without a second GPU, on a second stream of the first.
pub fn on_two_devices(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let other = match &gpus.second {
        Some(second) => second.clone(),
        None => candle_core::rocm::RocmDevice::new_with_stream(gpus.first.ordinal())?,
    };
    run_concurrently(&[gpus.first(), Device::Rocm(other)], rng)
}
