//! `cargo xtask paper --check`: compares the model with times that others measured on an MI300A.
//!
//! The times are those of MGPUSim's benchmarks. A benchmark is compared if its bytes, launches and loops follow from its
//! source. Instructions of loops are estimates by hand from that source, rounded to two digits.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::model::{Constants, Gpu, Node};
use super::tables::rounded;
use crate::download;
use crate::process::cache;

const ADDRESS: &str = "https://raw.githubusercontent.com/sarchlab/mgpusim/d01e70d5632a7e3fe47f21b14dc6f6ffdf884e25/gpu_perf_scripts/mi300a.csv";
const SHA256: &str = "5b8f8938bc046d7d364d440d618dc407e634d258d44bfde4379e73c6505c268e";
const GPU: &str = "MI300A";

/// Benchmarks with the same kind of work as kernels of ours.
struct Class {
    name: &'static str,
    counterpart: &'static str,
    benchmarks: &'static [(&'static str, WorkOfSize)],
}

/// Returns the work of a benchmark for the numbers in the name of a size.
type WorkOfSize = fn(&[f64]) -> Work;

struct Work {
    /// One of the launches.
    node: Node,
    launches: f64,
    /// Bytes that the host uploads within the measured time.
    uploaded: f64,
}

const CLASSES: &[Class] = &[
    Class {
        name: "elementwise",
        counterpart: "`arithmetic_f32`, `usimple_f32`",
        benchmarks: &[
            ("vectoradd", |n| stream(n[0], 256., 12., 15.).into()),
            ("relu", |n| stream(n[0], 256., 8., 13.).into()),
        ],
    },
    Class {
        name: "copies",
        counterpart: "`ucopy_i64`",
        benchmarks: &[("memcopy_d2d", |n| stream(n[0] * 65536., 256., 32., 13.).into())],
    },
    Class {
        name: "transposed copies",
        counterpart: "`transpose_u32`",
        benchmarks: &[("matrixtranspose", |n| {
            let node = stream(n[0] * n[0] / 16., 256., 128., 60.);
            Node { lds_steps: 128. * node.waves, lds_bytes: 16384., ..node }.into()
        })],
    },
    Class {
        name: "windows",
        counterpart: "`conv_f32`, `unfold_u32`",
        benchmarks: &[
            ("fir", |n| loops(n[0], 256., 8., n[1], [8., 4.], 4.).into()),
            ("simpleconvolution", |n| loops(n[0] * n[1], 64., 8., n[2] * n[2], [12., 4.], 8.).into()),
            ("im2col", |n| {
                let (positions, taps) = ((n[2] - n[4] + 1.).powi(2), n[4] * n[5]);
                loops(positions, 256., 4. * (taps + 1.), taps, [60., 10.], 8.).into()
            }),
            ("stencil2d", |n| {
                let node = stream(n[0] * n[1] / 16., 64., 128., 460.);
                Node { lds_steps: 324. * node.waves, lds_bytes: 4752., waits: 2., ..node }.into()
            }),
        ],
    },
    Class {
        name: "gathers",
        counterpart: "`take_b4`",
        benchmarks: &[("spmv_csr_scalar", |n| {
            let per_row = n[2] / n[0];
            let node = loops(n[0], 256., 16. + 8. * per_row, per_row, [9., 5.], 12.);
            // Each lane reads a separate row, so that an access touches up to a line per lane.
            let lines = 64. * 128. * (per_row / 32.).min(1.);
            let (accesses, waits) = (3. * per_row * node.waves, 2. * per_row + 1.);
            Node { accesses, waits, accessed: 2. * lines * per_row * node.waves, ..node }.into()
        })],
    },
    Class {
        name: "products in f32",
        counterpart: "`conv_tiles_64_f32`",
        benchmarks: &[("matrixmultiplication", |n| {
            // Each thread sums 4 x 4 elements, in steps of four products with eight loads of 16 bytes.
            let node = loops(n[0] * n[0] / 16., 64., 192., n[0] / 4., [74., 6.], 128.);
            Node { occupancy: 4., ..node }.into()
        })],
    },
    Class {
        name: "chains of launches",
        counterpart: "a step of a model without graphs",
        benchmarks: &[
            ("bitonicsort", |n| {
                let stages = n[0].log2();
                passes(stages * (stages + 1.) / 2., 4. * n[0], stream(n[0] / 2., 64., 16., 40.))
            }),
            ("fastwalshtransform", |n| passes(n[0].log2(), 4. * n[0], stream(n[0] / 2., 256., 16., 40.))),
            ("floydwarshall", |n| passes(n[0], 8. * n[0] * n[0], stream(n[0] * n[0], 64., 8., 25.))),
        ],
    },
];

impl From<Node> for Work {
    fn from(node: Node) -> Self {
        Self { node, launches: 1., uploaded: 0. }
    }
}

/// Returns a kernel whose threads each move `bytes` once, with this many instructions.
fn stream(threads: f64, group: f64, bytes: f64, instructions: f64) -> Node {
    let waves = (threads / 64.).ceil();
    let (footprint, requested) = (threads * bytes, threads * bytes);
    Node {
        wave_size: 64.,
        workgroups: (threads / group).ceil(),
        waves,
        occupancy: 8.,
        footprint,
        accessed: footprint,
        requested,
        accesses: 3. * waves,
        vector: instructions * waves,
        waits: 1.,
        ..Node::default()
    }
}

