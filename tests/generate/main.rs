//! The parts of the example `generate`: every family of models, sampling, text as it comes, chats, and bad input.
#![allow(dead_code, reason = "the example's main.rs uses the rest of its modules")]
#[path = "../../examples/generate/chat.rs"]
mod chat;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/generate/devices.rs"]
mod devices;
#[path = "../../examples/generate/families.rs"]
mod families;
#[path = "../../examples/generate/generation.rs"]
mod generation;
#[path = "../../examples/generate/limits.rs"]
mod limits;
#[path = "../../examples/generate/model_files.rs"]
mod model_files;
#[path = "../../examples/generate/options.rs"]
mod options;
#[path = "../../examples/generate/run.rs"]
mod run;
#[path = "../../examples/generate/sampling.rs"]
mod sampling;
#[path = "../../examples/generate/sentence_piece.rs"]
mod sentence_piece;
#[path = "../../examples/generate/text.rs"]
mod text;
#[path = "../../examples/generate/vocabulary.rs"]
mod vocabulary;

mod bad_input;
mod choices;
mod every_family;
mod pieces;
mod program;
mod streams;
mod templates;
mod tiny_models;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::Parser;

/// The example's run with these arguments after the model, and the text that came.
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
