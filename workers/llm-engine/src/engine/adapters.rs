//! Adapters in the device's memory. Only the engine's thread frees them, since another thread could do so while a graph is
//! captured.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, ensure};
use candle_core::Device;

use crate::model::adapter::{Adapter, AdapterFiles, AdapterLimits, AdapterTargets};

/// An adapter to copy to the device.
pub(super) struct AdapterJob {
    files: AdapterFiles,
    device: Device,
    limits: AdapterLimits,
    reply: Sender<Result<Arc<Adapter>>>,
}

impl AdapterJob {
    pub(super) fn new(
        files: AdapterFiles,
        targets: &AdapterTargets,
    ) -> (Self, Receiver<Result<Arc<Adapter>>>) {
        let (reply, loaded) = channel();
        (Self { files, device: targets.device.clone(), limits: targets.limits, reply }, loaded)
    }
}

/// Adapters that are in use.
#[derive(Default)]
pub(super) struct ResidentAdapters {
    adapters: Vec<Arc<Adapter>>,
}

impl ResidentAdapters {
    /// Copies an adapter to the device. If the files are loaded already, their matrices are shared.
    pub(super) fn load(&mut self, AdapterJob { files, device, limits, reply }: AdapterJob) {
        self.free_unused();
        // If the receiver was dropped, the next call frees the adapter.
        let _ = reply.send(self.loaded(files, &device, limits.count));
    }

    fn loaded(&mut self, files: AdapterFiles, device: &Device, limit: usize) -> Result<Arc<Adapter>> {
        if let Some(adapter) = self.adapters.iter().find(|adapter| adapter.is_of(&files)) {
            return Ok(adapter.clone());
        }
        let count = self.adapters.len();
        ensure!(
            count < limit,
            "{count} adapters are loaded, which is the limit; unload one and wait for its requests, or raise --max-loras"
        );
        let adapter = files.upload(device).context("cannot copy the adapter to the device")?;
        let adapter = Arc::new(adapter);
        self.adapters.push(adapter.clone());
        Ok(adapter)
    }

    /// Frees the memory of unused adapters.
    pub(super) fn free_unused(&mut self) {
        self.adapters.retain(|adapter| Arc::strong_count(adapter) > 1);
    }
}
