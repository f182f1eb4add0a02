//! Fused operations of decoders, compared with separate operations in f32 on the CPU: residual sums with norms, and rotary
//! embeddings with the write to a paged cache.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Result, Tensor};
use candle_nn::fused::{add_rms_norm, CacheHeads, HeadNorms, Rotary};
use candle_nn::ops;
use common::{assert_close, rocm, rocm_alone, tensor, tolerance};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn launches(device: &Device) -> u64 {
    device.as_rocm_device().unwrap().kernels_launched()
}

/// The sum has the bits of a separate sum. Covers rows of which a workgroup has several, odd widths and unaligned starts.
#[test]
fn residual_sums_are_normalized_in_one_launch() {
    let device = rocm_alone();
    for dtype in DTYPES {
        for (rows, columns, skipped) in [
            (1, 1, 0),
            (0, 8, 0),
            (3, 7, 1),
            (2, 64, 0),
            (300, 24, 0),
            (1, 2048, 0),
            (5, 4096, 0),
            (2, 4095, 3),
        ] {
            for has_post in [false, true] {
                let on = |count: usize, limit| {
                    let all = tensor(&[count + skipped], dtype, limit).to_device(&device).unwrap();
                    all.narrow(0, skipped, count).unwrap()
                };
                let x = on(rows * columns, 3.0).reshape((rows, columns)).unwrap();
                let residual = on(rows * columns, 2.0).reshape((rows, columns)).unwrap();
                let (weight, post) = (on(columns, 1.5), has_post.then(|| on(columns, 0.7)));
                let what = format!("{dtype:?} {rows} x {columns} from {skipped}, {has_post}");
                let before = launches(&device);
                let (sum, normed) = add_rms_norm(&x, &residual, post.as_ref(), &weight, 1e-5).unwrap();
                assert_eq!(launches(&device) - before, (rows > 0) as u64, "{what}");
                assert_eq!((sum.dims(), normed.dtype()), (x.dims(), dtype), "{what}");
                if rows == 0 {
                    continue;
                }
                let x =
                    post.map_or(Ok(x.clone()), |post| ops::rms_norm(&x.contiguous()?, &post, 1e-5)).unwrap();
                let expected = (&residual + x).unwrap();
                // Norms of one row sum in another order than norms of parts.
                let exact = if has_post { tolerance(dtype) } else { 0.0 };
                assert_close(&sum, &expected.to_device(&Device::Cpu).unwrap(), exact, &what);
                let expected = ops::rms_norm(&expected, &weight, 1e-5).unwrap();
                assert_close(&normed, &expected.to_device(&Device::Cpu).unwrap(), tolerance(dtype), &what);
            }
        }
    }
}

#[test]
fn rows_that_do_not_fit_into_registers_are_normalized_separately() {
    let device = rocm();
    let x = tensor(&[2, 20_000], DType::F32, 1.0);
    let (weight, on) = (tensor(&[20_000], DType::F32, 1.0), |t: &Tensor| t.to_device(&device).unwrap());
    let (sum, normed) = add_rms_norm(&on(&x), &on(&x), Some(&on(&weight)), &on(&weight), 1e-5).unwrap();
    let (expected_sum, expected) = add_rms_norm(&x, &x, Some(&weight), &weight, 1e-5).unwrap();
    assert_close(&sum, &expected_sum, 1e-5, "sum");
    assert_close(&normed, &expected, 1e-5, "norm");
    let error = add_rms_norm(&x, &weight, None, &weight, 1e-5).unwrap_err().to_string();
    assert!(error.contains("do not match"), "{error}");
}

/// Sizes and options of a projection to heads.
#[derive(Clone, Copy, Debug)]
struct Heads {
    rows: usize,
    heads: usize,
    key_heads: usize,
    width: usize,
    pairs: usize,
    interleaved: bool,
    biased: bool,
    normed: bool,
    /// If true, queries, keys and values are parts of one product.
    joined: bool,
}

