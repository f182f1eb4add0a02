//! `cargo xtask ck`: attention kernels of AMD's Composable Kernel as code objects, outside of the repository. A plain
//! clang compiles them on any machine; docs/composable-kernel.md says what they are for.
// The crate that launches them uses the rest of what both agree on.
#[allow(dead_code)]
#[path = "../../candle-flash-attn/src/ck/interface.rs"]
mod interface;
mod sources;
mod unit;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use hip_kernels_build::Target;
use hip_kernels_build::compiler::Compiler;
use hip_kernels_build::resources::KernelResources;

use crate::download::digest;
use crate::process::{cache, shown};
use crate::setup;
use interface::{ARCHS, Built, INTERFACE, Instance, KERNEL, MANIFEST, Manifest};
use sources::Sources;

/// From C++ to optimised bitcode. Flags and defines are those of flash-attention's own build for AMD, but two: the flag
/// that inlines everything before anything else, with which one instance takes clang half an hour instead of half a
/// minute, and rounding to bf16 in assembly, whose operands lack the mark that keeps them in registers of their own.
const FRONT: &[&str] = &[
    "-x",
    "hip",
    "--cuda-device-only",
    "-nogpuinc",
    "-nogpulib",
    "-std=c++17",
    "-O3",
    "-w",
    "-fuse-cuid=none",
    "-fgpu-flush-denormals-to-zero",
    "-mcode-object-version=5",
    "-D__HIPCC__",
    "-DCK_USE_XDL",
    "-DCK_TILE_FMHA_FWD_FAST_EXP2=1",
    "-DCK_TILE_FLOAT_TO_BFLOAT16_DEFAULT=0",
    "-include",
    "__clang_hip_runtime_wrapper.h",
    "-emit-llvm",
    "-c",
];

/// From bitcode to a code object.
const BACK: &[&str] = &[
    "--target=amdgcn-amd-amdhsa",
    "-nogpulib",
    "-O3",
    "-w",
    "-mcode-object-version=5",
    "-Xclang",
    "-disable-llvm-passes",
    "-mllvm",
    "--lsr-drop-solution=1",
    "-mllvm",
    "-enable-post-misched=0",
    "-x",
    "ir",
];

/// Ways to schedule and to give out registers, one after the other until nothing is kept in scratch memory.
const SCHEDULES: &[&[&str]] = &[
    &[],
    &["-mllvm", "-misched=gcn-iterative-minreg"],
    &["-mllvm", "-misched=gcn-iterative-minreg", "-mllvm", "-disable-machine-licm"],
];

/// Stands in for HIP's headers.
const RUNTIME: &[(&str, &str)] = &[
    ("hip_fp16.h", include_str!("ck/hip/hip_fp16.h")),
    ("hip_runtime.h", include_str!("ck/hip/hip_runtime.h")),
    ("hip_version.h", include_str!("ck/hip/hip_version.h")),
];

#[derive(clap::Args)]
pub struct Args {
    /// The architecture: gfx90a or gfx942.
    #[arg(long)]
    arch: String,
    /// Names of instances or beginnings of them, comma-separated [default: all].
    #[arg(long, value_delimiter = ',')]
    instances: Vec<String>,
    /// The folder for CANDLE_ROCM_CK, with one for each architecture below [default: .cache/ck].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Compilers at a time; each takes up to a gigabyte [default: one per core].
    #[arg(long)]
    jobs: Option<usize>,
}

pub fn run(args: &Args) -> Result<()> {
    let target = target(&args.arch)?;
    let wanted = chosen(&args.instances)?;
    setup::ensure(setup::COMPOSABLE_KERNEL)?;
    let sources = sources::ensure()?;
    let compiler = Compiler::discover(std::slice::from_ref(&target))?;
    let root = args.out.clone().unwrap_or_else(|| cache().join("ck"));
    let builder = Builder { sources, compiler, target, folder: root.join(&args.arch) };
    let built = builder.build(&wanted, args.jobs)?;
    println!(
        "ck {}: {built} built, {} there already, 0 failed: CANDLE_ROCM_CK={}",
        args.arch,
        wanted.len() - built,
        root.display()
    );
    Ok(())
}

