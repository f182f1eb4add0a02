//! Diagnostic report of a machine: driver, GPUs, code objects, libraries, variables, and one line of advice.
use super::device::RocmDevice;
use super::graph_faults::GraphState;
use super::memory::memory_pools;
use super::properties::{can_access_peer, pci_address, properties};
use super::traps::{Facts, Gpu, KnownProblem};
use crate::rocm_backend::stream::memory::{system_file, MemoryPools, PoolSize};
use crate::{DType, Device, Result, Tensor};
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
    /// Known problems of the machine; empty on an NVIDIA GPU.
    pub problems: Vec<KnownProblem>,
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
    /// Sizes of the memory pools that the GPU can use, as Linux reports them.
    pub memory_pools: MemoryPools,
    /// Target whose kernels the GPU would run; `None` if this binary has no compatible kernels.
    pub code_object: Option<&'static str>,
    /// Target with better fitting kernels that HIP refused in the self-test, and HIP's error.
    pub refused: Option<String>,
    /// Result of the self-test, see [`RocmDevice::new_checked`]; `None` without a code object.
    pub self_test: Option<std::result::Result<(), String>>,
    /// State of graphs; `None` if the GPU failed its self-test or has no code object.
    pub graphs: Option<GraphState>,
    /// Problems of libraries that convolutions have revealed.
    pub problems: Vec<String>,
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
    /// a self-test of at most 30 seconds. MIOpen may compile kernels for it, which has no time limit.
    pub fn gather() -> Self {
        let driver = rocm_loader::driver();
        let emulated = driver.as_ref().is_ok_and(|driver| driver.is_software());
        let archs = rocm_loader::device_archs();
        let gpus: Vec<GpuReport> =
            archs.iter().flatten().enumerate().map(|(ordinal, arch)| gpu(ordinal, arch)).collect();
        let note = driver.as_ref().ok().filter(|_| !emulated).and_then(|driver| driver.note());
        let libraries =
            rocm_loader::libraries().into_iter().map(|library| library_report(library, &gpus)).collect();
        let versions = driver.as_ref().ok().map(|driver| driver.versions());
        let hip = versions.as_ref().and_then(|versions| versions.hip_runtime);
        let mut report = Self {
            problems: if note.is_none() { known_problems(&gpus, hip) } else { Vec::new() },
            versions,
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
        if let Some(problem) = self.problems.first() {
            return format!("{} (see {})", problem.text, problem.source);
        }
        for library in &self.libraries {
            if library.file.is_none() && library.serves == Library::RocBlas {
                return format!("{} is missing: matrix products fail; install it", library.name);
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
        if let Some(problem) = self.gpus.iter().find_map(|gpu| gpu.problems.first()) {
            return problem.clone();
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
    let (mut refused, mut problems) = (None, Vec::new());
    let self_test = targets.first().map(|_| {
        let tested = RocmDevice::self_tested(ordinal).map_err(|error| error.to_string())?;
        refused = tested.refused_code_object().map(str::to_string);
        problems.extend(convolve(&tested).err().map(|error| format!("convolutions fail: {error}")));
        problems.extend(tested.problems());
        RocmDevice::open(ordinal).map_err(|error| error.to_string())
    });
    let free = match &self_test {
        Some(Ok(device)) => device.memory_info(),
        _ => memory_without_self_test(ordinal),
    };
    if let Ok((_, total)) = &free {
        total_memory = *total;
    }
    GpuReport {
        ordinal,
        name,
        arch: arch.to_string(),
        integrated,
        total_memory,
        free_memory: free.map(|(free, _)| free).map_err(|error| error.to_string()),
        memory_pools: memory_pools(ordinal),
        code_object: targets.get(usize::from(refused.is_some())).copied(),
        refused,
        graphs: self_test.as_ref().and_then(|test| test.as_ref().ok()).map(RocmDevice::graph_state),
        self_test: self_test.map(|outcome| outcome.map(drop)),
        problems,
    }
}

/// Computes two small convolutions, so that the device reports a MIOpen that cannot compile.
fn convolve(device: &RocmDevice) -> Result<()> {
    let device = Device::Rocm(device.clone());
    for dtype in [DType::F16, DType::F32] {
        let image = Tensor::ones((1, 16, 8, 8), dtype, &device)?;
        image.conv2d(&Tensor::ones((16, 16, 3, 3), dtype, &device)?, 1, 1, 1, 1)?;
    }
    device.synchronize()
}

fn known_problems(gpus: &[GpuReport], hip: Option<i32>) -> Vec<KnownProblem> {
    let addresses: Vec<Option<String>> = gpus.iter().map(|gpu| pci_address(gpu.ordinal)).collect();
    let gpus = gpus.iter().zip(&addresses).filter_map(|(gpu, address)| {
        let arch = processor(&gpu.arch);
        Some(Gpu { ordinal: gpu.ordinal, arch, integrated: gpu.integrated, address: address.as_deref()? })
    });
    let gpus: Vec<Gpu> = gpus.collect();
    let variable = |name: &str| std::env::var(name).ok();
    Facts { file: &system_file, variable: &variable, hip, can_access: &can_access_peer }.problems(&gpus)
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
            let rccl = versions.rccl.map_or("missing".into(), |version| version.to_string());
            let hipblaslt = versions.hipblaslt.map_or("missing".into(), |version| version.to_string());
            let miopen = versions.miopen.map_or("missing".into(), |v| v.map(|n| n.to_string()).join("."));
            match self.note {
                Some(_) => {
                    let cublas = versions.rocblas.as_deref().unwrap_or("cuBLAS missing");
                    writeln!(f, "versions   {cublas}, cuBLASLt {hipblaslt}, cuDNN {miopen}, NCCL {rccl}")?
                }
                None => writeln!(
                    f,
                    "versions   HIP {hip}, rocBLAS {rocblas}, hipBLASLt {hipblaslt}, MIOpen {miopen}, RCCL {rccl}"
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
            let MemoryPools { vram, gtt, ram } = gpu.memory_pools;
            for (name, pool) in [("VRAM", vram), ("GTT", gtt), ("RAM", ram)] {
                if let Some(PoolSize { free, total }) = pool {
                    writeln!(f, "           {name}: {:.2} GiB free of {:.2} GiB", gib(free), gib(total))?;
                }
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
            for problem in &gpu.problems {
                writeln!(f, "  problem  {problem}")?;
            }
        }
        writeln!(f, "embedded   {}", self.embedded.join(", "))?;
        for library in &self.libraries {
            let missing = match library.serves {
                Library::MiOpen => "missing: the built-in kernels compute convolutions",
                Library::HipBlasLt => "missing: a product and an addition compute linear layers",
                Library::Rccl => "missing: operations between GPUs fail",
                _ => "missing",
            };
            let file = library.file.as_ref().map_or(missing.into(), |file| file.display().to_string());
            writeln!(f, "library    {} {file}", library.name)?;
            for arch in &library.without_kernels {
                writeln!(f, "           has no kernels for {arch}")?;
            }
        }
        for KnownProblem { ordinal, text, source } in &self.problems {
            let gpu = ordinal.map_or(String::new(), |ordinal| format!("rocm:{ordinal}: "));
            writeln!(f, "problem    {gpu}{text}\n           {source}")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(missing: &[Library]) -> Report {
        let library = |serves: Library| LibraryReport {
            serves,
            name: serves.soname_stem(),
            file: (!missing.contains(&serves)).then(|| PathBuf::from("/opt/rocm/lib/file.so")),
            without_kernels: Vec::new(),
        };
        let gpu = GpuReport {
            ordinal: 0,
            name: "a GPU".to_string(),
            arch: "gfx1151".to_string(),
            integrated: true,
            total_memory: 64 << 30,
            free_memory: Ok(32 << 30),
            memory_pools: MemoryPools::default(),
            code_object: Some("gfx1151"),
            refused: None,
            self_test: Some(Ok(())),
            graphs: Some(GraphState::Enabled),
            problems: Vec::new(),
        };
        Report {
            driver: Ok("ROCm".to_string()),
            emulated: false,
            note: None,
            versions: None,
            gpus: vec![gpu],
            default_ordinal: Some(0),
            embedded: &["gfx1151"],
            libraries: Library::ALL.map(library).into(),
            problems: Vec::new(),
            variables: Vec::new(),
            advice: String::new(),
        }
    }

    #[test]
    fn only_rocblas_is_necessary() {
        let without_others = report(&[Library::MiOpen, Library::HipBlasLt, Library::Rccl]);
        assert!(without_others.is_healthy());
        assert_eq!(without_others.advise(), "all is well: use rocm:0");
        let text = without_others.to_string();
        for line in ["libMIOpen.so missing: the built-in kernels", "libhipblaslt.so missing: a product"] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let without_rocblas = report(&[Library::RocBlas]);
        assert!(!without_rocblas.is_healthy());
        assert_eq!(without_rocblas.advise(), "librocblas.so is missing: matrix products fail; install it");
    }

    #[test]
    fn problems_are_listed_with_their_source_and_become_advice() {
        let mut report = report(&[]);
        let (text, source) = ("the firmware hangs: install another".to_string(), "https://example.com/1");
        report.problems.push(KnownProblem { ordinal: Some(0), text, source });
        let listed =
            "problem    rocm:0: the firmware hangs: install another\n           https://example.com/1\n";
        assert!(report.to_string().contains(listed), "{report}");
        assert_eq!(report.advise(), "the firmware hangs: install another (see https://example.com/1)");
    }
}
