//! `cargo xtask serve`: the workers on the software GPU, asked by clients that nobody here wrote, and loaded.
mod clients;
mod language;
mod pictures;
mod worker;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{self, cargo};
use crate::setup;
use crate::software_gpu::{self, SoftwareGpu};

#[derive(clap::Args)]
pub struct Args {
    /// The architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// Use the pages in Chromium too, and put pictures of them into this folder.
    #[arg(long, value_name = "FOLDER")]
    page: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

/// Load that the worker of language models has to bear.
#[derive(Clone, Copy, clap::Args)]
pub struct Load {
    /// Streams at once.
    #[arg(long, default_value_t = 64)]
    pub streams: u64,
    /// Seconds in which streams join and leave.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
}

pub fn run(args: &Args) -> Result<()> {
    software_gpu::check(&args.arch)?;
    let features = "llm-worker/rocm-emulator,sd-worker/rocm-emulator";
    let selection = ["--package", "llm-worker", "--package", "sd-worker", "--features", features];
    let page = args.page.as_deref().map(std::path::absolute).transpose()?;
    run_on(SoftwareGpu::of(&args.arch), &args.arch, &selection, args.load, page.as_deref())
}

/// As `run`, with the code objects of `archs` (comma-separated) built in; `selection` tells cargo of packages and features.
pub fn run_on(
    gpu: SoftwareGpu,
    archs: &str,
    selection: &[&str],
    bears: Load,
    page: Option<&Path>,
) -> Result<()> {
    setup::ensure(setup::SERVE)?;
    if page.is_some() {
        setup::ensure(setup::PAGE)?;
    }
    let mut build = cargo(&["build", "--quiet", "--bins", "--examples"]);
    let programs = process::build_executables(build.args(selection).env("CANDLE_ROCM_ARCHS", archs))?;
    let program = |name: &str| -> Result<PathBuf> {
        let named = |program: &&serde_json::Value| program["target"]["name"] == name;
        let found = programs.iter().find(named).and_then(|program| program["executable"].as_str());
        found.map(PathBuf::from).with_context(|| format!("cargo built no {name}"))
    };
    let painted = pictures::serve(&program("sd-worker-rocm")?, gpu, page)?;
    let written = language::serve(&program("llm-worker-rocm")?, &program("load")?, gpu, bears, page)?;
    println!("serve: ok llm_requests={written} sd_requests={painted}");
    Ok(())
}
