//! Unloading of the model while it is not needed, and loading it again.
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
pub use model_thread::ModelState;

use crate::step::{Capacity, StepModel};

use super::slots::{ModelSlot, ModelSlots};

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

/// Unloading of a model that is not needed.
pub struct Unloading {
    /// Time without requests after which weights and cache are freed; `None` keeps an idle model.
    pub after_idle: Option<Duration>,
    /// Slot of the loaded model, if several models share the memory. It is released when another model claims it, after
    /// the requests that were accepted before.
    pub slot: Option<ModelSlot>,
    /// Loads the model for the next request.
    pub source: Box<dyn ModelSource>,
}

/// Functions that notify the engine thread about slots, from other threads.
pub(super) struct SlotCallbacks {
    /// Delivers a requested slot.
    pub granted: Arc<dyn Fn(ModelSlot) + Send + Sync>,
    /// Claims the slot of the model.
    pub claimed: Arc<dyn Fn() + Send + Sync>,
}

/// The model of the engine thread.
pub(super) struct ResidentModel {
    /// `None` while it is unloaded.
    model: Option<Box<dyn StepModel>>,
    unloading: Option<Unloading>,
    /// Slots that its slot belongs to, if it needs one.
    slots: Option<ModelSlots>,
    awaits_slot: bool,
    is_claimed: bool,
    capacity: Capacity,
    callbacks: SlotCallbacks,
}

impl ResidentModel {
    pub(super) fn new(
        model: Box<dyn StepModel>,
        unloading: Option<Unloading>,
        callbacks: SlotCallbacks,
    ) -> Self {
        let slots = unloading.as_ref().and_then(|unloading| unloading.slot.as_ref());
        let slots = slots.map(|slot| slot.slots().clone());
        let capacity = model.capacity();
        let (awaits_slot, is_claimed) = (false, false);
        Self { model: Some(model), unloading, slots, awaits_slot, is_claimed, capacity, callbacks }
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
        self.unloading.as_ref().filter(|_| self.is_loaded()).and_then(|unloading| unloading.after_idle)
    }

    /// Records that the model should be unloaded after the requests that were accepted so far.
    pub(super) fn claim(&mut self) {
        // The slot may be claimed before the model is loaded.
        self.is_claimed = self.unloading.is_some() && (self.is_loaded() || self.slot().is_some());
    }

    /// Returns true if the model should be unloaded after the requests that were accepted before.
    pub(super) fn is_claimed(&self) -> bool {
        self.is_claimed
    }

    /// Records that a request was accepted.
    pub(super) fn mark_used(&self) {
        self.slot().iter().for_each(|slot| slot.mark_used());
    }

    /// Frees weights, cache and slot.
    pub(super) fn unload(&mut self) {
        (self.model, self.is_claimed) = (None, false);
        if let Some(unloading) = &mut self.unloading {
            unloading.source.release_memory();
            unloading.slot = None;
            tracing::info!("unloaded the model");
        }
    }

    /// Returns true if the model may be loaded. Otherwise requests a slot, which a command delivers.
    pub(super) fn has_slot(&mut self) -> bool {
        let Some(slots) = self.slots.as_ref().filter(|_| self.slot().is_none()) else { return true };
        if !self.awaits_slot {
            self.awaits_slot = true;
            let granted = self.callbacks.granted.clone();
            slots.clone().request(move |slot| granted(slot));
        }
        false
    }

    /// Returns true if a slot was requested and not granted yet.
    pub(super) fn awaits_slot(&self) -> bool {
        self.awaits_slot
    }

    pub(super) fn set_slot(&mut self, slot: ModelSlot) {
        self.awaits_slot = false;
        if let Some(unloading) = &mut self.unloading {
            unloading.slot = Some(slot);
        }
        self.watch_slot();
    }

    /// Releases the slot of a model that is not loaded.
    pub(super) fn release_unused_slot(&mut self) {
        if !self.is_loaded() {
            self.unloading.iter_mut().for_each(|unloading| unloading.slot = None);
        }
    }

    fn slot(&self) -> Option<&ModelSlot> {
        self.unloading.as_ref().and_then(|unloading| unloading.slot.as_ref())
    }

    /// Releases the slot when another engine claims it, from now on.
    pub(super) fn watch_slot(&self) {
        let Some(slot) = self.slot() else { return };
        let claimed = self.callbacks.claimed.clone();
        slot.on_claim(move || claimed());
    }

    /// Loads the model again.
    ///
    /// # Errors
    /// Returns an error if loading fails, or if the model differs from the earlier one.
    pub(super) fn load(&mut self) -> Result<()> {
        let unloading = self.unloading.as_mut().context("the model cannot be loaded again")?;
        let begin = Instant::now();
        let model = unloading.source.load()?;
        let (capacity, before) = (model.capacity(), self.capacity);
        ensure!(capacity == before, "the loaded model has {capacity:?}, but the unloaded one had {before:?}");
        self.model = Some(model);
        tracing::info!(seconds = begin.elapsed().as_secs_f32(), "loaded the model again");
        Ok(())
    }
}
