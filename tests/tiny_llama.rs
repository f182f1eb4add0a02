//! Tests the example `tiny_llama`: grammar, tokenizer, training, files, and the stories that the model
//! generates.
#[cfg(feature = "rocm")]
mod common;

#[path = "../examples/shared/adam.rs"]
mod adam;
#[path = "../examples/shared/curve.rs"]
mod curve;
#[path = "../examples/tiny_llama/export.rs"]
mod export;
#[path = "../examples/tiny_llama/grammar.rs"]
mod grammar;
#[path = "../examples/tiny_llama/model.rs"]
mod model;
#[path = "../examples/tiny_llama/productions.rs"]
mod productions;
#[path = "../examples/tiny_llama/sample.rs"]
mod sample;
#[path = "../examples/tiny_llama/tokens.rs"]
mod tokens;
#[path = "../examples/tiny_llama/train.rs"]
mod train;
#[path = "../examples/shared/training.rs"]
mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::generation::Sampling;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use candle_transformers::models::quantized_llama::ModelWeights;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokenizers::Tokenizer;

use export::FORMATS;
use grammar::Grammar;
use model::{Model, Size};
use train::{TrainConfig, Training};

/// Returns the folder of the model's files: in the repository, or as set by `CANDLE_TINY_LLAMA`.
fn folder() -> PathBuf {
    let in_repository = || Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny_llama/model");
    std::env::var_os("CANDLE_TINY_LLAMA").map_or_else(in_repository, PathBuf::from)
}

fn tokenizer() -> Result<Tokenizer> {
    Tokenizer::from_file(folder().join(export::TOKENIZER)).map_err(anyhow::Error::msg)
}

fn story(grammar: &Grammar, seed: u64) -> String {
    grammar.story(&mut StdRng::seed_from_u64(seed))
}

fn gguf(folder: &Path, format: &str) -> Result<(Content, File)> {
    let mut file = File::open(export::gguf_file(folder, format))?;
    Ok((Content::read(&mut file)?, file))
}

fn config(folder: &Path) -> Result<Config> {
    let text = std::fs::read_to_string(folder.join(export::CONFIG))?;
    Ok(serde_json::from_str::<LlamaConfig>(&text)?.into_config(false))
}

fn llama(weights: &BTreeMap<String, Tensor>, config: &Config, device: &Device) -> Result<(Llama, Cache)> {
    let weights = weights.iter().map(|(name, weight)| Ok((name.clone(), weight.to_device(device)?)));
    let weights = weights.collect::<Result<_>>()?;
    let llama = Llama::load(VarBuilder::from_tensors(weights, DType::F32, device), config)?;
    Ok((llama, Cache::new(true, DType::F32, config, device)?))
}

fn largest(x: &Tensor) -> Result<f32> {
    Ok(x.abs()?.flatten_all()?.max(0)?.to_scalar()?)
}

#[test]
fn the_grammar_accepts_its_own_stories() -> Result<()> {
    let grammar = Grammar::new()?;
    let stories: BTreeSet<String> = (0..300).map(|seed| story(&grammar, seed)).collect();
    assert!(stories.len() > 290, "only {} of 300 stories differ", stories.len());
    for story in &stories {
        assert!(grammar.accepts(story), "{story}");
    }
    assert_eq!(story(&grammar, 7), story(&grammar, 7));
    Ok(())
}

#[test]
fn the_grammar_rejects_invalid_stories() -> Result<()> {
    let grammar = Grammar::new()?;
    let good = "Anna lives by the sea. When the birds that Tom and Mary like sing a song in the garden, \
                she washes herself. At the end of the day, she goes home.";
    assert!(grammar.accepts(good));
    // Replacements that make the story invalid.
    let replacements = [
        ("Anna", "anna"),
        ("Anna", "Tom"),
        ("Anna", "Anna and Tom"),
        ("lives", "live"),
        ("birds", "bird"),
        ("birds", "girl"),
        ("Tom and Mary", "Tom"),
        ("Tom and Mary", "Tom and Paul"),
        ("sing ", "sings "),
        ("garden, she", "garden she"),
        ("washes", "wash"),
        ("herself", "himself"),
        ("herself. ", "herself.  "),
        ("herself. At", "herself. at"),
        (" At the end of the day, she goes home.", ""),
        ("home.", "home"),
        ("home.", "home. She"),
        ("home.", "home. "),
        ("home", "apple"),
    ];
    for (from, to) in replacements {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "'{from}' is not in the story");
        assert!(!grammar.accepts(&bad), "{bad}");
    }
    assert!(!grammar.accepts(""));
    assert!(!grammar.accepts("."));
    Ok(())
}

