//! The configuration of the process: its devices, their memory, checks and faults.
mod settings;

use super::Injection;
use super::arch;
use crate::exec::Checks;
use std::path::PathBuf;

/// Default memory of each device in bytes: 16 GiB. The memory is only reserved; the host commits a page when it is first
/// written.
pub const DEFAULT_TOTAL_MEMORY: u64 = 16 << 30;

/// State of the emulated MIOpen installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Miopen {
    /// Installed, with all functions of this crate.
    #[default]
    Present,
    /// Installed, but without a solution for any convolution.
    WithoutSolutions,
    /// Installed, but its compiler fails for every solution.
    Broken,
    /// Not installed: every function fails.
    Absent,
}

/// State of the emulated hipBLASLt installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HipBlasLt {
    /// Installed.
    #[default]
    Present,
    /// Not installed: every function fails.
    Absent,
    /// Installed, but without kernels: its heuristic finds nothing.
    None,
}

/// Options that apply to every device of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Memory of each device in bytes.
    pub total_memory: u64,
    /// Maximum number of host threads for one kernel launch.
    pub threads: usize,
    /// Fills new device memory with this byte instead of zero, to reveal reads of uninitialized memory. Filled memory is
    /// committed immediately.
    pub poison: Option<u8>,
    /// Maximum number of instructions of a wave. A wave that exceeds it counts as hanging, and its launch fails.
    pub instruction_limit: u64,
    /// Optional checks of launches, in addition to those that are always on.
    pub checks: Checks,
    /// Seed that reproducibly shuffles every order that hardware leaves open. Without a seed all work runs in order.
    pub seed: Option<u64>,
    /// The file that the profile of all launches is written to.
    pub profile: Option<PathBuf>,
    /// State of MIOpen.
    pub miopen: Miopen,
    /// The faults to inject.
    pub injection: Injection,
    /// State of hipBLASLt.
    pub hipblaslt: HipBlasLt,
    /// Folder with the files of procfs and sysfs of the simulated machine, such as `proc/meminfo`.
    pub system: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            total_memory: DEFAULT_TOTAL_MEMORY,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            poison: None,
            instruction_limit: crate::exec::DEFAULT_INSTRUCTION_LIMIT,
            checks: Checks::default(),
            seed: None,
            profile: None,
            miopen: Miopen::default(),
            injection: Injection::default(),
            hipblaslt: HipBlasLt::default(),
            system: None,
        }
    }
}

impl Options {
    /// Returns the defaults, overridden by the environment: `CANDLE_ROCM_EMULATOR`, a list such as
    /// `check=memory,race;max_instructions=1000000;seed=7`, and for single settings `CANDLE_ROCM_EMULATOR_MEMORY`,
    /// `CANDLE_ROCM_EMULATOR_THREADS` and `CANDLE_ROCM_EMULATOR_POISON`. If both set the same option, the list takes
    /// precedence.
    ///
    /// # Errors
    /// [`ConfigureError::Setting`] for a value that does not parse, [`ConfigureError::UnknownKey`] for an unknown setting
    /// and [`ConfigureError::NoKey`] for an entry that is not `key=value`.
    pub fn from_env() -> Result<Self, ConfigureError> {
        settings::read(|name| std::env::var_os(name))
    }
}

/// Error of a configuration.
#[allow(missing_docs, reason = "documented by the variants' error texts")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    #[error("the software GPU does not support the architecture {name:?}; use one of {known}")]
    UnknownArch { name: String, known: String },
    #[error("no device was requested from the software GPU; name at least one of {known}")]
    NoDevice { known: String },
    #[error("the software GPU already runs as {current}; this process cannot reconfigure it as {wanted}")]
    AlreadyConfigured { current: String, wanted: String },
    #[error("{variable}: {key}={value:?} is invalid; expected {wanted}")]
    Setting { variable: &'static str, key: &'static str, value: String, wanted: &'static str },
    #[error("{variable}: unknown setting {key:?}; known settings are {known}")]
    UnknownKey { variable: &'static str, key: String, known: String },
    #[error("{variable}: {text:?} is not of the form key=value; known keys are {known}")]
    NoKey { variable: &'static str, text: String, known: String },
    #[error("{variable}: {key} is set twice")]
    Twice { variable: &'static str, key: &'static str },
    #[error("{variable}: {first} and {second} exclude each other: {reason}")]
    Contradiction { variable: &'static str, first: &'static str, second: &'static str, reason: &'static str },
    #[error("the software GPU cannot write its profile to {file}: {reason}")]
    Profile { file: String, reason: String },
    #[error("{variable}={value:?} is not valid UTF-8")]
    NotText { variable: &'static str, value: String },
}

/// Resolves architecture names to rows of the table.
pub(super) fn resolve(archs: &[&str]) -> Result<Vec<&'static arch::ArchSpec>, ConfigureError> {
    let known = || arch::ARCHS.iter().map(|arch| arch.name()).collect::<Vec<_>>().join(", ");
    if archs.is_empty() {
        return Err(ConfigureError::NoDevice { known: known() });
    }
    archs
        .iter()
        .map(|name| {
            arch::find(name.trim())
                .ok_or_else(|| ConfigureError::UnknownArch { name: name.to_string(), known: known() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_archs_resolve_and_unknown_ones_are_reported() {
        assert_eq!(resolve(&["gfx1100", " gfx1102"]).map(|rows| rows.len()), Ok(2));
        let error = resolve(&["gfx1100", "gfx000"]).unwrap_err().to_string();
        assert!(error.contains("gfx000") && error.contains("gfx1100"), "{error}");
        assert!(resolve(&[]).is_err());
    }
}
