//! Compiles every module for every target, in parallel and only after changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::check::{Disagreement, disagreements};
use crate::compiler::Compiler;
use crate::contract::{Family, families};
use crate::resources::{KernelResources, ResourceTable};
use crate::sources::{PRELUDE, Tree, modules, write_header};
use crate::{BuildError, Target};

/// Environment variable with the folder in which compiled code objects are cached; several builds may share it.
pub const CACHE_VARIABLE: &str = "CANDLE_ROCM_KERNEL_CACHE";

/// zstd's level 19: objects are compressed once per change and decompressed in milliseconds.
const COMPRESSION_LEVEL: i32 = 19;

/// Options of a build.
#[derive(Debug, Clone)]
pub struct Options {
    /// Targets to build for.
    pub targets: Vec<Target>,
    /// Folder of our kernel sources (`candle-kernels/` of this repository).
    pub kernels_dir: PathBuf,
    /// Folder of the compatibility headers (`hip-kernels/include/`).
    pub include_dir: PathBuf,
    /// Folder for hipified sources.
    pub work_dir: PathBuf,
    /// Folder for cached code objects, named by the hash of their inputs.
    pub cache_dir: PathBuf,
    /// Maximum number of concurrent compilers.
    pub jobs: usize,
}

impl Options {
    /// Returns the options for the sources of this repository. The cache is in [`CACHE_VARIABLE`] or `shared_dir`, and the
    /// number of jobs is cargo's (`NUM_JOBS`) or the number of cores.
    pub fn new(targets: Vec<Target>, work_dir: &Path, shared_dir: &Path) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let cache = std::env::var_os(CACHE_VARIABLE).filter(|dir| !dir.is_empty());
        let jobs = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok());
        Self {
            targets,
            kernels_dir: here.join("../../candle-kernels"),
            include_dir: here.join("../include"),
            work_dir: work_dir.to_owned(),
            cache_dir: cache.map_or_else(|| shared_dir.join("cache"), PathBuf::from),
            jobs: jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)),
        }
    }
}

/// A finished code object, for a progress display.
#[derive(Debug, Clone)]
pub struct Progress<'a> {
    /// Number of finished code objects, including this one.
    pub done: usize,
    /// Total number of code objects.
    pub total: usize,
    /// Module of the code object.
    pub module: &'a str,
    /// Target of the code object.
    pub target: &'a str,
    /// Duration of the compilation; `None` if nothing had changed.
    pub compiled_in: Option<Duration>,
}

/// A code object that was built.
#[derive(Debug, Clone)]
pub struct BuiltObject {
    /// Name of the module.
    pub module: &'static str,
    /// Target of the code object.
    pub target: Target,
    /// Hash of all inputs of the compilation.
    pub inputs: String,
    /// Path of the code object.
    pub path: PathBuf,
    /// Path of the code object compressed with zstd.
    pub compressed: PathBuf,
    /// Size of the code object in bytes.
    pub size: u64,
    /// Size after compression in bytes.
    pub compressed_size: u64,
    /// Duration of the compilation; `None` if the object was cached.
    pub compiled_in: Option<Duration>,
    /// Resource usage of the kernels.
    pub kernels: Vec<KernelResources>,
    /// Differences from the contract.
    pub disagreements: Vec<Disagreement>,
}

/// A module that did not compile for a target.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Name of the module.
    pub module: &'static str,
    /// Target of the compilation.
    pub target: Target,
    /// The compiler's messages.
    pub message: String,
}

/// Result of a build.
#[derive(Debug, Clone)]
pub struct Report {
    /// The compiler's version line.
    pub compiler: String,
    /// Built code objects, sorted by module, then in the requested order of targets.
    pub objects: Vec<BuiltObject>,
    /// Modules that did not compile.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Returns the objects if all of them were built.
    ///
    /// # Errors
    /// [`BuildError::Compile`] with every failure; [`BuildError::Contract`] with every difference from the contract.
    pub fn into_objects(self) -> Result<Vec<BuiltObject>, BuildError> {
        if !self.failures.is_empty() {
            return Err(BuildError::Compile(self.failures));
        }
        let disagreements: Vec<_> = self.disagreements().cloned().collect();
        if disagreements.is_empty() { Ok(self.objects) } else { Err(BuildError::Contract(disagreements)) }
    }

    /// Returns the differences between the objects and the contract.
    pub fn disagreements(&self) -> impl Iterator<Item = &Disagreement> {
        self.objects.iter().flat_map(|object| &object.disagreements)
    }

