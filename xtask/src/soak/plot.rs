//! Charts of the figures of a run over time.
use std::path::Path;

use anyhow::Result;

use super::samples::{FIGURES, Sample};
use crate::plot::{self, Chart};

const HEIGHT: u32 = 180;

/// Draws one chart for each figure, a line for each process.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(samples: &[Sample], file: &Path) -> Result<()> {
    let mut processes: Vec<&'static str> = samples.iter().map(|sample| sample.process).collect();
    processes.sort_unstable();
    processes.dedup();
    let points = |process: &str, figure: &str| -> Vec<(f64, f64)> {
        let of_process = samples.iter().filter(|sample| sample.process == process);
        of_process.filter_map(|sample| Some((sample.minute, *sample.figures.get(figure)?))).collect()
    };
    let charts = FIGURES.map(|figure| {
        let lines = processes.iter().map(|process| (*process, points(process, figure)));
        Chart { title: figure, x: "minutes", lines: lines.filter(|(_, points)| !points.is_empty()).collect() }
    });
    plot::draw(&charts, HEIGHT, file)
}
