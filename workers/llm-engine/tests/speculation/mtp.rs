//! Speculation with heads that predict further tokens, and with recurrent models: texts stay the same.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use llm_engine::engine::{DraftSource, Engine, Options, Speculation, Status};
use llm_engine::model::states::slot_bytes;
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::request::{Event, Request, Sampling};
use llm_engine::step::StepModel;
use llm_engine::text::TextCodec;
use tempfile::TempDir;
use tokenizers::Tokenizer;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

use super::devices;

const VOCABULARY: u32 = 48;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/data").join(name)
}

/// Writes a checkpoint with its head, if it has one. With `branches`, which multiplies the outputs of attention and of
/// networks, and a projection that only reads embeddings, the head computes nearly what the model computes.
fn checkpoint(name: &str, branches: Option<f64>) -> TempDir {
    let mut weights: HashMap<String, Tensor> = HashMap::new();
    let head = data(&format!("{name}-mtp")).join("head.safetensors");
    for file in [data(name).join("model.safetensors")].into_iter().chain(head.exists().then_some(head)) {
        weights.extend(candle_core::safetensors::load(file, &Device::Cpu).unwrap());
    }
    let last_norm = weights.get("model.norm.weight").cloned();
    for (name, tensor) in &mut weights {
        let Some(branches) = branches else { break };
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        if ends(&["o_proj.weight", "out_proj.weight", "down_proj.weight"]) {
            *tensor = (&*tensor * branches).unwrap();
        } else if ends(&["eh_proj.weight", "mtp.fc.weight"]) {
            let [one, zero] = [
                Tensor::eye(32, DType::F16, &Device::Cpu),
                Tensor::zeros((32, 32), DType::F16, &Device::Cpu),
            ];
            *tensor = Tensor::cat(&[one.unwrap(), zero.unwrap()], 1).unwrap();
        } else if ends(&["enorm.weight"]) {
            *tensor = tensor.ones_like().unwrap();
        } else if ends(&["pre_fc_norm_embedding.weight"]) {
            *tensor = tensor.zeros_like().unwrap();
        } else if ends(&["shared_head.norm.weight", "mtp.norm.weight"]) {
            *tensor = last_norm.clone().unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(data(name).join("config.json"), folder.path().join("config.json")).unwrap();
    candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
    folder
}

fn text() -> Arc<TextCodec> {
    let words = (0..VOCABULARY).map(|token| (format!("w{token}"), token)).collect();
    let model = WordLevel::builder().vocab(words).unk_token("w1".into()).build().unwrap();
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(WhitespaceSplit));
    Arc::new(TextCodec::new(tokenizer, vec![0], None).unwrap())
}

/// Starts an engine whose cache has so many blocks, or more.
fn start(
    folder: &Path,
    (device, dtype): (&Device, DType),
    speculation: Option<Speculation>,
    (blocks, options): (Option<usize>, Options),
) -> Engine {
    let load = |cache_bytes| {
        let draft_tokens = speculation.as_ref().map_or(0, |speculation| speculation.max_tokens);
        let mtp = speculation.as_ref().is_some_and(|speculation| speculation.source == DraftSource::Mtp);
        let max_sequences = Some(options.max_running);
        let options = LoadOptions {
            dtype: Some(dtype),
            cache_bytes: Some(cache_bytes),
            draft_tokens,
            mtp,
            max_sequences,
            ..LoadOptions::default()
        };
        load_decoder(folder, device, options, &mut |_| ()).unwrap()
    };
    let mut model = load(4 << 20);
    if let Some(blocks) = blocks {
        let block = model.cache().bytes() / (model.cache().blocks() + 1);
        let states = model.capacity().states.map_or(0, |slots| slots * slot_bytes(model.config(), dtype));
        // States may take half of the memory.
        model = load((block * blocks + states).max(2 * states));
        assert!(model.capacity().blocks >= blocks);
    }
    Engine::start(Box::new(model), text(), Options { speculation, ..options }).unwrap()
}

/// Generates texts at once, of which several begin alike, and some are sampled. Returns their tokens.
fn texts(engine: &Engine, count: u32, tokens: usize) -> Vec<Vec<u32>> {
    let submit = |index: u32| {
        let common = (0..18 + index % 3 * 16).map(|place| (place * 7 + index % 2) % VOCABULARY);
        let prompt =
            common.chain((0..1 + index * 5 % 20).map(|place| (place * index) % VOCABULARY)).collect();
        let temperature = if index % 4 == 3 { 0.7 } else { 0.0 };
        let request = Request {
            prompt,
            max_tokens: Some(tokens),
            sampling: Sampling { temperature, seed: Some(u64::from(index)), ..Sampling::default() },
            ignore_eos: true,
            ..Request::default()
        };
        engine.submit(request).unwrap()
    };
    let streams: Vec<_> = (0..count).map(submit).collect();
    let read = |mut stream: llm_engine::engine::Stream| {
        let mut text = Vec::new();
        while let Some(event) = stream.blocking_next() {
            match event {
                Event::Token { token, .. } => text.push(token),
                Event::Error { message, .. } => panic!("{message}"),
                _ => {}
            }
        }
        text
    };
    streams.into_iter().map(read).collect()
}

fn mtp(max_tokens: usize) -> Option<Speculation> {
    Some(Speculation { source: DraftSource::Mtp, max_tokens })
}

fn options() -> Options {
    Options { max_running: 4, ..Options::default() }
}

/// Checks that texts are the same with and without speculation, one after the other, in batches, with shared prefixes and with
/// preemptions. Passes the counters of each run to `check`.
fn compare(name: &str, branches: Option<f64>, speculation: &Speculation, check: impl Fn(&Status)) {
    let folder = checkpoint(name, branches);
    let on_cpu = (&Device::Cpu, DType::F32);
    let plain = start(folder.path(), on_cpu, None, (None, Options { prefix_cache: false, ..options() }));
    let expected = texts(&plain, 8, 40);
    for (blocks, max_running, step_tokens) in [(None, 1, 512), (None, 4, 512), (Some(16), 4, 24)] {
        let options = Options { max_running, step_tokens, ..Options::default() };
        let engine = start(folder.path(), on_cpu, Some(speculation.clone()), (blocks, options));
        // The second time, prefixes are cached.
        for _ in 0..2 {
            assert_eq!(texts(&engine, 8, 40), expected, "{name} {branches:?} {blocks:?} {max_running}");
        }
        let status = engine.status();
        println!(
            "{name} {branches:?} {speculation:?} {blocks:?} {max_running}: {} of {} accepted in {} steps, {} preempted, {} cached",
            status.tokens_accepted,
            status.tokens_drafted,
            status.steps,
            status.preempted,
            status.tokens_cached
        );
        assert_eq!((status.blocks_used, status.states_used, status.running), (0, 0, 0));
        // A single text of a recurrent model leaves slots for few checkpoints.
        let is_cached = status.tokens_cached > 0 || max_running == 1 && status.states > 0;
        assert!(status.tokens_drafted > 0 && is_cached, "{status:?}");
        if blocks.is_some() && status.states == 0 {
            assert!(status.preempted > 0, "{status:?}");
        }
        check(&status);
    }
}

#[test]
fn heads_change_no_text() {
    for name in ["deepseek-v3", "glm4-moe", "qwen3-next", "qwen3.5"] {
        for tokens in [1, 5] {
            compare(name, None, &mtp(tokens).unwrap(), |status| {
                assert!(status.tokens_accepted < status.tokens_drafted / 2, "{status:?}");
            });
        }
    }
}

#[test]
fn heads_that_compute_the_same_are_accepted() {
    for name in ["glm4-moe", "qwen3.5"] {
        for tokens in [1, 5] {
            compare(name, Some(0.0), &mtp(tokens).unwrap(), |status| {
                assert_eq!(status.tokens_accepted, status.tokens_drafted, "{status:?}");
            });
            compare(name, Some(0.05), &mtp(tokens).unwrap(), |status| {
                assert!(
                    0 < status.tokens_accepted && status.tokens_accepted < status.tokens_drafted,
                    "{status:?}"
                );
            });
        }
    }
}

#[test]
fn prompt_lookup_changes_no_text_of_recurrent_models() {
    let speculation = Speculation { source: DraftSource::Ngram(1..=3), max_tokens: 7 };
    for name in ["qwen3-next", "qwen3.5", "jamba", "bamba", "falcon-h1"] {
        for branches in [None, Some(0.05)] {
            compare(name, branches, &speculation, |status| {
                assert!(status.tokens_accepted < status.tokens_drafted, "{status:?}");
            });
        }
    }
}

/// On the software GPU in f16, products of other numbers of rows may differ in the last bits, so heads with rejections are tested
/// in f32.
#[test]
fn heads_are_accepted_on_devices() {
    for (device_name, device) in devices() {
        for (name, branches) in [("glm4-moe", Some(0.0)), ("qwen3.5", Some(0.0)), ("qwen3.5", Some(0.05))] {
            let folder = checkpoint(name, branches);
            let copies = branches == Some(0.0);
            let dtype = if device.is_cpu() || !copies { DType::F32 } else { DType::F16 };
            let run = |speculation| {
                let engine = start(folder.path(), (&device, dtype), speculation, (None, options()));
                let texts = texts(&engine, 3, 12);
                (texts, engine.status())
            };
            let (expected, plain) = run(None);
            for tokens in [1, 3] {
                let (texts, status) = run(mtp(tokens));
                println!(
                    "{name} on {device_name}: {} of {} accepted in {} steps instead of {}",
                    status.tokens_accepted, status.tokens_drafted, status.steps, plain.steps
                );
                assert_eq!(texts, expected, "{name} on {device_name}");
                assert!(status.tokens_accepted > 0 && status.steps < plain.steps, "{status:?}");
                let [drafted, accepted] = [status.tokens_drafted, status.tokens_accepted];
                assert!(if copies { 2 * accepted > drafted } else { accepted < drafted }, "{status:?}");
            }
        }
    }
}

#[test]
fn models_without_a_loaded_head_are_refused() {
    let folder = checkpoint("glm4-moe", None);
    let model = load_decoder(
        folder.path(),
        &Device::Cpu,
        LoadOptions { cache_bytes: Some(1 << 20), ..LoadOptions::default() },
        &mut |_| (),
    )
    .unwrap();
    let options = Options { speculation: mtp(1), ..Options::default() };
    let error = Engine::start(Box::new(model), text(), options).err().unwrap().to_string();
    assert!(error.contains("none is loaded"), "{error}");
}
