//! `cargo xtask lines`: compares the number of lines of each top-level folder with its budget.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::process::{command, root};

/// Path of the file with the [`Budgets`].
const BUDGET: &str = "xtask/line-budget.toml";
const HEADER: &str = "# Maximum number of lines per folder, without tests, checked by `cargo xtask lines`. `--write` only lowers\n\
                      # numbers; `--raise FOLDER --because REASON` raises one and keeps the reason here.\n";
/// Patterns of the tracked files that count.
const PATTERNS: &[&str] = &["*.rs", "*.cu", "*.cuh", "*.h"];

#[derive(clap::Args, Default)]
pub struct Args {
    /// Lower each budget to the current number of lines; raise none.
    #[arg(long)]
    write: bool,
    /// Raise the budget of this folder to its current number of lines.
    #[arg(long, value_name = "FOLDER", requires = "because")]
    raise: Option<String>,
    /// Reason why the folder must grow; stored with its budget.
    #[arg(long, value_name = "REASON", requires = "raise")]
    because: Option<String>,
}

/// Maximum number of lines by top-level folder.
#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
struct Budgets(BTreeMap<String, Budget>);

/// `rocm-loader = 1700`, or a table with the reason for the last raise.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
enum Budget {
    Lines(usize),
    Raised { lines: usize, because: String },
}

impl Budgets {
    fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).context(BUDGET)
    }

    fn of(&self, folder: &str) -> usize {
        match self.0.get(folder) {
            Some(Budget::Lines(lines) | Budget::Raised { lines, .. }) => *lines,
            None => 0,
        }
    }

    /// Lowers the budgets that are above the current numbers of lines.
    fn lower(&mut self, current: &BTreeMap<String, Lines>) {
        self.0.retain(|folder, _| current.contains_key(folder));
        for (folder, Budget::Lines(lines) | Budget::Raised { lines, .. }) in &mut self.0 {
            *lines = current[folder].code.min(*lines);
        }
    }

    /// Raises the budget of one folder to its current number of lines.
    fn raise(&mut self, current: &BTreeMap<String, Lines>, folder: &str, because: &str) -> Result<()> {
        let lines = current.get(folder).with_context(|| format!("there is no folder {folder:?}"))?.code;
        let allowed = self.of(folder);
        ensure!(lines > allowed, "{folder} has {lines} lines, which is within its budget of {allowed}");
        ensure!(!because.trim().is_empty(), "--because needs a reason");
        self.0.insert(folder.into(), Budget::Raised { lines, because: because.into() });
        Ok(())
    }
}

/// Numbers of lines of a folder. Only code has a budget.
#[derive(Default, Debug, PartialEq, Eq)]
struct Lines {
    code: usize,
    tests: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let files = tracked_files()?;
    let lines = count(&files);
    let path = root().join(BUDGET);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut budgets = Budgets::parse(&text)?;
    if args.write {
        budgets.lower(&lines);
    }
    if let (Some(folder), Some(because)) = (&args.raise, &args.because) {
        budgets.raise(&lines, folder, because)?;
    }
    if args.write || args.raise.is_some() {
        let text = format!("{HEADER}{}", toml::to_string(&budgets)?);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let (table, above) = compare(&lines, &budgets);
    print!("{table}");
    if !above.is_empty() {
        bail!(
            "{}; delete unused code, or raise the budget with a reason: \
             cargo xtask lines --raise FOLDER --because REASON",
            above.join("; ")
        );
    }
    let code: usize = lines.values().map(|lines| lines.code).sum();
    let tests: usize = lines.values().map(|lines| lines.tests).sum();
    println!("lines: {code} of code, {tests} of tests, all within {BUDGET}");
    Ok(())
}

/// Returns the text of every tracked file, by its path relative to the root.
fn tracked_files() -> Result<BTreeMap<PathBuf, String>> {
    let mut list = command("git", &["ls-files", "-z", "--"]);
    let output = list.args(PATTERNS).output().context("cannot start git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("a tracked file's name is not UTF-8")?;
    // A file that was deleted and not yet committed is still listed.
    let read = |name: &str| Some((PathBuf::from(name), fs::read_to_string(root().join(name)).ok()?));
    Ok(names.split('\0').filter(|name| !name.is_empty()).filter_map(read).collect())
}

/// Counts lines by top-level folder; `.` stands for files in the root.
fn count(files: &BTreeMap<PathBuf, String>) -> BTreeMap<String, Lines> {
    let test_modules: Vec<PathBuf> =
        files.iter().flat_map(|(path, text)| test_modules_in_files(path, text)).collect();
    let mut folders: BTreeMap<String, Lines> = BTreeMap::new();
    for (path, text) in files {
        let folder = path.parent().and_then(|folder| folder.iter().next());
        let folder = folder.map_or(".".into(), |folder| folder.to_string_lossy().into_owned());
        let lines = folders.entry(folder).or_default();
        let all = text.lines().count();
        let tests = match is_test_file(path, &test_modules) {
            true => all,
            false => lines_of_test_modules(text),
        };
        lines.tests += tests;
        lines.code += all - tests;
    }
    folders
}

fn is_test_file(path: &Path, test_modules: &[PathBuf]) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.iter().any(|part| part == "tests")
        || stem == "tests"
        || stem.ends_with("_tests")
        || test_modules.iter().any(|module| path.with_extension("").starts_with(module))
}

/// Returns the test-only modules that a file declares and that have their own files, as paths without extension.
fn test_modules_in_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let folder = match path
        .file_name()
        .is_some_and(|name| name == "mod.rs" || name == "lib.rs" || name == "main.rs")
    {
        true => path.parent().map(Path::to_owned).unwrap_or_default(),
        false => path.with_extension(""),
    };
    let module = |(attribute, next): (&str, &str)| {
        let name = next.trim().strip_suffix(';')?.rsplit_once("mod ")?.1;
        attribute.starts_with("#[cfg(test)]").then(|| folder.join(name))
    };
    text.lines().zip(text.lines().skip(1)).filter_map(module).collect()
}

