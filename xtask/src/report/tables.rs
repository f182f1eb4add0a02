//! Writes the tables of a report in Markdown.
use std::fmt::Write;

use super::causes::Causes;
use super::runs::{ComparedCase, Merged, Rate, Row, geometric_mean};

/// Number of cases in the list of those that are slowest relative to PyTorch.
const WORST_CASES: usize = 25;

/// Returns the report: machine, geometric means, worst cases, and every case by group.
pub fn markdown(merged: &Merged, causes: &Causes) -> String {
    let cases = merged.cases();
    let mut text = String::new();
    let note = merged.note().map_or(String::new(), |note| format!(": {note}"));
    let _ = writeln!(text, "## Measured on {}{note}\n", merged.ours.meta.gpu);
    for run in merged.runs() {
        let meta = &run.meta;
        let versions: Vec<String> = meta.versions.iter().filter_map(version).collect();
        let driver = if meta.driver == "-" { String::new() } else { format!(", driver {}", meta.driver) };
        let _ = writeln!(
            text,
            "- {}: {}, {}{driver}, {} cases, {}",
            device_name(&meta.device),
            meta.date,
            meta.arch,
            run.results.len(),
            versions.join(", ")
        );
    }
    text += "\nTimes are in microseconds per operation. If `ours / PyTorch` is above 1, PyTorch is faster. Rates are those of \
             our run: the minimum bytes to move, or the floating-point operations, per second. The percentage is relative \
             to the highest rate in any case of any run (for FLOP/s: of the same dtype).\n";
    for other in [&merged.torch, &merged.cuda].into_iter().flatten() {
        let device = &other.meta.device;
        let _ =
            writeln!(text, "\n![Our time / time of {}](performance/ratio-{device}.svg)", device_name(device));
    }
    text += "\n![Bandwidth of an addition by size](performance/bandwidth.svg)\n\n";
    means(&mut text, &cases);
    worst(&mut text, &cases, causes);
    let best = Best::of(merged);
    for group in groups(&cases) {
        group_table(&mut text, group, &cases, &best);
    }
    text
}

