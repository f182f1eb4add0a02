//! Folders with `.safetensors` files, which users fill.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum depth of subfolders.
const MAX_DEPTH: usize = 8;

/// Returns the path of each `.safetensors` file in the folder and its subfolders, by its name without ending.
pub fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    collect(folder, MAX_DEPTH, &mut files);
    files
}

fn collect(folder: &Path, depth: usize, files: &mut BTreeMap<String, PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, files);
        } else if path.extension().is_some_and(|ending| ending == "safetensors")
            && let Some(name) = path.file_stem()
        {
            files.entry(name.to_string_lossy().into_owned()).or_insert(path);
        }
    }
}
