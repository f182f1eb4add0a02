//! Measures a case: batches of enqueued operations with one wait at the end, sampled by criterion.
use crate::case::{Case, Scale, Work};
use anyhow::{Context, Result, ensure};
use candle_core::{Device, Error};
use criterion::{Criterion, SamplingMode};
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of samples, the minimum that criterion accepts.
const SAMPLES: usize = 10;
const WARM_UP: Duration = Duration::from_millis(60);
/// Total duration of all samples.
const MEASUREMENT: Duration = Duration::from_millis(200);
/// Number of resamples for criterion's other estimates, which are not used; criterion warns below this number.
const RESAMPLES: usize = 1001;
/// Number of operations enqueued on an idle device to measure the host time per operation.
const ENQUEUED: usize = 16;
/// Time budget for measuring host time; at least three rounds are measured.
const HOST_TIME: Duration = Duration::from_millis(20);
const HOST_ROUNDS: std::ops::RangeInclusive<usize> = 3..=100;

/// Microseconds per operation.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Time per operation on a busy device.
    pub us: f64,
    /// Host time to enqueue the operation and drop its result; `None` on the CPU device.
    pub host_us: Option<f64>,
}

/// Measures `case` on `device`. criterion prints its own line and stores its files in `folder`.
///
/// # Errors
/// Returns the operation's first error.
pub fn measure(name: &str, device: &Device, case: &Case, scale: Scale, folder: &Path) -> Result<Figures> {
    let mut work = (case.prepare)(device)?;
    // The first calls load modules and libraries, and fill the memory cache.
    for _ in 0..2 {
        work()?;
        device.synchronize()?;
    }
    let us = match scale {
        Scale::Smoke | Scale::Paper => batch(&mut work, device, 1)?.as_secs_f64() * 1e6,
        Scale::Full => sample(name, device, case, &mut work, folder)?,
    };
    let host_us = if device.is_cpu() { None } else { Some(host_time(&mut work, device, us, scale)?) };
    Ok(Figures { us, host_us })
}

/// Returns the time until the device has completed `count` operations.
fn batch(work: &mut Work, device: &Device, count: u64) -> candle_core::Result<Duration> {
    let start = Instant::now();
    for _ in 0..count {
        work()?;
    }
    device.synchronize()?;
    Ok(start.elapsed())
}

/// Returns the median of criterion's samples.
fn sample(name: &str, device: &Device, case: &Case, work: &mut Work, folder: &Path) -> Result<f64> {
    let mut batches: Vec<(u64, Duration)> = Vec::new();
    let mut failed: Option<Error> = None;
    let mut criterion = Criterion::default()
        .without_plots()
        .output_directory(folder)
        .sample_size(SAMPLES)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASUREMENT)
        .nresamples(RESAMPLES);
    let mut group = criterion.benchmark_group(format!("{name} {}", case.group));
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function(case.label(), |bencher| {
        bencher.iter_custom(|count| {
            // After an error the time is arbitrary, since the result is discarded.
            let time = match &failed {
                None => batch(work, device, count).unwrap_or_else(|error| {
                    failed = Some(error);
                    MEASUREMENT
                }),
                Some(_) => MEASUREMENT,
            };
            batches.push((count, time));
            time
        })
    });
    group.finish();
    if let Some(error) = failed {
        return Err(error.into());
    }
    ensure!(batches.len() >= SAMPLES, "criterion took {} samples", batches.len());
    let samples = &batches[batches.len() - SAMPLES..];
    median(samples.iter().map(|(count, time)| time.as_secs_f64() * 1e6 / *count as f64))
}

/// Returns the median host time of rounds that start on an idle device and end without waiting for it.
fn host_time(work: &mut Work, device: &Device, us: f64, scale: Scale) -> Result<f64> {
    // Long operations are enqueued one at a time, so that a full queue does not block the host.
    let enqueued = if us < 100. { ENQUEUED } else { 1 };
    let rounds = match scale {
        Scale::Smoke | Scale::Paper => *HOST_ROUNDS.start(),
        Scale::Full => {
            let fitting = HOST_TIME.as_secs_f64() * 1e6 / (us * enqueued as f64);
            (fitting as usize).clamp(*HOST_ROUNDS.start(), *HOST_ROUNDS.end())
        }
    };
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..enqueued {
            work()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / enqueued as f64);
    }
    device.synchronize()?;
    median(times.into_iter())
}

fn median(values: impl Iterator<Item = f64>) -> Result<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (values.get((values.len().max(1) - 1) / 2), values.get(values.len() / 2))
    else {
        anyhow::bail!("nothing was measured")
    };
    Some((low + high) / 2.).filter(|median| median.is_finite()).context("a measured time is not finite")
}
