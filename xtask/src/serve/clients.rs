//! Runs test clients of the workers, and installs the packages that they need.
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{self, command};
use crate::pypi::packages;

/// OpenAI's and Anthropic's clients, and a package that decodes images.
pub const CLIENTS: &[&str] = &["openai==3.54.0", "anthropic==2.13.0", "pillow==13.0.0", "webuiapi==0.9.17"];
/// lm-evaluation-harness with its client of completions, and the packages that read the tokenizer and the model.
pub const LM_EVAL: &[&str] = &["lm-eval[api]==0.4.13", "transformers==5.24.0", "openai==3.54.0"];
/// Package that controls a browser.
const SELENIUM: &[&str] = &["selenium==4.51.0"];

/// Runs a Python client against a worker. Returns the number of checks.
pub fn run_client(program: &str, name: &str, url: &str) -> Result<u64> {
    run_and_parse_count(command("python3", &[program, url]).env("PYTHONPATH", packages(CLIENTS)?), name)
}

/// Runs lm-evaluation-harness against a worker that serves the model in `model`. Returns the number of checks.
pub fn run_lm_eval(program: &str, name: &str, url: &str, model: &Path) -> Result<u64> {
    let mut client = command("python3", &[program, url]);
    run_and_parse_count(client.arg(model).env("PYTHONPATH", packages(LM_EVAL)?), name)
}

/// Tests a worker's page in Chromium and stores screenshots in the folder `name` of `folder`.
pub fn run_browser(program: &str, name: &str, url: &str, folder: &Path) -> Result<u64> {
    let folder = folder.join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut browser = command("python3", &[program, url]);
    run_and_parse_count(browser.arg(folder).env("PYTHONPATH", packages(SELENIUM)?), name)
}

/// Runs a client and returns the count in its last line, which is `NAME=COUNT`.
pub fn run_and_parse_count(command: &mut Command, name: &str) -> Result<u64> {
    let output = process::tee(command)?;
    let last = output.lines().last().and_then(|line| line.strip_prefix(name)?.strip_prefix('='));
    last.with_context(|| format!("the client's last line is not {name}=COUNT"))?
        .parse()
        .context("the client's count is not a number")
}
