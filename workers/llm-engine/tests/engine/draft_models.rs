//! Speculation with a draft model, whose cache follows that of the model.
use std::sync::atomic::Ordering;
use std::time::Duration;

use llm_engine::engine::{
    DraftSource, Engine, MAX_DRAFT_TOKENS, ModelSource, Options, Speculation, Unloading,
};
use llm_engine::request::Request;
use llm_engine::step::StepModel;

use super::mock::{Fault, Mock, StreamOutput, read, request, start, text};
use super::speculation::{CONTEXT, PERIOD, assert_same_texts, requests};

fn speculation() -> Speculation {
    Speculation { source: DraftSource::Model, max_tokens: MAX_DRAFT_TOKENS }
}

fn options() -> Options {
    Options { speculation: Some(speculation()), ..Options::default() }
}

fn mock(blocks: usize) -> Mock {
    Mock::new(blocks, CONTEXT).repeating(PERIOD)
}

/// Generates a text that mostly repeats itself.
fn repeating(engine: &Engine) -> StreamOutput {
    read(engine.submit(Request { ignore_eos: true, ..request(vec![1, 2, 3, 4, 5, 1, 2], 100) }).unwrap())
}

#[test]
fn all_drafts_of_the_same_model_are_accepted() {
    // Any position that the draft model's cache lacks, or has of another text, would change its tokens.
    let mut requests = requests(70);
    // Drafts after a stop string are not accepted.
    requests.iter_mut().for_each(|request| request.stop.clear());
    assert_same_texts(
        &requests,
        |blocks| mock(blocks).drafted_by(mock(blocks)),
        &speculation(),
        |status| {
            assert!(status.tokens_drafted > 0);
            assert_eq!(status.tokens_accepted, status.tokens_drafted, "{status:?}");
        },
    );
}

#[test]
fn texts_equal_those_without_a_draft_model() {
    assert_same_texts(
        &requests(70),
        |blocks| mock(blocks).drafted_by(mock(blocks).with_noise(99)),
        &speculation(),
        |status| {
            assert!(
                0 < status.tokens_accepted && status.tokens_accepted < status.tokens_drafted,
                "{status:?}"
            )
        },
    );
}

#[test]
fn the_draft_model_reads_prompts_in_chunks() {
    let draft = mock(100);
    let calls = draft.calls.clone();
    let engine = start(mock(100).drafted_by(draft), Options { step_tokens: 40, ..options() });
    let prompt: Vec<u32> = (0..150).map(|place| place % PERIOD + 1).collect();
    let output = read(engine.submit(request(prompt.clone(), 40)).unwrap());
    assert!(output.usage().accepted_tokens > 20, "{output:?}");
    assert_eq!(calls.most_rows.load(Ordering::Relaxed), 40);
    let rows = || calls.steps.lock().unwrap().iter().map(|(_, rows)| rows).sum::<usize>();
    let before = rows();
    assert!(before < 150 + 2 * 40, "positions are computed once: {before}");
    // Shared blocks hold this prompt already, and the draft model has computed them.
    let again = read(engine.submit(request(prompt, 40)).unwrap());
    assert_eq!((&again.tokens, again.usage().cached_tokens > 100), (&output.tokens, true));
    assert!(rows() - before < 100, "{}", rows() - before);
    engine.stop();
}

#[test]
fn a_failed_draft_model_ends_only_speculation() {
    let expected = repeating(&start(mock(100), Options::default()));
    for (draft, speculates_later) in [
        (mock(100).failing(4, Fault::EveryStep), false),
        (mock(100).failing(4, Fault::OutOfMemory), false),
        // Without finite logits, there is no draft, but there may be one after another token.
        (mock(100).broken_by(3), true),
    ] {
        let engine = start(mock(100).drafted_by(draft), options());
        assert_eq!(repeating(&engine).tokens, expected.tokens);
        let drafted = engine.status().tokens_drafted;
        assert!(drafted > 0);
        assert_eq!(repeating(&engine).tokens, expected.tokens);
        assert_eq!(engine.status().tokens_drafted > drafted, speculates_later);
        assert_eq!(engine.status().failed, None);
        engine.stop();
    }
}

#[test]
fn texts_outgrow_the_draft_models_context() {
    let expected = repeating(&start(mock(100), Options::default()));
    let engine = start(mock(100).drafted_by(Mock::new(100, 40).repeating(PERIOD)), options());
    let output = repeating(&engine);
    assert_eq!(output.tokens, expected.tokens);
    assert!((1..=33).contains(&output.usage().drafted_tokens), "{output:?}");
    engine.stop();
}

/// Loads a mock with a draft model.
struct Source;

impl ModelSource for Source {
    fn load(&mut self) -> anyhow::Result<Box<dyn StepModel>> {
        Ok(Box::new(mock(100).drafted_by(mock(100))))
    }
}

#[test]
fn an_unloaded_draft_model_computes_its_cache_again() {
    let expected = repeating(&start(mock(100), Options::default()));
    let after_idle = Some(Duration::ZERO);
    let unloading = Unloading { after_idle, slot: None, source: Box::new(Source) };
    let model = Box::new(mock(100).drafted_by(mock(100)));
    let engine = Engine::start_unloading(model, text(), options(), Some(unloading)).unwrap();
    for _ in 0..3 {
        let output = repeating(&engine);
        assert_eq!(output.tokens, expected.tokens);
        assert_eq!(output.usage().drafted_tokens, output.usage().accepted_tokens);
        assert!(output.usage().accepted_tokens > 50);
    }
    engine.stop();
}

#[test]
fn missing_and_small_draft_models_are_refused() {
    for (model, expected) in [
        (mock(100), "requires a draft model, but none is loaded"),
        (mock(100).drafted_by(mock(99)), "the draft model's cache has 99 blocks instead of 100"),
    ] {
        let error = Engine::start(Box::new(model), text(), options()).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
