//! Diagnostic report of a machine: driver, GPUs, code objects, libraries, variables, and one line of advice.
use super::device::RocmDevice;
use super::graph_faults::GraphState;
use super::properties::properties;
use crate::Result;
use rocm_loader::{Library, LibraryFile, Variable, Versions};
use std::fmt;
use std::path::PathBuf;

/// Diagnostic report, collected by [`Report::gather`]. Its `Display` output is meant for people.
#[derive(Debug, Clone)]
pub struct Report {
    /// Description of the driver that serves HIP's calls, or the reason why there is none.
    pub driver: std::result::Result<String, String>,
    /// True if results come from the software GPU.
    pub emulated: bool,
    /// Note that results must carry; `None` for an AMD GPU and for the software GPU.
    pub note: Option<&'static str>,
    /// Versions of the libraries; `None` without a driver.
    pub versions: Option<Versions>,
    /// GPUs in the order of their numbers; empty without a driver.
    pub gpus: Vec<GpuReport>,
    /// Number of the GPU that is used by default.
    pub default_ordinal: Option<usize>,
    /// Targets for which this binary contains kernels.
    pub embedded: &'static [&'static str],
    /// Libraries of the driver, or of ROCm if there is no driver; empty on the software GPU.
    pub libraries: Vec<LibraryReport>,
    /// Relevant environment variables that are set, with the problem that each causes.
    pub variables: Vec<Variable>,
    /// The most important step to take next.
    pub advice: String,
}

/// Diagnostic report of one GPU.
#[derive(Debug, Clone)]
pub struct GpuReport {
    /// Number N in `rocm:N`.
    pub ordinal: usize,
    /// Marketing name.
    pub name: String,
    /// Architecture as reported by the driver.
    pub arch: String,
    /// True if the GPU is built into the processor.
    pub integrated: bool,
    /// Total memory in bytes.
    pub total_memory: usize,
    /// Free memory in bytes, or the error of the query.
    pub free_memory: std::result::Result<usize, String>,
    /// Target whose kernels the GPU would run; `None` if this binary has no compatible kernels.
    pub code_object: Option<&'static str>,
    /// Target with better fitting kernels that HIP refused in the self-test, and HIP's error.
    pub refused: Option<String>,
    /// Result of the self-test, see [`RocmDevice::new_checked`]; `None` without a code object.
    pub self_test: Option<std::result::Result<(), String>>,
    /// State of graphs; `None` if the GPU failed its self-test or has no code object.
    pub graphs: Option<GraphState>,
}

/// A library that the driver loads.
#[derive(Debug, Clone)]
pub struct LibraryReport {
    /// ROCm library that it is or replaces.
    pub serves: Library,
    /// File name, without a version if several are accepted.
    pub name: &'static str,
    /// Path of the file that is opened; `None` if it is missing.
    pub file: Option<PathBuf>,
    /// For rocBLAS, architectures of this machine for which it has no kernels.
    pub without_kernels: Vec<String>,
}

impl Report {
    /// Collects the report. A query that fails is part of the report as an error text. Each GPU is opened briefly for
    /// a self-test of at most 30 seconds.
    pub fn gather() -> Self {
        let driver = rocm_loader::driver();
        let emulated = driver.as_ref().is_ok_and(|driver| driver.is_software());
        let archs = rocm_loader::device_archs();
        let gpus: Vec<GpuReport> =
            archs.iter().flatten().enumerate().map(|(ordinal, arch)| gpu(ordinal, arch)).collect();
        let note = driver.as_ref().ok().filter(|_| !emulated).and_then(|driver| driver.note());
        let libraries =
            rocm_loader::libraries().into_iter().map(|library| library_report(library, &gpus)).collect();
        let mut report = Self {
            versions: driver.as_ref().ok().map(|driver| driver.versions()),
            driver: archs.map_err(|error| error.to_string()).and_then(|_| match driver {
                Ok(driver) => Ok(driver.description()),
                Err(error) => Err(error.to_string()),
            }),
            emulated,
            note,
            default_ordinal: RocmDevice::default_ordinal().ok(),
            gpus,
            embedded: hip_kernels::archs(),
            libraries,
            variables: rocm_loader::environment(),
            advice: String::new(),
        };
        report.advice = report.advise();
        report
    }

