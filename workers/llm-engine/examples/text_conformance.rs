//! Compares chat templates with jinja2 and tokenizers with llama.cpp's test data. `cargo xtask conformance` prepares the files.
//!
//! - `text_conformance templates FILE`: FILE is written by `workers/clients/jinja_reference.py`.
//! - `text_conformance tokenizers FOLDER`: FOLDER contains `NAME.gguf`, `NAME.gguf.inp` and `NAME.gguf.out` files.
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::Content;
use llm_engine::text::{ChatTemplate, Conversation, TextCodec};
use serde_json::Value;

/// Separates the texts of an `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";
/// Vocabularies of types that no language model of ours uses.
const OTHER_TYPES: [&str; 1] = ["ggml-vocab-bert-bge"];

/// The test data of this vocabulary ignores that the model's tokenizer normalizes texts to NFC.
const NOT_NORMALIZED: &str = "ggml-vocab-qwen35";

/// Renderings that differ from jinja2's: template, conversation and reason.
const KNOWN_DIFFERENCES: [(&str, &str, &str); 2] = [
    ("meetkai-functionary-medium-v3.1.jinja", "tools", ESCAPED),
    ("meetkai-functionary-medium-v3.1.jinja", "call", ESCAPED),
];
const ESCAPED: &str = "jinja2 escapes texts as HTML when they are added to the result of the filter `safe`, which garbles the \
                       tools' JSON";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["templates", file] => templates(Path::new(file)),
        ["tokenizers", folder] => tokenizers(Path::new(folder)),
        _ => bail!("usage: text_conformance templates FILE | tokenizers FOLDER"),
    }
}

fn templates(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let cases: Vec<Value> = serde_json::from_str(&text)?;
    let mut different = BTreeSet::new();
    let mut refused = 0;
    for case in &cases {
        let [name, conversation] =
            ["template", "conversation"].map(|field| case[field].as_str().unwrap_or_default());
        let expected = case["expected"].as_str();
        let rendered = rendered(case);
        refused += usize::from(expected.is_none());
        if rendered.as_deref().ok() == expected {
            continue;
        }
        different.insert((name, conversation));
        match KNOWN_DIFFERENCES.iter().find(|known| (known.0, known.1) == (name, conversation)) {
            Some((_, _, reason)) => println!("known difference: {name}, {conversation}: {reason}"),
            None => {
                println!("difference: {name}, {conversation}");
                println!(
                    "  jinja2: {}",
                    expected.map_or_else(|| case["error"].to_string(), |text| format!("{text:?}"))
                );
                println!("  ours:   {rendered:?}");
            }
        }
    }
    let known =
        KNOWN_DIFFERENCES.iter().map(|(template, conversation, _)| (*template, *conversation)).collect();
    ensure!(!cases.is_empty(), "{} contains no cases", file.display());
    ensure!(
        different == known,
        "{} of {} renderings differ, but {} differences are known",
        different.len(),
        cases.len(),
        known.len()
    );
    println!("templates: ok renderings={} refused={refused} known_differences={}", cases.len(), known.len());
    Ok(())
}

fn rendered(case: &Value) -> Result<String> {
    let list = |field: &str| case[field].as_array().map_or(&[][..], Vec::as_slice);
    let text = case["text"].as_str().context("a case has no template")?;
    let template = ChatTemplate::new_at_time(text, None, ["<s>", "</s>"], case["now"].as_i64())?;
    let conversation = Conversation { messages: list("messages"), tools: list("tools"), variables: None };
    template.render(&conversation)
}

fn tokenizers(folder: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".gguf.inp").map(str::to_owned));
    }
    names.retain(|name| !OTHER_TYPES.contains(&name.as_str()));
    names.sort_unstable();
    let (mut texts, mut failed, mut known) = (0, 0, 0);
    for name in &names {
        let read = |suffix: &str| -> Result<String> {
            let path = folder.join(format!("{name}.gguf.{suffix}"));
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let codec =
            TextCodec::from_gguf(&Content::read(&mut File::open(folder.join(format!("{name}.gguf")))?)?);
        let codec = match codec {
            Ok(codec) => codec,
            Err(error) => {
                println!("{name}: {error:#}");
                failed += 1;
                continue;
            }
        };
        let (inputs, outputs) = (read("inp")?, read("out")?);
        for (text, tokens) in inputs.split(SEPARATOR).zip(outputs.lines()) {
            let expected: Vec<u32> = tokens.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            let tokens = codec.encode(text, false)?;
            texts += 1;
            if tokens != expected && name == NOT_NORMALIZED && text.contains(['\u{300}', '\u{301}']) {
                println!(
                    "known difference: {name}, {text:.20}: the data ignores the tokenizer's normalization to NFC"
                );
                known += 1;
            } else if tokens != expected {
                println!("{name}: {text:?}\n  llama.cpp: {expected:?}\n  ours:      {tokens:?}");
                failed += 1;
            }
        }
    }
    ensure!(!names.is_empty(), "{} contains no vocabularies with test data", folder.display());
    ensure!(failed == 0, "{failed} of {texts} texts of {} vocabularies differ", names.len());
    println!("tokenizers: ok vocabularies={} texts={texts} known_differences={known}", names.len());
    Ok(())
}
