//! Runs the fork's Llama in f16 on ROCm and checks that flash attention does not change the generated text.
use std::error::Error;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama};

const BOS: u32 = 1;
/// Number of tokens that are prefilled, and number of tokens that are then decoded one by one.
const PROMPT_TOKENS: usize = 32;
const DECODED_TOKENS: usize = 16;
/// Maximum difference of a logit, relative to the largest. Flash attention rounds the attention weights and
/// the weighted sum at other points, in each of two layers, and the logits are rounded once: five f16
/// roundings per run.
const TOLERANCE: f32 = 2.0 * 5.0 / 2048.0;

struct Run {
    text: Vec<u32>,
    logits: Vec<f32>,
}

/// Appends `tokens` greedily chosen tokens to the prompt.
fn run(
    device: &Device,
    dtype: DType,
    use_flash_attn: bool,
    prompt: &[u32],
    tokens: usize,
) -> Result<Run, Box<dyn Error>> {
    // The values of the model's config.json.
    let config = Config {
        hidden_size: 256,
        intermediate_size: 512,
        vocab_size: 512,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 4,
        max_position_embeddings: 512,
        ..Config::config_7b_v2(use_flash_attn)
    };
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("missing argument: the model's folder")?);
    let weights = std::fs::read(folder.join("model.safetensors"))?;
    let model = Llama::load(VarBuilder::from_buffered_safetensors(weights, dtype, device)?, &config)?;
    let mut cache = Cache::new(true, dtype, &config, device)?;
    let mut run = Run { text: prompt.to_vec(), logits: Vec::new() };
    let mut before = 0;
    for _ in 0..tokens {
        let input = Tensor::new(&run.text[before..], device)?.unsqueeze(0)?;
        before = run.text.len();
        let logits: Vec<f32> =
            model.forward(&input, before - input.dim(1)?, &mut cache)?.squeeze(0)?.to_vec1()?;
        let likeliest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        run.text.push(likeliest.ok_or("no logits")? as u32);
        run.logits.extend(logits);
    }
    Ok(run)
}

fn main() -> Result<(), Box<dyn Error>> {
    let prompt = run(&Device::Cpu, DType::F32, false, &[BOS], PROMPT_TOKENS - 1)?.text;
    let rocm = Device::new_rocm(0)?;
    let plain = run(&rocm, DType::F16, false, &prompt, DECODED_TOKENS)?;
    let flash = run(&rocm, DType::F16, true, &prompt, DECODED_TOKENS)?;
    let largest = plain.logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
    let pairs = plain.logits.iter().zip(&flash.logits);
    let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    println!("{:?}: flash attention, max_abs_diff {difference:e} of {largest}", rocm.location());
    match plain.text == flash.text && difference <= TOLERANCE * largest {
        true => Ok(()),
        false => Err(format!("generated tokens or logits differ: {:?} without flash attention, {:?} with it", plain.text, flash.text).into()),
    }
}
