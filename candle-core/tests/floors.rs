//! The floors of the ROCm backend: a file uses what lies in its own folder and on lower floors, nothing above.
use std::collections::BTreeMap;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Ident, Item, ItemMod, ItemUse, UseTree, Visibility};

/// Files and folders of `rocm_backend` from the ground up, several of one floor together.
const FLOORS: [&[&str]; 6] =
    [&["error"], &["stream"], &["device"], &["storage", "layout"], &["ops"], &["backend"]];

/// The floor of a module of `rocm_backend` by its name.
fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|names| names.contains(&module))
}

/// A path from the crate's root on, as written at a line.
struct Use {
    path: Vec<String>,
    line: usize,
}

/// Collects every path that starts at `super` or `crate`.
struct Paths {
    /// The module that is being read.
    here: Vec<String>,
    found: Vec<Use>,
}

impl Paths {
    /// The root of a path by its first word, if it is one of this crate.
    fn root(&self, first: &Ident) -> Option<Vec<String>> {
        match first.to_string().as_str() {
            "crate" => Some(vec!["crate".to_string()]),
            "super" => Some(self.here[..self.here.len() - 1].to_vec()),
            _ => None,
        }
    }

    fn tree(&mut self, base: Option<Vec<String>>, tree: &UseTree) {
        let (name, rest) = match tree {
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.tree(base.clone(), item));
                return;
            }
            UseTree::Glob(glob) => {
                let Some(mut path) = base else { return };
                path.push("*".to_string());
                self.found.push(Use { path, line: glob.span().start().line });
                return;
            }
            UseTree::Path(path) => (&path.ident, Some(&path.tree)),
            UseTree::Name(name) => (&name.ident, None),
            UseTree::Rename(rename) => (&rename.ident, None),
        };
        let path = match base {
            Some(mut path) => {
                step(&mut path, &name.to_string());
                Some(path)
            }
            None => self.root(name),
        };
        match (rest, path) {
            (Some(rest), Some(path)) => self.tree(Some(path), rest),
            (None, Some(path)) => self.found.push(Use { path, line: name.span().start().line }),
            (_, None) => {}
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.here.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(None, &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(mut full) = self.root(&path.segments[0].ident).filter(|_| path.leading_colon.is_none()) {
            path.segments.iter().skip(1).for_each(|segment| step(&mut full, &segment.ident.to_string()));
            self.found.push(Use { path: full, line: path.span().start().line });
        }
        visit::visit_path(self, path);
    }

    // `pub(super)` and `pub(in ...)` say who may look in, not what is used.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// Every path of a module (`["ops", "conv"]`) that starts at `super` or `crate`.
fn uses(module: &[String], source: &str) -> Vec<Use> {
    let file = syn::parse_file(source).expect("a source that compiles");
    let here = ["crate", "rocm_backend"].map(String::from).into_iter().chain(module.iter().cloned());
    let mut paths = Paths { here: here.collect(), found: Vec::new() };
    paths.visit_file(&file);
    paths.found
}

fn step(path: &mut Vec<String>, name: &str) {
    match name {
        "super" => drop(path.pop()),
        "self" => {}
        name => path.push(name.to_string()),
    }
}

/// Names that `rocm_backend/mod.rs` gives out, and the module that each is from.
fn reexports(source: &str) -> BTreeMap<String, String> {
    let file = syn::parse_file(source).expect("a source that compiles");
    let mut paths = Paths { here: Vec::new(), found: Vec::new() };
    for item in &file.items {
        if let Item::Use(item) = item {
            paths.tree(Some(Vec::new()), &item.tree);
        }
    }
    let of_floors = paths.found.into_iter().filter(|u| u.path.len() > 1 && floor(&u.path[0]).is_some());
    of_floors.map(|u| (u.path[u.path.len() - 1].clone(), u.path[0].clone())).collect()
}

/// The module of `rocm_backend` that a path of the crate leads to; `None` if it leads elsewhere.
fn target<'a>(path: &'a [String], reexports: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let of_crate = path.get(1)?.as_str();
    let name = match of_crate {
        "rocm_backend" | "rocm" => path.get(2)?.as_str(),
        // The crate's root gives some of the names out once more.
        name => return reexports.get(name).map(String::as_str),
    };
    Some(if floor(name).is_some() { name } else { reexports.get(name).map_or(name, String::as_str) })
}

