//! Continues a text or answers a chat message with a language model in safetensors or GGUF format.
//!
//! ```text
//! cargo run --release --features rocm --example generate -- model.gguf --prompt "Once upon a time"
//! ```
//!
//! Uses the engine of `llm-worker` with a single request. The text is streamed to standard output, everything
//! else goes to standard error. See docs/how-to/generate-text.md.
#[path = "../shared/device.rs"]
mod device;
mod options;
mod run;

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use llm_engine::request::StopReason;

/// Set by the first Ctrl-C; the second one ends the process immediately.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Exit status of a program ended by Ctrl-C, so that scripts do not treat the text as complete.
const INTERRUPTED_STATUS: u8 = 130;

fn main() -> ExitCode {
    let status =
        options::Options::try_parse().map_or_else(|error| error.exit(), |options| generate(&options));
    status.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn generate(options: &options::Options) -> Result<ExitCode> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED_STATUS.into());
        }
    })
    .context("cannot install the Ctrl-C handler")?;
    let run = run::run(options, &INTERRUPTED, &mut |text| {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write the text")
    })?;
    println!();
    eprint!("{run}");
    if let Some(path) = &options.report {
        std::fs::write(path, format!("{:#}\n", run.report()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(match run.reason {
        StopReason::Cancelled => INTERRUPTED_STATUS.into(),
        StopReason::Stop | StopReason::Length => ExitCode::SUCCESS,
    })
}
