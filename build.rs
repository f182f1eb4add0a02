//! Build script of `hip-kernels`: hipifies the kernels, compiles them for every target and embeds the code objects.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use hip_kernels_build::{Options, bindings, build, compiler, embed, nvidia, pipeline, target};

fn main() -> Result<(), String> {
    // Cargo prints the error with `Debug`; the string keeps the message, which names what to install, readable.
    run().map_err(|error| error.to_string())
}

fn run() -> Result<(), Box<dyn Error>> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    let archs = env::var(target::ARCHS_VARIABLE).ok();
    // OUT_DIR is TARGET/PROFILE/build/.../out; all profiles and `cargo xtask kernels` share TARGET/hip-kernels.
    let profile = out_dir.ancestors().find(|dir| dir.ends_with("build")).and_then(Path::parent);
    let shared_dir = profile.and_then(Path::parent).map(|target| target.join("hip-kernels"));
    let options =
        Options::new(target::choose(archs.as_deref())?, &out_dir, shared_dir.as_deref().unwrap_or(&out_dir));

    // Rust files are not listed, so that editing one does not recompile the kernels.
    for dir in [&options.kernels_dir, &options.include_dir] {
        println!("cargo::rerun-if-changed={}", dir.display());
    }
    for variable in [
        target::ARCHS_VARIABLE,
        compiler::CLANG_VARIABLE,
        compiler::DEVICE_LIBS_VARIABLE,
        compiler::ROCM_VARIABLE,
        pipeline::CACHE_VARIABLE,
        nvidia::TOOLKIT_VARIABLES[0],
        nvidia::TOOLKIT_VARIABLES[1],
    ] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    rocmify::upstream::print_rerun_lines();

    bindings::write_rust(&out_dir)?;
    let report = build(&options, &|step| {
        eprintln!("[{}/{}] {} for {}", step.done, step.total, step.module, step.target);
    })?;
    let objects = report.into_objects()?;
    embed::embed(&objects, &options.targets, &out_dir)?;
    Ok(())
}
