//! `cargo xtask coverage`: the lines of each crate that the tests run, on the software GPU.
//!
//! rustc's own instrumentation counts. cargo-llvm-cov would instrument dependencies and the software GPU too, which makes
//! the tests several times slower; this program is instead the compiler's wrapper for the packages of the workspace.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::ci::FEATURES;
use crate::process::{self, cargo, root};
use crate::test_programs::{self, Summary};
use crate::{compiler, setup, software_gpu};

/// Folders of host code, each of which must reach [`Args::minimum`].
const HOST: [&str; 7] =
    ["candle-core", "candle-flash-attn", "candle-nn", "hip-kernels", "rocm-loader", "rocmify", "workers"];
/// Folders that are counted with no minimum: the driver for NVIDIA cards needs one to run whole.
const OTHERS: [&str; 2] = ["nvidia-driver", "xtask"];

#[derive(clap::Args)]
pub struct Args {
    /// Least percentage of lines that each host crate must reach.
    #[arg(long, default_value_t = 90.0)]
    minimum: f64,
    /// List the files below the minimum with the lines that no test ran.
    #[arg(long)]
    files: bool,
    /// Count again what the last run left, without running the tests.
    #[arg(long)]
    no_run: bool,
}

/// Maps each line number to true if the line was run.
type Lines = BTreeMap<usize, bool>;

/// Measures, prints a table, and fails if a host crate is below the minimum.
///
/// # Errors
/// If a test fails, a tool is missing, or a crate is below the minimum.
pub fn run(args: &Args) -> Result<()> {
    setup::ensure(setup::TEST)?;
    let folder = root().join("target/coverage");
    let profile = folder.join("merged.profdata");
    let build =
        Build { wrapper: compiler::wrapper()?, folder: &folder, archs: software_gpu::TESTED.join(",") };
    let programs = build.cargo(&["test", "--no-run", "--quiet"], process::build_executables)?;
    let programs: BTreeSet<PathBuf> =
        programs.iter().filter_map(|program| program["executable"].as_str()).map(PathBuf::from).collect();
    if !args.no_run {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        build.cargo(&["build", "--quiet", "--bins", "--examples"], process::run)?;
        build.cargo(&["test", "--quiet", "--lib", "--bins", "--tests", "--examples"], |command| {
            let counts = build.counts();
            let mut variables = test_programs::variables(&build.archs).to_vec();
            variables.push(("LLVM_PROFILE_FILE", &counts));
            test_programs::run(command, &variables, &mut Summary::default())
        })?;
        let mut merge = process::command("llvm-profdata-22", &["merge", "--sparse", "--output"]);
        process::run(merge.arg(&profile).args(profiles(&folder)?))?;
    }
    let files = counted(&programs, &profile)?;
    report(&files, args)
}

/// Instrumented builds.
struct Build<'a> {
    /// The compiler's wrapper.
    wrapper: PathBuf,
    /// Folder for the counts.
    folder: &'a Path,
    /// Targets whose code objects the programs contain, separated by commas.
    archs: String,
}

impl Build<'_> {
    fn cargo<R>(&self, args: &[&str], run: impl FnOnce(&mut Command) -> Result<R>) -> Result<R> {
        let mut command = cargo(args);
        command.args(FEATURES).env("CANDLE_ROCM_ARCHS", &self.archs);
        compiler::instrument(&mut command, &self.wrapper);
        run(command.env("LLVM_PROFILE_FILE", self.counts()))
    }

    /// Returns the pattern of the files of counts: one for each program, to which its processes add.
    fn counts(&self) -> String {
        self.folder.join("%m.profraw").display().to_string()
    }
}

fn profiles(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "profraw")).collect())
}

