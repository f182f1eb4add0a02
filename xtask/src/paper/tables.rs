//! The model's tables, in markdown.
use std::collections::HashMap;
use std::fmt::Write;

use super::counts::{Case, Run};
use super::model::{CHIPS, Chip, Cost, LINE, bytes};

/// Bytes moved over the least, at most.
const MOST_BYTES: f64 = 1.05;
/// Smaller cases are launches, which the model knows nothing of.
const LARGE: u64 = 1_000_000;

/// Waves that a vector unit holds as far as registers decide, by kernel and architecture.
pub struct Occupancy(HashMap<(String, String), u64>);

impl Occupancy {
    /// Of the table of `cargo xtask kernels`: a line of architectures, then one for each kernel, waves last in a cell.
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

    /// The fewest of a case's kernels; `None` if the table lacks one.
    fn of(&self, case: &Case, chip: &Chip) -> Option<u64> {
        let waves = case.kernels.iter().map(|kernel| {
            let by_registers = self.0.get(&(kernel.name.clone(), chip.arch.to_string()))?;
            Some(chip.occupancy(kernel, *by_registers))
        });
        waves.collect::<Option<Vec<_>>>()?.into_iter().min()
    }
}

/// A case on a chip.
struct Row<'a> {
    chip: &'a Chip,
    case: &'a Case,
    cost: Cost,
    least: u64,
    /// Over the least: bytes that memory moves, bytes of the lines of all accesses, bytes that lanes asked for.
    moved: f64,
    through_caches: f64,
    asked: f64,
    waves: Option<u64>,
}

impl<'a> Row<'a> {
    /// `None` for what runs no kernels, or moves too little.
    fn of(chip: &'a Chip, case: &'a Case, occupancy: &Occupancy) -> Option<Self> {
        let least = case.bytes.filter(|&bytes| bytes >= LARGE && !case.kernels.is_empty())?;
        let over = |bytes: u64| bytes as f64 / least as f64;
        Some(Self {
            chip,
            case,
            cost: chip.cost(case),
            least,
            moved: over(bytes(case)),
            through_caches: over(LINE * case.sum(|kernel| kernel.coalescing.lines_128)),
            asked: over(case.sum(|kernel| kernel.coalescing.bytes)),
            waves: occupancy.of(case, chip),
        })
    }

    fn moves_too_much(&self) -> bool {
        self.moved > MOST_BYTES
    }

    fn issues_too_long(&self) -> bool {
        self.cost.issue > self.cost.memory
    }

    /// Touches lines again, which caches have to serve.
    fn comes_again(&self) -> bool {
        self.through_caches > MOST_BYTES
    }

    /// The larger time, and what it is of.
    fn time(&self) -> (f64, &'static str) {
        match self.cost {
            Cost { memory, issue, kind } if issue > memory => (issue, kind),
            Cost { memory, .. } => (memory, "memory"),
        }
    }

    /// Instructions of one lane for each element: vector, scalar, and those that access memory or LDS.
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

    /// The letters of what is missed.
    fn marks(&self) -> String {
        let missed = [
            (" **B**", self.moves_too_much()),
            (" **I**", self.issues_too_long()),
            (" L", self.comes_again()),
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
        let quotient = |a: u64, b: u64| if b == 0 { "-".to_string() } else { ratio(a as f64 / b as f64) };
        let [vector, scalar, memory] = self.instructions().map(ratio);
        let (time, bound) = self.time();
        let waves = self.waves.map_or("?".to_string(), |waves| waves.to_string());
        [
            format!("{}{}", self.case.label(), self.marks()),
            format!("{:.1}", self.least as f64 / 1e6),
            format!("{}, {}, {}", ratio(self.moved), ratio(self.through_caches), ratio(self.asked)),
            quotient(lines, accesses),
            quotient(conflicts, steps),
            format!("{waves}/{}", self.chip.waves),
            format!("{vector}, {scalar}, {memory}"),
            ratio(self.cost.memory),
            ratio(self.cost.issue),
            format!("{} {bound}", ratio(time)),
        ]
    }
}

/// Three digits, or as many as there are before the point.
fn ratio(value: f64) -> String {
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

const COLUMNS: [&str; 10] = [
    "case",
    "MB, least",
    "bytes over the least: moved, of all accesses, asked for",
    "lines of an access",
    "LDS conflicts of a step",
    "waves",
    "instructions of an element: vector, scalar, memory",
    "memory, us",
    "issue, us",
    "the larger, us",
];

/// The model's table, and its summary.
pub struct Paper {
    pub text: String,
    pub summary: String,
}

/// The sections of all runs, by groups in this order.
pub fn markdown(runs: &[(&Chip, Run)], groups: &[&str], occupancy: &Occupancy) -> Paper {
    let mut rows: Vec<Row<'_>> = runs
        .iter()
        .flat_map(|(chip, run)| run.cases.iter().filter_map(|case| Row::of(chip, case, occupancy)))
        .collect();
    rows.sort_by_key(|row| groups.iter().position(|group| *group == row.case.group));
    let mut text = String::from("### Misses\n\n");
    let count = |missed: &dyn Fn(&Row<'_>) -> bool| rows.iter().filter(|row| missed(row)).count();
    let summary = format!(
        "{} cases of at least 1 MB: {} move more than {MOST_BYTES} times the least bytes (B), {} issue \
         instructions for longer than memory takes (I), {} touch lines again (L)",
        rows.len(),
        count(&|row| row.moves_too_much()),
        count(&|row| row.issues_too_long()),
        count(&|row| row.comes_again()),
    );
    let _ = writeln!(text, "{summary}.\n");
    text += "| chip | case | bytes moved, over the least | of all accesses | issue time, over memory's | of | kernels |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for row in rows.iter().filter(|row| row.moves_too_much() || row.issues_too_long()) {
        let bold = |text: String, missed: bool| if missed { format!("**{text}**") } else { text };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.chip.name,
            row.case.label(),
            bold(ratio(row.moved), row.moves_too_much()),
            ratio(row.through_caches),
            bold(ratio(row.cost.issue / row.cost.memory), row.issues_too_long()),
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

/// The chip that a run is of.
pub fn chip_of(arch: &str) -> Option<&'static Chip> {
    let processor = arch.split(':').next().unwrap_or(arch);
    CHIPS.iter().find(|chip| chip.arch == processor)
}
