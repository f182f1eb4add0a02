//! Times a case: batches of enqueued operations with one wait at their end, sampled by criterion.
use crate::case::{Case, Scale, Work};
use anyhow::{Context, Result, ensure};
use candle_core::{Device, Error};
use criterion::{Criterion, SamplingMode};
use std::path::Path;
use std::time::{Duration, Instant};

/// criterion takes no fewer.
const SAMPLES: usize = 10;
const WARM_UP: Duration = Duration::from_millis(60);
/// Of all samples together, so that a batch takes a tenth of it.
const MEASUREMENT: Duration = Duration::from_millis(200);
/// For criterion's estimates beside the median, which is all that is kept; it warns of fewer.
const RESAMPLES: usize = 1001;
/// Operations enqueued one after another onto an idle device, whose host time is divided by their number.
const ENQUEUED: usize = 16;
/// The most time that finding the host time may take, but for three rounds.
const HOST_TIME: Duration = Duration::from_millis(20);
const HOST_ROUNDS: std::ops::RangeInclusive<usize> = 3..=100;

/// Microseconds for each operation.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// From start to end, on a device that is kept busy.
    pub us: f64,
    /// Of the host, until the operation is enqueued, its result dropped again; none where the host computes.
    pub host_us: Option<f64>,
}

/// Measures `case` on `device`. criterion prints its own line, and keeps its files in `folder`.
///
/// # Errors
/// The operation's first error.
pub fn measure(name: &str, device: &Device, case: &Case, scale: Scale, folder: &Path) -> Result<Figures> {
    let mut work = (case.prepare)(device)?;
    // The first calls load modules and libraries, and fill the allocator's lists.
    for _ in 0..2 {
        work()?;
        device.synchronize()?;
    }
    let us = match scale {
        Scale::Smoke | Scale::Paper => batch(&mut work, device, 1)?.as_secs_f64() * 1e6,
        Scale::Full => sampled(name, device, case, &mut work, folder)?,
    };
    let host_us = if device.is_cpu() { None } else { Some(host_time(&mut work, device, us, scale)?) };
    Ok(Figures { us, host_us })
}

/// The time of `count` operations until the device has done them.
fn batch(work: &mut Work, device: &Device, count: u64) -> candle_core::Result<Duration> {
    let start = Instant::now();
    for _ in 0..count {
        work()?;
    }
    device.synchronize()?;
    Ok(start.elapsed())
}

/// The median of criterion's samples.
fn sampled(name: &str, device: &Device, case: &Case, work: &mut Work, folder: &Path) -> Result<f64> {
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
            // After an error any time will do: it is not kept.
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

/// The median of rounds that start on an idle device and end without waiting for it.
fn host_time(work: &mut Work, device: &Device, us: f64, scale: Scale) -> Result<f64> {
    // Long operations are enqueued alone: what lies in front of them must not make the host wait.
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
    Some((low + high) / 2.).filter(|median| median.is_finite()).context("a time is no number")
}
