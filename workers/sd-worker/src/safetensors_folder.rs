//! Finds the `.safetensors` files in a folder that the user provides, such as that of LoRA files.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum depth of subfolders.
const MAX_DEPTH: usize = 8;
/// Endings of pickled files of PyTorch, which can run code when they are loaded.
pub const PICKLED_ENDINGS: [&str; 4] = ["ckpt", "pt", "pth", "bin"];

/// Returns the path of each `.safetensors` file in the folder and its subfolders, by its name without ending.
pub fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    visit(folder, MAX_DEPTH, &mut |path| {
        if has_ending(path, &["safetensors"])
            && let Some(name) = path.file_stem()
        {
            files.entry(name.to_string_lossy().into_owned()).or_insert(path.to_owned());
        }
        true
    });
    files
}

/// Like [`files`], but a subfolder with `config.json` is one model, which has the name of the folder.
pub fn models(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut models = BTreeMap::new();
    visit(folder, MAX_DEPTH, &mut |path| {
        let is_folder = path.join("config.json").is_file();
        let name = match (is_folder, has_ending(path, &["safetensors"])) {
            (true, _) => path.file_name(),
            (false, true) => path.file_stem(),
            (false, false) => None,
        };
        if let Some(name) = name {
            models.entry(name.to_string_lossy().into_owned()).or_insert(path.to_owned());
        }
        !is_folder
    });
    models
}

/// Returns the path of a pickled file with this name and any ending in the folder or its subfolders.
pub fn pickled(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut found = None;
    visit(folder, MAX_DEPTH, &mut |path| {
        if has_ending(path, &PICKLED_ENDINGS) && path.file_stem().is_some_and(|stem| stem == name) {
            found.get_or_insert(path.to_owned());
        }
        found.is_none()
    });
    found
}

/// Returns true if the ending of a file is one of `endings`.
pub fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one))
}

/// Calls `on_path` for each entry of the folder, sorted by name, and descends into subfolders for which it returns
/// true.
fn visit(folder: &Path, depth: usize, on_path: &mut dyn FnMut(&Path) -> bool) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if on_path(&path) && depth > 0 && path.is_dir() {
            visit(&path, depth - 1, on_path);
        }
    }
}
