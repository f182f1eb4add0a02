//! The committed table of each kernel's resources, and its comparison with a build.
//!
//! The table has a line per kernel and a column per target; a cell contains the figures of [`FIGURES`], joined by `/`.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::bindings::kernels_of;
use crate::contract::families;
use crate::resources::{KernelResources, ResourceTable};

/// Targets of the table: one of each supported GPU family.
pub const TARGETS: [&str; 9] =
    ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201"];

/// Names of the figures, in order.
pub const FIGURES: &str = "vgprs/agprs/sgprs/lds/scratch/spills/waves";

/// The figures of a kernel on a target, in the order of [`FIGURES`].
type Figures = [u32; 7];
const SCRATCH: usize = 4;
const SPILLS: usize = 5;
const WAVES: usize = 6;

/// Figures by kernel and target.
type Table = BTreeMap<(String, String), Figures>;

/// Result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Unacceptable differences, one line each with the old and the new figures.
    pub failures: Vec<String>,
    /// Number of kernels whose figures differ, without being worse, because of another compiler.
    pub tolerated: usize,
}

/// Beginning of the lines with the hash of a target's inputs.
const INPUTS: &str = "# inputs of ";

/// Returns the text of the committed table for a build, which must have all of [`TARGETS`]; of other targets, only the hash
/// of their inputs is recorded.
///
/// # Errors
/// A message that names the missing target.
pub fn render(
    compiler: &str,
    inputs: &BTreeMap<String, String>,
    resources: &ResourceTable,
) -> Result<String, String> {
    let table = figures(resources);
    let mut text = format!(
        "# Resource use of each kernel on each target: {FIGURES}. Updated by cargo xtask kernels --write-table.\n\
         # compiler: {compiler}\n"
    );
    // Writing to a String cannot fail.
    let _ = inputs.iter().try_for_each(|(target, hash)| writeln!(text, "{INPUTS}{target}: {hash}"));
    let _ = writeln!(text, "kernel\t{}", TARGETS.join("\t"));
    for kernel in families().iter().flat_map(kernels_of) {
        text.push_str(&kernel.name);
        for target in TARGETS {
            let figures = table.get(&(kernel.name.clone(), target.to_owned())).ok_or_else(|| {
                format!("the table needs {}: {target} has no {}", TARGETS.join(","), kernel.name)
            })?;
            let _ = write!(text, "\t{}", joined(figures));
        }
        text.push('\n');
    }
    Ok(text)
}

/// Compares a build with the committed table, on the targets that both have.
///
/// More spills, more scratch or fewer waves are failures, and so are kernels that only one side has. If the compiler is that
/// of the table, any other difference is a failure, too.
///
/// # Errors
/// A message that names the line if `committed` cannot be parsed.
pub fn compare(committed: &str, compiler: &str, resources: &ResourceTable) -> Result<Comparison, String> {
    let (made_by, old) = parse(committed)?;
    let new = figures(resources);
    let built: Vec<&String> = resources.0.iter().map(|row| &row.target).collect();
    let mut comparison = Comparison::default();
    for ((kernel, target), old) in old.iter().filter(|((_, target), _)| built.contains(&target)) {
        let line = |new: &str| format!("{kernel} on {target}: was {}, is {new} ({FIGURES})", joined(old));
        match new.get(&(kernel.clone(), target.clone())) {
            None => comparison.failures.push(line("missing")),
            Some(new) if new == old => {}
            Some(new) if is_worse(old, new) || made_by == compiler => {
                comparison.failures.push(line(&joined(new)))
            }
            Some(_) => comparison.tolerated += 1,
        }
    }
    for ((kernel, target), new) in new.iter().filter(|(place, _)| !old.contains_key(place)) {
        let new = joined(new);
        comparison.failures.push(format!("{kernel} on {target}: not in the table, is {new} ({FIGURES})"));
    }
    Ok(comparison)
}

/// Returns true if the committed table was made from these inputs of a target, so that a build would give the same kernels.
pub fn is_recorded(committed: &str, target: &str, hash: &str) -> bool {
    let mut recorded = committed.lines().filter_map(|line| line.strip_prefix(INPUTS)?.split_once(": "));
    recorded.any(|recorded| recorded == (target, hash))
}

fn is_worse(old: &Figures, new: &Figures) -> bool {
    new[SPILLS] > old[SPILLS] || new[SCRATCH] > old[SCRATCH] || new[WAVES] < old[WAVES]
}

/// Parses the compiler and the figures of a committed table.
fn parse(text: &str) -> Result<(&str, Table), String> {
    let compiler = text.lines().find_map(|line| line.strip_prefix("# compiler: ")).unwrap_or_default();
    let mut rows = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let (_, columns) = rows.next().ok_or("the resource table is empty")?;
    let targets: Vec<&str> = columns.split('\t').skip(1).collect();
    let mut table = Table::new();
    for (number, line) in rows {
        let wrong = || format!("line {} of the resource table is not a row: {line}", number + 1);
        let mut cells = line.split('\t');
        let kernel = cells.next().ok_or_else(wrong)?;
        let cells: Vec<&str> = cells.collect();
        if cells.len() != targets.len() {
            return Err(wrong());
        }
        for (target, cell) in targets.iter().zip(cells) {
            let numbers: Result<Vec<u32>, _> = cell.split('/').map(str::parse).collect();
            let figures =
                numbers.ok().and_then(|numbers| Figures::try_from(numbers).ok()).ok_or_else(wrong)?;
            table.insert((kernel.to_owned(), (*target).to_owned()), figures);
        }
    }
    Ok((compiler, table))
}

