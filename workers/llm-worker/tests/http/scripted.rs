//! A worker whose model writes a given text.
use std::collections::HashMap;

use candle_core::{Device, Result, Tensor, bail};
use llm_engine::engine::Options;
use llm_engine::request::Sampling;
use llm_engine::step::{BLOCK_SIZE, Capacity, Step, StepModel};
use llm_engine::text::TextCodec;
use serde_json::{Value, json};

use crate::fixture::{Worker, serve};
use crate::tiny_llama::{self, SPECIAL};

/// Context length, which is enough for the prompts of coding agents.
const CONTEXT: usize = 1 << 18;

/// Special tokens of the scripted model besides those of tiny Llama.
const MARKS: [&str; 7] =
    ["[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|python_tag|>"];

/// Writes the script after every prompt, then ends the text.
struct Scripted {
    script: Vec<u32>,
    capacity: Capacity,
    end: u32,
    /// Length of each prompt by the first cache block of its sequence; `None` while it is being computed.
    prompts: HashMap<u32, Option<usize>>,
}

impl StepModel for Scripted {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn step(&mut self, step: &Step) -> Result<Tensor> {
        let width = self.capacity.vocabulary;
        let mut logits = Vec::new();
        for sequence in &step.sequences {
            // A step of several rows computes a prompt, whose last part may be one row.
            let prompt = self.prompts.entry(sequence.blocks[0]).or_default();
            if sequence.rows.len() > 1 || prompt.is_none() {
                *prompt = Some(sequence.context).filter(|_| sequence.logits > 0);
            }
            if let Some(prompt) = prompt.filter(|_| sequence.logits > 0) {
                let written = sequence.context - prompt;
                let next = self.script.get(written).copied().unwrap_or(self.end);
                logits.extend((0..width as u32).map(|token| if token == next { 100.0f32 } else { 0.0 }));
            }
        }
        let rows = logits.len() / width;
        Tensor::from_vec(logits, (rows, width), &Device::Cpu)
    }

    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    fn copy_blocks(&mut self, _: &[(u32, u32)]) -> Result<()> {
        Ok(())
    }

    fn embed(&mut self, _: &[Vec<u32>]) -> Result<Tensor> {
        bail!("a script has no states")
    }
}

/// Creates a worker whose model writes `script` after every prompt.
pub fn scripted(template: &str, script: &str, more: &[&str]) -> Worker {
    let folder = tempfile::tempdir().unwrap();
    let file =
        |name: &str, value: Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    let special: Vec<&str> = SPECIAL.into_iter().chain(MARKS).collect();
    file("tokenizer.json", tiny_llama::tokenizer(&special));
    file(
        "tokenizer_config.json",
        json!({"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": template}),
    );
    let text = TextCodec::from_folder(folder.path()).unwrap();
    let (vocabulary, blocks) = (text.vocabulary(), CONTEXT / BLOCK_SIZE);
    let capacity = Capacity { vocabulary, context: CONTEXT, blocks, states: None };
    let model = Scripted {
        script: text.encode(script, false).unwrap(),
        capacity,
        end: text.special_token(SPECIAL[1]).unwrap(),
        prompts: HashMap::new(),
    };
    let options = Options { prefix_cache: false, ..Options::default() };
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    serve(Box::new(model), text, Some(folder), options, more, sampling)
}
