//! Writes the model's tables in Markdown.
use std::collections::HashMap;
use std::fmt::Write;

use super::counts::{Case, Run};
use super::model::{CHIPS, Chip, Cost, LINE, bytes};

/// Maximum ratio of the bytes moved to the minimum before a case is marked.
const MAX_MOVED_RATIO: f64 = 1.05;
/// Minimum bytes of a case: smaller ones are dominated by launch overhead, which the model ignores.
const MIN_CASE_BYTES: u64 = 1_000_000;

/// Maximum number of waves per vector unit that registers allow, by kernel and architecture.
pub struct Occupancy(HashMap<(String, String), u64>);

impl Occupancy {
    /// Parses the table of `cargo xtask kernels`: a header with architectures, then a line per kernel, with
    /// the number of waves last in each cell.
    pub fn parse(table: &str) -> Self {
        let mut lines = table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t'));
        let archs: Vec<&str> = lines.next().map(|line| line.skip(1).collect()).unwrap_or_default();
        let mut waves = HashMap::new();
        for mut line in lines {
            let Some(kernel) = line.next() else { continue };
            for (arch, cell) in archs.iter().zip(line) {
                if let Some(Ok(most)) = cell.rsplit('/').next().map(str::parse) {
                    waves.insert((kernel.to_string(), arch.to_string()), most);
                }
            }
        }
        Self(waves)
    }

    /// Returns the lowest number of a case's kernels; `None` if the table lacks a kernel.
    fn of(&self, case: &Case, chip: &Chip) -> Option<u64> {
        let waves = case.kernels.iter().map(|kernel| {
            let by_registers = self.0.get(&(kernel.name.clone(), chip.arch.to_string()))?;
            Some(chip.occupancy(kernel, *by_registers))
        });
        waves.collect::<Option<Vec<_>>>()?.into_iter().min()
    }
}

struct Row<'a> {
    chip: &'a Chip,
    case: &'a Case,
    cost: Cost,
    minimum_bytes: u64,
    /// Ratios to the minimum bytes: bytes moved by memory, lines of all accesses, bytes requested by lanes.
    moved: f64,
    accessed: f64,
    requested: f64,
    waves: Option<u64>,
}

impl<'a> Row<'a> {
    /// Returns `None` for a case that runs no kernels or moves less than [`MIN_CASE_BYTES`].
    fn of(chip: &'a Chip, case: &'a Case, occupancy: &Occupancy) -> Option<Self> {
        let minimum_bytes =
            case.bytes.filter(|&bytes| bytes >= MIN_CASE_BYTES && !case.kernels.is_empty())?;
        let over = |bytes: u64| bytes as f64 / minimum_bytes as f64;
        Some(Self {
            chip,
            case,
            cost: chip.cost(case),
            minimum_bytes,
            moved: over(bytes(case)),
            accessed: over(LINE * case.sum(|kernel| kernel.coalescing.lines_128)),
            requested: over(case.sum(|kernel| kernel.coalescing.bytes)),
            waves: occupancy.of(case, chip),
        })
    }

    fn moves_too_much(&self) -> bool {
        self.moved > MAX_MOVED_RATIO
    }

    fn is_issue_bound(&self) -> bool {
        self.cost.issue > self.cost.memory
    }

    /// Returns true if lines are accessed repeatedly, so that caches have to serve them.
    fn rereads_lines(&self) -> bool {
        self.accessed > MAX_MOVED_RATIO
    }

    /// Returns the larger of the two times, and the resource that it is spent on.
    fn time(&self) -> (f64, &'static str) {
        match self.cost {
            Cost { memory, issue, kind } if issue > memory => (issue, kind),
            Cost { memory, .. } => (memory, "memory"),
        }
    }

    /// Returns instructions per lane and element: vector, scalar, and those that access memory or LDS.
    fn instructions(&self) -> [f64; 3] {
        let lanes = self.case.kernels.first().map_or(0, |kernel| kernel.resources.wave_size);
        let sums = [
            self.case.sum(|kernel| kernel.instructions.vector),
            self.case.sum(|kernel| {
                let of = &kernel.instructions;
                of.scalar + of.scalar_memory + of.flow
            }),
            self.case.sum(|kernel| {
                let of = &kernel.instructions;
                of.global_memory + of.lds + of.scratch
            }),
        ];
        sums.map(|sum| (sum * lanes) as f64 / self.case.elements.max(1) as f64)
    }

    /// Returns the letters of the limits that the case exceeds.
    fn marks(&self) -> String {
        let missed = [
            (" **B**", self.moves_too_much()),
            (" **I**", self.is_issue_bound()),
            (" L", self.rereads_lines()),
        ];
        missed.into_iter().filter(|(_, is_missed)| *is_missed).map(|(letter, _)| letter).collect()
    }