/// Returns a kernel whose threads wait for memory in each step of a loop, which requests `loaded` bytes.
fn loops(threads: f64, group: f64, bytes: f64, steps: f64, step: [f64; 2], loaded: f64) -> Node {
    let node = stream(threads, group, bytes, 10. + steps * step[0]);
    let waves = node.waves;
    Node {
        requested: threads * (steps * loaded + 4.),
        accesses: waves * steps * (loaded / 16.).ceil(),
        scalar: waves * steps * step[1],
        branches: waves * steps,
        waits: steps,
        ..node
    }
}

/// Returns launches that read and write the same bytes.
fn passes(launches: f64, uploaded: f64, node: Node) -> Work {
    Work { launches, uploaded, node: Node { footprint: node.footprint / 2., ..node } }
}

/// Returns the table of the model's errors.
///
/// # Errors
/// If the measurements cannot be read or fetched.
pub fn run_check(file: Option<&PathBuf>) -> Result<String> {
    let path = match file {
        Some(file) => file.clone(),
        None => fetched()?,
    };
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let constants = Constants::published()?;
    let gpu = constants.gpus.iter().find(|gpu| gpu.name == GPU);
    table(gpu.with_context(|| format!("gpus.toml lacks {GPU}"))?, &measured(&text))
}

/// Returns the path of the published measurements; fetches them on first use.
fn fetched() -> Result<PathBuf> {
    let folder = cache().join("mgpusim");
    let file = folder.join("mi300a.csv");
    download::ensure_filled(&folder, SHA256, || download::fetch(ADDRESS, &file, SHA256))
        .context("download the file on another machine, and name it after --check")?;
    Ok(file)
}

/// Returns the least microseconds of each benchmark and size.
fn measured(csv: &str) -> Vec<(&str, &str, f64)> {
    let rows = csv.lines().filter_map(|line| {
        let mut cells = line.split(',');
        let (name, size) = (cells.next()?, cells.next()?);
        Some((name, size, cells.nth(2)?.parse::<f64>().ok()? * 1e3))
    });
    rows.collect()
}

/// Returns the numbers in the name of a size, such as 1024 and 8 of `1024_taps8`.
fn numbers(size: &str) -> Vec<f64> {
    size.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Row that is compared: label, time of the model, measured time.
type Compared = (String, f64, f64);

fn table(gpu: &Gpu, rows: &[(&str, &str, f64)]) -> Result<String> {
    // The smallest time is that of two events and an empty launch.
    let floor = rows.iter().map(|row| row.2).min_by(f64::total_cmp).context("there are no measurements")?;
    let upload = rows.iter().filter(|row| row.0 == "memcopy_h2d").max_by(|a, b| a.2.total_cmp(&b.2));
    let upload_rate = upload.map_or(f64::INFINITY, |row| numbers(row.1)[0] * 1048.576 * 1e3 / row.2);
    let mut text = String::from(
        "| class | counterpart of ours | rows | error, median | worst | model / measured, geometric mean | rows above twice the floor | error, median | worst row: model, measured, us |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut all = Vec::new();
    for class in CLASSES {
        let works: BTreeMap<_, _> = class.benchmarks.iter().copied().collect();
        let compared: Vec<Compared> = rows
            .iter()
            .filter_map(|(name, size, us)| {
                let Work { node, launches, uploaded } = works.get(name)?(&numbers(size));
                let dispatches = if launches > 1. { launches * gpu.dispatch_stream.0 } else { 0. };
                let model = floor + uploaded / upload_rate + dispatches + launches * gpu.time(&node).0;
                Some((format!("{name} {size}"), model, *us))
            })
            .collect();
        let _ = writeln!(text, "| {} | {} | {} |", class.name, class.counterpart, cells(&compared, floor));
        all.extend(compared);
    }
    let _ = writeln!(text, "| **all** | | {} |", cells(&all, floor));
    let _ = writeln!(
        text,
        "\n{} of {} rows are compared. The floor is {floor:.1} us, the smallest time of the file.",
        all.len(),
        rows.len()
    );
    Ok(text)
}

/// Returns the cells of a class after its counterpart.
fn cells(compared: &[Compared], floor: f64) -> String {
    let error = |row: &Compared| (row.1 / row.2).max(row.2 / row.1);
    let worst = compared.iter().max_by(|a, b| error(a).total_cmp(&error(b)));
    let Some(worst) = worst else { return "0 | | | | | | ".to_string() };
    let median = |rows: &mut dyn Iterator<Item = &Compared>| {
        let mut errors: Vec<f64> = rows.map(error).collect();
        errors.sort_by(f64::total_cmp);
        let middle = |index: usize| errors.get(index).copied();
        let both = middle(errors.len().saturating_sub(1) / 2).zip(middle(errors.len() / 2));
        both.map_or("-".to_string(), |(low, high)| format!("{:.2}", (low + high) / 2.))
    };
    let logs: f64 = compared.iter().map(|row| (row.1 / row.2).ln()).sum();
    let is_above = |row: &&Compared| row.2 > 2. * floor;
    format!(
        "{} | {} | {:.2} | {:.2} | {} | {} | {}: {}, {}",
        compared.len(),
        median(&mut compared.iter()),
        error(worst),
        (logs / compared.len() as f64).exp(),
        compared.iter().filter(is_above).count(),
        median(&mut compared.iter().filter(is_above)),
        worst.0,
        rounded(worst.1),
        rounded(worst.2),
    )
}
