//! Prints the table: name, measured value, target, and whether the target is met.
use super::measure::{Figure, Setting};

/// Line of the table.
struct Line {
    what: String,
    measured: String,
    target: String,
    met: bool,
}

fn at_most(what: String, unit: &str, value: f64, target: f64) -> Line {
    Line {
        what,
        measured: format!("{value:.2}{unit}"),
        target: format!("<= {target}{unit}"),
        met: value <= target,
    }
}

fn at_least(what: String, unit: &str, value: f64, target: f64) -> Line {
    Line {
        what,
        measured: format!("{value:.2}{unit}"),
        target: format!(">= {target}{unit}"),
        met: value >= target,
    }
}

/// Returns the processor's name from /proc/cpuinfo.
pub fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown host".into(), |(_, name)| name.trim().to_string())
}

/// Prints the table; `all` is the number of threads of the host.
pub fn print(figures: &[Figure], all: usize) {
    let lines: Vec<Line> = figures.iter().flat_map(|figure| lines(figure, figures, all)).collect();
    println!("{:60} {:>14} {:>12}", "what", "measured", "target");
    for Line { what, measured, target, met } in &lines {
        println!("{what:60} {measured:>14} {target:>12}  {}", if *met { "ok" } else { "missed" });
    }
    println!("{} of {} targets met", lines.iter().filter(|line| line.met).count(), lines.len());
}

/// Returns the lines of one figure with their targets, including comparisons with other settings.
fn lines(figure: &Figure, figures: &[Figure], all: usize) -> Vec<Line> {
    let Figure { setting, name: what, arch, seconds, reference } = figure;
    let Setting { threads, check } = *setting;
    let with = |setting: Setting| {
        figures.iter().find(|other| other.setting == setting && other.name == *what && other.arch == *arch)
    };
    let name = |more: &str| format!("{what}, {arch}, threads: {threads}{more}");
    if let Some(check) = check {
        let plain = with(Setting { threads, check: None });
        return plain
            .map(|plain| at_most(name(&format!(", check={check}")), " x", seconds / plain.seconds, 3.0))
            .into_iter()
            .collect();
    }
    let mut lines = match what.as_str() {
        "launch" | "launch and wait" => {
            vec![at_most(name(""), " us", seconds / reference * 1e6, 10.0)]
        }
        // Lane operations of one core.
        "v_add_f32" | "v_fma_f32" if threads == 1 => {
            vec![at_least(name(""), " G/s", reference / seconds / 1e9, 1.5)]
        }
        "v_add_f32" | "v_fma_f32" => vec![],
        what if what.starts_with("MiniLM") => {
            vec![at_most(name(", to CPU"), " x", seconds / reference, 6.0)]
        }
        _ => vec![at_most(
            name(&format!(", to CPU ({:.1} / {:.1} ms)", seconds * 1e3, reference * 1e3)),
            " x",
            seconds / reference,
            12.0,
        )],
    };
    if threads == 1
        && all == 2
        && let Some(two) = with(Setting { threads: 2, check: None })
    {
        lines.push(at_least(
            format!("{what}, {arch}, from 1 to 2 threads"),
            " x",
            seconds / two.seconds,
            1.7,
        ));
    }
    lines
}
