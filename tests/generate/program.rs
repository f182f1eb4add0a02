//! Tests the built example as a program: its outputs, and its reaction to Ctrl-C.
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::oracle::family;
use crate::tiny_models::{config, write_safetensors};

fn program(model: &Path) -> Result<Command> {
    let test = std::env::current_exe()?;
    let folder: PathBuf = test.ancestors().nth(2).context("the target folder")?.into();
    let mut command = Command::new(folder.join("examples/generate"));
    command.arg(model).args(["--prompt", "the cat", "--device", "cpu"]);
    Ok(command)
}

#[test]
fn text_goes_to_stdout_and_statistics_to_stderr() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Qwen3"), 12, 1)?;
    let report = folder.path().join("report.json");
    let output = program(folder.path())?.args(["--tokens", "5", "--report"]).arg(&report).output()?;
    let figures = String::from_utf8(output.stderr)?;
    assert!(output.status.success(), "{figures}");
    for part in ["model   ", "loaded in", "device  the CPU", "prompt  ", "text    5 tokens"] {
        assert!(figures.contains(part), "{part:?} is not in {figures}");
    }
    assert!(output.stdout.ends_with(b"\n") && !String::from_utf8_lossy(&output.stdout).contains("tokens"));
    let report: Value = serde_json::from_slice(&fs::read(report)?)?;
    assert_eq!(report["tokens"].as_array().map(Vec::len), Some(5));
    assert_eq!((&report["device"], &report["end"]), (&"cpu".into(), &"length".into()));
    assert_eq!(report["margins"].as_array().map(Vec::len), Some(5));
    Ok(())
}

#[test]
fn an_error_is_one_line_on_stderr() -> Result<()> {
    let output = program(Path::new("nowhere"))?.output()?;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stderr)?, "error: nowhere does not exist; check the path\n");
    assert!(output.stdout.is_empty());
    Ok(())
}

#[test]
fn ctrl_c_ends_the_line_and_prints_statistics() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 12, 1)?;
    // A text that would take far too long to finish.
    let mut config = config(family("Llama"));
    config["max_position_embeddings"] = 200_000.into();
    fs::write(folder.path().join("config.json"), config.to_string())?;
    let mut command = program(folder.path())?;
    command.args(["--tokens", "100000"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdout = child.stdout.take().context("the text")?;
    let mut text = vec![0; 8];
    stdout.read_exact(&mut text)?;
    let id = i32::try_from(child.id())?;
    // SAFETY: `kill` takes no pointers; the child has not been waited for, so its process id is still valid.
    assert_eq!(unsafe { libc::kill(id, libc::SIGINT) }, 0);
    stdout.read_to_end(&mut text)?;
    let output = child.wait_with_output()?;
    let figures = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(130), "{figures}");
    assert!(figures.contains("ended: interrupted") && figures.contains("per second"), "{figures}");
    assert!(text.ends_with(b"\n"));
    Ok(())
}
