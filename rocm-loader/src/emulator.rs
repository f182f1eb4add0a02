//! The software GPU as a driver: started here, and checked to have the C interface it stands in for.
use crate::error::LoadError;

/// Starts one software device per architecture.
#[cfg(feature = "emulator")]
pub(crate) fn start(archs: &[String]) -> Result<(), LoadError> {
    let names: Vec<&str> = archs.iter().map(String::as_str).collect();
    rocm_emulator::configure(&names)
        .map_err(|error| LoadError::Emulator { archs: archs.to_vec(), reason: error.to_string() })
}

/// Without the feature there is nothing to start.
#[cfg(not(feature = "emulator"))]
pub(crate) fn start(_archs: &[String]) -> Result<(), LoadError> {
    Err(LoadError::EmulatorNotBuilt)
}
