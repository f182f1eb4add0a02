//! Concurrent requests generate the same text as when each runs alone.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use llm_engine::engine::{Engine, Options, Stream};
use llm_engine::request::{Constraint, Event, Request, Sampling, StopReason};
use llm_engine::step::BLOCK_SIZE;
use llm_engine::text::TextCodec;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokenizers::Tokenizer;

use super::mock::{END, Mock, MockCalls, StreamOutput, VOCABULARY, greedy, read, request, start, words};

const CONTEXT: usize = 200;

/// Creates requests of varied lengths: some with a common prefix, some with a seed, some that ignore the
/// end-of-text token.
fn requests(count: usize) -> Vec<Request> {
    let mut random = StdRng::seed_from_u64(5);
    let common: Vec<u32> = (0..60).map(|_| random.random_range(1..VOCABULARY as u32)).collect();
    let one = |number: usize| {
        let start = if number.is_multiple_of(2) { random.random_range(0..=60) } else { 0 };
        let own = random.random_range(1..70);
        let own: Vec<u32> = (0..own).map(|_| random.random_range(1..VOCABULARY as u32)).collect();
        let mut request = request([&common[..start], &own].concat(), random.random_range(1..70));
        request.ignore_eos = number.is_multiple_of(3);
        if number.is_multiple_of(4) {
            let seed = Some(number as u64);
            request.sampling = Sampling { seed, frequency_penalty: 0.5, ..Sampling::default() };
            request.logprobs = Some(2);
        }
        request
    };
    (0..count).map(one).collect()
}

fn engine(blocks: usize, options: Options) -> (Engine, Arc<MockCalls>) {
    let mock = Mock::new(blocks, CONTEXT);
    let calls = mock.calls.clone();
    (start(mock, options), calls)
}

/// Runs each request while nothing else runs.
fn alone(requests: &[Request]) -> Vec<StreamOutput> {
    let (engine, _) = engine(20, Options { prefix_cache: false, ..Options::default() });
    let output = requests.iter().map(|request| read(engine.submit(request.clone()).unwrap())).collect();
    engine.stop();
    output
}

fn together(engine: &Engine, requests: &[Request]) -> Vec<StreamOutput> {
    let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    streams.into_iter().map(read).collect()
}

/// Compares outputs except for the number of cached tokens.
fn assert_same(output: &[StreamOutput], expected: &[StreamOutput]) {
    assert_eq!(output.len(), expected.len());
    for (output, expected) in output.iter().zip(expected) {
        assert_eq!((&output.tokens, &output.text), (&expected.tokens, &expected.text));
        assert_eq!(output.reason(), expected.reason());
        assert_eq!(output.usage().prompt_tokens, expected.usage().prompt_tokens);
        assert_eq!(output.top.concat().len(), expected.top.concat().len());
    }
}

#[test]
fn greedy_text_follows_the_logits() {
    let requests: Vec<_> =
        requests(64).into_iter().filter(|request| request.sampling.temperature == 0.0).collect();
    for (output, request) in alone(&requests).iter().zip(&requests) {
        let (tokens, reason) = greedy(&request.prompt, request.max_tokens.unwrap(), request.ignore_eos);
        assert_eq!((output.reason(), &output.tokens), (reason, &tokens));
        assert_eq!(output.text, words(&tokens));
    }
}

#[test]
fn concurrent_texts_match_those_of_single_requests() {
    let requests = requests(64);
    let expected = alone(&requests);
    // (blocks, rows per step, prefix sharing): from enough blocks for all to little more than enough for one.
    let cases =
        [(800, 512, true), (800, 64, false), (60, 80, true), (20, 70, true), (20, 70, false), (13, 64, true)];
    for (blocks, step_tokens, prefix_cache) in cases {
        let (engine, calls) = engine(blocks, Options { step_tokens, prefix_cache, ..Options::default() });
        // The second run finds prefixes of the first in the cache.
        for _ in 0..2 {
            assert_same(&together(&engine, &requests), &expected);
        }
        let status = engine.status();
        assert_eq!((status.running, status.waiting, status.blocks_used), (0, 0, 0));
        assert_eq!(status.blocks, blocks);
        assert!(blocks == 60 || (status.preempted > 0) == (blocks < 60), "{status:?}");
        assert_eq!(status.tokens_cached > 0, prefix_cache, "{status:?}");
        assert!(calls.most_rows.load(Ordering::Relaxed) <= step_tokens);
        assert!(prefix_cache || calls.copies.load(Ordering::Relaxed) == 0);
        let written: usize = expected.iter().map(|output| output.tokens.len()).sum();
        assert_eq!(status.tokens_written as usize, 2 * written);
        assert_eq!(status.steps as usize, calls.steps.lock().unwrap().len());
        engine.stop();
    }
}

