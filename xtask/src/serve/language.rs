//! The worker of language models, with the tiny Llama.
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::worker::Worker;
use super::{Load, clients};
use crate::process::{self, command, root};
use crate::software_gpu::SoftwareGpu;

const MODEL: &str = "examples/tiny_llama/model";
const REQUESTS: &str = "workers/clients/openai_requests.py";
const PAGE: &str = "workers/clients/chat_page.py";
/// Beginning of the load's last line if all is well.
const LOAD_OK: &str = "load: ok";

/// Asks the worker for texts of every kind, then loads it; gives back how many requests were answered as they should be.
pub fn serve(program: &Path, load: &Path, gpu: SoftwareGpu, bears: Load, page: Option<&Path>) -> Result<u64> {
    let worker = Worker::start(program, gpu, &|command| {
        command.arg("--model").arg(root().join(MODEL));
        // In f32, whose sums in another order change no greedy text.
        command.args(["--dtype", "f32", "--cache-memory", "64MiB"]);
        // All clients of a load come from one address.
        command.args(["--streams-per-client", "0"]);
    })?;
    let asked = clients::ask(REQUESTS, "openai_requests", &worker.url(""))?;
    if let Some(folder) = page {
        clients::browse(PAGE, "chat_page", &worker.url(""), folder)?;
    }
    let jobs = jobs(&worker)?;
    let mut load = command(load, &["--address", worker.address()]);
    load.args(["--streams", &bears.streams.to_string(), "--seconds", &bears.seconds.to_string()]);
    let loaded = process::tee(&mut load)?;
    ensure!(loaded.lines().last().is_some_and(|line| line.starts_with(LOAD_OK)), "the load was not borne");
    worker.end()?;
    Ok(asked + jobs)
}

/// One job to its end, one cancelled.
fn jobs(worker: &Worker) -> Result<u64> {
    let models: Value = serde_json::from_str(&worker.curl(&[], "/v1/models")?)?;
    let begin = |tokens: u64| {
        worker.job(&json!({
            "hive_id": "xtask", "model": models["data"][0]["id"], "prompt": "Once upon a time",
            "max_tokens": tokens, "temperature": 0.0, "stream": true,
        }))
    };
    let whole = worker.curl(&[], &begin(20)?)?;
    let told = |what: &str| whole.contains(&format!("\"type\":\"{what}\""));
    ensure!(["started", "token", "metrics", "end"].iter().all(|what| told(what)), "a job told: {whole}");
    ensure!(whole.trim_end().ends_with("data: [DONE]"), "a job ended with: {whole}");
    let cancelled = worker.cancelled(&begin(400)?)?;
    ensure!(cancelled.contains("\"stop_reason\":\"cancelled\""), "a cancelled job told: {cancelled}");
    Ok(2)
}
