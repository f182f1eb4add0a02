//! Runs of the benches: the JSON that `benches/operations` writes, and several of them side by side.
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One run on one device.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Run {
    pub meta: Meta,
    pub results: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Meta {
    /// rocm, cuda, cpu or torch.
    pub device: String,
    pub driver: String,
    pub gpu: String,
    pub arch: String,
    /// Note that must stand beside every figure.
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
    /// Microseconds for each operation.
    pub us: f64,
    /// Microseconds of the host for each operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<u64>,
    /// Other ways to the same result, like `sdpa_us`.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Bytes or floating-point operations in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    GigaBytes(f64),
    TeraFlops(f64),
}

impl Row {
    /// Returns the name of the case.
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
    /// If the file is not there, or is no run.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let run: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no run of a bench", file.display()))?;
        if let Some(row) = run.results.iter().find(|row| !(row.us.is_finite() && row.us > 0.)) {
            bail!("{}: {} took {} us", file.display(), row.label(), row.us);
        }
        Ok(run)
    }

    pub fn by_label(&self) -> HashMap<String, &Row> {
        self.results.iter().map(|row| (row.label(), row)).collect()
    }

    /// The name of the file that keeps it.
    pub fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let gpu: String = self.meta.gpu.chars().map(plain).collect();
        let gpu: Vec<&str> = gpu.split('-').filter(|part| !part.is_empty()).collect();
        format!("{}-{}-{}.json", self.meta.date, self.meta.device, gpu.join("-"))
    }

    /// As JSON with a line for each row, so that files stay small and differences are readable.
    ///
    /// # Errors
    /// None that are known: everything in it has a form in JSON.
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

/// A case of ours, and what it is measured against.
pub struct Joined<'a> {
    pub ours: &'a Row,
    pub cuda: Option<&'a Row>,
    pub torch: Option<&'a Row>,
}

impl Joined<'_> {
    /// Our time divided by that of Candle's CUDA backend.
    pub fn to_cuda(&self) -> Option<f64> {
        self.cuda.map(|cuda| self.ours.us / cuda.us)
    }

    /// Our time divided by PyTorch's.
    pub fn to_torch(&self) -> Option<f64> {
        self.torch.map(|torch| self.ours.us / torch.us)
    }
}

impl Merged {
    /// # Errors
    /// If there is no run of ours, two of one device, one of another GPU, or one of reduced sizes.
    pub fn of(runs: Vec<Run>) -> Result<Self> {
        let (mut ours, mut cuda, mut torch) = (None, None, None);
        for run in runs {
            let device = run.meta.device.clone();
            ensure!(
                run.meta.scale == "full",
                "the run of {device} is of scale {}: run it in full",
                run.meta.scale
            );
            let place = match device.as_str() {
                "rocm" => &mut ours,
                "cuda" => &mut cuda,
                "torch" => &mut torch,
                _ => bail!("a report has rocm, cuda and torch, no {device}"),
            };
            ensure!(place.replace(run).is_none(), "two runs are of {device}: leave one out");
        }
        let ours: Run = ours.context("no run is of device rocm, which the others are compared with")?;
        for other in [&cuda, &torch].into_iter().flatten() {
            let (gpu, device) = (&other.meta.gpu, &other.meta.device);
            ensure!(
                *gpu == ours.meta.gpu,
                "{device} ran on {gpu}, and rocm on {}: only one GPU can be compared",
                ours.meta.gpu
            );
        }
        Ok(Self { ours, cuda, torch })
    }

    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        [Some(&self.ours), self.cuda.as_ref(), self.torch.as_ref()].into_iter().flatten()
    }

    /// Returns the notes that must stand beside every figure, each once.
    pub fn note(&self) -> Option<String> {
        let mut notes: Vec<&str> = self.runs().filter_map(|run| run.meta.note.as_deref()).collect();
        notes.dedup();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Every case of ours, in its order.
    pub fn joined(&self) -> Vec<Joined<'_>> {
        let [cuda, torch] =
            [&self.cuda, &self.torch].map(|run| run.as_ref().map(Run::by_label).unwrap_or_default());
        let join = |ours| {
            let label = Row::label(ours);
            Joined { ours, cuda: cuda.get(&label).copied(), torch: torch.get(&label).copied() }
        };
        self.ours.results.iter().map(join).collect()
    }
}

/// The geometric mean, and of how many.
pub fn geometric_mean(ratios: impl IntoIterator<Item = f64>) -> Option<(f64, usize)> {
    let (sum, count) = ratios.into_iter().fold((0., 0), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
    (count > 0).then(|| ((sum / count as f64).exp(), count))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// Group, case, time, bytes and operations.
    type Figures<'a> = (&'a str, &'a str, f64, Option<u64>, Option<u64>);

    /// A run of cases that are all of f32 and shape 4x4.
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
    fn a_geometric_mean_weighs_twice_as_slow_like_twice_as_fast() {
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
        let joined = merged.joined();
        let ratios: Vec<_> = joined.iter().map(|j| (j.to_cuda(), j.to_torch())).collect();
        assert_eq!(ratios, [(Some(0.5), Some(2.)), (None, None)]);
        assert_eq!(merged.note().as_deref(), Some("no AMD figure"));

        torch.results[0].shape = "8x8".to_string();
        let merged = Merged::of(vec![torch, ours]).unwrap();
        assert_eq!(merged.joined()[0].to_torch(), None);
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let ours = run_of("rocm", &[("g", "add", 6., None, None)]);
        let message = |runs: Vec<Run>| Merged::of(runs).err().unwrap().to_string();
        assert!(message(vec![run_of("cuda", &[])]).contains("no run is of device rocm"));
        assert!(message(vec![ours.clone(), ours.clone()]).contains("two runs are of rocm"));
        let mut other = run_of("torch", &[]);
        other.meta.gpu = "NVIDIA H100".to_string();
        assert!(message(vec![ours.clone(), other]).contains("only one GPU"));
        let mut smoke = ours;
        smoke.meta.scale = "smoke".to_string();
        assert!(message(vec![smoke]).contains("scale smoke"));
    }

    #[test]
    fn rates_are_of_flops_where_there_are_any() {
        let run =
            run_of("rocm", &[("g", "a", 2., Some(4_000), None), ("g", "b", 2., Some(1), Some(6_000_000))]);
        assert_eq!(run.results[0].rate(), Some(Rate::GigaBytes(2.)));
        assert_eq!(run.results[1].rate(), Some(Rate::TeraFlops(3.)));
    }

    #[test]
    fn a_kept_run_reads_as_it_was_written() {
        let mut run = run_of("torch", &[("g", "add", 6.5, Some(7), None)]);
        run.results[0].others.insert("sdpa_us".to_string(), json!(1.5));
        assert_eq!(run.file_name(), "2026-11-22-torch-nvidia-h200.json");
        let again: Run = serde_json::from_str(&run.to_json().unwrap()).unwrap();
        assert_eq!(again.results[0].others["sdpa_us"], json!(1.5));
        assert_eq!((again.results[0].us, again.results[0].bytes), (6.5, Some(7)));
    }
}
