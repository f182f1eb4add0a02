//! Attention over encoded caches, compared with the formula in f64 over the decoded elements.
use candle::{DType, Result, Tensor};
use candle_flash_attn::flash_attn_varlen_encoded;
use half::bf16;
use rand::seq::SliceRandom;
use rand::{rngs::StdRng, Rng, SeedableRng};

use crate::attention_formula::wide;
use crate::case::{Case, Form};
use crate::{device, formula, CAUSAL};

const PAGE: usize = 16;

/// Encoded rows (keys, key heads, width), and a scale for each row of a head.
struct Encoded {
    bytes: Vec<u8>,
    scales: Vec<bf16>,
    width: usize,
}

/// Returns a number of the type E4M3 without NaN.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if byte & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

impl Encoded {
    /// Draws elements. One row of eight has the scale 0, and others are small.
    fn draw(rng: &mut StdRng, rows: usize, width: usize, is_fp8: bool) -> Self {
        let byte = |rng: &mut StdRng| match is_fp8 {
            // All numbers but NaN.
            true => rng.random_range(0..0x7f) | rng.random_range(0..2) << 7,
            false => rng.random_range(1..=255),
        };
        let largest = if is_fp8 { 448.0 } else { 127.0 };
        let scale = |rng: &mut StdRng| match rng.random_range(0..8) {
            0 => 0.0,
            1 => 1e-9,
            _ => rng.random_range(0.2f32..2.0) / largest,
        };
        Self {
            bytes: (0..rows * width).map(|_| byte(rng)).collect(),
            scales: (0..rows).map(|_| bf16::from_f32(scale(rng))).collect(),
            width,
        }
    }

    fn decoded(&self, is_fp8: bool) -> Vec<f32> {
        let number = |byte: u8| match is_fp8 {
            true => e4m3(byte),
            false => f32::from(byte) - 128.0,
        };
        let rows = self.bytes.chunks(self.width).zip(&self.scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |byte| number(*byte) * scale.to_f32())).collect()
    }
}

