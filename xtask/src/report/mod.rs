//! `cargo xtask report`: writes tables and plots of benchmark runs, or compares a run with an older one.
mod causes;
mod plots;
mod runs;
mod tables;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::process::root;
use causes::Causes;
use runs::{Merged, Run, geometric_mean};

pub const PAGE: &str = "docs/explanation/performance.md";
const PLOTS: &str = "docs/explanation/performance";
const RESULTS: &str = "benches/results";
const CAUSES: &str = "benches/operations/causes.toml";
/// Markers of the part of the page that is replaced.
const MARKERS: [&str; 2] = ["<!-- begin: cargo xtask report -->", "<!-- end: cargo xtask report -->"];
/// Ratio to the older time above which a case is listed as slower.
const SLOWDOWN_LIMIT: f64 = 1.10;

#[derive(clap::Args)]
pub struct Args {
    /// Runs of `benches/operations` on rocm and cuda, and of its torch.py, all on one machine.
    #[arg(required = true, value_name = "RUN.json")]
    runs: Vec<PathBuf>,
    /// Compare the one given run with this older one and list the slower cases; change no page.
    #[arg(long, value_name = "OLD.json")]
    against: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let runs: Vec<Run> = args.runs.iter().map(|file| Run::read(file)).collect::<Result<_>>()?;
    match (&args.against, runs.as_slice()) {
        (None, _) => write_page(runs),
        (Some(old), [new]) => {
            print!("{}", changes(&Run::read(old)?, new)?);
            Ok(())
        }
        _ => bail!("--against needs exactly one new run, of the same device as the older one"),
    }
}

/// Updates the page and its plots, and stores the runs.
fn write_page(runs: Vec<Run>) -> Result<()> {
    let merged = Merged::of(runs)?;
    let path = |name: &str| root().join(name);
    let read = |name: &str| fs::read_to_string(path(name)).with_context(|| format!("cannot read {name}"));
    let causes = Causes::parse(&read(CAUSES)?).with_context(|| format!("in {CAUSES}"))?;
    let page = replaced(&read(PAGE)?, MARKERS, &tables::markdown(&merged, &causes))?;
    for folder in [PLOTS, RESULTS] {
        fs::create_dir_all(path(folder)).with_context(|| format!("cannot create {folder}"))?;
    }
    plots::draw(&merged, &path(PLOTS))?;
    for run in merged.runs() {
        let kept = path(RESULTS).join(run.file_name());
        fs::write(&kept, run.to_json()?).with_context(|| format!("cannot write {}", kept.display()))?;
        println!("stored as {RESULTS}/{}", run.file_name());
    }
    fs::write(path(PAGE), page).with_context(|| format!("cannot write {PAGE}"))?;
    let cases = merged.cases();
    let mean =
        |ratios: Vec<f64>| geometric_mean(ratios).map_or("-".to_string(), |(mean, _)| format!("{mean:.2}"));
    println!(
        "report: {} cases, {} times PyTorch's time, {} times that of Candle's CUDA backend; {PAGE} and {PLOTS} updated",
        cases.len(),
        mean(cases.iter().filter_map(|case| case.to_torch()).collect()),
        mean(cases.iter().filter_map(|case| case.to_cuda()).collect()),
    );
    Ok(())
}

/// Returns `page` with the text between the markers replaced by `report`.
pub fn replaced(page: &str, [begin, end]: [&str; 2], report: &str) -> Result<String> {
    let parts = page.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, after) = parts.with_context(|| format!("{PAGE} lacks the lines `{begin}` and `{end}`"))?;
    Ok(format!("{before}{begin}\n\n{}\n{end}{after}", report.trim_end()))
}

