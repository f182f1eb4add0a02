//! Models with recurrent states: texts in batches, with preemptions, prefixes and failures, and what is refused.
use std::time::Duration;

use llm_engine::engine::{DraftSource, Engine, Options, Speculation};
use llm_engine::request::Request;

use super::mock::{Fault, Mock, greedy, read, request, start, text};
use super::speculation::{CONTEXT, PERIOD, assert_same_texts, requests};

/// Prompts of which several begin alike, and their numbers of tokens.
fn prompts() -> Vec<(Vec<u32>, usize)> {
    let prompt = |index: u32| {
        let common = (0..20 + index % 3 * 16).map(|token| token % 40 + 1 + index % 2);
        common.chain((0..index * 7 % 30).map(|token| (token * index) % 63 + 1)).collect()
    };
    (0..24).map(|index| (prompt(index), 3 + index as usize * 5 % 30)).collect()
}

fn texts(engine: &Engine) {
    let submit = |(prompt, tokens): (Vec<u32>, usize)| {
        let request = Request { ignore_eos: true, ..request(prompt.clone(), tokens) };
        (prompt, tokens, engine.submit(request).unwrap())
    };
    let streams: Vec<_> = prompts().into_iter().map(submit).collect();
    for (prompt, tokens, stream) in streams {
        assert_eq!(read(stream).tokens, greedy(&prompt, tokens, true).0, "{prompt:?}");
    }
}

#[test]
fn texts_do_not_depend_on_the_batch() {
    for (blocks, slots, prefix_cache, step_tokens) in
        [(400, 40, true, 512), (14, 5, true, 40), (14, 3, true, 16), (30, 8, false, 64), (14, 1, true, 8)]
    {
        let options = Options { prefix_cache, step_tokens, max_running: 16, ..Options::default() };
        let engine = start(Mock::new(blocks, 160).with_states(slots), options);
        // The second time, prefixes are cached.
        (0..2).for_each(|_| texts(&engine));
        let status = engine.status();
        assert_eq!((status.running, status.states, status.states_used), (0, slots, 0));
        // Checkpoints need slots of their own.
        assert_eq!(status.tokens_cached > 0, prefix_cache && slots > 1, "{status:?}");
    }
}

#[test]
fn preempted_texts_are_computed_again() {
    let options = Options { max_running: 4, ..Options::default() };
    let engine = start(Mock::new(10, 100).with_states(4), options);
    let prompt: Vec<u32> = (1..30).collect();
    let other = |index: u32| prompt.iter().map(|token| token + index).collect::<Vec<_>>();
    let streams: Vec<_> = (0..4)
        .map(|index| {
            let request = Request { ignore_eos: true, ..request(other(index), 60) };
            engine.submit(request).unwrap()
        })
        .collect();
    for (index, stream) in streams.into_iter().enumerate() {
        assert_eq!(read(stream).tokens, greedy(&other(index as u32), 60, true).0);
    }
    assert!(engine.status().preempted > 0);
}

/// The states of texts that have failed or were cancelled are free again, and their slots hold nothing of them.
#[test]
fn states_of_ended_texts_are_freed() {
    let options = Options { max_running: 2, ..Options::default() };
    let engine = start(Mock::new(40, 160).with_states(2).failing(3, Fault::OutOfMemory), options);
    let streams: Vec<_> = (0..2).map(|_| engine.submit(request((1..40).collect(), 50)).unwrap()).collect();
    assert!(streams.into_iter().map(read).any(|output| output.end.is_err()));
    drop(engine.submit(request((1..50).collect(), 100)).unwrap());
    texts(&engine);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(engine.status().states_used, 0);
}

fn speculation(source: DraftSource) -> Speculation {
    Speculation { source, max_tokens: 7 }
}

fn repeating(blocks: usize) -> Mock {
    Mock::new(blocks, CONTEXT).repeating(PERIOD)
}

/// Rejected drafts leave no traces in states, also if there are too few slots for all drafts.
#[test]
fn drafts_change_no_text() {
    let requests = requests(70);
    for slots in [7, 20, 200] {
        let model = |blocks| repeating(blocks).with_states(slots);
        assert_same_texts(&requests, model, &speculation(DraftSource::Ngram(1..=3)), |status| {
            assert!(
                0 < status.tokens_accepted && status.tokens_accepted < status.tokens_drafted,
                "{status:?}"
            );
            assert_eq!((status.states, status.states_used), (slots, 0));
        });
    }
    let model = |blocks| repeating(blocks).with_states(40).drafted_by(repeating(blocks).with_noise(99));
    assert_same_texts(&requests, model, &speculation(DraftSource::Model), |status| {
        assert!(0 < status.tokens_accepted && status.tokens_accepted < status.tokens_drafted, "{status:?}");
    });
}

/// Drafts use the slots of checkpoints, but not those of other texts.
#[test]
fn texts_without_spare_states_have_no_drafts() {
    for (slots, has_drafts) in [(1, false), (2, true)] {
        let speculation = Some(speculation(DraftSource::Ngram(1..=3)));
        let engine = start(repeating(100).with_states(slots), Options { speculation, ..Options::default() });
        let prompt: Vec<u32> = (0..40).map(|place| place % PERIOD + 1).collect();
        let output = read(engine.submit(request(prompt, 40)).unwrap());
        assert_eq!(output.usage().drafted_tokens > 0, has_drafts);
        assert_eq!(output.usage().accepted_tokens > 0, has_drafts);
    }
}

#[test]
fn draft_models_with_states_are_refused() {
    let mock = Mock::new(20, 100).drafted_by(Mock::new(20, 100).with_states(4));
    let options = Options { speculation: Some(speculation(DraftSource::Model)), ..Options::default() };
    let error = Engine::start(Box::new(mock), text(), options).err().unwrap().to_string();
    assert!(error.contains("a draft model with recurrent states"), "{error}");
}
