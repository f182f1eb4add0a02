//! Decodes with a growing key-value cache of changing lengths and widths.
use super::Gpus;
use anyhow::{Result, ensure};
use candle_core::{D, Device, Tensor};
use candle_nn::ops::softmax;
use rand::Rng;
use rand::rngs::StdRng;

const STEPS: usize = 40;
/// Maximum fragmented share of the memory allocated from the driver.
const MAX_FRAGMENTED_PERCENT: usize = 15;

/// Computes attention of the last token over all earlier ones, `steps` times.
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

/// Decodes with two random shapes, and checks the results against the CPU and the fragmentation of the memory.
pub fn changing_shapes(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    for _ in 0..2 {
        let (heads, width) = (rng.random_range(1..6), 8 * rng.random_range(1..9));
        let start = rng.random_range(1..50);
        let out = decode(&gpus.first(), heads, width, start, STEPS)?;
        let stats = gpus.first.memory_stats();
        let allocated = stats.live + stats.cached;
        ensure!(stats.fragmented * 100 < allocated * MAX_FRAGMENTED_PERCENT, "fragmented memory: {stats:?}");
        let expected = decode(&Device::Cpu, heads, width, start, STEPS)?;
        let difference = (out.to_device(&Device::Cpu)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        ensure!(difference < 1e-4, "{heads} heads of {width}, {start} tokens: difference {difference}");
    }
    Ok(())
}
