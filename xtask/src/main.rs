//! The project's development commands. Each installs the tools that it needs and ends with a summary line.
mod archive;
mod bounded;
mod ci;
mod ck;
mod compiler;
mod conformance;
mod container;
mod coverage;
mod demo;
mod docs;
mod download;
mod downstream;
mod example;
mod flash_attn;
mod fleet_plan;
mod fuzz;
mod fuzz_files;
mod fuzz_requests;
mod generate;
mod harness;
mod isa_coverage;
mod kernels;
mod licenses;
mod lines;
mod llama_cpp;
mod load;
mod npm;
mod nvidia_tools;
mod paper;
mod parity;
mod plot;
mod process;
mod profile;
mod pypi;
mod report;
mod serve;
mod setup;
mod soak;
mod software_gpu;
mod stress;
mod symbols;
mod test_programs;
mod upstream_tests;
mod valgrind;
mod validate;
mod weights;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, demonstrates and tests the ROCm fork of Candle")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compute sentence embeddings of a real model on the software GPU and compare them with the CPU device.
    Demo(demo::Args),
    /// Generate greedy text with a language model on the software GPU and compare it with the CPU device.
    Generate(generate::Args),
    /// Compare the greedy text of a real model on the software GPU with that of llama.cpp's CPU build.
    LlamaCpp(llama_cpp::Args),
    /// Run the stages of continuous integration, or list them with their durations.
    Ci(ci::Args),
    /// Run all stages of continuous integration; with --quick only our own tests.
    Test(ci::TestArgs),
    /// Build the book and the API documentation into target/doc, and check all links.
    Docs(docs::Args),
    /// Measure which lines of each crate the tests run, on the software GPU.
    Coverage(coverage::Args),
    /// Write a source archive with all dependencies, which builds without network access.
    Archive(archive::Args),
    /// Train and serve in turns for hours, and fail if memory, handles or latencies grow.
    Soak(soak::Args),
    /// Run upstream's own tests on the ROCm device with the software GPU.
    UpstreamTests(upstream_tests::Args),
    /// Compare every function of candle-flash-attn with the formula, on the software GPU.
    FlashAttn(flash_attn::Args),
    /// Run random operations on ROCm and compare them with the CPU device.
    Fuzz(fuzz::Args),
    /// Load mutated model files: each must load or fail cleanly, without a panic or high memory use.
    FuzzFiles(fuzz_files::Args),
    /// Send mutated requests to the language-model server: none may cause a 5xx, a panic, a hang or growth.
    FuzzRequests(fuzz_requests::Args),
    /// Run an example on the software GPU and list the kernels that execute the most instructions.
    Profile(profile::Args),
    /// Merge benchmark runs into docs/explanation/performance.md, or list the cases in which a run became slower.
    Report(report::Args),
    /// Estimate the benchmark's times on AMD chips from software GPU counts and published peak rates.
    Paper(paper::Args),
    /// Run the tests in the tables of model families and file formats (docs/reference/parity.md).
    Parity(parity::Args),
    /// Count the shipped instructions that the software GPU decodes, executes and is tested on; fail if too few.
    IsaCoverage(isa_coverage::Args),
    /// Start the workers on the software GPU and test them with OpenAI's client, curl and a load generator.
    Serve(serve::Args),
    /// Measure the latencies of a language-model server under requests that arrive at random times.
    Load(load::Args),
    /// Compare chat templates with jinja2 and tokenizers with llama.cpp's test data.
    Conformance(conformance::Args),
    /// Stress the GPU with many allocations, changing shapes, many threads and two devices; fail on leaks or errors.
    Stress(stress::Args),
    /// Run all tests and benchmarks on a machine with a GPU and collect the results in a folder (docs/how-to/validate-a-gpu.md).
    Validate(validate::Args),
    /// Run the unit tests of the code that handles raw memory (loader, allocator, launches) under valgrind.
    Valgrind,
    /// Build the attention kernels of AMD's Composable Kernel outside the repository (docs/how-to/composable-kernel.md).
    Ck(ck::Args),
    /// Build the image of a worker with buildah, and check it (docs/how-to/run-a-fleet.md).
    Container(container::Args),
    /// Compile the kernels for some targets and print their resource table.
    Kernels(kernels::Args),
    /// Simulate many cards that serve chats, with and without prefix-aware routing (docs/how-to/run-a-fleet.md).
    FleetPlan(fleet_plan::Args),
    /// Download the tools that build the kernels for NVIDIA targets (for benchmarks; docs/contributing/nvidia.md).
    NvidiaTools(nvidia_tools::Args),
    /// Compare the number of lines per folder with its budget; fail if it is exceeded.
    Lines(lines::Args),
    /// Build and run crates outside the workspace that use the fork as the README describes.
    Downstream,
    /// Compare the symbols that the loader forwards with real ROCm libraries.
    CheckSymbols {
        /// Shared libraries: libamdhip64.so.*, librocblas.so.*, libMIOpen.so.*.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    if let Some(code) = compiler::compile() {
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
        Command::Conformance(args) => conformance::run(&args),
        Command::Container(args) => container::execute(&args),
        Command::Demo(args) => demo::run(&args),
        Command::FleetPlan(args) => fleet_plan::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::LlamaCpp(args) => llama_cpp::execute(&args),
        Command::Lines(args) => lines::run(&args),
        Command::Load(args) => load::run(&args),
        Command::NvidiaTools(args) => nvidia_tools::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Test(args) => ci::run_tests(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Coverage(args) => coverage::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Archive(args) => archive::run_command(&args),
        Command::UpstreamTests(args) => upstream_tests::run(&args),
        Command::FlashAttn(args) => flash_attn::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::FuzzFiles(args) => fuzz_files::run(&args),
        Command::FuzzRequests(args) => fuzz_requests::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Paper(args) => paper::run(&args),
        Command::Parity(args) => parity::run(&args),
        Command::IsaCoverage(args) => isa_coverage::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Valgrind => valgrind::run(),
        Command::Serve(args) => serve::run(&args),
        Command::Stress(args) => stress::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Downstream => downstream::run(software_gpu::DEFAULT),
        Command::CheckSymbols { files } => symbols::run(&files),
    }
}
