//! Unloading of an idle model. An idle time of zero unloads it as soon as no request is left, so that nothing waits.
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Result, bail};
use candle_core::Tensor;
use llm_engine::engine::{CacheEvent, Engine, ModelSource, ModelState, Options, Unloading, block_hash, seed};
use llm_engine::step::{Capacity, Step, StepModel};

use super::mock::{Mock, greedy, read, request, text};

/// A mock that reports when it is dropped.
struct Reporting {
    mock: Mock,
    dropped: Sender<&'static str>,
}

impl StepModel for Reporting {
    fn capacity(&self) -> Capacity {
        self.mock.capacity()
    }

    fn step(&mut self, step: &Step) -> candle_core::Result<Tensor> {
        self.mock.step(step)
    }

    fn check(&mut self) -> candle_core::Result<()> {
        self.mock.check()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> candle_core::Result<()> {
        self.mock.copy_blocks(pairs)
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> candle_core::Result<Tensor> {
        self.mock.embed(prompts)
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        let _ = self.dropped.send("dropped");
    }
}

/// Loads mocks of these numbers of blocks, and fails where there is none.
struct Loads {
    blocks: VecDeque<Option<usize>>,
    events: Sender<&'static str>,
}

impl ModelSource for Loads {
    fn load(&mut self) -> Result<Box<dyn StepModel>> {
        let Some(blocks) = self.blocks.pop_front().flatten() else { bail!("the disk is gone") };
        self.events.send("loaded")?;
        Ok(Box::new(Reporting { mock: Mock::new(blocks, 1000), dropped: self.events.clone() }))
    }

    fn release_memory(&mut self) {
        let _ = self.events.send("released");
    }
}

const BLOCKS: usize = 100;

fn engine(after: Duration, blocks: &[Option<usize>]) -> (Engine, Receiver<&'static str>) {
    let (events, received) = channel();
    let model = Reporting { mock: Mock::new(BLOCKS, 1000), dropped: events.clone() };
    let source = Box::new(Loads { blocks: blocks.iter().copied().collect(), events });
    let unloading = Some(Unloading { after_idle: Some(after), slot: None, source });
    (Engine::start_unloading(Box::new(model), text(), Options::default(), unloading).unwrap(), received)
}

fn expect(events: &Receiver<&'static str>, expected: &[&'static str]) {
    for expected in expected {
        assert_eq!(events.recv().unwrap(), *expected);
    }
}

#[test]
fn an_idle_model_is_unloaded_and_the_next_request_loads_it() {
    let (engine, events) = engine(Duration::ZERO, &[Some(BLOCKS); 3]);
    expect(&events, &["dropped", "released"]);
    // The cache of the model that was loaded again does not contain the blocks of the repeated prompt's prefix.
    for _ in 0..2 {
        let prompt = vec![5; 40];
        let output = read(engine.submit(request(prompt.clone(), 20)).unwrap());
        assert_eq!(output.tokens, greedy(&prompt, 20, false).0);
        assert_eq!(output.end.unwrap().1.cached_tokens, 0);
        expect(&events, &["loaded", "dropped", "released"]);
    }
    assert_eq!(engine.embed(vec![vec![1, 2]]).unwrap().blocking_recv().unwrap().unwrap(), [[1.0, 2.0]]);
    expect(&events, &["loaded", "dropped", "released"]);
    engine.stop();
    assert_eq!(engine.status().model, ModelState::Unloaded);
}

#[test]
fn a_model_that_cannot_be_loaded_fails_the_waiting_requests_only() {
    let (engine, events) = engine(Duration::ZERO, &[None, None, Some(BLOCKS - 1), Some(BLOCKS)]);
    expect(&events, &["dropped", "released"]);
    let fails = |expected: &str| {
        let (code, message) = read(engine.submit(request(vec![5; 4], 3)).unwrap()).end.unwrap_err();
        assert_eq!(code, "load_failed");
        assert!(message.contains(expected), "{message}");
    };
    fails("the disk is gone");
    let why = engine.embed(vec![vec![1, 2]]).unwrap().blocking_recv().unwrap().unwrap_err();
    assert!(why.contains("the disk is gone"), "{why}");
    // The requests' limits are those of the first model.
    fails("blocks: 99");
    expect(&events, &["loaded", "dropped"]);
    assert_eq!(read(engine.submit(request(vec![5; 4], 3)).unwrap()).tokens, greedy(&[5; 4], 3, false).0);
    assert_eq!(engine.status().failed, None);
    engine.stop();
}

#[test]
fn a_model_stays_loaded_until_its_time_is_over() {
    let (engine, events) = engine(Duration::from_secs(1 << 40), &[]);
    for _ in 0..3 {
        assert_eq!(read(engine.submit(request(vec![5; 4], 3)).unwrap()).tokens, greedy(&[5; 4], 3, false).0);
    }
    assert_eq!(engine.status().model, ModelState::Loaded);
    assert!(events.try_recv().is_err());
    engine.stop();
}

#[test]
fn a_held_model_stays_loaded() {
    let (engine, events) = engine(Duration::ZERO, &[Some(BLOCKS)]);
    expect(&events, &["dropped", "released"]);
    let hold = engine.hold();
    for _ in 0..3 {
        assert_eq!(read(engine.submit(request(vec![5; 4], 3)).unwrap()).tokens, greedy(&[5; 4], 3, false).0);
    }
    drop(hold);
    expect(&events, &["loaded", "dropped", "released"]);
    engine.stop();
}

#[test]
fn stored_and_freed_blocks_are_reported() {
    let (engine, _events) = engine(Duration::ZERO, &[Some(BLOCKS)]);
    let (sink, received) = channel();
    engine.record_cache_events(Box::new(move |events| sink.send(events).unwrap()));
    read(engine.submit(request(vec![5; 40], 1)).unwrap());
    // The model may have been unloaded before events were recorded, or after.
    let mut events = received.iter().flatten().skip_while(|event| *event == CacheEvent::Cleared);
    let first = block_hash(seed(0), &[5; 16]);
    let hashes = vec![first, block_hash(first, &[5; 16])];
    let stored = CacheEvent::Stored { hashes, parent: None, tokens: vec![5; 32] };
    assert_eq!(events.next(), Some(stored));
    assert_eq!(events.next(), Some(CacheEvent::Cleared));
    engine.stop();
}
