//! The floors of the ROCm backend: a file uses what lies in its own folder and on lower floors, nothing above.
use std::collections::BTreeMap;
use std::path::Path;

/// Files and folders of `rocm_backend` from the ground up, several of one floor together.
const FLOORS: [&[&str]; 6] =
    [&["error"], &["stream"], &["device"], &["storage", "layout"], &["ops"], &["backend"]];

/// The floor of a module of `rocm_backend` by its name.
fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|names| names.contains(&module))
}

/// A word or a sign of a source, and its line.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

/// Words, `::` and single signs; comments, strings and characters are left out.
fn tokens(source: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            string_len(rest)
        } else if first == '\'' {
            character_len(rest)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (text, after) = rest.split_at(len);
        let is_comment = text.starts_with("//") || text.starts_with("/*");
        if !(is_comment || first == '"' || first == '\'' || first.is_whitespace()) {
            found.push(Token { text: text.to_string(), line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

/// Up to the closing quote, which no backslash precedes.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

/// Of a character with its quotes, or of the quote of a lifetime.
fn character_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            text[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 3)
        }
        Some((at, c)) if text[at + c.len_utf8()..].starts_with('\'') => at + c.len_utf8() + 1,
        _ => 1,
    }
}

/// A path from `rocm_backend` on, as written at a line.
struct Use {
    path: Vec<String>,
    line: usize,
}

/// Every path of a module (`["ops", "conv"]`) that starts at `super` or `crate` and leads into `rocm_backend`.
fn uses(module: &[String], source: &str) -> Vec<Use> {
    let tokens = tokens(source);
    let text = |at: usize| tokens.get(at).map_or("", |t| t.text.as_str());
    let mut found = Vec::new();
    // Names of the modules that are open, and how many braces were open before them.
    let (mut inline, mut depth): (Vec<(String, usize)>, usize) = (Vec::new(), 0);
    for at in 0..tokens.len() {
        match text(at) {
            "{" => {
                if at >= 2 && text(at - 2) == "mod" {
                    inline.push((text(at - 1).to_string(), depth));
                }
                depth += 1;
            }
            "}" => {
                depth -= 1;
                inline.pop_if(|(_, outer)| *outer == depth);
            }
            start @ ("super" | "crate") if at == 0 || text(at - 1) != "::" => {
                let mut here = vec!["crate".to_string(), "rocm_backend".to_string()];
                here.extend(module.iter().cloned());
                here.extend(inline.iter().map(|(name, _)| name.clone()));
                let base = if start == "crate" {
                    vec!["crate".to_string()]
                } else {
                    here[..here.len() - 1].to_vec()
                };
                tree(&tokens, at + 1, base, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// Adds what a path with groups behind `base` names; gives back where it ends.
fn tree(tokens: &[Token], mut at: usize, mut base: Vec<String>, found: &mut Vec<Use>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |t| t.text.as_str());
    while text(at) == "::" {
        match text(at + 1) {
            "{" => {
                at += 2;
                while !matches!(text(at), "}" | "") {
                    if text(at) == "," {
                        at += 1;
                        continue;
                    }
                    let mut branch = base.clone();
                    step(&mut branch, text(at));
                    at = tree(tokens, at + 1, branch, found);
                    // Past `as name`.
                    while !matches!(text(at), "," | "}" | "") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            // A turbofish ends the path.
            "<" => break,
            name => step(&mut base, name),
        }
        at += 2;
    }
    let line = tokens[at.min(tokens.len()) - 1].line;
    found.push(Use { path: base, line });
    at
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
    let tokens = tokens(source);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).map_or("", |t| t.text.as_str());
        if token.text == "use" && floor(next).is_some() {
            tree(&tokens, at + 2, vec![next.to_string()], &mut found);
        }
    }
    found.into_iter().map(|u| (u.path[u.path.len() - 1].clone(), u.path[0].clone())).collect()
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
