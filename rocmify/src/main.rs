//! The command `rocmify`: checks the rules against upstream, and writes the fork as plain crates.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use rocmify::CRATES;
use rocmify::fork::write_fork;
use rocmify::report::Report;
use rocmify::suites::rocmify_suites;
use rocmify::tree::{Form, Tree};
use rocmify::upstream;

/// Adds a ROCm counterpart to every use of CUDA in Candle
#[derive(Parser)]
#[command(arg_required_else_help = true)]
struct Arguments {
    /// Print every rule with its matches; fail if a rule does not match as expected
    #[arg(long)]
    check: bool,
    /// Write the fork to DIR as plain crates
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// This repository, which contains candle-core/src/rocm_backend
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    workspace: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rocmify: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let workspace = arguments.workspace.canonicalize()?;
    let work_dir = workspace.join("target").join("rocmify");
    if arguments.check {
        check(&work_dir)?;
    }
    if let Some(out) = &arguments.out {
        write_fork(&workspace, out, &work_dir)?;
        let names = CRATES.map(|rules| rules.name).join(", ");
        println!("wrote {names} below {}", out.display());
    }
    Ok(())
}

fn check(work_dir: &Path) -> Result<(), Box<dyn Error>> {
    for rules in CRATES {
        for dir in upstream::locate(&[rules.name], upstream::VERSION, work_dir)? {
            let tree = Tree::rewrite(&rules, &dir, upstream::VERSION, Form::Included)?;
            print!("{}", Report { rules: &rules, tree: &tree, version: upstream::VERSION });
            let suites = rocmify_suites(rules.name, &dir)?;
            let tests: usize = suites.iter().map(|suite| suite.tests.len()).sum();
            println!("{}: {tests} tests for the ROCm device in {} files\n", rules.name, suites.len());
        }
    }
    Ok(())
}
