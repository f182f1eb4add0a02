//! Unloading of the model while the engine is idle, and loading it again.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::step::{Capacity, StepModel};

/// Loads the engine's model again after it was unloaded.
pub trait ModelSource: Send {
    /// Loads the model, with the capacity that it had before.
    ///
    /// # Errors
    /// Returns an error if the files cannot be read or memory runs out.
    fn load(&mut self) -> Result<Box<dyn StepModel>>;

    /// Returns the memory of the dropped model to the system.
    fn release_memory(&mut self) {}
}

/// Unloading of an idle model.
pub struct IdleUnload {
    /// Time without requests after which weights and cache are freed.
    pub after: Duration,
    /// Loads the model for the next request.
    pub source: Box<dyn ModelSource>,
}

/// State of the model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelState {
    /// Weights and cache are allocated.
    #[default]
    Loaded,
    /// The model was idle, and its memory is freed.
    Unloaded,
    /// A request waits until the model is loaded again.
    Loading,
}

/// The model of the engine thread.
pub(super) struct ResidentModel {
    /// `None` while it is unloaded.
    model: Option<Box<dyn StepModel>>,
    idle: Option<IdleUnload>,
    capacity: Capacity,
}

impl ResidentModel {
    pub(super) fn new(model: Box<dyn StepModel>, idle: Option<IdleUnload>) -> Self {
        Self { capacity: model.capacity(), model: Some(model), idle }
    }

    /// Returns the loaded model.
    pub(super) fn get(&mut self) -> Result<&mut dyn StepModel> {
        match &mut self.model {
            Some(model) => Ok(&mut **model),
            None => anyhow::bail!("the model is not loaded"),
        }
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.model.is_some()
    }

    /// Returns the idle time after which the model is unloaded; `None` if it stays as it is.
    pub(super) fn idle_limit(&self) -> Option<Duration> {
        self.idle.as_ref().filter(|_| self.is_loaded()).map(|idle| idle.after)
    }

    /// Frees weights and cache.
    pub(super) fn unload(&mut self) {
        self.model = None;
        if let Some(idle) = &mut self.idle {
            idle.source.release_memory();
            tracing::info!(seconds = idle.after.as_secs(), "unloaded the idle model");
        }
    }

    /// Loads the model again.
    ///
    /// # Errors
    /// Returns an error if loading fails, or if the model differs from the earlier one.
    pub(super) fn load(&mut self) -> Result<()> {
        let idle = self.idle.as_mut().context("the model cannot be loaded again")?;
        let begin = Instant::now();
        let model = idle.source.load()?;
        let (capacity, before) = (model.capacity(), self.capacity);
        ensure!(capacity == before, "the loaded model has {capacity:?}, but the unloaded one had {before:?}");
        self.model = Some(model);
        tracing::info!(seconds = begin.elapsed().as_secs_f32(), "loaded the model again");
        Ok(())
    }
}
