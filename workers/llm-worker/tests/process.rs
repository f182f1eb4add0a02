//! The worker as a process: exit codes.
#![cfg(unix)]

#[path = "http/tiny_llama.rs"]
mod tiny_llama;
#[path = "http/worker_process.rs"]
mod worker_process;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use worker_process::{END, answer, start};

fn worker(folder: &Path) -> Command {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_llm-worker-cpu"));
    worker.args(["--port", "0", "--model"]).arg(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    worker
}

/// systemd and Kubernetes restart a process that exits with a status other than 0.
#[test]
fn a_model_that_cannot_be_loaded_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let output = worker(folder.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        last.starts_with("error: llm-worker-cpu cannot serve") && last.contains("tokenizer.json"),
        "{stderr}"
    );
}

/// With RUST_BACKTRACE, Candle appends a backtrace to its errors.
#[test]
fn a_damaged_file_is_reported_without_a_backtrace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, [b"GGUF".as_slice(), &[3, 0, 0, 0], &[0xff; 64]].concat()).unwrap();
    let output = worker(&path).env("RUST_BACKTRACE", "1").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("model.gguf") && !stderr.contains("backtrace"), "{stderr}");
    assert!(!stderr.lines().any(|line| line.trim_start().starts_with("at ")), "{stderr}");
}

/// Idle connections may use up all file descriptors; the oldest are then closed.
#[test]
fn idle_connections_do_not_block_others() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let command = format!(
        "ulimit -n 100; exec {} --port 0 --model {}",
        env!("CARGO_BIN_EXE_llm-worker-cpu"),
        folder.path().display()
    );
    let mut worker = Command::new("sh").args(["-c", &command]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit("http://").next().unwrap().to_owned();
    let idle: Vec<_> = (0..150).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut client = TcpStream::connect(&address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    let read = client.read_to_string(&mut answer);
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert!(read.is_ok() && answer.starts_with("HTTP/1.1 200"), "{read:?} {answer}");
    drop(idle);
}

/// nginx counts every status in `proxy_next_upstream` as a failure of the worker, which `max_fails` then disables for
/// all clients.
#[test]
fn a_client_over_its_limit_does_not_disable_the_worker_behind_nginx() {
    let config = std::fs::read_to_string("../../deploy/nginx.conf").unwrap();
    let lines = config.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let conditions: Vec<&str> = lines.filter(|line| line.starts_with("proxy_next_upstream ")).collect();
    assert_eq!(conditions, ["proxy_next_upstream error http_503 non_idempotent;"]);
}

#[test]
fn a_draft_model_is_loaded_if_its_vocabulary_fits() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let config = |draft: &Path| format!("{{\"model\": {draft:?}}}");
    let mut running = worker(folder.path());
    let (mut running, address) = start(running.args(["--speculative-config", &config(folder.path())]));
    let body = "{\"prompt\": \"Once upon a time\", \"max_tokens\": 20, \"ignore_eos\": true}";
    let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    let text = answer(&address, &format!("POST /v1/completions HTTP/1.1\r\n{END}{head}\r\n{body}"));
    running.kill().unwrap();
    running.wait().unwrap();
    // The model predicts itself.
    assert!(
        text.contains("\"rejected_prediction_tokens\":0")
            && !text.contains("\"accepted_prediction_tokens\":0"),
        "{text}"
    );

    let other = tempfile::tempdir().unwrap();
    tiny_llama::write(other.path(), true);
    let tokenizer = other.path().join("tokenizer.json");
    let changed = std::fs::read_to_string(&tokenizer).unwrap().replace("<|im_start|>", "<|other|>");
    std::fs::write(&tokenizer, changed).unwrap();
    let output =
        worker(folder.path()).args(["--speculative-config", &config(other.path())]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("has another vocabulary") && stderr.contains("<|other|>"), "{stderr}");
}

#[test]
fn a_terminated_worker_exits_with_0() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let mut worker = worker(folder.path()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listens at"), "{line}");
    assert!(Command::new("kill").arg(worker.id().to_string()).status().unwrap().success());
    let mut stderr = String::new();
    worker.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(worker.wait().unwrap().code(), Some(0), "{stderr}");
}
