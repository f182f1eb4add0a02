//! Benchmark runs: the JSON format of `benches/operations`, and the comparison of several runs.
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Run {
    pub meta: Meta,
    pub results: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Meta {
    /// `rocm`, `cuda`, `cpu` or `torch`.
    pub device: String,
    pub driver: String,
    pub gpu: String,
    pub arch: String,
    /// Note that must accompany every figure.
    pub note: Option<String>,
    pub date: String,
    #[serde(default)]
    pub versions: Map<String, Value>,
    pub scale: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    pub group: String,
    pub case: String,
    pub dtype: String,
    pub shape: String,
    /// Microseconds per operation.
    pub us: f64,
    /// Host time per operation in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<u64>,
    /// Times of alternative implementations, such as `sdpa_us`.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Throughput in GB/s or TFLOP/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    GigaBytes(f64),
    TeraFlops(f64),
}

impl Row {
    /// Returns case, dtype and shape, separated by spaces.
    pub fn label(&self) -> String {
        format!("{} {} {}", self.case, self.dtype, self.shape)
    }

    pub fn rate(&self) -> Option<Rate> {
        match (self.flops, self.bytes) {
            (Some(flops), _) => Some(Rate::TeraFlops(flops as f64 / self.us / 1e6)),
            (None, Some(bytes)) => Some(Rate::GigaBytes(bytes as f64 / self.us / 1e3)),
            (None, None) => None,
        }
    }
}

impl Run {
    /// # Errors
    /// If the file cannot be read or is not a benchmark run, or if a time is not positive.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let run: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a benchmark run", file.display()))?;
        if let Some(row) = run.results.iter().find(|row| !(row.us.is_finite() && row.us > 0.)) {
            bail!("{}: invalid time of {}: {} us", file.display(), row.label(), row.us);
        }
        Ok(run)
    }

    pub fn by_label(&self) -> HashMap<String, &Row> {
        self.results.iter().map(|row| (row.label(), row)).collect()
    }

    /// Returns the name of the file in which the run is stored.
    pub fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let gpu: String = self.meta.gpu.chars().map(plain).collect();
        let gpu: Vec<&str> = gpu.split('-').filter(|part| !part.is_empty()).collect();
        format!("{}-{}-{}.json", self.meta.date, self.meta.device, gpu.join("-"))
    }

    /// Serializes the run as JSON with one line per row, so that files stay small and diffs are readable.
    ///
    /// # Errors
    /// If serialization fails, which is not expected for these types.
    pub fn to_json(&self) -> Result<String> {
        let rows: Vec<String> = self.results.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        let meta = serde_json::to_string(&self.meta)?;
        Ok(format!("{{\"meta\": {meta},\n\"results\": [\n{}\n]}}\n", rows.join(",\n")))
    }
}

/// Runs of the same cases on one machine.
pub struct Merged {
    pub ours: Run,
    pub cuda: Option<Run>,
    pub torch: Option<Run>,
}

/// Case of our device, with the same case of the other devices.
pub struct ComparedCase<'a> {
    pub ours: &'a Row,
    pub cuda: Option<&'a Row>,
    pub torch: Option<&'a Row>,
}

impl ComparedCase<'_> {
    /// Returns our time divided by that of Candle's CUDA backend.
    pub fn to_cuda(&self) -> Option<f64> {
        self.cuda.map(|cuda| self.ours.us / cuda.us)
    }

    /// Returns our time divided by PyTorch's.
    pub fn to_torch(&self) -> Option<f64> {
        self.torch.map(|torch| self.ours.us / torch.us)
    }
}

impl Merged {
    /// # Errors
    /// If the run on rocm is missing, or runs have the same device, different GPUs or reduced sizes.
    pub fn of(runs: Vec<Run>) -> Result<Self> {
        let (mut ours, mut cuda, mut torch) = (None, None, None);
        for run in runs {
            let device = run.meta.device.clone();
            ensure!(
                run.meta.scale == "full",
                "the run on {device} has scale {}: run the benchmark with --scale full",
                run.meta.scale
            );
            let place = match device.as_str() {
                "rocm" => &mut ours,
                "cuda" => &mut cuda,
                "torch" => &mut torch,
                _ => bail!("unsupported device {device}: a report compares rocm, cuda and torch"),
            };
            ensure!(place.replace(run).is_none(), "two runs are on {device}: pass only one");
        }
        let ours: Run =
            ours.context("no run on device rocm was given, which the others are compared with")?;
        for other in [&cuda, &torch].into_iter().flatten() {
            let (gpu, device) = (&other.meta.gpu, &other.meta.device);
            ensure!(
                *gpu == ours.meta.gpu,
                "{device} ran on {gpu}, but rocm on {}: all runs must be on the same GPU",
                ours.meta.gpu
            );
        }
        Ok(Self { ours, cuda, torch })
    }

    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        [Some(&self.ours), self.cuda.as_ref(), self.torch.as_ref()].into_iter().flatten()
    }

    /// Returns the notes that must accompany every figure, without repetitions.
    pub fn note(&self) -> Option<String> {
        let mut notes: Vec<&str> = self.runs().filter_map(|run| run.meta.note.as_deref()).collect();
        notes.dedup();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Returns every case of our run, in its order, with the same case of the other runs.
    pub fn cases(&self) -> Vec<ComparedCase<'_>> {
        let [cuda, torch] =
            [&self.cuda, &self.torch].map(|run| run.as_ref().map(Run::by_label).unwrap_or_default());
        let join = |ours| {
            let label = Row::label(ours);
            ComparedCase { ours, cuda: cuda.get(&label).copied(), torch: torch.get(&label).copied() }
        };
        self.ours.results.iter().map(join).collect()
    }
}

