//! `ops::sdpa` on ROCm, compared with the formula in f64.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Result, Tensor};
use candle_nn::ops;
use common::{assert_close, kind, rocm, rocm_alone, tensor, tolerance, wide};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Sizes: batch, heads, key heads, queries, keys, width, value width.
#[derive(Clone, Copy, Debug)]
struct Sizes(usize, usize, usize, usize, usize, usize, usize);

impl Sizes {
    /// Returns q, k and v on the CPU.
    fn operands(self, dtype: DType) -> [Tensor; 3] {
        let Self(b, h, kh, n, m, d, dv) = self;
        [
            tensor(&[b, h, n, d], dtype, 1.5),
            tensor(&[b, kh, m, d], dtype, 1.2),
            tensor(&[b, kh, m, dv], dtype, 2.0),
        ]
    }
}

#[derive(Clone, Default)]
struct Options {
    mask: Option<Tensor>,
    causal: bool,
    softcap: Option<f64>,
}

/// Computes the formula in f64. A query without keys gives zeros.
fn formula([q, k, v]: &[Tensor; 3], options: &Options, scale: f64) -> Result<Tensor> {
    let (b, h, n, _) = q.dims4()?;
    let (_, kh, m, _) = k.dims4()?;
    let repeat = |t: &Tensor| -> Result<Tensor> {
        let (_, _, m, d) = t.dims4()?;
        wide(t).unsqueeze(2)?.broadcast_as((b, kh, h / kh, m, d))?.reshape((b, h, m, d))
    };
    let mut scores = (wide(q).matmul(&repeat(k)?.t()?.contiguous()?)? * scale)?;
    if let Some(cap) = options.softcap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(mask) = &options.mask {
        scores = scores.broadcast_add(&wide(mask))?;
    }
    if options.causal {
        let row = |i: usize| (0..m).map(move |j| if j + n > i + m { f64::NEG_INFINITY } else { 0.0 });
        let mask: Vec<f64> = (0..n).flat_map(row).collect();
        scores = scores.broadcast_add(&Tensor::from_vec(mask, (n, m), &Device::Cpu)?)?;
    }
    let weights = ops::softmax(&scores, 3)?;
    let weights = weights.eq(&weights)?.where_cond(&weights, &weights.zeros_like()?)?;
    weights.matmul(&repeat(v)?)
}

/// Runs sdpa on the device, compares it with the formula, and checks the number of launches.
#[track_caller]
fn check(operands: &[Tensor; 3], options: &Options, what: &str) {
    let device = rocm_alone();
    let to = |t: &Tensor| t.to_device(&device).unwrap();
    let [q, k, v] = operands.each_ref().map(to);
    let mask = options.mask.as_ref().map(to);
    let scale = 1.0 / (q.dims()[3].max(1) as f64).sqrt();
    let before = device.as_rocm_device().unwrap().kernels_launched();
    let softcap = options.softcap.unwrap_or(1.0) as f32;
    let got = ops::sdpa(&q, &k, &v, mask.as_ref(), options.causal, scale as f32, softcap).unwrap();
    let launches = device.as_rocm_device().unwrap().kernels_launched() - before;
    // A second launch combines parts of the keys. Rows that are not aligned are copied first.
    let pack = 16 / q.dtype().size_in_bytes();
    let whole = q.dims()[3] % pack == 0 && v.dims()[3] % pack == 0;
    assert!(launches <= if whole { 2 } else { 9 }, "{what}: {launches} launches");
    assert_eq!(got.dtype(), q.dtype());
    assert_close(&got, &formula(operands, options, scale).unwrap(), tolerance(q.dtype()), what);
}

const SIZES: [Sizes; 9] = [
    // A single query: the groups of a workgroup share its keys.
    Sizes(2, 3, 3, 1, 1, 64, 64),
    Sizes(1, 4, 2, 1, 300, 32, 32),
    Sizes(2, 4, 1, 3, 33, 72, 40),
    // 19 is no multiple of a tile or a wave.
    Sizes(1, 2, 2, 19, 19, 64, 64),
    Sizes(2, 6, 2, 9, 70, 16, 130),
    Sizes(1, 1, 1, 16, 32, 256, 256),
    // More queries than keys.
    Sizes(1, 2, 1, 12, 5, 8, 8),
    // The maximum width on Metal, and value columns for two workgroups.
    Sizes(1, 1, 1, 8, 4, 512, 512),
    Sizes(1, 2, 1, 2, 4, 5, 509),
];

