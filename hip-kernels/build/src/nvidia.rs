//! NVIDIA targets: clang writes PTX, which NVIDIA's assembler converts to an object ("cubin"). They are used only to run and
//! measure the kernels on machines without an AMD GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compiler::{run, variable};
use crate::{BuildError, Target};

/// Environment variables with the folder of a CUDA toolkit, in order of precedence.
pub const TOOLKIT_VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// Installation folder of NVIDIA's packages.
const DEFAULT_TOOLKIT: &str = "/usr/local/cuda";
const ASSEMBLER: &str = "bin/ptxas";
const DEVICE_LIBRARY: &str = "nvvm/libdevice/libdevice.10.bc";

/// Returns the folder of the toolkit that `cargo xtask nvidia-tools` downloads into this repository.
pub fn fetched_toolkit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/nvidia-tools/nvidia/cu13")
}

/// Returns the compiler's name of the target. With `sm_90a`, the kernels may use the instructions that only GPUs of this
/// architecture have, such as products of warpgroups.
fn arch(target: &Target) -> &str {
    if target.name() == "sm_90" { "sm_90a" } else { target.name() }
}

/// Returns clang's additional flags for an NVIDIA target. PTX 8.0 is the first version that supports all of
/// [`crate::target::NVIDIA`]. Drivers load only the assembled object, so the PTX version does not restrict them.
pub(crate) fn flags(target: &Target) -> Vec<String> {
    let arch = format!("--cuda-gpu-arch={}", arch(target));
    ["-x", "cuda", "-S", "--cuda-feature=+ptx80", &arch].map(str::to_owned).to_vec()
}

/// The assembler and the device library of a CUDA toolkit.
#[derive(Debug, Clone)]
pub(crate) struct Toolkit {
    assembler: PathBuf,
    device_library: PathBuf,
    version: String,
}

impl Toolkit {
    /// Finds a toolkit: in [`TOOLKIT_VARIABLES`], in [`fetched_toolkit`], or in the installation folder of NVIDIA's packages.
    ///
    /// # Errors
    /// [`BuildError::NoNvidiaTools`]; [`BuildError::Io`] if the assembler does not start.
    pub(crate) fn discover() -> Result<Self, BuildError> {
        Self::in_one_of(&folders())
    }

    /// Returns the error of a build for which no toolkit was discovered.
    pub(crate) fn missing() -> BuildError {
        missing(ASSEMBLER, &folders())
    }

    fn in_one_of(folders: &[PathBuf]) -> Result<Self, BuildError> {
        let find = |file: &'static str| {
            let found = folders.iter().map(|folder| folder.join(file)).find(|path| path.is_file());
            found.ok_or_else(|| missing(file, folders))
        };
        let (assembler, device_library) = (find(ASSEMBLER)?, find(DEVICE_LIBRARY)?);
        let output = Command::new(&assembler)
            .arg("--version")
            .output()
            .map_err(BuildError::io("cannot start", &assembler))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().last().unwrap_or_default().to_owned();
        Ok(Self { assembler, device_library, version })
    }

    /// Returns the assembler's version line.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Runs `clang`, which has the [`flags`] of the target, to write PTX, and assembles it to `object`. The inner error
    /// contains the messages of the program that failed.
    pub(crate) fn compile(
        &self,
        mut clang: Command,
        source: &Path,
        target: &Target,
        object: &Path,
    ) -> Result<Result<(), String>, BuildError> {
        let text = object.with_extension("ptx");
        clang.args(["-Xclang", "-mlink-builtin-bitcode", "-Xclang"]);
        clang.arg(&self.device_library).arg("-o").arg(&text).arg(source);
        let mut assembler = Command::new(&self.assembler);
        assembler.arg(format!("-arch={}", arch(target))).arg("-o").arg(object).arg(&text);
        let outcome = match run(clang)? {
            Ok(_) => run(assembler)?.map(drop),
            Err(refusal) => Err(refusal),
        };
        let _ = fs::remove_file(&text);
        Ok(outcome)
    }
}

fn folders() -> Vec<PathBuf> {
    let named = TOOLKIT_VARIABLES.into_iter().filter_map(variable).map(PathBuf::from);
    named.chain([fetched_toolkit(), PathBuf::from(DEFAULT_TOOLKIT)]).collect()
}

fn missing(file: &'static str, folders: &[PathBuf]) -> BuildError {
    let tried: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    BuildError::NoNvidiaTools { missing: file, tried: tried.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_without_a_toolkit_names_the_file_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let looked_in = [folder.path().to_owned()];
        let text = Toolkit::in_one_of(&looked_in).unwrap_err().to_string();
        let folder_text = folder.path().display().to_string();
        for part in [ASSEMBLER, &folder_text, "cargo xtask nvidia-tools", "CUDA_HOME"] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(folder.path().join(ASSEMBLER), "").unwrap();
        let text = Toolkit::in_one_of(&looked_in).unwrap_err().to_string();
        assert!(text.contains(DEVICE_LIBRARY), "{text}");
    }

    #[test]
    fn flags_name_the_target() {
        for (target, arch) in [("sm_80", "sm_80"), ("sm_90", "sm_90a")] {
            let flags = flags(&Target::parse(target).unwrap());
            assert!(flags.contains(&format!("--cuda-gpu-arch={arch}")), "{flags:?}");
        }
    }
}