#[test]
fn requests_of_one_prompt_share_its_blocks() {
    let (engine, calls) = engine(200, Options::default());
    let prompt: Vec<u32> = (0..100).map(|i| i % 50 + 1).collect();
    let requests = vec![request(prompt.clone(), 10); 16];
    let output = together(&engine, &requests);
    let (tokens, _) = greedy(&prompt, 10, false);
    assert!(output.iter().all(|output| output.tokens == tokens));
    let status = engine.status();
    assert_eq!(status.tokens_read, 96 + 16 * 4, "each token of full blocks is computed once");
    let cached: usize = output.iter().map(|output| output.usage().cached_tokens).sum();
    assert_eq!((cached, status.tokens_cached), (15 * 96, 15 * 96));
    // The prompt fills whole blocks: only its last token is computed, in a copy of the last block.
    let whole = request(prompt[..96].to_vec(), 1);
    let output = read(engine.submit(whole).unwrap());
    assert_eq!((output.usage().cached_tokens, output.tokens), (95, greedy(&prompt[..96], 1, true).0));
    assert_eq!(engine.status().tokens_read, status.tokens_read + 1);
    assert_eq!(calls.copies.load(Ordering::Relaxed), 1);
    engine.stop();
}

#[test]
fn disconnected_clients_do_not_affect_others() {
    let mut requests = requests(96);
    let expected = alone(&requests);
    for blocks in [600, 40] {
        let (mock, permits) = Mock::new(blocks, CONTEXT).gated();
        let engine = start(mock, Options::default());
        // These would generate to the end of the context, which takes more steps than are permitted before
        // they leave.
        for request in requests.iter_mut().step_by(3) {
            (request.max_tokens, request.ignore_eos) = (None, true);
        }
        (0..30).for_each(|_| permits.send(()).unwrap());
        let streams = requests.iter().map(|request| engine.submit(request.clone()).unwrap());
        let streams: Vec<_> = streams.enumerate().collect();
        let (mut kept, mut cancelled) = (Vec::new(), Vec::new());
        for (number, stream) in streams {
            match (number % 3, number % 2) {
                (0, 0) => drop(stream),
                (0, _) => {
                    stream.cancel();
                    cancelled.push(stream);
                }
                _ => kept.push((number, stream)),
            }
        }
        drop(permits);
        assert!(cancelled.into_iter().map(read).all(|output| output.reason() == StopReason::Cancelled));
        for (number, stream) in kept {
            assert_same(&[read(stream)], &expected[number..=number]);
        }
        // Dropped streams are noticed between steps, so a further request is run to its end first.
        read(engine.submit(request(vec![1], 3)).unwrap());
        let status = engine.status();
        assert_eq!((status.running, status.waiting, status.blocks_used), (0, 0, 0));
        engine.stop();
    }
}

#[test]
fn a_running_text_can_be_cancelled() {
    let (mock, permits) = Mock::new(100, 10_000).gated();
    let engine = start(mock, Options::default());
    let endless = || Request { max_tokens: None, ignore_eos: true, ..request(vec![3; 5], 1) };
    let [mut stream, mut dropped] = [endless(), endless()].map(|request| engine.submit(request).unwrap());
    let tokens = |stream: &mut Stream, count: usize| {
        for _ in 0..count {
            permits.send(()).unwrap();
        }
        assert_eq!(stream.blocking_next(), Some(Event::Started));
        for _ in 0..count {
            assert!(matches!(stream.blocking_next(), Some(Event::Token { .. })));
        }
    };
    tokens(&mut stream, 3);
    assert_eq!(dropped.blocking_next(), Some(Event::Started));
    stream.cancel();
    drop(dropped);
    drop(permits);
    // The current step may still deliver a token.
    let end = std::iter::from_fn(|| stream.blocking_next()).last();
    let Some(Event::End { reason: StopReason::Cancelled, usage, .. }) = end else { panic!("{end:?}") };
    assert!((3..=5).contains(&usage.completion_tokens), "{usage:?}");
    engine.stop();
    assert_eq!(engine.status().blocks_used, 0);
}

#[test]
fn a_slow_reader_does_not_block_others() {
    let (engine, _) = engine(100, Options::default());
    let slow = engine.submit(Request { ignore_eos: true, ..request(vec![5; 20], 150) }).unwrap();
    let requests = requests(20);
    assert_same(&together(&engine, &requests), &alone(&requests));
    let output = read(slow);
    assert_eq!((output.tokens, output.end.unwrap().0), greedy(&[5; 20], 150, true));
    engine.stop();
}

