//! Passes of a request.
use std::sync::Arc;

use super::request::Request;
use crate::Result;
use crate::model::Model;
use crate::schedulers::Scheduler;

/// A pass of a request: denoising at one size.
pub(super) struct Pass {
    pub request: Arc<Request>,
    pub scheduler: Scheduler,
    /// Number of omitted steps of the schedule.
    pub skipped: usize,
    /// Number of steps of previous passes.
    pub first_step: usize,
}

impl Pass {
    /// Returns the passes of a request to a model.
    ///
    /// # Errors
    /// Returns the errors of [`Request::scheduler`].
    pub fn all(request: &Arc<Request>, model: &Model) -> Result<Vec<Self>> {
        let (config, factor) = (&model.scheduler, model.vae_config.factor());
        let (scheduler, skipped) = (request.scheduler(config)?, request.skipped());
        let first_step = scheduler.steps();
        let mut passes = vec![Self { request: request.clone(), scheduler, skipped, first_step: 0 }];
        if let Some(hires) = &request.hires {
            let scheduler = request.second_scheduler(hires, config)?;
            let request = request.second_pass(hires, factor);
            let skipped = request.steps - hires.steps;
            passes.push(Self { request: Arc::new(request), scheduler, skipped, first_step });
        }
        Ok(passes)
    }
}