    /// Returns the hash of all inputs of each target, as [`inputs`] does.
    pub fn inputs(&self) -> BTreeMap<String, String> {
        let mut hashes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for object in &self.objects {
            hashes.entry(object.target.name().to_owned()).or_default().push(object.inputs.clone());
        }
        hashes.into_iter().map(|(target, hashes)| (target, combined(hashes))).collect()
    }

    /// Returns the resource usage of every kernel on every target.
    pub fn resources(&self) -> ResourceTable {
        ResourceTable(self.objects.iter().flat_map(|object| object.kernels.iter().cloned()).collect())
    }
}

/// Builds all modules for all targets. Calls `progress` after each code object, from any thread.
///
/// Modules that do not compile are listed in [`Report::failures`], and the others are still built.
///
/// # Errors
/// If there is no compiler, the sources cannot be found or translated, or a file cannot be written.
pub fn build(options: &Options, progress: &(dyn Fn(Progress<'_>) + Sync)) -> Result<Report, BuildError> {
    let context = Context::new(options)?;
    fs::create_dir_all(&options.cache_dir).map_err(BuildError::io("cannot create", &options.cache_dir))?;
    // Module by module, so that the slowest modules of every target start first.
    let jobs: Vec<(&'static str, &Target)> = modules()
        .into_iter()
        .flat_map(|module| options.targets.iter().map(move |target| (module, target)))
        .collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Outcome, BuildError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while let Some((index, &(module, target))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, jobs.get(index)?)))
        {
            let result = context.build_object(module, target);
            let compiled_in = match &result {
                Ok(Ok(object)) => object.compiled_in,
                _ => None,
            };
            if let Ok(mut slot) = results[index].lock() {
                *slot = Some(result);
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress { done, total: jobs.len(), module, target: target.name(), compiled_in });
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, jobs.len().max(1)) {
            scope.spawn(work);
        }
    });

    let mut report =
        Report { compiler: context.compiler.version().to_owned(), objects: Vec::new(), failures: Vec::new() };
    for result in results.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()) {
        match result? {
            Ok(object) => report.objects.push(object),
            Err(failure) => report.failures.push(failure),
        }
    }
    let position = |target: &Target| options.targets.iter().position(|t| t == target);
    report.objects.sort_by_key(|object| (object.module, position(&object.target)));
    Ok(report)
}

/// Returns the hash of all inputs of each target: the preprocessed text of every module, the compiler, its options and the
/// device library. Compiles nothing. Targets with a module that cannot be preprocessed are left out.
///
/// # Errors
/// As [`build`].
pub fn inputs(options: &Options) -> Result<BTreeMap<String, String>, BuildError> {
    let context = Context::new(options)?;
    let hash = |target: &Target| -> Result<Option<(String, String)>, BuildError> {
        let mut names = modules();
        names.sort_unstable();
        let hashes = names.into_iter().map(|module| context.inputs(module, target));
        let hashes = hashes.collect::<Result<Result<Vec<_>, _>, BuildError>>()?;
        Ok(hashes.ok().map(|hashes| (target.name().to_owned(), combined(hashes))))
    };
    options.targets.iter().filter_map(|target| hash(target).transpose()).collect()
}

fn combined(hashes: Vec<String>) -> String {
    hex(&Sha256::digest(hashes.concat()))
}

/// Writes the first 16 bytes of a hash.
fn hex(hash: &[u8]) -> String {
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

type Outcome = Result<BuiltObject, Failure>;

/// State shared by all jobs.
struct Context<'a> {
    compiler: Compiler,
    tree: Tree,
    options: &'a Options,
    families: Vec<Family>,
    /// SHA-256 of the device library.
    library: [u8; 32],
}

impl<'a> Context<'a> {
    fn new(options: &'a Options) -> Result<Self, BuildError> {
        let compiler = Compiler::discover(&options.targets)?;
        let tree = Tree::create(&options.kernels_dir, &options.work_dir)?;
        let library = fs::read(compiler.ocml()).map_err(BuildError::io("cannot read", compiler.ocml()))?;
        let library = Sha256::digest(library).into();
        Ok(Self { compiler, tree, options, families: families(), library })
    }

    /// Returns the folders of headers.
    fn include(&self) -> [&Path; 2] {
        [self.options.include_dir.as_path(), self.tree.dir()]
    }

