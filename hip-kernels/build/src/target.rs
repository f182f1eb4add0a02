//! GPU architectures that code objects are compiled for.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::BuildError;

/// Environment variable with the comma-separated targets to build for.
pub const ARCHS_VARIABLE: &str = "CANDLE_ROCM_ARCHS";

/// Targets if [`ARCHS_VARIABLE`] is not set and this machine has no AMD GPU: a few objects that cover all GPUs of recent
/// generations.
pub const DEFAULT: &[&str] =
    &["gfx908", "gfx90a", "gfx9-4-generic", "gfx10-3-generic", "gfx11-generic", "gfx12-generic"];

/// Folder in which the Linux driver lists the GPUs of this machine.
const TOPOLOGY: &str = "/sys/class/kfd/kfd/topology/nodes";

/// Supported NVIDIA architectures, used to run and measure kernels on machines without an AMD GPU. An object also runs on
/// later architectures of the same generation.
pub const NVIDIA: &[&str] = &["sm_80", "sm_86", "sm_89", "sm_90"];

/// A GPU architecture: AMD's, exact (`gfx90a`) or generic (`gfx11-generic`), or NVIDIA's (`sm_90`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    name: String,
    major: u32,
    minor: u32,
    stepping: u32,
    wave64: bool,
}

impl Target {
    /// Parses a name as spelled by the compiler.
    ///
    /// # Errors
    /// [`BuildError::UnknownTarget`].
    pub fn parse(name: &str) -> Result<Self, BuildError> {
        let unknown = || BuildError::UnknownTarget { name: name.to_owned() };
        if NVIDIA.contains(&name) {
            return Ok(Self { name: name.to_owned(), major: 0, minor: 0, stepping: 0, wave64: false });
        }
        let version = name.strip_prefix("gfx").ok_or_else(unknown)?;
        let (major, minor, stepping) = match version.strip_suffix("-generic") {
            Some(family) => {
                let (major, minor) = family.split_once('-').unwrap_or((family, "0"));
                (major.parse().ok(), minor.parse().ok(), Some(0))
            }
            // The last two digits are the hexadecimal minor version and stepping.
            None if version.len() >= 3 && version.is_ascii() => {
                let (rest, stepping) = version.split_at(version.len() - 1);
                let (major, minor) = rest.split_at(rest.len() - 1);
                (
                    major.parse().ok(),
                    u32::from_str_radix(minor, 16).ok(),
                    u32::from_str_radix(stepping, 16).ok(),
                )
            }
            None => (None, None, None),
        };
        match (major, minor, stepping) {
            (Some(major @ 9..), Some(minor), Some(stepping)) => {
                Ok(Self { name: name.to_owned(), major, minor, stepping, wave64: major < 10 })
            }
            _ => Err(unknown()),
        }
    }

    /// Returns the name as spelled by the compiler.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true for NVIDIA architectures.
    pub fn is_nvidia(&self) -> bool {
        self.name.starts_with("sm_")
    }

    /// Returns AMD's generation: 9 (GCN, CDNA), 10 to 12 (RDNA 1/2, 3, 4). Returns 0 for NVIDIA.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Returns true for generic targets, whose objects run on a family of GPUs.
    pub fn is_generic(&self) -> bool {
        self.name.ends_with("-generic")
    }

    /// Returns this target with waves of 64 lanes, which gfx10 and later support besides their native 32.
    pub fn with_wave64(self) -> Self {
        Self { wave64: true, ..self }
    }

    /// Returns the lanes per wave: the compiler's default, unless changed by [`Self::with_wave64`].
    pub fn wave_size(&self) -> u32 {
        if self.wave64 { 64 } else { 32 }
    }

    /// Returns the code object version: 6 for generic targets, which need it, and otherwise 5, which older ROCm releases load.
    pub fn code_object_version(&self) -> u32 {
        if self.is_generic() { 6 } else { 5 }
    }