#[test]
fn all_sizes_with_and_without_causal_masking() {
    for dtype in DTYPES {
        for sizes in SIZES {
            for causal in [false, true] {
                let options = Options { causal, ..Options::default() };
                check(&sizes.operands(dtype), &options, &format!("{sizes:?} {dtype:?} causal {causal}"));
            }
        }
    }
}

#[test]
fn masks_of_every_shape_that_broadcasts() {
    for dtype in DTYPES {
        for (n, what) in [(3, "few queries"), (10, "many queries")] {
            let sizes = Sizes(2, 4, 2, n, 37, 16, 24);
            for dims in [&[2, 4, n, 37][..], &[2, 1, 1, 37], &[1, 4, n, 1], &[n, 37], &[37]] {
                for causal in [false, true] {
                    let mask = Some(tensor(dims, dtype, 3.0));
                    let options = Options { mask, causal, softcap: None };
                    check(&sizes.operands(dtype), &options, &format!("{what}, mask {dims:?} {dtype:?}"));
                }
            }
        }
    }
}

#[test]
fn masked_keys_do_not_count_and_a_query_without_keys_gives_zeros() {
    for n in [2, 8] {
        let sizes = Sizes(1, 2, 2, n, 40, 8, 8);
        // Query i attends to the keys from 20 i on: all, half, none.
        let bit = |i: usize, j: usize| if j < 20 * i { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..n).flat_map(|i| (0..40).map(move |j| bit(i, j))).collect();
        let mask = Some(Tensor::from_vec(mask, (n, 40), &Device::Cpu).unwrap());
        check(&sizes.operands(DType::F32), &Options { mask, ..Options::default() }, &format!("{n} queries"));
    }
}

#[test]
fn softcapping_alone_and_with_masks() {
    for dtype in DTYPES {
        for n in [1, 9] {
            let operands = Sizes(2, 2, 1, n, 35, 64, 64).operands(dtype).map(|t| (t * 3.0).unwrap());
            for causal in [false, true] {
                let mask = causal.then(|| tensor(&[n, 35], dtype, 1.0));
                let options = Options { mask, causal, softcap: Some(2.5) };
                check(&operands, &options, &format!("{n} queries {dtype:?} causal {causal}"));
            }
        }
    }
}

#[test]
fn strided_operands_and_offsets() {
    let device = rocm();
    // (batch, tokens, heads, width) viewed as (batch, heads, tokens, width), and a part of a cache.
    for n in [1, 11] {
        let (b, h, m, d) = (2, 3, 14, 20);
        let q = tensor(&[b, n, h, d], DType::F32, 1.0);
        let k = tensor(&[b, h, 3 * m, d], DType::F32, 1.0);
        let v = tensor(&[b, h, d, m], DType::F32, 1.0);
        let mask = tensor(&[m, n], DType::F32, 2.0);
        let view = |q: &Tensor, k: &Tensor, v: &Tensor| {
            [q.transpose(1, 2).unwrap(), k.narrow(2, 5, m).unwrap(), v.t().unwrap()]
        };
        let to = |t: &Tensor| t.to_device(&device).unwrap();
        let [dq, dk, dv] = view(&to(&q), &to(&k), &to(&v));
        let options = Options { mask: Some(mask.t().unwrap()), ..Options::default() };
        let got = ops::sdpa(&dq, &dk, &dv, Some(&to(&mask).t().unwrap()), false, 0.3, 1.0).unwrap();
        let expected = formula(&view(&q, &k, &v), &options, 0.3).unwrap();
        assert_close(&got, &expected, 1e-5, &format!("{n} queries"));
        // One key head for all heads, broadcast with a stride of 0.
        let k = tensor(&[b, 1, m, d], DType::F32, 1.0);
        let all = to(&k).broadcast_as((b, h, m, d)).unwrap();
        let got = ops::sdpa(&dq, &all, &dv, None, true, 0.3, 1.0).unwrap();
        let operands = [q.transpose(1, 2).unwrap(), k.broadcast_as((b, h, m, d)).unwrap(), v.t().unwrap()];
        let causal = Options { causal: true, ..Options::default() };
        assert_close(&got, &formula(&operands, &causal, 0.3).unwrap(), 1e-5, "broadcast keys");
    }
}

