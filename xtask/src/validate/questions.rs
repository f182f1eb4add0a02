//! Compiles the code objects of the hardware questions, one per source file and target.
use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use super::artifacts::OBJECTS;
use crate::process::{self, cargo, root};
use crate::upstream_tests;

const SOURCES: &str = "examples/hardware_questions";

/// Compiles the code objects if the program that loads them was built. Returns their folder.
///
/// # Errors
/// If a source does not compile.
pub fn compile(archs: Option<&str>, programs: &BTreeMap<String, PathBuf>) -> Result<PathBuf> {
    let target = upstream_tests::target_dir()?;
    let folder = target.join(OBJECTS);
    if !programs.contains_key("examples/hardware_questions") {
        return Ok(folder);
    }
    let mut sources: Vec<PathBuf> = std::fs::read_dir(root().join(SOURCES))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    for source in sources {
        let mut command = cargo(&["run", "--quiet", "--package", "hip-kernels-build", "--"]);
        command
            .arg("--source")
            .arg(source)
            .arg("--out")
            .arg(&folder)
            .arg("--work-dir")
            .arg(target.join("hip-kernels"));
        command.args(archs.iter().flat_map(|archs| ["--archs", archs]));
        process::run(&mut command)?;
    }
    Ok(folder)
}
