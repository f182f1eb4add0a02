//! Counts that `benches/operations --scale paper` made on the software GPU.
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The cases of one architecture.
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

/// One operation.
#[derive(Debug, Deserialize)]
pub struct Case {
    pub group: String,
    pub case: String,
    pub dtype: String,
    pub shape: String,
    /// The least bytes that must be read and written.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Elements of the largest operand.
    #[serde(default)]
    pub elements: u64,
    #[serde(default)]
    pub kernels: Vec<Kernel>,
}

/// All launches of one kernel, as the software GPU's profile has them.
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
    pub lds: u64,
    pub scratch: u64,
    pub flow: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Rates {
    pub quarter_rate: u64,
    pub double_precision: u64,
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

    /// A number of every kernel, added up.
    pub fn sum(&self, of: impl Fn(&Kernel) -> u64) -> u64 {
        self.kernels.iter().map(of).sum()
    }
}

impl Run {
    /// # Errors
    /// If the file is not there, or has no counts.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let run: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no run of the operations' bench", file.display()))?;
        ensure!(
            run.meta.scale == "paper",
            "{} is of scale {}: it must be paper",
            file.display(),
            run.meta.scale
        );
        Ok(run)
    }
}