    /// Returns true if at least one GPU passed its self-test and a BLAS library is available.
    pub fn is_healthy(&self) -> bool {
        let computes = |gpu: &GpuReport| matches!(gpu.self_test, Some(Ok(())));
        let multiplies =
            |library: &LibraryReport| library.serves == Library::RocBlas && library.file.is_some();
        let has_blas = self.emulated || self.libraries.iter().any(multiplies);
        self.gpus.iter().any(computes) && has_blas
    }

    /// Returns advice on the most important problem, or which device to use if there is none.
    fn advise(&self) -> String {
        if let Err(missing) = &self.driver {
            return missing.clone();
        }
        let harmful = |name: &str| {
            self.variables.iter().find(|variable| variable.name == name && variable.warning.is_some())
        };
        let unfit = |gpu: &&GpuReport| gpu.code_object.is_none();
        if let Some(variable) = harmful("HSA_OVERRIDE_GFX_VERSION") {
            return format!("unset {}: {}", variable.name, variable.warning.unwrap_or_default());
        }
        if self.gpus.iter().all(|gpu| gpu.code_object.is_none()) {
            let archs: Vec<&str> = self.gpus.iter().map(|gpu| processor(&gpu.arch)).collect();
            return format!(
                "this binary holds no kernels for {}: build it with CANDLE_ROCM_ARCHS={}",
                archs.join(", "),
                archs.join(",")
            );
        }
        for gpu in &self.gpus {
            if let Some(Err(reason)) = &gpu.self_test {
                return format!("rocm:{} does not work: {reason}", gpu.ordinal);
            }
        }
        for library in &self.libraries {
            if library.file.is_none() {
                return format!("{} is missing: operations that need it fail; install it", library.name);
            }
            if let Some(arch) = library.without_kernels.first() {
                return format!(
                    "{} has no kernels for {arch}: matrix products are slow; install a version that has them",
                    library.name
                );
            }
        }
        if let Some(variable) = self.variables.iter().find(|variable| variable.warning.is_some()) {
            return format!("{} is set: {}", variable.name, variable.warning.unwrap_or_default());
        }
        if let Some(gpu) = self.gpus.iter().find(unfit) {
            return format!(
                "rocm:{} ({}) cannot be used, the other GPUs can: build with CANDLE_ROCM_ARCHS to add its kernels",
                gpu.ordinal, gpu.arch
            );
        }
        let place = self.default_ordinal.unwrap_or(0);
        match (self.emulated, self.note) {
            (true, _) => {
                format!("all is well: rocm:{place} is a software GPU, which is accurate but slow")
            }
            (false, Some(note)) => format!("all is well: use rocm:{place} ({note})"),
            (false, None) => format!("all is well: use rocm:{place}"),
        }
    }
}

