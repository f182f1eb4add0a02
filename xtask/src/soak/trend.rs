//! Growth of each figure over time, as a robust slope: single peaks do not change it.
use super::samples::{FIGURES, LATENCY, MEMORY, Sample};

/// Share of the samples at the beginning that is left out, because caches and memory pools are still growing.
const WARM_UP: f64 = 0.25;
/// Minimum number of samples for a slope.
const MIN_SAMPLES: usize = 8;

/// Growth of one figure of one process.
#[derive(Debug)]
pub struct Growth {
    pub process: &'static str,
    pub figure: &'static str,
    /// Slope, in the figure's unit per hour; the smaller one of the two halves of the run, so that a cache that is filled
    /// late in the run is not taken for a leak, which grows in both.
    pub per_hour: f64,
    /// Largest slope that is accepted.
    pub limit: f64,
}

/// Returns the growth of each figure of each process.
pub fn growths(samples: &[Sample]) -> Vec<Growth> {
    let mut processes: Vec<&'static str> = samples.iter().map(|sample| sample.process).collect();
    processes.sort_unstable();
    processes.dedup();
    let pairs = processes.into_iter().flat_map(|process| FIGURES.map(|figure| (process, figure)));
    pairs.filter_map(|(process, figure)| growth(samples, process, figure)).collect()
}

fn growth(samples: &[Sample], process: &'static str, figure: &'static str) -> Option<Growth> {
    let of_process = samples.iter().filter(|sample| sample.process == process);
    let all: Vec<(f64, f64)> =
        of_process.filter_map(|sample| Some((sample.minute / 60.0, *sample.figures.get(figure)?))).collect();
    let points = &all[(all.len() as f64 * WARM_UP) as usize..];
    if points.len() < MIN_SAMPLES {
        return None;
    }
    let hours = points[points.len() - 1].0 - points[0].0;
    let middle = median(points.iter().map(|(_, value)| *value).collect());
    let (early, late) = points.split_at(points.len() / 2);
    let per_hour = slope(early).min(slope(late));
    Some(Growth { process, figure, per_hour, limit: allowed(figure, middle) / hours })
}

/// Returns the accepted growth over the whole run: less than one driver object, thread or file, 2% of memory, half of a
/// latency, which other programs on the machine also change.
fn allowed(figure: &str, middle: f64) -> f64 {
    match figure {
        LATENCY => middle / 2.0,
        MEMORY => (middle * 0.02).max(4.0),
        _ => 0.9,
    }
}

/// Returns the median of the slopes of all pairs of points (Theil 1950, Sen 1968).
fn slope(points: &[(f64, f64)]) -> f64 {
    let pairs = points.iter().enumerate().flat_map(|(at, a)| points[at + 1..].iter().map(move |b| (a, b)));
    median(pairs.filter(|(a, b)| b.0 > a.0).map(|(a, b)| (b.1 - a.1) / (b.0 - a.0)).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::samples::{OBJECTS, THREADS};
    use super::*;

    fn series(figure: &'static str, value: impl Fn(usize) -> f64) -> Vec<Sample> {
        let sample = |minute: usize| Sample {
            minute: minute as f64,
            turn: "training",
            process: "trainer",
            figures: BTreeMap::from([(figure, value(minute))]),
        };
        (0..120).map(sample).collect()
    }

    fn grows(samples: &[Sample]) -> bool {
        let [growth] = growths(samples).try_into().unwrap();
        growth.per_hour > growth.limit
    }

    #[test]
    fn a_steady_rise_is_found_and_peaks_are_not_one() {
        assert!(grows(&series(MEMORY, |minute| 500.0 + minute as f64 * 0.2)));
        assert!(!grows(&series(MEMORY, |minute| 500.0 + if minute % 10 == 0 { 300.0 } else { 0.0 })));
        assert!(!grows(&series(MEMORY, |minute| 500.0 + (minute.min(25)) as f64)), "warm-up");
    }

    #[test]
    fn one_thread_in_the_run_is_found() {
        assert!(grows(&series(THREADS, |minute| 8.0 + minute as f64 / 60.0)));
        assert!(!grows(&series(THREADS, |minute| 8.0 + f64::from(u8::from(minute % 2 == 0)))));
    }

    #[test]
    fn one_step_is_a_cache_and_steps_in_both_halves_are_a_leak() {
        let steps = |at: &'static [usize]| {
            series(OBJECTS, |minute| at.iter().filter(|at| minute > **at).count() as f64)
        };
        assert!(!grows(&steps(&[70, 70])));
        assert!(grows(&steps(&[40, 50, 60, 80, 90, 100])));
    }

    #[test]
    fn few_samples_have_no_slope() {
        assert!(growths(&series(MEMORY, |_| 1.0)[..6]).is_empty());
    }
}