#[test]
fn the_tokenizer_matches_the_grammar() -> Result<()> {
    let learned = tokens::learn_tokenizer(&Grammar::new()?)?;
    let learned: serde_json::Value =
        serde_json::from_str(&learned.to_string(false).map_err(anyhow::Error::msg)?)?;
    let kept: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder().join(export::TOKENIZER))?)?;
    assert_eq!(learned, kept, "the grammar has changed; train the model again");
    Ok(())
}

#[test]
fn each_gguf_contains_the_tokenizer() -> Result<()> {
    let grammar = Grammar::new()?;
    let kept = tokenizer()?;
    let mut texts: Vec<String> = (0..50).map(|seed| story(&grammar, seed)).collect();
    let odd = [
        "",
        " ",
        "a",
        "  two  spaces\nand a line",
        "naïve €5, 12345 times!",
        "<s>it</s> <unk>",
        "I'll she'S",
    ];
    texts.extend(odd.map(String::from));
    for (format, _, _) in FORMATS {
        let (content, _) = gguf(&folder(), format)?;
        let read = Tokenizer::from_gguf(&content)?;
        for text in &texts {
            let (expected, got) = (tokens::tokens(&kept, text)?, tokens::tokens(&read, text)?);
            assert_eq!(got, expected, "{format}: {text:?}");
            assert_eq!(got.first(), Some(&tokens::BEGIN.1), "{format}: {text:?}");
            assert_eq!(tokens::text(&read, &got)?, tokens::text(&kept, &expected)?, "{format}: {text:?}");
            // Text that the alphabet covers is decoded unchanged.
            if text.chars().all(|letter| letter == ' ' || letter.is_ascii_graphic()) && !text.contains("<s>")
            {
                assert_eq!(tokens::text(&read, &got)?, *text, "{format}");
            }
        }
        assert!(tokens::tokens(&read, "ï")?.contains(&tokens::UNKNOWN.1), "{format}");
    }
    Ok(())
}

/// Model size for fast tests.
const SMALL: Size = Size { hidden: 32, intermediate: 48, layers: 2, heads: 2 };

fn short(steps: u32) -> TrainConfig {
    TrainConfig { seed: 5, steps, rows: 2, length: 24, rate: 1e-2 }
}

