//! On ROCm, the text of a step is delivered while the next step is computed, and before embeddings, adapters and draft models are
//! computed.
use std::iter;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use candle_core::{Result, Tensor};
use llm_engine::engine::{DraftSource, Engine, MAX_DRAFT_TOKENS, Options, Speculation, Status, Stream};
use llm_engine::request::{Event, Request, StopReason};
use llm_engine::step::{Capacity, Step, StepModel};

use super::mock::{END, Fault, Mock, StreamOutput, greedy, read, request, start, text, words};
use super::speculation::{CONTEXT, PERIOD, assert_penalties, assert_same_texts, ngrams, requests};
use crate::gpu::rocm;

const PROMPT: [u32; 12] = [7; 12];

/// State of the streams when the engine calls the model.
struct Call {
    /// Number of sequences of the step; 0 for embeddings, and after the last step.
    sequences: usize,
    /// Events of each stream since the previous call.
    events: Vec<Vec<Event>>,
}

impl Call {
    /// Returns the number of tokens that a stream received.
    fn tokens(&self, stream: usize) -> usize {
        self.events[stream].iter().filter(|event| matches!(event, Event::Token { .. })).count()
    }
}

/// A mock that reads the streams at the beginning of each call.
struct Observer {
    mock: Mock,
    submitted: Receiver<Vec<Stream>>,
    streams: Vec<Stream>,
    calls: Sender<Call>,
}

impl Observer {
    fn observe(&mut self, sequences: usize) {
        if self.streams.is_empty() {
            self.streams = self.submitted.recv().unwrap();
        }
        let events = self.streams.iter_mut().map(unread).collect();
        self.calls.send(Call { sequences, events }).unwrap();
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.observe(0);
    }
}

impl StepModel for Observer {
    fn capacity(&self) -> Capacity {
        self.mock.capacity()
    }

    fn step(&mut self, step: &Step) -> Result<Tensor> {
        self.observe(step.sequences.len());
        self.mock.step(step)
    }

    fn draft_model(&mut self) -> Option<&mut dyn StepModel> {
        self.mock.draft_model()
    }

