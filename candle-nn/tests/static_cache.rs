//! The cache of fixed size, compared with the formula of attention in f64, eagerly and as a graph.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Result, Tensor};
use candle_nn::fused::Rotary;
use candle_nn::fused_attention::ScoreParams;
use candle_nn::static_cache::{StaticCache, StaticCacheSize};
use common::{rocm_alone, tensor, values};

const SIZE: StaticCacheSize =
    StaticCacheSize { layers: 2, sequences: 3, capacity: 16, key_heads: 2, width: 8 };
const HEADS: usize = 4;
const SCALE: f64 = 0.7;
/// Positions of the sequences before the first step: one of them reaches the capacity.
const FIRST: [u32; 3] = [0, 5, 14];
const STEPS: usize = 4;

/// Rows of a step's queries, keys and values, (sequences, heads · width).
fn rows(step: usize, device: &Device) -> [Tensor; 3] {
    let rows = |heads: usize, seed: usize| {
        let all = tensor(&[STEPS + 1, SIZE.sequences, heads * SIZE.width], DType::F32, 1.0 + seed as f64);
        all.get(step).unwrap().to_device(device).unwrap()
    };
    [rows(HEADS, 0), rows(SIZE.key_heads, 1), rows(SIZE.key_heads, 2)]
}

/// A step over the last layer without rotation.
fn step(cache: &StaticCache, [q, k, v]: [&Tensor; 3], [cos, sin]: [&Tensor; 2]) -> Result<Tensor> {
    let rotary = Rotary { cos, sin, interleaved: false };
    let q = cache.append(SIZE.layers - 1, [q, k, v], None, rotary)?;
    let out = cache.attention(SIZE.layers - 1, &q, SCALE)?;
    cache.advance()?;
    Ok(out)
}

fn tables(device: &Device) -> [Tensor; 2] {
    let shape = (SIZE.capacity + 1, SIZE.width / 2);
    [Tensor::ones(shape, DType::F32, device).unwrap(), Tensor::zeros(shape, DType::F32, device).unwrap()]
}

/// Computes all steps in f64. Keys before the first positions are zeros.
fn expected() -> Vec<Vec<f64>> {
    let (capacity, width) = (SIZE.capacity, SIZE.width);
    let mut kept =
        vec![[vec![0.0; capacity * SIZE.key_heads * width], vec![0.0; capacity * SIZE.key_heads * width]]; 3];
    let results = (0..STEPS).map(|at| {
        let [q, k, v] = rows(at, &Device::Cpu).map(|rows| values(&rows));
        let mut out = Vec::new();
        for (sequence, kept) in kept.iter_mut().enumerate() {
            let position = (FIRST[sequence] as usize + at).min(capacity);
            let row = SIZE.key_heads * width;
            if position < capacity {
                for (to, from) in kept.iter_mut().zip([&k, &v]) {
                    to[position * row..][..row].copy_from_slice(&from[sequence * row..][..row]);
                }
            }
            for head in 0..HEADS {
                let q = &q[(sequence * HEADS + head) * width..][..width];
                let shared = head / (HEADS / SIZE.key_heads) * width;
                let of = |all: &[f64], key: usize| all[key * row + shared..][..width].to_vec();
                let keys = 0..(position + 1).min(capacity);
                let score = |key| of(&kept[0], key).iter().zip(q).map(|(k, q)| k * q).sum::<f64>() * SCALE;
                let weights: Vec<f64> = keys.clone().map(|key| f64::exp(score(key))).collect();
                let sum: f64 = weights.iter().sum();
                for column in 0..width {
                    let weighted = keys.clone().map(|key| weights[key] / sum * of(&kept[1], key)[column]);
                    out.push(weighted.sum::<f64>());
                }
            }
        }
        out
    });
    results.collect()
}

#[track_caller]
fn assert_step(got: &Tensor, expected: &[f64], what: &str) {
    for (at, (got, expected)) in values(got).iter().zip(expected).enumerate() {
        assert!((got - expected).abs() < 1e-5, "{what}, element {at}: {got}, expected {expected}");
    }
}

#[test]
fn steps_attend_up_to_the_positions() {
    for device in [Device::Cpu, rocm_alone()] {
        let cache = StaticCache::new(SIZE, DType::F32, &device).unwrap();
        cache.set_positions(&FIRST).unwrap();
        let tables = tables(&device);
        for (at, expected) in expected().iter().enumerate() {
            let rows = rows(at, &device);
            let out = step(&cache, rows.each_ref(), tables.each_ref()).unwrap();
            assert_step(&out, expected, &format!("{:?}, step {at}", device.location()));
        }
        let positions = cache.positions().to_vec1::<u32>().unwrap();
        assert_eq!(positions, [4, 9, 16]);
        assert_eq!(cache.key_ends().to_vec1::<u32>().unwrap(), [0, 5, 15, 31]);
    }
}

