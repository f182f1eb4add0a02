//! `cargo xtask generate`: compares the greedy text of a language model on the software GPU and on the CPU device.
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{self, root};
use crate::software_gpu::{self, SoftwareGpu};
use crate::{example, setup, weights};

/// Name of the repository's own model for `--model`.
const TINY_LLAMA: &str = "tiny-llama";
const TINY_LLAMA_FILE: &str = "examples/tiny_llama/model/tiny-llama.q4_k.gguf";
/// Name of the downloaded model for `--model`.
const SMOLLM2: &str = "smollm2";

/// Logit margin, on the CPU device, between the best and the second-best token below which the devices may choose
/// differently. With float weights they differ only in the order of f32 additions, by 4e-6 at most in our own model.
const FLOAT_MARGIN: f64 = 1e-4;
/// Logit margin for quantized weights: each device also rounds activations to eight bits, in different blocks.
/// In our own model in four quantizations this changed a margin by 0.36 at most and by 0.03 on average.
const QUANTIZED_MARGIN: f64 = 0.5;

#[derive(clap::Args)]
pub struct Args {
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// `smollm2` (SmolLM2-135M-Instruct, downloaded from PyPI), `tiny-llama` (the repository's own model), a GGUF file, or a
    /// model folder with safetensors.
    #[arg(long, default_value = SMOLLM2)]
    model: String,
    /// Text to continue.
    #[arg(long, default_value = "The capital of France is")]
    prompt: String,
    /// Maximum number of tokens to generate.
    #[arg(long, default_value_t = 24)]
    tokens: u32,
}

/// Runs the example on both devices and compares the generated tokens.
pub fn run(args: &Args) -> Result<()> {
    software_gpu::check_arch(&args.arch)?;
    setup::ensure(setup::GENERATE)?;
    let model = match args.model.as_str() {
        SMOLLM2 => weights::SMOLLM2.ensure()?,
        TINY_LLAMA => root().join(TINY_LLAMA_FILE),
        path => PathBuf::from(path),
    };
    let text =
        Text { arch: &args.arch, model: &model, prompt: &args.prompt, is_chat: false, tokens: args.tokens };
    println!("{}", summary(&text.report("rocm:0")?, &text.report("cpu")?)?);
    Ok(())
}

/// A greedy text.
pub struct Text<'a> {
    /// Architecture of the software GPU.
    pub arch: &'a str,
    pub model: &'a Path,
    pub prompt: &'a str,
    /// If true, the prompt is formatted with the chat template.
    pub is_chat: bool,
    /// Maximum number of tokens to generate.
    pub tokens: u32,
}

impl Text<'_> {
    /// Generates the text with the example and returns its report.
    ///
    /// # Errors
    /// If the example fails.
    pub fn report(&self, device: &str) -> Result<Value> {
        let path = process::cache_file(&format!("generate-{}.json", device.trim_end_matches(":0")))?;
        let mut command = example::command("generate", self.arch, None)?;
        command.arg(self.model).args(["--device", device, "--temperature", "0", "--prompt", self.prompt]);
        command.args(["--tokens", &self.tokens.to_string()]).arg("--report").arg(&path);
        if self.is_chat {
            command.arg("--chat");
        }
        if !is_gguf(&self.model.to_string_lossy()) {
            command.args(["--dtype", "f32"]);
        }
        SoftwareGpu::new(self.arch).apply_to(&mut command);
        process::run(&mut command)?;
        process::read_json(&path)
    }
}

fn is_gguf(model: &str) -> bool {
    model.ends_with(".gguf")
}

/// Returns the summary line, or an error if the two texts differ at a clear choice. `cpu` needs the fields `tokens` and
/// `margins` only.
pub fn summary(rocm: &Value, cpu: &Value) -> Result<String> {
    let text = |key: &str| rocm[key].as_str().with_context(|| format!("the report has no field '{key}'"));
    let tokens = |report: &Value| -> Result<Vec<u64>> {
        let tokens = report["tokens"].as_array().context("the report has no field 'tokens'")?;
        Ok(tokens.iter().filter_map(Value::as_u64).collect())
    };
    let launched = rocm["kernels_launched"].as_u64().unwrap_or(0);
    ensure!(launched > 0, "no kernel was launched: the example did not run on the device");
    let (got, expected) = (tokens(rocm)?, tokens(cpu)?);
    ensure!(!got.is_empty(), "no token was generated");
    let equal = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
    if got != expected {
        let model = text("model")?;
        let allowed = if is_gguf(model) { QUANTIZED_MARGIN } else { FLOAT_MARGIN };
        // If one text has ended, only the other report has a margin at this position.
        let margin = cpu["margins"][equal].as_f64().or_else(|| rocm["margins"][equal].as_f64());
        match margin {
            Some(margin) if margin < allowed => {
                println!(
                    "the texts differ from token {equal} on, whose margin {margin:.2e} is below {allowed:.0e}: accepted"
                );
            }
            _ => bail!(
                "the texts differ from token {equal} on, where the margin of the best token is {}; allowed below {allowed:.0e}",
                margin.map_or("unknown".into(), |margin| format!("{margin:.2e}"))
            ),
        }
    }
    Ok(format!(
        "generate: ok arch={} driver={} model={} tokens={} equal_to_cpu={equal}",
        text("arch")?,
        text("driver")?,
        text("model")?,
        got.len(),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::summary;

    fn report(model: &str, tokens: &[u32], margins: &[f32]) -> serde_json::Value {
        json!({"arch": "gfx1100", "driver": "emulator", "model": model, "tokens": tokens, "margins": margins,
               "kernels_launched": 7})
    }

    const GGUF: &str = "tiny-llama.q4_k.gguf";

    #[test]
    fn equal_texts_give_a_summary_line() {
        let both = report(GGUF, &[5, 6, 7], &[3.0, 2.0, 0.001]);
        let expected =
            "generate: ok arch=gfx1100 driver=emulator model=tiny-llama.q4_k.gguf tokens=3 equal_to_cpu=3";
        assert_eq!(summary(&both, &both).unwrap(), expected);
    }

    #[test]
    fn texts_may_differ_after_a_token_with_a_small_margin() {
        let cpu = report(GGUF, &[5, 6, 7, 8], &[3.0, 0.1, 0.1, 1.0]);
        let line = summary(&report(GGUF, &[5, 9, 7, 8], &[3.0, 0.1, 1.0, 1.0]), &cpu).unwrap();
        assert!(line.ends_with(" tokens=4 equal_to_cpu=1"), "{line}");
        // For float weights, the same margin is too large.
        let floats = |tokens: &[u32]| report("model", tokens, &[3.0, 0.1, 1.0]);
        let error = summary(&floats(&[5, 9, 7]), &floats(&[5, 6, 7])).unwrap_err().to_string();
        assert!(error.contains("from token 1 on") && error.contains("1.00e-1"), "{error}");
    }

    #[test]
    fn large_margins_early_ends_and_no_launches_fail() {
        let cpu = report(GGUF, &[5, 6, 7], &[3.0, 2.0, 2.0]);
        for tokens in [&[5, 9, 7][..], &[5, 6], &[5, 6, 7, 8], &[]] {
            assert!(summary(&report(GGUF, tokens, &[9.0; 4]), &cpu).is_err(), "{tokens:?}");
        }
        let mut idle = cpu.clone();
        idle["kernels_launched"] = 0.into();
        assert!(summary(&idle, &cpu).unwrap_err().to_string().contains("no kernel"));
        assert!(summary(&json!({"kernels_launched": 1}), &cpu).is_err());
    }
}