/// Lists the cases that became more than 10% slower, slowest first, and the geometric mean of all ratios.
fn changes(old: &Run, new: &Run) -> Result<String> {
    let describe = |run: &Run| format!("{} on {}, {}", run.meta.device, run.meta.gpu, run.meta.date);
    let same = |field: fn(&Run) -> &str| field(old) == field(new);
    if !same(|run| &run.meta.device) || !same(|run| &run.meta.gpu) || !same(|run| &run.meta.scale) {
        bail!("cannot compare {} with {}: device, GPU or scale differs", describe(new), describe(old));
    }
    let before = old.by_label();
    let mut ratios: Vec<(f64, String)> = Vec::new();
    let mut text = format!("{} against {}\n", describe(new), describe(old));
    for row in &new.results {
        let label = row.label();
        if let Some(old) = before.get(&label) {
            let line = format!("{label}: {:.2} us, was {:.2} us", row.us, old.us);
            ratios.push((row.us / old.us, line));
        }
    }
    ratios.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let slower: Vec<&(f64, String)> = ratios.iter().filter(|(ratio, _)| *ratio > SLOWDOWN_LIMIT).collect();
    slower.iter().for_each(|(ratio, line)| text += &format!("{ratio:.2} times: {line}\n"));
    let now = new.by_label();
    let mut gone: Vec<&String> = before.keys().filter(|label| !now.contains_key(*label)).collect();
    gone.sort();
    gone.iter().for_each(|label| text += &format!("missing: {label}\n"));
    let (mean, count) =
        geometric_mean(ratios.iter().map(|(ratio, _)| *ratio)).context("the runs have no common case")?;
    text += &format!(
        "report: {} of {count} cases more than 10% slower, geometric mean {mean:.3} times\n",
        slower.len()
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::runs::tests::run_of;
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_is_replaced() {
        let [begin, end] = MARKERS;
        let page = format!("# Figures\n{begin}\nold\n{end}\nrest\n");
        let once = replaced(&page, MARKERS, "new\n\n").unwrap();
        assert_eq!(once, format!("# Figures\n{begin}\n\nnew\n{end}\nrest\n"));
        assert_eq!(replaced(&once, MARKERS, "new").unwrap(), once);
        assert!(replaced("# Figures\n", MARKERS, "new").is_err());
        assert!(replaced(&format!("{end}{begin}"), MARKERS, "new").is_err());
    }

    #[test]
    fn cases_that_became_slower_are_listed() {
        let old =
            [("g", "add", 10., None, None), ("g", "exp", 10., None, None), ("g", "log", 8., None, None)];
        let new =
            [("g", "add", 20., None, None), ("g", "exp", 10.5, None, None), ("g", "tanh", 9., None, None)];
        let text = changes(&run_of("rocm", &old), &run_of("rocm", &new)).unwrap();
        assert!(text.contains("2.00 times: add f32 4x4: 20.00 us, was 10.00 us\n"), "{text}");
        assert!(!text.contains("exp f32"), "{text}");
        assert!(text.contains("missing: log f32 4x4\n"), "{text}");
        assert!(
            text.contains("report: 1 of 2 cases more than 10% slower, geometric mean 1.449 times"),
            "{text}"
        );
        assert!(changes(&run_of("rocm", &old), &run_of("torch", &new)).is_err());
    }

    #[test]
    fn the_committed_causes_file_parses() {
        Causes::parse(&fs::read_to_string(root().join(CAUSES)).unwrap()).unwrap();
    }

    #[test]
    fn plots_contain_the_note() {
        let add = |us| ("elementwise", "add", us, Some(12_000), None);
        let runs =
            vec![run_of("rocm", &[add(6.)]), run_of("cuda", &[add(12.)]), run_of("torch", &[add(300.)])];
        let folder = std::env::temp_dir().join(format!("candle-rocm-plots-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        plots::draw(&Merged::of(runs).unwrap(), &folder).unwrap();
        for name in ["ratio-torch.svg", "ratio-cuda.svg", "bandwidth.svg"] {
            let text = fs::read_to_string(folder.join(name)).unwrap();
            assert!(text.contains("no AMD figure") && text.contains("NVIDIA H200"), "{name}: {text}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
