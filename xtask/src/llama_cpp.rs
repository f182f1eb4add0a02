//! `cargo xtask llama-cpp`: compares the greedy text of SmolLM2 on the software GPU with that of llama.cpp's CPU
//! build.
use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::{self, command, root, run};
use crate::pypi::packages_built_with;
use crate::{generate, setup, software_gpu, weights};

/// Requests with llama.cpp's tokens and margins.
const EXPECTED: &str = "xtask/llama_cpp/smollm2.json";
const SCRIPT: &str = "xtask/llama_cpp/greedy.py";
/// Sources of llama.cpp with bindings for Python.
const PACKAGE: &str = "llama-cpp-python==0.3.36";
/// Leaves out what the bindings do not need.
const CMAKE_ARGS: (&str, &str) =
    ("CMAKE_ARGS", "-DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF");

#[derive(clap::Args)]
pub struct Args {
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// Build llama.cpp for the CPU and write its tokens to the file of expected tokens. This takes about ten minutes.
    #[arg(long)]
    write: bool,
}

/// Compares the tokens of every request, or writes the expected ones.
///
/// # Errors
/// If a tool or a download is missing, or the texts differ at a token with a large margin.
pub fn execute(args: &Args) -> Result<()> {
    software_gpu::check_arch(&args.arch)?;
    let model = weights::SMOLLM2.ensure()?;
    let path = root().join(EXPECTED);
    if args.write {
        setup::ensure(setup::LLAMA_CPP)?;
        let mut greedy = command("python3", &[SCRIPT]);
        greedy.arg(&model).arg(&path).env("PYTHONPATH", packages_built_with(&[PACKAGE], &[CMAKE_ARGS])?);
        return run(&mut greedy);
    }
    setup::ensure(setup::GENERATE)?;
    let expected = process::read_json(&path)?;
    let requests = expected.as_array().context("the file of expected tokens is not a list")?;
    for request in requests {
        let (is_chat, prompt) = match (request["chat"].as_str(), request["prompt"].as_str()) {
            (Some(message), _) => (true, message),
            (None, Some(prompt)) => (false, prompt),
            _ => anyhow::bail!("{EXPECTED}: a request has neither `prompt` nor `chat`: {request}"),
        };
        let length = request["tokens"].as_array().map_or(0, Vec::len);
        let text = generate::Text { arch: &args.arch, model: &model, prompt, is_chat, tokens: length as u32 };
        let report: Value = text.report("rocm:0")?;
        println!("{prompt:?}: {}", generate::summary(&report, request)?);
    }
    println!("llama-cpp: ok requests={}", requests.len());
    Ok(())
}