/// Returns the geometric mean and the number of values; `None` if there are none.
pub fn geometric_mean(ratios: impl IntoIterator<Item = f64>) -> Option<(f64, usize)> {
    let (sum, count) = ratios.into_iter().fold((0., 0), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
    (count > 0).then(|| ((sum / count as f64).exp(), count))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// Group, case, time in us, bytes and FLOPs.
    type Figures<'a> = (&'a str, &'a str, f64, Option<u64>, Option<u64>);

    /// Returns a run whose cases all have dtype f32 and shape 4x4.
    pub fn run_of(device: &str, cases: &[Figures<'_>]) -> Run {
        let rows: Vec<Value> = cases
            .iter()
            .map(|(group, case, us, bytes, flops)| {
                json!({"group": group, "case": case, "dtype": "f32", "shape": "4x4", "us": us, "bytes": bytes,
                       "flops": flops, "host_us": null})
            })
            .collect();
        let meta = json!({"device": device, "driver": "nvidia", "gpu": "NVIDIA H200", "arch": "sm_90",
                          "note": "no AMD figure", "date": "2026-11-22", "versions": {}, "scale": "full"});
        serde_json::from_value(json!({"meta": meta, "results": rows})).unwrap()
    }

    #[test]
    fn the_geometric_mean_of_inverse_ratios_is_one() {
        let (mean, count) = geometric_mean([2., 0.5, 4., 0.25]).unwrap();
        assert!((mean - 1.).abs() < 1e-12);
        assert_eq!(count, 4);
        assert!((geometric_mean([1., 8.]).unwrap().0 - 8f64.sqrt()).abs() < 1e-12);
        assert_eq!(geometric_mean([]), None);
    }

    #[test]
    fn runs_join_by_case_dtype_and_shape() {
        let ours = run_of("rocm", &[("g", "add", 6., None, None), ("g", "mine", 1., None, None)]);
        let cuda = run_of("cuda", &[("g", "add", 12., None, None)]);
        let mut torch = run_of("torch", &[("g", "add", 3., None, None), ("g", "theirs", 1., None, None)]);
        let merged = Merged::of(vec![torch.clone(), ours.clone(), cuda]).unwrap();
        let cases = merged.cases();
        let ratios: Vec<_> = cases.iter().map(|j| (j.to_cuda(), j.to_torch())).collect();
        assert_eq!(ratios, [(Some(0.5), Some(2.)), (None, None)]);
        assert_eq!(merged.note().as_deref(), Some("no AMD figure"));

        torch.results[0].shape = "8x8".to_string();
        let merged = Merged::of(vec![torch, ours]).unwrap();
        assert_eq!(merged.cases()[0].to_torch(), None);
    }

    #[test]
    fn incomparable_runs_are_rejected() {
        let ours = run_of("rocm", &[("g", "add", 6., None, None)]);
        let message = |runs: Vec<Run>| Merged::of(runs).err().unwrap().to_string();
        assert!(message(vec![run_of("cuda", &[])]).contains("no run on device rocm"));
        assert!(message(vec![ours.clone(), ours.clone()]).contains("two runs are on rocm"));
        let mut other = run_of("torch", &[]);
        other.meta.gpu = "NVIDIA H100".to_string();
        assert!(message(vec![ours.clone(), other]).contains("same GPU"));
        let mut smoke = ours;
        smoke.meta.scale = "smoke".to_string();
        assert!(message(vec![smoke]).contains("scale smoke"));
    }

    #[test]
    fn rates_use_flops_if_present() {
        let run =
            run_of("rocm", &[("g", "a", 2., Some(4_000), None), ("g", "b", 2., Some(1), Some(6_000_000))]);
        assert_eq!(run.results[0].rate(), Some(Rate::GigaBytes(2.)));
        assert_eq!(run.results[1].rate(), Some(Rate::TeraFlops(3.)));
    }

    #[test]
    fn a_stored_run_is_read_back_unchanged() {
        let mut run = run_of("torch", &[("g", "add", 6.5, Some(7), None)]);
        run.results[0].others.insert("sdpa_us".to_string(), json!(1.5));
        assert_eq!(run.file_name(), "2026-11-22-torch-nvidia-h200.json");
        let again: Run = serde_json::from_str(&run.to_json().unwrap()).unwrap();
        assert_eq!(again.results[0].others["sdpa_us"], json!(1.5));
        assert_eq!((again.results[0].us, again.results[0].bytes), (6.5, Some(7)));
    }
}
