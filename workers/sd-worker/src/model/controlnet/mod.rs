//! ControlNets that requests name. They are loaded on demand, and unloaded when a request uses others.
//!
//! | file | subject |
//! |---|---|
//! | `config` | configuration, and comparison with that of the UNet |
//! | `files` | folders and single files |
//! | `network` | the network |
mod config;
mod files;
mod network;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device};

pub(super) use files::Controlled;
pub use network::{ControlInputs, ControlNet};

use super::memory;
use crate::{Check, Result};
use files::ControlNetFiles;

/// ControlNets by their paths, in the order in which they were loaded.
type Loaded = Vec<(PathBuf, Arc<ControlNet>)>;

/// The ControlNets that are in memory.
#[derive(Debug)]
pub(super) struct ControlNets {
    network: Controlled,
    dtype: DType,
    device: Device,
    loaded: Mutex<Loaded>,
}

impl ControlNets {
    /// Creates a set that is empty, for a network.
    pub fn of(network: Controlled, dtype: DType, device: &Device) -> Self {
        Self { network, dtype, device: device.clone(), loaded: Mutex::default() }
    }

    /// Returns the ControlNets of these folders and files. Those that are not in memory are loaded, after all others have
    /// been freed. If a file is invalid, nothing changes.
    ///
    /// # Errors
    /// Returns [`Error::Request`](crate::Error::Request) if a file is invalid or for another network, or an error if the
    /// weights do not fit into the free memory of the device, it fails, or `check`, which is called between the
    /// ControlNets, fails.
    pub fn select(&self, paths: &[&Path], check: Check) -> Result<Vec<Arc<ControlNet>>> {
        // A poisoned lock is harmless, because each change leaves a valid list.
        let mut loaded = self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut missing: Vec<(&Path, ControlNetFiles)> = Vec::new();
        for path in paths {
            let is_known = loaded.iter().any(|(own, _)| own == path);
            if !is_known && missing.iter().all(|(own, _)| own != path) {
                let half = self.dtype != DType::F32;
                missing.push((path, ControlNetFiles::open(path, &self.network, half)?));
            }
        }
        loaded.retain(|(own, _)| paths.contains(&own.as_path()));
        let elements: usize = missing.iter().map(|(_, files)| files.elements).sum();
        let bytes = elements * self.dtype.size_in_bytes();
        let help = "use fewer or smaller ControlNets";
        memory::check(&self.device, bytes, "the weights of the request's ControlNets need", help)?;
        for (path, files) in missing {
            check()?;
            loaded.push((path.to_owned(), Arc::new(files.load(self.dtype, &self.device)?)));
        }
        let find = |path: &&Path| loaded.iter().find(|(own, _)| own == path).map(|(_, own)| own.clone());
        Ok(paths.iter().filter_map(find).collect())
    }
}
