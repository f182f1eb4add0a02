//! Which source each module is compiled from, and the folder of hipified sources.

use std::fs;
use std::path::{Path, PathBuf};

use rocmify::upstream;

use crate::BuildError;
use crate::hipify::hipify;

/// Every kernel module. All but `attention` and `random` exist upstream. The order is that of compile time,
/// longest first, so that the longest does not begin last.
pub const MODULES: &[&str] = &[
    "quantized",
    "binary",
    "indexing",
    "unary",
    "cast",
    "conv",
    "ternary",
    "reduce",
    "attention",
    "random",
    "affine",
    "sort",
    "fill",
];

/// Upstream's crate that holds the kernels.
const UPSTREAM_CRATE: &str = "candle-kernels";

/// The header that is included before the first line of every module.
pub const PRELUDE: &str = "candle_hip.h";

/// A folder of hipified sources, ready to compile.
#[derive(Debug)]
pub struct Tree {
    dir: PathBuf,
    headers: Vec<PathBuf>,
}

impl Tree {
    /// Hipifies all sources into `work_dir/hipified`.
    ///
    /// `ours` is our `candle-kernels` folder: a file `NAME.cu` there takes the place of upstream's, and
    /// `additions/NAME.cu` is compiled after upstream's in the same translation unit. `include` holds the
    /// compatibility headers.
    ///
    /// # Errors
    /// When upstream's crate cannot be located, a source cannot be translated, or a file cannot be
    /// read or written.
    pub fn create(ours: &Path, include: &Path, work_dir: &Path) -> Result<Self, BuildError> {
        let crates = upstream::locate(&[UPSTREAM_CRATE], upstream::VERSION, work_dir)?;
        let theirs: Vec<PathBuf> = crates.iter().map(|dir| dir.join("src")).collect();
        let dir = work_dir.join("hipified");
        fs::create_dir_all(&dir).map_err(BuildError::io("cannot create", &dir))?;

        let mut headers = files_below(include)?;
        for source in theirs.iter().map(|dir| files_in(dir)).collect::<Result<Vec<_>, _>>()?.concat() {
            if source.extension().is_some_and(|extension| extension == "cuh") {
                headers.push(translate(&source, None, &dir)?);
            }
        }
        for module in MODULES {
            let name = format!("{module}.cu");
            let replacement = ours.join(&name);
            if replacement.is_file() {
                translate(&replacement, None, &dir)?;
                continue;
            }
            let addition = Some(ours.join("additions").join(&name)).filter(|path| path.is_file());
            for upstream in &theirs {
                translate(&upstream.join(&name), addition.as_deref(), &dir)?;
            }
        }
        headers.sort();
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

/// Hipifies `source` into `dir` under its own name, with `addition` after it.
fn translate(source: &Path, addition: Option<&Path>, dir: &Path) -> Result<PathBuf, BuildError> {
    let name = source.file_name().unwrap_or_default();
    let mut text = hipified_text(source)?;
    if let Some(addition) = addition {
        text.push('\n');
        text.push_str(&hipified_text(addition)?);
    }
    let target = dir.join(name);
    if fs::read_to_string(&target).is_ok_and(|old| old == text) {
        return Ok(target);
    }
    fs::write(&target, text).map_err(BuildError::io("cannot write", &target))?;
    Ok(target)
}

fn hipified_text(source: &Path) -> Result<String, BuildError> {
    let text = fs::read_to_string(source).map_err(BuildError::io("cannot read", source))?;
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    Ok(hipify(&name, &text)?.0)
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
