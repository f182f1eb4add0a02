//! `cargo xtask check-symbols`: the loader's table against real libraries.
use std::path::PathBuf;

use anyhow::Result;

use crate::process::{self, cargo};

pub fn run(files: &[PathBuf]) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--package", "rocm-loader", "--bin", "check-symbols", "--"]);
    // cargo is started in the workspace's root; the files were named from where the user is.
    for file in files {
        command.arg(std::path::absolute(file)?);
    }
    process::run(&mut command)
}
