//! Prints a diagnosis of this machine for Candle on ROCm: what is available, what is missing, and what to do first.
//!
//! ```text
//! cargo run --features rocm --example doctor
//! cargo run --features rocm --example doctor -- --json
//! ```
//!
//! The exit status is 0 if models can run on at least one GPU, otherwise 1.
use candle_core::rocm::{GpuReport, PoolSize, Report, RocmDevice};
use clap::Parser;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Diagnose this machine for Candle on ROCm.
#[derive(Parser)]
struct Args {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let report = Report::gather();
    match args.json {
        true => println!("{:#}", json(&report)),
        false => println!("{report}"),
    }
    if report.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn json(report: &Report) -> Value {
    let versions = report.versions.as_ref().map(|versions| {
        json!({
            "hip_runtime": versions.hip_runtime,
            "hip_driver": versions.hip_driver,
            "rocblas": versions.rocblas,
            "miopen": versions.miopen,
        })
    });
    let libraries: Vec<Value> = report
        .libraries
        .iter()
        .map(|library| {
            json!({
                "name": library.name,
                "file": library.file,
                "without_kernels": library.without_kernels,
            })
        })
        .collect();
    let problems: Vec<Value> = report
        .problems
        .iter()
        .map(|problem| json!({ "ordinal": problem.ordinal, "text": problem.text, "source": problem.source }))
        .collect();
    let variables: Vec<Value> = report
        .variables
        .iter()
        .map(
            |variable| json!({ "name": variable.name, "value": variable.value, "warning": variable.warning }),
        )
        .collect();
    json!({
        "healthy": report.is_healthy(),
        "available": RocmDevice::gpu_available(),
        "driver": report.driver.as_ref().ok(),
        "missing": report.driver.as_ref().err(),
        "emulated": report.emulated,
        "note": report.note,
        "versions": versions,
        "gpus": report.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "default_ordinal": report.default_ordinal,
        "embedded": report.embedded,
        "libraries": libraries,
        "problems": problems,
        "variables": variables,
        "advice": report.advice,
    })
}

fn gpu(gpu: &GpuReport) -> Value {
    let self_test = gpu
        .self_test
        .as_ref()
        .map(|outcome| outcome.as_ref().map_or_else(Clone::clone, |()| "passed".into()));
    json!({
        "ordinal": gpu.ordinal,
        "name": gpu.name,
        "arch": gpu.arch,
        "integrated": gpu.integrated,
        "total_memory": gpu.total_memory,
        "free_memory": gpu.free_memory.as_ref().ok(),
        "vram": pool(gpu.memory_pools.vram),
        "gtt": pool(gpu.memory_pools.gtt),
        "ram": pool(gpu.memory_pools.ram),
        "code_object": gpu.code_object,
        "refused": gpu.refused,
        "self_test": self_test,
        "problems": gpu.problems,
    })
}

fn pool(pool: Option<PoolSize>) -> Option<Value> {
    pool.map(|pool| json!({ "free": pool.free, "total": pool.total }))
}
