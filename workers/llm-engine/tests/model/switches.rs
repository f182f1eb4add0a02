//! Options that candle-transformers does not implement, compared with independent formulas.
use candle_core::{DType, Device, Tensor};
use candle_nn::fused::CacheHeads;
use llm_engine::model::config::{Activation, DecoderConfig};
use llm_engine::model::families;
use llm_engine::model::layers::{FusedWith, Linear, Matrix};
use llm_engine::model::rope::{Rope, RotaryTable, Scaling};
use serde_json::{Value, json};

use super::configs::named;
use super::steps::{close, device, tolerance};

fn config(name: &str, more: Value) -> DecoderConfig {
    let mut config = named(name).config;
    config["num_hidden_layers"] = 5.into();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    DecoderConfig::from_json(families::from_config(&config).unwrap(), &config).unwrap()
}

#[test]
fn windows_follow_the_family() {
    let five = |layers: [u8; 5]| layers.map(|window| (window > 0).then_some(window as usize)).to_vec();
    let on = json!({"use_sliding_window": true, "max_window_layers": 3, "sliding_window": 8});
    let off = json!({"use_sliding_window": false, "max_window_layers": 3, "sliding_window": 8});
    let types = json!([
        "full_attention",
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention"
    ]);
    for (name, more, windows) in [
        ("llama", json!({"sliding_window": 8}), [0, 0, 0, 0, 0]),
        ("qwen2", on.clone(), [0, 0, 0, 8, 8]),
        ("qwen3", on, [0, 0, 0, 8, 8]),
        ("qwen3", off, [0, 0, 0, 0, 0]),
        ("phi3", json!({"sliding_window": 8}), [8, 8, 8, 8, 8]),
        ("phi3", json!({}), [0, 0, 0, 0, 0]),
        ("phi3", json!({"sliding_window": 0}), [0, 0, 0, 0, 0]),
        ("gemma2", json!({"sliding_window": 8}), [8, 0, 8, 0, 8]),
        ("gemma3", json!({"sliding_window": 8, "sliding_window_pattern": 3}), [8, 8, 0, 8, 8]),
        ("qwen3", json!({"sliding_window": 8, "layer_types": types}), [0, 8, 0, 0, 8]),
    ] {
        assert_eq!(config(name, more).windows, five(windows), "{name}");
    }
}

#[test]
fn older_and_newer_rope_fields_are_equivalent() {
    let gemma = config("gemma3", json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}));
    let newer = json!({"rope_theta": null, "rope_local_base_freq": null, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}});
    assert_eq!(config("gemma3", newer), gemma);
    assert_eq!(gemma.rope.scaling, Scaling::Linear(8.0));
    let local = gemma.local_rope.unwrap();
    assert_eq!((local.theta, local.scaling), (100.0, Scaling::None));
    let newer = json!({"rope_theta": null, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}});
    assert_eq!(config("llama", newer), config("llama", json!({"rope_theta": 5e5})));
}

#[test]
fn partial_rotary_factor_may_be_in_rope_parameters() {
    let older = config("phi3", json!({"partial_rotary_factor": 0.5}));
    assert_eq!(older.rope.rotary_dim, 8);
    let newer = json!({"rope_theta": null, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
        "partial_rotary_factor": 0.5}});
    assert_eq!(config("phi3", newer), older);
}

#[test]
fn attention_scale_follows_the_configuration() {
    assert_eq!(config("gemma2", json!({"query_pre_attn_scalar": 100})).attention_scale, 0.1);
    assert_eq!(config("llama", json!({"head_dim": 64})).attention_scale, 0.125);
}

