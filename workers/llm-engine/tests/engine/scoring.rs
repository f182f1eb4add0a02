//! Log probabilities of prompts.
use std::sync::atomic::Ordering;

use llm_engine::engine::Options;
use llm_engine::engine::scheduler::{Limits, Plan, Scheduler};
use llm_engine::engine::sequence::Sequence;
use llm_engine::request::{Request, StopReason, TokenLogProb};

use super::cache::digest_of;
use super::mock::{Fault, Mock, VOCABULARY, logits, read, request, start};

/// Computes the natural logarithms of all probabilities of the next token in f64.
fn log_softmax(tokens: &[u32]) -> Vec<f64> {
    let logits: Vec<f64> = logits(digest_of(tokens)).into_iter().map(f64::from).collect();
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit - sum.ln()).collect()
}

fn assert_scores(prompt: &[u32], scored: &[TokenLogProb], count: usize) {
    assert_eq!(scored.len(), prompt.len() - 1);
    for (place, scored) in scored.iter().enumerate() {
        let expected = log_softmax(&prompt[..=place]);
        assert_eq!(scored.actual.token, prompt[place + 1]);
        let error = f64::from(scored.actual.logprob) - expected[scored.actual.token as usize];
        assert!(error.abs() < 1e-5, "position {place}: {error}");
        let mut order: Vec<usize> = (0..VOCABULARY).collect();
        order.sort_by(|&one, &other| expected[other].total_cmp(&expected[one]).then(one.cmp(&other)));
        let top: Vec<usize> = scored.top.iter().map(|top| top.token as usize).collect();
        assert_eq!(top, order[..count]);
        assert!(
            scored.top.iter().all(|top| (f64::from(top.logprob) - expected[top.token as usize]).abs() < 1e-5)
        );
    }
}

fn prompt(length: usize, seed: usize) -> Vec<u32> {
    (0..length)
        .map(|place| ((place * 7 + place * place * seed + seed) % (VOCABULARY - 1) + 1) as u32)
        .collect()
}

fn scoring(prompt: Vec<u32>, max_tokens: usize, count: usize) -> Request {
    Request { prompt_logprobs: Some(count), ignore_eos: true, ..request(prompt, max_tokens) }
}

#[test]
fn prompts_are_scored_at_every_position() {
    // (blocks, rows per step): the last ones split prompts and preempt requests.
    for (blocks, step_tokens) in [(400, 512), (400, 16), (60, 24), (20, 20)] {
        let mock = Mock::new(blocks, 200);
        let calls = mock.calls.clone();
        let engine = start(mock, Options { step_tokens, ..Options::default() });
        let requests: Vec<Request> = (0..24)
            .map(|number| {
                let length = [1, 2, 3, 16, 17, 32, 33, 70][number % 8];
                // Some prompts are the same, so that cached blocks exist.
                scoring(prompt(length, number % 3), [0, 1, 20, 100][number % 4], number % 5)
            })
            .collect();
        for _ in 0..2 {
            let streams: Vec<_> =
                requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
            for (request, output) in requests.iter().zip(streams.into_iter().map(read)) {
                assert_eq!(output.reason(), StopReason::Length);
                assert_eq!(Some(output.tokens.len()), request.max_tokens);
                assert_eq!(output.usage().cached_tokens, 0, "cached positions have no logits");
                assert_scores(&request.prompt, &output.prompt, request.prompt_logprobs.unwrap());
            }
        }
        let status = engine.status();
        assert_eq!((status.running, status.blocks_used, status.failed), (0, 0, None));
        assert_eq!(status.preempted > 0, blocks < 60, "{blocks} blocks: {}", status.preempted);
        assert!(calls.most_rows.load(Ordering::Relaxed) <= step_tokens);
        engine.stop();
    }
}

#[test]
fn scored_and_other_requests_run_together() {
    let engine = start(Mock::new(400, 200), Options { step_tokens: 32, ..Options::default() });
    let prompt = prompt(60, 1);
    let plain = request(prompt.clone(), 20);
    let expected = read(engine.submit(plain.clone()).unwrap());
    let requests =
        [plain.clone(), scoring(prompt.clone(), 20, 3), plain.clone(), scoring(prompt.clone(), 0, 0)];
    let streams: Vec<_> = requests
        .iter()
        .map(|request| engine.submit(Request { ignore_eos: false, ..request.clone() }).unwrap())
        .collect();
    let outputs: Vec<_> = streams.into_iter().map(read).collect();
    for output in &outputs[..3] {
        assert_eq!(output.tokens, expected.tokens);
    }
    assert!(outputs[0].prompt.is_empty() && outputs[2].usage().cached_tokens > 0);
    assert_scores(&prompt, &outputs[1].prompt, 3);
    assert_scores(&prompt, &outputs[3].prompt, 0);
    // Blocks of scored prompts are kept for others.
    let more = Request { no_cached_prefix: true, ..plain.clone() };
    assert_eq!(read(engine.submit(more).unwrap()).usage().cached_tokens, 0);
    assert!(read(engine.submit(plain).unwrap()).usage().cached_tokens >= 48);
    engine.stop();
}

