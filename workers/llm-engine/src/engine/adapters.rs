//! Adapters. They are in host memory while the model is unloaded; after a reload, each is copied to the device when a request
//! needs it. Only the engine's thread moves and frees them, since another thread could do so while a graph is captured.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Error, Result, ensure};
use model_thread::is_out_of_memory;

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

/// Moves an adapter to the devices of the model.
pub(super) fn move_to_devices(adapter: &Adapter) -> Result<()> {
    adapter.move_to_devices().map_err(|error| {
        let remedy = match is_out_of_memory(&error) {
            true => {
                "; unload other adapters, end other programs, or restart the worker with a smaller --cache-memory"
            }
            false => "",
        };
        let (folder, mib) = (&adapter.folder, adapter.bytes().div_ceil(1 << 20));
        Error::new(error).context(format!("cannot move the adapter {folder} of {mib} MiB to the device{remedy}"))
    })
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
            "cannot load the adapter {}: {count} adapters are loaded, which is the limit; unload one and wait for its requests, \
             or raise --max-loras",
            files.folder
        );
        let folder = files.folder.clone();
        let adapter = files.shard(targets).with_context(|| {
            format!("cannot load the adapter {folder}; unload other adapters or end other programs")
        })?;
        let adapter = Arc::new(adapter);
        if is_model_loaded {
            move_to_devices(&adapter)?;
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

    /// Returns true if an adapter is unused.
    pub(super) fn has_unused(&self) -> bool {
        self.adapters.iter().any(|adapter| Arc::strong_count(adapter) == 1)
    }

    /// Frees the memory of unused adapters.
    pub(super) fn free_unused(&mut self) {
        self.adapters.retain(|adapter| Arc::strong_count(adapter) > 1);
    }
}
