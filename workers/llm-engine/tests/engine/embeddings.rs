//! Batches and places of embedding jobs.
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use candle_core::{Device, Result, Tensor, bail};
use llm_engine::engine::{Engine, Options};
use llm_engine::request::{Request, RequestError};
use llm_engine::step::{Capacity, PartialWork, Step, StepModel, Tasks};

use super::mock::text;

/// Lengths of the prompts of each batch.
type Batches = Arc<Mutex<Vec<Vec<usize>>>>;

/// A model that waits for a permit before each batch, until the sender is dropped.
struct Recorder {
    batches: Batches,
    permits: Receiver<()>,
    tasks: Tasks,
}

impl StepModel for Recorder {
    fn capacity(&self) -> Capacity {
        Capacity { vocabulary: 64, context: 1000, blocks: 63, states: None }
    }

    fn tasks(&self) -> Tasks {
        self.tasks
    }

    fn step(&mut self, _: &Step) -> Result<Tensor> {
        bail!("the model only computes embeddings")
    }

    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    fn copy_blocks(&mut self, _: &[(u32, u32)]) -> Result<()> {
        Ok(())
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> Result<Tensor> {
        let _ = self.permits.recv();
        self.batches.lock().unwrap().push(prompts.iter().map(Vec::len).collect());
        if prompts.iter().any(|prompt| prompt[0] == 63) {
            bail!("the token is broken")
        }
        let firsts: Vec<f32> = prompts.iter().map(|prompt| prompt[0] as f32).collect();
        Tensor::from_vec(firsts, (prompts.len(), 1), &Device::Cpu)
    }

    fn embed_part(
        &mut self,
        prompts: &[Vec<u32>],
        max_rows: usize,
        work: &mut Option<PartialWork>,
    ) -> Result<Option<Tensor>> {
        let rows: usize = prompts.iter().map(Vec::len).sum();
        let done = work.take().map_or(0, |work| *work.downcast::<usize>().unwrap()) + max_rows;
        if done >= rows {
            return self.embed(prompts).map(Some);
        }
        self.batches.lock().unwrap().push(vec![]);
        *work = Some(Box::new(done));
        Ok(None)
    }

    fn classify(&mut self, prompts: &[Vec<u32>], seconds: &[usize]) -> Result<Tensor> {
        let _ = self.permits.recv();
        self.batches.lock().unwrap().push(prompts.iter().map(Vec::len).collect());
        let values: Vec<f32> = seconds.iter().map(|second| *second as f32).collect();
        Tensor::from_vec(values, (prompts.len(), 1), &Device::Cpu)
    }
}

fn start(tasks: Tasks, options: Options) -> (Engine, Batches, Sender<()>) {
    let (sender, permits) = channel();
    let batches = Batches::default();
    let model = Recorder { batches: batches.clone(), permits, tasks };
    (Engine::start(Box::new(model), text(), options).unwrap(), batches, sender)
}

const EMBEDS: Tasks = Tasks { generate: false, embed: true, classify: false, width: Some(1) };
const SCORES: Tasks = Tasks { generate: false, embed: false, classify: true, width: None };

fn prompts(lengths: &[usize]) -> Vec<Vec<u32>> {
    (1..).zip(lengths).map(|(first, length)| vec![first; *length]).collect()
}

fn vectors(count: u32) -> Vec<Vec<f32>> {
    (1..=count).map(|first| vec![first as f32]).collect()
}

#[test]
fn a_batch_has_texts_of_several_jobs() {
    let (engine, batches, permits) = start(EMBEDS, Options { step_tokens: 20, ..Options::default() });
    // The first batch waits for a permit, while the other jobs arrive.
    let first = engine.embed(prompts(&[3])).unwrap();
    let large = engine.embed(prompts(&[10, 10, 10, 10, 10])).unwrap();
    let small = engine.embed(prompts(&[5, 4])).unwrap();
    let long = engine.embed(prompts(&[100])).unwrap();
    drop(permits);
    for (job, count) in [(first, 1), (large, 5), (small, 2), (long, 1)] {
        assert_eq!(job.blocking_recv().unwrap(), Ok(vectors(count)));
    }
    let batches = batches.lock().unwrap();
    let total: usize = batches.iter().flatten().sum();
    assert_eq!(total, 3 + 50 + 9 + 100);
    assert!(batches.iter().all(|batch| batch.iter().sum::<usize>() <= 20 || batch == &[100]), "{batches:?}");
    let is_mixed = |batch: &Vec<usize>| batch.contains(&10) && batch.iter().any(|length| *length < 10);
    assert!(batches.iter().any(is_mixed) && batches.len() <= 10, "{batches:?}");
    engine.stop();
}

#[test]
fn a_long_prompt_is_computed_in_parts() {
    let (engine, batches, permits) = start(EMBEDS, Options { step_tokens: 10, ..Options::default() });
    let first = engine.embed(prompts(&[1])).unwrap();
    let long = engine.embed(prompts(&[35, 2])).unwrap();
    let short = engine.embed(prompts(&[3])).unwrap();
    drop(permits);
    for (job, count) in [(first, 1), (long, 2), (short, 1)] {
        assert_eq!(job.blocking_recv().unwrap(), Ok(vectors(count)));
    }
    let batches = batches.lock().unwrap();
    assert_eq!(batches.iter().filter(|batch| batch.is_empty()).count(), 3, "{batches:?}");
    let [short, long] = [3, 35].map(|length| batches.iter().position(|batch| batch.contains(&length)));
    assert!(short < long, "{batches:?}");
    engine.stop();
}

#[test]
fn jobs_take_a_place_for_each_batch() {
    let options = Options { step_tokens: 10, max_running: 2, max_waiting: 3, ..Options::default() };
    let (engine, _, permits) = start(EMBEDS, options);
    let jobs = [engine.embed(prompts(&[10, 10, 5])).unwrap(), engine.embed(prompts(&[1])).unwrap()];
    assert_eq!(engine.status().waiting, 4);
    assert_eq!(engine.embed(prompts(&[20])).err(), Some(RequestError::QueueFull { waiting: 4 }));
    let last = engine.embed(prompts(&[10])).unwrap();
    permits.send(()).unwrap();
    drop(permits);
    for job in jobs.into_iter().chain([last]) {
        assert!(job.blocking_recv().unwrap().is_ok());
    }
    assert_eq!(engine.status().waiting, 0);
    // A job that is larger than the queue is accepted if the queue is empty.
    assert!(engine.embed(prompts(&[10; 50])).unwrap().blocking_recv().unwrap().is_ok());
    engine.stop();
}

#[test]
fn pairs_are_scored_with_their_segments() {
    let (engine, batches, permits) = start(SCORES, Options { step_tokens: 10, ..Options::default() });
    drop(permits);
    let scores = engine.classify(prompts(&[4, 4, 4]), vec![1, 2, 3]).unwrap().blocking_recv().unwrap();
    assert_eq!(scores, Ok(vec![vec![1.0], vec![2.0], vec![3.0]]));
    assert_eq!(*batches.lock().unwrap(), [vec![4, 4], vec![4]]);
    let refused = engine.classify(prompts(&[4]), vec![]);
    assert!(matches!(refused, Err(RequestError::Invalid { field: "second_starts", .. })));
    engine.stop();
}

#[test]
fn other_tasks_are_rejected() {
    let (engine, _, _permits) = start(EMBEDS, Options::default());
    let request = Request { prompt: vec![1], ..Request::default() };
    assert!(matches!(engine.submit(request), Err(RequestError::Unsupported { task: "text", .. })));
    let refused = engine.classify(prompts(&[1]), vec![1]);
    assert!(matches!(refused, Err(RequestError::Unsupported { task: "scores", .. })));
    // Nothing else waits, so that the limit is the context and not that of a step.
    assert_eq!(engine.max_embedding_tokens(), 1000);
    engine.stop();
    let (engine, _, _permits) = start(SCORES, Options::default());
    let refused = engine.embed(prompts(&[1]));
    assert!(matches!(refused, Err(RequestError::Unsupported { task: "embeddings", .. })));
    engine.stop();
}

#[test]
fn a_failed_batch_fails_its_jobs_and_no_others() {
    let (engine, _, permits) = start(EMBEDS, Options { step_tokens: 4, ..Options::default() });
    drop(permits);
    let failed = engine.embed(vec![vec![1; 4], vec![63; 4]]).unwrap().blocking_recv().unwrap();
    assert!(failed.is_err_and(|why| why.contains("the token is broken")));
    assert_eq!(engine.embed(prompts(&[4])).unwrap().blocking_recv().unwrap(), Ok(vectors(1)));
    assert_eq!(engine.status().waiting, 0);
    engine.stop();
}