#[test]
fn resumed_training_equals_uninterrupted_training() -> Result<()> {
    let (grammar, tokenizer, device) = (Grammar::new()?, tokenizer()?, Device::Cpu);
    let config = short(6);
    let mut whole = Training::new(SMALL, config, &device)?;
    for _ in 0..6 {
        whole.step(&grammar, &tokenizer)?;
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("training.safetensors");
    let mut first = Training::new(SMALL, config, &device)?;
    for _ in 0..2 {
        first.step(&grammar, &tokenizer)?;
    }
    first.save(&file)?;
    let mut resumed = Training::resume(SMALL, config, &device, &file)?;
    for _ in 2..6 {
        resumed.step(&grammar, &tokenizer)?;
    }
    assert_eq!(resumed.losses, whole.losses);
    for (name, weight) in &whole.model.weights {
        let (weight, other) = (weight.flatten_all()?, resumed.model.weights[name].flatten_all()?);
        assert_eq!(weight.to_vec1::<f32>()?, other.to_vec1::<f32>()?, "{name}");
    }
    let other = TrainConfig { seed: 6, ..config };
    let refusal =
        Training::resume(SMALL, other, &device, &file).err().context("another configuration was accepted")?;
    assert!(refusal.to_string().contains("--folder"), "{refusal}");
    let larger = Size { hidden: 64, ..SMALL };
    assert!(Training::resume(larger, config, &device, &file).is_err(), "another size was accepted");
    Ok(())
}

#[test]
fn training_reduces_the_loss_and_draws_its_curve() -> Result<()> {
    let (grammar, tokenizer) = (Grammar::new()?, tokenizer()?);
    let mut training = Training::new(SMALL, short(40), &Device::Cpu)?;
    for _ in 0..40 {
        training.step(&grammar, &tokenizer)?;
    }
    // The loss of an untrained model is the logarithm of the vocabulary size.
    let (first, last) = (training.losses[0], training.losses[39]);
    assert!((first - (tokens::VOCABULARY as f32).ln()).abs() < 0.1, "the first loss is {first}");
    assert!(last < first - 1.5, "the loss went from {first} to {last}");
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("loss.svg");
    curve::draw(&[("loss", &training.losses)], &file)?;
    let svg = std::fs::read_to_string(&file)?;
    let line = svg.split("<polyline").find(|part| part.contains("#C81E28")).context("no curve")?;
    let points = line.split('"').find(|part| part.matches(',').count() > 20).context("no points")?;
    let heights = points.split_whitespace().filter_map(|point| point.split_once(',')?.1.parse::<f32>().ok());
    let heights: Vec<f32> = heights.collect();
    assert_eq!(heights.len(), 40);
    assert!(heights[39] > heights[0] + 50., "the curve does not fall: {heights:?}");
    Ok(())
}

#[test]
fn the_training_model_matches_candle_transformers_llama() -> Result<()> {
    let size = Size { heads: 4, ..SMALL };
    let mut rng = StdRng::seed_from_u64(3);
    let mut model = Model::random(size, 16, &mut rng, &Device::Cpu)?;
    let mut weights = BTreeMap::new();
    for (name, weight) in &model.weights {
        // Scaled up, so that attention has a visible effect.
        weights.insert(name.clone(), (weight * 5.)?);
    }
    model.weights = weights.clone();
    let folder = tempfile::tempdir()?;
    export::safetensors(size, &weights, folder.path())?;
    let (llama, mut cache) = llama(&weights, &config(folder.path())?, &Device::Cpu)?;
    let ids = Tensor::from_vec((0..24u32).map(|i| i * 37 % 512).collect(), (2, 12), &Device::Cpu)?;
    let ours = model.forward(&ids)?.reshape((2, 12, tokens::VOCABULARY))?;
    for at in 0..12 {
        let theirs = llama.forward(&ids.narrow(1, at, 1)?, at, &mut cache)?;
        let difference = largest(&(ours.i((.., at))? - &theirs)?)?;
        assert!(difference < 1e-4 * largest(&theirs)?, "token {at}: largest difference {difference}");
    }
    Ok(())
}

/// Maximum quantization error relative to the largest of a value's 256 neighbours: rounding to a step,
/// clipping at the end of the range, and rounding of quantized scales.
const QUANTIZATION_ERROR: [(&str, f32); 4] = [
    // Half of one of 127 steps, and the rounding of the scale to f16.
    ("q8_0", 0.6 / 127.),
    // 8 steps below zero and 7 above: clipping costs a whole step.
    ("q4_0", 1.02 / 8.),
    // 15 steps from minimum to maximum, a range of up to twice the largest; scales and minimums have 6 bits.
    ("q4_k", 2. / 15. + 3. / 126.),
    // 31 steps, where clipping may cost a whole step; scales have 8 bits.
    ("q6_k", 1. / 31. + 1. / 256.),
];

#[test]
fn each_gguf_contains_the_weights() -> Result<()> {
    let weights = export::read_weights(&folder())?;
    let count: usize = weights.values().map(Tensor::elem_count).sum();
    assert!((1_000_000..3_000_000).contains(&count), "{count} parameters");
    let made = tempfile::tempdir()?;
    for file in [export::WEIGHTS, export::TOKENIZER] {
        std::fs::copy(folder().join(file), made.path().join(file))?;
    }
    export::ggufs(Size::TINY, made.path())?;
    for (format, dtype, _) in FORMATS {
        let share = QUANTIZATION_ERROR.iter().find(|(name, _)| *name == format).context("no bound")?.1;
        for folder in [&folder(), made.path()] {
            let (content, mut file) = gguf(folder, format)?;
            assert_eq!(content.tensor_infos.len(), weights.len(), "{format}");
            for (name, weight) in &weights {
                let (name, weight) = export::gguf_tensor(Size::TINY, name, weight)?;
                let tensor = content.tensor(&mut file, &name, &Device::Cpu)?;
                let got = tensor.dequantize(&Device::Cpu)?;
                assert_eq!(got.dims(), weight.dims(), "{format} {name}");
                if weight.rank() == 1 {
                    assert_eq!(got.to_vec1::<f32>()?, weight.to_vec1::<f32>()?, "{format} {name}");
                    continue;
                }
                assert_eq!(tensor.dtype(), dtype, "{format} {name}");
                let (got, weight) = (got.reshape(((), 256))?, weight.reshape(((), 256))?);
                let error = (&got - &weight)?.abs()?.max(1)?;
                let share_of_largest = error.div(&weight.abs()?.max(1)?)?;
                let difference = largest(&share_of_largest)?;
                assert!(difference <= share, "{format} {name}: {difference} of the largest, allowed {share}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_files_are_small() -> Result<()> {
    let mut files = vec![folder().join(export::WEIGHTS), folder().join(export::TOKENIZER)];
    files.extend(FORMATS.map(|(format, _, _)| export::gguf_file(&folder(), format)));
    let sizes = files.iter().map(|file| Ok(std::fs::metadata(file)?.len()));
    let bytes: u64 = sizes.sum::<Result<u64>>()?;
    assert!(bytes < 8_000_000, "{bytes} bytes");
    Ok(())
}

/// Name of the unquantized format; the other names are those of [`FORMATS`].
const UNQUANTIZED: &str = "f32";

/// Loads the model in a format on a device; returns its step function.
fn load_format(name: &str, device: &Device) -> Result<Box<sample::Step<'static>>> {
    if name == UNQUANTIZED {
        let (llama, mut cache) = llama(&export::read_weights(&folder())?, &config(&folder())?, device)?;
        return Ok(Box::new(move |tokens, at| llama.forward(tokens, at, &mut cache)));
    }
    let (content, mut file) = gguf(&folder(), name)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, device)?;
    Ok(Box::new(move |tokens, at| model.forward(tokens, at)))
}

/// Returns beginnings of a hundred stories outside the training data: nothing, a quarter, a half or three
/// quarters.
fn beginnings(grammar: &Grammar) -> Vec<String> {
    let beginning = |number: u64| {
        // The tokenizer is trained on the first seeds, the model on seeds from 2^32.
        let story = story(grammar, 1_000_000 + number);
        let words: Vec<&str> = story.split(' ').collect();
        words[..words.len() * (number % 4) as usize / 4].join(" ")
    };
    (0..100).map(beginning).collect()
}

/// Minimum number of valid stories of a hundred. Typical are 92 to 95; the order of additions changes the
/// stories, and this limit is three standard deviations below.
const MIN_VALID_STORIES: usize = 85;

#[test]
fn most_of_a_hundred_stories_are_valid() -> Result<()> {
    let (grammar, tokenizer) = (Grammar::new()?, tokenizer()?);
    let beginnings = beginnings(&grammar);
    let prompts: Vec<&str> = beginnings.iter().map(String::as_str).collect();
    let sampling = Sampling::All { temperature: 0.5 };
    for name in FORMATS.map(|(name, _, _)| name).into_iter().chain([UNQUANTIZED]) {
        let step = &mut load_format(name, &Device::Cpu)?;
        let stories = sample::stories(step, &tokenizer, &prompts, &sampling, 128, &Device::Cpu)?;
        let different: BTreeSet<&String> = stories.iter().collect();
        assert!(different.len() >= 90, "{name}: only {} stories differ", different.len());
        let (good, bad): (Vec<&String>, Vec<&String>) =
            stories.iter().partition(|story| grammar.accepts(story));
        println!("{name}: {} of {} stories are valid", good.len(), stories.len());
        assert!(
            good.len() >= MIN_VALID_STORIES,
            "{name}: only {} stories are valid; invalid: {bad:#?}",
            good.len()
        );
        for (story, prompt) in stories.iter().zip(&prompts) {
            assert!(story.starts_with(prompt), "{name}: '{story}' does not begin with '{prompt}'");
        }
    }
    Ok(())
}

/// Returns the logits after each token, fed one by one.
fn logits(step: &mut sample::Step, tokens: &[u32], device: &Device) -> Result<Vec<Tensor>> {
    let feed = |(at, token): (usize, &u32)| {
        Ok(step(&Tensor::new(&[[*token]], device)?, at)?.squeeze(0)?.to_device(&Device::Cpu)?)
    };
    tokens.iter().enumerate().map(feed).collect()
}

/// Returns the maximum difference between logits, relative to the largest logit.
fn max_difference(got: &[Tensor], expected: &[Tensor]) -> Result<f32> {
    let shares =
        got.iter().zip(expected).map(|(got, expected)| Ok(largest(&(got - expected)?)? / largest(expected)?));
    shares.collect::<Result<Vec<_>>>()?.into_iter().reduce(f32::max).context("no logits")
}

/// Maximum difference of a format's logits from the unquantized ones, relative to the largest logit.
const LOGIT_TOLERANCES: [(&str, f32); 4] = [("q8_0", 0.03), ("q4_0", 0.12), ("q4_k", 0.1), ("q6_k", 0.04)];

#[test]
fn quantized_logits_are_close_to_unquantized_ones() -> Result<()> {
    let text = "Anna lives by the sea. When the birds that Tom and Mary like sing a song in the garden, she";
    let tokens = tokens::tokens(&tokenizer()?, text)?;
    let exact = logits(&mut load_format(UNQUANTIZED, &Device::Cpu)?, &tokens, &Device::Cpu)?;
    for (name, share) in LOGIT_TOLERANCES {
        let quantized = logits(&mut load_format(name, &Device::Cpu)?, &tokens, &Device::Cpu)?;
        let difference = max_difference(&quantized, &exact)?;
        println!("{name}: {difference} of the largest logit");
        assert!(difference <= share, "{name}: {difference} of the largest logit, allowed {share}");
    }
    Ok(())
}

/// Number of tokens of a greedy text.
#[cfg(feature = "rocm")]
const GREEDY_TOKENS: usize = 200;

/// Generates greedy text from an empty prompt, ignoring ends of stories; returns `count` tokens, one before them, and logits.
#[cfg(feature = "rocm")]
fn greedy(step: &mut sample::Step, count: usize, device: &Device) -> Result<(Vec<u32>, Vec<Tensor>)> {
    let (mut tokens, mut all) = (vec![tokens::BEGIN.1], Vec::new());
    for at in 0..count {
        let logits = step(&Tensor::new(&[[tokens[at]]], device)?, at)?.squeeze(0)?;
        tokens.push(logits.argmax(0)?.to_scalar()?);
        all.push(logits.to_device(&Device::Cpu)?);
    }
    Ok((tokens, all))
}

#[cfg(feature = "rocm")]
#[test]
#[serial_test::serial]
fn greedy_text_on_the_gpu_matches_the_cpu() -> Result<()> {
    let device = common::device();
    let (expected, on_cpu) =
        greedy(&mut load_format(UNQUANTIZED, &Device::Cpu)?, GREEDY_TOKENS, &Device::Cpu)?;
    let (got, on_gpu) = greedy(&mut load_format(UNQUANTIZED, &device)?, GREEDY_TOKENS, &device)?;
    let difference = max_difference(&on_gpu, &on_cpu)?;
    assert_eq!(got, expected, "the texts differ, and the logits by up to {difference} of the largest");
    assert!(difference <= 1e-5, "{difference} of the largest logit");
    Ok(())
}

/// Maximum difference of quantized logits between GPU and CPU, relative to the largest logit. Activations are
/// quantized to 8 bits in different blocks, or not at all: the error per product is up to half of 1/127.
#[cfg(feature = "rocm")]
const DEVICE_TOLERANCE: f32 = 0.05;
/// Number of tokens of each quantized format, whose logits are compared.
#[cfg(feature = "rocm")]
const COMPARED_TOKENS: usize = 40;

#[cfg(feature = "rocm")]
#[test]
#[serial_test::serial]
fn quantized_logits_on_the_gpu_are_close_to_the_cpus() -> Result<()> {
    let device = common::device();
    for (name, _, _) in FORMATS {
        let (tokens, on_cpu) = greedy(&mut load_format(name, &Device::Cpu)?, COMPARED_TOKENS, &Device::Cpu)?;
        let on_gpu = logits(&mut load_format(name, &device)?, &tokens[..COMPARED_TOKENS], &device)?;
        let difference = max_difference(&on_gpu, &on_cpu)?;
        let same = on_gpu
            .iter()
            .zip(&tokens[1..])
            .map(|(logits, token)| Ok(usize::from(logits.argmax(0)?.to_scalar::<u32>()? == *token)));
        let same = same.sum::<Result<usize>>()?;
        println!("{name}: {difference} of the largest logit, {same} of {COMPARED_TOKENS} tokens equal");
        assert!(
            difference <= DEVICE_TOLERANCE,
            "{name}: {difference} of the largest logit, allowed {DEVICE_TOLERANCE}"
        );
    }
    Ok(())
}

#[cfg(feature = "rocm")]
#[test]
#[serial_test::serial]
fn training_losses_on_the_gpu_match_the_cpu() -> Result<()> {
    let (grammar, tokenizer) = (Grammar::new()?, tokenizer()?);
    let losses = |device: &Device| {
        let mut training = Training::new(SMALL, short(4), device)?;
        (0..4).map(|_| training.step(&grammar, &tokenizer)).collect::<Result<Vec<f32>>>()
    };
    let (got, expected) = (losses(&common::device())?, losses(&Device::Cpu)?);
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-4 * expected, "got {got:?}, on the CPU {expected:?}");
    }
    Ok(())
}

#[test]
fn metadata_matches_the_configuration() -> Result<()> {
    let config = config(&folder())?;
    let number = |number: usize| Value::U32(number as u32);
    let expected = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.embedding_length", number(config.hidden_size)),
        ("llama.feed_forward_length", number(config.intermediate_size)),
        ("llama.block_count", number(config.num_hidden_layers)),
        ("llama.attention.head_count", number(config.num_attention_heads)),
        ("llama.attention.head_count_kv", number(config.num_key_value_heads)),
        ("llama.context_length", number(config.max_position_embeddings)),
        ("llama.rope.dimension_count", number(config.hidden_size / config.num_attention_heads)),
        ("llama.rope.freq_base", Value::F32(config.rope_theta)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps as f32)),
        ("tokenizer.ggml.bos_token_id", Value::U32(config.bos_token_id.context("no beginning")?)),
    ];
    for (format, _, file_type) in FORMATS {
        let (content, _) = gguf(&folder(), format)?;
        for (key, value) in expected.iter().chain(&[("general.file_type", Value::U32(file_type))]) {
            let got = content.metadata.get(*key).with_context(|| format!("{format} has no {key}"))?;
            assert_eq!(format!("{got:?}"), format!("{value:?}"), "{format} {key}");
        }
        let tokens = content.metadata["tokenizer.ggml.tokens"].to_vec()?;
        assert_eq!(tokens.len(), config.vocab_size, "{format}");
    }
    Ok(())
}