    /// Returns the hash of all inputs of a module's compilation, or the compiler's messages. The preprocessed text does not
    /// depend on comments or on unused constants.
    fn inputs(&self, module: &str, target: &Target) -> Result<Result<String, String>, BuildError> {
        let source = self.tree.source(module);
        let text = self.compiler.preprocess(&source, target, &self.include(), PRELUDE)?;
        let hash = Sha256::new().chain_update(self.library).chain_update(self.compiler.fingerprint(target)?);
        Ok(text.map(|text| hex(&hash.chain_update(text).finalize())))
    }

    fn build_object(&self, module: &'static str, target: &Target) -> Result<Outcome, BuildError> {
        let source = self.tree.source(module);
        let failure = |message| Ok(Err(Failure { module, target: target.clone(), message }));
        let inputs = match self.inputs(module, target)? {
            Ok(inputs) => inputs,
            Err(message) => return failure(message),
        };
        let path = self.options.cache_dir.join(format!("{module}-{target}-{inputs}.hsaco"));
        let compressed = path.with_extension("hsaco.zst");

        let mut compiled_in = None;
        if !path.is_file() || !compressed.is_file() {
            let started = Instant::now();
            // Other builds may share the cache, so files must appear atomically.
            let unfinished = path.with_extension(format!("{}.part", std::process::id()));
            let outcome = self.compiler.compile(&source, target, &self.include(), PRELUDE, &unfinished)?;
            if let Err(message) = outcome {
                return failure(message);
            }
            let bytes = fs::read(&unfinished).map_err(BuildError::io("cannot read", &unfinished))?;
            let packed = zstd::bulk::compress(&bytes, COMPRESSION_LEVEL)
                .map_err(BuildError::io("cannot compress", &unfinished))?;
            let unfinished_packed = unfinished.with_extension("zst.part");
            fs::write(&unfinished_packed, packed)
                .map_err(BuildError::io("cannot write", &unfinished_packed))?;
            for (from, to) in [(&unfinished, &path), (&unfinished_packed, &compressed)] {
                fs::rename(from, to).map_err(BuildError::io("cannot write", to))?;
            }
            compiled_in = Some(started.elapsed());
        }

        let bytes = fs::read(&path).map_err(BuildError::io("cannot read", &path))?;
        let kernels = KernelResources::read(module, target, &bytes)
            .map_err(|message| BuildError::CodeObject { path: path.clone(), message })?;
        let compiled: Vec<_> = kernels.iter().map(|resources| resources.kernel.clone()).collect();
        let disagreements = disagreements(&self.families, module, target, &compiled);
        let compressed_size =
            fs::metadata(&compressed).map_err(BuildError::io("cannot read", &compressed))?.len();
        let size = bytes.len() as u64;
        Ok(Ok(BuiltObject {
            module,
            target: target.clone(),
            inputs,
            path,
            compressed,
            size,
            compressed_size,
            compiled_in,
            kernels,
            disagreements,
        }))
    }
}

/// Compiles one source that is not a module, such as a test's kernels, for one target into `work_dir`.
///
/// # Errors
/// Like [`build`]; [`BuildError::Compile`] if the compiler rejects the source.
pub fn compile_one(
    name: &'static str,
    source: &Path,
    target: &Target,
    work_dir: &Path,
) -> Result<Vec<u8>, BuildError> {
    let options = Options::new(vec![target.clone()], work_dir, work_dir);
    let compiler = Compiler::discover(std::slice::from_ref(target))?;
    write_header(work_dir)?;
    let object = work_dir.join(format!("{name}.hsaco"));
    match compiler.compile(source, target, &[&options.include_dir, work_dir], PRELUDE, &object)? {
        Ok(()) => fs::read(&object).map_err(BuildError::io("cannot read", &object)),
        Err(message) => {
            Err(BuildError::Compile(vec![Failure { module: name, target: target.clone(), message }]))
        }
    }
}

/// Compiles a user's source for every target into `out/NAME-TARGET.hsaco`, where NAME is its file name without extension.
/// Returns the files and their sizes.
///
/// # Errors
/// Like [`compile_one`].
pub fn compile_own(
    source: &Path,
    targets: &[Target],
    out: &Path,
    work_dir: &Path,
) -> Result<Vec<(PathBuf, usize)>, BuildError> {
    fs::create_dir_all(out).map_err(BuildError::io("cannot create", out))?;
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let mut objects = Vec::new();
    for target in targets {
        let object = compile_one("source", source, target, work_dir)?;
        let path = out.join(format!("{name}-{target}.hsaco"));
        fs::write(&path, &object).map_err(BuildError::io("cannot write", &path))?;
        objects.push((path, object.len()));
    }
    Ok(objects)
}
