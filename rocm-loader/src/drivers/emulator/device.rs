//! Implementation of [`Driver`] for the software GPU.
use std::path::PathBuf;

use rocm_driver_api::{Address, Driver, Library, LoadError, SuballocationTracker, table};
use rocm_rs::hip::bindings::hipStream_t;

use super::tables::TABLES;

/// Default architecture of the software GPU.
const DEFAULT_ARCH: &str = "gfx1100";
const NAME: &str = "the software GPU";

/// The software GPU in this executable, with one device for each architecture of its argument.
pub(super) struct SoftwareGpu;

impl Driver for SoftwareGpu {
    fn resolve(&self, argument: Option<&str>) -> Option<String> {
        let archs: Vec<&str> = argument.unwrap_or(DEFAULT_ARCH).split(',').map(str::trim).collect();
        archs.iter().all(|arch| arch.starts_with("gfx")).then(|| archs.join(","))
    }

    fn is_available(&self) -> bool {
        true
    }

    fn start(&self, argument: &str) -> Result<(), LoadError> {
        rocm_emulator::configure(&argument.split(',').collect::<Vec<_>>()).map_err(|error| {
            LoadError::NotStarted { driver: NAME, argument: argument.to_owned(), reason: error.to_string() }
        })
    }

    fn find(&self, library: Library, symbol: &'static str) -> Result<Address, LoadError> {
        table::find(TABLES, library, symbol, NAME)
    }

    fn description(&self) -> String {
        let archs = rocm_emulator::device_archs();
        // Features are cut off: `gfx90a:sramecc+:xnack-` becomes `gfx90a`.
        let names: Vec<&str> = archs.iter().filter_map(|arch| arch.split(':').next()).collect();
        format!("software GPU ({})", names.join(", "))
    }

    fn reasons_for_no_device(&self) -> String {
        self.last_error().unwrap_or_else(|| "no reason was reported".to_owned())
    }

    fn last_error(&self) -> Option<String> {
        rocm_emulator::last_error().or_else(rocm_emulator::last_fault)
    }

    fn suballocation_tracker(&self) -> Option<&'static dyn SuballocationTracker> {
        Some(&Self)
    }

    fn system_file(&self, path: &str) -> Option<PathBuf> {
        Some(rocm_emulator::system_folder()?.join(path.trim_start_matches('/')))
    }

    fn note(&self) -> Option<&'static str> {
        Some("software GPU: no figure of hardware")
    }

    fn is_software(&self) -> bool {
        true
    }
}

impl SuballocationTracker for SoftwareGpu {
    fn allocated(&self, stream: hipStream_t, address: usize, len: usize) -> bool {
        rocm_emulator::parts::allocated(stream.cast(), address, len)
    }

    fn freed(&self, stream: hipStream_t, address: usize) -> bool {
        rocm_emulator::parts::freed(stream.cast(), address)
    }
}
