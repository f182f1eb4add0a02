//! Finds a clang that compiles for AMD GPUs, and runs it. NVIDIA targets use the same clang and the toolkit of
//! [`crate::nvidia`].

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::nvidia::{self, Toolkit};
use crate::{BuildError, Target};

/// Environment variable with the path of the clang (or amdclang++) to use.
pub const CLANG_VARIABLE: &str = "CANDLE_ROCM_CLANG";
/// Environment variable with the folder that contains `ocml.bc`.
pub const DEVICE_LIBS_VARIABLE: &str = "CANDLE_ROCM_DEVICE_LIBS";
/// Environment variable with the folder of a ROCm installation.
pub const ROCM_VARIABLE: &str = "ROCM_PATH";

/// Oldest upstream clang that supports the generic targets. ROCm's clang is used regardless of its version.
const OLDEST_CLANG: u32 = 19;
const NEWEST_CLANG: u32 = 24;

/// All flags that affect the machine code, except those of the target.
///
/// * `-ffp-contract=on`: a product and a sum in one expression may be fused, as with nvcc. Across expressions and
///   statements every operation rounds.
/// * No fast-math flags: infinities, NaN and subnormals follow IEEE 754, and division and square root are correctly
///   rounded. Workgroups may have up to 1024 threads (clang's default).
/// * Arguments keep their names, which the build checks.
/// * Neither HIP's nor the system's headers are included.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "--cuda-device-only",
    "-nogpuinc",
    "-nogpulib",
    "-nostdinc",
    "-fuse-cuid=none",
    "-O3",
    "-ffp-contract=on",
    "-fno-discard-value-names",
    "-Wno-unused-command-line-argument",
];

/// Additional flags for AMD targets.
const AMD_FLAGS: &[&str] = &["-x", "hip", "--no-gpu-bundle-output"];

/// A usable compiler, with the device libraries for the targets that it was discovered for.
#[derive(Debug, Clone)]
pub struct Compiler {
    path: PathBuf,
    version: String,
    /// Device library for AMD targets.
    ocml: PathBuf,
    /// NVIDIA's toolkit, if there are NVIDIA targets.
    toolkit: Option<Toolkit>,
}

impl Compiler {
    /// Finds a compiler: [`CLANG_VARIABLE`], ROCm's ([`ROCM_VARIABLE`], `/opt/rocm`), or a clang on `PATH`, newest first.
    /// Also finds `ocml.bc`: in [`DEVICE_LIBS_VARIABLE`], in ROCm, next to the compiler, or in the distributions' folders;
    /// and NVIDIA's toolkit if `targets` include NVIDIA GPUs.
    ///
    /// # Errors
    /// [`BuildError::NoCompiler`], [`BuildError::UnusableCompiler`], [`BuildError::NoDeviceLibraries`],
    /// [`BuildError::NoNvidiaTools`].
    pub fn discover(targets: &[Target]) -> Result<Self, BuildError> {
        let rocm = rocm_dirs(variable(ROCM_VARIABLE));
        let (path, version) = match variable(CLANG_VARIABLE) {
            Some(path) => {
                let path = PathBuf::from(path);
                let version = probe(&path).map_err(|reason| BuildError::UnusableCompiler {
                    variable: CLANG_VARIABLE,
                    path: path.clone(),
                    reason,
                })?;
                (path, version)
            }
            None => first_usable(&candidates(&rocm))?,
        };
        let ocml = find_ocml(&library_dirs(&rocm, &path))?;
        let toolkit = targets.iter().any(Target::is_nvidia).then(Toolkit::discover).transpose()?;
        Ok(Self { path, version, ocml, toolkit })
    }

    /// Returns the compiler's version line.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the path of the compiler.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the device library that kernels for AMD GPUs are linked with.
    pub fn ocml(&self) -> &Path {
        &self.ocml
    }

    /// Returns the toolkit for NVIDIA targets.
    fn toolkit(&self) -> Result<&Toolkit, BuildError> {
        self.toolkit.as_ref().ok_or_else(Toolkit::missing)
    }

