//! Tests the end of a text, and its dependence on the seed.
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadata;
use clap::Parser;
use llm_engine::request::StopReason;
use serde_json::{Value, json};

use crate::generated;
use crate::options::Options;
use crate::oracle::family;
use crate::run::run;
use crate::tiny_models::{CONTEXT, config, tokenizer, write_gguf, write_safetensors};

const PROMPT: &str = "the cat and the dog";
const GREEDY: [&str; 8] = ["--device", "cpu", "--temperature", "0", "--tokens", "12", "--prompt", PROMPT];

#[test]
fn a_text_ends_at_an_end_token_or_at_the_context_length() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let llama = family("Llama");
    write_safetensors(folder.path(), llama, 6, 1)?;
    let (whole, _) = generated(folder.path(), &GREEDY)?;
    assert_eq!((whole.tokens.len(), whole.reason), (12, StopReason::Length));
    let end = whole.tokens[4];
    let first = whole.tokens.iter().position(|token| *token == end).expect("it is there");
    // The configuration may name one or several end tokens, which are not part of the text.
    let named = |ends: Value| json!({ "eos_token_id": ends }).to_string();
    for ends in [named(end.into()), named(vec![end, 3].into())] {
        fs::write(folder.path().join("generation_config.json"), ends)?;
        let (run, _) = generated(folder.path(), &GREEDY)?;
        assert_eq!((&run.tokens[..], run.reason), (&whole.tokens[..first], StopReason::Stop));
    }
    let metadata = [("tokenizer.ggml.eot_token_id", Metadata::U32(end))];
    let path = write_gguf(folder.path(), llama, 6, GgmlDType::F32, &metadata)?;
    let (run, _) = generated(&path, &GREEDY)?;
    assert_eq!((&run.tokens[..], run.reason), (&whole.tokens[..first], StopReason::Stop));

    fs::remove_file(folder.path().join("generation_config.json"))?;
    let many = ["--prompt", PROMPT, "--tokens", "1000", "--device", "cpu"];
    let (run, _) = generated(folder.path(), &many)?;
    let prompt = tokenizer()?.encode(PROMPT, true).map_err(Error::msg)?.len();
    assert_eq!((run.tokens.len() + prompt, run.reason), (CONTEXT, StopReason::Length));
    Ok(())
}

#[test]
fn a_stop_string_ends_the_text() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 8, 1)?;
    let args = ["--prompt", "the cat", "--tokens", "24", "--device", "cpu", "--seed", "2"];
    let (_, whole) = generated(folder.path(), &args)?;
    let characters: Vec<char> = whole.chars().collect();
    assert!(characters.len() > 12, "{whole:?}");
    // A stop string of two characters from two tokens.
    let stop: String = characters[6..8].iter().collect();
    let (run, text) =
        generated(folder.path(), &[&args[..], &["--stop", &stop, "--stop", "not in it"]].concat())?;
    assert_eq!(run.reason, StopReason::Stop);
    assert_eq!(text, whole[..whole.find(&stop).expect("it is there")]);
    Ok(())
}

#[test]
fn an_interrupted_run_returns_its_text_and_statistics() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let llama = family("Llama");
    write_safetensors(folder.path(), llama, 8, 1)?;
    let mut config = config(llama);
    config["max_position_embeddings"] = 200_000.into();
    fs::write(folder.path().join("config.json"), config.to_string())?;
    let path = folder.path().to_string_lossy();
    let args = ["generate", &path, "--prompt", "the", "--device", "cpu", "--tokens", "100000"];
    let options = Options::try_parse_from(args)?;
    let interrupted = AtomicBool::new(false);
    let mut text = String::new();
    let run = run(&options, &interrupted, &mut |part| {
        text.push_str(part);
        interrupted.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    assert_eq!(run.reason, StopReason::Cancelled);
    assert!(run.tokens.len() < 100_000 && !text.is_empty());
    assert!(run.to_string().contains("ended: interrupted"), "{run}");
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_text() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 7, 1)?;
    let text = |seed: &str| -> Result<String> {
        let args = ["--prompt", "the cat", "--tokens", "24", "--device", "cpu", "--seed", seed];
        Ok(generated(folder.path(), &args)?.1)
    };
    let texts: Result<BTreeSet<String>> = ["1", "2", "3", "1", "2", "3"].into_iter().map(text).collect();
    assert_eq!(texts?.len(), 3);
    Ok(())
}
