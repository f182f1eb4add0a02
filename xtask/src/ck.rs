//! `cargo xtask ck`: compiles the attention kernels of AMD's Composable Kernel to code objects outside the
//! repository. An unmodified clang is enough, on any machine; docs/how-to/composable-kernel.md explains their use.
// The unused items are used by candle-flash-attn, which launches the kernels.
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
use crate::process::{cache, command_line};
use crate::setup;
use interface::{ARCHS, Built, INTERFACE, Instance, KERNEL, MANIFEST, Manifest};
use sources::Sources;

/// Arguments that compile C++ to optimised bitcode: those of flash-attention's own build for AMD, with two
/// exceptions. Early inlining of everything is off, since it makes clang take 30 minutes instead of 30
/// seconds per instance. Assembly for bf16 rounding is off, since its operands lack the early-clobber
/// constraint.
const COMPILE_ARGS: &[&str] = &[
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

/// Arguments that compile bitcode to a code object.
const CODEGEN_ARGS: &[&str] = &[
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

/// Scheduler options, tried in this order until the kernel needs no scratch memory.
const SCHEDULER_ARGS: &[&[&str]] = &[
    &[],
    &["-mllvm", "-misched=gcn-iterative-minreg"],
    &["-mllvm", "-misched=gcn-iterative-minreg", "-mllvm", "-disable-machine-licm"],
];

/// Replacements for HIP's headers.
const HIP_HEADERS: &[(&str, &str)] = &[
    ("hip_fp16.h", include_str!("ck/hip/hip_fp16.h")),
    ("hip_runtime.h", include_str!("ck/hip/hip_runtime.h")),
    ("hip_version.h", include_str!("ck/hip/hip_version.h")),
];

#[derive(clap::Args)]
pub struct Args {
    /// Target architecture: gfx90a or gfx942.
    #[arg(long)]
    arch: String,
    /// Names or name prefixes of the instances to build, comma-separated [default: all].
    #[arg(long, value_delimiter = ',')]
    instances: Vec<String>,
    /// Output folder, with a subfolder per architecture; the value for CANDLE_ROCM_CK [default: .cache/ck].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Number of concurrent compiler processes, up to 1 GB of memory each [default: one per core].
    #[arg(long)]
    jobs: Option<usize>,
}

pub fn run(args: &Args) -> Result<()> {
    let target = target(&args.arch)?;
    let selected = select_instances(&args.instances)?;
    setup::ensure(setup::COMPOSABLE_KERNEL)?;
    let sources = sources::ensure()?;
    let compiler = Compiler::discover(std::slice::from_ref(&target))?;
    let root = args.out.clone().unwrap_or_else(|| cache().join("ck"));
    let builder = Builder { sources, compiler, target, folder: root.join(&args.arch) };
    let built = builder.build(&selected, args.jobs)?;
    println!(
        "ck {}: {built} built, {} up to date, 0 failed: CANDLE_ROCM_CK={}",
        args.arch,
        selected.len() - built,
        root.display()
    );
    Ok(())
}

fn target(arch: &str) -> Result<Target> {
    if !ARCHS.contains(&arch) {
        bail!("Composable Kernel's attention does not support {arch}; supported: {}", ARCHS.join(", "));
    }
    Ok(Target::parse(arch)?)
}

/// Returns the instances whose names begin with one of `names`; all instances if `names` is empty.
fn select_instances(names: &[String]) -> Result<Vec<Instance>> {
    let all: Vec<Instance> = Instance::all().collect();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|one| one.name().starts_with(*name))) {
        let known: Vec<String> = all.iter().map(Instance::name).collect();
        bail!("unknown instance {unknown}; known instances: {}", known.join(", "));
    }
    let is_selected =
        |one: &Instance| names.is_empty() || names.iter().any(|name| one.name().starts_with(name));
    Ok(all.into_iter().filter(is_selected).collect())
}

struct Builder {
    sources: Sources,
    compiler: Compiler,
    target: Target,
    /// Output folder of the architecture.
    folder: PathBuf,
}

