//! Which file uses which: no circles in the folders of [`FOLDERS`], and the floors of the ROCm backend.
//!
//! The rule:
//! - A file uses another when its own code names an item that the other defines: in a private `use`, or in a path.
//! - `mod` declarations and `pub use` re-exports are no uses: a name is followed through them to the file that defines
//!   it. So a `mod.rs` or `lib.rs` that only declares and re-exports is on no circle, and one whose own code uses its
//!   children, while they use items that it defines, is on one.
//! - Code under `#[cfg(test)]` may use whatever it likes, but for the floors of the backend.
//! - Methods are not seen: where they are defined is not written where they are called.
//!
//! A circle is a set of two or more files, each of which uses every other, directly or through others of the set.
mod graph;
mod source;

use graph::circles;
use source::{Source, Use};
use std::collections::BTreeMap;
use std::path::Path;

/// The files whose modules are looked at, by the root file of their tree. Where the crate's own root is generated, the
/// module in which the file is declared is named.
const FOLDERS: &[(&str, &str)] = &[
    (BACKEND, "rocm_backend"),
    ("candle-core/src/quantized_rocm/mod.rs", "quantized_rocm"),
    ("candle-flash-attn/src/lib.rs", ""),
    ("candle-nn/src/rocm/mod.rs", "rocm"),
    ("hip-kernels/build/src/lib.rs", ""),
    ("hip-kernels/code-object/src/lib.rs", ""),
    ("hip-kernels/src/lib.rs", ""),
    ("nvidia-driver/src/lib.rs", ""),
    ("rocm-loader/driver-api/src/lib.rs", ""),
    ("rocm-loader/src/lib.rs", ""),
    ("workers/llm-engine/src/lib.rs", ""),
    ("workers/llm-worker/src/lib.rs", ""),
    ("workers/model-thread/src/lib.rs", ""),
    ("workers/sd-worker/src/lib.rs", ""),
    ("workers/worker-core/src/lib.rs", ""),
];

/// Folders of [`FOLDERS`] that still have circles; they are printed, and a folder that has none any more fails the test
/// until it is taken off here.
const NOT_YET: &[&str] =
    &["candle-core/src/quantized_rocm", "candle-flash-attn/src", "hip-kernels/build/src"];

const BACKEND: &str = "candle-core/src/rocm_backend/mod.rs";

/// Files and folders of the backend from the ground up, several of one floor together.
const FLOORS: &[&[&str]] = &[
    &["error"],
    &["stream"],
    &["device"],
    &["libraries"],
    &["storage", "layout"],
    &["ops"],
    &["fusion"],
    &["backend"],
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the project")
}

