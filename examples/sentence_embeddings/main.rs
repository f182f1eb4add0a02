//! Embeds sentences with all-MiniLM-L6-v2, or any BERT sentence encoder in the same file layout, and
//! prints their similarities.
//!
//! ```text
//! cargo run -p sentence-embeddings --features rocm -- --model DIR --device rocm:0 "A cat." "A dog."
//! ```
//!
//! `DIR` contains `config.json`, `tokenizer.json` and `model.safetensors`.
#[path = "../shared/device.rs"]
mod device;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use tokenizers::{PaddingParams, Tokenizer, TruncationParams};

/// Embed sentences and print their similarity matrix and best matches.
#[derive(Parser)]
struct Args {
    /// Folder with config.json, tokenizer.json and model.safetensors.
    #[arg(long)]
    model: PathBuf,
    /// Device: `cpu`, `rocm:N`, or `rocm` for the first discrete GPU.
    #[arg(long, default_value = "rocm")]
    device: String,
    /// Also run on this device and report the maximum difference and both times.
    #[arg(long)]
    compare: Option<String>,
    /// Read sentences from a file, one per line.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Number of sentences per forward pass.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Write the results of the run to this file as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Sentences to embed.
    sentences: Vec<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let sentences = sentences(&args)?;
    let device = device::open(&args.device)?;
    let launched_before = kernels_launched(&device);
    let run = embed(&args.model, &args.device, &device, &sentences, args.batch.into())?;
    let launched = kernels_launched(&device) - launched_before;

    print_similarities(&sentences, &run.embeddings)?;
    println!("\n{}: {}", args.device, describe(&device)?);
    println!("{}: forward {:.3} s for {} sentences", args.device, run.forward.as_secs_f64(), sentences.len());

    let mut report = serde_json::json!({
        "device": args.device,
        "sentences": sentences.len(),
        "kernels_launched": launched,
        "forward_seconds": run.forward.as_secs_f64(),
    });
    if let Device::Rocm(rocm) = &device {
        report["arch"] = rocm.arch().into();
        report["driver"] = rocm.driver_name().into();
    }
    if let Some(name) = &args.compare {
        let other_device = device::open(name)?;
        let other = embed(&args.model, name, &other_device, &sentences, args.batch.into())?;
        let difference = max_abs_diff(&run.embeddings, &other.embeddings)?;
        let ratio = run.forward.as_secs_f64() / other.forward.as_secs_f64();
        println!("{name}: forward {:.3} s for {} sentences", other.forward.as_secs_f64(), sentences.len());
        println!("{} / {name}: time ratio {ratio:.2}, max_abs_diff {difference:.2e}", args.device);
        report["compared_with"] = name.as_str().into();
        report["compared_forward_seconds"] = other.forward.as_secs_f64().into();
        report["time_ratio"] = ratio.into();
        report["max_abs_diff"] = difference.into();
    }
    if let Some(path) = &args.report {
        std::fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns the sentences from the command line and the file; fails if there are fewer than two.
fn sentences(args: &Args) -> Result<Vec<String>> {
    let mut sentences = args.sentences.clone();
    if let Some(path) = &args.file {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        sentences.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from));
    }
    ensure!(sentences.len() >= 2, "expected at least two sentences, as arguments or with --file");
    Ok(sentences)
}

fn describe(device: &Device) -> Result<String> {
    Ok(match device {
        Device::Rocm(rocm) => format!("arch {}, driver {}", rocm.arch(), rocm.driver_name()),
        _ => "the CPU device".into(),
    })
}

fn kernels_launched(device: &Device) -> u64 {
    match device {
        Device::Rocm(rocm) => rocm.kernels_launched(),
        _ => 0,
    }
}

struct Run {
    /// Embeddings of unit length, of shape `(sentences, hidden)`, on the CPU.
    embeddings: Tensor,
    /// Time of the forward passes, including copies of the results to the host.
    forward: Duration,
}

fn embed(model: &Path, name: &str, device: &Device, sentences: &[String], batch: usize) -> Result<Run> {
    let progress = progress(name, 2 + sentences.len() as u64)?;
    progress.set_message("reading the tokenizer");
    let tokenizer = tokenizer(model)?;
    progress.inc(1);
    progress.set_message("loading the weights");
    let bert = bert(model, device)?;
    device.synchronize()?;
    progress.inc(1);

    progress.set_message("embedding");
    let mut parts = Vec::new();
    let mut forward = Duration::ZERO;
    for chunk in sentences.chunks(batch) {
        let encodings = tokenizer
            .encode_batch(chunk.to_vec(), true)
            .map_err(anyhow::Error::msg)
            .context("cannot tokenize the sentences")?;
        let rows = |pick: fn(&tokenizers::Encoding) -> &[u32]| -> Result<Tensor> {
            let rows =
                encodings.iter().map(|e| Tensor::new(pick(e), device)).collect::<Result<Vec<_>, _>>()?;
            Ok(Tensor::stack(&rows, 0)?)
        };
        let ids = rows(tokenizers::Encoding::get_ids)?;
        let types = rows(tokenizers::Encoding::get_type_ids)?;
        let mask = rows(tokenizers::Encoding::get_attention_mask)?;
        let start = Instant::now();
        let hidden = bert.forward(&ids, &types, Some(&mask))?;
        parts.push(mean_pooling(&hidden, &mask)?.to_device(&Device::Cpu)?);
        forward += start.elapsed();
        progress.inc(chunk.len() as u64);
    }
    progress.finish_and_clear();
    Ok(Run { embeddings: Tensor::cat(&parts, 0)?, forward })
}

