//! NVIDIA's targets: clang writes PTX, NVIDIA's own assembler makes the object (a "cubin") of it. Only for running and
//! measuring the kernels where there is no AMD GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compiler::{run, variable};
use crate::{BuildError, Target};

/// Folders of a CUDA toolkit, the first that is set.
pub const TOOLKIT_VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// Where NVIDIA's packages install it.
const DEFAULT_TOOLKIT: &str = "/usr/local/cuda";
const ASSEMBLER: &str = "bin/ptxas";
const DEVICE_LIBRARY: &str = "nvvm/libdevice/libdevice.10.bc";

/// Where `cargo xtask nvidia-tools` puts a toolkit: in this repository, where downloads are kept.
pub fn fetched_toolkit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/nvidia-tools/nvidia/cu13")
}

/// What clang takes for one of these targets besides the flags of all. PTX 8.0 is the first that knows each of
/// [`crate::target::NVIDIA`]; drivers see only what is assembled of it.
pub(crate) fn flags(target: &Target) -> Vec<String> {
    let arch = format!("--cuda-gpu-arch={target}");
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
    /// Finds one: [`TOOLKIT_VARIABLES`], else [`fetched_toolkit`], else where NVIDIA's packages install it.
    ///
    /// # Errors
    /// [`BuildError::NoNvidiaTools`]; [`BuildError::Io`] if the assembler does not start.
    pub(crate) fn discover() -> Result<Self, BuildError> {
        Self::in_one_of(&folders())
    }

    /// The error of a build that did not look for a toolkit.
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

    /// What the assembler calls its build.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Lets `clang`, which has the [`flags`] of the target, write PTX, and assembles it to `object`.
    /// The inner error is what either of them said.
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
        assembler.arg(format!("-arch={target}")).arg("-o").arg(object).arg(&text);
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
    fn without_a_toolkit_the_error_says_what_is_missing_and_how_to_get_it() {
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
    fn clang_is_told_the_target() {
        let flags = flags(&Target::parse("sm_80").unwrap());
        assert!(flags.contains(&"--cuda-gpu-arch=sm_80".to_owned()), "{flags:?}");
    }
}