/// Compares a case. The page table has `spare` further columns, which are not read.
fn check(case: &Case, is_fp8: bool, spare: usize) -> Result<f64> {
    let device = device();
    let mut rng = StdRng::seed_from_u64(case.seed);
    let (key_heads, width) = (case.heads.1, case.widths.0);
    let total = case.sequences.iter().map(|(_, keys)| keys).sum::<usize>();
    let [k, v] = [(); 2].map(|()| Encoded::draw(&mut rng, total * key_heads, width, is_fp8));
    let mut host = case.host(&mut rng)?;
    (host.k, host.v) = (k.decoded(is_fp8), v.decoded(is_fp8));
    // Pages in random order. The scales of rows outside of all sequences are NaN.
    let each: Vec<usize> = case.sequences.iter().map(|(_, keys)| keys.div_ceil(PAGE)).collect();
    let most = each.iter().copied().max().unwrap_or(0).max(1) + spare;
    let mut order: Vec<u32> = (0..each.iter().sum::<usize>() as u32 + 2).collect();
    order.shuffle(&mut rng);
    let rows = order.len() * PAGE * key_heads;
    let mut pages = [vec![0x55u8; rows * width], vec![0x55u8; rows * width]];
    let (mut scales, mut table, mut first) = (vec![bf16::NAN; 2 * rows], Vec::new(), 0);
    for (&(_, keys), count) in case.sequences.iter().zip(&each) {
        let own = order.split_off(order.len() - count);
        for (key, head) in (0..keys).flat_map(|key| (0..key_heads).map(move |head| (key, head))) {
            let from = (first + key) * key_heads + head;
            let to = (own[key / PAGE] as usize * PAGE + key % PAGE) * key_heads + head;
            for (which, (pages, encoded)) in pages.iter_mut().zip([&k, &v]).enumerate() {
                pages[to * width..][..width].copy_from_slice(&encoded.bytes[from * width..][..width]);
                scales[2 * to + which] = encoded.scales[from];
            }
        }
        first += keys;
        table.extend(own.into_iter().chain(std::iter::repeat(u32::MAX)).take(most));
    }
    let dtype = if is_fp8 { DType::F8E4M3 } else { DType::U8 };
    let shape = [rows / key_heads / PAGE, PAGE, key_heads, width];
    let page = |bytes: &Vec<u8>| Tensor::from_raw_buffer(bytes, dtype, &shape, &device);
    let (pages, scale_shape) = (pages.each_ref().map(page), (shape[0], PAGE, key_heads, 2));
    let [keys, values] = pages;
    let scales = Tensor::from_vec(scales, scale_shape, &device)?;
    let table = Tensor::from_vec(table, (case.sequences.len(), most), &device)?;
    let starts = |of: fn(&(usize, usize)) -> usize| {
        let mut ends = vec![0u32];
        for sequence in &case.sequences {
            ends.push(ends[ends.len() - 1] + of(sequence) as u32);
        }
        Tensor::new(ends, &device)
    };
    let queries = host.q.len() / case.heads.0 / width;
    let q = Tensor::from_slice(&host.q, (queries, case.heads.0, width), &device)?.to_dtype(case.dtype)?;
    let sinks = case.sinks.then(|| Tensor::new(host.sinks.as_slice(), &device)).transpose()?;
    let (longest, window) = (case.most(), case.window);
    let out = flash_attn_varlen_encoded(
        &q,
        &keys?,
        &values?,
        &scales,
        sinks.as_ref(),
        &starts(|s| s.0)?,
        &starts(|s| s.1)?,
        &table,
        longest[0],
        most * PAGE,
        case.scale(),
        window.0,
        window.1,
        PAGE,
        case.softcap,
    )?;
    assert_eq!((out.dims(), out.dtype()), (q.dims(), case.dtype));
    let (got, right) = (wide(&out)?, formula::attention::<f64>(case, &host).out);
    let largest = right.iter().fold(0f64, |most, x| most.max(x.abs()));
    let off = got.iter().zip(&right).map(|(got, right)| (got - right).abs());
    let off = off.fold(0f64, |most, off| if off <= most { most } else { off });
    // Keys, values and weights are rounded to the dtype.
    let bound = if case.dtype == DType::F16 { 3e-3 } else { 2e-2 };
    assert!(off <= bound * largest, "{case:?}, fp8 {is_fp8}: {off} off, largest {largest}");
    Ok(if largest == 0.0 { 0.0 } else { off / largest })
}

fn check_all(cases: impl IntoIterator<Item = Case>) -> Result<()> {
    let mut worst = 0f64;
    for (number, case) in cases.into_iter().enumerate() {
        for is_fp8 in [false, true] {
            for dtype in [DType::F16, DType::BF16] {
                let error = check(&Case { dtype, seed: number as u64, ..case.clone() }, is_fp8, 0)?;
                worst = worst.max(if dtype == DType::F16 { error } else { error / 8.0 });
            }
        }
    }
    println!("off by {worst:.1e} of the largest result in f16, and as much in bf16 times 8");
    Ok(())
}

fn of(sequences: &[(usize, usize)]) -> Case {
    let form = Form::Pages(PAGE);
    Case { form, sequences: sequences.to_vec(), heads: (4, 2), window: CAUSAL, ..Case::default() }
}

/// Sequences of no, one, two and three keys, and around the borders of pages and of tiles of keys.
#[test]
fn encoded_caches_of_every_length() -> Result<()> {
    let lengths = [1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 129, 257];
    let decoding = lengths.iter().map(|keys| of(&[(1, *keys), (2, *keys + 1), (1, 0)]));
    let prompts = lengths.iter().map(|keys| of(&[(*keys.min(&70), *keys), (20, 21)]));
    check_all(decoding.chain(prompts))
}

