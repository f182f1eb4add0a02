//! Comparison with candle-nn's flash attention for the CPU device, an independent implementation.
use candle::{DType, Device, Result, Tensor};
use candle_flash_attn::{
    flash_attn_alibi_windowed_softcap, flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_windowed,
};
use candle_nn::attention::{cpu_flash, flash_attn, AttnMask};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::device;

/// Relative tolerance: scores are f32 sums of up to 128 products, whose error enters the exponent.
const ROUNDING: f32 = 1e-5;

/// Returns the same random numbers in every run.
fn random(dims: &[usize], seed: u64) -> Result<Tensor> {
    let mut numbers = StdRng::seed_from_u64(seed);
    let count = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|_| numbers.random_range(-2.0..2.0)).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
}

#[track_caller]
fn assert_close(ours: &Tensor, theirs: &Tensor, what: &str) -> Result<()> {
    let ours = ours.to_device(&Device::Cpu)?;
    assert_eq!(ours.dims(), theirs.dims(), "{what}");
    let largest = theirs.abs()?.max_all()?.to_scalar::<f32>()?;
    let off = (ours - theirs)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(off <= ROUNDING * largest, "{what}: off by {off:.1e} of {largest:.1e}");
    Ok(())
}

#[test]
fn a_batch_of_one() -> Result<()> {
    let device = device();
    for (queries, keys, heads, key_heads, width) in
        [(1, 33, 4, 2, 64), (40, 40, 4, 4, 32), (7, 150, 6, 1, 128)]
    {
        let q = random(&[1, queries, heads, width], 1)?;
        let [k, v] = [random(&[1, keys, key_heads, width], 2)?, random(&[1, keys, key_heads, width], 3)?];
        let on = |tensor: &Tensor| tensor.to_device(&device);
        for (causal, softcap) in [(false, None), (true, None), (true, Some(3.0)), (false, Some(0.5))] {
            // For one query with a softcap, candle-nn subtracts the distance of a key even without ALiBi.
            if (queries, causal) == (1, true) && softcap.is_some() {
                continue;
            }
            let mask = match causal {
                true => AttnMask::causal_with_offset(keys - queries),
                false => AttnMask::None,
            };
            let theirs = flash_attn::<f32>(&q, &k, &v, 0.2, mask, None, softcap)?;
            let right = causal.then_some(0);
            let ours = flash_attn_alibi_windowed_softcap(
                &on(&q)?,
                &on(&k)?,
                &on(&v)?,
                None,
                0.2,
                None,
                right,
                softcap.unwrap_or(0.0),
            )?;
            let what = format!("{queries} queries, {keys} keys, causal {causal}, softcap {softcap:?}");
            assert_close(&ours.transpose(1, 2)?, &theirs, &what)?;
        }
    }
    Ok(())
}

#[test]
fn sequences() -> Result<()> {
    let device = device();
    let (lengths, key_lengths): ([u32; 4], [u32; 4]) = ([5, 1, 64, 17], [5, 70, 64, 40]);
    let starts = |lengths: &[u32]| {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        Tensor::from_iter([0].into_iter().chain(ends), &device)
    };
    let (heads, key_heads, width) = (4, 2, 48);
    let total = |lengths: &[u32]| lengths.iter().sum::<u32>() as usize;
    let q = random(&[total(&lengths), heads, width], 4)?;
    let k = random(&[total(&key_lengths), key_heads, width], 5)?;
    let v = k.affine(-0.5, 0.25)?;
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu)?;
    let [of_queries, of_keys] = [lengths, key_lengths].map(|lengths| Tensor::new(&lengths, &Device::Cpu));
    let (of_queries, of_keys, on) = (of_queries?, of_keys?, |tensor: &Tensor| tensor.to_device(&device));
    for slopes in [None, Some(&slopes)] {
        for window in [(None, None), (Some(9), Some(0)), (Some(3), Some(20))] {
            let theirs = cpu_flash::varlen::flash_attn_varlen_cpu(
                &q,
                &k,
                &v,
                slopes,
                &of_queries,
                &of_keys,
                64,
                70,
                0.3,
                false,
                window.0,
                window.1,
            )?;
            let [q, k, v] = [on(&q)?, on(&k)?, on(&v)?];
            let [of_queries, of_keys] = [starts(&lengths)?, starts(&key_lengths)?];
            let (starts, key_starts, (left, right)) = (&of_queries, &of_keys, window);
            #[rustfmt::skip]
            let ours = match slopes {
                None => flash_attn_varlen_windowed(&q, &k, &v, starts, key_starts, 64, 70, 0.3, left, right),
                Some(slopes) => flash_attn_varlen_alibi_windowed_softcap(
                    &q, &k, &v, Some(&on(slopes)?), starts, key_starts, 64, 70, 0.3, left, right, 0.0,
                ),
            }?;
            assert_close(&ours, &theirs, &format!("slopes {}, window {window:?}", slopes.is_some()))?;
        }
    }
    Ok(())
}

/// f16 results differ by at most the rounding errors of both.
#[test]
fn halves() -> Result<()> {
    let device = device();
    let [q, k, v] = [random(&[2, 20, 4, 64], 6)?, random(&[2, 20, 4, 64], 7)?, random(&[2, 20, 4, 64], 8)?]
        .map(|tensor| tensor.to_dtype(DType::F16));
    let (q, k, v) = (q?, k?, v?);
    let theirs = flash_attn::<half::f16>(&q, &k, &v, 0.125, AttnMask::causal(), None, None)?;
    let on = |tensor: &Tensor| tensor.to_device(&device);
    let ours = candle_flash_attn::flash_attn(&on(&q)?, &on(&k)?, &on(&v)?, 0.125, true)?;
    let ours = ours.transpose(1, 2)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    let off = (ours - theirs.to_dtype(DType::F32)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
    // Results are below 4: half an ulp of each, plus our rounding of weights to f16.
    assert!(off <= 2.0 * 4.0 / 2048.0, "off by {off:.1e}");
    Ok(())
}