/// Operands of [`CacheHeads`] on a device.
struct Operands {
    of: Heads,
    joined: Tensor,
    bias: Tensor,
    norms: [Tensor; 2],
    angles: [Tensor; 2],
    positions: Tensor,
    slots: Tensor,
    cache: [Tensor; 2],
}

const POSITIONS: usize = 50;

impl Operands {
    fn new(of: Heads, dtype: DType, cache: DType, slots: &[u32]) -> Self {
        let Heads { rows, heads, key_heads, width, pairs, .. } = of;
        let columns = (heads + 2 * key_heads) * width;
        let positions: Vec<u32> = (0..rows).map(|row| (row * 7 % POSITIONS) as u32).collect();
        let blocks = (2 * rows).div_ceil(4) + 1;
        Self {
            of,
            joined: tensor(&[rows, columns], dtype, 2.0),
            bias: tensor(&[columns], dtype, 0.6),
            norms: [tensor(&[width], dtype, 1.2), tensor(&[width], dtype, 0.8)],
            angles: [
                tensor(&[POSITIONS, pairs], DType::F32, 1.0),
                tensor(&[POSITIONS, pairs], DType::F32, 0.9),
            ],
            positions: Tensor::from_vec(positions, rows, &Device::Cpu).unwrap(),
            slots: Tensor::from_slice(slots, rows, &Device::Cpu).unwrap(),
            cache: [5.0, 6.0].map(|limit| tensor(&[blocks, 4, key_heads, width], cache, limit)),
        }
    }

    fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Self {
        let f = |tensor: &Tensor| f(tensor).unwrap();
        Self {
            of: self.of,
            joined: f(&self.joined),
            bias: f(&self.bias),
            norms: self.norms.each_ref().map(f),
            angles: self.angles.each_ref().map(f),
            positions: f(&self.positions),
            slots: f(&self.slots),
            cache: self.cache.each_ref().map(f),
        }
    }

    fn forward(&self, is_fused: bool) -> Result<Tensor> {
        let Heads { heads, key_heads, width, interleaved, biased, normed, joined, .. } = self.of;
        let part = |first: usize, heads: usize| {
            let part = self.joined.narrow(1, first * width, heads * width)?;
            if joined {
                Ok(part)
            } else {
                part.contiguous()
            }
        };
        let norms = HeadNorms { query: &self.norms[0], key: &self.norms[1], eps: 1e-5 };
        let (q, k, v) = (part(0, heads)?, part(heads, key_heads)?, part(heads + key_heads, key_heads)?);
        let op = CacheHeads {
            q: &q,
            k: &k,
            v: &v,
            bias: biased.then_some(&self.bias),
            norms: normed.then_some(norms),
            rotary: Rotary { cos: &self.angles[0], sin: &self.angles[1], interleaved },
            positions: &self.positions,
            slots: &self.slots,
            keys: &self.cache[0],
            values: &self.cache[1],
        };
        if is_fused {
            op.forward()
        } else {
            op.forward_separately()
        }
    }
}

/// Returns distinct slots in no order; the third row is not written.
fn slots(rows: usize) -> Vec<u32> {
    let slot = |row: usize| if row == 2 { u32::MAX } else { (row * 5 % rows * 2 + row % 2) as u32 };
    // 5 and the number of rows have no common divisor.
    assert!(!rows.is_multiple_of(5) || rows == 0);
    (0..rows).map(slot).collect()
}

#[track_caller]
fn check(of: Heads, dtype: DType, cache: DType) {
    let what = format!("{of:?} {dtype:?} {cache:?}");
    let device = rocm_alone();
    let host = Operands::new(of, dtype, cache, &slots(of.rows));
    let on = host.map(|tensor| tensor.to_device(&device));
    let before = launches(&device);
    let got = on.forward(true).unwrap();
    let made = launches(&device) - before;
    let copies = if of.joined { 0 } else { 3 };
    assert!(made <= 1 + copies, "{what}: {made} launches");
    assert_eq!((got.dims(), got.dtype()), (&[of.rows, of.heads, of.width][..], cache), "{what}");
    let exact =
        host.map(
            |tensor| {
                if tensor.dtype() == DType::U32 {
                    Ok(tensor.clone())
                } else {
                    tensor.to_dtype(DType::F32)
                }
            },
        );
    let expected = exact.forward(false).unwrap();
    let tolerance = tolerance(cache).max(if dtype == DType::F32 { 1e-5 } else { 1e-4 });
    assert_close(&got, &expected, tolerance, &what);
    for (got, expected) in on.cache.iter().zip(&exact.cache) {
        assert_close(got, expected, tolerance, &what);
    }
}