    fn kernels(&self) -> String {
        let names = self.case.kernels.iter().map(|kernel| match kernel.launches {
            1 => format!("`{}`", kernel.name),
            launches => format!("{launches} `{}`", kernel.name),
        });
        names.collect::<Vec<_>>().join(", ")
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        let steps = self.case.sum(|kernel| kernel.lds.steps);
        let conflicts = self.case.sum(|kernel| kernel.lds.bank_conflicts);
        let accesses = self.case.sum(|kernel| kernel.coalescing.accesses);
        let lines = self.case.sum(|kernel| kernel.coalescing.lines_128);
        let quotient = |a: u64, b: u64| if b == 0 { "-".to_string() } else { rounded(a as f64 / b as f64) };
        let [vector, scalar, memory] = self.instructions().map(rounded);
        let (time, bound) = self.time();
        let waves = self.waves.map_or("?".to_string(), |waves| waves.to_string());
        [
            format!("{}{}", self.case.label(), self.marks()),
            format!("{:.1}", self.minimum_bytes as f64 / 1e6),
            format!("{}, {}, {}", rounded(self.moved), rounded(self.accessed), rounded(self.requested)),
            quotient(lines, accesses),
            quotient(conflicts, steps),
            format!("{waves}/{}", self.chip.waves),
            format!("{vector}, {scalar}, {memory}"),
            rounded(self.cost.memory),
            rounded(self.cost.issue),
            format!("{} {bound}", rounded(time)),
        ]
    }
}

/// Formats with three significant digits, or with all digits before the point.
fn rounded(value: f64) -> String {
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

const COLUMNS: [&str; 10] = [
    "case",
    "minimum MB",
    "bytes / minimum: moved, all accesses, requested",
    "lines per access",
    "LDS conflicts per step",
    "waves",
    "instructions per element: vector, scalar, memory",
    "memory, us",
    "issue, us",
    "bound, us",
];

pub struct Paper {
    pub text: String,
    pub summary: String,
}

/// Returns the sections of all runs, with the groups in the given order.
pub fn markdown(runs: &[(&Chip, Run)], groups: &[&str], occupancy: &Occupancy) -> Paper {
    let mut rows: Vec<Row<'_>> = runs
        .iter()
        .flat_map(|(chip, run)| run.cases.iter().filter_map(|case| Row::of(chip, case, occupancy)))
        .collect();
    rows.sort_by_key(|row| groups.iter().position(|group| *group == row.case.group));
    let mut text = String::from("### Cases above the limits\n\n");
    let count = |missed: &dyn Fn(&Row<'_>) -> bool| rows.iter().filter(|row| missed(row)).count();
    let summary = format!(
        "{} cases of at least 1 MB: {} move more than {MAX_MOVED_RATIO} times the minimum bytes (B), {} have an issue \
         time above the memory time (I), {} access lines repeatedly (L)",
        rows.len(),
        count(&|row| row.moves_too_much()),
        count(&|row| row.is_issue_bound()),
        count(&|row| row.rereads_lines()),
    );
    let _ = writeln!(text, "{summary}.\n");
    text += "| chip | case | bytes moved / minimum | all accesses / minimum | issue time / memory time | kind | kernels |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for row in rows.iter().filter(|row| row.moves_too_much() || row.is_issue_bound()) {
        let bold = |text: String, missed: bool| if missed { format!("**{text}**") } else { text };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.chip.name,
            row.case.label(),
            bold(rounded(row.moved), row.moves_too_much()),
            rounded(row.accessed),
            bold(rounded(row.cost.issue / row.cost.memory), row.is_issue_bound()),
            row.cost.kind,
            row.kernels(),
        );
    }
    for (chip, run) in runs {
        let _ = writeln!(text, "\n### {} ({}), {}\n", chip.name, chip.arch, run.meta.date);
        let _ = writeln!(text, "| {} |\n|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
        let mut group = "";
        for row in rows.iter().filter(|row| row.chip.arch == chip.arch) {
            if row.case.group != group {
                group = &row.case.group;
                let _ = writeln!(text, "| **{group}** |{}", " |".repeat(COLUMNS.len() - 1));
            }
            let _ = writeln!(text, "| {} |", row.cells().join(" | "));
        }
    }
    Paper { text, summary }
}

/// Returns the chip of an architecture; features after a colon are ignored.
pub fn chip_of(arch: &str) -> Option<&'static Chip> {
    let processor = arch.split(':').next().unwrap_or(arch);
    CHIPS.iter().find(|chip| chip.arch == processor)
}
