//! The command `rocmify`: shows what the rules do to upstream, and writes the fork out.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rocmify::core_rules::CANDLE_CORE;
use rocmify::nn_rules::CANDLE_NN;
use rocmify::tree::{Form, Tree};
use rocmify::upstream;

/// Gives every place in Candle that names CUDA a ROCm twin.
#[derive(Parser)]
#[command(arg_required_else_help = true)]
struct Arguments {
    /// Print every rule with its sites and counts.
    #[arg(long)]
    check: bool,
    /// Write the whole fork out as plain crates.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
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
    let work_dir = std::env::temp_dir().join("rocmify");
    for rules in [CANDLE_CORE, CANDLE_NN] {
        for dir in upstream::locate(&[rules.name], upstream::VERSION, &work_dir)? {
            let tree = Tree::rewrite(&rules, &dir, upstream::VERSION, Form::Included)?;
            if arguments.check {
                for place in &tree.sites {
                    println!("{}:{} {} {}", place.file, place.site.line, place.site.rule, place.site.text);
                }
            }
            if let Some(out) = &arguments.out {
                tree.write(&out.join(rules.name))?;
            }
        }
    }
    Ok(())
}
