//! Requests that share steps.
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use sd_worker::picture::Picture;
use sd_worker::pipeline::{Generated, Pipeline, Progress, Request, SharedRequests};

use super::Outcome;

/// Requests that join in their order, and what happens to them.
#[derive(Default)]
pub struct Together {
    /// Requests, and the number of evaluations of the network before each of them arrives.
    waiting: VecDeque<(usize, Arc<Request>)>,
    /// Number of the request that is cancelled, and the step.
    cancelled: Option<(usize, usize)>,
    /// Results by number.
    pub results: Vec<Option<sd_worker::Result<Generated>>>,
    /// Number, step and number of requests of each step.
    pub steps: Vec<(usize, usize, usize)>,
    evaluations: usize,
}

impl SharedRequests for Together {
    fn waiting(&mut self) -> Option<Arc<Request>> {
        let (after, request) = self.waiting.front()?;
        (self.evaluations >= *after || self.results.iter().all(Option::is_some)).then(|| request.clone())
    }

    fn join(&mut self, _: bool) -> Option<usize> {
        self.waiting.pop_front();
        self.results.push(None);
        Some(self.results.len() - 1)
    }

    fn on_step(&mut self, number: usize, progress: &Progress) -> ControlFlow<()> {
        // The first request that still runs is reported first.
        self.evaluations += usize::from(self.results.iter().position(Option::is_none) == Some(number));
        self.steps.push((number, progress.step, progress.requests));
        match self.cancelled == Some((number, progress.step)) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn finish(&mut self, number: usize, result: sd_worker::Result<Generated>) {
        self.results[number] = Some(result);
    }
}

impl Together {
    /// Runs requests, each of which arrives after a number of evaluations.
    pub fn run(
        pipeline: &Pipeline,
        requests: &[(usize, Request)],
        cancelled: Option<(usize, usize)>,
    ) -> Outcome<Self> {
        let waiting = requests.iter().map(|(after, request)| (*after, Arc::new(request.clone()))).collect();
        let mut together = Self { waiting, cancelled, ..Self::default() };
        pipeline.run_shared(&mut together)?;
        Ok(together)
    }

    /// Returns the images of a request that completed.
    pub fn pictures(&self, number: usize) -> Outcome<&[Picture]> {
        match self.results.get(number) {
            Some(Some(Ok(generated))) => Ok(&generated.pictures),
            other => Err(format!("request {number}: {other:?}").into()),
        }
    }

    /// Returns the greatest difference of a channel from expected images, in levels of 255.
    pub fn levels(&self, number: usize, expected: &[Picture]) -> Outcome<u8> {
        let own = self.pictures(number)?;
        assert_eq!(own.len(), expected.len());
        let far = |(a, b): (&Picture, &Picture)| {
            assert_eq!((a.width(), a.height()), (b.width(), b.height()));
            let differences = a.rgb().iter().zip(b.rgb()).map(|(a, b)| a.abs_diff(*b));
            differences.max().unwrap_or(0)
        };
        Ok(own.iter().zip(expected).map(far).max().unwrap_or(0))
    }

    /// Returns the greatest number of requests that shared a step with each request.
    pub fn most(&self) -> Vec<usize> {
        let of = |number| self.steps.iter().filter(move |(other, ..)| *other == number);
        (0..self.results.len()).map(|i| of(i).map(|(.., requests)| *requests).max().unwrap_or(0)).collect()
    }
}
