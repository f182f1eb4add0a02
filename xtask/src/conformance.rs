//! `cargo xtask conformance`: compares chat templates with jinja2 and tokenizers with llama.cpp's test data.
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::process::{self, cache, cargo, command};
use crate::pypi::{Archive, packages};
use crate::{download, setup};

/// Contains llama.cpp with its chat templates and vocabularies.
const ARCHIVE: Archive = Archive {
    package: "llama-cpp-python",
    file: "llama_cpp_python-0.3.36.tar.gz",
    sha256: "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
};
/// Folder of the data in the archive.
const MODELS: &str = "llama_cpp_python-0.3.36/vendor/llama.cpp/models";
const JINJA: &[&str] = &["jinja2==3.1.6"];
const REFERENCE: &str = "workers/clients/jinja_reference.py";
const EXAMPLE: &str = "text_conformance";

#[derive(clap::Args)]
pub struct Args {
    /// Compare only the templates or only the tokenizers.
    #[arg(long, value_enum)]
    only: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Part {
    Templates,
    Tokenizers,
}

pub fn run(args: &Args) -> Result<()> {
    compare(&mut cargo(&["build", "--quiet", "--package", "llm-engine"]), args.only)
}

/// Runs the comparisons that CI runs: all. `build` is a build command with the selection of packages.
pub fn run_all(build: &mut Command) -> Result<()> {
    compare(build, None)
}

fn compare(build: &mut Command, only: Option<Part>) -> Result<()> {
    setup::ensure(setup::CONFORMANCE)?;
    let models = models()?;
    let program = process::build_programs(build.args(["--example", EXAMPLE]))?(EXAMPLE)?;
    if only != Some(Part::Tokenizers) {
        let cases = process::cache_file("templates.json")?;
        let mut render = command("python3", &[REFERENCE]);
        render.arg(models.join("templates")).arg(&cases).env("PYTHONPATH", packages(JINJA)?);
        process::run(&mut render)?;
        process::run(command(&program, &["templates"]).arg(&cases))?;
    }
    if only != Some(Part::Templates) {
        process::run(command(&program, &["tokenizers"]).arg(&models))?;
    }
    Ok(())
}

/// Returns the folder of llama.cpp's templates and vocabularies; fetches it on first use.
fn models() -> Result<PathBuf> {
    let folder = cache().join("llama-cpp");
    download::ensure_filled(&folder, ARCHIVE.sha256, || {
        eprintln!("fetching {} (77 MB)", ARCHIVE.file);
        ARCHIVE.extract(&folder, &[MODELS])
    })?;
    Ok(folder.join(MODELS))
}
