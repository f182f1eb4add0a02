//! The worker as a process: how it ends.
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

/// systemd and Kubernetes start again what ends with another status than 0.
#[test]
fn a_model_that_cannot_be_loaded_ends_the_process_with_1() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let ended = worker(folder.path()).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        last.starts_with("error: llm-worker-cpu cannot serve") && last.contains("tokenizer.json"),
        "{said}"
    );
}

#[test]
fn a_worker_that_is_told_to_end_ends_with_0() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let mut worker = worker(folder.path()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listens at"), "{line}");
    assert!(Command::new("kill").arg(worker.id().to_string()).status().unwrap().success());
    let mut said = String::new();
    worker.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(worker.wait().unwrap().code(), Some(0), "{said}");
}