#[test]
fn texts_end_at_stop_strings_and_limits() {
    let (engine, _) = engine(100, Options::default());
    let prompt = vec![7; 12];
    let (tokens, _) = greedy(&prompt, 40, true);
    let run = |request: Request| read(engine.submit(Request { ignore_eos: true, ..request }).unwrap());
    // The text ends before a stop string, wherever token boundaries lie.
    let stop = format!("{} w{}", tokens[10], tokens[11]);
    let before = words(&tokens);
    let output =
        run(Request { stop: vec!["none of this".into(), stop.clone()], ..request(prompt.clone(), 40) });
    assert_eq!(output.reason(), StopReason::Stop);
    assert_eq!(output.text, before[..before.find(&stop).unwrap()]);
    assert!(output.tokens.len() <= 12 && tokens.starts_with(&output.tokens));
    // A partial stop string is sent when the text ends.
    let held = format!("w{} and never this", tokens[4]);
    let output = run(Request { stop: vec![held], ..request(prompt.clone(), 5) });
    assert_eq!((output.reason(), output.text), (StopReason::Length, words(&tokens[..5])));
    // The text ends at the end of the context.
    let output = run(Request { max_tokens: None, ..request(prompt.clone(), 1) });
    assert_eq!((output.reason(), output.tokens.len()), (StopReason::Length, CONTEXT - 12));
    // A request may fill the context exactly.
    assert_eq!(run(request(vec![9; CONTEXT - 1], 1)).tokens.len(), 1);
    engine.stop();
}

#[test]
fn a_seed_determines_the_text() {
    let (engine, _) = engine(100, Options::default());
    let drawn = |seed| {
        let sampling = Sampling { seed, ..Sampling::default() };
        Request { sampling, ignore_eos: true, ..request(vec![4; 10], 50) }
    };
    let output = together(&engine, &[Some(1), Some(1), Some(2), None, None].map(drawn));
    assert_eq!(output[0].tokens, output[1].tokens);
    for (a, b) in [(0, 2), (2, 3), (3, 4)] {
        assert_ne!(output[a].tokens, output[b].tokens);
    }
    engine.stop();
}

#[test]
fn steps_respect_the_row_limit() {
    let (engine, calls) = engine(400, Options { max_running: 64, step_tokens: 16, ..Options::default() });
    let requests = requests(40);
    assert_same(&together(&engine, &requests), &alone(&requests));
    let steps = calls.steps.lock().unwrap();
    assert!(steps.iter().all(|&(sequences, rows)| sequences <= 16 && rows <= 16));
    assert!(steps.iter().any(|&(_, rows)| rows == 16));
    drop(steps);
    engine.stop();
}

#[test]
fn embeddings_are_computed_between_steps() {
    let (engine, _) = engine(100, Options { step_tokens: 64, ..Options::default() });
    let stream = engine.submit(Request { ignore_eos: true, ..request(vec![2; 9], 100) }).unwrap();
    let prompts: Vec<Vec<u32>> = (1..60).map(|length| vec![length % 50; length as usize]).collect();
    let expected: Vec<Vec<f32>> =
        prompts.iter().map(|prompt| vec![prompt[0] as f32, prompt.len() as f32]).collect();
    let [first, second, none] =
        [prompts.clone(), prompts, vec![]].map(|prompts| engine.embed(prompts).unwrap().blocking_recv());
    assert_eq!(first, Ok(Ok(expected.clone())));
    assert_eq!(second, Ok(Ok(expected)));
    assert_eq!(none, Ok(Ok(vec![])));
    assert_eq!(read(stream).tokens, greedy(&[2; 9], 100, true).0);
    engine.stop();
}

/// Returns a tokenizer of single-byte tokens, including those that JSON needs; the first token ends a text.
fn bytes() -> TextCodec {
    let bytes = ('!'..='~').filter(|char| char.is_ascii_punctuation() || char.is_ascii_lowercase());
    let tokens = ["<end>".to_owned()].into_iter().chain(bytes.map(String::from));
    let vocabulary: serde_json::Map<_, _> = tokens.zip((0..VOCABULARY).map(Into::into)).collect();
    let tokenizer = serde_json::json!({
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    TextCodec::new(Tokenizer::from_bytes(tokenizer.to_string()).unwrap(), vec![END], None).unwrap()
}

#[test]
fn constrained_and_free_requests_share_a_batch() {
    let engine =
        Engine::start(Box::new(Mock::new(200, CONTEXT)), Arc::new(bytes()), Options::default()).unwrap();
    let schema = serde_json::json!({"enum": ["yes", "no", "perhaps"]});
    let free = Request { ignore_eos: true, ..request(vec![5; 8], 30) };
    let held =
        |prompt| Request { constraint: Some(Constraint::JsonSchema(schema.clone())), ..request(prompt, 30) };
    let requests: Vec<_> =
        (1..20).flat_map(|token| [free.clone(), held(vec![token; BLOCK_SIZE + token as usize])]).collect();
    let output = together(&engine, &requests);
    for output in output.iter().skip(1).step_by(2) {
        assert_eq!(output.reason(), StopReason::Stop);
        assert!(["\"yes\"", "\"no\"", "\"perhaps\""].contains(&&*output.text), "{:?}", output.text);
    }
    let (expected, _) = greedy(&free.prompt, 30, true);
    assert!(output.iter().step_by(2).all(|output| output.tokens == expected));
    engine.stop();
}
