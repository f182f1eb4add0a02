//! The worker as a process: exit codes.
#![cfg(unix)]

#[path = "http/tiny_llama.rs"]
mod tiny_llama;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

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