    /// Returns everything that affects the machine code except the preprocessed source and the libraries, for hashing.
    ///
    /// # Errors
    /// [`BuildError::NoNvidiaTools`] if the compiler was discovered without NVIDIA targets.
    pub fn fingerprint(&self, target: &Target) -> Result<String, BuildError> {
        if target.is_nvidia() {
            let flags = nvidia::flags(target);
            return Ok(format!("{}\n{FLAGS:?} {flags:?}\n{}", self.version, self.toolkit()?.version()));
        }
        Ok(format!(
            "{}\n{} {} {} -mcode-object-version={}\n{}",
            self.version,
            FLAGS.join(" "),
            AMD_FLAGS.join(" "),
            target,
            target.code_object_version(),
            device_library_settings(target)
        ))
    }

    /// Compiles and links one source to one code object. `include` are the folders of headers, and `prelude` is the header
    /// that is included before the first line.
    ///
    /// The inner error contains the compiler's messages.
    ///
    /// # Errors
    /// [`BuildError::Io`] if the compiler does not start or a file cannot be written.
    pub fn compile(
        &self,
        source: &Path,
        target: &Target,
        include: &[&Path],
        prelude: &str,
        object: &Path,
    ) -> Result<Result<(), String>, BuildError> {
        let mut command = self.command(target, include, prelude);
        if target.is_nvidia() {
            return self.toolkit()?.compile(command, source, target, object);
        }
        let settings = match self.settings_bitcode(target, object)? {
            Ok(settings) => settings,
            Err(message) => return Ok(Err(message)),
        };
        for library in [self.ocml.as_path(), &settings] {
            command.args(["-Xclang", "-mlink-builtin-bitcode", "-Xclang"]).arg(library);
        }
        command.arg("-o").arg(object).arg(source);
        let outcome = run(command);
        for leftover in ["settings.ll", "settings.bc"] {
            let _ = fs::remove_file(object.with_extension(leftover));
        }
        Ok(outcome?.map(drop))
    }

    /// Returns a source as [`Self::compile`] sees it: with the headers that it includes, without comments.
    ///
    /// The inner error contains the compiler's messages.
    ///
    /// # Errors
    /// [`BuildError::Io`] if the compiler does not start.
    pub fn preprocess(
        &self,
        source: &Path,
        target: &Target,
        include: &[&Path],
        prelude: &str,
    ) -> Result<Result<Vec<u8>, String>, BuildError> {
        let mut command = self.command(target, include, prelude);
        command.args(["-E", "-P", "-o", "-"]).arg(source);
        run(command)
    }

    /// Returns a command of the compiler with the flags of a target and the folders of headers.
    fn command(&self, target: &Target, include: &[&Path], prelude: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(FLAGS);
        for dir in include {
            command.arg("-I").arg(dir);
        }
        command.args(["-include", prelude]);
        if target.is_nvidia() {
            command.args(nvidia::flags(target));
            return command;
        }
        command.args(AMD_FLAGS);
        command.arg(format!("--offload-arch={target}"));
        command.arg(format!("-mcode-object-version={}", target.code_object_version()));
        if target.major() >= 10 && target.wave_size() == 64 {
            command.arg("-mwavefrontsize64");
        }
        command
    }

    /// Compiles the constants that configure the device library to bitcode next to `object`. ROCm ships them as one file per
    /// setting, but the set of files differs between releases, so they are generated here.
    fn settings_bitcode(
        &self,
        target: &Target,
        object: &Path,
    ) -> Result<Result<PathBuf, String>, BuildError> {
        let text = object.with_extension("settings.ll");
        let bitcode = object.with_extension("settings.bc");
        fs::write(&text, device_library_settings(target)).map_err(BuildError::io("cannot write", &text))?;
        let mut command = Command::new(&self.path);
        command.args(["--target=amdgcn-amd-amdhsa", "-nogpulib", "-x", "ir", "-c", "-emit-llvm", "-o"]);
        command.arg(&bitcode).arg(&text);
        Ok(run(command)?.map(|_| bitcode))
    }
}

