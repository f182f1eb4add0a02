//! Speculation with the trained tiny Llama, on the CPU and on the software GPU: texts stay the same and take fewer steps.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};
use llm_engine::engine::{DraftSource, Engine, Options, Speculation, Status};
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
    {
        // Falls back to the software GPU.
        if matches!(rocm_loader::driver(), Err(rocm_loader::LoadError::NoGpu { .. })) {
            rocm_loader::select("emulator:gfx1100").unwrap();
        }
        devices.push(("rocm", Device::new_rocm(0).unwrap()));
    }
    devices
}

fn start(device: &Device, speculation: Option<Speculation>) -> Engine {
    let limits =
        LoadOptions { dtype: Some(DType::F32), cache_bytes: Some(8 << 20), ..LoadOptions::default() };
    let Loaded { model, text, .. } = load(&tiny_llama(), device, limits, &mut |_| ()).unwrap();
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
