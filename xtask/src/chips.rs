//! What the software GPU can be, and how it is told.
use std::process::Command;

use anyhow::{Result, bail};

/// The software GPU's own list of what it can be.
const LIST: &str = include_str!("../../rocm-emulator/src/runtime/arch.rs");

/// The architecture of commands that are not told another.
pub const DEFAULT: &str = "gfx1100";

/// The architectures that tests run on: those of every family that the software GPU executes.
pub const TESTED: &[&str] = &["gfx1100", "gfx1030", "gfx1201", "gfx90a", "gfx942"];

/// A software GPU: its architecture and its options, as `CANDLE_ROCM_EMULATOR` takes them.
#[derive(Clone, Copy, Debug)]
pub struct Play<'a> {
    pub arch: &'a str,
    /// What is in the environment if there are none.
    pub options: Option<&'a str>,
}

impl<'a> Play<'a> {
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

impl std::fmt::Display for Play<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.options {
            None => f.write_str(self.arch),
            Some(options) => write!(f, "{} {options}", self.arch),
        }
    }
}

/// # Errors
/// For an architecture that the software GPU cannot be.
pub fn check(arch: &str) -> Result<()> {
    let known: Vec<_> = known().collect();
    if !known.contains(&arch) {
        bail!("the software GPU has no architecture {arch:?}; it can be {}", known.join(", "));
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
    fn a_software_gpu_is_told_what_to_be() {
        let mut command = Command::new("program");
        Play::with("gfx90a", "seed=1").choose_for(&mut command);
        let said: Vec<_> = command.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
        let wanted = [("CANDLE_ROCM_DRIVER", "emulator:gfx90a"), ("CANDLE_ROCM_EMULATOR", "seed=1")];
        assert_eq!(said, wanted.map(|(name, value)| (name.as_ref(), value.as_ref())));
        assert_eq!(Play::with("gfx90a", "seed=1").to_string(), "gfx90a seed=1");
    }
}
