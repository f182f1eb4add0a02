//! The project's own commands: each installs what it needs and ends with a summary line.
mod bounded;
mod ci;
mod ck;
mod coverage;
mod demo;
mod docs;
mod download;
mod downstream;
mod flash_attn;
mod fuzz;
mod fuzz_files;
mod generate;
mod harness;
mod isa_coverage;
mod kernels;
mod licenses;
mod lines;
mod nvidia_tools;
mod paper;
mod process;
mod profile;
mod report;
mod serve;
mod setup;
mod soak;
mod software_gpu;
mod stress;
mod symbols;
mod upstream_tests;
mod valgrind;
mod validate;
mod weights;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, shows and checks the ROCm fork of Candle")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A real model on the software GPU, compared with the CPU device.
    Demo(demo::Args),
    /// Greedy text of a language model on the software GPU, compared with the CPU device.
    Generate(generate::Args),
    /// Runs the stages of continuous integration, or lists them with their durations.
    Ci(ci::Args),
    /// Runs all stages of continuous integration; with --quick only our own tests.
    Test(ci::TestArgs),
    /// Builds the book and the API documentation into target/doc, and checks all links.
    Docs(docs::Args),
    /// Measures which lines of each crate the tests run, on the software GPU.
    Coverage(coverage::Args),
    /// Trains and serves for hours in turn, and fails if memory, handles or latencies grow.
    Soak(soak::Args),
    /// Upstream's own tests on the ROCm device, with the software GPU.
    UpstreamTests(upstream_tests::Args),
    /// Every function of candle-flash-attn against the formula, on the software GPU.
    FlashAttn(flash_attn::Args),
    /// Random operations on ROCm compared with the CPU device.
    Fuzz(fuzz::Args),
    /// Damaged model files: each is read or refused, without a panic or much memory.
    FuzzFiles(fuzz_files::Args),
    /// Runs an example on the software GPU and shows which kernels it spends its instructions in.
    Profile(profile::Args),
    /// Merges runs of the benches into docs/performance.md, or says what a run became slower at.
    Report(report::Args),
    /// Counts the bench's operations on the software GPU, and says what AMD chips would take by their published peaks.
    Paper(paper::Args),
    /// Counts the shipped instructions that the software GPU decodes, executes and is tested on; fails if too few.
    IsaCoverage(isa_coverage::Args),
    /// The workers on the software GPU, asked by OpenAI's client and by curl, and loaded.
    Serve(serve::Args),
    /// Stresses the GPU: many allocations, changing shapes, many threads, two devices; nothing may be lost.
    Stress(stress::Args),
    /// All that can be found out on a machine with a GPU, unattended, into one folder to send (docs/validate.md).
    Validate(validate::Args),
    /// The unit tests of what handles raw memory (loader, allocator, launches) under valgrind.
    Valgrind,
    /// Attention kernels of AMD's Composable Kernel as code objects outside of the repository (docs/composable-kernel.md).
    Ck(ck::Args),
    /// Compiles the kernels for some targets and prints their resource table.
    Kernels(kernels::Args),
    /// Fetches what building the kernels for NVIDIA targets needs (for measuring; docs/nvidia.md).
    NvidiaTools(nvidia_tools::Args),
    /// Lines per folder against their budget; fails above it.
    Lines(lines::Args),
    /// Builds and runs a scratch crate outside the workspace that uses the fork as the README says.
    Downstream,
    /// Compares the symbols the loader forwards with real ROCm libraries.
    CheckSymbols {
        /// Shared objects: libamdhip64.so.*, librocblas.so.*, libMIOpen.so.*.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    if let Some(code) = coverage::compile() {
        return code;
    }
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Ck(args) => ck::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Lines(args) => lines::run(&args),
        Command::NvidiaTools(args) => nvidia_tools::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Test(args) => ci::run_tests(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Coverage(args) => coverage::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::UpstreamTests(args) => upstream_tests::run(&args),
        Command::FlashAttn(args) => flash_attn::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::FuzzFiles(args) => fuzz_files::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Paper(args) => paper::run(&args),
        Command::IsaCoverage(args) => isa_coverage::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Valgrind => valgrind::run(),
        Command::Serve(args) => serve::run(&args),
        Command::Stress(args) => stress::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Downstream => downstream::run(),
        Command::CheckSymbols { files } => symbols::run(&files),
    }
}