    /// Returns the device libraries' number of the ISA (`__oclc_ISA_version`).
    pub fn isa_version(&self) -> u32 {
        self.major * 1000 + self.minor * 100 + self.stepping
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Parses a comma-separated list and removes duplicates.
///
/// # Errors
/// [`BuildError::UnknownTarget`] for an unknown entry or an empty list.
pub fn parse_list(list: &str) -> Result<Vec<Target>, BuildError> {
    let mut targets = Vec::new();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let target = Target::parse(name)?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.is_empty() {
        return Err(BuildError::UnknownTarget { name: list.to_owned() });
    }
    Ok(targets)
}

/// Returns the targets to build for: `list` (the value of [`ARCHS_VARIABLE`]) if it is not blank, otherwise the GPUs of this
/// machine, otherwise [`DEFAULT`].
///
/// # Errors
/// [`BuildError::UnknownTarget`].
pub fn choose(list: Option<&str>) -> Result<Vec<Target>, BuildError> {
    match list.filter(|list| !list.trim().is_empty()) {
        Some(list) => parse_list(list),
        None => {
            let detected = detect(Path::new(TOPOLOGY));
            if detected.is_empty() {
                DEFAULT.iter().map(|name| Target::parse(name)).collect()
            } else {
                Ok(detected)
            }
        }
    }
}

/// Returns the architectures of the GPUs that the driver lists below `topology`; empty without a driver.
fn detect(topology: &Path) -> Vec<Target> {
    let Ok(nodes) = fs::read_dir(topology) else { return Vec::new() };
    let mut targets: Vec<Target> = nodes
        .flatten()
        .filter_map(|node| fs::read_to_string(node.path().join("properties")).ok())
        .filter_map(|properties| {
            let version = properties.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?;
            from_kfd_version(version.trim().parse().ok()?)
        })
        .collect();
    targets.sort();
    targets.dedup();
    targets
}

/// Converts the driver's version, two decimal digits each for major, minor and stepping: 90010 is gfx90a. CPUs have 0.
fn from_kfd_version(version: u32) -> Option<Target> {
    let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
    Target::parse(&format!("gfx{major}{minor:x}{stepping:x}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isa_versions_are_the_device_libraries_numbers() {
        let numbers = [
            ("gfx906", 9006),
            ("gfx908", 9008),
            ("gfx90a", 9010),
            ("gfx942", 9402),
            ("gfx950", 9500),
            ("gfx1030", 10300),
            ("gfx1100", 11000),
            ("gfx1151", 11501),
            ("gfx1201", 12001),
            ("gfx9-4-generic", 9400),
            ("gfx10-3-generic", 10300),
            ("gfx11-generic", 11000),
        ];
        for (name, number) in numbers {
            assert_eq!(Target::parse(name).unwrap().isa_version(), number, "{name}");
        }
    }

    #[test]
    fn invalid_targets_are_rejected() {
        for name in ["", "gfx", "sm_", "sm_50", "gfx9", "gfx-generic", "gfxabc", "gfx803", "gfx1 1"] {
            assert!(Target::parse(name).is_err(), "{name}");
        }
        assert!(parse_list(" , ").is_err());
    }

    #[test]
    fn nvidia_targets_are_parsed_but_never_a_default() {
        let target = Target::parse("sm_90").unwrap();
        assert!(target.is_nvidia() && target.wave_size() == 32 && target.name() == "sm_90");
        assert!(!Target::parse("gfx90a").unwrap().is_nvidia());
        assert!(!DEFAULT.iter().any(|name| NVIDIA.contains(name)));
    }

    #[test]
    fn lists_are_trimmed_and_deduplicated() {
        let names: Vec<_> = parse_list("gfx90a, gfx11-generic,gfx90a,")
            .unwrap()
            .iter()
            .map(|t| t.name().to_owned())
            .collect();
        assert_eq!(names, ["gfx90a", "gfx11-generic"]);
    }

    #[test]
    fn gpus_are_read_from_the_drivers_topology() {
        let dir = tempfile::tempdir().unwrap();
        for (node, version) in [("0", 0), ("1", 110_000), ("2", 90_010), ("3", 110_000)] {
            let node = dir.path().join(node);
            fs::create_dir(&node).unwrap();
            fs::write(node.join("properties"), format!("cpu_cores_count 4\ngfx_target_version {version}\n"))
                .unwrap();
        }
        let names: Vec<_> = detect(dir.path()).iter().map(|t| t.name().to_owned()).collect();
        assert_eq!(names, ["gfx1100", "gfx90a"]);
        assert!(detect(&dir.path().join("missing")).is_empty());
    }
}
