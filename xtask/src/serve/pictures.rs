//! The worker of pictures, with the tiny Stable Diffusion.
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use super::clients;
use super::worker::Worker;
use crate::process::root;
use crate::software_gpu::SoftwareGpu;

const MODEL: &str = "examples/tiny_sd/model";
const REQUESTS: &str = "workers/clients/openai_pictures.py";
const PAGE: &str = "workers/clients/paint_page.py";

/// Asks the worker for pictures of every kind; gives back how many requests were answered as they should be.
pub fn serve(program: &Path, gpu: SoftwareGpu, page: Option<&Path>) -> Result<u64> {
    let worker = Worker::start(program, gpu, &|command| {
        command.arg("--model-path").arg(root().join(MODEL));
    })?;
    let asked = clients::ask(REQUESTS, "openai_pictures", &worker.url(""))?;
    if let Some(folder) = page {
        clients::browse(PAGE, "paint_page", &worker.url(""), folder)?;
    }
    let jobs = jobs(&worker)?;
    worker.end()?;
    Ok(asked + jobs)
}

/// One job to its end, one cancelled.
fn jobs(worker: &Worker) -> Result<u64> {
    let begin = |steps: u64| {
        worker.job(&json!({"hive_id": "xtask", "prompt": "a red circle on blue", "steps": steps, "seed": 1}))
    };
    let whole = worker.curl(&[], &begin(5)?)?;
    let told = |what: &str| whole.contains(&format!("event: {what}\n"));
    ensure!(["progress", "preview", "complete"].iter().all(|what| told(what)), "a job told: {whole:.2000}");
    ensure!(whole.contains("\"percent\":100"), "a job told: {whole:.2000}");
    let cancelled = worker.cancelled(&begin(150)?)?;
    ensure!(cancelled.contains("\"code\":\"cancelled\""), "a cancelled job told: {cancelled:.2000}");
    Ok(2)
}
