//! Decoding with a cache that grows by a token a step, of several lengths and widths.
use super::Gpus;
use anyhow::{Result, ensure};
use candle_core::{D, Device, Tensor};
use candle_nn::ops::softmax;
use rand::Rng;
use rand::rngs::StdRng;

const STEPS: usize = 40;
/// Of the memory got from the driver, so many percent may lie unused between tensors.
const FRAGMENTED_PERCENT: usize = 15;

/// Attention of the last token over all before, `steps` times.
fn decode(device: &Device, heads: usize, width: usize, start: usize, steps: usize) -> Result<Tensor> {
    let token = |i: usize| Tensor::full(((i * 7 % 11) as f32 - 5.0) / 20.0, (1, heads, 1, width), device);
    let tokens = (0..start).map(token).collect::<candle_core::Result<Vec<_>>>()?;
    let (mut cache, mut out) = (Tensor::cat(&tokens, 2)?, token(start)?);
    for i in 0..steps {
        cache = Tensor::cat(&[&cache, &(token(start + i)? + &out)?], 2)?;
        let scores = out.matmul(&cache.transpose(D::Minus1, D::Minus2)?)?;
        out = softmax(&(scores / 8.0)?, D::Minus1)?.matmul(&cache)?;
    }
    Ok(out)
}

/// Two loops of random shapes: as on the CPU, and with little memory that is neither used nor given back.
pub fn changing_shapes(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    for _ in 0..2 {
        let (heads, width) = (rng.random_range(1..6), 8 * rng.random_range(1..9));
        let start = rng.random_range(1..50);
        let out = decode(&gpus.first(), heads, width, start, STEPS)?;
        let stats = gpus.first.memory_stats();
        let got = stats.live + stats.parked;
        ensure!(stats.fragmented * 100 < got * FRAGMENTED_PERCENT, "fragmented: {stats:?}");
        let expected = decode(&Device::Cpu, heads, width, start, STEPS)?;
        let difference = (out.to_device(&Device::Cpu)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        ensure!(difference < 1e-4, "{heads} heads of {width}, from {start}: off by {difference}");
    }
    Ok(())
}
