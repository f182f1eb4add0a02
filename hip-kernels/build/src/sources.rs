//! Which source each module is compiled from, and the folder of hipified sources.

use std::fs;
use std::path::{Path, PathBuf};

use rocmify::upstream;

use crate::BuildError;
use crate::bindings::{self, kernels_of};
use crate::contract::families;
use crate::hipify::hipify;

/// Upstream's crate that holds the kernels.
const UPSTREAM_CRATE: &str = "candle-kernels";

/// What our sources include of it.
const UPSTREAM_HEADERS: [&str; 2] = ["cuda_utils.cuh", "compatibility.cuh"];

/// The header that is included before the first line of every module.
pub const PRELUDE: &str = "candle_hip.h";

/// The modules of the table, those with most kernels first: they take longest to compile, and must not begin last.
pub fn modules() -> Vec<&'static str> {
    let families = families();
    let kernels = |module: &str| -> usize {
        let own = families.iter().filter(|family| family.module == module);
        own.map(|family| kernels_of(family).len()).sum()
    };
    let mut modules = bindings::modules(&families);
    modules.sort_by_key(|module| std::cmp::Reverse(kernels(module)));
    modules
}

/// A folder of hipified sources, ready to compile.
#[derive(Debug)]
pub struct Tree {
    dir: PathBuf,
    headers: Vec<PathBuf>,
}

impl Tree {
    /// Hipifies all sources into `work_dir/hipified`, and writes the header of the table's constants there.
    ///
    /// `ours` is our `candle-kernels` folder, whose .cuh files are headers; `include` holds the compatibility headers.
    ///
    /// # Errors
    /// When upstream's crate cannot be located, a source cannot be translated, or a file cannot be
    /// read or written.
    pub fn create(ours: &Path, include: &Path, work_dir: &Path) -> Result<Self, BuildError> {
        let crates = upstream::locate(&[UPSTREAM_CRATE], upstream::VERSION, work_dir)?;
        let dir = work_dir.join("hipified");
        let mut headers = files_below(include)?;
        headers.push(write_header(&dir)?);
        for header in
            crates.iter().flat_map(|theirs| UPSTREAM_HEADERS.map(|name| theirs.join("src").join(name)))
        {
            headers.push(translate(&header, &dir)?);
        }
        for path in files_in(ours)? {
            if path.extension().is_some_and(|extension| extension == "cuh") {
                headers.push(translate(&path, &dir)?);
            }
        }
        for module in modules() {
            translate(&ours.join(format!("{module}.cu")), &dir)?;
        }
        // By names, so that code objects are found again wherever the folders lie.
        headers.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
        Ok(Self { dir, headers })
    }

    /// The folder with `MODULE.cu` and the hipified headers.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The hipified source of a module.
    pub fn source(&self, module: &str) -> PathBuf {
        self.dir.join(format!("{module}.cu"))
    }

    /// Every header that a module may include.
    pub fn headers(&self) -> &[PathBuf] {
        &self.headers
    }
}

/// Writes the header of the table's constants into `dir`, which is created if it is missing.
pub(crate) fn write_header(dir: &Path) -> Result<PathBuf, BuildError> {
    fs::create_dir_all(dir).map_err(BuildError::io("cannot create", dir))?;
    let path = dir.join(bindings::HEADER_FILE);
    write_if_changed(&path, &bindings::header())?;
    Ok(path)
}

/// Hipifies `source` into `dir` under its own name.
fn translate(source: &Path, dir: &Path) -> Result<PathBuf, BuildError> {
    let name = source.file_name().unwrap_or_default();
    let text = fs::read_to_string(source).map_err(BuildError::io("cannot read", source))?;
    let target = dir.join(name);
    write_if_changed(&target, &hipify(&name.to_string_lossy(), &text)?.0)?;
    Ok(target)
}

fn write_if_changed(path: &Path, text: &str) -> Result<(), BuildError> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(BuildError::io("cannot write", path))
}

fn files_in(dir: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let entries = fs::read_dir(dir).map_err(BuildError::io("cannot read", dir))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    paths.map_err(BuildError::io("cannot read", dir))
}

fn files_below(dir: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let mut files = Vec::new();
    for path in files_in(dir)? {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
