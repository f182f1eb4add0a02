//! The software GPU by the driver's trait.
use rocm_driver_api::{Address, Driver, Library, LoadError, Parts, table};
use rocm_rs::hip::bindings::hipStream_t;

use super::tables::TABLES;

/// The architecture of the software GPU if none is named.
const DEFAULT_ARCH: &str = "gfx1100";
const NAME: &str = "the software GPU";

/// The software GPU inside of this executable: one device for each architecture of its argument.
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
        // Without features: `gfx90a` of `gfx90a:sramecc+:xnack-`.
        let names: Vec<&str> = archs.iter().filter_map(|arch| arch.split(':').next()).collect();
        format!("software GPU ({})", names.join(", "))
    }

    fn reasons_for_no_device(&self) -> String {
        self.last_error().unwrap_or_else(|| "it gives no reason".to_owned())
    }

    fn last_error(&self) -> Option<String> {
        rocm_emulator::last_error().or_else(rocm_emulator::last_fault)
    }

    fn parts(&self) -> Option<&'static dyn Parts> {
        Some(&Self)
    }

    fn note(&self) -> Option<&'static str> {
        Some("software GPU: no figure of hardware")
    }

    fn is_software(&self) -> bool {
        true
    }
}

impl Parts for SoftwareGpu {
    fn taken(&self, stream: hipStream_t, address: usize, len: usize) -> bool {
        rocm_emulator::parts::taken(stream.cast(), address, len)
    }

    fn given(&self, stream: hipStream_t, address: usize) -> bool {
        rocm_emulator::parts::given(stream.cast(), address)
    }
}
