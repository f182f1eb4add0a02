//! Finds the code object for a module and a GPU.

use crate::Module;

/// A compressed code object, embedded by the build script.
struct Embedded {
    module: &'static str,
    target: &'static str,
    /// Size in bytes after decompression.
    size: usize,
    compressed: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Generic targets and the architectures that run their objects (LLVM's AMDGPUUsage, "Generic Processor Versioning").
const GENERIC: &[(&str, &[&str])] = &[
    ("gfx9-generic", &["gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"]),
    ("gfx9-4-generic", &["gfx940", "gfx941", "gfx942", "gfx950"]),
    ("gfx10-1-generic", &["gfx1010", "gfx1011", "gfx1012", "gfx1013"]),
    ("gfx10-3-generic", &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"]),
    (
        "gfx11-generic",
        &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"],
    ),
    ("gfx12-generic", &["gfx1200", "gfx1201"]),
    // NVIDIA objects run on later chips of the same generation (CUDA C++ Programming Guide, "Binary Compatibility").
    ("sm_80", &["sm_86", "sm_87", "sm_89"]),
    ("sm_86", &["sm_87", "sm_89"]),
];

/// A decompressed code object, ready to load.
#[derive(Debug, Clone)]
pub struct CodeObject {
    /// The target that it was compiled for: the GPU's architecture, or a generic one.
    pub target: &'static str,
    /// The ELF file.
    pub bytes: Vec<u8>,
}

/// Error of looking up a code object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// This binary has no code object for the GPU.
    #[error(
        "this binary has no kernels for {arch}: it was built for {held}. \
         Rebuild with CANDLE_ROCM_ARCHS={fitting} in the environment ({choices} would fit)"
    )]
    NoCodeObject {
        /// The GPU's architecture.
        arch: String,
        /// The targets in the binary, comma-separated.
        held: String,
        /// A value for `CANDLE_ROCM_ARCHS` with the binary's targets and the GPU's architecture.
        fitting: String,
        /// The targets that run on the GPU.
        choices: String,
    },

    /// The embedded bytes cannot be decompressed.
    #[error(
        "the code object of module {module} for {target} in this binary is damaged: {detail}. Rebuild the binary"
    )]
    Damaged {
        /// The module.
        module: &'static str,
        /// The target.
        target: &'static str,
        /// The decompressor's error.
        detail: String,
    },
}

/// Returns the targets that this binary has kernels for.
pub fn archs() -> &'static [&'static str] {
    TARGETS
}

/// Returns the code object of `module` for a GPU of architecture `arch`, with or without the feature suffixes that HIP
/// reports (`gfx90a:sramecc+:xnack-`), or for a target. Prefers an object for exactly this architecture over a generic one.
///
/// # Errors
/// [`KernelError::NoCodeObject`] if nothing in the binary fits the GPU.
pub fn code_object(module: Module, arch: &str) -> Result<CodeObject, KernelError> {
    let arch = without_features(arch);
    let target = best_target(arch, TARGETS).ok_or_else(|| no_code_object(arch, TARGETS))?;
    let embedded = EMBEDDED
        .iter()
        .find(|embedded| embedded.module == module.name() && embedded.target == target)
        .ok_or_else(|| no_code_object(arch, TARGETS))?;
    unpack(embedded)
}

fn unpack(embedded: &Embedded) -> Result<CodeObject, KernelError> {
    let damaged =
        |detail: String| KernelError::Damaged { module: embedded.module, target: embedded.target, detail };
    let bytes = zstd::bulk::decompress(embedded.compressed, embedded.size)
        .map_err(|error| damaged(error.to_string()))?;
    if bytes.len() != embedded.size {
        return Err(damaged(format!("{} bytes instead of {}", bytes.len(), embedded.size)));
    }
    Ok(CodeObject { target: embedded.target, bytes })
}