impl Builder {
    /// Builds the missing instances and returns their number.
    fn build(&self, selected: &[Instance], jobs: Option<usize>) -> Result<usize> {
        let headers = self.folder.join("include/hip");
        fs::create_dir_all(&headers).with_context(|| format!("cannot create {}", headers.display()))?;
        for (name, text) in HIP_HEADERS {
            write(&headers.join(name), text.as_bytes())?;
        }
        let manifest = Mutex::new(self.reusable_manifest());
        let missing: Vec<Instance> = {
            let manifest = manifest.lock().map_err(|_| anyhow!("a compiler's thread panicked"))?;
            let is_there = |one: &Instance| manifest.instances.iter().any(|built| built.instance == *one);
            selected.iter().filter(|one| !is_there(one)).copied().collect()
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
                // Written after each instance, so that an interrupted build keeps what it has finished.
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

    /// Returns a manifest with the instances that an earlier run built from the same sources with the same
    /// options.
    fn reusable_manifest(&self) -> Manifest {
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
        if let Ok(mut earlier) = serde_json::from_slice::<Manifest>(&text) {
            let built = std::mem::take(&mut earlier.instances);
            if earlier == manifest {
                manifest.instances = built.into_iter().filter(is_whole).collect();
            }
        }
        manifest
    }

    /// Compiles one instance; returns its manifest entry and the size of the code object in bytes.
    fn instance(&self, instance: &Instance) -> Result<(Built, usize)> {
        let file = format!("{}.hsaco", instance.name());
        let object = self.folder.join(&file);
        let (source, bitcode) = (object.with_extension("cpp"), object.with_extension("bc"));
        write(&source, unit::text(instance).as_bytes())?;
        let mut compiler = Command::new(self.compiler.path());
        compiler.args(COMPILE_ARGS).arg(format!("--offload-arch={}", self.target));
        compiler.arg("-I").arg(self.folder.join("include")).arg("-I").arg(&self.sources.include);
        compiler.args(["-Xclang", "-mlink-builtin-bitcode", "-Xclang"]).arg(self.compiler.ocml());
        compile(compiler.arg("-o").arg(&bitcode).arg(&source))?;
        let mut scratch = Vec::new();
        for schedule in SCHEDULER_ARGS {
            let mut codegen = Command::new(self.compiler.path());
            codegen.args(CODEGEN_ARGS).arg(&bitcode).arg(format!("-mcpu={}", self.target)).args(*schedule);
            compile(codegen.arg("-o").arg(&object))?;
            let bytes = fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
            let (argument_bytes, scratch_bytes) = self.check(instance, &bytes)?;
            if scratch_bytes > 0 {
                scratch.push(scratch_bytes);
                continue;
            }
            for leftover in [source, bitcode] {
                fs::remove_file(&leftover)
                    .with_context(|| format!("cannot remove {}", leftover.display()))?;
            }
            let (instance, sha256) = (*instance, digest(&bytes));
            return Ok((Built { instance, file, sha256, argument_bytes }, bytes.len()));
        }
        bail!("all scheduler options need scratch memory ({scratch:?} bytes); try another version of clang")
    }

    /// Checks the code object's kernel; returns the sizes of its argument and of its scratch memory, in
    /// bytes.
    fn check(&self, instance: &Instance, object: &[u8]) -> Result<(usize, usize)> {
        let kernels =
            KernelResources::read(&instance.name(), &self.target, object).map_err(|error| anyhow!(error))?;
        let [KernelResources { kernel, .. }] = &kernels[..] else {
            bail!("the code object has {} kernels, expected 1", kernels.len());
        };
        let argument_bytes: Vec<usize> =
            kernel.explicit.iter().map(|argument| argument.size as usize).collect();
        if kernel.name != KERNEL || argument_bytes != [instance.layout().bytes] {
            bail!("the code object has kernel {} with arguments of {argument_bytes:?} bytes", kernel.name);
        }
        Ok((argument_bytes[0], kernel.scratch as usize))
    }
}

/// Returns a digest of everything but the sources that determines how instances are built.
fn recipe() -> String {
    let units: Vec<String> = Instance::all().map(|instance| unit::text(&instance)).collect();
    digest(format!("{COMPILE_ARGS:?}{CODEGEN_ARGS:?}{SCHEDULER_ARGS:?}{HIP_HEADERS:?}{units:?}").as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs a compiler; its error messages become part of the returned error.
fn compile(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start: {}", command_line(command)))?;
    if output.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = messages.lines().filter(|line| line.contains("error:")).take(20).collect();
    let messages = if errors.is_empty() { messages.trim().to_owned() } else { errors.join("\n") };
    bail!("failed ({}): {}\n{messages}", output.status, command_line(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_selected_by_name_prefix() {
        let names = |list: &[&str]| -> Vec<String> {
            let list: Vec<String> = list.iter().map(|name| (*name).to_owned()).collect();
            select_instances(&list).unwrap().iter().map(Instance::name).collect()
        };
        assert_eq!(names(&["f16-128-varlen-masked"]), ["f16-128-varlen-masked"]);
        assert_eq!(names(&["bf16-64"]).len(), 4);
        assert_eq!(names(&["f16", "bf16"]).len(), 24);
        assert_eq!(names(&[]).len(), 24);
        let error = select_instances(&["f32".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("f32") && error.contains("f16-64-dense-masked"), "{error}");
    }

    #[test]
    fn unsupported_architectures_are_rejected() {
        assert_eq!(target("gfx90a").unwrap().name(), "gfx90a");
        let error = target("gfx1100").unwrap_err().to_string();
        assert!(error.contains("gfx1100") && error.contains("gfx942"), "{error}");
    }

    #[test]
    fn compiler_errors_include_the_command_line() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'in file a'; echo 'a.cpp:1: error: no b' >&2; exit 3"]);
        let error = compile(&mut command).unwrap_err().to_string();
        assert!(error.contains("a.cpp:1: error: no b") && error.contains("sh -c"), "{error}");
    }
}