const LLAMA: Heads = Heads {
    rows: 3,
    heads: 4,
    key_heads: 2,
    width: 64,
    pairs: 32,
    interleaved: false,
    biased: false,
    normed: false,
    joined: true,
};

#[test]
fn heads_are_rotated_and_cached_in_one_launch() {
    for dtype in DTYPES {
        for cache in DTYPES {
            for of in [
                LLAMA,
                Heads { interleaved: true, rows: 1, ..LLAMA },
                Heads { normed: true, biased: true, width: 128, pairs: 64, rows: 2, ..LLAMA },
                // Not in packs: odd numbers of pairs, and parts that are not rotated.
                Heads { width: 18, pairs: 5, normed: true, joined: false, ..LLAMA },
                Heads { width: 18, pairs: 9, interleaved: true, biased: true, ..LLAMA },
            ] {
                check(of, dtype, cache);
            }
        }
    }
    for of in [
        Heads { rows: 0, ..LLAMA },
        // More rows than separate operations write at once, and more heads than a workgroup has.
        Heads { rows: 199, heads: 9, key_heads: 3, ..LLAMA },
        // Partly rotated heads, wide heads, and widths that are no power of two.
        Heads { width: 96, pairs: 24, heads: 3, key_heads: 3, ..LLAMA },
        Heads { width: 80, pairs: 16, interleaved: true, heads: 2, key_heads: 1, ..LLAMA },
        Heads { width: 256, pairs: 128, normed: true, heads: 2, key_heads: 1, ..LLAMA },
        Heads { width: 512, pairs: 256, normed: true, biased: true, heads: 1, key_heads: 1, ..LLAMA },
        Heads { width: 2, pairs: 1, heads: 40, key_heads: 20, joined: false, ..LLAMA },
    ] {
        check(of, DType::F16, DType::F16);
        check(of, DType::F32, DType::F16);
        check(of, DType::F32, DType::F32);
    }
}

/// A slot out of range is not written, and the next call that waits returns an error.
#[test]
fn slots_and_positions_out_of_range_are_reported() {
    let device = rocm_alone();
    for (is_slot, number) in [(true, 1000u32), (false, POSITIONS as u32)] {
        let mut host = Operands::new(LLAMA, DType::F32, DType::F32, &[0, 1, 2]);
        let numbers = Tensor::new(&[0, number, 2], &Device::Cpu).unwrap();
        if is_slot {
            host.slots = numbers
        } else {
            host.positions = numbers
        }
        let on = host.map(|tensor| tensor.to_device(&device));
        on.forward(true).unwrap();
        let error = device.synchronize().unwrap_err().to_string();
        let name = if is_slot { "cache slot" } else { "rotary position" };
        assert!(error.contains(name) && error.contains(&number.to_string()), "{error}");
        if is_slot {
            let row = |cache: &Tensor| cache.flatten(0, 1).unwrap().get(1).unwrap();
            assert_close(&row(&on.cache[0]), &row(&host.cache[0]), 0.0, "unused slot");
        }
    }
    let host = Operands::new(LLAMA, DType::F32, DType::F32, &[0, 1, 2]);
    let wrong = Operands { bias: tensor(&[3], DType::F32, 1.0), of: Heads { biased: true, ..LLAMA }, ..host };
    let error = wrong.forward(true).unwrap_err().to_string();
    assert!(error.contains("bias does not match"), "{error}");
}