#[test]
fn a_gate_may_be_a_squared_relu() {
    let (device, dtype) = device();
    let (rows, inputs, width) = (3, 64, 32);
    // Multiples of 1/16 are exact in f16.
    let number = |index: usize, step: usize| (index * step % 33) as f32 / 16.0 - 1.0;
    let [x, weight] = [(rows, 7), (2 * width, 5)].map(|(rows, step)| -> Vec<f32> {
        (0..rows * inputs).map(|index| number(index + index / inputs, step)).collect()
    });
    let tensor = |values: &[f32]| {
        let values = Tensor::from_slice(values, (values.len() / inputs, inputs), &device).unwrap();
        values.to_dtype(dtype).unwrap()
    };
    let both = Linear::new(Matrix::Float(tensor(&weight)), None, dtype);
    let with = FusedWith { gate: Some(Activation::SquaredRelu), ..FusedWith::default() };
    let got = both.forward_fused(&tensor(&x), with).unwrap().to_dtype(DType::F32).unwrap();
    let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
    let product = |row: usize, column: usize| -> f32 {
        let pairs = x[row * inputs..][..inputs].iter().zip(&weight[column * inputs..][..inputs]);
        pairs.map(|(x, weight)| x * weight).sum()
    };
    let outputs = (0..rows * width).map(|index| (index / width, index % width));
    let expected = outputs.map(|(row, at)| product(row, at).max(0.0).powi(2) * product(row, width + at));
    let expected: Vec<f32> = expected.collect();
    close(&got, &expected, tolerance(1e-5), "squared ReLU");
}

/// Rotates (1, 0), which returns the cosines and sines.
fn angles(rope: &Rope, context: usize, positions: &[u32]) -> Vec<f32> {
    let (device, dtype) = device();
    let (pairs, rows) = (rope.rotary_dim / 2, positions.len());
    let table = RotaryTable::new(rope, false, context, &device).unwrap();
    let ones = Tensor::ones((rows, pairs), dtype, &device).unwrap();
    let x = Tensor::cat(&[&ones, &ones.zeros_like().unwrap()], 1).unwrap();
    let keys = Tensor::zeros((rows, 1, 2 * pairs), dtype, &device).unwrap();
    let rotate = CacheHeads {
        q: &x,
        k: &x,
        v: &x,
        bias: None,
        norms: None,
        rotary: table.rotary(),
        positions: &Tensor::new(positions, &device).unwrap(),
        slots: &Tensor::arange(0, rows as u32, &device).unwrap(),
        keys: &keys,
        values: &keys.copy().unwrap(),
        scales: None,
    };
    let rotated = rotate.forward().unwrap().to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    rotated.flatten_all().unwrap().to_vec1().unwrap()
}

fn rotary_dim(frequencies: &[f64], magnitude: f64, positions: &[u32]) -> Vec<f32> {
    let row = |position: &u32| {
        let angle = frequencies.iter().map(|frequency| frequency * *position as f64).collect::<Vec<_>>();
        let cos = angle.iter().map(|angle| magnitude * angle.cos()).collect::<Vec<_>>();
        cos.into_iter().chain(angle.into_iter().map(move |angle| magnitude * angle.sin())).collect::<Vec<_>>()
    };
    positions.iter().flat_map(row).map(|value| value as f32).collect()
}

/// Formula of the LongRoPE paper: 1 / (divisor · theta^(2i / width)), scaled by sqrt(1 + ln(factor) /
/// ln(original)).
#[test]
fn longrope_selects_divisors_by_context() {
    let config = json!({"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]});
    let scaling = Scaling::from_json(&config, Some(64), 256, 2).unwrap();
    let rope = Rope { theta: 100.0, rotary_dim: 4, scaling };
    let magnitude = (1.0 + 4f64.ln() / 64f64.ln()).sqrt();
    let positions = [0, 1, 7, 63];
    for (context, frequencies) in [(64, [1.0, 0.1 / 2.0]), (256, [1.0 / 4.0, 0.1 / 8.0])] {
        let expected = rotary_dim(&frequencies, magnitude, &positions);
        close(&angles(&rope, context, &positions), &expected, tolerance(1e-5), "longrope");
    }
    for wrong in
        [json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 1.0]}), json!({"type": "su"})]
    {
        let error = format!("{:#}", Scaling::from_json(&wrong, Some(64), 256, 2).unwrap_err());
        assert!(error.contains("\"short_factor\""), "{error}");
    }
}

