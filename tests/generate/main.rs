//! Tests the example `generate`: every model family against candle-transformers, streamed text, chats and bad
//! input.
#![allow(dead_code, reason = "the example's main.rs uses the rest of its modules")]
#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/shared/device.rs"]
mod device;
#[path = "../../examples/generate/options.rs"]
mod options;
#[path = "../../examples/generate/run.rs"]
mod run;

mod bad_input;
mod every_family;
mod oracle;
mod pieces;
mod program;
mod templates;
mod texts;
mod tiny_models;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::Parser;

/// Runs the example with these arguments after the model; returns the run and its text.
fn generated(model: &Path, args: &[&str]) -> Result<(run::Run, String)> {
    let program = ["generate".as_ref(), model.as_os_str()].into_iter();
    let options = options::Options::try_parse_from(program.chain(args.iter().map(AsRef::as_ref)))?;
    let mut text = String::new();
    let run = run::run(&options, &AtomicBool::new(false), &mut |part| {
        text.push_str(part);
        Ok(())
    })?;
    Ok((run, text))
}
