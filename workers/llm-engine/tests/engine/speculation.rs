//! Speculation changes the number of steps, but no text.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use llm_engine::engine::{DraftSource, Engine, MAX_DRAFT_TOKENS, Options, Speculation, Status};
use llm_engine::request::{Constraint, Event, Request, Sampling, StopReason};
use llm_engine::step::StepModel;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::cache::digest_of;
use super::mock::{Mock, MockCalls, StreamOutput, read, repeating_logits, request, start, text};

pub const CONTEXT: usize = 200;
pub const PERIOD: u32 = 5;

pub fn ngrams(max_tokens: usize) -> Option<Speculation> {
    Some(Speculation { source: DraftSource::Ngram(1..=3), max_tokens })
}

fn engine(blocks: usize, options: Options) -> (Engine, Arc<MockCalls>) {
    let mock = Mock::new(blocks, CONTEXT).repeating(PERIOD);
    let calls = mock.calls.clone();
    (start(mock, options), calls)
}

/// Creates requests with all options that affect the choice of tokens.
pub fn requests(count: usize) -> Vec<Request> {
    let mut random = StdRng::seed_from_u64(3);
    let one = |number: usize| {
        let length = random.random_range(1..60);
        let prompt = (0..length).map(|place| (place + number as u32) % PERIOD + 1).collect();
        let mut request = request(prompt, random.random_range(1..90));
        request.ignore_eos = number.is_multiple_of(3);
        if number.is_multiple_of(2) {
            request.sampling =
                Sampling { seed: Some(number as u64), temperature: 0.8, ..Sampling::default() };
            request.logprobs = Some(2);
        }
        match number % 7 {
            1 => request.sampling.frequency_penalty = 0.1,
            2 => {
                request.sampling.repetition_penalty = 1.05;
                request.sampling.penalty_window = Some(number);
            }
            3 => request.stop = vec!["w4 w5 w2".into(), "w60".into()],
            4 => request.stop_token_ids = vec![7, 9, 11],
            5 => request.min_tokens = request.max_tokens.unwrap() / 2,
            6 => request.sampling.logit_bias = vec![(3, 5.0), (1, -2.0)],
            _ => request.prompt_logprobs = Some(1),
        }
        request
    };
    (0..count).map(one).collect()
}

fn together(engine: &Engine, requests: &[Request]) -> Vec<StreamOutput> {
    let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    streams.into_iter().map(read).collect()
}

/// Runs each request while nothing else runs, without speculation.
fn alone(requests: &[Request]) -> Vec<StreamOutput> {
    let (engine, _) = engine(20, Options { prefix_cache: false, ..Options::default() });
    let output = requests.iter().map(|request| read(engine.submit(request.clone()).unwrap())).collect();
    engine.stop();
    output
}

fn assert_same(output: &StreamOutput, expected: &StreamOutput, what: &str) {
    assert_eq!((&output.tokens, &output.text), (&expected.tokens, &expected.text), "{what}");
    assert_eq!((&output.top, &output.prompt), (&expected.top, &expected.prompt), "{what}");
    match (&output.end, &expected.end) {
        (Ok((reason, usage)), Ok((expected, plain))) => {
            assert_eq!((reason, usage.completion_tokens), (expected, plain.completion_tokens), "{what}");
            assert!(usage.accepted_tokens <= usage.drafted_tokens.min(usage.completion_tokens), "{what}");
        }
        (own, expected) => assert_eq!(own, expected, "{what}"),
    }
}

/// Checks that the texts of models, created for a number of blocks, are those without speculation. Passes the counters
/// of each run to `check`.
pub fn assert_same_texts(
    requests: &[Request],
    model: impl Fn(usize) -> Mock,
    speculation: &Speculation,
    check: impl Fn(&Status),
) {
    let expected = alone(requests);
    // (blocks, rows per step, requests in a batch, prefix sharing), with and without preemptions.
    for (blocks, step_tokens, max_running, prefix_cache) in [
        (800, 512, 1, true),
        (800, 512, 4, true),
        (800, 64, 16, false),
        (800, 512, 64, true),
        (24, 64, 6, true),
        (14, 40, 6, false),
    ] {
        let speculation = Some(speculation.clone());
        let options = Options { step_tokens, max_running, prefix_cache, speculation, ..Options::default() };
        let model = model(blocks);
        let calls = model.calls.clone();
        let engine = start(model, options);
        let what = format!("{blocks} blocks, {max_running} requests");
        for (output, expected) in together(&engine, requests).iter().zip(&expected) {
            assert_same(output, expected, &what);
        }
        let status = engine.status();
        assert_eq!((status.running, status.waiting, status.blocks_used), (0, 0, 0), "{what}");
        assert_eq!(status.preempted > 0, blocks < 800, "{what}");
        assert!(calls.most_rows.load(Ordering::Relaxed) <= step_tokens);
        let written: usize = expected.iter().map(|output| output.tokens.len()).sum();
        assert_eq!(status.tokens_written as usize, written);
        check(&status);
        if max_running == 1 {
            assert!(status.steps * 4 < status.tokens_written * 3, "{status:?}");
        }
        engine.stop();
    }
}

