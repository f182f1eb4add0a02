//! Reads the counts that `benches/operations --scale paper` writes on the software GPU.
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::model::{LINE, Node};

/// Accesses of a wave to global memory between two waits for memory: an assumption, since waits are not counted.
const ACCESSES_PER_WAIT: f64 = 8.;

#[derive(Debug, Deserialize)]
pub struct Run {
    pub meta: Meta,
    #[serde(rename = "results")]
    pub cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
pub struct Meta {
    pub arch: String,
    pub date: String,
    pub scale: String,
}

#[derive(Debug, Deserialize)]
pub struct Case {
    pub case: String,
    pub dtype: String,
    pub shape: String,
    /// Minimum number of bytes that must be read and written.
    #[serde(default)]
    pub bytes: Option<u64>,
    #[serde(default)]
    pub kernels: Vec<Kernel>,
}

/// Counts of all launches of one kernel, in the format of the software GPU's profile.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Kernel {
    pub name: String,
    pub resources: Resources,
    pub launches: u64,
    pub workgroups: u64,
    pub waves: u64,
    pub instructions: Instructions,
    pub rates: Rates,
    pub coalescing: Coalescing,
    pub lds: Lds,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Resources {
    pub wave_size: u64,
    pub lds_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Instructions {
    pub vector: u64,
    pub scalar: u64,
    pub scalar_memory: u64,
    pub global_memory: u64,
    pub scratch: u64,
    pub flow: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Rates {
    pub quarter_rate: u64,
    pub double_precision: u64,
    #[serde(default)]
    pub products: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Coalescing {
    pub accesses: u64,
    pub bytes: u64,
    pub lines_128: u64,
    pub lines_loaded: u64,
    pub lines_stored: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Lds {
    pub steps: u64,
    pub bank_conflicts: u64,
}

impl Case {
    pub fn label(&self) -> String {
        format!("{} {} {}", self.case, self.dtype, self.shape)
    }
}

impl Kernel {
    /// Returns the mean of the kernel's launches; `occupancy` is the maximum number of waves per vector unit that its
    /// registers allow.
    pub fn node(&self, occupancy: f64) -> Node {
        let each = |sum: u64| sum as f64 / self.launches.max(1) as f64;
        let Self { instructions, rates, coalescing, .. } = self;
        let per_wave = coalescing.accesses as f64 / self.waves.max(1) as f64;
        Node {
            wave_size: self.resources.wave_size as f64,
            workgroups: each(self.workgroups),
            waves: each(self.waves),
            occupancy,
            lds_bytes: self.resources.lds_bytes as f64,
            footprint: LINE * each(coalescing.lines_loaded + coalescing.lines_stored),
            accessed: LINE * each(coalescing.lines_128),
            requested: each(coalescing.bytes),
            accesses: each(instructions.global_memory + instructions.scratch),
            vector: each(instructions.vector - rates.products.min(instructions.vector)),
            quarter_rate: each(rates.quarter_rate),
            double_precision: each(rates.double_precision),
            products: each(rates.products),
            scalar: each(instructions.scalar + instructions.scalar_memory),
            branches: each(instructions.flow),
            lds_steps: each(self.lds.steps + self.lds.bank_conflicts),
            waits: (per_wave / ACCESSES_PER_WAIT).ceil(),
        }
    }
}

impl Run {
    /// # Errors
    /// If the file cannot be read, or is not a run of scale paper.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let run: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a run of the operations benchmark", file.display()))?;
        ensure!(
            run.meta.scale == "paper",
            "{} is a run of scale {}, expected paper",
            file.display(),
            run.meta.scale
        );
        Ok(run)
    }

    /// Returns the processor of the run, without the features after a colon.
    pub fn processor(&self) -> &str {
        self.meta.arch.split(':').next().unwrap_or_default()
    }
}