fn without_features(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

/// Returns the targets whose objects run on `arch`, best first.
fn fitting(arch: &str) -> impl Iterator<Item = &str> {
    let generic =
        GENERIC.iter().filter(move |(_, members)| members.contains(&arch)).map(|(generic, _)| *generic);
    std::iter::once(arch).chain(generic)
}

/// Returns the best of the targets `held` for a GPU of architecture `arch` (with or without feature suffixes), preferring an
/// exact one over a generic one. Use it to select among your own code objects:
///
/// ```
/// assert_eq!(hip_kernels::best_target("gfx1102", &["gfx90a", "gfx11-generic"]), Some("gfx11-generic"));
/// ```
pub fn best_target<'a>(arch: &str, held: &[&'a str]) -> Option<&'a str> {
    fitting_targets(arch, held).first().copied()
}

/// Returns those of the targets `held` whose objects run on a GPU of architecture `arch`, best first. See [`best_target`].
pub fn fitting_targets<'a>(arch: &str, held: &[&'a str]) -> Vec<&'a str> {
    let held_as = |target| held.iter().find(|held| **held == target).copied();
    fitting(without_features(arch)).filter_map(held_as).collect()
}

fn no_code_object(arch: &str, held: &[&str]) -> KernelError {
    KernelError::NoCodeObject {
        arch: arch.to_owned(),
        held: held.join(", "),
        fitting: held.iter().copied().chain([arch]).collect::<Vec<_>>().join(","),
        choices: fitting(arch).collect::<Vec<_>>().join(" or "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_target_is_preferred() {
        assert_eq!(best_target("gfx1100", &["gfx11-generic", "gfx1100"]), Some("gfx1100"));
        assert_eq!(best_target("gfx1102", &["gfx11-generic", "gfx1100"]), Some("gfx11-generic"));
        assert_eq!(best_target("gfx942", &["gfx90a", "gfx9-4-generic"]), Some("gfx9-4-generic"));
        assert_eq!(best_target("gfx950", &["gfx9-4-generic", "gfx942", "gfx950"]), Some("gfx950"));
        assert_eq!(best_target("gfx906:sramecc+:xnack-", &["gfx9-generic", "gfx906"]), Some("gfx906"));
        // Other architectures of the same generation do not run the object.
        assert_eq!(best_target("gfx90a", &["gfx908", "gfx9-4-generic"]), None);
        assert_eq!(best_target("gfx1010", &["gfx10-3-generic"]), None);
        let held = ["gfx11-generic", "gfx1100", "gfx1151"];
        assert_eq!(fitting_targets("gfx1151:xnack-", &held), ["gfx1151", "gfx11-generic"]);
    }

    #[test]
    fn feature_suffixes_are_ignored() {
        assert_eq!(without_features("gfx90a:sramecc+:xnack-"), "gfx90a");
        assert_eq!(without_features("gfx1100"), "gfx1100");
    }

    #[test]
    fn the_error_lists_targets_and_the_remedy() {
        let text = no_code_object("gfx1036", &["gfx90a", "gfx11-generic"]).to_string();
        for part in [
            "no kernels for gfx1036",
            "built for gfx90a, gfx11-generic",
            "CANDLE_ROCM_ARCHS=gfx90a,gfx11-generic,gfx1036",
            "gfx1036 or gfx10-3-generic would fit",
        ] {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
    }

    #[test]
    fn an_unknown_architecture_is_an_error() {
        let error = code_object(Module::Unary, "gfx000:xnack+").unwrap_err();
        assert!(matches!(error, KernelError::NoCodeObject { arch, .. } if arch == "gfx000"));
    }

    #[test]
    fn every_module_is_embedded_for_every_target() {
        for target in archs() {
            for module in Module::ALL {
                let object = code_object(module, target).unwrap();
                assert_eq!(object.target, *target);
                // A 64-bit little-endian ELF file for machine 224, AMDGPU, or 190, CUDA.
                let machine: u16 = if target.starts_with("sm_") { 190 } else { 224 };
                assert_eq!(object.bytes[..6], [0x7f, b'E', b'L', b'F', 2, 1], "{module} for {target}");
                assert_eq!(object.bytes[18..20], machine.to_le_bytes(), "{module} for {target}");
            }
        }
        assert_eq!(EMBEDDED.len(), archs().len() * Module::ALL.len());
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let damaged = Embedded { module: "unary", target: "gfx1100", size: 10, compressed: b"not zstd" };
        assert!(matches!(unpack(&damaged), Err(KernelError::Damaged { .. })));
    }
}
