//! How many devices there are, how large they are and how strict: decided once per process.
mod settings;

use super::Injection;
use super::arch;
use crate::exec::Checks;
use std::path::PathBuf;

/// Bytes of memory of each device unless told otherwise: 16 GiB. They are only reserved; the host
/// commits a page when it is first written.
pub const DEFAULT_TOTAL_MEMORY: u64 = 16 << 30;

/// What there is of MIOpen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Miopen {
    /// All of what this crate has of it.
    #[default]
    Present,
    /// The library, without a solution for any convolution.
    WithoutSolutions,
    /// Nothing, as where it is not installed.
    Absent,
}

/// What hipBLASLt, which programs may find missing, is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HipBlasLt {
    /// Installed.
    #[default]
    Present,
    /// Not installed: every function fails.
    Absent,
    /// Installed, and without kernels: its heuristic finds nothing.
    None,
}

/// What is the same for every device of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Memory of each device in bytes.
    pub total_memory: u64,
    /// Host threads that one kernel launch may use.
    pub threads: usize,
    /// Fills fresh device memory with this byte instead of zero, to show reads of uninitialised memory.
    /// Filled memory is committed at once.
    pub poison: Option<u8>,
    /// A wave that runs more instructions than this counts as hanging, and its launch fails.
    pub instruction_limit: u64,
    /// What launches are checked for besides what is always checked.
    pub checks: Checks,
    /// Shuffles whatever order the hardware leaves open, repeatably; in order without one.
    pub seed: Option<u64>,
    /// The file that gets the profile of all launches.
    pub profile: Option<PathBuf>,
    /// What there is of MIOpen.
    pub miopen: Miopen,
    /// What is to fail, and when.
    pub injection: Injection,
    /// Whether there is a hipBLASLt.
    pub hipblaslt: HipBlasLt,
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
        }
    }
}

impl Options {
    /// The defaults, overridden by the environment: `CANDLE_ROCM_EMULATOR`, a list like
    /// `check=memory,race;max_instructions=1000000;seed=7`, and for single settings
    /// `CANDLE_ROCM_EMULATOR_MEMORY`, `CANDLE_ROCM_EMULATOR_THREADS` and `CANDLE_ROCM_EMULATOR_POISON`. Where
    /// both name a setting, the list counts.
    ///
    /// # Errors
    /// [`ConfigureError::Setting`] for a value that does not parse, [`ConfigureError::UnknownKey`] and
    /// [`ConfigureError::NoKey`] for what is no setting.
    pub fn from_env() -> Result<Self, ConfigureError> {
        settings::read(|name| std::env::var_os(name))
    }
}

/// Why the software GPU cannot be set up as asked.
#[allow(missing_docs, reason = "the error text of a variant says what it is and what its fields are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigureError {
    #[error("the software GPU has no architecture {name:?}; it can be {known}")]
    UnknownArch { name: String, known: String },
    #[error("the software GPU was asked for no device; name at least one of {known}")]
    NoDevice { known: String },
    #[error("the software GPU already runs as {current}; it cannot become {wanted} in the same process")]
    AlreadyConfigured { current: String, wanted: String },
    #[error("{variable}: {key}={value:?} is not understood; wanted {wanted}")]
    Setting { variable: &'static str, key: &'static str, value: String, wanted: &'static str },
    #[error("{variable}: there is no setting {key:?}; there are {known}")]
    UnknownKey { variable: &'static str, key: String, known: String },
    #[error("{variable}: {text:?} is no key=value; the keys are {known}")]
    NoKey { variable: &'static str, text: String, known: String },
    #[error("{variable}: {key} is given twice")]
    Twice { variable: &'static str, key: &'static str },
    #[error("{variable}: {first} and {second} exclude each other: {reason}")]
    Contradiction { variable: &'static str, first: &'static str, second: &'static str, reason: &'static str },
    #[error("the software GPU cannot write its profile to {file}: {reason}")]
    Profile { file: String, reason: String },
    #[error("{variable}={value:?} is no UTF-8")]
    NotText { variable: &'static str, value: String },
}

/// Resolves architecture names to rows.
pub(super) fn resolve(archs: &[&str]) -> Result<Vec<&'static arch::ArchSpec>, ConfigureError> {
    let known = || arch::ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>().join(", ");
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
    fn archs_resolve_or_are_named() {
        assert_eq!(resolve(&["gfx1100", " gfx1102"]).map(|rows| rows.len()), Ok(2));
        let error = resolve(&["gfx1100", "gfx000"]).unwrap_err().to_string();
        assert!(error.contains("gfx000") && error.contains("gfx1100"), "{error}");
        assert!(resolve(&[]).is_err());
    }
}