fn figures(resources: &ResourceTable) -> Table {
    let row = |row: &KernelResources| ((row.kernel.name.clone(), row.target.clone()), row.figures());
    resources.0.iter().filter(|row| TARGETS.contains(&row.target.as_str())).map(row).collect()
}

fn joined(figures: &Figures) -> String {
    figures.map(|figure| figure.to_string()).join("/")
}

#[cfg(test)]
mod tests {
    use amdgpu_code_object::KernelMetadata;

    use super::*;

    /// Returns a build of all kernels for all targets, each with the same figures.
    fn build() -> ResourceTable {
        let kernel = |name: String| KernelMetadata {
            name,
            vgprs: 20,
            agprs: 0,
            sgprs: 30,
            vgpr_spills: 0,
            sgpr_spills: 0,
            lds: 64,
            scratch: 0,
            arguments: 0,
            wave_size: 32,
            max_workgroup: 1024,
            explicit: Vec::new(),
        };
        let row = |name: &str, target: &str| KernelResources {
            module: String::new(),
            target: target.to_owned(),
            kernel: kernel(name.to_owned()),
            max_waves: 16,
        };
        let kernels: Vec<_> = families().iter().flat_map(kernels_of).collect();
        let rows = kernels.iter().flat_map(|kernel| TARGETS.map(|target| row(&kernel.name, target)));
        ResourceTable(rows.collect())
    }

    fn inputs() -> BTreeMap<String, String> {
        [("gfx90a".to_owned(), "00ff".to_owned())].into()
    }

    fn compared(compiler: &str, change: impl Fn(&mut KernelResources)) -> Comparison {
        let table = render("clang 22", &inputs(), &build()).unwrap();
        let mut resources = build();
        let row = resources.0.iter_mut().find(|row| row.kernel.name == "uexp_f32" && row.target == "gfx1100");
        change(row.unwrap());
        compare(&table, compiler, &resources).unwrap()
    }

    #[test]
    fn a_build_agrees_with_its_own_table() {
        assert_eq!(compared("clang 22", |_| {}), Comparison::default());
        let table = render("clang 22", &inputs(), &build()).unwrap();
        assert!(table.lines().any(|line| line.starts_with("uexp_f32\t20/0/30/64/0/0/16\t")), "{table}");
    }

    #[test]
    fn the_inputs_of_a_target_are_recorded() {
        let table = render("clang 22", &inputs(), &build()).unwrap();
        assert!(is_recorded(&table, "gfx90a", "00ff"), "{table:.300}");
        assert!(!is_recorded(&table, "gfx90a", "00fe"));
        assert!(!is_recorded(&table, "gfx942", "00ff"));
    }

    #[test]
    fn worse_figures_fail_with_any_compiler() {
        type Change = fn(&mut KernelResources);
        let worse: [(Change, &str); 3] = [
            (|row| row.kernel.sgpr_spills = 2, "20/0/30/64/0/2/16"),
            (|row| row.kernel.scratch = 8, "20/0/30/64/8/0/16"),
            (|row| row.max_waves = 12, "20/0/30/64/0/0/12"),
        ];
        for (change, new) in worse {
            for compiler in ["clang 22", "clang 23"] {
                let comparison = compared(compiler, change);
                let wanted = format!("uexp_f32 on gfx1100: was 20/0/30/64/0/0/16, is {new} ({FIGURES})");
                assert_eq!(comparison.failures, [wanted]);
            }
        }
    }

    #[test]
    fn other_differences_fail_with_the_same_compiler_only() {
        let change = |row: &mut KernelResources| row.kernel.vgprs = 19;
        assert_eq!(compared("clang 22", change).failures.len(), 1);
        assert_eq!(compared("clang 23", change), Comparison { failures: Vec::new(), tolerated: 1 });
    }

    #[test]
    fn kernels_that_only_one_side_has_fail() {
        let comparison = compared("clang 23", |row| row.kernel.name = "uexp_f33".to_owned());
        assert_eq!(comparison.failures.len(), 2, "{comparison:?}");
        assert!(comparison.failures[0].contains("uexp_f32 on gfx1100: was 20/0/30/64/0/0/16, is missing"));
        assert!(comparison.failures[1].contains("uexp_f33 on gfx1100: not in the table"));
    }

    #[test]
    fn targets_that_were_not_built_are_not_compared() {
        let table = render("clang 22", &inputs(), &build()).unwrap();
        let mut one = build();
        one.0.retain(|row| row.target == "gfx90a");
        assert_eq!(compare(&table, "clang 22", &one), Ok(Comparison::default()));
        assert!(render("clang 22", &inputs(), &one).unwrap_err().contains("gfx908"));
    }

    #[test]
    fn a_damaged_table_is_an_error_with_its_line() {
        let error = compare("# compiler: x\nkernel\tgfx90a\nuexp_f32\t1/2/3\n", "x", &build()).unwrap_err();
        assert!(error.contains("line 3"), "{error}");
    }
}
