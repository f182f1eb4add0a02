//! `cargo xtask serve`: tests the workers on the software GPU with third-party clients and under load.
mod clients;
mod fleet;
mod images;
mod language;
mod libraries;
mod worker;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::{self, cargo};
use crate::setup;
use crate::software_gpu::{self, SoftwareGpu};
pub use language::{start as start_tiny_llama, start_with as start_tiny_llama_with};
pub use worker::Worker;

#[derive(clap::Args)]
pub struct Args {
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// Also test the web pages in Chromium and store screenshots in this folder.
    #[arg(long, value_name = "FOLDER")]
    page: Option<PathBuf>,
    /// Test only the LLM worker, with the client libraries that applications use; their packages take 1.8 GB.
    #[arg(long, conflicts_with_all = ["page", "lm_eval"])]
    clients: bool,
    /// Test only LLM workers, of which this many run behind SGLang's gateway; its packages take 120 MB.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["page", "lm_eval", "clients"])]
    workers: Option<usize>,
    #[command(flatten)]
    load: Load,
}

/// Load on the LLM worker, and further clients of it.
#[derive(Clone, Copy, clap::Args)]
pub struct Load {
    /// Number of concurrent streams.
    #[arg(long, default_value_t = 64)]
    pub streams: u64,
    /// Duration in seconds during which streams start and end.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Also run a task of lm-evaluation-harness, whose packages take 760 MB.
    #[arg(long)]
    pub lm_eval: bool,
}

pub fn run(args: &Args) -> Result<()> {
    software_gpu::check_arch(&args.arch)?;
    let features = "llm-worker/rocm-emulator,sd-worker/rocm-emulator";
    let selection = ["--package", "llm-worker", "--package", "sd-worker", "--features", features];
    let gpu = SoftwareGpu::new(&args.arch);
    if let Some(count) = args.workers {
        setup::ensure(setup::SERVE)?;
        return fleet::test(&build(&args.arch, &selection)?("llm-worker-rocm")?, gpu, count);
    }
    if args.clients {
        setup::ensure(setup::SERVE)?;
        setup::ensure(setup::CLIENTS)?;
        let program = build(&args.arch, &selection)?;
        return language::test_libraries(&program("llm-worker-rocm")?, gpu);
    }
    let page = args.page.as_deref().map(std::path::absolute).transpose()?;
    run_on(gpu, &args.arch, &selection, args.load, page.as_deref())
}

/// Like [`run`], with programs that contain code objects for `archs`. `selection` passes packages and features to cargo.
pub fn run_on(
    gpu: SoftwareGpu,
    archs: &str,
    selection: &[&str],
    load: Load,
    page: Option<&Path>,
) -> Result<()> {
    setup::ensure(setup::SERVE)?;
    if page.is_some() {
        setup::ensure(setup::PAGE)?;
    }
    let program = build(archs, selection)?;
    let sd_requests = images::test_sd(&program("sd-worker-rocm")?, gpu, page)?;
    let llm_requests = language::test_llm(&program("llm-worker-rocm")?, &program("load")?, gpu, load, page)?;
    println!("serve: ok llm_requests={llm_requests} sd_requests={sd_requests}");
    Ok(())
}

/// Builds the programs. Returns a function from the name of a program to its path.
fn build(archs: &str, selection: &[&str]) -> Result<impl Fn(&str) -> Result<PathBuf>> {
    let mut build = cargo(&["build", "--quiet", "--bins", "--examples"]);
    process::build_programs(build.args(selection).env("CANDLE_ROCM_ARCHS", archs))
}
