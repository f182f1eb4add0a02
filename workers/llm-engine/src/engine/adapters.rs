//! Adapters, which are in the device's memory while the model is loaded and otherwise in the host's. Only the engine's thread
//! moves and frees them, since another thread could do so while a graph is captured.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, ensure};

use crate::model::adapter::{Adapter, AdapterFiles, AdapterTargets};

/// An adapter to load.
pub(super) struct AdapterJob {
    files: AdapterFiles,
    targets: AdapterTargets,
    reply: Sender<Result<Arc<Adapter>>>,
}

impl AdapterJob {
    pub(super) fn new(
        files: AdapterFiles,
        targets: &AdapterTargets,
    ) -> (Self, Receiver<Result<Arc<Adapter>>>) {
        let (reply, loaded) = channel();
        (Self { files, targets: targets.clone(), reply }, loaded)
    }
}

/// Adapters that are in use.
#[derive(Default)]
pub(super) struct ResidentAdapters {
    adapters: Vec<Arc<Adapter>>,
}

impl ResidentAdapters {
    /// Loads an adapter, and copies it to the device if the model is there. If the files are loaded already, their matrices are
    /// shared.
    pub(super) fn load(&mut self, AdapterJob { files, targets, reply }: AdapterJob, is_model_loaded: bool) {
        self.free_unused();
        // If the receiver was dropped, the next call frees the adapter.
        let _ = reply.send(self.loaded(files, &targets, is_model_loaded));
    }

    fn loaded(
        &mut self,
        files: AdapterFiles,
        targets: &AdapterTargets,
        is_model_loaded: bool,
    ) -> Result<Arc<Adapter>> {
        if let Some(adapter) = self.adapters.iter().find(|adapter| adapter.is_of(&files)) {
            return Ok(adapter.clone());
        }
        let (count, limit) = (self.adapters.len(), targets.limits.count);
        ensure!(
            count < limit,
            "{count} adapters are loaded, which is the limit; unload one and wait for its requests, or raise --max-loras"
        );
        let adapter = Arc::new(files.shard(targets)?);
        if is_model_loaded {
            adapter.move_to_devices().context("cannot copy the adapter to the device")?;
        }
        self.adapters.push(adapter.clone());
        Ok(adapter)
    }

    /// Moves all adapters to the host's memory. One that cannot be moved stays on the device.
    pub(super) fn move_to_host(&self) {
        for adapter in &self.adapters {
            if let Err(error) = adapter.move_to_host() {
                tracing::warn!("an adapter stays in the memory of the device: {error}");
            }
        }
    }

    /// Moves all adapters to the device.
    pub(super) fn move_to_device(&self) -> Result<()> {
        let moved = self.adapters.iter().try_for_each(|adapter| adapter.move_to_devices());
        moved.context("cannot copy the adapters to the device")
    }

    /// Returns true if an adapter is unused.
    pub(super) fn has_unused(&self) -> bool {
        self.adapters.iter().any(|adapter| Arc::strong_count(adapter) == 1)
    }

    /// Frees the memory of unused adapters.
    pub(super) fn free_unused(&mut self) {
        self.adapters.retain(|adapter| Arc::strong_count(adapter) > 1);
    }
}
