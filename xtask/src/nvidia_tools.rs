//! `cargo xtask nvidia-tools`: NVIDIA's assembler and device library from PyPI, for building the kernels for NVIDIA targets.
use std::fs;

use anyhow::{Context, Result};

use crate::process::{self, cache, command};
use crate::setup;

/// Packages that `CANDLE_ROCM_ARCHS=sm_90` needs.
const KERNELS: &[&str] = &["nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88"];
/// Packages that Candle's own CUDA backend is built with besides.
const CUDA_BACKEND: &[&str] = &[
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cublas==13.1.0.3",
    "nvidia-curand==10.4.5.25",
];

#[derive(clap::Args)]
pub struct Args {
    /// Fetch also what Candle's own CUDA backend is built with (700 MB), to measure it beside ours.
    #[arg(long)]
    cuda_backend: bool,
}

pub fn run(args: &Args) -> Result<()> {
    setup::ensure(setup::NVIDIA_TOOLS)?;
    let place = cache().join("nvidia-tools");
    let packages = [KERNELS, if args.cuda_backend { CUDA_BACKEND } else { &[] }].concat();
    let wanted = packages.join("\n");
    // Written last, so a download that was cut off is done again.
    let done = place.join("complete");
    if fs::read_to_string(&done).is_ok_and(|there| packages.iter().all(|package| there.contains(package))) {
        println!("nvidia-tools: ok, there already: {}", place.display());
        return Ok(());
    }
    eprintln!("fetching NVIDIA's assembler and libraries with pip");
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let folder = place.to_string_lossy().into_owned();
    let mut pip = command("python3", &["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]);
    process::run(pip.args(["--target", &folder]).args(&packages))
        .context("cannot fetch NVIDIA's packages: is there a network or a PyPI mirror?")?;
    fs::write(&done, wanted).with_context(|| format!("cannot write {}", done.display()))?;
    println!("nvidia-tools: ok: {}", place.join("nvidia/cu13").display());
    Ok(())
}