/// A prompt may fill the whole context if no token is to be generated.
#[test]
fn prompts_without_text_fill_the_context() {
    let engine = start(Mock::new(2, 1000), Options::default());
    for scores in [None, Some(1)] {
        let request = Request { prompt_logprobs: scores, ..request(prompt(32, 2), 0) };
        let output = read(engine.submit(request).unwrap());
        assert_eq!((output.reason(), output.tokens.len()), (StopReason::Length, 0));
        assert_eq!(output.prompt.len(), scores.map_or(0, |_| 31));
    }
    assert!(engine.submit(request(prompt(33, 2), 0)).is_err());
    engine.stop();
}

#[test]
fn logits_that_are_not_finite_fail_only_their_request() {
    let broken = prompt(20, 1)[10];
    let engine = start(Mock::new(400, 200).broken_by(broken), Options::default());
    let good: Vec<u32> = prompt(40, 1).into_iter().filter(|token| *token != broken).collect();
    let streams = [scoring(prompt(20, 1), 3, 1), scoring(good.clone(), 0, 1)];
    let streams = streams.map(|request| engine.submit(request).unwrap());
    let [failed, scored] = streams.map(read);
    assert_eq!(failed.end.map_err(|(code, _)| code), Err("sampling"));
    assert_scores(&good, &scored.prompt, 1);
    engine.stop();
}

#[test]
fn a_failed_step_ends_scoring_with_an_error() {
    let engine = start(
        Mock::new(400, 200).failing(1, Fault::OutOfMemory),
        Options { step_tokens: 16, ..Options::default() },
    );
    let output = read(engine.submit(scoring(prompt(40, 1), 0, 1)).unwrap());
    assert_eq!(output.end.map_err(|(code, _)| code), Err("out_of_memory"));
    let again = read(engine.submit(scoring(prompt(40, 1), 0, 1)).unwrap());
    assert_scores(&prompt(40, 1), &again.prompt, 1);
    engine.stop();
}

/// The number of logits in a step is bounded, and every position is returned once, in order.
#[test]
fn scored_rows_of_a_step_are_limited() {
    let limits = Limits { running: 8, rows: 64, prompt_rows: 64, scored_rows: 10 };
    let mut scheduler: Scheduler<Vec<usize>> = Scheduler::new(100, true, limits);
    let lengths = [1, 2, 25, 40, 9, 30];
    for (number, length) in lengths.into_iter().enumerate() {
        scheduler.submit(Sequence::new(prompt(length, number), Vec::new()).with_prompt_logits());
    }
    scheduler.submit(Sequence::new(prompt(50, 9), Vec::new()));
    let mut plan = Plan::default();
    let mut finished = Vec::new();
    for _ in 0..100 {
        scheduler.plan(&mut plan);
        if scheduler.is_empty() {
            break;
        }
        assert!(!plan.step.tokens.is_empty());
        let scored =
            plan.step.sequences.iter().filter(|sequence| sequence.logits > 1).map(|sequence| sequence.logits);
        assert!(scored.sum::<usize>() <= 10);
        scheduler.commit(&plan);
        for (sequence, step) in scheduler.planned().zip(&plan.step.sequences) {
            let returned = sequence.returned();
            assert_eq!(returned.len(), step.logits);
            sequence.writer.extend(returned.clone());
            sequence.set_scored(returned.end);
        }
        let is_done = |sequence: &mut Sequence<Vec<usize>>| sequence.computed() == sequence.prompt().len();
        scheduler.remove(is_done, &mut finished);
    }
    assert_eq!(finished.len(), lengths.len() + 1);
    for sequence in finished {
        let length = sequence.prompt().len();
        let expected: Vec<usize> = if length == 50 { vec![49] } else { (0..length).collect() };
        assert_eq!(sequence.writer, expected);
    }
}
