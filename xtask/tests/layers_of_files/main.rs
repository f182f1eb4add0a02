//! Checks dependencies between files: no cycles in the crates of [`CRATE_ROOTS`], and the layers of the ROCm
//! backend.
//!
//! The rules:
//! - A file uses another if its own code names an item that the other defines, in a private `use` or in a path.
//! - `mod` declarations and `pub use` re-exports do not count; names are resolved through them to the defining file.
//!   A `mod.rs` or `lib.rs` that only declares and re-exports is therefore in no cycle. If its own code uses its
//!   children, and they use items that it defines, they form a cycle.
//! - Code under `#[cfg(test)]` may use any file, but must respect the layers of the backend.
//! - Method calls are not considered, since a call does not name the file that defines the method.
//!
//! A cycle is a set of two or more files that all use each other, directly or through others of the set.
mod graph;
mod source;

use graph::cycles;
use source::{Source, Use};
use std::collections::BTreeMap;
use std::path::Path;

/// Root files of the module trees that are checked, each with the name of its module. The name is empty for
/// the root of a crate; it is set if the crate's own root is generated.
const CRATE_ROOTS: &[(&str, &str)] = &[
    (BACKEND, "rocm_backend"),
    ("candle-core/src/quantized_rocm/mod.rs", "quantized_rocm"),
    ("candle-flash-attn/src/lib.rs", ""),
    ("candle-nn/src/rocm/mod.rs", "rocm"),
    ("candle-nn/src/tensor_parallel/mod.rs", "tensor_parallel"),
    ("hip-kernels/build/src/lib.rs", ""),
    ("hip-kernels/code-object/src/lib.rs", ""),
    ("hip-kernels/src/lib.rs", ""),
    ("nvidia-driver/src/lib.rs", ""),
    ("rocm-loader/driver-api/src/lib.rs", ""),
    ("rocm-loader/src/lib.rs", ""),
    ("workers/llm-engine/src/lib.rs", ""),
    ("workers/llm-worker/src/lib.rs", ""),
    ("workers/model-thread/src/lib.rs", ""),
    ("workers/pictures/src/lib.rs", ""),
    ("workers/sd-worker/src/lib.rs", ""),
    ("workers/worker-core/src/lib.rs", ""),
];

/// Folders that are known to have cycles. Their cycles are printed; a folder without cycles fails the test
/// until it is removed from this list.
const KNOWN_CYCLES: &[&str] =
    &["candle-core/src/quantized_rocm", "candle-flash-attn/src", "hip-kernels/build/src"];

const BACKEND: &str = "candle-core/src/rocm_backend/mod.rs";

/// Files and folders of the backend, from the lowest layer to the highest.
const LAYERS: &[&[&str]] = &[
    &["error"],
    &["stream"],
    &["device"],
    &["libraries"],
    &["storage", "layout"],
    &["ops"],
    &["fusion"],
    &["collective"],
    &["backend"],
    &["fused_product"],
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the project")
}

/// Describes the cycles of a module tree, each with the uses that form it.
fn cycles_of(source: &Source) -> Vec<String> {
    let mut edges_by_files: BTreeMap<(usize, usize), Vec<&str>> = BTreeMap::new();
    for Use { from, to, item, is_test, .. } in &source.uses {
        if let (false, Some(item)) = (*is_test || from == to, item) {
            edges_by_files.entry((*from, *to)).or_default().push(item);
        }
    }
    let edges: Vec<(usize, usize)> = edges_by_files.keys().copied().collect();
    let mut found = Vec::new();
    for cycle in cycles(source.files.len(), &edges) {
        let mut text = format!("{} files", cycle.len());
        for ((from, to), items) in &mut edges_by_files {
            if cycle.contains(from) && cycle.contains(to) {
                items.sort_unstable();
                items.dedup();
                let (from, to) = (&source.files[*from], &source.files[*to]);
                text.push_str(&format!("\n    {from} -> {to}: {}", items.join(", ")));
            }
        }
        found.push(text);
    }
    found
}

