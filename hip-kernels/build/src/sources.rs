//! The modules, and the folder of their hipified sources.

use std::fs;
use std::path::{Path, PathBuf};

use rocmify::upstream;

use crate::BuildError;
use crate::bindings::{self, kernels_of};
use crate::contract::{self, families};
use crate::hipify::hipify;

/// Upstream's crate of kernels.
const UPSTREAM_CRATE: &str = "candle-kernels";

/// Upstream's headers that our sources include.
const UPSTREAM_HEADERS: [&str; 2] = ["cuda_utils.cuh", "compatibility.cuh"];

/// The header that is included before the first line of every module.
pub const PRELUDE: &str = "candle_hip.h";

/// Returns the modules of the contract, those with the most kernels first, because they take longest to compile.
pub fn modules() -> Vec<&'static str> {
    let families = families();
    let kernels = |module: &str| -> usize {
        let own = families.iter().filter(|family| family.module == module);
        own.map(|family| kernels_of(family).len()).sum()
    };
    let mut modules: Vec<_> = contract::modules().iter().map(|module| module.name).collect();
    modules.sort_by_key(|module| std::cmp::Reverse(kernels(module)));
    modules
}

/// A folder of hipified sources.
#[derive(Debug)]
pub struct Tree(PathBuf);

impl Tree {
    /// Hipifies all sources into `work_dir/hipified`, and writes the header of the contract's constants there.
    ///
    /// `ours` is our `candle-kernels` folder, whose .cuh files are headers.
    ///
    /// # Errors
    /// If upstream's crate cannot be located, a source cannot be translated, or a file cannot be
    /// read or written.
    pub fn create(ours: &Path, work_dir: &Path) -> Result<Self, BuildError> {
        let crates = upstream::locate(&[UPSTREAM_CRATE], upstream::VERSION, work_dir)?;
        let dir = work_dir.join("hipified");
        write_header(&dir)?;
        for header in
            crates.iter().flat_map(|theirs| UPSTREAM_HEADERS.map(|name| theirs.join("src").join(name)))
        {
            translate(&header, &dir)?;
        }
        for entry in fs::read_dir(ours).map_err(BuildError::io("cannot read", ours))? {
            let path = entry.map_err(BuildError::io("cannot read", ours))?.path();
            if path.extension().is_some_and(|extension| extension == "cuh") {
                translate(&path, &dir)?;
            }
        }
        for module in modules() {
            translate(&ours.join(format!("{module}.cu")), &dir)?;
        }
        Ok(Self(dir))
    }

    /// Returns the folder of `MODULE.cu` and the hipified headers.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a module's hipified source.
    pub fn source(&self, module: &str) -> PathBuf {
        self.0.join(format!("{module}.cu"))
    }
}

/// Writes the header of the contract's constants into `dir`, which is created if necessary.
pub(crate) fn write_header(dir: &Path) -> Result<(), BuildError> {
    fs::create_dir_all(dir).map_err(BuildError::io("cannot create", dir))?;
    write_if_changed(&dir.join(bindings::HEADER_FILE), &bindings::header())
}

/// Hipifies `source` into `dir`, keeping its file name.
fn translate(source: &Path, dir: &Path) -> Result<(), BuildError> {
    let name = source.file_name().unwrap_or_default();
    let text = fs::read_to_string(source).map_err(BuildError::io("cannot read", source))?;
    write_if_changed(&dir.join(name), &hipify(&name.to_string_lossy(), &text)?.0)
}

fn write_if_changed(path: &Path, text: &str) -> Result<(), BuildError> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(BuildError::io("cannot write", path))
}