#[test]
fn linear_scaling_divides_all_frequencies() {
    let rope = Rope { theta: 100.0, rotary_dim: 4, scaling: Scaling::Linear(8.0) };
    let positions = [0, 5, 40];
    let expected = rotary_dim(&[1.0 / 8.0, 0.1 / 8.0], 1.0, &positions);
    close(&angles(&rope, 64, &positions), &expected, tolerance(1e-5), "linear");
}

/// Formula of the YaRN paper: pair i rotates original · theta^(-2i / width) / 2π times over the original
/// context. Pairs with at least 32 rotations are kept, pairs with at most one are divided, and the fraction
/// grows linearly in between.
#[test]
fn yarn_divides_low_frequencies() {
    // Qwen's recommended settings.
    let config = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let (theta, width) = (1e6f64, 128usize);
    let scaling = Scaling::from_json(&config, None, 32768, width / 2).unwrap();
    let rope = Rope { theta, rotary_dim: width, scaling };
    let plain = |pair: usize| theta.powf(-2.0 * pair as f64 / width as f64);
    let turns = |pair: usize| 32768.0 * plain(pair) / std::f64::consts::TAU;
    let first = (0..64).rfind(|pair| turns(*pair) >= 32.0).unwrap();
    let last = (0..64).find(|pair| turns(*pair) <= 1.0).unwrap();
    assert!(first > 10 && last < 60 && last - first > 10, "{first} to {last}");
    let expected = |pair: usize| match pair {
        pair if pair <= first => plain(pair),
        pair if pair >= last => plain(pair) / 4.0,
        pair => {
            let share = (pair - first) as f64 / (last - first) as f64;
            (1.0 - share) * plain(pair) + share * plain(pair) / 4.0
        }
    };
    let expected: Vec<f64> = (0..64).map(expected).collect();
    for (got, expected) in rope.frequencies(131072).iter().zip(&expected) {
        assert!((*got as f64 / expected - 1.0).abs() < 1e-6, "{got} instead of {expected}");
    }
    let positions = [0, 1, 7];
    let magnitude = 0.1 * 4f64.ln() + 1.0;
    close(
        &angles(&rope, 64, &positions),
        &rotary_dim(&expected, magnitude, &positions),
        tolerance(1e-5),
        "yarn",
    );
}

#[test]
fn yarn_uses_explicit_parameters() {
    let of = |more: Value| {
        let mut config = json!({"type": "yarn", "factor": 4.0});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Scaling::from_json(&config, Some(1024), 4096, 2)
    };
    let scale = |by: f64| 0.1 * by * 4f64.ln() + 1.0;
    for (more, expected) in [
        (json!({}), scale(1.0)),
        (json!({"attention_factor": 1.5, "mscale": 2.0, "mscale_all_dim": 1.0}), 1.5),
        (json!({"mscale": 0.7, "mscale_all_dim": 2.0}), scale(0.7) / scale(2.0)),
        (json!({"mscale": 0.7}), scale(1.0)),
    ] {
        let Scaling::Yarn { factor, original, fast, slow, magnitude, .. } = of(more).unwrap() else {
            panic!()
        };
        assert_eq!((factor, original, fast, slow), (4.0, 1024.0, 32.0, 1.0));
        assert!((magnitude - expected).abs() < 1e-12);
    }
    let betas =
        of(json!({"beta_fast": 16, "beta_slow": 2, "original_max_position_embeddings": 512})).unwrap();
    assert!(matches!(betas, Scaling::Yarn { original: 512.0, fast: 16.0, slow: 2.0, .. }), "{betas:?}");
    for (wrong, says) in [
        (json!({"factor": 0.5}), "\"factor\""),
        (json!({"beta_slow": 40}), "\"beta_fast\""),
        (json!({"beta_slow": 0}), "\"beta_slow\""),
    ] {
        let error = format!("{:#}", of(wrong).unwrap_err());
        assert!(error.contains(says), "{error}");
    }
    // YaRN extends the context.
    let long =
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}});
    assert_eq!((config("qwen2", json!({})).context, config("qwen2", long).context), (128, 512));
}