/// Returns how many lines of a file are test modules: from the attribute to the brace that closes the module.
fn lines_of_test_modules(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_attribute = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        if is_attribute && lines.peek().is_some_and(|next| next.contains("mod ") && next.ends_with('{')) {
            count += 2 + lines.by_ref().take_while(|line| *line != "}").count();
        }
    }
    count
}

/// Returns a table in Markdown, and a sentence for each folder that exceeds its budget.
fn compare(lines: &BTreeMap<String, Lines>, budgets: &Budgets) -> (String, Vec<String>) {
    let mut table = "| Folder | Lines | Budget | Lines of tests |\n|---|---|---|---|\n".to_owned();
    let mut above = Vec::new();
    for (folder, Lines { code, tests }) in lines {
        let allowed = budgets.of(folder);
        table += &format!("| {folder} | {code} | {allowed} | {tests} |\n");
        if *code > allowed {
            above.push(format!("{folder} has {code} lines, its budget is {allowed}"));
        }
    }
    (table, above)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        list.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
    }

    #[test]
    fn test_lines_are_counted_separately() {
        let counted = count(&files(&[
            ("build.rs", "fn main() {}\n"),
            ("a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod formula;\nmod semantics;\n"),
            ("a/src/formula/mod.rs", "1\n2\n"),
            ("a/src/formula.cu", "1\n"),
            ("a/src/semantics.rs", "1\n"),
            ("a/src/b.rs", "fn b() {}\n\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\nfn d() {}\n"),
            ("a/src/pool_tests.rs", "1\n"),
            ("a/tests/all.rs", "1\n2\n3\n"),
        ]));
        let expected = [(".", 1, 0), ("a", 4 + 1 + 3, 2 + 1 + 4 + 1 + 3)];
        let expected = expected.map(|(folder, code, tests)| (folder.to_owned(), Lines { code, tests }));
        assert_eq!(counted, BTreeMap::from(expected));
    }

    #[test]
    fn a_folder_above_its_budget_is_reported() {
        let lines = count(&files(&[("a/src/lib.rs", "1\n2\n"), ("b/src/lib.rs", "1\n")]));
        let budget = Budgets::parse("a = 2\nb = 1\n").expect("a budget");
        assert_eq!(compare(&lines, &budget).1, [""; 0]);
        let lines = count(&files(&[("a/src/lib.rs", "1\n2\n3\n"), ("c/src/lib.rs", "1\n")]));
        let (table, above) = compare(&lines, &budget);
        assert!(table.contains("| a | 3 | 2 | 0 |"), "{table}");
        assert_eq!(above, ["a has 3 lines, its budget is 2", "c has 1 lines, its budget is 0"]);
        assert!(Budgets::parse("a: 3").is_err() && Budgets::parse("a = \"many\"").is_err());
    }

    #[test]
    fn lowering_is_automatic_and_raising_needs_a_reason() {
        let current =
            count(&files(&[("a/src/lib.rs", "1\n2\n"), ("b/src/lib.rs", "1\n"), ("c/lib.rs", "1\n")]));
        let mut budgets = Budgets::parse("a = 1\nb = 9\ngone = 3\n").expect("a budget");
        budgets.lower(&current);
        assert_eq!(budgets, Budgets::parse("a = 1\nb = 1\n").expect("a budget"));
        assert!(budgets.raise(&current, "b", "why").is_err_and(|error| error.to_string().contains("within")));
        assert!(budgets.raise(&current, "a", " ").is_err() && budgets.raise(&current, "d", "why").is_err());
        budgets.raise(&current, "a", "a second line").expect("raised");
        budgets.raise(&current, "c", "it came").expect("raised");
        let text = toml::to_string(&budgets).expect("text");
        assert!(text.contains("because = \"a second line\""), "{text}");
        assert_eq!(Budgets::parse(&text).expect("its own text"), budgets);
        assert_eq!(compare(&current, &budgets).1, [""; 0]);
    }
}