#[test]
fn texts_equal_those_without_speculation() {
    let model = |blocks| Mock::new(blocks, CONTEXT).repeating(PERIOD);
    assert_same_texts(&requests(70), model, &ngrams(MAX_DRAFT_TOKENS).unwrap(), |status| {
        assert!(0 < status.tokens_accepted && status.tokens_accepted < status.tokens_drafted, "{status:?}");
        assert!(0 < status.drafts && status.drafts <= status.tokens_drafted, "{status:?}");
    });
}

/// Returns the most likely text after `prompt`, with a repetition penalty for the last `window` tokens and a frequency penalty
/// for those among them that were generated.
fn penalized(prompt: &[u32], count: usize, window: usize, [repetition, frequency]: [f32; 2]) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + count {
        let last = tokens[tokens.len() - 1];
        let first = tokens.len().saturating_sub(window);
        let changed = |(token, logit): (u32, f32)| {
            let repeated = match tokens[first..].contains(&token) {
                true if logit > 0.0 => logit / repetition,
                true => logit * repetition,
                false => logit,
            };
            let written = &tokens[first.max(prompt.len())..];
            let number = written.iter().filter(|other| **other == token).count();
            (token, repeated - frequency * number as f32)
        };
        let logits = (0..).zip(repeating_logits(digest_of(&tokens), last, PERIOD)).map(changed);
        let larger = |best: (u32, f32), own: (u32, f32)| if own.1 > best.1 { own } else { best };
        tokens.push(logits.fold((0, f32::NEG_INFINITY), larger).0);
    }
    tokens.split_off(prompt.len())
}

/// Checks texts with penalties of models, created for a number of blocks: with drafts, windows and preemptions.
pub fn assert_penalties(model: impl Fn(usize) -> Mock) {
    let one = |number: usize| {
        let prompt: Vec<u32> = (0..20 + number as u32).map(|place| place % PERIOD + 1).collect();
        let (window, count) = ([0, 1, 7, 40, 1000][number % 5], 60 + number);
        let [repetition_penalty, frequency_penalty] = [[1.02, 0.0], [1.01, 0.005], [1.0, 0.01]][number % 3];
        let mut request = request(prompt.clone(), count);
        request.ignore_eos = true;
        request.sampling = Sampling {
            temperature: 0.0,
            repetition_penalty,
            frequency_penalty,
            penalty_window: Some(window),
            ..Sampling::default()
        };
        (request, penalized(&prompt, count, window, [repetition_penalty, frequency_penalty]))
    };
    let (requests, texts): (Vec<_>, Vec<_>) = (0..15).map(one).unzip();
    let with = |window, penalties| -> Vec<_> {
        requests
            .iter()
            .zip(&texts)
            .map(|(own, text)| penalized(&own.prompt, text.len(), window, penalties))
            .collect()
    };
    assert!(texts != with(0, [1.0, 0.0]), "penalties change no text");
    assert!(texts[5..10] != with(usize::MAX, [1.02, 0.0])[5..10], "windows change no text");
    for (blocks, is_scarce) in [(800, false), (14, true)] {
        let options = Options { speculation: ngrams(MAX_DRAFT_TOKENS), max_running: 8, ..Options::default() };
        let engine = start(model(blocks), options);
        for (number, (output, text)) in together(&engine, &requests).iter().zip(&texts).enumerate() {
            assert_eq!(output.tokens, *text, "text {number}, {blocks} blocks");
        }
        let status = engine.status();
        assert!(0 < status.tokens_accepted && status.tokens_accepted < status.tokens_drafted, "{status:?}");
        assert_eq!(status.preempted > 0, is_scarce, "{status:?}");
        engine.stop();
    }
}

