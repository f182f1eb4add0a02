//! Tests of settings that are read once per process: each program of [`programs`] runs in a separate process.
mod checked;
mod checks;
mod convolutions;
#[allow(dead_code)]
#[path = "../runtime/gpu.rs"]
mod gpu;
mod profile;
mod programs;
mod seeds;
mod visible;

use std::process::Command;

/// Runs a program with environment variables and returns the result that it prints.
#[track_caller]
fn result(program: &str, environment: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "programs::run", "--nocapture"])
        .env(programs::VARIABLE, program)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{program}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let result = text.lines().find_map(|line| line.split_once(programs::RESULT)).map(|(_, result)| result);
    result.unwrap_or_else(|| panic!("{program}: {text}")).to_owned()
}
