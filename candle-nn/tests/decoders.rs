//! Fused operations of decoders, compared with separate operations in f32 on the CPU: residual sums with norms, and rotary
//! embeddings with the write to a paged cache.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Result, Tensor};
use candle_nn::encoded_cache::{CacheEncoding, CacheScales};
use candle_nn::fused::{add_rms_norm, CacheHeads, HeadNorms, Rotary};
use candle_nn::ops;
use common::{assert_close, rocm, rocm_alone, tensor, tolerance, values};

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
            (2, 2047, 3),
            // Threads have four packs of a row, or less at its end.
            (8193, 200, 0),
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
    /// Scales of an encoded cache.
    scales: Tensor,
    /// Dtype of the rotated queries with an encoded cache.
    queries: DType,
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
            scales: tensor(&[blocks, 4, key_heads, 2], DType::BF16, 0.1),
            queries: if dtype == DType::F32 { DType::F16 } else { dtype },
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
            scales: f(&self.scales),
            queries: self.queries,
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
            scales: CacheEncoding::of(self.cache[0].dtype())
                .map(|_| CacheScales { scales: &self.scales, queries: self.queries }),
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

/// Returns the largest difference of two tensors.
fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    values(a).into_iter().zip(values(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Compares with a cache of f32 on the CPU. A decoded element differs by at most half a step, and as rounded queries do.
#[track_caller]
fn check_encoded(of: Heads, dtype: DType, encoding: CacheEncoding, is_fused: bool) {
    let what = format!("{of:?} {dtype:?} {encoding:?}");
    let device = rocm_alone();
    let host = Operands::new(of, dtype, encoding.dtype(), &slots(of.rows));
    let on = host.map(|tensor| tensor.to_device(&device));
    let before = launches(&device);
    let got = on.forward(true).unwrap();
    let made = launches(&device) - before;
    let copies = if of.joined { 0 } else { 3 };
    assert!(made <= 1 + copies || !is_fused, "{what}: {made} launches");
    assert_eq!((got.dims(), got.dtype()), (&[of.rows, of.heads, of.width][..], on.queries), "{what}");
    let exact = Operands::new(of, dtype, DType::F32, &slots(of.rows));
    let exact = exact.map(|tensor| match tensor.dtype() {
        DType::U32 => Ok(tensor.clone()),
        _ => tensor.to_dtype(DType::F32),
    });
    let expected = exact.forward(false).unwrap();
    let tolerance = tolerance(on.queries).max(1e-4);
    assert_close(&got, &expected, tolerance, &what);
    let scales = on.scales.to_device(&Device::Cpu).unwrap();
    for (which, (elements, expected)) in on.cache.iter().zip(&exact.cache).enumerate() {
        let elements = elements.to_device(&Device::Cpu).unwrap();
        let own = scales.narrow(3, which, 1).unwrap().squeeze(3).unwrap();
        let decoded = CacheEncoding::decode(&elements, &own).unwrap();
        for (row, slot) in slots(of.rows).into_iter().enumerate().filter(|(_, slot)| *slot != u32::MAX) {
            let at = |tensor: &Tensor| tensor.flatten(0, 1).unwrap().get(slot as usize).unwrap();
            let (got, expected) = (values(&at(&decoded)), values(&at(expected)));
            for (head, (got, expected)) in got.chunks(of.width).zip(expected.chunks(of.width)).enumerate() {
                let largest = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
                for (got, expected) in got.iter().zip(expected) {
                    let half_step = match encoding {
                        CacheEncoding::Int8 => 0.5 * largest / 127.0,
                        CacheEncoding::Fp8 => (expected.abs() / 16.0).max(largest / 448.0 / 512.0),
                    };
                    let off = (got - expected).abs();
                    let bound = 1.01 * half_step + tolerance * (1.0 + largest);
                    assert!(off <= bound, "{what}: row {row}, head {head}: {got} instead of {expected}");
                }
            }
        }
        // Slots without rows keep their elements.
        let untouched = (0..elements.dims()[0] as u32 * 4).filter(|slot| !slots(of.rows).contains(slot));
        for slot in untouched {
            let at = |tensor: &Tensor| tensor.flatten(0, 1).unwrap().get(slot as usize).unwrap();
            assert_eq!(
                largest_difference(&at(&elements), &at(&host.cache[which])),
                0.0,
                "{what}: slot {slot}"
            );
        }
    }
}

const ENCODINGS: [CacheEncoding; 2] = [CacheEncoding::Int8, CacheEncoding::Fp8];

#[test]
fn heads_are_encoded_in_one_launch() {
    for encoding in ENCODINGS {
        for dtype in DTYPES {
            for of in [
                LLAMA,
                Heads { interleaved: true, rows: 1, ..LLAMA },
                Heads { normed: true, biased: true, width: 128, pairs: 64, rows: 2, ..LLAMA },
                // Not in packs, with several units for each lane.
                Heads { width: 18, pairs: 5, normed: true, joined: false, ..LLAMA },
                Heads { width: 130, pairs: 9, interleaved: true, biased: true, ..LLAMA },
                Heads { width: 256, pairs: 128, rows: 33, heads: 2, key_heads: 1, ..LLAMA },
                Heads { width: 2, pairs: 1, heads: 40, key_heads: 20, joined: false, ..LLAMA },
            ] {
                check_encoded(of, dtype, encoding, true);
            }
        }
        check_encoded(Heads { rows: 0, ..LLAMA }, DType::F16, encoding, true);
        // Odd widths have separate operations.
        check_encoded(Heads { width: 9, pairs: 2, joined: false, ..LLAMA }, DType::F16, encoding, false);
    }
    let mut wrong = Operands::new(LLAMA, DType::F32, DType::U8, &[0, 1, 2]);
    wrong.scales = wrong.scales.narrow(3, 0, 1).unwrap();
    let error = wrong.forward(true).unwrap_err().to_string();
    assert!(error.contains("the pair of scales"), "{error}");
}

/// Rows of zeros, of one element, and of the largest and the smallest numbers of the dtype, on both devices.
#[test]
fn extreme_rows_are_encoded() {
    let device = rocm_alone();
    let width = 16;
    let largest = f64::from(f32::from(half::f16::MAX));
    let rows: Vec<f64> = [0.0, largest, -largest, 6e-8, 1e-4, 1.0, 448.0, 449.0, f64::NAN, f64::INFINITY]
        .into_iter()
        .flat_map(|size| {
            (0..width).map(move |i| {
                if i == 3 {
                    size
                } else if size.is_finite() {
                    size / 7.0 * (i % 3) as f64
                } else {
                    1.0
                }
            })
        })
        .collect();
    let count = rows.len() / width;
    let rows = Tensor::from_vec(rows, (count, width), &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap();
    for encoding in ENCODINGS {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &device).unwrap();
        let shape = [count, 1, width];
        let (keys, cache) = (zeros(&shape, encoding.dtype()), zeros(&shape, encoding.dtype()));
        let (scales, x) = (zeros(&[count, 1, 2], DType::BF16), rows.to_device(&device).unwrap());
        let slots = Tensor::arange(0, count as u32, &device).unwrap();
        let angle = |value: f32| Tensor::full(value, (count, 1), &device).unwrap();
        let op = CacheHeads {
            q: &x,
            k: &x,
            v: &x,
            bias: None,
            norms: None,
            rotary: Rotary { cos: &angle(1.0), sin: &angle(0.0), interleaved: false },
            positions: &slots,
            slots: &slots,
            keys: &keys,
            values: &cache,
            scales: Some(CacheScales { scales: &scales, queries: DType::F16 }),
        };
        op.forward().unwrap();
        let (elements, own) = encoding.encode(&rows).unwrap();
        let expected = CacheEncoding::decode(&elements, &own).unwrap();
        let got = [&cache, &scales].map(|tensor| tensor.to_device(&Device::Cpu).unwrap());
        let of_values = got[1].narrow(2, 1, 1).unwrap().flatten_all().unwrap();
        let got = CacheEncoding::decode(&got[0].squeeze(1).unwrap(), &of_values).unwrap();
        let rows_of = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
        let (got, expected) = (rows_of(&got), rows_of(&expected));
        for ((got, expected), exact) in got.iter().zip(&expected).zip(rows_of(&rows)) {
            let size = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
            if !exact.iter().all(|x| x.is_finite()) {
                assert!(got.iter().any(|x| x.is_nan()), "{encoding:?}: {exact:?} became {got:?}");
                assert!(expected.iter().any(|x| x.is_nan()), "{encoding:?}: {exact:?} became {expected:?}");
                continue;
            }
            for (row, name) in [(got, "device"), (expected, "CPU")] {
                for (x, exact) in row.iter().zip(&exact) {
                    let step = match encoding {
                        CacheEncoding::Int8 => size / 127.0 * 0.5,
                        CacheEncoding::Fp8 => (exact.abs() / 16.0).max(size / 448.0 / 512.0),
                    };
                    let rounded = half::f16::from_f32(*x);
                    assert!(rounded.is_finite(), "{name} {encoding:?}: {x} instead of {exact}");
                    // The largest numbers have a smaller scale.
                    let bound = 1.01 * step + size / 128.0 * (size > 65000.0) as u8 as f32;
                    assert!((x - exact).abs() <= bound, "{name} {encoding:?}: {x} instead of {exact}");
                }
            }
        }
    }
}

#[test]
fn elements_are_encoded_within_half_a_step() {
    for encoding in ENCODINGS {
        for (rows, width) in [(1, 1), (3, 2), (2, 3), (5, 64)] {
            let x = tensor(&[rows, width], DType::F32, 3.0);
            let (elements, scales) = encoding.encode(&x).unwrap();
            assert_eq!((elements.dtype(), scales.dims()), (encoding.dtype(), &[rows][..]));
            let decoded = CacheEncoding::decode(&elements, &scales).unwrap();
            let step = if encoding == CacheEncoding::Int8 { 0.5 / 127.0 } else { 1.0 / 16.0 };
            assert!(largest_difference(&decoded, &x) <= 3.0 * 1.01 * step, "{encoding:?} {rows} x {width}");
        }
    }
    let floats = tensor(&[1, 2], DType::F32, 1.0);
    assert!(CacheEncoding::decode(&floats, &floats).unwrap_err().to_string().contains("not encoded"));
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