/// Returns the groups in the order of their first cases.
pub fn groups<'a>(cases: &'a [ComparedCase<'_>]) -> Vec<&'a str> {
    let mut groups: Vec<&str> = Vec::new();
    for case in cases {
        if !groups.contains(&case.ours.group.as_str()) {
            groups.push(&case.ours.group);
        }
    }
    groups
}

fn means(text: &mut String, cases: &[ComparedCase<'_>]) {
    *text += "### Geometric means\n\n| group | ours / PyTorch | ours / Candle-CUDA | cases | above 2 x PyTorch |\n\
              |---|---|---|---|---|\n";
    let mut line = |name: &str, is_included: &dyn Fn(&&ComparedCase<'_>) -> bool| {
        let chosen = || cases.iter().filter(is_included);
        let mean =
            |mean: Option<(f64, usize)>| mean.map_or("-".to_string(), |(mean, _)| format!("{mean:.2}"));
        let slow = chosen().filter(|case| case.to_torch().is_some_and(|ratio| ratio > 2.)).count();
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {slow} |",
            mean(geometric_mean(chosen().filter_map(ComparedCase::to_torch))),
            mean(geometric_mean(chosen().filter_map(ComparedCase::to_cuda))),
            chosen().count(),
        );
    };
    line("**all**", &|_| true);
    for group in groups(cases) {
        line(group, &|case| case.ours.group == group);
    }
    *text += "\n";
}

fn worst(text: &mut String, cases: &[ComparedCase<'_>], causes: &Causes) {
    let mut by_ratio: Vec<(f64, &ComparedCase<'_>)> =
        cases.iter().filter_map(|case| Some((case.to_torch()?, case))).collect();
    by_ratio.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    if by_ratio.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "### Slowest cases relative to PyTorch\n\n| case | ours, us | PyTorch, us | ours / PyTorch | cause |\n|---|---|---|---|---|"
    );
    for (ratio, case) in by_ratio.iter().take(WORST_CASES) {
        let label = case.ours.label();
        let cause = causes.of(&label).unwrap_or("not investigated");
        let torch = case.torch.map_or(String::new(), |torch| micros(torch.us));
        let _ = writeln!(text, "| {label} | {} | {torch} | {ratio:.1} | {cause} |", micros(case.ours.us));
    }
    *text += "\n";
}

fn group_table(text: &mut String, group: &str, cases: &[ComparedCase<'_>], best: &Best) {
    let _ = writeln!(
        text,
        "### {}\n\n| case | ours, us | host, us | Candle-CUDA, us | PyTorch, us | ours / CUDA | ours / PyTorch | rate | of best \
         rate |\n|---|---|---|---|---|---|---|---|---|",
        capitalised(group)
    );
    for case in cases.iter().filter(|case| case.ours.group == group) {
        let ratio = |ratio: Option<f64>| ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
        let (rate, share) = match case.ours.rate() {
            None => ("-".to_string(), "-".to_string()),
            Some(Rate::GigaBytes(rate)) => (format!("{} GB/s", significant(rate)), best.share(case.ours)),
            Some(Rate::TeraFlops(rate)) => (format!("{} TFLOP/s", significant(rate)), best.share(case.ours)),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {rate} | {share} |",
            case.ours.label(),
            micros(case.ours.us),
            case.ours.host_us.map_or("-".to_string(), micros),
            case.cuda.map_or("-".to_string(), with_others),
            case.torch.map_or("-".to_string(), with_others),
            ratio(case.to_cuda()),
            ratio(case.to_torch()),
        );
    }
    *text += "\n";
}

/// Highest rates of all runs.
struct Best {
    giga_bytes: f64,
    /// Highest TFLOP/s by dtype.
    tera_flops: Vec<(String, f64)>,
}

impl Best {
    fn of(merged: &Merged) -> Self {
        let mut best = Self { giga_bytes: 0., tera_flops: Vec::new() };
        for row in merged.runs().flat_map(|run| &run.results) {
            match row.rate() {
                Some(Rate::GigaBytes(rate)) => best.giga_bytes = best.giga_bytes.max(rate),
                Some(Rate::TeraFlops(rate)) => {
                    match best.tera_flops.iter_mut().find(|(dtype, _)| *dtype == row.dtype) {
                        Some((_, known)) => *known = known.max(rate),
                        None => best.tera_flops.push((row.dtype.clone(), rate)),
                    }
                }
                None => {}
            }
        }
        best
    }

    fn share(&self, row: &Row) -> String {
        let share = match row.rate() {
            Some(Rate::GigaBytes(rate)) => Some(rate / self.giga_bytes),
            Some(Rate::TeraFlops(rate)) => {
                self.tera_flops.iter().find(|(dtype, _)| *dtype == row.dtype).map(|(_, best)| rate / best)
            }
            None => None,
        };
        share.map_or("-".to_string(), |share| format!("{:.0}%", 100. * share))
    }
}

/// Formats the time, followed by the times of alternative implementations.
fn with_others(row: &Row) -> String {
    let mut text = micros(row.us);
    for (field, value) in &row.others {
        if let (Some(name), Some(us)) = (field.strip_suffix("_us"), value.as_f64()) {
            let _ = write!(text, "; {name} {}", micros(us));
        }
    }
    text
}

fn version((name, value): (&String, &serde_json::Value)) -> Option<String> {
    match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(format!("{name} {text}")),
        other => Some(format!("{name} {other}")),
    }
}

pub fn device_name(device: &str) -> &str {
    match device {
        "rocm" => "ours",
        "cuda" => "Candle's CUDA backend",
        "torch" => "PyTorch",
        other => other,
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn micros(us: f64) -> String {
    significant(us)
}

/// Formats with three significant digits, or with all digits before the point.
fn significant(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::runs::tests::run_of;
    use super::*;

    fn report() -> String {
        let ours = [
            ("elementwise", "add", 6., Some(12_000), None),
            ("elementwise", "exp", 2., Some(8_000), None),
            ("matmul", "matmul", 100., None, Some(500_000_000)),
        ];
        let cuda = [
            ("elementwise", "add", 12., None, None),
            ("elementwise", "exp", 1., None, None),
            ("matmul", "matmul", 100., None, None),
        ];
        let torch = [
            ("elementwise", "add", 3., Some(12_000), None),
            ("matmul", "matmul", 50., None, Some(500_000_000)),
        ];
        let runs = vec![run_of("rocm", &ours), run_of("cuda", &cuda), run_of("torch", &torch)];
        let causes = Causes::parse("\"add\" = \"an element a thread\"\n").unwrap();
        markdown(&Merged::of(runs).unwrap(), &causes)
    }

    #[test]
    fn means_are_given_per_group_and_for_all_cases() {
        let text = report();
        // Ratios to PyTorch: 2, 2; ratios to CUDA: 0.5, 2, 1.
        assert!(text.contains("| **all** | 2.00 | 1.00 | 3 | 0 |"), "{text}");
        assert!(text.contains("| elementwise | 2.00 | 1.00 | 2 | 0 |"), "{text}");
        assert!(text.contains("| matmul | 2.00 | 1.00 | 1 | 0 |"), "{text}");
    }

    #[test]
    fn a_case_has_ratios_and_its_share_of_the_best_rate() {
        let text = report();
        let add = "| add f32 4x4 | 6.00 | - | 12.0 | 3.00 | 0.50 | 2.00 | 2.00 GB/s | 50% |";
        assert!(text.contains(add), "{text}");
        let exp = "| exp f32 4x4 | 2.00 | - | 1.00 | - | 2.00 | - | 4.00 GB/s | 100% |";
        assert!(text.contains(exp), "{text}");
        let matmul = "| matmul f32 4x4 | 100 | - | 100 | 50.0 | 1.00 | 2.00 | 5.00 TFLOP/s | 50% |";
        assert!(text.contains(matmul), "{text}");
    }

    #[test]
    fn worst_cases_have_causes_and_the_heading_has_the_note() {
        let text = report();
        assert!(text.starts_with("## Measured on NVIDIA H200: no AMD figure\n"), "{text}");
        assert!(text.contains("| add f32 4x4 | 6.00 | 3.00 | 2.0 | an element a thread |"), "{text}");
        assert!(text.contains("| matmul f32 4x4 | 100 | 50.0 | 2.0 | not investigated |"), "{text}");
    }
}