/// Returns LLVM IR of the device library's settings, with IEEE semantics throughout. For their names and meaning see the ROCm
/// device libraries, `doc/OCML.md` and `oclc/inc/oclc.h`.
fn device_library_settings(target: &Target) -> String {
    let settings = [
        ("ISA_version", "i32", target.isa_version()),
        ("wavefrontsize64", "i8", u32::from(target.wave_size() == 64)),
        ("finite_only_opt", "i8", 0),
        ("unsafe_math_opt", "i8", 0),
        ("daz_opt", "i8", 0),
        ("correctly_rounded_sqrt32", "i8", 1),
        ("ABI_version", "i32", target.code_object_version() * 100),
    ];
    let mut text = String::from("target triple = \"amdgcn-amd-amdhsa\"\n");
    for (name, kind, value) in settings {
        text.push_str(&format!(
            "@__oclc_{name} = linkonce_odr protected local_unnamed_addr addrspace(4) constant {kind} {value}\n"
        ));
    }
    text
}

/// Runs a compiler and returns its output. The inner error contains its messages.
pub(crate) fn run(mut command: Command) -> Result<Result<Vec<u8>, String>, BuildError> {
    let program = PathBuf::from(command.get_program());
    let output = command.output().map_err(BuildError::io("cannot start", &program))?;
    if output.status.success() {
        return Ok(Ok(output.stdout));
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(Err(if text.is_empty() {
        format!("{} failed with {}", program.display(), output.status)
    } else {
        text
    }))
}

/// Returns the value of an environment variable; an empty value counts as unset.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn rocm_dirs(chosen: Option<OsString>) -> Vec<PathBuf> {
    chosen.map(PathBuf::from).into_iter().chain([PathBuf::from("/opt/rocm")]).collect()
}

/// Returns the compilers to try, best first.
fn candidates(rocm: &[PathBuf]) -> Vec<PathBuf> {
    let in_rocm = ["bin/amdclang++", "lib/llvm/bin/clang++", "llvm/bin/clang++", "bin/hipcc"];
    let mut candidates: Vec<PathBuf> =
        rocm.iter().flat_map(|dir| in_rocm.iter().map(move |name| dir.join(name))).collect();
    candidates
        .extend((OLDEST_CLANG..=NEWEST_CLANG).rev().map(|version| PathBuf::from(format!("clang-{version}"))));
    candidates.push(PathBuf::from("clang"));
    candidates
}

fn first_usable(candidates: &[PathBuf]) -> Result<(PathBuf, String), BuildError> {
    let mut tried = Vec::new();
    for candidate in candidates {
        match probe(candidate) {
            Ok(version) => return Ok((candidate.clone(), version)),
            Err(reason) => tried.push(format!("{} ({reason})", candidate.display())),
        }
    }
    Err(BuildError::NoCompiler { tried: tried.join(", ") })
}

