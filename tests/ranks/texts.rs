//! Texts of the engine, which equal those of one device.
use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use candle_core::quantized::GgmlDType;
use llm_engine::engine::{DraftSource, Engine, Options, Speculation, Stream};
use llm_engine::model::drafted::load_with_draft;
use llm_engine::model::{LoadOptions, load_on, load_text};
use llm_engine::request::{Event, Request, Sampling};
use llm_engine::step::StepModel;
use serial_test::serial;

use super::{devices, load, models, options, with_devices};

const PROMPTS: [&str; 3] = ["Once upon a time", "Anna lives near the mill. Tom likes", "The queen"];

pub fn start(model: Box<dyn StepModel>) -> Engine {
    let text = load_text(&models::tiny_llama()).unwrap();
    Engine::start(model, Arc::new(text), Options::default()).unwrap()
}

/// Returns a request for a greedy text.
pub fn request(engine: &Engine, prompt: &str, max_tokens: usize) -> Request {
    Request {
        prompt: engine.text().encode(prompt, true).unwrap(),
        max_tokens: Some(max_tokens),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ignore_eos: true,
        ..Request::default()
    }
}

fn texts(model: Box<dyn StepModel>) -> Vec<Vec<u32>> {
    let engine = start(model);
    let tokens = texts_of(&engine);
    engine.stop();
    tokens
}

/// Generates texts together and returns their tokens.
fn texts_of(engine: &Engine) -> Vec<Vec<u32>> {
    let streams = PROMPTS.map(|prompt| engine.submit(request(engine, prompt, 14)).unwrap());
    streams.map(|mut stream| tokens(&mut stream)).into()
}

/// Returns the tokens of a text.
pub fn tokens(stream: &mut Stream) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::Token { token, .. } => tokens.push(token),
            Event::Error { message, .. } => panic!("{message}"),
            _ => {}
        }
    }
    tokens
}

fn assert_same(path: &Path, ranks: &[usize], options: LoadOptions) {
    let device = &devices(1)[0];
    let whole = llm_engine::model::load_decoder(path, device, options.clone(), &mut |_| ()).unwrap();
    let expected = texts(Box::new(whole));
    assert!(expected.iter().all(|tokens| tokens.len() == 14));
    for count in with_devices(ranks) {
        let found = texts(Box::new(load(path, count, options.clone()).unwrap()));
        assert_eq!(found, expected, "{} on {count} devices", path.display());
    }
}

#[test]
#[serial]
fn texts_of_a_llama_equal_those_of_one_device() {
    let folder = models::tiny_llama();
    for dtype in [DType::F32, DType::F16] {
        assert_same(&folder, &[1, 2, 4], options(Some(dtype)));
    }
    assert_same(&folder.join("tiny-llama.q8_0.gguf"), &[2, 4], options(None));
}

#[test]
#[serial]
fn texts_of_a_mixtral_equal_those_of_one_device() {
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &models::mixtral_config(), &models::weights(true, models::KEY_HEADS));
    for dtype in [DType::F32, DType::F16] {
        assert_same(folder.path(), &[1, 2, 4], options(Some(dtype)));
    }
    let file = models::write_mixtral_gguf(folder.path(), GgmlDType::Q8_0);
    assert_same(&file, &[2], options(None));
}

/// The draft model is on the first device.
#[test]
#[serial]
fn texts_with_a_draft_model_equal_those_of_one_device() {
    let folder = models::tiny_llama();
    let speculation = Some(Speculation { source: DraftSource::Model, max_tokens: 3 });
    let on = |ranks| {
        let draft = folder.join("tiny-llama.q8_0.gguf");
        let loaded =
            load_with_draft(&folder, &draft, &devices(ranks), options(Some(DType::F32)), &mut |_| ())
                .unwrap();
        let options = Options { speculation: speculation.clone(), ..Options::default() };
        let engine = Engine::start(loaded.model, Arc::new(loaded.text), options).unwrap();
        let tokens = texts_of(&engine);
        let status = engine.status();
        assert!(status.tokens_accepted > 0 && status.rank_times.len() == if ranks == 1 { 0 } else { ranks });
        engine.stop();
        tokens
    };
    assert_eq!(on(1), on(2));
}

#[test]
#[serial]
fn a_model_is_loaded_from_its_files_with_its_tokenizer() {
    let (devices, mut shares) = (devices(2), Vec::new());
    let loaded =
        load_on(&models::tiny_llama(), &devices, options(None), &mut |share| shares.push(share)).unwrap();
    assert!(shares.is_sorted() && shares.last() == Some(&1.0), "{shares:?}");
    assert_eq!(loaded.model.rank_times().len(), 2);
    let engine = Engine::start(loaded.model, Arc::new(loaded.text), Options::default()).unwrap();
    let mut stream = engine.submit(request(&engine, PROMPTS[0], 3)).unwrap();
    while stream.blocking_next().is_some() {}
    let status = engine.status();
    assert!(status.rank_times.iter().all(|time| !time.is_zero()), "{status:?}");
    let embeddings =
        engine.embed(vec![vec![1, 2, 3], vec![4; 40]]).unwrap().blocking_recv().unwrap().unwrap();
    assert_eq!(embeddings.len(), 2);
    engine.stop();
}
