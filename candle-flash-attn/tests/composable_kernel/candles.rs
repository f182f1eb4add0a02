//! Compares Composable Kernel's instances with Candle's kernels for the same calls of this crate's functions.
use candle::{DType, Device, Result, Tensor};
use candle_flash_attn::ck::{choose, Choice, Element, Instance, TABLE};
use candle_flash_attn::{
    flash_attn, flash_attn_alibi_windowed_softcap, flash_attn_varlen, flash_attn_varlen_with_statistics,
    flash_attn_with_statistics,
};
use half::{bf16, f16};
use serial_test::serial;

use crate::built;
use crate::formula::{cases, reference, Case, Float, Values, SCALE};

/// Returns how often Composable Kernel's and Candle's kernels were launched in this process.
fn launches() -> [u64; 2] {
    let counters = rocm_emulator::counters();
    let of = |start: &str| {
        counters.iter().filter(|(name, _)| name.starts_with(start)).map(|(_, c)| c.launches).sum()
    };
    [of("attention_forward"), of("attention_rows_") + of("attention_keys_")]
}

/// Computes `made` with the chosen kernels, and asserts that these were launched.
fn by<T>(choice: Choice, made: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = launches();
    choose(choice);
    let made = made();
    choose(Choice::Table);
    let made = made?;
    Device::new_rocm(0)?.synchronize()?;
    let [ck, candles] = std::array::from_fn(|i| launches()[i] - before[i]);
    match choice {
        Choice::ComposableKernel => assert_eq!([ck, candles], [1, 0], "launches"),
        _ => assert!(ck == 0 && candles > 0, "launches: {ck} and {candles}"),
    }
    Ok(made)
}

/// Arguments of a public function.
struct Inputs<T> {
    host: [Values<T>; 3],
    device: [Tensor; 3],
    starts: Option<[Tensor; 2]>,
}

impl<T: Float> Inputs<T> {
    fn of(case: &Case, device: &Device) -> Result<Self> {
        let (queries, keys): (Vec<_>, Vec<_>) = case.lengths.iter().copied().unzip();
        let shapes = [
            (&queries, case.heads, case.width),
            (&keys, case.key_heads, case.width),
            (&keys, case.key_heads, case.value_width),
        ];
        let tensor = |values: &[T], lengths: &[usize], heads: usize, width: usize| {
            let (batch, rows) = (lengths.len(), lengths[0]);
            if case.varlen {
                return Tensor::from_slice(values, (lengths.iter().sum::<usize>(), heads, width), device);
            }
            match case.heads_first {
                true => Tensor::from_slice(values, (batch, heads, rows, width), device)?.transpose(1, 2),
                false => Tensor::from_slice(values, (batch, rows, heads, width), device),
            }
        };
        let mut seed = 0;
        let host = shapes.map(|(lengths, heads, width)| {
            seed += 1;
            Values::new(lengths, heads, width, case, seed)
        });
        let of = |i: usize| {
            let (lengths, heads, width) = shapes[i];
            tensor(&host[i].values, lengths, heads, width)
        };
        let on_device = [of(0)?, of(1)?, of(2)?];
        let starts = |lengths: &[usize]| {
            let mut starts = vec![0u32];
            starts.extend(lengths.iter().scan(0, |sum, n| {
                *sum += *n as u32;
                Some(*sum)
            }));
            Tensor::new(starts, device)
        };
        let starts = if case.varlen { Some([starts(&queries)?, starts(&keys)?]) } else { None };
        Ok(Self { host, device: on_device, starts })
    }

    /// Returns results (rows, heads, value width) of all sequences, and statistics (heads, rows) or (batch, heads, rows).
    fn attend(&self, case: &Case) -> Result<(Vec<f64>, Vec<f32>)> {
        let [q, k, v] = &self.device;
        let (left, right, scale) = (case.left, case.right, SCALE as f32);
        let (out, log_sums) = match &self.starts {
            Some([starts, key_starts]) => {
                let most = |of: fn(&(usize, usize)) -> usize| case.lengths.iter().map(of).max().unwrap_or(0);
                let (queries, keys) = (most(|s| s.0), most(|s| s.1));
                flash_attn_varlen_with_statistics(
                    q, k, v, None, starts, key_starts, queries, keys, scale, left, right, None,
                )?
            }
            None => flash_attn_with_statistics(q, k, v, None, scale, left, right, None)?,
        };
        let out = out.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok((out, log_sums.flatten_all()?.to_vec1()?))
    }
}

/// Compares one case. Returns the number of compared values and the largest used fraction of the tolerance.
fn compare<T: Float>(case: &Case, device: &Device) -> Result<(usize, f64)> {
    let inputs = Inputs::<T>::of(case, device)?;
    let (ck, ck_sums) = by(Choice::ComposableKernel, || inputs.attend(case))?;
    let (candles, candle_sums) = by(Choice::Candle, || inputs.attend(case))?;
    assert_eq!((ck.len(), ck_sums.len()), (candles.len(), candle_sums.len()));
    let (mut row, mut compared, mut most) = (0, 0, 0f64);
    let [q, k, v] = &inputs.host;
    for (sequence, (queries, _)) in case.lengths.iter().enumerate() {
        for query in 0..*queries {
            for head in 0..case.heads {
                // Each rounds its probabilities and results, so they differ by at most twice the tolerance of one.
                let (expected, _) = reference(case, [q, k, v], sequence, head, query);
                for (d, (_, tolerance)) in expected.into_iter().enumerate() {
                    let at = (row * case.heads + head) * case.value_width + d;
                    let part = (ck[at] - candles[at]).abs() / (2.0 * tolerance);
                    assert!(
                        part <= 1.0,
                        "{case:?}: sequence {sequence}, query {query}, head {head}, {d}: {} and {}",
                        ck[at],
                        candles[at]
                    );
                    most = most.max(part);
                    compared += 1;
                }
            }
            row += 1;
        }
    }
    for (a, b) in ck_sums.iter().zip(&candle_sums) {
        assert!(a == b || (a - b).abs() <= 2e-4, "{case:?}: log-sums {a} and {b}");
    }
    Ok((compared + ck_sums.len(), most))
}

