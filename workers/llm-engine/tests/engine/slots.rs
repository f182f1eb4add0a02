//! Engines that share slots for their models.
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Result;
use llm_engine::engine::{Engine, ModelSlot, ModelSlots, ModelSource, ModelState, Options, Unloading};
use llm_engine::request::StopReason;
use llm_engine::step::StepModel;

use super::mock::{Mock, greedy, read, request, text};

/// Requests a slot, as another model does.
fn other(slots: &ModelSlots) -> Receiver<ModelSlot> {
    let (sender, receiver) = channel();
    slots.request(move |slot| drop(sender.send(slot)));
    receiver
}

fn mock() -> Mock {
    Mock::new(100, 1000)
}

struct Source;

impl ModelSource for Source {
    fn load(&mut self) -> Result<Box<dyn StepModel>> {
        Ok(Box::new(mock()))
    }
}

/// Starts an engine with the only slot. Each step of its first model waits for a permit, until the sender is dropped.
fn engine() -> (Engine, ModelSlots, Sender<()>) {
    let slots = ModelSlots::new(1);
    let slot = Some(other(&slots).recv().unwrap());
    let (model, permits) = mock().gated();
    let unloading = Some(Unloading { after_idle: None, slot, source: Box::new(Source) });
    let engine = Engine::start_unloading(Box::new(model), text(), Options::default(), unloading).unwrap();
    (engine, slots, permits)
}

#[test]
fn a_claimed_model_is_unloaded_after_the_requests_before_the_claim() {
    let (engine, slots, permits) = engine();
    engine.allow_claims();
    // The engine handles commands in their order, so it allows claims now.
    engine.embed(vec![vec![1, 2]]).unwrap().blocking_recv().unwrap().unwrap();
    let first = engine.submit(request(vec![5; 4], 20)).unwrap();
    let claim = other(&slots);
    let later = engine.submit(request(vec![6; 4], 3)).unwrap();
    let job = engine.embed(vec![vec![1, 2]]).unwrap();
    drop(permits);
    let first = read(first);
    assert_eq!(first.tokens, greedy(&[5; 4], 20, false).0);
    let slot = claim.recv().unwrap();
    assert_ne!(engine.status().model, ModelState::Loaded);
    assert_eq!(engine.status().waiting, 2);
    drop(slot);
    assert_eq!(read(later).tokens, greedy(&[6; 4], 3, false).0);
    assert_eq!(job.blocking_recv().unwrap().unwrap(), [[1.0, 2.0]]);
    assert_eq!(engine.status().model, ModelState::Loaded);
    // An idle model is unloaded at once.
    drop(other(&slots).recv().unwrap());
    engine.stop();
}

#[test]
fn a_held_model_stays_until_its_request_is_queued() {
    let (engine, slots, permits) = engine();
    drop(permits);
    let claim = other(&slots);
    let hold = engine.hold();
    engine.allow_claims();
    for _ in 0..2 {
        assert_eq!(read(engine.submit(request(vec![5; 4], 3)).unwrap()).tokens, greedy(&[5; 4], 3, false).0);
        assert!(claim.try_recv().is_err());
    }
    drop(hold);
    drop(claim.recv().unwrap());
    engine.stop();
}

#[test]
fn a_slot_for_a_cancelled_request_is_given_back() {
    let (engine, slots, permits) = engine();
    drop(permits);
    engine.allow_claims();
    let slot = other(&slots).recv().unwrap();
    let stream = engine.submit(request(vec![5; 4], 3)).unwrap();
    drop(stream);
    let next = other(&slots);
    drop(slot);
    drop(next.recv().unwrap());
    engine.stop();
}

#[test]
fn an_engine_that_waits_for_a_slot_can_be_stopped() {
    let (engine, slots, permits) = engine();
    drop(permits);
    engine.allow_claims();
    let _slot = other(&slots).recv().unwrap();
    let stream = engine.submit(request(vec![5; 4], 3)).unwrap();
    engine.stop();
    assert_eq!(read(stream).reason(), StopReason::Cancelled);
}

#[test]
fn a_request_that_waits_for_a_slot_can_be_cancelled() {
    let (engine, slots, permits) = engine();
    drop(permits);
    engine.allow_claims();
    let slot = other(&slots).recv().unwrap();
    let [cancelled, other] = [5, 6].map(|token| engine.submit(request(vec![token; 4], 3)).unwrap());
    cancelled.cancel();
    assert_eq!(read(cancelled).reason(), StopReason::Cancelled);
    drop(slot);
    assert_eq!(read(other).tokens, greedy(&[6; 4], 3, false).0);
    engine.stop();
}

#[test]
fn requests_to_many_models_in_few_slots_all_end() {
    let slots = ModelSlots::new(2);
    let engines: Vec<Engine> = (0..5)
        .map(|_| {
            let slot = Some(other(&slots).recv().unwrap());
            let unloading = Some(Unloading { after_idle: None, slot, source: Box::new(Source) });
            let model = Box::new(mock());
            let engine = Engine::start_unloading(model, text(), Options::default(), unloading).unwrap();
            engine.allow_claims();
            engine
        })
        .collect();
    let streams: Vec<_> = (0..200u32)
        .map(|index| {
            let prompt = vec![index % 7 + 1; 4];
            let stream = engines[index as usize * 3 % 5].submit(request(prompt.clone(), 5)).unwrap();
            (prompt, stream)
        })
        .collect();
    for (prompt, stream) in streams {
        assert_eq!(read(stream).tokens, greedy(&prompt, 5, false).0);
    }
    engines.iter().for_each(Engine::stop);
}
