//! Architectures of the software GPU, and the environment variables that select one.
use std::process::Command;

use anyhow::{Result, bail};

/// Source file that lists the software GPU's architectures.
const LIST: &str = include_str!("../../rocm-emulator/src/runtime/arch.rs");

/// Default architecture of the commands.
pub const DEFAULT: &str = "gfx1100";

/// Architectures that the tests run on: one of each family that the software GPU executes.
pub const TESTED: &[&str] = &["gfx1100", "gfx1030", "gfx1201", "gfx90a", "gfx942"];

/// Configuration of a software GPU.
#[derive(Clone, Copy, Debug)]
pub struct SoftwareGpu<'a> {
    pub arch: &'a str,
    /// Value of `CANDLE_ROCM_EMULATOR`; `None` leaves the variable unchanged.
    pub options: Option<&'a str>,
}

impl<'a> SoftwareGpu<'a> {
    pub const fn new(arch: &'a str) -> Self {
        Self { arch, options: None }
    }

    pub const fn with(arch: &'a str, options: &'a str) -> Self {
        Self { arch, options: Some(options) }
    }

    /// Sets the environment variables that make a program run on this software GPU.
    pub fn apply_to(&self, command: &mut Command) {
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

/// Checks that the software GPU supports an architecture.
///
/// # Errors
/// If the software GPU does not support the architecture.
pub fn check_arch(arch: &str) -> Result<()> {
    let known: Vec<_> = known().collect();
    if !known.contains(&arch) {
        bail!("the software GPU does not support {arch:?}; supported: {}", known.join(", "));
    }
    Ok(())
}

fn known() -> impl Iterator<Item = &'static str> {
    LIST.split(" gcn_arch_name: \"").skip(1).filter_map(|rest| rest.split(['"', ':']).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_architectures_are_accepted_and_others_rejected() {
        for arch in TESTED {
            assert!(check_arch(arch).is_ok(), "{arch}");
        }
        let error = check_arch("gfx9999").unwrap_err().to_string();
        assert!(error.contains("gfx9999") && error.contains("gfx1100, "), "{error}");
    }

    #[test]
    fn the_variables_select_architecture_and_options() {
        let mut command = Command::new("program");
        SoftwareGpu::with("gfx90a", "seed=1").apply_to(&mut command);
        let set: Vec<_> = command.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
        let wanted = [("CANDLE_ROCM_DRIVER", "emulator:gfx90a"), ("CANDLE_ROCM_EMULATOR", "seed=1")];
        assert_eq!(set, wanted.map(|(name, value)| (name.as_ref(), value.as_ref())));
        assert_eq!(SoftwareGpu::with("gfx90a", "seed=1").to_string(), "gfx90a seed=1");
    }
}
