//! Tiny models for a load: adapters of the repository's Llama, and models of random weights with its tokenizer.
use std::collections::HashMap;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use candle_core::{DType, Device, Tensor, safetensors};
use image::{ImageFormat, Rgb, RgbImage};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// The repository's Llama.
const LLAMA: &str = "../../examples/tiny_llama/model";
/// Checkpoints of the engine's tests.
const CHECKPOINTS: &str = "../llm-engine/tests/model/data";
/// Names of the models, and of their checkpoints.
const MODELS: [(&str, &str); 2] = [("pictures", "qwen2.5-vl"), ("experts", "qwen3-moe")];
/// Names of the adapters.
const ADAPTERS: [&str; 2] = ["adapter-1", "adapter-2"];
const RANK: usize = 4;
/// Token that stands for a feature of a picture.
const PLACEHOLDER: &str = "<|image_pad|>";
const TEMPLATE: &str = "{{ bos_token }}{% if messages[-1].content is string %}{{ messages[-1].content }}{% else %}\
    {% for part in messages[-1].content %}{% if part.type == 'image' %}<|image_pad|>{% else %}{{ part.text }}{% endif %}\
    {% endfor %}{% endif %}";

#[derive(clap::Args)]
pub struct Arguments {
    /// Folder of the models, which must exist
    #[arg(long)]
    out: PathBuf,
}

type Weights = HashMap<String, Tensor>;

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn json_of(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// Writes the models.
///
/// # Errors
/// If a file cannot be read or written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let llama = safetensors::load(path(LLAMA).join("model.safetensors"), &Device::Cpu)?;
    for (seed, name) in ADAPTERS.into_iter().enumerate() {
        write_adapter(&arguments.out.join(name), &llama, seed as u64)?;
    }
    MODELS.into_iter().try_for_each(|(name, checkpoint)| {
        write_model(&arguments.out.join(name), &path(CHECKPOINTS).join(checkpoint))
    })
}

fn random(random: &mut StdRng, [rows, columns]: [usize; 2], size: f32) -> Result<Tensor> {
    let values = (0..rows * columns).map(|_| random.random_range(-size..size)).collect();
    Ok(Tensor::from_vec::<_, f32>(values, (rows, columns), &Device::Cpu)?)
}

fn write_adapter(folder: &Path, llama: &Weights, seed: u64) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut generator = StdRng::seed_from_u64(seed);
    let mut names: Vec<_> = llama.keys().filter(|name| name.contains("_proj.")).collect();
    names.sort();
    let mut tensors = Weights::new();
    for name in names {
        let (rows, columns) = llama[name].dims2()?;
        let module = name.trim_end_matches(".weight");
        for (part, shape) in [("A", [RANK, columns]), ("B", [rows, RANK])] {
            let matrix = random(&mut generator, shape, 0.1)?;
            tensors.insert(format!("base_model.model.{module}.lora_{part}.weight"), matrix);
        }
    }
    safetensors::save(&tensors, folder.join("adapter_model.safetensors"))?;
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none"});
    Ok(fs::write(folder.join("adapter_config.json"), config.to_string())?)
}

/// Writes a checkpoint with the tokenizer of the Llama, and so other tables of tokens.
fn write_model(folder: &Path, checkpoint: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let file = |name: &str, value: &Value| fs::write(folder.join(name), value.to_string());
    let mut tokenizer = json_of(&path(LLAMA).join("tokenizer.json"))?;
    let count = tokenizer["model"]["vocab"].as_object().context("a tokenizer without a vocabulary")?.len();
    let added = tokenizer["added_tokens"].as_array_mut().context("a tokenizer without added tokens")?;
    added.push(
        json!({"id": count, "content": PLACEHOLDER, "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false}),
    );
    file("tokenizer.json", &tokenizer)?;
    let mut settings = json_of(&path(LLAMA).join("tokenizer_config.json"))?;
    settings["chat_template"] = TEMPLATE.into();
    file("tokenizer_config.json", &settings)?;
    let mut config = json_of(&checkpoint.join("config.json"))?;
    let text = match config.get("text_config") {
        Some(_) => &mut config["text_config"],
        None => &mut config,
    };
    (text["max_position_embeddings"], text["vocab_size"]) = (512.into(), (count + 1).into());
    config["image_token_id"] = count.into();
    file("config.json", &config)?;
    let processor = checkpoint.join("preprocessor_config.json");
    if processor.exists() {
        fs::copy(processor, folder.join("preprocessor_config.json"))?;
    }
    let mut weights = Weights::new();
    for (name, tensor) in safetensors::load(checkpoint.join("model.safetensors"), &Device::Cpu)? {
        weights.insert(name, tensor.to_dtype(DType::F32)?);
    }
    let mut generator = StdRng::seed_from_u64(1);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let width = weights.get(name).with_context(|| format!("no {name}"))?.dim(1)?;
        weights.insert(name.to_owned(), random(&mut generator, [count + 1, width], 0.4)?);
    }
    Ok(safetensors::save(&weights, folder.join("model.safetensors"))?)
}

/// Returns one of several pictures of the same size as a PNG file in base64.
///
/// # Errors
/// If it cannot be encoded.
pub fn picture(index: usize) -> Result<String> {
    let pixel = |x: u32, y: u32| {
        let index = index as u32;
        Rgb([x * 5 + index * 90, y * 11 + index * 31, index * (x + y)].map(|value| value as u8))
    };
    let mut file = Vec::new();
    RgbImage::from_fn(37, 21, pixel).write_to(&mut Cursor::new(&mut file), ImageFormat::Png)?;
    Ok(BASE64_STANDARD.encode(file))
}
