//! Translation of the real sources.

use std::fs;
use std::path::Path;

use hip_kernels_build::Target;
use hip_kernels_build::bindings::HEADER_FILE;
use hip_kernels_build::compiler::Compiler;
use hip_kernels_build::hipify::{LAYOUT_TYPE, hipify};
use hip_kernels_build::sources::{PRELUDE, Tree, modules};

fn folder(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn exactly_the_layouts_of_kernels_are_passed_by_value() {
    let mut kernels_with_layout = 0;
    for module in modules() {
        let name = format!("{module}.cu");
        let source = fs::read_to_string(folder("../../candle-kernels").join(&name)).unwrap();
        let (text, changes) = hipify(&name, &source).unwrap();
        // Parameters contain no parentheses; those of launch bounds come before.
        let wanted = source
            .split("__global__")
            .skip(1)
            .filter(|after| {
                let parameters = after.split('{').next().unwrap_or_default();
                parameters.contains("size_t *info")
            })
            .count();
        assert_eq!(changes.layouts, wanted, "{name}");
        assert_eq!(text.matches(LAYOUT_TYPE).count(), wanted, "{name}");
        kernels_with_layout += wanted;
        assert_eq!(text.lines().count(), source.lines().count(), "{name}: lines stay where they were");
    }
    assert!(kernels_with_layout > 15, "{kernels_with_layout}");
}

#[test]
fn a_tree_has_every_module_and_header() {
    let work_dir = tempfile::tempdir().unwrap();
    let ours = folder("../../candle-kernels");
    let tree = Tree::create(&ours, work_dir.path()).unwrap_or_else(|error| panic!("{error}"));
    for module in modules() {
        assert!(tree.source(module).is_file(), "{module}");
    }
    let header = fs::read_to_string(tree.dir().join(HEADER_FILE)).unwrap();
    assert!(header.contains("#define CANDLE_SORT_BLOCK 1024\n"), "{header}");
    for header in ["cuda_utils.cuh", "compatibility.cuh", "pack.cuh"] {
        let text = fs::read_to_string(tree.dir().join(header)).unwrap();
        let mut code = text.lines().filter_map(|line| line.split("//").next());
        assert!(code.all(|line| !line.contains("__CUDA_ARCH__")), "{header}");
    }
}

#[test]
fn comments_and_unused_constants_do_not_cause_recompilation() {
    let work_dir = tempfile::tempdir().unwrap();
    let tree = Tree::create(&folder("../../candle-kernels"), work_dir.path()).unwrap();
    let target = Target::parse("gfx90a").unwrap();
    let compiler = Compiler::discover(std::slice::from_ref(&target)).unwrap();
    let include = folder("../include");
    let compiled = || {
        let folders = [include.as_path(), tree.dir()];
        compiler.preprocess(&tree.source("affine"), &target, &folders, PRELUDE).unwrap().unwrap()
    };
    let before = compiled();
    for (file, line) in [("affine.cu", "// A comment.\n"), (HEADER_FILE, "#define CANDLE_OF_OTHERS 1\n")] {
        let path = tree.dir().join(file);
        fs::write(&path, fs::read_to_string(&path).unwrap() + line).unwrap();
        assert!(compiled() == before, "{file}");
    }
    fs::write(tree.source("affine"), "__device__ int changed;\n").unwrap();
    assert!(compiled() != before);
}

#[test]
fn every_source_is_a_module_of_the_table() {
    let files = fs::read_dir(folder("../../candle-kernels")).unwrap().flatten();
    let mut sources: Vec<String> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .filter_map(|name| name.strip_suffix(".cu").map(str::to_owned))
        .collect();
    let mut modules = modules();
    sources.sort();
    modules.sort_unstable();
    assert_eq!(sources, modules);
}