    fn check(&mut self) -> Result<()> {
        self.mock.check()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.mock.copy_blocks(pairs)
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> Result<Tensor> {
        self.observe(0);
        self.mock.embed(prompts)
    }
}

/// Returns the events that a stream has received.
fn unread(stream: &mut Stream) -> Vec<Event> {
    let mut context = Context::from_waker(Waker::noop());
    iter::from_fn(|| match pin!(stream.next()).poll(&mut context) {
        Poll::Ready(event) => event,
        Poll::Pending => None,
    })
    .collect()
}

/// Computes texts, and returns all calls of the model.
fn observe(mock: Mock, options: Options, submit: impl FnOnce(&Engine) -> Vec<Stream>) -> Vec<Call> {
    let ((streams, submitted), (calls, received)) = (channel(), channel());
    let model = Observer { mock, submitted, streams: Vec::new(), calls };
    let engine = Engine::start(Box::new(model), text(), options).unwrap();
    streams.send(submit(&engine)).unwrap();
    drop(engine);
    received.into_iter().collect()
}

/// Returns a request for a text that ends only at `max_tokens`.
fn endless(max_tokens: usize) -> Request {
    Request { ignore_eos: true, ..request(PROMPT.to_vec(), max_tokens) }
}

/// Returns a request whose text repeats the token 1.
fn repeating(max_tokens: usize) -> Request {
    let mut repeating = request(vec![1; 8], max_tokens);
    repeating.sampling.logit_bias = vec![(1, 100.0)];
    repeating
}

fn run(mock: Mock, request: Request) -> StreamOutput {
    let engine = start(mock, Options::default());
    let output = read(engine.submit(request).unwrap());
    engine.stop();
    output
}

fn mock() -> Mock {
    Mock::new(100, CONTEXT).on(rocm())
}

#[test]
fn texts_are_delivered_after_the_launch_of_the_next_step() {
    let submit = |engine: &Engine| vec![engine.submit(endless(6)).unwrap()];
    let calls = observe(mock(), Options::default(), submit);
    assert_eq!(calls[0].events, [[Event::Started]]);
    let tokens: Vec<_> = calls.iter().map(|call| call.tokens(0)).collect();
    // The last two follow the launch of the last step: the text ends with it.
    assert_eq!(tokens, [0, 0, 1, 1, 1, 1, 2]);
    assert!(matches!(calls[6].events[0][..], [.., Event::Token { .. }, Event::End { .. }]));
    // On the CPU, the step itself would delay them.
    let calls = observe(Mock::new(100, CONTEXT), Options::default(), submit);
    assert_eq!(calls.iter().map(|call| call.tokens(0)).collect::<Vec<_>>(), [0, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn accepted_drafts_are_delivered_together() {
    let options = Options { speculation: ngrams(MAX_DRAFT_TOKENS), ..Options::default() };
    let submit = |engine: &Engine| vec![engine.submit(repeating(40)).unwrap()];
    let calls = observe(mock().repeating(1), options, submit);
    let tokens: Vec<_> = calls.iter().map(|call| call.tokens(0)).collect();
    assert_eq!(tokens, [0, 0, 1, 4, 8, 27]);
}

#[test]
fn texts_are_delivered_before_those_of_others_are_drafted() {
    let mock = mock().repeating(1).drafted_by(Mock::new(100, CONTEXT).repeating(1).on(rocm()));
    let by_model = Some(Speculation { source: DraftSource::Model, max_tokens: 7 });
    let options = Options { speculation: by_model, ..Options::default() };
    let calls = observe(mock, options, |engine| {
        let undrafted = Request { max_drafts: Some(0), ..repeating(40) };
        [repeating(40), undrafted].map(|request| engine.submit(request).unwrap()).into()
    });
    // The step with the drafts follows the delivery of the tokens of the step before it.
    let first_of_both = calls.iter().position(|call| call.sequences == 2).unwrap();
    assert_eq!([calls[1].tokens(0), calls[first_of_both + 1].tokens(1)], [1, 1]);
}

#[test]
fn texts_on_rocm_equal_those_on_the_cpu() {
    let model = |blocks| Mock::new(blocks, CONTEXT).repeating(PERIOD).on(rocm());
    let drafted = |blocks| model(blocks).drafted_by(model(blocks).with_noise(99));
    let drafts = |status: &Status| assert!(status.tokens_accepted < status.tokens_drafted, "{status:?}");
    assert_same_texts(&requests(70), model, &ngrams(MAX_DRAFT_TOKENS).unwrap(), drafts);
    let by_model = Speculation { source: DraftSource::Model, max_tokens: 7 };
    assert_same_texts(&requests(70), drafted, &by_model, drafts);
    assert_penalties(model);
}

#[test]
fn texts_of_preempted_sequences_are_delivered() {
    let endless = |token| Request { ignore_eos: true, ..request(vec![token; 15], 20) };
    let options = Options { prefix_cache: false, ..Options::default() };
    let calls = observe(Mock::new(4, CONTEXT).on(rocm()), options, |engine| {
        [1, 2].map(|token| engine.submit(endless(token)).unwrap()).into()
    });
    let both: Vec<usize> = (0..calls.len()).filter(|call| calls[*call].sequences == 2).collect();
    let preempted = both[both.len() - 1] + 1;
    let delivered = |end: usize| calls[..end].iter().map(|call| call.tokens(1)).sum::<usize>();
    assert_eq!([preempted + 1, preempted + 2].map(delivered), [both.len() - 1, both.len()]);
    assert_eq!(delivered(calls.len()), 20);
}

#[test]
fn texts_do_not_wait_for_embeddings() {
    let mut embedding = None;
    let calls = observe(mock(), Options::default(), |engine| {
        let mut stream = engine.submit(Request { ignore_eos: true, ..request(vec![3; 5], 4) }).unwrap();
        // The first step has begun.
        assert_eq!(stream.blocking_next(), Some(Event::Started));
        embedding = Some(engine.embed(vec![vec![1, 2]]).unwrap());
        vec![stream]
    });
    let computed = calls.iter().enumerate().find(|(index, call)| *index > 0 && call.sequences == 0);
    assert_eq!(computed.map(|(index, call)| (index, call.tokens(0))), Some((1, 1)));
    assert!(embedding.unwrap().blocking_recv().unwrap().is_ok());
}

#[test]
fn stop_strings_end_texts_before_their_next_row() {
    let (tokens, _) = greedy(&PROMPT, 40, true);
    let (whole, stop) = (words(&tokens), format!("{} w{}", tokens[10], tokens[11]));
    let count = (1..=40).find(|count| words(&tokens[..*count]).contains(&stop)).unwrap();
    let engine = start(mock(), Options::default());
    let request = Request { stop: vec![stop.clone()], ..endless(40) };
    let output = read(engine.submit(request).unwrap());
    assert_eq!((output.reason(), &output.tokens[..]), (StopReason::Stop, &tokens[..count]));
    assert_eq!(output.text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(output.usage().completion_tokens, count);
    let status = engine.status();
    assert_eq!((status.tokens_written as usize, status.steps as usize), (count, count));
    assert_eq!((status.running, status.blocks_used), (0, 0));
    engine.stop();
}

#[test]
fn stop_strings_end_texts_before_further_accepted_drafts() {
    let engine =
        start(mock().repeating(1), Options { speculation: ngrams(MAX_DRAFT_TOKENS), ..Options::default() });
    let output = read(engine.submit(Request { stop: vec![words(&[1; 7])], ..repeating(40) }).unwrap());
    assert_eq!((output.reason(), output.tokens.len(), &*output.text), (StopReason::Stop, 7, ""));
    // The step with eight tokens ends after two of them.
    let usage = output.usage();
    assert_eq!((usage.completion_tokens, usage.drafted_tokens, usage.accepted_tokens), (7, 10, 5));
    let status = engine.status();
    assert_eq!((status.tokens_written, status.tokens_drafted, status.tokens_accepted), (7, 10, 5));
    assert_eq!(status.blocks_used, 0);
    engine.stop();
}

#[test]
fn the_last_tokens_precede_each_kind_of_ending() {
    let (tokens, _) = greedy(&PROMPT, 40, true);
    let output = run(mock(), endless(5));
    assert_eq!((output.reason(), &output.tokens[..]), (StopReason::Length, &tokens[..5]));
    assert!(run(mock(), endless(0)).tokens.is_empty());
    let last = tokens[5];
    let first = tokens.iter().position(|token| *token == last).unwrap();
    let output = run(mock(), Request { stop_token_ids: vec![last], ..endless(40) });
    assert_eq!((output.reason(), &output.tokens[..]), (StopReason::Stop, &tokens[..first]));
    let mut ends = request(PROMPT.to_vec(), 40);
    ends.sampling.logit_bias = vec![(END, 100.0)];
    ends.min_tokens = 3;
    let output = run(mock(), ends);
    assert_eq!((output.reason(), output.tokens.len()), (StopReason::Stop, 3));
}

#[test]
fn the_last_tokens_precede_the_error_of_a_failed_step() {
    for (fault, expected) in [
        (Fault::OutOfMemory, "out_of_memory"),
        (Fault::EveryStep, "step_failed"),
        (Fault::DeviceLost, "device_lost"),
        (Fault::Panic, "engine_failed"),
    ] {
        let output = run(mock().failing(5, fault), endless(40));
        assert_eq!(output.tokens, greedy(&PROMPT, 5, true).0, "{fault:?}");
        assert_eq!(output.end.unwrap_err().0, expected);
    }
}

#[test]
fn the_last_tokens_precede_a_stop_of_the_engine() {
    let (mock, permits) = mock().gated();
    let engine = start(mock, Options::default());
    let mut stream = engine.submit(request(PROMPT.to_vec(), 40)).unwrap();
    assert_eq!(stream.blocking_next(), Some(Event::Started));
    assert!(!engine.stop_within(Duration::ZERO));
    drop(permits);
    engine.stop();
    let events = unread(&mut stream);
    let [Event::Token { .. }, Event::End { reason, usage, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*reason, usage.completion_tokens), (StopReason::Cancelled, 1));
}
