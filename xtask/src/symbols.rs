//! `cargo xtask check-symbols`: compares the loader's symbol table with real libraries.
use std::path::PathBuf;

use anyhow::Result;

use crate::process::{self, cargo};

pub fn run(files: &[PathBuf]) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--package", "rocm-loader", "--bin", "check-symbols", "--"]);
    // cargo runs in the workspace's root, but the paths are relative to the user's current folder.
    for file in files {
        command.arg(std::path::absolute(file)?);
    }
    process::run(&mut command)
}
