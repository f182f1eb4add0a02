//! Adapters in the device's memory. Only the engine's thread frees them, since another thread could do so while a graph is
//! captured.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, ensure};

use crate::model::adapter::{Adapter, AdapterFiles, AdapterTargets};

/// An adapter to copy to the device.
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
    /// Copies an adapter to the device. If the files are loaded already, their matrices are shared.
    pub(super) fn load(&mut self, AdapterJob { files, targets, reply }: AdapterJob) {
        self.free_unused();
        // If the receiver was dropped, the next call frees the adapter.
        let _ = reply.send(self.loaded(files, &targets));
    }

    fn loaded(&mut self, files: AdapterFiles, targets: &AdapterTargets) -> Result<Arc<Adapter>> {
        if let Some(adapter) = self.adapters.iter().find(|adapter| adapter.is_of(&files)) {
            return Ok(adapter.clone());
        }
        let (count, limit) = (self.adapters.len(), targets.limits.count);
        ensure!(
            count < limit,
            "{count} adapters are loaded, which is the limit; unload one and wait for its requests, or raise --max-loras"
        );
        let adapter = files.upload(targets).context("cannot copy the adapter to the device")?;
        let adapter = Arc::new(adapter);
        self.adapters.push(adapter.clone());
        Ok(adapter)
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
