//! The curve of the loss over the steps, as SVG.
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const FONT: &str = "sans-serif";
const RED: RGBColor = RGBColor(200, 30, 40);
/// Points of the curve: each is the mean over as many steps as share it.
const POINTS: usize = 200;

/// Draws the losses into a file.
///
/// # Errors
/// If there are none, or the file cannot be written.
pub fn draw(losses: &[f32], file: &Path) -> Result<()> {
    let highest = losses.iter().copied().reduce(f32::max).ok_or_else(|| anyhow!("no step, no curve"))?;
    let area = SVGBackend::new(file, (720, 360)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .caption("Loss of the training of tiny_llama, nats a token", (FONT, 16))
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0..losses.len(), 0f32..highest)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("step")
        .y_label_formatter(&|loss| format!("{loss:.1}"))
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    chart.draw_series(LineSeries::new(means(losses), RED.stroke_width(2))).map_err(failed)?;
    area.present().map_err(failed)
}

/// Steps, counted from 1, and the mean loss around each.
fn means(losses: &[f32]) -> Vec<(usize, f32)> {
    let share = losses.len().div_ceil(POINTS).max(1);
    let parts = losses.chunks(share).enumerate();
    let point = |(at, part): (usize, &[f32])| {
        (at * share + part.len().div_ceil(2), part.iter().sum::<f32>() / part.len() as f32)
    };
    parts.map(point).collect()
}

fn failed<E: std::error::Error>(error: E) -> anyhow::Error {
    anyhow!("the curve cannot be drawn: {error}")
}
