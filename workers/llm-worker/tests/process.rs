//! The worker as a process that cannot work.
#[path = "http/tiny_llama.rs"]
mod tiny_llama;

use std::process::Command;

/// systemd and Kubernetes start again what ends with another status than 0.
#[test]
fn a_model_that_cannot_be_loaded_ends_the_process_with_1() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_llm-worker-cpu"));
    worker.args(["--port", "0", "--model"]).arg(folder.path());
    let ended = worker.output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        last.starts_with("error: llm-worker-cpu cannot serve") && last.contains("tokenizer.json"),
        "{said}"
    );
}