#[test]
fn encoded_caches_of_every_width() -> Result<()> {
    let widths = [8, 16, 64, 80, 96, 128, 192, 256];
    check_all(widths.into_iter().flat_map(|width| {
        let widths = (width, width);
        [of(&[(1, 40), (1, 3)]), of(&[(40, 43), (3, 17)])].map(|case| Case { widths, heads: (8, 1), ..case })
    }))
}

/// Windows, softcaps and sinks, groups of heads, and keys that are split between workgroups.
#[test]
fn encoded_caches_with_every_option() -> Result<()> {
    let mut cases = Vec::new();
    for sequences in [&[(1, 70), (3, 20)][..], &[(30, 50), (1, 9)]] {
        for window in [CAUSAL, (Some(9), Some(0)), (Some(5), Some(7)), (None, None)] {
            cases.push(Case { window, softcap: Some(4.0), sinks: true, heads: (6, 2), ..of(sequences) });
        }
    }
    cases.push(Case { heads: (16, 2), ..of(&[(1, 1100), (2, 40)]) });
    cases.push(Case { heads: (2, 2), ..of(&[(1, 2000)]) });
    cases.push(Case { heads: (2, 1), ..of(&[(40, 1500)]) });
    check_all(cases)
}

/// Sequences with so many queries that their keys are decoded before: of all lengths, widths and options, with few queries
/// beside many, and with windows outside of which nothing is decoded.
#[test]
fn encoded_caches_of_long_prompts() -> Result<()> {
    let heads = (8, 2);
    let mut cases = vec![
        Case { heads, ..of(&[(200, 300), (0, 9), (1, 40)]) },
        Case { heads, sinks: true, softcap: Some(4.0), ..of(&[(64, 64), (129, 257)]) },
        Case { heads: (16, 1), ..of(&[(17, 1100)]) },
    ];
    for width in [8, 80, 128, 256] {
        cases.push(Case { heads, widths: (width, width), ..of(&[(70, 90), (75, 76)]) });
    }
    for window in [(Some(9), Some(0)), (Some(5), Some(7)), (None, None)] {
        cases.push(Case { heads, window, ..of(&[(100, 300), (90, 90)]) });
    }
    check_all(cases)
}

/// Contexts so long that the keys of two sequences do not fit into the buffer together, or those of one do not.
#[test]
fn encoded_caches_with_space_for_long_contexts() -> Result<()> {
    let case = Case { heads: (8, 2), widths: (256, 256), ..of(&[(70, 90), (75, 76)]) };
    for spare in [9_000, 20_000] {
        check(&case, false, spare)?;
    }
    Ok(())
}

#[test]
fn invalid_encoded_caches_are_rejected() -> Result<()> {
    let device = device();
    let attend = |q: (DType, usize), cache: DType, pairs: usize| {
        let q = Tensor::zeros((1, 1, q.1), q.0, &device)?;
        let page = Tensor::zeros((1, PAGE, 1, q.dims()[2]), cache, &device)?;
        let scales = Tensor::zeros((1, PAGE, 1, pairs), DType::BF16, &device)?;
        let (starts, table) =
            (Tensor::new(&[0u32, 1], &device)?, Tensor::zeros((1, 1), DType::U32, &device)?);
        flash_attn_varlen_encoded(
            &q,
            &page,
            &page,
            &scales,
            None,
            &starts,
            &starts,
            &table,
            1,
            1,
            1.0,
            None,
            Some(0),
            PAGE,
            None,
        )
    };
    attend((DType::F16, 64), DType::U8, 2)?;
    for (q, cache, pairs, text) in [
        ((DType::F32, 64), DType::U8, 2, "queries of F32 with encoded keys of U8 are not supported"),
        ((DType::F16, 64), DType::F16, 2, "encoded keys of F16 are not supported"),
        ((DType::BF16, 264), DType::F8E4M3, 2, "use multiples of 8 up to 256"),
        ((DType::F16, 64), DType::U8, 1, "scales must have the shape"),
    ] {
        let error = attend(q, cache, pairs).unwrap_err().to_string();
        assert!(error.contains(text), "{error}\nlacks: {text}");
    }
    Ok(())
}