fn target(arch: &str) -> Result<Target> {
    if !ARCHS.contains(&arch) {
        bail!("Composable Kernel's attention is not built for {arch}, only for {}", ARCHS.join(", "));
    }
    Ok(Target::parse(arch)?)
}

/// The instances whose names begin with one of `names`, or all.
fn chosen(names: &[String]) -> Result<Vec<Instance>> {
    let all: Vec<Instance> = Instance::all().collect();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|one| one.name().starts_with(*name))) {
        let known: Vec<String> = all.iter().map(Instance::name).collect();
        bail!("no instance is called {unknown}; there are {}", known.join(", "));
    }
    let is_wanted =
        |one: &Instance| names.is_empty() || names.iter().any(|name| one.name().starts_with(name));
    Ok(all.into_iter().filter(is_wanted).collect())
}

struct Builder {
    sources: Sources,
    compiler: Compiler,
    target: Target,
    /// Of the architecture.
    folder: PathBuf,
}

impl Builder {
    /// Builds what is not there; the number of it.
    fn build(&self, wanted: &[Instance], jobs: Option<usize>) -> Result<usize> {
        let headers = self.folder.join("include/hip");
        fs::create_dir_all(&headers).with_context(|| format!("cannot create {}", headers.display()))?;
        for (name, text) in RUNTIME {
            write(&headers.join(name), text.as_bytes())?;
        }
        let manifest = Mutex::new(self.kept());
        let missing: Vec<Instance> = {
            let manifest = manifest.lock().map_err(|_| anyhow!("a compiler's thread panicked"))?;
            let is_there = |one: &Instance| manifest.instances.iter().any(|built| built.instance == *one);
            wanted.iter().filter(|one| !is_there(one)).copied().collect()
        };
        let jobs = jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
        let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || -> Result<()> {
            while let Some(instance) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let start = Instant::now();
                let (built, bytes) = self.instance(instance).with_context(|| instance.name())?;
                let done = finished.fetch_add(1, Ordering::Relaxed) + 1;
                let seconds = start.elapsed().as_secs_f32();
                eprintln!("[{done}/{}] {}: {seconds:.1} s, {bytes} bytes", missing.len(), instance.name());
                // Written after each, so that what was finished before an interruption is kept.
                let mut manifest = manifest.lock().map_err(|_| anyhow!("a compiler's thread panicked"))?;
                manifest.instances.push(built);
                write(&self.folder.join(MANIFEST), &serde_json::to_vec_pretty(&*manifest)?)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..jobs.clamp(1, missing.len().max(1))).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a compiler's thread panicked")))
            })
        })?;
        Ok(missing.len())
    }

    /// The manifest with what was built before of the same sources, in the same way.
    fn kept(&self) -> Manifest {
        let mut manifest = Manifest {
            interface: INTERFACE,
            sources: self.sources.name.clone(),
            compiler: self.compiler.version().to_owned(),
            recipe: recipe(),
            arch: self.target.name().to_owned(),
            instances: Vec::new(),
        };
        let text = fs::read(self.folder.join(MANIFEST)).unwrap_or_default();
        let is_whole = |built: &Built| {
            fs::read(self.folder.join(&built.file)).is_ok_and(|bytes| digest(&bytes) == built.sha256)
        };
        if let Ok(mut before) = serde_json::from_slice::<Manifest>(&text) {
            let built = std::mem::take(&mut before.instances);
            if before == manifest {
                manifest.instances = built.into_iter().filter(is_whole).collect();
            }
        }
        manifest
    }

    /// Compiles one instance; what it is, and its size.
    fn instance(&self, instance: &Instance) -> Result<(Built, usize)> {
        let file = format!("{}.hsaco", instance.name());
        let object = self.folder.join(&file);
        let (source, bitcode) = (object.with_extension("cpp"), object.with_extension("bc"));
        write(&source, unit::text(instance).as_bytes())?;
        let mut front = Command::new(self.compiler.path());
        front.args(FRONT).arg(format!("--offload-arch={}", self.target));
        front.arg("-I").arg(self.folder.join("include")).arg("-I").arg(&self.sources.include);
        front.args(["-Xclang", "-mlink-builtin-bitcode", "-Xclang"]).arg(self.compiler.ocml());
        compile(front.arg("-o").arg(&bitcode).arg(&source))?;
        let mut scratch = Vec::new();
        for schedule in SCHEDULES {
            let mut back = Command::new(self.compiler.path());
            back.args(BACK).arg(&bitcode).arg(format!("-mcpu={}", self.target)).args(*schedule);
            compile(back.arg("-o").arg(&object))?;
            let bytes = fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
            let (passed, spilt) = self.check(instance, &bytes)?;
            if spilt > 0 {
                scratch.push(spilt);
                continue;
            }
            for leftover in [source, bitcode] {
                fs::remove_file(&leftover)
                    .with_context(|| format!("cannot remove {}", leftover.display()))?;
            }
            let (instance, sha256) = (*instance, digest(&bytes));
            return Ok((Built { instance, file, sha256, argument_bytes: passed }, bytes.len()));
        }
        bail!("every way to schedule it needs scratch memory: {scratch:?} bytes; another compiler may not")
    }

    /// The bytes of the kernel's argument and of its scratch memory.
    fn check(&self, instance: &Instance, object: &[u8]) -> Result<(usize, usize)> {
        let kernels =
            KernelResources::read(&instance.name(), &self.target, object).map_err(|error| anyhow!(error))?;
        let [KernelResources { kernel, .. }] = &kernels[..] else {
            bail!("the code object has {} kernels, not one", kernels.len());
        };
        let passed: Vec<usize> = kernel.explicit.iter().map(|argument| argument.size as usize).collect();
        if kernel.name != KERNEL || passed != [instance.layout().bytes] {
            bail!("the code object has {} with arguments of {passed:?} bytes", kernel.name);
        }
        Ok((passed[0], kernel.scratch as usize))
    }
}

