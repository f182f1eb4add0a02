//! Every layer and function of candle-nn on ROCm, compared with the CPU device.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, ModuleT, Result, Tensor, D};
use candle_nn::encoding::one_hot;
use candle_nn::kv_cache::{ConcatKvCache, KvCache, RotatingKvCache, ScatteredCacheBuilder};
use candle_nn::{attention, loss, ops, rotary_emb, sampling, Activation};
use candle_nn::{
    AdamW, BatchNorm, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose1d, ConvTranspose1dConfig,
    ConvTranspose2d, ConvTranspose2dConfig, Dropout, Embedding, GroupNorm, LayerNorm, Linear, Module,
    Optimizer, PReLU, ParamsAdamW, RmsNorm, VarBuilder, GRU, LSTM, RNN, SGD,
};
use common::{assert_close, difference, inner, rocm, rocm_alone, tensor, tolerance, values, FLOATS};
use std::collections::HashMap;

/// Device and dtypes of a layer: its inputs are rounded to `rounded` and then converted to `dtype`.
struct On {
    device: Device,
    rounded: DType,
    dtype: DType,
}

impl On {
    fn t(&self, dims: &[usize], limit: f64) -> Tensor {
        tensor(dims, self.rounded, limit).to_dtype(self.dtype).unwrap().to_device(&self.device).unwrap()
    }

    /// Returns a tensor of positive numbers.
    fn positive(&self, dims: &[usize]) -> Tensor {
        let t = (tensor(dims, DType::F32, 0.4).abs().unwrap() + 0.5).unwrap();
        t.to_dtype(self.rounded).unwrap().to_dtype(self.dtype).unwrap().to_device(&self.device).unwrap()
    }

    fn ids(&self, ids: &[u32]) -> Tensor {
        Tensor::new(ids, &self.device).unwrap()
    }
}

type Layer = fn(&On) -> Result<Tensor>;

/// Concatenates several results.
fn all(parts: &[Tensor]) -> Result<Tensor> {
    let flat: Vec<Tensor> = parts.iter().map(Tensor::flatten_all).collect::<Result<_>>()?;
    Tensor::cat(&flat, 0)
}

