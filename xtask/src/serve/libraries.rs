//! Tests the LLM worker with the client libraries that applications use.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::clients::{CLIENTS, LM_EVAL, run_and_parse_count};
use crate::process::{command, root};
use crate::{npm, pypi};

/// Folder with the test clients.
const FOLDER: &str = "workers/clients";
/// Module of the test clients in JavaScript.
const CHECKS: &str = "checks.mjs";
/// Packages of the test clients in JavaScript, which run on Node 18 and later.
const NPM: &[&str] = &[
    "openai@6.30.1",
    "ai@6.0.325",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/openai-compatible@2.0.92",
    "zod@4.6.7",
];
/// Test clients, named after their scripts, and the packages that they need.
const LIBRARIES: &[(&str, Packages)] = &[
    ("openai_requests", Packages::PyPi(CLIENTS)),
    ("openai_responses", Packages::PyPi(CLIENTS)),
    ("anthropic_messages", Packages::PyPi(CLIENTS)),
    ("openai_npm", Packages::Npm),
    ("vercel_ai", Packages::Npm),
    ("langchain_chat", Packages::PyPi(&["langchain-openai==1.7.2", "langchain-core==1.7.7"])),
    ("litellm_providers", Packages::PyPi(&["litellm==1.110.2"])),
    ("pydantic_agents", Packages::PyPi(&["pydantic-ai-slim[openai]==2.68.0"])),
    ("instructor_models", Packages::PyPi(&["instructor==1.17.0"])),
    ("lm_eval_scores", Packages::PyPi(LM_EVAL)),
];

/// Registry of a client's packages.
enum Packages {
    PyPi(&'static [&'static str]),
    /// [`NPM`].
    Npm,
}

impl Packages {
    /// Returns the command that runs the script `name`; installs the packages on first use.
    fn command(&self, name: &str) -> Result<Command> {
        match self {
            Packages::PyPi(requirements) => {
                let mut python = command("python3", &[format!("{FOLDER}/{name}.py")]);
                python.env("PYTHONPATH", pypi::packages(requirements)?);
                Ok(python)
            }
            Packages::Npm => {
                let folder = npm::packages(NPM)?;
                copy(CHECKS, &folder)?;
                Ok(command("node", &[copy(&format!("{name}.mjs"), &folder)?]))
            }
        }
    }
}

/// Copies a module next to `node_modules`, where Node searches for the packages that it imports.
fn copy(file: &str, folder: &Path) -> Result<PathBuf> {
    let to = folder.join(file);
    fs::copy(root().join(FOLDER).join(file), &to).with_context(|| format!("cannot copy {file}"))?;
    Ok(to)
}

/// Runs all test clients against the worker at `url`, which serves the model in `model`. Prints the result of each and
/// returns the number of clients.
///
/// # Errors
/// If a client fails; the others still run.
pub fn test_all(url: &str, model: &Path) -> Result<usize> {
    let mut failed = Vec::new();
    for (name, packages) in LIBRARIES {
        let count = packages
            .command(name)
            .and_then(|mut client| run_and_parse_count(client.arg(url).arg(model), name));
        match count {
            Ok(count) => println!("client {name}: ok checks={count}"),
            Err(error) => {
                println!("client {name}: FAILED: {error:#}");
                failed.push(*name);
            }
        }
    }
    let passed = LIBRARIES.len() - failed.len();
    ensure!(failed.is_empty(), "clients: passed={passed} failed={}: {}", failed.len(), failed.join(", "));
    Ok(passed)
}
