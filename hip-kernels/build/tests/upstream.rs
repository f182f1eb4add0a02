//! The translation of upstream's real sources.

use std::fs;
use std::path::Path;

use hip_kernels_build::hipify::{LAYOUT_TYPE, hipify};
use hip_kernels_build::sources::{MODULES, Tree};
use rocmify::upstream;

/// Files whose kernels are in Candle's modules, with upstream's names of the layout parameter.
fn upstream_sources(work_dir: &Path) -> Vec<(String, String)> {
    let dirs =
        upstream::locate(&["candle-kernels"], upstream::VERSION, work_dir).unwrap_or_else(|e| panic!("{e}"));
    let mut sources = Vec::new();
    for entry in fs::read_dir(dirs[0].join("src")).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let module = name.strip_suffix(".cu").is_some_and(|module| MODULES.contains(&module));
        if module || name.ends_with(".cuh") {
            sources.push((name, fs::read_to_string(entry.path()).unwrap()));
        }
    }
    assert_eq!(sources.len(), 11 + 3, "11 modules and three headers");
    sources
}

#[test]
fn every_layout_of_a_kernel_is_passed_by_value_and_nothing_else() {
    let work_dir = tempfile::tempdir().unwrap();
    let mut kernels_with_layout = 0;
    for (name, source) in upstream_sources(work_dir.path()) {
        let (text, changes) = hipify(&name, &source).unwrap();
        // Upstream writes the return type right after `__global__`, and no parenthesis within parameters.
        let wanted = source
            .split("__global__")
            .skip(1)
            .filter(|after| {
                let parameters = after.split(')').next().unwrap_or_default();
                parameters.contains("size_t *info") || parameters.contains("size_t *dims_and_strides")
            })
            .count();
        assert_eq!(changes.layouts, wanted, "{name}");
        assert_eq!(text.matches(LAYOUT_TYPE).count(), wanted, "{name}");
        kernels_with_layout += wanted;
        let mut code = text.lines().filter_map(|line| line.split("//").next());
        assert!(code.all(|line| !line.contains("__CUDA_ARCH__")), "{name}");
        assert_eq!(text.lines().count(), source.lines().count(), "{name}: lines stay where they were");
    }
    assert!(kernels_with_layout > 40, "{kernels_with_layout}");
}

#[test]
fn our_sources_replace_and_extend_upstreams() {
    let work_dir = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ours = here.join("../../candle-kernels");
    let tree =
        Tree::create(&ours, &here.join("../include"), work_dir.path()).unwrap_or_else(|e| panic!("{e}"));
    let text = |module: &str| fs::read_to_string(tree.source(module)).unwrap();
    for module in MODULES {
        assert!(tree.source(module).is_file(), "{module}");
    }
    // Replaced: ours alone. Extended: upstream's and ours.
    assert!(text("indexing").contains("candle_fault") && !text("indexing").contains("IS_OP("));
    assert!(text("reduce").contains("softmax_f32") && text("reduce").contains("reduce_extreme"));
}
