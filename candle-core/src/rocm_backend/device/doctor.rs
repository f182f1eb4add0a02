//! A report about a machine: driver, GPUs, code objects, libraries, variables, and one line of advice.
use super::device::RocmDevice;
use super::properties::properties;
use crate::Result;
use rocm_loader::{Library, LibraryFile, Variable, Versions};
use std::fmt;
use std::path::PathBuf;

/// All of it. [`Report::gather`] asks; its `Display` is for people.
#[derive(Debug, Clone)]
pub struct Report {
    /// The driver that serves HIP's calls, or what is missing.
    pub driver: std::result::Result<String, String>,
    /// Whether results come from the software GPU.
    pub emulated: bool,
    /// Note that every result must carry; `None` for those of an AMD GPU and of the software GPU.
    pub note: Option<&'static str>,
    /// Versions, if there is a driver.
    pub versions: Option<Versions>,
    /// Every GPU by its number; empty without a driver.
    pub gpus: Vec<GpuReport>,
    /// The GPU to take when none is named.
    pub default_ordinal: Option<usize>,
    /// The targets that the kernels of this binary were compiled for.
    pub embedded: &'static [&'static str],
    /// The driver's libraries, ROCm's where there is no driver; empty on the software GPU.
    pub libraries: Vec<LibraryReport>,
    /// Variables that are set, with the harm that each does.
    pub variables: Vec<Variable>,
    /// The first thing to do.
    pub advice: String,
}

/// One GPU.
#[derive(Debug, Clone)]
pub struct GpuReport {
    /// The number in `rocm:N`.
    pub ordinal: usize,
    /// The name under which it is sold.
    pub name: String,
    /// Architecture as the driver names it.
    pub arch: String,
    /// Whether it is built into the processor.
    pub integrated: bool,
    /// Bytes.
    pub total_memory: usize,
    /// Free bytes, or why that could not be asked.
    pub free_memory: std::result::Result<usize, String>,
    /// The target whose kernels it would run; `None` if this binary holds none that fit.
    pub code_object: Option<&'static str>,
    /// Whether it computed what it must, if there is a code object: [`RocmDevice::new_checked`].
    pub trial: Option<std::result::Result<(), String>>,
}

/// A library behind the driver.
#[derive(Debug, Clone)]
pub struct LibraryReport {
    /// The library of ROCm that it is or stands for.
    pub serves: Library,
    /// Its file name, without a version where there are several.
    pub name: &'static str,
    /// The file that is opened; `None` if there is none.
    pub file: Option<PathBuf>,
    /// For rocBLAS, architectures here for which its folder holds no kernels.
    pub without_kernels: Vec<String>,
}

impl Report {
    /// Asks the machine. Never fails: what cannot be asked says why. Opens each GPU for a moment and has it compute,
    /// for 30 seconds at most.
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

    /// Whether a model would run on some GPU here.
    pub fn is_healthy(&self) -> bool {
        let computes = |gpu: &GpuReport| matches!(gpu.trial, Some(Ok(())));
        let multiplies =
            |library: &LibraryReport| library.serves == Library::RocBlas && library.file.is_some();
        let has_blas = self.emulated || self.libraries.iter().any(multiplies);
        self.gpus.iter().any(computes) && has_blas
    }

    /// The first of what stands in the way, as an instruction.
    fn advise(&self) -> String {
        if let Err(missing) = &self.driver {
            return missing.clone();
        }
        let harmful = |name: &str| {
            self.variables.iter().find(|variable| variable.name == name && variable.harm.is_some())
        };
        let unfit = |gpu: &&GpuReport| gpu.code_object.is_none();
        if let Some(variable) = harmful("HSA_OVERRIDE_GFX_VERSION") {
            return format!("unset {}: {}", variable.name, variable.harm.unwrap_or_default());
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
            if let Some(Err(reason)) = &gpu.trial {
                return format!("rocm:{} does not work: {reason}", gpu.ordinal);
            }
        }
        for library in &self.libraries {
            if library.file.is_none() {
                return format!("{} is missing: what needs it fails; install it", library.name);
            }
            if let Some(arch) = library.without_kernels.first() {
                return format!(
                    "{} has no kernels for {arch}: products are slow until a version is installed that has",
                    library.name
                );
            }
        }
        if let Some(variable) = self.variables.iter().find(|variable| variable.harm.is_some()) {
            return format!("{} is set: {}", variable.name, variable.harm.unwrap_or_default());
        }
        if let Some(gpu) = self.gpus.iter().find(unfit) {
            return format!(
                "rocm:{} ({}) cannot be used, the others can: CANDLE_ROCM_ARCHS adds its kernels",
                gpu.ordinal, gpu.arch
            );
        }
        let place = self.default_ordinal.unwrap_or(0);
        match (self.emulated, self.note) {
            (true, _) => {
                format!("all is well: rocm:{place} is a software GPU, whose results are right and slow")
            }
            (false, Some(note)) => format!("all is well: use rocm:{place} ({note})"),
            (false, None) => format!("all is well: use rocm:{place}"),
        }
    }
}

/// `gfx90a` of `gfx90a:sramecc+:xnack-`.
fn processor(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

fn gpu(ordinal: usize, arch: &str) -> GpuReport {
    let code_object = hip_kernels::best_target(arch, hip_kernels::archs());
    let (mut name, mut integrated, mut total_memory) = (String::from("unknown"), false, 0);
    if let Ok(found) = properties(ordinal) {
        (name, integrated, total_memory) = (found.name, found.integrated, found.total_memory);
    }
    let trial = code_object.map(|_| RocmDevice::new_checked(ordinal).map_err(|error| error.to_string()));
    let free = match &trial {
        Some(Ok(device)) => device.memory_info(),
        _ => free_without_kernels(ordinal),
    };
    GpuReport {
        ordinal,
        name,
        arch: arch.to_string(),
        integrated,
        total_memory,
        free_memory: free.map(|(free, _)| free).map_err(|error| error.to_string()),
        code_object,
        trial: trial.map(|outcome| outcome.map(drop)),
    }
}

/// Free and total memory of a GPU that no kernel fits.
fn free_without_kernels(ordinal: usize) -> Result<(usize, usize)> {
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

/// The architectures here for which rocBLAS has no kernels.
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

/// 60_443_483 as HIP counts is 6.4.43483.
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
            match &gpu.trial {
                Some(Ok(())) => writeln!(f, "  trial    computes")?,
                Some(Err(reason)) => writeln!(f, "  trial    {reason}")?,
                None => {}
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
            if let Some(harm) = variable.harm {
                writeln!(f, "           {harm}")?;
            }
        }
        write!(f, "advice     {}", self.advice)
    }
}
