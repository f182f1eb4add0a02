//! `cargo xtask parity`: runs the tests in the tables of model families and file formats.
use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::process::{self, cargo, command, root};
use crate::software_gpu::{self, SoftwareGpu};
use crate::test_programs::{self, run_in_parallel};
use crate::{ci, setup};

/// Page with the tables. Their first column is the family; the others have the names of tests.
const PAGE: &str = "docs/reference/parity.md";
/// Test programs with the folders of their packages. Names of tests begin with that of their program, except for the first.
const PROGRAMS: [(&str, &str); 7] = [
    ("model", "workers/llm-engine"),
    ("embedding", "workers/llm-engine"),
    ("transformer", "workers/sd-worker"),
    ("single_file", "workers/sd-worker"),
    ("controlnet", "workers/sd-worker"),
    ("lora", "workers/sd-worker"),
    ("hires", "workers/sd-worker"),
];
/// Part of the lines in which tests print differences of images.
const DIFFERENCE: &str = " levels";
/// Summary of a program that ran one test.
const PASSED: &str = "test result: ok. 1 passed; 0 failed; 0 ignored";

#[derive(clap::Args)]
pub struct Args {
    /// Rows to run, by their first column; all if none is named.
    #[arg(value_name = "FAMILY")]
    families: Vec<String>,
}

/// One test of a family with files of a format.
#[derive(Debug, PartialEq)]
struct Cell<'a> {
    family: &'a str,
    format: &'a str,
    test: &'a str,
}

impl Cell<'_> {
    /// Returns the program of the test with its package, and the name of the test there.
    fn program(&self) -> ((&'static str, &'static str), &str) {
        let named = self.test.split_once("::").and_then(|(first, test)| {
            let program = PROGRAMS.iter().find(|(name, _)| *name == first)?;
            Some((*program, test))
        });
        named.unwrap_or((PROGRAMS[0], self.test))
    }
}

/// Returns the cells of all tables whose first column is "Family".
fn cells(page: &str) -> Vec<Cell<'_>> {
    let (mut cells, mut formats) = (Vec::new(), Vec::new());
    for line in page.lines().filter(|line| !line.starts_with("|-")) {
        let mut fields = line.split('|').map(str::trim).skip(1);
        match fields.next() {
            None => formats.clear(),
            Some("Family") => formats = fields.collect(),
            Some(family) => cells.extend(formats.iter().zip(fields).flat_map(|(&format, field)| {
                let tests = field.split('`').skip(1).step_by(2);
                tests.map(move |test| Cell { family, format, test })
            })),
        }
    }
    cells
}

/// Runs the tests, prints the result of each cell, and a summary.
///
/// # Errors
/// If there is no such family, or if a test does not exist, is ignored or fails.
pub fn run(args: &Args) -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE)).context(PAGE)?;
    let mut cells = cells(&page);
    for name in &args.families {
        ensure!(cells.iter().any(|cell| cell.family == name), "{PAGE} has no family {name:?}");
    }
    cells.retain(|cell| args.families.is_empty() || args.families.iter().any(|name| name == cell.family));
    ensure!(!cells.is_empty(), "{PAGE} has no table of families");
    setup::ensure(setup::TEST)?;
    let archs = software_gpu::TESTED.join(",");
    let mut build = cargo(&["test", "--quiet", "--no-run"]);
    build.args(ci::FEATURES).args(PROGRAMS.iter().flat_map(|(name, _)| ["--test", name]));
    let program = process::build_programs(build.env("CANDLE_ROCM_ARCHS", &archs))?;
    let tests: BTreeSet<_> = cells.iter().map(Cell::program).collect();
    let tests: Vec<_> = tests.into_iter().collect();
    let passed = run_in_parallel(&tests, |&((name, package), test)| {
        let mut command = command(program(name)?, &[test, "--exact", "--nocapture"]);
        command.envs(test_programs::variables(&archs)).current_dir(root().join(package));
        SoftwareGpu::new(software_gpu::DEFAULT).apply_to(&mut command);
        let begin = Instant::now();
        let (_, output) = test_programs::output(&mut command)?;
        let is_passed = output.contains(PASSED);
        let result = if is_passed { "ok" } else { &output };
        println!("{name}::{test}, {} s: {result}", begin.elapsed().as_secs());
        if is_passed {
            output.lines().filter(|line| line.contains(DIFFERENCE)).for_each(|line| println!("    {line}"));
        }
        Ok(is_passed)
    })?;
    let mut failed = 0;
    for cell in &cells {
        let index = tests.binary_search(&cell.program()).unwrap_or_default();
        failed += usize::from(!passed[index]);
        let result = if passed[index] { "ok" } else { "FAILED" };
        println!("{result:<6} {:<20} {:<24} {}", cell.family, cell.format, cell.test);
    }
    ensure!(failed == 0, "tests of {failed} cells of {PAGE} failed, were ignored or do not exist; see above");
    let families: BTreeSet<_> = cells.iter().map(|cell| cell.family).collect();
    println!("parity: ok families={} cells={} tests={}", families.len(), cells.len(), tests.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_tests_of_families_and_formats() {
        let page = "| A | B |\n|---|---|\n| x | `y` |\n\n| Family | F1 | F2 |\n|---|---|---|\n| One | `a::b` | - |\n\
                    | Two | `embedding::a::b`, `c` | `d` |\n\nText | `e` |\n";
        let cell = |family, format, test| Cell { family, format, test };
        let expected = [
            cell("One", "F1", "a::b"),
            cell("Two", "F1", "embedding::a::b"),
            cell("Two", "F1", "c"),
            cell("Two", "F2", "d"),
        ];
        assert_eq!(cells(page), expected);
        assert_eq!(
            [0, 1].map(|index| expected[index].program()),
            [0, 1].map(|index| (PROGRAMS[index], "a::b"))
        );
    }

    /// Some tests are rows of a macro: `name: ...`.
    #[test]
    fn all_tests_of_the_page_exist() {
        let page = fs::read_to_string(root().join(PAGE)).unwrap();
        let cells = cells(&page);
        assert!(cells.len() > 100, "{}", cells.len());
        for cell in cells {
            let ((program, package), test) = cell.program();
            let (module, name) = test.rsplit_once("::").unwrap_or(("main", test));
            let path = root().join(package).join(format!("tests/{program}/{module}.rs"));
            let source = fs::read_to_string(&path).unwrap();
            let is_defined =
                [format!("fn {name}()"), format!("    {name}: \"")].iter().any(|text| source.contains(text));
            assert!(
                is_defined,
                "{}: there is no test {name}, which {PAGE} names for {}",
                path.display(),
                cell.family
            );
        }
    }
}
