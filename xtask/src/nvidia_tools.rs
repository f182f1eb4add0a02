//! `cargo xtask nvidia-tools`: downloads NVIDIA's assembler and device library, which kernels for NVIDIA targets need.
use std::fs;

use anyhow::{Context, Result};

use crate::process::{self, cache, command};
use crate::setup;

/// PyPI packages that a build with `CANDLE_ROCM_ARCHS=sm_90` needs.
const KERNELS: &[&str] = &["nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88"];
/// PyPI packages that Candle's own CUDA backend needs in addition.
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
    /// Also download the packages that Candle's own CUDA backend needs (700 MB), to benchmark it.
    #[arg(long)]
    cuda_backend: bool,
}

pub fn run(args: &Args) -> Result<()> {
    setup::ensure(setup::NVIDIA_TOOLS)?;
    let folder_path = cache().join("nvidia-tools");
    let packages = [KERNELS, if args.cuda_backend { CUDA_BACKEND } else { &[] }].concat();
    let wanted = packages.join("\n");
    // Written last, so that an interrupted download is repeated.
    let done = folder_path.join("complete");
    if fs::read_to_string(&done).is_ok_and(|there| packages.iter().all(|package| there.contains(package))) {
        println!("nvidia-tools: ok, up to date: {}", folder_path.display());
        return Ok(());
    }
    eprintln!("fetching NVIDIA's assembler and libraries with pip");
    fs::create_dir_all(&folder_path).with_context(|| format!("cannot create {}", folder_path.display()))?;
    let folder = folder_path.to_string_lossy().into_owned();
    let mut pip = command("python3", &["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]);
    process::run(pip.args(["--target", &folder]).args(&packages))
        .context("cannot fetch NVIDIA's packages: check the network or the PyPI mirror")?;
    fs::write(&done, wanted).with_context(|| format!("cannot write {}", done.display()))?;
    println!("nvidia-tools: ok: {}", folder_path.join("nvidia/cu13").display());
    Ok(())
}
