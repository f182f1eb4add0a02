//! A whole build, of short sources in the place of the kernels.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use hip_kernels_build::check::Difference;
use hip_kernels_build::embed::{TABLE_FILE, embed};
use hip_kernels_build::sources::modules;
use hip_kernels_build::{BuildError, Options, build, target};

const KERNEL: &str = "extern \"C\" __global__ void ";

/// Returns the options of a build of one kernel per module; `wrong` does not compile.
fn options(folder: &Path, wrong: Option<&str>) -> Options {
    let sources = folder.join("sources");
    fs::create_dir_all(&sources).unwrap();
    for module in modules() {
        let value = if wrong == Some(module) { "missing" } else { "1" };
        let source = format!("{KERNEL}only_of_{module}(float *out) {{ *out = {value}; }}\n");
        fs::write(sources.join(format!("{module}.cu")), source).unwrap();
    }
    let targets = target::choose(Some("gfx1100")).unwrap();
    let (kernels_dir, cache_dir) = (sources, folder.join("cache"));
    Options { kernels_dir, cache_dir, ..Options::new(targets, &folder.join("work"), folder) }
}

#[test]
fn a_build_compiles_every_module_once_and_compares_it_with_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), None);
    let total = modules().len();
    for is_cached in [false, true] {
        let report = build(&options, &|step| {
            assert!(step.done <= step.total && step.total == total);
            assert_eq!(step.compiled_in.is_none(), is_cached, "{}", step.module);
        })
        .unwrap();
        assert!(report.compiler.contains("clang"), "{}", report.compiler);
        let built: Vec<_> = report.objects.iter().map(|object| object.module).collect();
        let mut expected = modules();
        expected.sort_unstable();
        assert_eq!(built, expected);
        assert_eq!(report.resources().0.len(), total);
        // Each module lacks the kernels of the contract, and has one that the contract lacks.
        let unknown: Vec<_> =
            report.disagreements().filter(|found| found.difference == Difference::Unused).collect();
        assert!(unknown.iter().all(|found| found.kernel == format!("only_of_{}", found.module)));
        assert_eq!(unknown.len(), total);
        assert!(report.disagreements().any(|found| found.difference == Difference::Missing));
        assert!(matches!(report.into_objects(), Err(BuildError::Contract(_))));
    }
}

#[test]
fn a_module_that_does_not_compile_is_reported_and_the_others_are_embedded() {
    let folder = tempfile::tempdir().unwrap();
    let report = build(&options(folder.path(), Some("sort")), &|_| ()).unwrap();
    let failed: Vec<_> = report.failures.iter().map(|failure| failure.module).collect();
    assert_eq!(failed, ["sort"]);
    assert!(report.failures[0].message.contains("missing"), "{}", report.failures[0].message);
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    embed(&report.objects, &target::choose(Some("gfx1100")).unwrap(), &out).unwrap();
    let table = fs::read_to_string(out.join(TABLE_FILE)).unwrap();
    assert!(table.contains("static TARGETS: &[&str] = &[\"gfx1100\"];"), "{table}");
    assert_eq!(table.matches("Embedded {").count(), modules().len() - 1, "{table}");
    assert!(out.join("rows-gfx1100.hsaco.zst").is_file());
    assert!(matches!(report.into_objects(), Err(BuildError::Compile(_))));
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hip-kernels-build")).args(arguments).output().unwrap()
}

#[test]
fn the_command_compiles_a_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/custom_kernel/softsign.cu");
    let (out, work) = (path("out"), path("work"));
    let output = run(&["--archs", "gfx90a", "--source", source, "--out", &out, "--work-dir", &work]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("softsign-gfx90a.hsaco: "), "{printed}");
    for (arguments, reason) in [
        (vec!["--archs", "gfx1"], "gfx1"),
        (vec!["--archs", "gfx1", "--source", source, "--out", &out], "gfx1"),
        (vec!["--archs", "gfx90a", "--source", "none.cu", "--out", &out, "--work-dir", &work], "none.cu"),
    ] {
        let output = run(&arguments);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains(reason), "{printed}");
    }
}