fn progress(name: &str, steps: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix:>8} [{bar:30}] {pos}/{len} {msg}")?;
    Ok(ProgressBar::new(steps).with_style(style).with_prefix(name.to_string()))
}

/// Returns the mean over a sentence's tokens without padding, scaled to unit length. Maps `(batch, tokens,
/// hidden)` to `(batch, hidden)`.
fn mean_pooling(hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let mask = mask.to_dtype(hidden.dtype())?.unsqueeze(2)?;
    let sum = hidden.broadcast_mul(&mask)?.sum(1)?;
    let mean = sum.broadcast_div(&mask.sum(1)?)?;
    let length = mean.sqr()?.sum_keepdim(1)?.sqrt()?;
    Ok(mean.broadcast_div(&length)?)
}

fn tokenizer(model: &Path) -> Result<Tokenizer> {
    let path = model.join("tokenizer.json");
    let mut tokenizer = Tokenizer::from_file(&path)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("cannot read the tokenizer {}", path.display()))?;
    tokenizer.with_padding(Some(PaddingParams::default()));
    tokenizer
        .with_truncation(Some(TruncationParams::default()))
        .map_err(anyhow::Error::msg)
        .context("cannot enable truncation in the tokenizer")?;
    Ok(tokenizer)
}

fn bert(model: &Path, device: &Device) -> Result<BertModel> {
    let path = model.join("config.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let config: Config = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a BERT configuration", path.display()))?;

    let path = model.join("model.safetensors");
    let weights =
        std::fs::read(&path).with_context(|| format!("cannot read the weights {}", path.display()))?;
    check_float_weights(&weights)
        .with_context(|| format!("the weights {} cannot be used", path.display()))?;
    let vars = VarBuilder::from_buffered_safetensors(weights, DType::F32, device)
        .with_context(|| format!("cannot load the weights {}", path.display()))?;
    BertModel::load(vars, &config).with_context(|| format!("cannot build the model from {}", path.display()))
}

/// Rejects weights of integer dtypes, which would be converted silently and give wrong results.
fn check_float_weights(weights: &[u8]) -> Result<()> {
    let file = candle_core::safetensors::SliceSafetensors::new(weights)?;
    for (name, view) in file.tensors() {
        let dtype: DType = view.dtype().try_into().with_context(|| format!("tensor '{name}'"))?;
        // Some checkpoints contain position ids, which are not weights.
        if !dtype.is_float() && !name.ends_with("position_ids") {
            bail!("tensor '{name}' has dtype {dtype:?}, expected f32, f16 or bf16");
        }
    }
    Ok(())
}

fn print_similarities(sentences: &[String], embeddings: &Tensor) -> Result<()> {
    let similarities = embeddings.matmul(&embeddings.t()?)?.to_vec2::<f32>()?;
    println!("similarity");
    print!("    ");
    (1..=sentences.len()).for_each(|column| print!("{column:>6}"));
    println!();
    for (row, values) in similarities.iter().enumerate() {
        print!("{:>3} ", row + 1);
        values.iter().for_each(|value| print!("{value:>6.2}"));
        println!();
    }
    println!("\nbest match");
    for (row, values) in similarities.iter().enumerate() {
        let best = values
            .iter()
            .enumerate()
            .filter(|(column, _)| *column != row)
            .max_by(|a, b| a.1.total_cmp(b.1))
            .context("only one sentence")?;
        println!("{:>3} {}\n    {:.2} {}", row + 1, sentences[row], best.1, sentences[best.0]);
    }
    Ok(())
}

fn max_abs_diff(a: &Tensor, b: &Tensor) -> Result<f32> {
    let mut largest = 0f32;
    for row in 0..a.dim(0)? {
        let difference = (a.i(row)? - b.i(row)?)?.abs()?.max(0)?.to_scalar::<f32>()?;
        ensure!(!difference.is_nan(), "embedding {} is not a number", row + 1);
        largest = largest.max(difference);
    }
    Ok(largest)
}
