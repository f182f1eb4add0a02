//! Kernels compiled by users.
use std::fs;
use std::path::Path;

use hip_kernels_build::pipeline::compile_own;
use hip_kernels_build::resources::KernelResources;
use hip_kernels_build::{BuildError, Target, target};

fn example() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/custom_kernel"))
}

fn names(target: &Target, object: &[u8]) -> Vec<String> {
    let kernels = KernelResources::read("softsign", target, object).unwrap();
    kernels.into_iter().map(|resources| resources.kernel.name).collect()
}

#[test]
fn a_source_becomes_a_code_object_per_target() {
    let out = tempfile::tempdir().unwrap();
    let targets = target::choose(Some("gfx1100,gfx90a")).unwrap();
    let source = example().join("softsign.cu");
    let written = compile_own(&source, &targets, out.path(), &out.path().join("work")).unwrap();
    for (target, (path, size)) in targets.iter().zip(&written) {
        assert_eq!(path, &out.path().join(format!("softsign-{target}.hsaco")));
        let object = fs::read(path).unwrap();
        assert_eq!(object.len(), *size);
        // The committed code objects have the same kernels.
        let committed = fs::read(example().join(format!("softsign-{target}.hsaco"))).unwrap();
        for object in [&object, &committed] {
            assert_eq!(names(target, object), ["softsign_f16", "softsign_f32"], "{target}");
        }
    }
    assert_eq!(written.len(), 2);
}

#[test]
fn compiler_errors_are_reported() {
    let out = tempfile::tempdir().unwrap();
    let source = out.path().join("wrong.cu");
    fs::write(&source, "extern \"C\" __global__ void wrong(float *x) { x[0] = missing; }\n").unwrap();
    let targets = target::choose(Some("gfx1100")).unwrap();
    let error = compile_own(&source, &targets, out.path(), out.path()).unwrap_err();
    assert!(matches!(error, BuildError::Compile(_)));
    let text = error.to_string();
    assert!(text.contains("wrong.cu") && text.contains("missing"), "{text}");
}
