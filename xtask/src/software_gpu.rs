//! The architectures of the software GPU, and the variables that choose one.
use std::process::Command;

use anyhow::{Result, bail};

/// Where the software GPU lists its architectures.
const LIST: &str = include_str!("../../rocm-emulator/src/runtime/arch.rs");

/// The architecture of commands that are not told another.
pub const DEFAULT: &str = "gfx1100";

/// The architectures that tests run on: those of every family that the software GPU executes.
pub const TESTED: &[&str] = &["gfx1100", "gfx1030", "gfx1201", "gfx90a", "gfx942"];

/// A software GPU: its architecture and its options, as `CANDLE_ROCM_EMULATOR` takes them.
#[derive(Clone, Copy, Debug)]
pub struct SoftwareGpu<'a> {
    pub arch: &'a str,
    /// `None` leaves the variable as the environment has it.
    pub options: Option<&'a str>,
}

impl<'a> SoftwareGpu<'a> {
    pub const fn of(arch: &'a str) -> Self {
        Self { arch, options: None }
    }

    pub const fn with(arch: &'a str, options: &'a str) -> Self {
        Self { arch, options: Some(options) }
    }

    /// Has a program run on this software GPU.
    pub fn choose_for(&self, command: &mut Command) {
        command.env("CANDLE_ROCM_DRIVER", format!("emulator:{}", self.arch));
        if let Some(options) = self.options {
            command.env("CANDLE_ROCM_EMULATOR", options);
        }
    }
}

impl std::fmt::Display for SoftwareGpu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.options {
            None => f.write_str(self.arch),
            Some(options) => write!(f, "{} {options}", self.arch),
        }
    }
}

/// # Errors
/// For an architecture that the software GPU does not have.
pub fn check(arch: &str) -> Result<()> {
    let known: Vec<_> = known().collect();
    if !known.contains(&arch) {
        bail!("the software GPU has no architecture {arch:?}; it has {}", known.join(", "));
    }
    Ok(())
}

fn known() -> impl Iterator<Item = &'static str> {
    LIST.lines().filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_that_of_the_software_gpu() {
        for arch in TESTED {
            assert!(check(arch).is_ok(), "{arch}");
        }
        let error = check("gfx9999").unwrap_err().to_string();
        assert!(error.contains("gfx9999") && error.contains("gfx1100, "), "{error}");
    }

    #[test]
    fn a_program_gets_the_architecture_and_the_options() {
        let mut command = Command::new("program");
        SoftwareGpu::with("gfx90a", "seed=1").choose_for(&mut command);
        let set: Vec<_> = command.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
        let wanted = [("CANDLE_ROCM_DRIVER", "emulator:gfx90a"), ("CANDLE_ROCM_EMULATOR", "seed=1")];
        assert_eq!(set, wanted.map(|(name, value)| (name.as_ref(), value.as_ref())));
        assert_eq!(SoftwareGpu::with("gfx90a", "seed=1").to_string(), "gfx90a seed=1");
    }
}