#[test]
fn penalties_consider_the_window_of_each_text() {
    assert_penalties(|blocks| Mock::new(blocks, CONTEXT).repeating(PERIOD));
}

#[test]
fn repetitions_take_few_steps() {
    let steps = |speculation| {
        let mock = Mock::new(100, CONTEXT).repeating(1);
        let engine = start(mock, Options { speculation, ..Options::default() });
        // The bias makes the repetition certain.
        let mut repeating = request(vec![1; 8], 100);
        repeating.sampling.logit_bias = vec![(1, 100.0)];
        let output = read(engine.submit(repeating.clone()).unwrap());
        assert_eq!((output.tokens, output.end.unwrap().0), (vec![1; 100], StopReason::Length));
        let limited = read(engine.submit(Request { max_drafts: Some(0), ..repeating }).unwrap());
        assert_eq!(limited.usage().drafted_tokens, 0);
        let steps = engine.status().steps;
        engine.stop();
        steps - 100
    };
    assert_eq!(steps(None), 100);
    // The prompt's step drafts nothing; then 4, 8 and 16 tokens a step.
    assert_eq!(steps(ngrams(MAX_DRAFT_TOKENS)), 9);
    assert_eq!(steps(ngrams(3)), 26);
    assert_eq!(steps(ngrams(1)), 51);
}

#[test]
fn large_batches_have_no_drafts() {
    let speculation = ngrams(7);
    for (streams, has_drafts) in [(16, true), (17, false)] {
        let (mock, permits) = Mock::new(800, CONTEXT).repeating(1).gated();
        let calls = mock.calls.clone();
        let engine = start(mock, Options { speculation: speculation.clone(), ..Options::default() });
        let mut repeating = request(vec![1; 8], 40);
        repeating.sampling.logit_bias = vec![(1, 100.0)];
        let running: Vec<_> = (0..streams).map(|_| engine.submit(repeating.clone()).unwrap()).collect();
        drop(permits);
        running.into_iter().for_each(|stream| assert_eq!(read(stream).tokens, [1; 40]));
        let steps = calls.steps.lock().unwrap();
        assert_eq!(steps.contains(&(streams, 2 * streams)), has_drafts, "{steps:?}");
        drop(steps);
        engine.stop();
    }
}

#[test]
fn grammars_hold_at_every_position() {
    let constraints = [
        Constraint::Regex("(w1 w2 w3 w4 w5 )+w9".into()),
        Constraint::Regex("(w1 w2 w3 w4 w5 ){3}".into()),
        Constraint::Choice(vec!["w1 w2 w1 w2 w1 w2 w7".into(), "w1 w2 w1 w2 w1 w3".into()]),
    ];
    for (number, constraint) in constraints.into_iter().enumerate() {
        for seed in 0..8 {
            let mut constrained = request(vec![1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 60);
            constrained.constraint = Some(constraint.clone());
            constrained.min_tokens = 2;
            constrained.sampling = Sampling { seed: Some(seed), ..Sampling::default() };
            let run = |speculation| {
                let (engine, _) = engine(100, Options { speculation, ..Options::default() });
                let output = read(engine.submit(constrained.clone()).unwrap());
                engine.stop();
                output
            };
            let (plain, speculated) = (run(None), run(ngrams(7)));
            assert_same(&speculated, &plain, &format!("constraint {number}, seed {seed}"));
        }
    }
}

#[test]
fn a_broken_row_fails_only_if_it_is_reached() {
    let run = |speculation| {
        // Drafts contain the token, but after another that is always rejected.
        let engine = start(
            Mock::new(100, CONTEXT).repeating(PERIOD).broken_by(9),
            Options { speculation, ..Options::default() },
        );
        let mut request = request(vec![1, 2, 8, 9, 1, 1, 2], 20);
        request.sampling.logit_bias = vec![(8, -100.0), (9, -100.0)];
        let outputs = [
            read(engine.submit(request.clone()).unwrap()),
            // The text runs into the token.
            read(
                engine
                    .submit(Request {
                        sampling: Sampling { logit_bias: vec![(9, 100.0)], ..request.sampling.clone() },
                        ..request
                    })
                    .unwrap(),
            ),
        ];
        engine.stop();
        outputs
    };
    for (own, expected) in run(ngrams(7)).iter().zip(&run(None)) {
        assert_eq!(own.tokens, expected.tokens);
        assert_eq!(own.end.is_ok(), expected.end.is_ok());
    }
}

#[test]
fn cancelled_texts_give_back_all_blocks() {
    let (mock, permits) = Mock::new(100, CONTEXT).repeating(1).gated();
    let engine = start(mock, Options { speculation: ngrams(MAX_DRAFT_TOKENS), ..Options::default() });
    let mut endless = request(vec![1; 15], 180);
    endless.sampling.logit_bias = vec![(1, 100.0)];
    let mut streams: Vec<_> = (0..3).map(|_| engine.submit(endless.clone()).unwrap()).collect();
    for _ in 0..4 {
        permits.send(()).unwrap();
    }
    while !matches!(streams[0].blocking_next(), Some(Event::Token { .. })) {}
    streams[0].cancel();
    drop(streams.remove(1));
    drop(permits);
    let ends: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let mut reason = None;
            while let Some(event) = stream.blocking_next() {
                if let Event::End { reason: end, .. } = event {
                    reason = Some(end);
                }
            }
            reason.unwrap()
        })
        .collect();
    assert_eq!(ends[1], StopReason::Length);
    // A request without drafts is behind all others.
    read(engine.submit(request(vec![2], 1)).unwrap());
    assert_eq!((engine.status().blocks_used, engine.status().running), (0, 0));
    engine.stop();
}