#[test]
#[serial]
#[ignore = "needs code objects that `cargo xtask ck` builds"]
fn every_instance_agrees_with_candles_kernels() -> Result<()> {
    let (rocm, library) = built()?;
    let device = Device::Rocm(rocm);
    let instances: Vec<Instance> = library.instances().collect();
    let mut equal = 0;
    for instance in &instances {
        let (mut numbers, mut most) = (0, 0f64);
        for case in cases(*instance) {
            let (compared, part) = match instance.element {
                Element::F16 => compare::<f16>(&case, &device)?,
                Element::Bf16 => compare::<bf16>(&case, &device)?,
            };
            (numbers, most) = (numbers + compared, most.max(part));
        }
        equal += usize::from(numbers > 0);
        println!("{}: {numbers} numbers, {most:.2} of the bound at most", instance.name());
    }
    println!("{}: {} instances, {equal} equal", library.arch(), instances.len());
    assert!(!instances.is_empty());
    Ok(())
}

/// Candle's kernels compute unsupported problems, whatever was chosen.
#[test]
#[serial]
#[ignore = "needs code objects that `cargo xtask ck` builds"]
fn unsupported_problems_use_candles_kernels() -> Result<()> {
    let device = Device::Rocm(built()?.0);
    let random = |width: usize, dtype| Tensor::randn(0f32, 1.0, (1, 20, 2, width), &device)?.to_dtype(dtype);
    let slopes = Tensor::new(&[0.5f32, 0.25], &device)?;
    let whole = random(72, DType::F16)?;
    for (x, slopes, scale, softcap) in [
        (random(64, DType::F32)?, None, 0.1, 0.0),
        (random(264, DType::BF16)?, None, 0.1, 0.0),
        (random(64, DType::F16)?, Some(&slopes), 0.1, 0.0),
        (random(64, DType::F16)?, None, 0.1, 5.0),
        (random(64, DType::F16)?, None, -0.1, 0.0),
        // Rows that are not aligned to 16 bytes.
        (whole.narrow(3, 4, 64)?, None, 0.1, 0.0),
    ] {
        let [before, _] = launches();
        let attend = || {
            flash_attn_alibi_windowed_softcap(&x, &x, &x, slopes, scale, None, Some(0), softcap)?
                .to_dtype(DType::F32)?
                .flatten_all()?
                .to_vec1::<f32>()
        };
        choose(Choice::ComposableKernel);
        let chosen = attend();
        choose(Choice::Candle);
        let candles = attend();
        choose(Choice::Table);
        assert_eq!(chosen?, candles?);
        assert_eq!(launches()[0], before, "{:?}, {slopes:?}, {scale}, {softcap}", x.shape());
    }
    Ok(())
}

/// By default, dense calls with at least the table's number of queries use Composable Kernel, and no others do.
#[test]
#[serial]
#[ignore = "needs code objects that `cargo xtask ck` builds"]
fn the_default_choice_follows_the_table() -> Result<()> {
    let (rocm, library) = built()?;
    let device = Device::Rocm(rocm);
    for instance in library.instances().filter(|instance| !instance.varlen && instance.masked) {
        let dtype = if instance.element == Element::F16 { DType::F16 } else { DType::BF16 };
        let row = TABLE.iter().find(|row| {
            (row.arch, row.element, row.width) == (library.arch(), instance.element, instance.width)
        });
        for queries in [127, 128] {
            let x = Tensor::randn(0f32, 1.0, (1, queries, 1, instance.width), &device)?.to_dtype(dtype)?;
            let starts = Tensor::new(&[0u32, queries as u32], &device)?;
            let flat = x.squeeze(0)?;
            let [before, _] = launches();
            flash_attn(&x, &x, &x, 0.1, true)?;
            flash_attn_varlen(&flat, &flat, &flat, &starts, &starts, queries, queries, 0.1, true)?;
            device.synchronize()?;
            let expected = u64::from(row.is_some_and(|row| queries >= row.queries));
            assert_eq!(launches()[0] - before, expected, "{} with {queries} queries", instance.name());
        }
    }
    Ok(())
}

/// The backward pass reads all rows of a forward pass with statistics.
#[test]
#[serial]
#[ignore = "needs code objects that `cargo xtask ck` builds"]
fn rows_outside_of_sequences_are_zero_with_statistics() -> Result<()> {
    let device = Device::Rocm(built()?.0);
    let x = Tensor::ones((5, 2, 64), DType::F16, &device)?;
    let starts = Tensor::new(&[0u32, 3], &device)?;
    let (out, sums) = by(Choice::ComposableKernel, || {
        flash_attn_varlen_with_statistics(&x, &x, &x, None, &starts, &starts, 3, 3, 0.1, None, None, None)
    })?;
    let out = out.to_dtype(DType::F32)?.mean((1, 2))?.to_vec1::<f32>()?;
    assert_eq!(out, [1.0, 1.0, 1.0, 0.0, 0.0]);
    // Three scores of 0.1 * 64 = 6.4 each.
    let expected = 6.4 + 3f32.ln();
    for sums in sums.to_vec2::<f32>()? {
        assert!(
            sums[..3].iter().all(|sum| (sum - expected).abs() < 1e-4) && sums[3..] == [0.0, 0.0],
            "{sums:?}"
        );
    }
    Ok(())
}