#[test]
fn files_have_no_dependency_cycles() {
    let mut wrong = Vec::new();
    for (file, module) in CRATE_ROOTS {
        assert!(root().join(file).is_file(), "{file} does not exist");
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let found = cycles_of(&Source::read(&root().join(file), module));
        match (found.is_empty(), KNOWN_CYCLES.contains(&folder)) {
            (true, false) => {}
            (true, true) => {
                wrong.push(format!("{folder} has no cycles any more: remove it from KNOWN_CYCLES"))
            }
            (false, false) => wrong.push(format!("{folder}:\n  {}", found.join("\n  "))),
            (false, true) => println!("{folder}, known cycles:\n  {}", found.join("\n  ")),
        }
    }
    assert!(wrong.is_empty(), "dependency cycles:\n{}", wrong.join("\n"));
}

/// Returns the index of the layer that contains a module of the backend.
fn layer(module: &[String]) -> Option<usize> {
    let name = module.get(1)?.as_str();
    LAYERS.iter().position(|names| names.contains(&name))
}

/// Describes uses of a higher layer, and files that are in no layer.
fn uses_of_higher_layers(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for used in &source.uses {
        let (from, to) = (&source.modules[used.from], &used.module);
        // The root of the backend only re-exports.
        if from.len() < 2 || to.first() != from.first() {
            continue;
        }
        let place = format!("{}:{}: {}", source.files[used.from], used.line, used.path);
        match (layer(from), layer(to)) {
            (None, _) => found.push(format!("{place}: {} is in no layer", from[1])),
            (_, None) => found.push(format!("{place} is in no layer")),
            (Some(own), Some(other)) if other > own => found.push(format!("{place} is above {}", from[1])),
            _ => {}
        }
    }
    found
}

#[test]
fn files_of_the_backend_use_no_higher_layer() {
    let source = Source::read(&root().join(BACKEND), "rocm_backend");
    for name in LAYERS.iter().copied().flatten() {
        let has_file = source.modules.iter().any(|module| module.get(1).is_some_and(|own| own == name));
        assert!(has_file, "{name} is listed as a layer but has no file");
    }
    let found = uses_of_higher_layers(&source);
    assert!(found.is_empty(), "{} uses of higher layers:\n{}", found.len(), found.join("\n"));
}

/// Parses a module tree from texts by path; the root is lib.rs for a crate and mod.rs for a module.
fn tree(module: &str, files: &[(&str, &str)]) -> Source {
    let files: BTreeMap<String, String> =
        files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
    Source::of(if module.is_empty() { "lib.rs" } else { "mod.rs" }, module, &|path| files.get(path).cloned())
}

#[test]
fn cycles_are_found_in_all_notations() {
    let root = "mod a; mod b; pub use a::A; pub use b::B;";
    for (a, b) in [
        ("use crate::b::B; pub struct A;", "use crate::a::A; pub struct B;"),
        ("use crate::B; pub struct A;", "pub struct B; fn f(_: &crate::A) {}"),
        ("use super::{b as other}; pub struct A; fn f() { other::g() }", "pub fn g() { super::a::f() }"),
        ("use crate::b; pub struct A; fn f() { vec![b::g()]; }", "pub fn g() { let _ = crate::A; }"),
        ("use super::b::*; pub struct A;", "use super::a::A as Other; pub struct B;"),
        ("pub use super::b::B; pub struct A; fn f(_: B) {}", "pub struct B(super::a::A);"),
        ("mod inner { use crate::b::B; } pub struct A;", "use super::A; pub struct B;"),
    ] {
        let found = cycles_of(&tree("", &[("lib.rs", root), ("a.rs", a), ("b.rs", b)]));
        assert!(found.len() == 1 && found[0].starts_with("2 files"), "{a} | {b}: {found:?}");
    }
    // A root whose own code uses its child, which uses an item of the root.
    let parent = "mod a; pub struct P; pub fn f() { a::g() }";
    let found = cycles_of(&tree("", &[("lib.rs", parent), ("a.rs", "pub fn g() { let _ = super::P; }")]));
    assert!(found.len() == 1, "{found:?}");
}

