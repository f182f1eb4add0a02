//! The worker as a process with a model that is divided among GPUs, on the software GPU.
#![cfg(all(unix, feature = "rocm-emulator"))]

#[path = "http/tiny_llama.rs"]
#[allow(dead_code, reason = "shared with the tests of the API")]
mod tiny_llama;
#[path = "http/worker_process.rs"]
mod worker_process;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use worker_process::{END, answer, start};

fn worker(folder: &Path, ranks: usize) -> Command {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
    worker.args([
        "--port",
        "0",
        "--cache-memory",
        "1MiB",
        "--tensor-parallel",
        &ranks.to_string(),
        "--model",
    ]);
    worker.arg(folder).env("CANDLE_ROCM_DRIVER", "emulator:gfx1100,gfx1100");
    worker.stdout(Stdio::piped()).stderr(Stdio::piped());
    worker
}

fn chat(address: &str, tokens: usize, stream: bool) -> String {
    let body = json!({"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": tokens,
        "temperature": 0, "ignore_eos": true, "stream": stream})
    .to_string();
    let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    answer(address, &format!("POST /v1/chat/completions HTTP/1.1\r\n{END}{head}\r\n{body}"))
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn two_gpus_answer_like_one() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let on = |ranks: usize| {
        let (mut running, address) = start(&mut worker(folder.path(), ranks));
        let chat = chat(&address, 12, false);
        let metrics = answer(&address, &format!("GET /metrics HTTP/1.1\r\n{END}\r\n"));
        running.kill().unwrap();
        running.wait().unwrap();
        let (head, body) = chat.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{chat}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["usage"]["completion_tokens"], 12);
        (body["choices"][0]["message"]["content"].clone(), metrics)
    };
    let ((one, metrics_of_one), (two, metrics)) = (on(1), on(2));
    assert!(one.as_str().is_some_and(|text| !text.is_empty()), "{one}");
    assert_eq!(one, two);
    assert!(!metrics_of_one.contains("llm_rank_"), "{metrics_of_one}");
    for (name, rank) in ["llm_rank_vram_bytes", "llm_rank_step_seconds_total"]
        .into_iter()
        .flat_map(|name| [0, 1].map(|rank| (name, rank)))
    {
        let label = format!("rank=\"{rank}\"");
        let line = metrics.lines().find(|line| line.starts_with(name) && line.contains(&label));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        assert!(value.is_some_and(|value| value > 0.0), "{name} {rank}: {metrics}");
    }
}

#[test]
fn a_lost_rank_ends_the_worker_with_one_reason() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let mut worker = worker(folder.path(), 2);
    // Warming up takes two steps of six operations.
    worker.env("CANDLE_ROCM_EMULATOR", "collective=dies:1:40");
    let (running, address) = start(&mut worker);
    let events = chat(&address, 100, true);
    let last = events.lines().rfind(|line| line.starts_with("data: {"));
    assert!(last.is_some_and(|event| event.contains("\"error\"") && event.contains("rank 1")), "{events}");
    let output = running.wait_with_output().unwrap();
    let stderr = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && last.contains("rank 1"), "{stderr}");
}

#[test]
fn unsupported_numbers_of_ranks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let output = worker(folder.path(), 3).output().unwrap();
    let stderr = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--tensor-parallel 3 uses GPUs 0 to 2, but GPU 2 cannot be opened"), "{stderr}");
    let output = worker(folder.path(), 2).args(["--lora-modules", "sql=/adapters/sql"]).output().unwrap();
    let stderr = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot load the adapter \"sql\": cannot read /adapters/sql"), "{stderr}");
    let output = Command::new(env!("CARGO_BIN_EXE_llm-worker-cpu"))
        .args(["--port", "0", "--tensor-parallel", "2", "--model"])
        .arg(folder.path())
        .output()
        .unwrap();
    let stderr = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--tensor-parallel 2 requires AMD GPUs"), "{stderr}");
}