/// Returns the compiler's version line, or the reason why it cannot be used.
fn probe(path: &Path) -> Result<String, String> {
    let query = |arguments: &[&str]| -> Result<String, String> {
        let output = Command::new(path).args(arguments).output().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "not found".to_owned(),
            _ => error.to_string(),
        })?;
        if !output.status.success() {
            return Err(format!("`{}` failed", arguments.join(" ")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let version = query(&["--version"])?;
    let line =
        version.lines().find(|line| line.contains("clang version")).ok_or("not a clang")?.trim().to_owned();
    // AMD's and Apple's clang have other version numbers; AMD's always supports AMD GPUs.
    if !line.starts_with("AMD") && clang_major(&line).is_none_or(|major| major < OLDEST_CLANG) {
        return Err(format!("{line}: clang {OLDEST_CLANG} or later is needed"));
    }
    if !query(&["--print-targets"])?.contains("amdgcn") {
        return Err("has no AMDGPU target".to_owned());
    }
    let linker = query(&["--print-prog-name=ld.lld"])?;
    if !Path::new(linker.trim()).is_file() && !on_path("ld.lld") {
        return Err("its linker ld.lld is missing: install lld".to_owned());
    }
    Ok(line)
}

/// Returns the major version, such as 22 for "Debian clang version 22.1.8 ...".
fn clang_major(line: &str) -> Option<u32> {
    let (_, version) = line.split_once("clang version ")?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Returns folders that may contain `ocml.bc`, best first.
fn library_dirs(rocm: &[PathBuf], compiler: &Path) -> Vec<PathBuf> {
    if let Some(dir) = variable(DEVICE_LIBS_VARIABLE) {
        return vec![PathBuf::from(dir)];
    }
    let mut dirs: Vec<PathBuf> = variable("HIP_DEVICE_LIB_PATH").map(PathBuf::from).into_iter().collect();
    dirs.extend(rocm.iter().map(|dir| dir.join("amdgcn/bitcode")));
    if let Ok(output) = Command::new(compiler).arg("--print-resource-dir").output() {
        let resources = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        dirs.extend([resources.join("lib/amdgcn/bitcode"), resources.join("amdgcn/bitcode")]);
    }
    dirs.extend(
        ["/usr/lib/amdgcn/bitcode", "/usr/lib64/amdgcn/bitcode", "/usr/amdgcn/bitcode"].map(PathBuf::from),
    );
    // Debian's multiarch folders, and the folders of Fedora's clang.
    for (parent, below) in [
        ("/usr/lib", "amdgcn/bitcode"),
        ("/usr/lib/clang", "amdgcn/bitcode"),
        ("/usr/lib/clang", "lib/amdgcn/bitcode"),
        ("/usr/lib64/rocm/llvm/lib/clang", "amdgcn/bitcode"),
        ("/usr/lib64/rocm/llvm/lib/clang", "lib/amdgcn/bitcode"),
    ] {
        let mut found: Vec<PathBuf> = fs::read_dir(parent)
            .map(|entries| entries.flatten().map(|entry| entry.path().join(below)).collect())
            .unwrap_or_default();
        found.retain(|dir| dir.is_dir());
        found.sort();
        dirs.extend(found.into_iter().rev());
    }
    dirs
}

fn find_ocml(dirs: &[PathBuf]) -> Result<PathBuf, BuildError> {
    dirs.iter().map(|dir| dir.join("ocml.bc")).find(|path| path.is_file()).ok_or_else(|| {
        let tried: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        BuildError::NoDeviceLibraries { tried: tried.join(", ") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions_are_parsed_for_every_vendor() {
        assert_eq!(clang_major("Debian clang version 22.1.8 (++2026)"), Some(22));
        assert_eq!(clang_major("clang version 19.0.0git"), Some(19));
        assert_eq!(clang_major("gcc (Debian) 12"), None);
    }

    #[test]
    fn the_error_without_a_compiler_names_the_packages() {
        let missing = [PathBuf::from("/nonexistent/clang"), PathBuf::from("/bin/true")];
        let text = first_usable(&missing).unwrap_err().to_string();
        for part in [
            "/nonexistent/clang (not found)",
            "/bin/true (not a clang)",
            "apt-get install clang-22 lld-22 rocm-device-libs",
            "dnf install clang lld rocm-device-libs",
            CLANG_VARIABLE,
            ROCM_VARIABLE,
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn the_error_without_the_device_library_names_the_packages() {
        let text = find_ocml(&[PathBuf::from("/nonexistent")]).unwrap_err().to_string();
        for part in ["/nonexistent", "apt-get install rocm-device-libs", DEVICE_LIBS_VARIABLE] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn rocms_clang_is_preferred() {
        let list = candidates(&rocm_dirs(Some("/r".into())));
        assert_eq!(list[0], Path::new("/r/bin/amdclang++"));
        assert_eq!(list[4], Path::new("/opt/rocm/bin/amdclang++"));
        assert_eq!(list[8], Path::new("clang-24"));
    }
}