#[test]
fn empty_operands() {
    let device = rocm();
    let zeros = |dims: [usize; 4]| Tensor::zeros(&dims, DType::F32, &device).unwrap();
    let got =
        ops::sdpa(&zeros([1, 2, 0, 8]), &zeros([1, 2, 3, 8]), &zeros([1, 2, 3, 8]), None, false, 1., 1.);
    assert_eq!(got.unwrap().dims(), [1, 2, 0, 8]);
    let ones = Tensor::ones((1, 2, 3, 8), DType::F32, &device).unwrap();
    let got = ops::sdpa(&ones, &zeros([1, 2, 0, 8]), &zeros([1, 2, 0, 8]), None, true, 1., 1.).unwrap();
    assert_close(&got, &Tensor::zeros((1, 2, 3, 8), DType::F32, &Device::Cpu).unwrap(), 0.0, "no keys");
}

#[test]
fn mismatched_operands_are_errors() {
    let device = rocm();
    let t = |dims: [usize; 4], dtype| tensor(&dims, dtype, 1.0).to_device(&device).unwrap();
    let f32s = |dims| t(dims, DType::F32);
    let run = |q: &Tensor, k: &Tensor, v: &Tensor| ops::sdpa(q, k, v, None, false, 1., 1.);
    let q = f32s([1, 4, 2, 8]);
    let good = f32s([1, 2, 3, 8]);
    assert!(run(&q, &good, &good).is_ok());
    for (k, v) in [
        ([1, 2, 3, 7], [1, 2, 3, 7]),
        ([2, 2, 3, 8], [2, 2, 3, 8]),
        ([1, 2, 3, 8], [1, 2, 4, 8]),
        ([1, 2, 3, 8], [1, 1, 3, 8]),
    ] {
        assert_eq!(kind(run(&q, &f32s(k), &f32s(v))), "ShapeMismatchBinaryOp", "{k:?} {v:?}");
    }
    let three = f32s([1, 3, 3, 8]);
    assert!(run(&q, &three, &three).unwrap_err().to_string().contains("4 query heads"));
    let flat = good.flatten(0, 1).unwrap();
    assert_eq!(kind(run(&q, &flat, &flat)), "UnexpectedNumberOfDims");
    let half = t([1, 2, 3, 8], DType::F16);
    assert_eq!(kind(run(&q, &half, &half)), "DTypeMismatchBinaryOp");
    let doubles = t([1, 2, 3, 8], DType::F64);
    assert_eq!(kind(run(&doubles, &doubles, &doubles)), "UnsupportedDTypeForOp");
    assert_eq!(
        kind(run(&q, &good, &Tensor::zeros((1, 2, 3, 8), DType::F32, &Device::Cpu).unwrap())),
        "DeviceMismatchBinaryOp"
    );
    let wide = f32s([1, 1, 1, 513]);
    assert!(run(&wide, &wide, &wide).unwrap_err().to_string().contains("at most 512"));

    let masked = |mask: &Tensor| ops::sdpa(&q, &good, &good, Some(mask), false, 1., 1.);
    assert!(masked(&f32s([1, 1, 2, 3])).is_ok());
    assert_eq!(kind(masked(&f32s([1, 1, 2, 4]))), "BroadcastIncompatibleShapes");
    assert_eq!(kind(masked(&t([1, 1, 2, 3], DType::F16))), "DTypeMismatchBinaryOp");
    assert_eq!(kind(masked(&tensor(&[1, 1, 2, 3], DType::F32, 1.0))), "DeviceMismatchBinaryOp");
    // The device stays usable.
    assert!(run(&q, &good, &good).is_ok());
}