/// Returns the lines of each file of the repository, relative to its root.
fn counted(programs: &BTreeSet<PathBuf>, profile: &Path) -> Result<BTreeMap<PathBuf, Lines>> {
    let mut export = process::command("llvm-cov-22", &["export", "--format=lcov", "--skip-functions"]);
    export.arg("--instr-profile").arg(profile);
    let mut programs = programs.iter();
    export.arg(programs.next().context("cargo built no test programs")?);
    programs.for_each(|program| {
        export.arg("--object").arg(program);
    });
    let output = export.output().context("cannot start llvm-cov-22")?;
    ensure!(output.status.success(), "llvm-cov-22: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(parse(&String::from_utf8_lossy(&output.stdout), &root()))
}

/// Reads lcov's format: `SF:` begins a file, `DA:line,count` is a line of it.
fn parse(text: &str, root: &Path) -> BTreeMap<PathBuf, Lines> {
    let mut files: BTreeMap<PathBuf, Lines> = BTreeMap::new();
    let mut lines = None;
    for record in text.lines() {
        if let Some(path) = record.strip_prefix("SF:") {
            let inside = Path::new(path).strip_prefix(root).ok();
            let file = inside.filter(|path| !path.starts_with("target")).map(Path::to_path_buf);
            lines = file.map(|file| files.entry(file).or_default());
        } else if let (Some(lines), Some(data)) = (lines.as_mut(), record.strip_prefix("DA:"))
            && let Some((line, count)) = data.split_once(',')
            && let Ok(line) = line.parse()
        {
            *lines.entry(line).or_insert(false) |= count != "0";
        }
    }
    files
}

/// Removes the lines of the unit tests' module, which is the last item of a file.
fn without_tests(lines: &Lines, source: &str) -> Lines {
    let begin = source.lines().position(|line| line == "#[cfg(test)]").map_or(usize::MAX, |at| at + 1);
    lines.range(..begin).map(|(line, run)| (*line, *run)).collect()
}

#[derive(Default)]
struct Share {
    lines: usize,
    run: usize,
}

impl Share {
    fn of(lines: &Lines) -> Self {
        Self { lines: lines.len(), run: lines.values().filter(|run| **run).count() }
    }

    fn percent(&self) -> f64 {
        if self.lines == 0 { 100.0 } else { 100.0 * self.run as f64 / self.lines as f64 }
    }
}

fn report(files: &BTreeMap<PathBuf, Lines>, args: &Args) -> Result<()> {
    let mut below = Vec::new();
    println!("| Crate | Lines | Run by tests | Percent |\n|---|---|---|---|");
    for folder in HOST.iter().chain(&OTHERS) {
        let mut total = Share::default();
        let is_source =
            |path: &Path| !path.iter().any(|part| part == "tests" || part == "examples" || part == "benches");
        for (path, lines) in files.iter().filter(|(path, _)| path.starts_with(folder) && is_source(path)) {
            let source = fs::read_to_string(root().join(path)).with_context(|| path.display().to_string())?;
            let lines = without_tests(lines, &source);
            let share = Share::of(&lines);
            total.lines += share.lines;
            total.run += share.run;
            if args.files && share.percent() < args.minimum {
                let missed: Vec<usize> =
                    lines.iter().filter(|(_, run)| !**run).map(|(line, _)| *line).collect();
                eprintln!(
                    "{}: {:.1}% of {} lines; not run: {}",
                    path.display(),
                    share.percent(),
                    share.lines,
                    ranges(&missed)
                );
            }
        }
        println!("| {folder} | {} | {} | {:.1} |", total.lines, total.run, total.percent());
        if HOST.contains(folder) && total.percent() < args.minimum {
            below.push(format!("{folder} {:.1}%", total.percent()));
        }
    }
    if !below.is_empty() {
        bail!(
            "below {}% of lines: {}; --files lists the lines that no test runs",
            args.minimum,
            below.join(", ")
        );
    }
    println!("coverage: ok minimum={}", args.minimum);
    Ok(())
}

/// Writes line numbers like `3-5 9`.
fn ranges(lines: &[usize]) -> String {
    let groups = lines.chunk_by(|a, b| b - a == 1);
    let texts = groups.map(|group| match group {
        [one] => one.to_string(),
        _ => format!("{}-{}", group[0], group[group.len() - 1]),
    });
    texts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_file_in_several_programs_add_up() {
        let text = "SF:/r/a/src/x.rs\nDA:1,0\nDA:2,7\nend_of_record\nSF:/r/a/src/x.rs\nDA:1,3\nDA:4,0\nend_of_record\n\
                    SF:/r/target/debug/build/out/y.rs\nDA:1,1\nend_of_record\nSF:/elsewhere/z.rs\nDA:1,1\n";
        let files = parse(text, Path::new("/r"));
        let expected: Lines = [(1, true), (2, true), (4, false)].into();
        assert_eq!(files, BTreeMap::from([(PathBuf::from("a/src/x.rs"), expected)]));
        assert_eq!(Share::of(&files[Path::new("a/src/x.rs")]).percent().round(), 67.0);
    }

    #[test]
    fn unit_tests_do_not_count() {
        let source = "fn a() {}\nfn b() {}\n#[cfg(test)]\nmod tests {}\n";
        let lines: Lines = [(1, true), (2, false), (4, true)].into();
        assert_eq!(without_tests(&lines, source), Lines::from([(1, true), (2, false)]));
        assert_eq!(without_tests(&lines, "fn a() {}\n"), lines);
    }

    #[test]
    fn line_numbers_are_written_as_ranges() {
        assert_eq!(ranges(&[3, 4, 5, 9, 11, 12]), "3-5 9 11-12");
        assert_eq!(ranges(&[]), "");
    }
}