/// Returns the probabilities of the most likely `kept` tokens after `tokens`.
fn probabilities(tokens: &[u32], kept: usize) -> Vec<(u32, f64)> {
    let logits = repeating_logits(digest_of(tokens), tokens[tokens.len() - 1], PERIOD);
    let mut sorted: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| f64::from(*logit))).collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    sorted.truncate(kept);
    let sum: f64 = sorted.iter().map(|(_, logit)| logit.exp()).sum();
    sorted.into_iter().map(|(token, logit)| (token, logit.exp() / sum)).collect()
}

#[test]
fn sampled_texts_have_the_distribution_of_the_model() {
    const TEXTS: usize = 4000;
    let prompt = vec![1, 2, 3, 4, 5, 1, 2];
    let (engine, _) = engine(
        4000,
        Options { max_running: 8, max_waiting: TEXTS, speculation: ngrams(3), ..Options::default() },
    );
    let one = |seed: usize| {
        let sampling = Sampling { seed: Some(seed as u64), top_k: Some(3), ..Sampling::default() };
        Request { sampling, ignore_eos: true, ..request(prompt.clone(), 3) }
    };
    let outputs = together(&engine, &(0..TEXTS).map(one).collect::<Vec<_>>());
    assert!(engine.status().tokens_accepted > 0);
    engine.stop();
    let mut expected = vec![(Vec::new(), 1.0)];
    for _ in 0..3 {
        let continued = |(text, share): &(Vec<u32>, f64)| {
            let next = probabilities(&[&prompt[..], text].concat(), 3).into_iter();
            let (text, share) = (text.clone(), *share);
            next.map(move |(token, own)| ([&text[..], &[token]].concat(), share * own)).collect::<Vec<_>>()
        };
        expected = expected.iter().flat_map(continued).collect();
    }
    let statistic: f64 = expected
        .iter()
        .map(|(text, share)| {
            let found = outputs.iter().filter(|output| output.tokens == *text).count() as f64;
            let mean = share * TEXTS as f64;
            (found - mean).powi(2) / mean
        })
        .sum();
    assert_eq!(expected.len(), 27);
    // The 99.9th percentile of the chi-squared distribution with 26 degrees of freedom.
    assert!(statistic < 54.05, "{statistic}");
}

#[test]
fn wrong_options_are_refused() {
    let start = |source, max_tokens| {
        let options = Options { speculation: Some(Speculation { source, max_tokens }), ..Options::default() };
        Engine::start(Box::new(Mock::new(10, 50)) as Box<dyn StepModel>, text(), options)
    };
    for (lengths, max_tokens, expected) in [
        (1..=3, 0, "0 draft tokens"),
        (1..=3, MAX_DRAFT_TOKENS + 1, "16 draft tokens in a step is not supported; use 1 to 15"),
        (0..=3, 1, "n-grams of 0 to 3"),
        #[allow(clippy::reversed_empty_ranges)]
        (3..=2, 1, "n-grams of 3 to 2"),
    ] {
        let error = start(DraftSource::Ngram(lengths), max_tokens).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    start(DraftSource::Ngram(1..=1), MAX_DRAFT_TOKENS).unwrap().stop();
}
