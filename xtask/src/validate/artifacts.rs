//! Programs and files that the stages use: built here, or taken from a pack. Both have cargo's folder layout,
//! since tests find the examples relative to their own path.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::questions;
use super::stages::{self, Kind, Stage};
use crate::ci::FEATURES;
use crate::process::{self, cargo, root};
use crate::software_gpu;
use crate::upstream_tests::{self, CRATES, PACKAGE, SUITES_VARIABLE};
use crate::{example, setup, weights};

/// File of a pack that lists its programs.
pub const MANIFEST: &str = "manifest.json";
/// Paths in a pack: files of upstream's tests, the demo's sentences and model, the tiny Llama, and the code
/// objects of the hardware questions.
pub const UPSTREAM: &str = "upstream";
pub const SENTENCES: &str = "sentences.txt";
pub const MODEL: &str = "model";
pub const TINY_LLAMA: &str = "tiny-llama";
pub const OBJECTS: &str = "questions";

pub const SUITES: &str = "deps/suites";
pub const BENCH: &str = "operations";
const EXAMPLES: [&str; 3] = ["doctor", "hardware_questions", "stress"];

pub struct Artifacts {
    root: PathBuf,
    /// Programs by their path relative to the pack, such as `deps/memory` and `examples/doctor`.
    programs: BTreeMap<String, PathBuf>,
    /// Folder with the files that upstream's tests read, with a subfolder per crate.
    pub upstream: PathBuf,
    /// Source folders of the crates of upstream's tests, each with its `tests/`.
    pub sources: Vec<PathBuf>,
    pub sentences: PathBuf,
    /// Folder of the demo's model, or the reason why there is none.
    pub model: Result<PathBuf, String>,
    pub tiny_llama: PathBuf,
    pub objects: PathBuf,
    /// Commit, compiler and targets.
    pub built: Value,
    pub is_packed: bool,
}

impl Artifacts {
    /// Builds what the stages need, for the targets `archs` or for the GPUs of the driver.
    ///
    /// # Errors
    /// If a program cannot be built.
    pub fn build_for_stages(archs: Option<&str>, driver: Option<&str>, chosen: &[&Stage]) -> Result<Self> {
        let archs = archs.map(str::to_owned).or_else(|| archs_of(driver));
        // A machine with a GPU usually has a compiler; if not, the build reports what is missing.
        if driver.is_some_and(is_software) {
            setup::ensure(setup::TEST)?;
        }
        let needs_model = chosen.iter().any(|stage| matches!(stage.kind, Kind::Demo));
        let model = match needs_model {
            true => weights::MINILM.ensure().map_err(|error| format!("{error:#}")),
            false => Err("the demo was not selected".to_owned()),
        };
        Self::build(archs.as_deref(), model, &|key: &str| {
            // The doctor always runs.
            key == "examples/doctor"
                || chosen.iter().any(|stage| stage.programs().any(|needed| needed == key))
        })
    }