/// Runs each layer in each dtype on ROCm, and in f32 with the same numbers on the CPU, since the CPU's sums in
/// bf16 are inexact.
#[track_caller]
fn check(layers: &[(&str, Layer)], dtypes: &[DType]) {
    let device = rocm();
    let mut failures = Vec::new();
    for (name, layer) in layers {
        for &dtype in dtypes {
            let expected = layer(&On { device: Device::Cpu, rounded: dtype, dtype: DType::F32 }).unwrap();
            let what = format!("{name} {dtype:?}");
            let wrong = match layer(&On { device: device.clone(), rounded: dtype, dtype }) {
                Ok(got) => difference(&got, &expected, tolerance(dtype)),
                Err(error) => Some(error.to_string()),
            };
            failures.extend(wrong.map(|wrong| format!("{what}: {wrong}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn activations() {
    let layers: &[(&str, Layer)] = &[
        ("Gelu", |on| Activation::Gelu.forward(&on.t(&[3, 50], 4.0))),
        ("NewGelu", |on| Activation::NewGelu.forward(&on.t(&[3, 50], 4.0))),
        ("Relu", |on| Activation::Relu.forward(&on.t(&[3, 50], 4.0))),
        ("Relu2", |on| Activation::Relu2.forward(&on.t(&[3, 50], 4.0))),
        ("Relu6", |on| Activation::Relu6.forward(&on.t(&[3, 50], 8.0))),
        ("Silu", |on| Activation::Silu.forward(&on.t(&[3, 50], 4.0))),
        ("Sigmoid", |on| Activation::Sigmoid.forward(&on.t(&[3, 50], 4.0))),
        ("HardSigmoid", |on| Activation::HardSigmoid.forward(&on.t(&[3, 50], 5.0))),
        ("Swiglu", |on| Activation::Swiglu.forward(&on.t(&[3, 50], 4.0))),
        ("Swish", |on| Activation::Swish.forward(&on.t(&[3, 50], 4.0))),
        ("Mish", |on| Activation::Mish.forward(&on.t(&[3, 50], 4.0))),
        ("HardSwish", |on| Activation::HardSwish.forward(&on.t(&[3, 50], 5.0))),
        ("Elu", |on| Activation::Elu(1.3).forward(&on.t(&[3, 50], 4.0))),
        ("LeakyRelu", |on| Activation::LeakyRelu(0.1).forward(&on.t(&[3, 50], 4.0))),
        ("GeluPytorchTanh", |on| Activation::GeluPytorchTanh.forward(&on.t(&[3, 50], 4.0))),
        ("PReLU", |on| PReLU::new(on.t(&[4], 0.5), false).forward(&on.t(&[2, 4, 6], 4.0))),
        ("PReLU of a scalar", |on| PReLU::new(on.t(&[1], 0.5), true).forward(&on.t(&[2, 4, 6], 4.0))),
        ("transposed", |on| {
            let x = on.t(&[6, 10], 4.0).t()?;
            all(&[ops::silu(&x)?, ops::swiglu(&x)?, ops::sigmoid(&x)?, x.gelu()?, x.gelu_erf()?])
        }),
    ];
    check(layers, &FLOATS);
    // `selu` has f32 constants on every device, so it only supports f32.
    check(&[("selu", |on| ops::selu(&on.t(&[3, 50], 4.0), 1.6733, 1.0507))], &[DType::F32]);
}

#[test]
fn softmax_and_norms() {
    let layers: &[(&str, Layer)] = &[
        ("softmax", |on| {
            let x = on.t(&[3, 5, 33], 4.0);
            all(&[
                ops::softmax(&x, 0)?,
                ops::softmax(&x, 1)?,
                ops::softmax(&x, 2)?,
                ops::softmax(&x.t()?, 1)?,
            ])
        }),
        ("log_softmax", |on| {
            let x = on.t(&[3, 5, 33], 4.0);
            all(&[ops::log_softmax(&x, 0)?, ops::log_softmax(&x, D::Minus1)?, ops::log_softmax(&x.t()?, 2)?])
        }),
        ("softmax_last_dim of a part", |on| ops::softmax_last_dim(&on.t(&[5, 4, 7], 4.0).narrow(0, 2, 2)?)),
        ("rms_norm_slow", |on| ops::rms_norm_slow(&on.t(&[3, 65], 2.0).t()?, &on.t(&[3], 1.0), 1e-5)),
        ("layer_norm_slow", |on| {
            ops::layer_norm_slow(&on.t(&[3, 65], 2.0).t()?, &on.t(&[3], 1.0), &on.t(&[3], 0.5), 1e-3)
        }),
        ("RmsNorm", |on| {
            let norm = RmsNorm::new(on.t(&[40], 1.0), 1e-5);
            let x = on.t(&[2, 3, 40], 2.0);
            all(&[norm.forward(&x)?, norm.forward(&x.transpose(0, 1)?)?, norm.forward_diff(&x)?])
        }),
        ("LayerNorm", |on| {
            let x = on.t(&[2, 3, 40], 2.0);
            let norm = LayerNorm::new(on.t(&[40], 1.0), on.t(&[40], 0.3), 1e-5);
            let no_bias = LayerNorm::new_no_bias(on.t(&[40], 1.0), 1e-5);
            all(&[norm.forward(&x)?, norm.forward(&x.transpose(0, 1)?)?, no_bias.forward(&x)?])
        }),
        ("GroupNorm", |on| {
            let norm = GroupNorm::new(on.t(&[6], 1.0), on.t(&[6], 0.4), 6, 3, 1e-5)?;
            all(&[norm.forward(&on.t(&[2, 6, 4, 5], 2.0))?, norm.forward(&on.t(&[2, 6, 7], 2.0))?])
        }),
        ("BatchNorm", |on| batch_norm(on)?.forward_t(&on.t(&[3, 4, 2, 5], 2.0), false)),
    ];
    check(layers, &FLOATS);
    // Training combines the running statistics with f32 on every device, so 16-bit dtypes are not supported.
    let trained: Layer = |on| {
        let norm = batch_norm(on)?;
        let result = norm.forward_t(&on.t(&[3, 4, 2, 5], 2.0), true)?;
        all(&[result, norm.running_mean().clone(), norm.running_var().clone()])
    };
    check(&[("BatchNorm in training", trained)], &[DType::F32, DType::F64]);
}

fn batch_norm(on: &On) -> Result<BatchNorm> {
    BatchNorm::new(4, on.t(&[4], 0.5), on.positive(&[4]), on.t(&[4], 1.0), on.t(&[4], 0.3), 1e-5)
}

#[test]
fn weighted_layers() {
    let layers: &[(&str, Layer)] = &[
        ("Linear", |on| {
            let layer = Linear::new(on.t(&[5, 8], 0.5), Some(on.t(&[5], 1.0)));
            let x = on.t(&[2, 3, 4, 8], 1.0);
            let parts = [x.get(0)?.get(0)?, x.get(1)?, x.clone(), x.get(0)?.get(1)?.t()?.contiguous()?.t()?];
            let results: Vec<Tensor> = parts.iter().map(|x| layer.forward(x)).collect::<Result<_>>()?;
            all(&results)
        }),
        ("Linear without a bias", |on| {
            Linear::new(on.t(&[5, 8], 0.5), None).forward(&on.t(&[8, 3], 1.0).t()?.contiguous()?)
        }),
        ("Embedding", |on| {
            let layer = Embedding::new(on.t(&[7, 6], 1.0), 6);
            let ids = on.ids(&[0, 6, 3, 3, 1, 2]);
            all(&[layer.forward(&ids)?, layer.forward(&ids.reshape((2, 3))?)?])
        }),
        ("Conv1d", |on| {
            let config = Conv1dConfig { padding: 2, stride: 2, dilation: 2, groups: 2, ..Default::default() };
            let layer = Conv1d::new(on.t(&[6, 2, 3], 0.5), Some(on.t(&[6], 1.0)), config);
            layer.forward(&on.t(&[2, 4, 11], 1.0))
        }),
        ("Conv2d", |on| {
            let config = Conv2dConfig { padding: 1, stride: 2, groups: 2, ..Default::default() };
            let layer = Conv2d::new(on.t(&[4, 2, 3, 3], 0.5), Some(on.t(&[4], 1.0)), config);
            let dilated = Conv2dConfig { dilation: 2, ..Default::default() };
            let plain = Conv2d::new(on.t(&[3, 4, 2, 2], 0.5), None, dilated);
            let x = on.t(&[2, 4, 7, 6], 1.0);
            all(&[layer.forward(&x)?, plain.forward(&x)?, plain.forward(&x.transpose(2, 3)?)?])
        }),
        ("ConvTranspose1d", |on| {
            let config =
                ConvTranspose1dConfig { padding: 1, output_padding: 1, stride: 2, dilation: 1, groups: 2 };
            let layer = ConvTranspose1d::new(on.t(&[4, 3, 3], 0.5), Some(on.t(&[6], 1.0)), config);
            layer.forward(&on.t(&[1, 4, 5], 1.0))
        }),
        ("ConvTranspose2d", |on| {
            let config = ConvTranspose2dConfig { padding: 1, output_padding: 1, stride: 2, dilation: 1 };
            let layer = ConvTranspose2d::new(on.t(&[3, 2, 3, 3], 0.5), Some(on.t(&[2], 1.0)), config);
            layer.forward(&on.t(&[2, 3, 4, 4], 1.0))
        }),
        ("LSTM", |on| rnn(on, 4, |vb| Ok(Rnn::Lstm(candle_nn::lstm(5, 6, Default::default(), vb)?)))),
        ("GRU", |on| rnn(on, 3, |vb| Ok(Rnn::Gru(candle_nn::gru(5, 6, Default::default(), vb)?)))),
    ];
    check(layers, &FLOATS);
}

enum Rnn {
    Lstm(LSTM),
    Gru(GRU),
}

/// Returns the hidden states of a sequence for a cell with `gates` gates.
fn rnn(on: &On, gates: usize, make: fn(VarBuilder) -> Result<Rnn>) -> Result<Tensor> {
    let rows = 6 * gates;
    let weights = [
        ("weight_ih_l0", on.t(&[rows, 5], 0.5)),
        ("weight_hh_l0", on.t(&[rows, 6], 0.4)),
        ("bias_ih_l0", on.t(&[rows], 0.3)),
        ("bias_hh_l0", on.t(&[rows], 0.2)),
    ];
    let weights: HashMap<String, Tensor> = weights.into_iter().map(|(n, t)| (n.to_string(), t)).collect();
    let layer = make(VarBuilder::from_tensors(weights, on.dtype, &on.device))?;
    let x = on.t(&[2, 4, 5], 1.0);
    match layer {
        Rnn::Lstm(layer) => layer.states_to_tensor(&layer.seq(&x)?),
        Rnn::Gru(layer) => layer.states_to_tensor(&layer.seq(&x)?),
    }
}

#[test]
fn losses() {
    let layers: &[(&str, Layer)] = &[
        ("nll", |on| loss::nll(&ops::log_softmax(&on.t(&[4, 5], 2.0), 1)?, &on.ids(&[0, 4, 2, 2]))),
        ("cross_entropy", |on| loss::cross_entropy(&on.t(&[4, 5], 2.0), &on.ids(&[0, 4, 2, 2]))),
        ("mse", |on| loss::mse(&on.t(&[4, 5], 2.0), &on.t(&[4, 5], 1.0))),
        ("huber", |on| loss::huber(&on.t(&[4, 5], 2.0), &on.t(&[4, 5], 1.0), 0.7)),
        ("binary_cross_entropy_with_logit", |on| {
            loss::binary_cross_entropy_with_logit(&on.t(&[4, 5], 2.0), &on.positive(&[4, 5]))
        }),
    ];
    check(layers, &FLOATS);
}

#[test]
fn pixels() {
    let layers: &[(&str, Layer)] = &[
        ("pixel_shuffle", |on| ops::pixel_shuffle(&on.t(&[2, 8, 3, 5], 1.0), 2)),
        ("pixel_unshuffle", |on| ops::pixel_unshuffle(&on.t(&[2, 2, 6, 9], 1.0), 3)),
        ("replication_pad2d", |on| {
            let x = on.t(&[2, 2, 3, 4], 1.0);
            all(&[ops::replication_pad2d(&x, 0)?, ops::replication_pad2d(&x, 1)?])
        }),
    ];
    check(layers, &FLOATS);
}

#[test]
fn caches() {
    let layers: &[(&str, Layer)] = &[
        ("KvCache", |on| {
            // More than its initial size, so that it grows.
            let mut cache = KvCache::new(2, 4);
            let mut parts = Vec::new();
            for tokens in [3, 2, 4] {
                let (k, v) = cache.append(&on.t(&[1, 2, tokens, 3], 1.0), &on.t(&[1, 2, tokens, 3], 2.0))?;
                parts.extend([k.contiguous()?, v.contiguous()?]);
            }
            all(&parts)
        }),
        ("RotatingKvCache", |on| {
            let mut cache = RotatingKvCache::new(2, 4);
            let mut parts = Vec::new();
            for tokens in [3, 2, 6, 1] {
                if let Some(mask) = cache.attn_mask(tokens, &on.device)? {
                    parts.push(mask.to_dtype(on.dtype)?);
                }
                let (k, v) = cache.append(&on.t(&[1, 2, tokens, 3], 1.0), &on.t(&[1, 2, tokens, 3], 2.0))?;
                parts.extend([k.contiguous()?, v.contiguous()?]);
            }
            all(&parts)
        }),
        ("ScatteredKvCache", |on| {
            let mut builder = ScatteredCacheBuilder::new(2, 5, on.dtype, &on.device)?;
            let mut cache = builder.make_cache(2, 3)?;
            let mut parts = Vec::new();
            for (tokens, used) in [(2, [true, true]), (3, [true, false]), (2, [false, true])] {
                let places = builder.indices_and_mask(tokens, &used)?;
                let (k, v) =
                    cache.append(&on.t(&[2, 2, tokens, 3], 1.0), &on.t(&[2, 2, tokens, 3], 2.0), &places)?;
                let mask = places.mask().to_dtype(DType::F32)?.exp()?.to_dtype(on.dtype)?;
                parts.extend([mask, k.copy()?, v.copy()?]);
            }
            all(&parts)
        }),
        ("ConcatKvCache", |on| {
            let mut cache = ConcatKvCache::new(2);
            let mut parts = Vec::new();
            for tokens in [3, 1] {
                let (k, v) = cache.append(&on.t(&[1, 2, tokens, 3], 1.0), &on.t(&[1, 2, tokens, 3], 2.0))?;
                parts.extend([k, v]);
            }
            all(&parts)
        }),
    ];
    check(layers, &FLOATS);
}

#[test]
fn variable_length_attention() {
    let layers: &[(&str, Layer)] = &[("flash_attn_varlen_unfused", |on| {
        let (q, k) = (on.t(&[7, 4, 8], 1.0), on.t(&[9, 2, 8], 1.0));
        let v = on.t(&[9, 2, 8], 2.0);
        let (lq, lk) = (on.ids(&[3, 4]), on.ids(&[4, 5]));
        let slopes = Some(on.t(&[4], 0.5).abs()?.to_dtype(DType::F32)?);
        let run = |slopes: Option<&Tensor>, causal, window| {
            attention::varlen::flash_attn_varlen_unfused(
                &q, &k, &v, slopes, &lq, &lk, 4, 5, 0.3, causal, window, window,
            )
        };
        all(&[run(None, false, None)?, run(None, true, None)?, run(slopes.as_ref(), true, Some(2))?])
    })];
    // The CPU device has no bf16 matmul, and slopes are not f64.
    check(layers, &[DType::F32, DType::F16]);
}

/// Functions that candle-nn only has for the CPU or CUDA return an error and do not panic.
#[test]
fn functions_for_other_devices_return_errors() {
    let device = rocm();
    let t = |dims: &[usize]| tensor(dims, DType::F32, 1.0).to_device(&device).unwrap();
    let (q, lengths) = (t(&[4, 2, 8]), Tensor::new(&[4u32], &device).unwrap());
    let varlen = attention::cpu_flash::varlen::flash_attn_varlen_cpu(
        &q, &q, &q, None, &lengths, &lengths, 4, 4, 1.0, true, None, None,
    );
    assert!(varlen.unwrap_err().to_string().contains("CPU"));
    let q = t(&[1, 4, 2, 8]);
    let flash = attention::flash_attn::<f32>(&q, &q, &q, 1.0, attention::AttnMask::causal(), None, None);
    assert!(flash.unwrap_err().to_string().contains("CPU"));
}

#[test]
fn one_hot_of_every_index_dtype() {
    let device = rocm();
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let ids = Tensor::new(&[[0u32, 3], [2, 1]], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let expected = one_hot(ids.clone(), 4, 1f32, 0.5).unwrap();
        let got = one_hot(ids.to_device(&device).unwrap(), 4, 1f32, 0.5).unwrap();
        assert!(got.device().is_rocm());
        assert_close(&got, &expected, 0.0, &format!("{dtype:?}"));
    }
    let wrong = Tensor::new(&[0i64, 4], &device).unwrap();
    assert!(one_hot(wrong, 4, 1u8, 0u8).unwrap_err().to_string().contains("exceeds depth"));
}

#[test]
fn dropout_zeroes_elements_and_scales_the_rest() {
    let device = rocm();
    for dtype in FLOATS {
        let x = tensor(&[100, 100], dtype, 1.0).to_device(&device).unwrap();
        let layer = Dropout::new(0.25);
        assert_close(&layer.forward(&x, false).unwrap(), &x, 0.0, "evaluation");
        let got = values(&layer.forward(&x, true).unwrap());
        let (mut dropped, scale) = (0, 1.0 / 0.75);
        for (got, x) in got.into_iter().zip(values(&x)) {
            if got == 0.0 && x != 0.0 {
                dropped += 1;
            } else {
                assert!(
                    (got - x * scale).abs() <= tolerance(dtype) * (1.0 + x.abs()),
                    "{dtype:?}: {x} became {got}"
                );
            }
        }
        // Ten standard deviations of 10,000 draws.
        assert!((2067..2933).contains(&dropped), "{dtype:?}: {dropped} of 10000 were dropped");
    }
}

#[test]
fn sampling_follows_the_probabilities() {
    let device = rocm();
    // Probabilities 0.8, 0.2 and (almost) 0.
    let logits = Tensor::new(&[0.8f32.ln(), 0.2f32.ln(), -40.0], &device).unwrap();
    let logits = logits.broadcast_as((2000, 3)).unwrap();
    for dtype in FLOATS {
        let logits = logits.to_dtype(dtype).unwrap();
        let greedy = sampling::gumbel_softmax(&logits, 0.0, 1).unwrap();
        assert!(values(&greedy).iter().all(|&id| id == 0.0));
        let drawn = values(&sampling::gumbel_softmax(&logits, 1.0, 1).unwrap());
        let count = |id: f64| drawn.iter().filter(|&&drawn| drawn == id).count();
        assert_eq!(count(2.0), 0, "{dtype:?}");
        // Ten standard deviations of 2,000 draws.
        assert!((222..578).contains(&count(1.0)), "{dtype:?}: {} of 2000", count(1.0));
    }
}

/// A few steps of linear regression give the same weights as on the CPU.
#[test]
fn optimizers() {
    fn steps<O: Optimizer>(config: O::Config, device: &Device) -> Result<Tensor> {
        let x = tensor(&[6, 3], DType::F32, 1.0).to_device(device)?;
        let y = tensor(&[6, 1], DType::F32, 2.0).to_device(device)?;
        let w = candle::Var::from_tensor(&tensor(&[1, 3], DType::F32, 0.5).to_device(device)?)?;
        let b = candle::Var::zeros(1, DType::F32, device)?;
        let mut optimizer = O::new(vec![w.clone(), b.clone()], config)?;
        for _ in 0..10 {
            let layer = Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
            optimizer.backward_step(&loss::mse(&layer.forward(&x)?, &y)?)?;
        }
        all(&[w.as_tensor().clone(), b.as_tensor().clone()])
    }
    let device = rocm();
    let adamw = || ParamsAdamW { lr: 0.05, weight_decay: 0.1, ..ParamsAdamW::default() };
    let [got, expected] = [&device, &Device::Cpu].map(|device| steps::<SGD>(0.1, device).unwrap());
    assert_close(&got, &expected, 1e-5, "SGD");
    let [got, expected] = [&device, &Device::Cpu].map(|device| steps::<AdamW>(adamw(), device).unwrap());
    assert_close(&got, &expected, 1e-5, "AdamW");
}

/// Invalid operands give the same variant of error as on the CPU device.
#[test]
fn invalid_operands_give_the_errors_of_the_cpu() {
    type Refused = fn(&Device) -> Result<Tensor>;
    fn t(dims: &[usize], dtype: DType, device: &Device) -> Tensor {
        tensor(dims, DType::F32, 3.0).to_dtype(dtype).unwrap().to_device(device).unwrap()
    }
    let cases: &[(&str, Refused)] = &[
        ("sigmoid of u32", |d| ops::sigmoid(&t(&[4], DType::U32, d))),
        ("sigmoid of f8e4m3", |d| ops::sigmoid(&t(&[4], DType::F8E4M3, d))),
        ("softmax_last_dim of i64", |d| ops::softmax_last_dim(&t(&[2, 4], DType::I64, d))),
        ("softmax_last_dim of f8e4m3", |d| ops::softmax_last_dim(&t(&[2, 4], DType::F8E4M3, d))),
        ("softmax_last_dim, transposed", |d| ops::softmax_last_dim(&t(&[2, 4], DType::F32, d).t()?)),
        ("rms_norm of u8", |d| ops::rms_norm(&t(&[2, 4], DType::U8, d), &t(&[4], DType::U8, d), 1e-5)),
        ("rms_norm, transposed", |d| {
            ops::rms_norm(&t(&[4, 2], DType::F32, d).t()?, &t(&[4], DType::F32, d), 1e-5)
        }),
        ("rms_norm of two dtypes", |d| {
            ops::rms_norm(&t(&[2, 4], DType::F32, d), &t(&[4], DType::F16, d), 1e-5)
        }),
        ("rms_norm, short weights", |d| {
            ops::rms_norm(&t(&[2, 4], DType::F32, d), &t(&[3], DType::F32, d), 1e-5)
        }),
        ("layer_norm, strided weights", |d| {
            let strided = t(&[4, 2], DType::F32, d).narrow(1, 0, 1)?.squeeze(1)?;
            ops::layer_norm(&t(&[2, 4], DType::F32, d), &strided, &t(&[4], DType::F32, d), 1e-5)
        }),
        ("layer_norm of i64", |d| {
            let weight = t(&[4], DType::I64, d);
            ops::layer_norm(&t(&[2, 4], DType::I64, d), &weight, &weight, 1e-5)
        }),
        ("rope of two dtypes", |d| {
            let angles = t(&[3, 2], DType::F16, d);
            rotary_emb::rope(&t(&[1, 2, 3, 4], DType::F32, d), &angles, &angles)
        }),
        ("rope of u8", |d| {
            let angles = t(&[3, 2], DType::U8, d);
            rotary_emb::rope_i(&t(&[1, 2, 3, 4], DType::U8, d), &angles, &angles)
        }),
        ("rope, too few angles", |d| {
            let angles = t(&[2, 2], DType::F32, d);
            rotary_emb::rope_thd(&t(&[1, 3, 2, 4], DType::F32, d), &angles, &angles)
        }),
        ("rope, transposed", |d| {
            let angles = t(&[3, 2], DType::F32, d);
            rotary_emb::rope(&t(&[1, 3, 2, 4], DType::F32, d).transpose(1, 2)?, &angles, &angles)
        }),
        ("pixel_shuffle by 0", |d| ops::pixel_shuffle(&t(&[1, 4, 2, 2], DType::F32, d), 0)),
        ("pixel_unshuffle by 0", |d| ops::pixel_unshuffle(&t(&[1, 4, 2, 2], DType::F32, d), 0)),
        ("replication_pad2d of nothing", |d| ops::replication_pad2d(&t(&[1, 4, 2, 0], DType::F32, d), 1)),
        ("embedding, index out of range", |d| {
            let layer = Embedding::new(t(&[3, 2], DType::F32, d), 2);
            let rows = layer.forward(&Tensor::new(&[1u32, 3], d)?)?;
            Tensor::new(rows.to_vec2::<f32>()?, d)
        }),
        ("replication_pad2d by 2", |d| ops::replication_pad2d(&t(&[1, 1, 2, 2], DType::F32, d), 2)),
        ("nll of three dims", |d| loss::nll(&t(&[1, 2, 2], DType::F32, d), &Tensor::new(&[0u32], d)?)),
        ("dropout of everything", |d| ops::dropout(&t(&[2], DType::F32, d), 1.0)),
    ];
    let device = rocm_alone();
    let mut failures = Vec::new();
    for (name, case) in cases {
        let cpu = case(&Device::Cpu).unwrap_err();
        match case(&device) {
            Ok(_) => failures.push(format!("{name}: accepted; the CPU says {cpu}")),
            Err(rocm) => {
                let same = std::mem::discriminant(inner(&cpu)) == std::mem::discriminant(inner(&rocm));
                // The GPU itself detects an index out of range.
                if !same && !rocm.to_string().contains("out of range") {
                    failures.push(format!("{name}: the CPU says {cpu}, ROCm says {rocm}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Compares batches of transposed rows, such as the positions of images, with explicit sums.
#[test]
fn linear_of_transposed_batches() -> Result<()> {
    let (batches, places, from, to) = (3, 5, 4, 6);
    for device in [Device::Cpu, rocm()] {
        let x = tensor(&[batches, from, places], DType::F32, 2.0).to_device(&device)?.transpose(1, 2)?;
        let weight = tensor(&[to, from], DType::F32, 1.0).to_device(&device)?;
        let got = Linear::new(weight.clone(), None).forward(&x)?.to_vec3::<f32>()?;
        let (x, weight) = (x.to_vec3::<f32>()?, weight.to_vec2::<f32>()?);
        for (batch, rows) in got.iter().enumerate() {
            for (place, row) in rows.iter().enumerate() {
                for (at, got) in row.iter().enumerate() {
                    let sum: f32 = (0..from).map(|i| x[batch][place][i] * weight[at][i]).sum();
                    assert!((got - sum).abs() < 1e-5, "{device:?}, batch {batch}: {got}, not {sum}");
                }
            }
        }
    }
    Ok(())
}
