//! Figures of a process, read from /proc and from a worker's `/metrics`.
use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// Resident memory in MiB.
pub const MEMORY: &str = "rss_mib";
/// Device memory that a worker holds, in MiB.
pub const DEVICE_MEMORY: &str = "device_mib";
/// Objects of the driver that were created and not destroyed.
pub const OBJECTS: &str = "driver_objects";
pub const THREADS: &str = "threads";
/// Open file descriptors.
pub const FILES: &str = "file_descriptors";
/// Mean time of a step since the last sample, in milliseconds.
pub const LATENCY: &str = "step_ms";
/// Columns of the CSV file, after minute, turn and process.
pub const FIGURES: [&str; 6] = [MEMORY, DEVICE_MEMORY, OBJECTS, THREADS, FILES, LATENCY];

/// The figures of one process at one time; those that it does not have are missing.
#[derive(Clone, Debug)]
pub struct Sample {
    pub minute: f64,
    /// Name of the process whose turn it is.
    pub turn: &'static str,
    pub process: &'static str,
    pub figures: BTreeMap<&'static str, f64>,
}

impl Sample {
    /// First line of the CSV file.
    pub fn header() -> String {
        format!("minute,turn,process,{}", FIGURES.join(","))
    }

    pub fn line(&self) -> String {
        let figure =
            |name: &&str| self.figures.get(*name).map_or(String::new(), |value| format!("{value:.3}"));
        let figures: Vec<String> = FIGURES.iter().map(figure).collect();
        format!("{:.1},{},{},{}", self.minute, self.turn, self.process, figures.join(","))
    }
}

/// Reads memory, threads and file descriptors of a process from /proc.
///
/// # Errors
/// If the process has ended.
pub fn of_process(id: u32) -> Result<BTreeMap<&'static str, f64>> {
    let path = format!("/proc/{id}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("{path}: the process ended"))?;
    let number = |name: &str| -> Option<f64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
    };
    let files = fs::read_dir(format!("/proc/{id}/fd")).with_context(|| format!("/proc/{id}/fd"))?.count();
    let memory = number("VmRSS:").with_context(|| format!("{path} has no VmRSS"))? / 1024.0;
    let threads = number("Threads:").with_context(|| format!("{path} has no Threads"))?;
    Ok(BTreeMap::from([(MEMORY, memory), (THREADS, threads), (FILES, files as f64)]))
}

/// Names of a worker's metrics.
#[derive(Clone, Copy)]
pub struct MetricNames {
    pub device_memory: &'static str,
    /// Sum of seconds, and their count.
    pub latency: (&'static str, &'static str),
}

/// Reads the figures that a worker's `/metrics` adds; `totals` keeps sum and count of the last reading.
pub fn of_metrics(text: &str, names: MetricNames, totals: &mut (f64, f64)) -> BTreeMap<&'static str, f64> {
    let mut figures = BTreeMap::new();
    figures
        .extend(metric(text, names.device_memory).map(|bytes| (DEVICE_MEMORY, bytes / f64::from(1 << 20))));
    figures.extend(metric(text, "rocm_driver_objects").map(|count| (OBJECTS, count)));
    if let (Some(sum), Some(count)) = (metric(text, names.latency.0), metric(text, names.latency.1)) {
        let (before_sum, before_count) = std::mem::replace(totals, (sum, count));
        if count > before_count {
            figures.insert(LATENCY, 1e3 * (sum - before_sum) / (count - before_count));
        }
    }
    figures
}

/// Sums a metric over its labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    values.reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_process_are_read() {
        let figures = of_process(std::process::id()).unwrap();
        assert!(figures[MEMORY] > 0.1 && figures[THREADS] >= 1.0 && figures[FILES] >= 3.0, "{figures:?}");
        assert!(of_process(u32::MAX).is_err());
    }

    #[test]
    fn metrics_are_summed_over_labels_and_latency_is_that_of_the_last_minute() {
        let names = MetricNames { device_memory: "vram_bytes", latency: ("step_sum", "step_count") };
        let text = "# TYPE vram_bytes gauge\nvram_bytes{model=\"a\"} 1048576\nvram_bytes{model=\"b\"} 1048576\n\
                    vram_bytes_other 7\nstep_sum{model=\"a\"} 3\nstep_count{model=\"a\"} 2\n";
        let mut totals = (1.0, 1.0);
        let figures = of_metrics(text, names, &mut totals);
        assert_eq!(figures, BTreeMap::from([(DEVICE_MEMORY, 2.0), (LATENCY, 2000.0)]));
        assert_eq!(totals, (3.0, 2.0));
        assert!(!of_metrics(text, names, &mut totals).contains_key(LATENCY), "no step since");
    }

    #[test]
    fn a_missing_figure_is_an_empty_field() {
        let figures = BTreeMap::from([(MEMORY, 1.5), (FILES, 7.0)]);
        let sample = Sample { minute: 2.0, turn: "training", process: "trainer", figures };
        assert_eq!(sample.line(), "2.0,training,trainer,1.500,,,,7.000,");
        assert_eq!(sample.line().matches(',').count(), Sample::header().matches(',').count());
    }
}