    /// Builds the programs for which `wanted` returns true.
    ///
    /// # Errors
    /// If a program cannot be built.
    pub fn build(
        archs: Option<&str>,
        model: Result<PathBuf, String>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let (upstream, _) = upstream_tests::prepare()?;
        let sources = rocmify::upstream::locate(&CRATES, rocmify::upstream::VERSION, &upstream)?;
        let (mut tests, mut others) = (Vec::new(), Vec::new());
        for (kind, name) in targets()? {
            let list = match kind.as_str() {
                "test" | "bench" => &mut tests,
                "example" | "bin" => &mut others,
                _ => continue,
            };
            let ours = match kind.as_str() {
                "test" => name == "suites" || stages::programs().any(|program| program == name),
                "bench" => name == BENCH,
                "bin" => name == example::EMBEDDINGS,
                _ => EXAMPLES.contains(&name.as_str()),
            };
            if ours && wanted(&key(&kind, &name)) {
                list.extend([format!("--{kind}"), name]);
            }
        }
        let mut programs = BTreeMap::new();
        for (verb, targets) in [(&["test", "--no-run"][..], tests), (&["build"], others)] {
            if !targets.is_empty() {
                programs.extend(compile(verb, &targets, archs, &upstream)?);
            }
        }
        let objects = questions::compile(archs, &programs)?;
        let built = json!({
            "commit": first_line_of("git", &["rev-parse", "HEAD"]),
            "changed": first_line_of("git", &["status", "--porcelain", "--untracked-files=no"]).is_some(),
            "rustc": first_line_of("rustc", &["--version"]),
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
    /// If the folder is not a pack.
    pub fn from_pack(folder: &Path) -> Result<Self> {
        let root = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
        let file = root.join(MANIFEST);
        let text = fs::read_to_string(&file).with_context(|| {
            format!("{} cannot be read; create a pack with cargo xtask validate --pack", file.display())
        })?;
        let manifest: Value = serde_json::from_str(&text).context("the manifest is not JSON")?;
        let names = manifest["programs"].as_array().context("the manifest lists no programs")?;
        let programs: BTreeMap<String, PathBuf> =
            names.iter().filter_map(Value::as_str).map(|key| (key.to_owned(), root.join(key))).collect();
        if let Some(missing) = programs.values().find(|path| !path.is_file()) {
            bail!("the pack has no file {}", missing.display());
        }
        let model = Some(root.join(MODEL)).filter(|model| model.is_dir());
        let model = model.ok_or_else(|| "the pack does not contain the weights".to_owned());
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
    /// Returns the programs that the stage runs, by their path relative to a pack.
    pub fn programs(&self) -> impl Iterator<Item = String> {
        let example = |name: &str| vec![format!("examples/{name}")];
        match self.kind {
            Kind::Doctor => example("doctor"),
            Kind::Upstream => vec![SUITES.to_owned()],
            // These tests also start this program.
            Kind::Tests(_) if ["bert", "faults"].contains(&self.name) => {
                vec![format!("deps/{}", self.name), example::EMBEDDINGS.to_owned()]
            }
            Kind::Tests(_) => vec![format!("deps/{}", self.name)],
            Kind::Stress => example("stress"),
            Kind::Fuzz => vec!["deps/differential".to_owned()],
            Kind::Demo => vec![example::EMBEDDINGS.to_owned()],
            Kind::Benches => vec![format!("deps/{BENCH}")],
            Kind::Questions => example("hardware_questions"),
        }
        .into_iter()
    }
}

fn is_software(driver: &str) -> bool {
    driver.starts_with("emulator")
}

/// Returns the targets to build for: from the environment, or of the software GPU; `None` for this machine's GPUs.
fn archs_of(driver: Option<&str>) -> Option<String> {
    let asked = std::env::var("CANDLE_ROCM_ARCHS").ok();
    let software = driver.and_then(|driver| {
        let archs = driver.strip_prefix("emulator")?;
        Some(archs.strip_prefix(':').unwrap_or(software_gpu::DEFAULT).to_owned())
    });
    asked.or(software)
}

/// Returns kind and name of all build targets of the workspace.
fn targets() -> Result<Vec<(String, String)>> {
    let metadata = process::metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(targets.map(|target| (text(&target["kind"][0]), text(&target["name"]))).collect())
}

/// Builds targets with every driver, like `cargo xtask test`. Returns the programs by their path relative to a pack.
fn compile(
    verb: &[&str],
    targets: &[String],
    archs: Option<&str>,
    upstream: &Path,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo(verb);
    command.args(FEATURES).args(["--features", &format!("{PACKAGE}/rocm-emulator")]);
    command.args(targets).env(SUITES_VARIABLE, upstream);
    if let Some(archs) = archs {
        command.env("CANDLE_ROCM_ARCHS", archs);
    }
    by_key(process::build_executables(&mut command)?.iter().filter_map(program))
}

/// Collects the programs in a map; returns an error if two have the same key, since one would replace the other.
fn by_key(programs: impl Iterator<Item = (String, PathBuf)>) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for (key, path) in programs {
        if let Some(other) = found.insert(key.clone(), path.clone()) {
            bail!("two programs are named {key}: {} and {}; rename one", other.display(), path.display());
        }
    }
    Ok(found)
}

/// Returns the key and the path of a program from cargo's build message.
fn program(message: &Value) -> Option<(String, PathBuf)> {
    let path = PathBuf::from(message["executable"].as_str()?);
    let target = &message["target"];
    Some((key(target["kind"][0].as_str()?, target["name"].as_str()?), path))
}

/// Returns the path of a program relative to a pack, which is the one relative to cargo's target folder.
fn key(kind: &str, name: &str) -> String {
    match kind {
        "test" | "bench" => format!("deps/{name}"),
        "example" => format!("examples/{name}"),
        _ => name.to_owned(),
    }
}

/// Returns the first line that a program prints; `None` if the program is missing or its first line is empty.
pub fn first_line_of(program: &str, args: &[&str]) -> Option<String> {
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
    fn stages_use_programs_with_unique_names() {
        let targets = targets().unwrap();
        for name in stages::programs() {
            let tests = targets.iter().filter(|(kind, target)| kind == "test" && target == name);
            assert!(tests.count() <= 1, "several tests are named {name}");
        }
    }

    #[test]
    fn programs_with_the_same_name_are_rejected() {
        let program = |key: &str, path: &str| (key.to_owned(), PathBuf::from(path));
        let two = [program("deps/layers", "a/layers-1"), program("deps/rows", "a/rows-1")];
        assert_eq!(by_key(two.clone().into_iter()).unwrap().len(), 2);
        let error = by_key(two.into_iter().chain([program("deps/layers", "b/layers-2")])).unwrap_err();
        assert!(error.to_string().contains("b/layers-2"), "{error}");
    }
}