/// The circles of a folder, each with the uses that tie it.
fn circles_of(source: &Source) -> Vec<String> {
    let mut ties: BTreeMap<(usize, usize), Vec<&str>> = BTreeMap::new();
    for Use { from, to, item, is_test, .. } in &source.uses {
        if let (false, Some(item)) = (*is_test || from == to, item) {
            ties.entry((*from, *to)).or_default().push(item);
        }
    }
    let edges: Vec<(usize, usize)> = ties.keys().copied().collect();
    let mut found = Vec::new();
    for circle in circles(source.files.len(), &edges) {
        let mut text = format!("{} files", circle.len());
        for ((from, to), items) in &mut ties {
            if circle.contains(from) && circle.contains(to) {
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
fn no_folder_has_a_circle_of_files() {
    let mut wrong = Vec::new();
    for (file, module) in FOLDERS {
        assert!(root().join(file).is_file(), "{file} is not there");
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let found = circles_of(&Source::read(&root().join(file), module));
        match (found.is_empty(), NOT_YET.contains(&folder)) {
            (true, false) => {}
            (true, true) => wrong.push(format!("{folder} has no circle any more: take it off NOT_YET")),
            (false, false) => wrong.push(format!("{folder}:\n  {}", found.join("\n  "))),
            (false, true) => println!("{folder}, not yet:\n  {}", found.join("\n  ")),
        }
    }
    assert!(wrong.is_empty(), "circles of files:\n{}", wrong.join("\n"));
}

/// The floor of a module of the backend.
fn floor(module: &[String]) -> Option<usize> {
    let name = module.get(1)?.as_str();
    FLOORS.iter().position(|names| names.contains(&name))
}

/// Uses of a floor above a file's own, or of what is on no floor.
fn uses_above(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for used in &source.uses {
        let (from, to) = (&source.modules[used.from], &used.module);
        // The root of the backend only gives names out.
        if from.len() < 2 || to.first() != from.first() {
            continue;
        }
        let place = format!("{}:{}: {}", source.files[used.from], used.line, used.path);
        match (floor(from), floor(to)) {
            (None, _) => found.push(format!("{place}: {} is on no floor", from[1])),
            (_, None) => found.push(format!("{place} is on no floor")),
            (Some(own), Some(other)) if other > own => found.push(format!("{place} lies above {}", from[1])),
            _ => {}
        }
    }
    found
}

#[test]
fn no_file_of_the_backend_uses_a_floor_above_its_own() {
    let source = Source::read(&root().join(BACKEND), "rocm_backend");
    for name in FLOORS.iter().copied().flatten() {
        let has_file = source.modules.iter().any(|module| module.get(1).is_some_and(|own| own == name));
        assert!(has_file, "the floor of {name} has no file");
    }
    let found = uses_above(&source);
    assert!(found.is_empty(), "{} uses of floors above:\n{}", found.len(), found.join("\n"));
}

/// A tree of sources, from texts by path; the first is the root.
fn tree(module: &str, files: &[(&str, &str)]) -> Source {
    let files: BTreeMap<String, String> =
        files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
    Source::of(if module.is_empty() { "lib.rs" } else { "mod.rs" }, module, &|path| files.get(path).cloned())
}

#[test]
fn circles_are_found_however_they_are_written() {
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
        let found = circles_of(&tree("", &[("lib.rs", root), ("a.rs", a), ("b.rs", b)]));
        assert!(found.len() == 1 && found[0].starts_with("2 files"), "{a} | {b}: {found:?}");
    }
    // A folder whose own code uses its children, which use that of the folder.
    let parent = "mod a; pub struct P; pub fn f() { a::g() }";
    let found = circles_of(&tree("", &[("lib.rs", parent), ("a.rs", "pub fn g() { let _ = super::P; }")]));
    assert!(found.len() == 1, "{found:?}");
}

#[test]
fn what_is_no_use_makes_no_circle() {
    let root = "mod a; mod b; pub use a::A; pub use b::B;";
    for (a, b) in [
        ("use crate::b::B; pub struct A;", "pub struct B;"),
        ("use crate::b::B; pub struct A;", "pub struct B; #[cfg(test)] mod tests { use crate::A; }"),
        ("use crate::b::B; pub struct A;", "pub struct B; /// [`crate::A`]\nconst S: &str = \"crate::A\";"),
        ("use crate::b::B; pub struct A;", "pub struct B; pub(in crate::a) fn f() {}"),
        ("use crate::b::B; pub struct A;", "pub use super::a::A; pub struct B;"),
    ] {
        let found = circles_of(&tree("", &[("lib.rs", root), ("a.rs", a), ("b.rs", b)]));
        assert_eq!(found, Vec::<String>::new(), "{a} | {b}");
    }
    // A folder that only gives names out, used by its own children and by others.
    let files = [
        ("lib.rs", "mod a; mod c;"),
        ("a/mod.rs", "mod b; mod d; pub use b::B; pub use d::D;"),
        ("a/b.rs", "pub struct B;"),
        ("a/d.rs", "use super::B; pub struct D;"),
        ("c.rs", "use crate::a::{B, D};"),
    ];
    assert_eq!(circles_of(&tree("", &files)), Vec::<String>::new());
}

#[test]
fn uses_of_a_floor_above_are_found() {
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
        uses_above(&tree("rocm_backend", &files))
    };
    for (path, text, expected) in [
        (
            "stream.rs",
            "use crate::rocm_backend::device::Launch;",
            "stream.rs:1: crate::rocm_backend::device::Launch",
        ),
        ("stream.rs", "use super::{error, storage as s};", "super::storage lies above stream"),
        (
            "stream.rs",
            "use crate::{\n  DType,\n  rocm_backend::{error::RocmError, RocmDevice},\n};",
            "stream.rs:3",
        ),
        ("error.rs", "/* no */\nfn f() { let x = super::stream::check(); }", "error.rs:2"),
        (
            "layout.rs",
            "mod tests { use super::super::ops::conv::flat; }",
            "ops::conv::flat lies above layout",
        ),
        ("layout.rs", "#[cfg(test)] mod tests { use super::super::ops::conv::flat; }", "lies above layout"),
        ("storage.rs", "use super::arg_sort;", "super::arg_sort lies above storage"),
        ("stream.rs", "fn f(_: &crate::RocmDevice) {}", "crate::RocmDevice lies above stream"),
        ("device.rs", "use crate::rocm_backend::*;", "device.rs:1: crate::rocm_backend::* is on no floor"),
        ("corner.rs", "use super::error::RocmError;", "corner is on no floor"),
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
