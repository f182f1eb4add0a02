//! The programs and files that are run: built here, or brought in a pack. Both lie as cargo lays them out, since tests
//! find the examples beside themselves.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::questions;
use super::stages::{self, Stage, Work};
use crate::process::{self, cargo, root};
use crate::software_gpu;
use crate::upstream_tests::{self, CRATES, PACKAGE, SUITES_VARIABLE};
use crate::{setup, weights};

/// The file of a pack that lists its programs.
pub const MANIFEST: &str = "manifest.json";
/// Below a pack: the files of upstream's tests, the demo's sentences, its model, the small Llama's files, the objects of
/// the questions.
pub const UPSTREAM: &str = "upstream";
pub const SENTENCES: &str = "sentences.txt";
pub const MODEL: &str = "model";
pub const TINY_LLAMA: &str = "tiny-llama";
pub const OBJECTS: &str = "questions";

/// The program of upstream's tests.
pub const SUITES: &str = "deps/suites";
/// The bench, if this version has it.
pub const BENCH: &str = "operations";
const EXAMPLES: [&str; 4] = ["doctor", "hardware_questions", "sentence_embeddings", "stress"];

pub struct Kit {
    root: PathBuf,
    /// By their places below the pack, such as `deps/memory` and `examples/doctor`.
    programs: BTreeMap<String, PathBuf>,
    /// Where upstream's tests find the files that they read, a folder for each crate.
    pub upstream: PathBuf,
    /// The crates of upstream's tests, each with its `tests/`.
    pub sources: Vec<PathBuf>,
    pub sentences: PathBuf,
    /// Or why there is none.
    pub model: Result<PathBuf, String>,
    pub tiny_llama: PathBuf,
    pub objects: PathBuf,
    /// Commit, compiler and targets.
    pub built: Value,
    pub is_packed: bool,
}

impl Kit {
    /// Builds what the stages need, for these targets or the GPUs that the driver has.
    ///
    /// # Errors
    /// When something cannot be built.
    pub fn built(archs: Option<&str>, driver: Option<&str>, chosen: &[&Stage]) -> Result<Self> {
        let archs = archs.map(str::to_owned).or_else(|| archs_of(driver));
        // Where there is a GPU, there is its compiler; the build says what it misses.
        if driver.is_some_and(is_software) {
            setup::ensure(setup::TEST)?;
        }
        let needs_model = chosen.iter().any(|stage| matches!(stage.work, Work::Demo));
        let model = match needs_model {
            true => weights::ensure().map_err(|error| format!("{error:#}")),
            false => Err("the demo was not chosen".to_owned()),
        };
        Self::build(archs.as_deref(), model, &|key: &str| {
            // The doctor is always run.
            key == "examples/doctor"
                || chosen.iter().any(|stage| stage.programs().any(|needed| needed == key))
        })
    }

    /// Builds the programs that are wanted.
    ///
    /// # Errors
    /// When something cannot be built.
    pub fn build(
        archs: Option<&str>,
        model: Result<PathBuf, String>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let (upstream, _) = upstream_tests::prepare()?;
        let sources = rocmify::upstream::locate(&CRATES, rocmify::upstream::VERSION, &upstream)?;
        let (mut tests, mut examples) = (Vec::new(), Vec::new());
        for (kind, name) in targets()? {
            let (folder, list) = match kind.as_str() {
                "test" | "bench" => ("deps", &mut tests),
                "example" => ("examples", &mut examples),
                _ => continue,
            };
            let ours = match kind.as_str() {
                "test" => name == "suites" || stages::programs().any(|program| program == name),
                "bench" => name == BENCH,
                _ => EXAMPLES.contains(&name.as_str()),
            };
            if ours && wanted(&format!("{folder}/{name}")) {
                list.extend([format!("--{kind}"), name]);
            }
        }
        let mut programs = BTreeMap::new();
        for (verb, targets) in [(&["test", "--no-run"][..], tests), (&["build"], examples)] {
            if !targets.is_empty() {
                programs.extend(compile(verb, &targets, archs, &upstream)?);
            }
        }
        let objects = questions::compile(archs, &programs)?;
        let built = json!({
            "commit": said("git", &["rev-parse", "HEAD"]),
            "changed": said("git", &["status", "--porcelain", "--untracked-files=no"]).is_some(),
            "rustc": said("rustc", &["--version"]),
            "archs": archs,
        });
        let sentences = root().join("examples/data").join(SENTENCES);
        let tiny_llama = root().join("examples/tiny_llama/model");
        Ok(Self {
            root: root(),
            programs,
            upstream,
            sources,
            sentences,
            model,
            tiny_llama,
            objects,
            built,
            is_packed: false,
        })
    }

