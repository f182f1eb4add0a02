//! Tests the LLM worker with the tiny Llama.
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::worker::Worker;
use super::{Load, clients, libraries};
use crate::process::{self, command, root};
use crate::software_gpu::SoftwareGpu;

const MODEL: &str = "examples/tiny_llama/model";
/// Test clients in `workers/clients`.
const CLIENTS: [&str; 3] = ["openai_requests", "openai_responses", "anthropic_messages"];
const LM_EVAL: &str = "workers/clients/lm_eval_scores.py";
const PAGE: &str = "workers/clients/chat_page.py";
/// Prefix of the load test's last line on success.
const LOAD_OK: &str = "load: ok";

/// Sends the worker requests of every kind, then a load. Returns the number of requests that were answered correctly.
pub fn test_llm(llm: &Path, client: &Path, gpu: SoftwareGpu, load: Load, page: Option<&Path>) -> Result<u64> {
    let worker = start(llm, gpu)?;
    let mut requests = 0;
    for name in CLIENTS {
        requests += clients::run_client(&format!("workers/clients/{name}.py"), name, &worker.url(""))?;
    }
    let scores = match load.lm_eval {
        true => clients::run_lm_eval(LM_EVAL, "lm_eval_scores", &worker.url(""), &root().join(MODEL))?,
        false => 0,
    };
    if let Some(folder) = page {
        clients::run_browser(PAGE, "chat_page", &worker.url(""), folder)?;
    }
    let jobs = run_jobs(&worker)?;
    let mut client = command(client, &["mixed", "--address", worker.address()]);
    client.args(["--streams", &load.streams.to_string(), "--seconds", &load.seconds.to_string()]);
    let output = process::tee(&mut client)?;
    ensure!(output.lines().last().is_some_and(|line| line.starts_with(LOAD_OK)), "the load test failed");
    worker.stop()?;
    Ok(requests + scores + jobs)
}

/// Runs all client libraries against the worker.
///
/// # Errors
/// If a client or the worker fails.
pub fn test_libraries(llm: &Path, gpu: SoftwareGpu) -> Result<()> {
    let worker = start(llm, gpu)?;
    let result = libraries::test_all(&worker.url(""), &root().join(MODEL));
    worker.stop()?;
    println!("clients: ok passed={} failed=0", result?);
    Ok(())
}

/// Starts the worker with the tiny Llama.
///
/// # Errors
/// As [`Worker::start`].
pub fn start(llm: &Path, gpu: SoftwareGpu) -> Result<Worker> {
    start_with(llm, gpu, &|_| {})
}

/// Like [`start`], with the arguments that `more` adds.
///
/// # Errors
/// As [`Worker::start`].
pub fn start_with(llm: &Path, gpu: SoftwareGpu, more: &dyn Fn(&mut Command)) -> Result<Worker> {
    Worker::start(llm, gpu, &|command| {
        more(command);
        command.arg("--model").arg(root().join(MODEL));
        // In f32, a different order of additions does not change greedy text.
        command.args(["--dtype", "f32", "--cache-memory", "64MiB"]);
        // The clients of a load share one address, so the per-client limit is off.
        command.args(["--streams-per-client", "0"]);
    })
}

/// Runs one job to its end and cancels another. Returns the number of jobs.
fn run_jobs(worker: &Worker) -> Result<u64> {
    let models: Value = serde_json::from_str(&worker.curl(&[], "/v1/models")?)?;
    let start = |tokens: u64| {
        worker.start_job(&json!({
            "hive_id": "xtask", "model": models["data"][0]["id"], "prompt": "Once upon a time",
            "max_tokens": tokens, "temperature": 0.0, "stream": true,
        }))
    };
    let stream = worker.curl(&[], &start(20)?)?;
    let has = |kind: &str| stream.contains(&format!("\"type\":\"{kind}\""));
    ensure!(["started", "token", "metrics", "end"].iter().all(|kind| has(kind)), "missing event: {stream}");
    ensure!(stream.trim_end().ends_with("data: [DONE]"), "the stream does not end with [DONE]: {stream}");
    let cancelled = worker.cancel_job(&start(400)?)?;
    ensure!(cancelled.contains("\"stop_reason\":\"cancelled\""), "wrong stop reason: {cancelled}");
    Ok(2)
}