/// Strips the features from an architecture: `gfx90a:sramecc+:xnack-` becomes `gfx90a`.
fn processor(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

fn gpu(ordinal: usize, arch: &str) -> GpuReport {
    let targets = hip_kernels::fitting_targets(arch, hip_kernels::archs());
    let (mut name, mut integrated, mut total_memory) = (String::from("unknown"), false, 0);
    if let Ok(found) = properties(ordinal) {
        (name, integrated, total_memory) = (found.name, found.integrated, found.total_memory);
    }
    let mut refused = None;
    let self_test = targets.first().map(|_| {
        let tested = RocmDevice::self_tested(ordinal).map_err(|error| error.to_string())?;
        refused = tested.refused_code_object().map(str::to_string);
        RocmDevice::open(ordinal).map_err(|error| error.to_string())
    });
    let free = match &self_test {
        Some(Ok(device)) => device.memory_info(),
        _ => memory_without_self_test(ordinal),
    };
    GpuReport {
        ordinal,
        name,
        arch: arch.to_string(),
        integrated,
        total_memory,
        free_memory: free.map(|(free, _)| free).map_err(|error| error.to_string()),
        code_object: targets.get(usize::from(refused.is_some())).copied(),
        refused,
        graphs: self_test.as_ref().and_then(|test| test.as_ref().ok()).map(RocmDevice::graph_state),
        self_test: self_test.map(|outcome| outcome.map(drop)),
    }
}

/// Returns the free and total memory of a GPU that failed its self-test or has no kernels.
fn memory_without_self_test(ordinal: usize) -> Result<(usize, usize)> {
    RocmDevice::open(ordinal)?.memory_info()
}

fn library_report(library: LibraryFile, gpus: &[GpuReport]) -> LibraryReport {
    let LibraryFile { serves, name, file } = library;
    let without_kernels = match file.is_some() && serves == Library::RocBlas {
        true => without_tensile(gpus),
        false => Vec::new(),
    };
    LibraryReport { serves, name, file, without_kernels }
}

/// Returns the architectures of this machine for which rocBLAS has no kernels.
fn without_tensile(gpus: &[GpuReport]) -> Vec<String> {
    let mut missing: Vec<String> = gpus
        .iter()
        .filter(|gpu| rocm_loader::driver().is_ok_and(|driver| driver.tensile_files(&gpu.arch).is_err()))
        .map(|gpu| processor(&gpu.arch).to_string())
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// Formats HIP's version number: 60_443_483 is 6.4.43483.
fn hip_version(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Ok(driver) => writeln!(f, "driver     {driver}")?,
            Err(missing) => writeln!(f, "driver     none: {missing}")?,
        }
        if let Some(versions) = &self.versions {
            let hip = versions.hip_runtime.map_or("unknown".into(), hip_version);
            let rocblas = versions.rocblas.as_deref().unwrap_or("missing");
            let hipblaslt = versions.hipblaslt.map_or("missing".into(), |version| version.to_string());
            let miopen = versions.miopen.map_or("missing".into(), |v| v.map(|n| n.to_string()).join("."));
            match self.note {
                Some(_) => {
                    let cublas = versions.rocblas.as_deref().unwrap_or("cuBLAS missing");
                    writeln!(f, "versions   {cublas}, cuBLASLt {hipblaslt}, cuDNN {miopen}")?
                }
                None => writeln!(
                    f,
                    "versions   HIP {hip}, rocBLAS {rocblas}, hipBLASLt {hipblaslt}, MIOpen {miopen}"
                )?,
            }
        }
        for gpu in &self.gpus {
            let kind = if gpu.integrated { "integrated" } else { "discrete" };
            let default = if self.default_ordinal == Some(gpu.ordinal) { ", the default" } else { "" };
            writeln!(f, "rocm:{:<6}{}, {}, {kind}{default}", gpu.ordinal, gpu.name, gpu.arch)?;
            match &gpu.free_memory {
                Ok(free) => {
                    writeln!(f, "  memory   {:.2} GiB free of {:.2} GiB", gib(*free), gib(gpu.total_memory))?
                }
                Err(reason) => writeln!(f, "  memory   {:.2} GiB; free: {reason}", gib(gpu.total_memory))?,
            }
            match gpu.code_object {
                Some(target) => writeln!(f, "  kernels  those for {target}")?,
                None => writeln!(f, "  kernels  none in this binary")?,
            }
            if let Some(refused) = &gpu.refused {
                writeln!(f, "           HIP refused those for {refused}")?;
            }
            match &gpu.self_test {
                Some(Ok(())) => writeln!(f, "  test     passed")?,
                Some(Err(reason)) => writeln!(f, "  test     {reason}")?,
                None => {}
            }
            match &gpu.graphs {
                Some(GraphState::Checked(fault)) => {
                    writeln!(f, "  graphs   the first replays are checked: {fault}")?
                }
                Some(GraphState::Disabled(reason)) => writeln!(f, "  graphs   disabled: {reason}")?,
                Some(GraphState::Enabled) | None => {}
            }
        }
        writeln!(f, "embedded   {}", self.embedded.join(", "))?;
        for library in &self.libraries {
            let file = library.file.as_ref().map_or("missing".into(), |file| file.display().to_string());
            writeln!(f, "library    {} {file}", library.name)?;
            for arch in &library.without_kernels {
                writeln!(f, "           has no kernels for {arch}")?;
            }
        }
        for variable in &self.variables {
            writeln!(f, "variable   {}={}", variable.name, variable.value)?;
            if let Some(harm) = variable.warning {
                writeln!(f, "           {harm}")?;
            }
        }
        write!(f, "advice     {}", self.advice)
    }
}
