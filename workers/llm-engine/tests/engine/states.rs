//! Models with recurrent states: texts in batches, with preemptions, prefixes and failures, and what is refused.
use std::time::Duration;

use llm_engine::engine::{DraftSource, Engine, Options, Speculation};
use llm_engine::request::Request;

use super::mock::{Fault, Mock, greedy, read, request, start, text};

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

#[test]
fn speculation_is_refused() {
    let speculation = |source| Some(Speculation { source, max_tokens: 3 });
    let start = |mock: Mock, source| {
        let options = Options { speculation: speculation(source), ..Options::default() };
        Engine::start(Box::new(mock), text(), options).err().unwrap().to_string()
    };
    let model = || Mock::new(20, 100).with_states(4);
    let error = start(model(), DraftSource::Ngram(2..=3));
    assert!(error.contains("recurrent states") && error.contains("--speculative-config"), "{error}");
    let error = start(Mock::new(20, 100).drafted_by(model()), DraftSource::Model);
    assert!(error.contains("a draft model with recurrent states"), "{error}");
}