    /// Reads a pack.
    ///
    /// # Errors
    /// When the folder is no pack.
    pub fn packed(folder: &Path) -> Result<Self> {
        let root = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
        let file = root.join(MANIFEST);
        let text = fs::read_to_string(&file).with_context(|| {
            format!("{} is no pack: cargo xtask validate --pack makes one", file.display())
        })?;
        let manifest: Value = serde_json::from_str(&text).context("the manifest is no JSON")?;
        let names = manifest["programs"].as_array().context("the manifest lists no programs")?;
        let programs: BTreeMap<String, PathBuf> =
            names.iter().filter_map(Value::as_str).map(|key| (key.to_owned(), root.join(key))).collect();
        if let Some(missing) = programs.values().find(|path| !path.is_file()) {
            bail!("{} is missing in the pack", missing.display());
        }
        let model = Some(root.join(MODEL)).filter(|model| model.is_dir());
        let model = model.ok_or_else(|| "not part of this pack: the weights".to_owned());
        Ok(Self {
            upstream: root.join(UPSTREAM),
            sources: CRATES.map(|name| root.join(UPSTREAM).join(name)).to_vec(),
            sentences: root.join(SENTENCES),
            tiny_llama: root.join(TINY_LLAMA),
            objects: root.join(OBJECTS),
            built: manifest["built"].clone(),
            is_packed: true,
            model,
            programs,
            root,
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn programs(&self) -> impl Iterator<Item = (&String, &PathBuf)> {
        self.programs.iter()
    }

    pub fn program(&self, key: &str) -> Option<&Path> {
        self.programs.get(key).map(PathBuf::as_path)
    }
}

impl Stage {
    /// Returns the program that the stage runs, by its place below a pack.
    pub fn programs(&self) -> impl Iterator<Item = String> {
        let example = |name: &str| vec![format!("examples/{name}")];
        match self.work {
            Work::Doctor => example("doctor"),
            Work::Upstream => vec![SUITES.to_owned()],
            // Tests start it as a program.
            Work::Tests(_) if ["model", "faults"].contains(&self.name) => {
                vec![format!("deps/{}", self.name), "examples/sentence_embeddings".to_owned()]
            }
            Work::Tests(_) => vec![format!("deps/{}", self.name)],
            Work::Stress => example("stress"),
            Work::Fuzz => vec!["deps/differential".to_owned()],
            Work::Demo => example("sentence_embeddings"),
            Work::Benches => vec![format!("deps/{BENCH}")],
            Work::Questions => example("hardware_questions"),
        }
        .into_iter()
    }
}

fn is_software(driver: &str) -> bool {
    driver.starts_with("emulator")
}

/// The targets to build for: as the environment says, those of the software GPU, or `None` for this machine's GPUs.
fn archs_of(driver: Option<&str>) -> Option<String> {
    let asked = std::env::var("CANDLE_ROCM_ARCHS").ok();
    let software = driver.and_then(|driver| {
        let archs = driver.strip_prefix("emulator")?;
        Some(archs.strip_prefix(':').unwrap_or(software_gpu::DEFAULT).to_owned())
    });
    asked.or(software)
}

/// Kind and name of all that the workspace can build.
fn targets() -> Result<Vec<(String, String)>> {
    let metadata = process::metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(targets.map(|target| (text(&target["kind"][0]), text(&target["name"]))).collect())
}

/// Builds targets with every driver in, as `cargo xtask test` does; gives back the programs by their places.
fn compile(
    verb: &[&str],
    targets: &[String],
    archs: Option<&str>,
    upstream: &Path,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo(verb);
    command.args(["--workspace", "--features"]);
    command.arg(format!("candle-rocm/rocm-emulator,candle-rocm/rocm-nvidia,{PACKAGE}/rocm-emulator"));
    command.args(targets).env(SUITES_VARIABLE, upstream);
    if let Some(archs) = archs {
        command.env("CANDLE_ROCM_ARCHS", archs);
    }
    by_place(process::build_executables(&mut command)?.iter().filter_map(program))
}

/// Programs of one name from two packages would stand in for each other.
fn by_place(programs: impl Iterator<Item = (String, PathBuf)>) -> Result<BTreeMap<String, PathBuf>> {
    let mut placed = BTreeMap::new();
    for (key, path) in programs {
        if let Some(other) = placed.insert(key.clone(), path.clone()) {
            bail!("{key} is both {} and {}: rename one of the two", other.display(), path.display());
        }
    }
    Ok(placed)
}

/// The place and the path of a program that cargo says it has built.
fn program(message: &Value) -> Option<(String, PathBuf)> {
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = match message["target"]["kind"][0].as_str()? {
        "test" | "bench" => "deps",
        "example" => "examples",
        _ => return None,
    };
    Some((format!("{folder}/{}", message["target"]["name"].as_str()?), path))
}

/// The first line that a program of this machine prints; `None` if it prints nothing or is not there.
pub fn said(program: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    if root().is_dir() {
        command.current_dir(root());
    }
    let output = command.args(args).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_one_name_are_refused() {
        let program = |key: &str, path: &str| (key.to_owned(), PathBuf::from(path));
        let two = [program("deps/layers", "a/layers-1"), program("deps/rows", "a/rows-1")];
        assert_eq!(by_place(two.clone().into_iter()).unwrap().len(), 2);
        let error = by_place(two.into_iter().chain([program("deps/layers", "b/layers-2")])).unwrap_err();
        assert!(error.to_string().contains("b/layers-2"), "{error}");
    }
}