/// What changes when instances have to be built anew.
fn recipe() -> String {
    let units: Vec<String> = Instance::all().map(|instance| unit::text(&instance)).collect();
    digest(format!("{FRONT:?}{BACK:?}{SCHEDULES:?}{RUNTIME:?}{units:?}").as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs a compiler; what it says is a part of the error.
fn compile(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start: {}", shown(command)))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("error:")).take(20).collect();
    let said = if errors.is_empty() { said.trim().to_owned() } else { errors.join("\n") };
    bail!("failed ({}): {}\n{said}", output.status, shown(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_chosen_by_how_their_names_begin() {
        let names = |list: &[&str]| -> Vec<String> {
            let list: Vec<String> = list.iter().map(|name| (*name).to_owned()).collect();
            chosen(&list).unwrap().iter().map(Instance::name).collect()
        };
        assert_eq!(names(&["f16-128-varlen-masked"]), ["f16-128-varlen-masked"]);
        assert_eq!(names(&["bf16-64"]).len(), 4);
        assert_eq!(names(&["f16", "bf16"]).len(), 24);
        assert_eq!(names(&[]).len(), 24);
        let error = chosen(&["f32".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("f32") && error.contains("f16-64-dense-masked"), "{error}");
    }

    #[test]
    fn what_lacks_the_matrix_instructions_is_refused() {
        assert_eq!(target("gfx90a").unwrap().name(), "gfx90a");
        let error = target("gfx1100").unwrap_err().to_string();
        assert!(error.contains("gfx1100") && error.contains("gfx942"), "{error}");
    }

    #[test]
    fn a_compilers_errors_are_shown_with_its_call() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'in file a'; echo 'a.cpp:1: error: no b' >&2; exit 3"]);
        let error = compile(&mut command).unwrap_err().to_string();
        assert!(error.contains("a.cpp:1: error: no b") && error.contains("sh -c"), "{error}");
    }
}
