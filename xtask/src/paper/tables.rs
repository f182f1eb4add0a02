//! Writes the model's tables in Markdown.
use std::collections::HashMap;
use std::fmt::Write;

use super::counts::{Case, Kernel, Run};
use super::model::{ASSUMED, Constant, Constants, Gpu};

/// Minimum bytes of a case: smaller ones are dominated by the dispatch.
const MIN_CASE_BYTES: u64 = 1_000_000;

/// Maximum number of waves per vector unit that registers allow, by kernel and architecture.
pub struct Occupancy(HashMap<(String, String), f64>);

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

    /// Returns the waves of a kernel; all that the GPU holds if the table lacks the kernel.
    fn of(&self, kernel: &Kernel, gpu: &Gpu) -> f64 {
        self.0.get(&(kernel.name.clone(), gpu.arch.clone())).copied().unwrap_or(gpu.waves.0)
    }
}

/// Case on a GPU.
struct Row<'a> {
    case: &'a Case,
    /// Microseconds by the model, and those that no launch can go below.
    time: f64,
    bound: f64,
    /// Resource that takes most of the time, and the waves per vector unit of the kernel that takes longest.
    limit: &'static str,
    waves: f64,
}

impl<'a> Row<'a> {
    /// Returns `None` for a case that runs no kernels or moves less than [`MIN_CASE_BYTES`].
    fn of(gpu: &Gpu, case: &'a Case, occupancy: &Occupancy) -> Option<Self> {
        let bytes = case.bytes.filter(|&bytes| bytes >= MIN_CASE_BYTES)?;
        let kernels = case.kernels.iter().map(|kernel| {
            let node = kernel.node(occupancy.of(kernel, gpu));
            let (us, limit) = gpu.time(&node);
            (kernel.launches as f64 * us, limit, gpu.occupancy(&node), node.footprint)
        });
        let kernels: Vec<_> = kernels.collect();
        let &(_, limit, waves, _) = kernels.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let launches: u64 = case.kernels.iter().map(|kernel| kernel.launches).sum();
        let dispatches = launches as f64 * gpu.dispatch_graph.0;
        let busy: f64 = kernels.iter().map(|(us, ..)| us).sum();
        let limit = if dispatches > busy { "dispatch" } else { limit };
        let footprint = kernels.iter().map(|kernel| kernel.3).fold(0., f64::max);
        Some(Self { case, time: dispatches + busy, bound: gpu.bound(bytes as f64, footprint), limit, waves })
    }

    fn over(&self) -> f64 {
        self.time / self.bound
    }

    fn kernels(&self) -> String {
        let names = self.case.kernels.iter().map(|kernel| match kernel.launches {
            1 => format!("`{}`", kernel.name),
            launches => format!("{launches} `{}`", kernel.name),
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

/// Formats with three significant digits, or with all digits before the point.
pub fn rounded(value: f64) -> String {
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Returns the table of constants with their sources.
pub fn constants(constants: &Constants) -> String {
    let names: Vec<&str> = constants.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    let values: Vec<_> = constants.gpus.iter().map(Gpu::constants).collect();
    let mut text = format!("| constant | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for name in values.first().into_iter().flat_map(|first| first.keys()) {
        let cells =
            values.iter().map(|gpu| gpu.get(name).map_or_else(String::new, |c| format!("{} {}", c.0, c.1)));
        let _ = writeln!(text, "| `{name}` | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    let _ = writeln!(text, "\n- **{ASSUMED}**: a guess; nothing was published.");
    for (key, source) in &constants.sources {
        let _ = writeln!(text, "- **{key}**: {source}.");
    }
    text
}

/// Returns the constants of a GPU, each with its source, and the values that a run of the benchmark measured.
pub fn with_measurements(gpu: &Gpu, bench: &serde_json::Value) -> String {
    let rows = bench["results"].as_array();
    let figure = |case: &str, of: &dyn Fn(&serde_json::Value) -> Option<f64>| {
        rows.into_iter().flatten().find(|row| row["case"] == case).and_then(of)
    };
    let us = |row: &serde_json::Value| row["us"].as_f64();
    let measured = [
        ("dispatch_stream", figure("launch_tiny_add", &us)),
        ("memory_rate", figure("device_copy", &|row| Some(row["bytes"].as_f64()? / us(row)? / 1e3))),
    ];
    let mut text = format!(
        "Model constants of {}\n\n| Constant | Value | Source | Measured here |\n|---|---|---|---|\n",
        gpu.name
    );
    for (name, Constant(value, source)) in gpu.constants() {
        let here = measured.iter().find(|(measured, _)| *measured == name).and_then(|(_, figure)| *figure);
        let _ = writeln!(text, "| {name} | {value} | {source} | {} |", here.map_or("-".to_string(), rounded));
    }
    text
}

/// Returns the tables of the cases with the largest times over their bounds, for each GPU.
pub fn worst(runs: &[(&Gpu, &Run)], count: usize, occupancy: &Occupancy) -> String {
    let mut text = String::new();
    for (gpu, run) in runs {
        let rows = run.cases.iter().filter_map(|case| Row::of(gpu, case, occupancy));
        let mut rows: Vec<Row<'_>> = rows.collect();
        rows.sort_by(|a, b| b.over().total_cmp(&a.over()));
        let median = rows.get(rows.len() / 2).map_or(0., Row::over);
        let _ = writeln!(
            text,
            "\n### {} ({}), counted as {} on {}\n\n{} cases of at least 1 MB. The model's time is {median:.2} times the bound in the \
             median case.\n\n| case | model, us | bound, us | model / bound | limit | waves | kernels |\n|---|---|---|---|---|---|---|",
            gpu.name,
            gpu.arch,
            run.processor(),
            run.meta.date,
            rows.len(),
        );
        for row in rows.iter().take(count) {
            let [time, bound] = [row.time, row.bound].map(rounded);
            let _ = writeln!(
                text,
                "| {} | {time} | {bound} | {:.2} | {} | {}/{} | {} |",
                row.case.label(),
                row.over(),
                row.limit,
                row.waves,
                gpu.waves.0,
                row.kernels(),
            );
        }
    }
    text
}