#[test]
fn reexports_tests_and_comments_are_not_uses() {
    let root = "mod a; mod b; pub use a::A; pub use b::B;";
    for (a, b) in [
        ("use crate::b::B; pub struct A;", "pub struct B;"),
        ("use crate::b::B; pub struct A;", "pub struct B; #[cfg(test)] mod tests { use crate::A; }"),
        ("use crate::b::B; pub struct A;", "pub struct B; /// [`crate::A`]\nconst S: &str = \"crate::A\";"),
        ("use crate::b::B; pub struct A;", "pub struct B; pub(in crate::a) fn f() {}"),
        ("use crate::b::B; pub struct A;", "pub use super::a::A; pub struct B;"),
    ] {
        let found = cycles_of(&tree("", &[("lib.rs", root), ("a.rs", a), ("b.rs", b)]));
        assert_eq!(found, Vec::<String>::new(), "{a} | {b}");
    }
    // A mod.rs that only re-exports, used by its own children and by others.
    let files = [
        ("lib.rs", "mod a; mod c;"),
        ("a/mod.rs", "mod b; mod d; pub use b::B; pub use d::D;"),
        ("a/b.rs", "pub struct B;"),
        ("a/d.rs", "use super::B; pub struct D;"),
        ("c.rs", "use crate::a::{B, D};"),
    ];
    assert_eq!(cycles_of(&tree("", &files)), Vec::<String>::new());
}

#[test]
fn uses_of_a_higher_layer_are_found() {
    let root = "mod device; mod stream; mod storage; mod error; mod layout; mod ops; mod corner;\n\
                pub use device::{RocmDevice, LaunchConfig}; pub use ops::sort::arg_sort; pub use error::RocmError;";
    let found = |path: &str, text: &str| {
        let mut files = vec![
            ("mod.rs", root),
            ("device.rs", "pub struct RocmDevice; pub struct LaunchConfig; pub struct Launch;"),
            ("stream.rs", ""),
            ("storage.rs", ""),
            ("error.rs", "pub struct RocmError;"),
            ("layout.rs", ""),
            ("ops/mod.rs", "pub mod sort; pub mod conv;"),
            ("ops/sort.rs", "pub fn arg_sort() {}"),
            ("ops/conv.rs", ""),
            ("corner.rs", ""),
        ];
        files.retain(|(name, _)| *name != path);
        files.push((path, text));
        uses_of_higher_layers(&tree("rocm_backend", &files))
    };
    for (path, text, expected) in [
        (
            "stream.rs",
            "use crate::rocm_backend::device::Launch;",
            "stream.rs:1: crate::rocm_backend::device::Launch",
        ),
        ("stream.rs", "use super::{error, storage as s};", "super::storage is above stream"),
        (
            "stream.rs",
            "use crate::{\n  DType,\n  rocm_backend::{error::RocmError, RocmDevice},\n};",
            "stream.rs:3",
        ),
        ("error.rs", "/* no */\nfn f() { let x = super::stream::check(); }", "error.rs:2"),
        ("layout.rs", "mod tests { use super::super::ops::conv::flat; }", "ops::conv::flat is above layout"),
        ("layout.rs", "#[cfg(test)] mod tests { use super::super::ops::conv::flat; }", "is above layout"),
        ("storage.rs", "use super::arg_sort;", "super::arg_sort is above storage"),
        ("stream.rs", "fn f(_: &crate::RocmDevice) {}", "crate::RocmDevice is above stream"),
        ("device.rs", "use crate::rocm_backend::*;", "device.rs:1: crate::rocm_backend::* is in no layer"),
        ("corner.rs", "use super::error::RocmError;", "corner is in no layer"),
    ] {
        let found = found(path, text);
        assert!(found.len() == 1 && found[0].contains(expected), "{path}: {found:?}");
    }
    for (path, text) in [
        (
            "ops/conv.rs",
            "use super::sort::arg_sort;\nuse crate::rocm_backend::{device::Launch, LaunchConfig};",
        ),
        ("storage.rs", "mod tests { use super::*; use super::super::layout::Strided; } pub(super) struct S;"),
        (
            "stream.rs",
            "// crate::rocm_backend::ops\nconst S: &str = \"super::ops::\\\"x\";\nuse crate::Result;",
        ),
        ("device.rs", "use crate::{Device, Tensor};\nfn f<'a>(c: char) -> bool { c == '\"' }"),
        ("device.rs", "pub struct RocmDevice; pub fn f(_: &crate::RocmDevice) {}"),
    ] {
        assert_eq!(found(path, text), Vec::<String>::new(), "{path}");
    }
}
