//! Speculation with the trained tiny Llama, on the CPU and on the software GPU: texts stay the same and take fewer steps.
mod mtp;

#[cfg(feature = "rocm-emulator")]
#[path = "../common/gpu.rs"]
mod gpu;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};
use llm_engine::engine::{DraftSource, Engine, Options, Speculation, Status};
use llm_engine::model::drafted::{VocabularyMismatch, load_with_draft};
use llm_engine::model::{LoadOptions, Loaded, load};
use llm_engine::request::{Event, Request, Sampling};

/// A prompt whose sentences repeat each other, as in edited or quoted texts.
const REPEATS: &str = "Anna lives near the mill. Tom likes the brave queen. Anna lives near the mill. Tom likes the \
    brave queen. Anna lives near";

fn tiny_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny_llama/model")
}

fn devices() -> Vec<(&'static str, Device)> {
    let mut devices = vec![("cpu", Device::Cpu)];
    #[cfg(feature = "rocm-emulator")]
    devices.push(("rocm", gpu::rocm()));
    devices
}

fn limits() -> LoadOptions {
    LoadOptions { dtype: Some(DType::F32), cache_bytes: Some(8 << 20), ..LoadOptions::default() }
}

fn start(device: &Device, speculation: Option<Speculation>) -> Engine {
    start_loaded(load(&tiny_llama(), device, limits(), &mut |_| ()).unwrap(), speculation)
}

fn start_loaded(loaded: Loaded, speculation: Option<Speculation>) -> Engine {
    let Loaded { model, text, .. } = loaded;
    Engine::start(model, Arc::new(text), Options { speculation, ..Options::default() }).unwrap()
}

/// Generates a greedy text and a sampled one, one after the other. Returns their tokens, and the counters of each.
fn texts(engine: &Engine, tokens: usize) -> Vec<(Vec<u32>, [u64; 3])> {
    let request = |temperature| Request {
        prompt: engine.text().encode(REPEATS, true).unwrap(),
        max_tokens: Some(tokens),
        sampling: Sampling { temperature, seed: Some(1), ..Sampling::default() },
        ignore_eos: true,
        no_cached_prefix: true,
        ..Request::default()
    };
    let counters = |status: Status| [status.steps, status.tokens_drafted, status.tokens_accepted];
    let text = |temperature| {
        let before = counters(engine.status());
        let mut stream = engine.submit(request(temperature)).unwrap();
        let mut text = Vec::new();
        while let Some(event) = stream.blocking_next() {
            match event {
                Event::Token { token, .. } => text.push(token),
                Event::Error { message, .. } => panic!("{message}"),
                _ => {}
            }
        }
        let after = counters(engine.status());
        (text, [0, 1, 2].map(|number| after[number] - before[number]))
    };
    [0.0, 0.7].map(text).into()
}

/// Checks that speculation changes no text. The greedy one must take fewer steps. Prints the counters.
fn compare(name: &str, tokens: usize, plain: &Engine, speculating: &Engine) {
    let (expected, own) = (texts(plain, tokens), texts(speculating, tokens));
    for (kind, (own, expected)) in ["greedy", "sampled"].into_iter().zip(own.iter().zip(&expected)) {
        let (text, [steps, drafted, accepted]) = own;
        assert_eq!(*text, expected.0, "{name}, {kind}");
        assert_eq!(expected.1[1..], [0, 0]);
        println!(
            "{name}, {kind}: {accepted} of {drafted} draft tokens accepted, {} tokens in {steps} steps instead of {}",
            text.len(),
            expected.1[0]
        );
    }
    assert!(own[0].1[0] < expected[0].1[0], "{name}: {own:?}");
}

#[test]
fn prompt_lookup_changes_no_text() {
    for (name, device) in devices() {
        let tokens = if device.is_cpu() { 120 } else { 40 };
        let speculation = Some(Speculation { source: DraftSource::Ngram(2..=4), max_tokens: 7 });
        compare(name, tokens, &start(&device, None), &start(&device, speculation));
    }
}

#[test]
fn a_draft_model_changes_no_text() {
    let draft = tiny_llama().join("tiny-llama.q4_0.gguf");
    for (name, device) in devices() {
        let tokens = if device.is_cpu() { 120 } else { 40 };
        let loaded =
            load_with_draft(&tiny_llama(), &draft, std::slice::from_ref(&device), limits(), &mut |_| ())
                .unwrap();
        let alone = load(&tiny_llama(), &device, limits(), &mut |_| ()).unwrap();
        assert!(loaded.bytes > alone.bytes - alone.cache_bytes && loaded.cache_bytes <= 8 << 20);
        let blocks = loaded.model.capacity().blocks;
        assert!(blocks < alone.model.capacity().blocks, "the caches share the memory");
        // Loading with the size of both caches gives as many blocks.
        let again = LoadOptions { cache_bytes: Some(loaded.cache_bytes), ..limits() };
        let again = load_with_draft(&tiny_llama(), &draft, std::slice::from_ref(&device), again, &mut |_| ())
            .unwrap();
        assert_eq!((again.model.capacity().blocks, again.cache_bytes), (blocks, loaded.cache_bytes));
        let speculation = Some(Speculation { source: DraftSource::Model, max_tokens: 7 });
        compare(name, tokens, &start_loaded(alone, None), &start_loaded(loaded, speculation));
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embedding/data/qwen3-reranker.gguf");
    let error = load_with_draft(&tiny_llama(), &other, &[Device::Cpu], limits(), &mut |_| ()).err().unwrap();
    let mismatch = error.downcast_ref::<VocabularyMismatch>().unwrap();
    assert_eq!(mismatch.draft, "qwen3-reranker.gguf");
    assert!(mismatch.own != mismatch.expected, "{mismatch}");
    let missing = tiny_llama().join("no.gguf");
    let error =
        load_with_draft(&tiny_llama(), &missing, &[Device::Cpu], limits(), &mut |_| ()).err().unwrap();
    assert!(error.to_string().contains("no.gguf"), "{error:#}");
}
