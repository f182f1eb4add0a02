//! Trains an attention layer, and compares it with the same layer of Candle's own operations on the CPU device.
use candle::{DType, Device, Result, Tensor, Var, D};
use candle_flash_attn::{flash_attn, flash_attn_varlen};
use rand::{rngs::StdRng, Rng, SeedableRng};

use crate::device;

const BATCH: usize = 2;
const POSITIONS: usize = 12;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 16;
const MODEL: usize = 24;
const STEPS: usize = 8;
const SCALE: f32 = 0.25;

/// Causal attention of q, k and v (batch, positions, heads, width).
type Attend<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

fn written_out(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let device = q.device();
    let by_heads = |t: &Tensor| {
        let (b, n, h, d) = t.dims4()?;
        let all = t.transpose(1, 2)?.unsqueeze(2)?.broadcast_as((b, h, HEADS / h, n, d))?;
        all.reshape((b, HEADS, n, d))
    };
    let scores = (by_heads(q)?.matmul(&by_heads(k)?.t()?.contiguous()?)? * f64::from(SCALE))?;
    let mask: Vec<f32> = (0..POSITIONS * POSITIONS)
        .map(|i| if i % POSITIONS > i / POSITIONS { f32::NEG_INFINITY } else { 0.0 })
        .collect();
    let scores = scores.broadcast_add(&Tensor::from_vec(mask, (POSITIONS, POSITIONS), device)?)?;
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    weights.matmul(&by_heads(v)?)?.transpose(1, 2)
}

/// Returns the losses of a few steps of gradient descent on a layer with projections and attention.
fn losses(device: &Device, attend: Attend) -> Result<Vec<f32>> {
    let mut rng = StdRng::seed_from_u64(5);
    let mut random = |rows: usize, columns: usize, limit: f32| {
        let values: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-limit..limit)).collect();
        Tensor::from_vec(values, (rows, columns), device)
    };
    let inputs = random(BATCH * POSITIONS, MODEL, 1.0)?;
    let targets = random(BATCH * POSITIONS, MODEL, 1.0)?;
    let heads = [HEADS, KEY_HEADS, KEY_HEADS];
    let mut weights = Vec::new();
    for (from, to) in heads.map(|heads| (MODEL, heads * WIDTH)).into_iter().chain([(HEADS * WIDTH, MODEL)]) {
        weights.push(Var::from_tensor(&random(from, to, 0.6)?)?);
    }
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let projected = |i: usize| inputs.matmul(&weights[i])?.reshape((BATCH, POSITIONS, heads[i], WIDTH));
        let attended = attend(&projected(0)?, &projected(1)?, &projected(2)?)?;
        let made = attended.reshape((BATCH * POSITIONS, HEADS * WIDTH))?.matmul(&weights[3])?;
        let loss = (made - &targets)?.sqr()?.mean_all()?;
        let grads = loss.backward()?;
        for weight in &weights {
            weight.set(&(weight.as_tensor() - (grads.get(weight).expect("a gradient") * 0.3)?)?)?;
        }
        losses.push(loss.to_scalar()?);
    }
    Ok(losses)
}

#[test]
fn training_matches_attention_without_this_crate() -> Result<()> {
    let device = device();
    let plain = losses(&Device::Cpu, &written_out)?;
    assert!(plain.windows(2).all(|pair| pair[1] < pair[0]) && plain[STEPS - 1] < 0.7 * plain[0], "{plain:?}");
    let starts: Vec<u32> = (0..=BATCH).map(|i| (i * POSITIONS) as u32).collect();
    let starts = Tensor::new(starts, &device)?;
    let in_dtype = |dtype: DType| {
        move |q: &Tensor, k: &Tensor, v: &Tensor| {
            let [q, k, v] = [q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?];
            flash_attn(&q, &k, &v, SCALE, true)?.to_dtype(DType::F32)
        }
    };
    let (single, half, brain) = (in_dtype(DType::F32), in_dtype(DType::F16), in_dtype(DType::BF16));
    let sequences = |q: &Tensor, k: &Tensor, v: &Tensor| {
        let [q, k, v] = [q.flatten(0, 1)?, k.flatten(0, 1)?, v.flatten(0, 1)?];
        let made = flash_attn_varlen(&q, &k, &v, &starts, &starts, POSITIONS, POSITIONS, SCALE, true)?;
        made.reshape((BATCH, POSITIONS, HEADS, WIDTH))
    };
    // Losses are means of errors, so rounding affects them less than single elements.
    let ways: [(&str, Attend, f32); 4] = [
        ("f32", &single, 1e-4),
        ("sequences of f32", &sequences, 1e-4),
        ("f16", &half, 1e-3),
        ("bf16", &brain, 8e-3),
    ];
    for (name, attend, bound) in ways {
        let ours = losses(&device, attend)?;
        println!("{name}: {ours:?}, written out {plain:?}");
        for (ours, plain) in ours.iter().zip(&plain) {
            assert!((ours - plain).abs() <= bound * plain, "{name}: {ours}, not {plain}");
        }
    }
    Ok(())
}
