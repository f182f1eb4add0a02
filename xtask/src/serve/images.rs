//! Tests the image worker with the tiny Stable Diffusion.
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use super::clients;
use super::worker::Worker;
use crate::process::root;
use crate::software_gpu::SoftwareGpu;

const MODEL: &str = "examples/tiny_sd/model";
const REQUESTS: &str = "workers/clients/openai_images.py";
const A1111_REQUESTS: &str = "workers/clients/a1111_images.py";
const PAGE: &str = "workers/clients/image_page.py";
const MODELS_PAGE: &str = "workers/clients/image_models_page.py";

/// Sends the worker image requests of every kind. Returns the number of requests that were answered correctly.
pub fn test_sd(program: &Path, gpu: SoftwareGpu, page: Option<&Path>) -> Result<u64> {
    let worker = Worker::start(program, gpu, &|command| {
        let model = root().join(MODEL);
        command.arg("--lora-dir").arg(model.join("loras"));
        command.arg("--controlnet-dir").arg(model.join("controlnets"));
        command.arg("--model-path").arg(model);
    })?;
    let requests = clients::run_client(REQUESTS, "openai_images", &worker.url(""))?
        + clients::run_client(A1111_REQUESTS, "a1111_images", &worker.url(""))?;
    if let Some(folder) = page {
        clients::run_browser(PAGE, "image_page", &worker.url(""), folder)?;
    }
    let jobs = run_jobs(&worker)?;
    worker.stop()?;
    if let Some(folder) = page {
        let worker = Worker::start(program, gpu, &|command| {
            let model = root().join(MODEL);
            command.arg("--models").args(["one", "two"].map(|name| format!("{name}={}", model.display())));
        })?;
        clients::run_browser(MODELS_PAGE, "image_models_page", &worker.url(""), folder)?;
        worker.stop()?;
    }
    Ok(requests + jobs)
}

/// Runs one job to its end and cancels another. Returns the number of jobs.
fn run_jobs(worker: &Worker) -> Result<u64> {
    let start = |steps: u64| {
        worker.start_job(
            &json!({"hive_id": "xtask", "prompt": "a red circle on blue", "steps": steps, "seed": 1}),
        )
    };
    let events = worker.curl(&[], &start(5)?)?;
    let has = |kind: &&str| events.contains(&format!("event: {kind}\n"));
    ensure!(["progress", "preview", "complete"].iter().all(has), "missing event: {events:.2000}");
    ensure!(events.contains("\"percent\":100"), "progress did not reach 100 percent: {events:.2000}");
    let cancelled = worker.cancel_job(&start(150)?)?;
    ensure!(cancelled.contains("\"code\":\"cancelled\""), "wrong error code: {cancelled:.2000}");
    Ok(2)
}