/// One of the sequences reaches the capacity, where it keeps its last keys.
#[test]
fn steps_in_one_launch_attend_up_to_the_positions() {
    let device = rocm_alone();
    let cache = StaticCache::new(SIZE, DType::F32, &device).unwrap();
    cache.set_positions(&FIRST).unwrap();
    let [cos, sin] = &tables(&device);
    let rotary = Rotary { cos, sin, interleaved: true };
    let scores = ScoreParams { scale: SCALE as f32, softcap: None, window: None, sinks: None };
    for (at, expected) in expected().iter().enumerate() {
        let rows = rows(at, &device);
        let out = cache.append_and_attend(SIZE.layers - 1, rows.each_ref(), None, rotary, scores, true);
        assert_step(&out.unwrap().expect("a kernel"), expected, &format!("step {at}"));
        cache.advance().unwrap();
    }
}

#[test]
fn a_captured_step_is_replayed_for_every_token() {
    let device = rocm_alone();
    let cache = StaticCache::new(SIZE, DType::F32, &device).unwrap();
    let (inputs, tables) = (rows(STEPS, &device), tables(&device));
    let run = || step(&cache, inputs.each_ref(), tables.each_ref());
    // Loads kernels.
    run().unwrap();
    let (graph, out) = device.as_rocm_device().unwrap().capture(run).unwrap();
    for layer in 0..SIZE.layers {
        let (keys, values) = cache.pages(layer).unwrap();
        [keys, values].iter().for_each(|pages| pages.slice_set(&pages.zeros_like().unwrap(), 0, 0).unwrap());
    }
    cache.set_positions(&FIRST).unwrap();
    for (at, expected) in expected().iter().enumerate() {
        for (to, from) in inputs.iter().zip(rows(at, &device)) {
            to.slice_set(&from, 0, 0).unwrap();
        }
        graph.replay().unwrap();
        assert_step(&out, expected, &format!("replay {at}"));
    }
}

/// Every sequence advances by one up to the capacity, as on the CPU, with fewer sequences than lanes and with more.
#[test]
fn sequences_advance_up_to_the_capacity() {
    let end = SIZE.capacity as u32;
    for sequences in [1, 2, 31, 32, 33, 70] {
        let size = StaticCacheSize { sequences, ..SIZE };
        let caches =
            [Device::Cpu, rocm_alone()].map(|device| StaticCache::new(size, DType::F32, &device).unwrap());
        let first: Vec<u32> = (0..sequences as u32).map(|at| (at * 7 + end - 1) % (end + 2)).collect();
        caches.iter().for_each(|cache| cache.set_positions(&first).unwrap());
        for step in 0..3 {
            let positions: Vec<u32> = first.iter().map(|first| (first.min(&end) + step).min(end)).collect();
            let mut ends = vec![0];
            positions.iter().for_each(|position| ends.push(ends.last().unwrap() + (position + 1).min(end)));
            for cache in &caches {
                assert_eq!(
                    cache.positions().to_vec1::<u32>().unwrap(),
                    positions,
                    "{sequences} sequences, step {step}"
                );
                assert_eq!(
                    cache.key_ends().to_vec1::<u32>().unwrap(),
                    ends,
                    "{sequences} sequences, step {step}"
                );
                cache.advance().unwrap();
            }
        }
        // The next keys are written to the same slots.
        let row = |seed: f64| tensor(&[sequences, SIZE.key_heads * SIZE.width], DType::F32, seed);
        let written = caches.map(|cache| {
            let device = cache.positions().device();
            let rows = [1.0, 2.0, 3.0].map(|seed| row(seed).to_device(device).unwrap());
            let [cos, sin] = &tables(device);
            let rotary = Rotary { cos, sin, interleaved: false };
            cache.append(0, rows.each_ref(), None, rotary).unwrap();
            let (keys, pages) = cache.pages(0).unwrap();
            [keys, pages].map(|pages| values(&pages))
        });
        assert_eq!(written[0], written[1], "{sequences} sequences");
    }
}

#[test]
fn sequences_advance_in_one_launch() {
    let device = rocm_alone();
    let cache = StaticCache::new(SIZE, DType::F32, &device).unwrap();
    cache.advance().unwrap();
    let (graph, ()) = device.as_rocm_device().unwrap().capture(|| cache.advance()).unwrap();
    assert_eq!(graph.nodes(), 1);
}

#[test]
fn invalid_sizes_are_errors() {
    for size in [
        StaticCacheSize { capacity: 17, ..SIZE },
        StaticCacheSize { layers: 0, ..SIZE },
        StaticCacheSize { sequences: 1 << 30, ..SIZE },
    ] {
        let error = StaticCache::new(size, DType::F32, &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("static cache"), "{error}");
    }
    let cache = StaticCache::new(SIZE, DType::F32, &Device::Cpu).unwrap();
    assert!(cache.set_positions(&[0]).is_err() && cache.pages(2).is_err());
    let q = Tensor::zeros((3, 3, 8), DType::F32, &Device::Cpu).unwrap();
    assert!(cache.attention(0, &q, 1.0).unwrap_err().to_string().contains("do not match"));
}