/// What uses a floor above its own, or a name that belongs to no floor, of files by their path in `rocm_backend`.
fn violations(files: &[(String, String)]) -> Vec<String> {
    let root = files.iter().find(|(path, _)| path == "mod.rs").map_or("", |(_, source)| source);
    let reexports = reexports(root);
    let mut found = Vec::new();
    for (path, source) in files.iter().filter(|(path, _)| path != "mod.rs") {
        let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let module: Vec<String> = module.split('/').map(String::from).collect();
        let Some(own) = floor(&module[0]) else {
            found.push(format!("{path}: {} is on no floor", module[0]));
            continue;
        };
        for Use { path: used, line } in uses(&module, source) {
            let Some(name) = target(&used, &reexports) else { continue };
            // What the root itself offers to everybody.
            if matches!(name, "hip_kernels" | "rocm_loader" | "rocm_rs" | "DevicePtr" | "KernelLayout") {
                continue;
            }
            let used = used.join("::");
            match floor(name) {
                Some(floor) if floor <= own => {}
                Some(_) => found.push(format!("{path}:{line}: {used} lies above {}", module[0])),
                None => found.push(format!("{path}:{line}: {used} is on no floor")),
            }
        }
    }
    found
}

fn read(folder: &Path, inside: &str, files: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = format!("{inside}{}", path.file_name().expect("a name").to_string_lossy());
        if path.is_dir() {
            read(&path, &format!("{name}/"), files);
        } else if name.ends_with(".rs") {
            files.push((name, std::fs::read_to_string(&path).expect("a source")));
        }
    }
}

#[test]
fn no_file_uses_a_floor_above_its_own() {
    let mut files = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rocm_backend"), "", &mut files);
    files.sort();
    let count = |name: &str| files.iter().filter(|(path, _)| path.starts_with(name)).count();
    for names in FLOORS {
        assert!(names.iter().all(|name| count(name) > 0), "a floor of {names:?} has no file");
    }
    let found = violations(&files);
    assert!(found.is_empty(), "{} uses of floors above:\n{}", found.len(), found.join("\n"));
}

/// What the test above looks for is found however it is written, with its file and line.
#[test]
fn uses_of_a_floor_above_are_found() {
    let root = "mod device;\npub use device::{RocmDevice, LaunchConfig};\npub use ops::sort::arg_sort;";
    let cases = [
        (
            "stream/copy.rs",
            "use crate::rocm_backend::device::Launch;",
            "stream/copy.rs:1: crate::rocm_backend::device::Launch",
        ),
        ("stream/mod.rs", "use super::{error, storage as s};", "crate::rocm_backend::storage"),
        ("stream/memory/pool.rs", "use super::super::super::{\n  layout::Strided,\n};", "pool.rs:2"),
        (
            "stream/wait.rs",
            "use crate::{\n  DType,\n  rocm_backend::{error::RocmError, RocmDevice},\n};",
            "wait.rs:3",
        ),
        ("error.rs", "/* no */\nfn f() { let x = super::stream::check(); }", "error.rs:2"),
        (
            "layout.rs",
            "mod tests { use super::super::ops::conv::flat; }",
            "crate::rocm_backend::ops::conv::flat",
        ),
        ("storage.rs", "use super::arg_sort;", "crate::rocm_backend::arg_sort"),
        (
            "device/launch.rs",
            "use crate::rocm_backend::*;",
            "device/launch.rs:1: crate::rocm_backend::* is on no floor",
        ),
        ("device/mod.rs", "pub fn f(_: &crate::RocmStorage) {}", ""),
        ("corner.rs", "", "corner is on no floor"),
    ];
    for (path, source, expected) in cases {
        let files = [("mod.rs", root), (path, source)].map(|(p, s)| (p.to_string(), s.to_string()));
        let found = violations(&files);
        if expected.is_empty() {
            assert!(found.is_empty(), "{found:?}");
        } else {
            assert!(found.len() == 1 && found[0].contains(expected), "{path}: {found:?}");
        }
    }
    for (path, source) in [
        (
            "ops/conv.rs",
            "use super::matmul::product;\nuse crate::rocm_backend::{device::Launch, storage::X, LaunchConfig};",
        ),
        ("storage.rs", "mod tests { use super::*; use super::super::layout::Strided; } pub(super) struct S;"),
        (
            "stream/copy.rs",
            "// crate::rocm_backend::ops\nconst S: &str = \"super::super::ops::\\\"x\";\nuse crate::Result;",
        ),
        ("device/availability.rs", "use crate::{Device, Tensor};\nfn f<'a>(c: char) -> bool { c == '\"' }"),
    ] {
        let files = [("mod.rs", root), (path, source)].map(|(p, s)| (p.to_string(), s.to_string()));
        assert_eq!(violations(&files), Vec::<String>::new(), "{path}");
    }
}
