//! Draws loss curves as SVG.
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const FONT: &str = "sans-serif";
const RED: RGBColor = RGBColor(200, 30, 40);
/// Maximum number of points of a curve; each is the mean of several steps.
const POINTS: usize = 200;

/// Draws a panel for each title with its losses, one above the other.
///
/// # Errors
/// If no loss is positive, or the file cannot be written.
pub fn draw(curves: &[(&str, &[f32])], file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, (720, 300 * curves.len() as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    for ((title, losses), panel) in curves.iter().zip(area.split_evenly((curves.len(), 1))) {
        let points = means(losses);
        let heights = || points.iter().map(|(_, loss)| *loss).filter(|loss| *loss > 0.);
        let most = heights().reduce(f32::max).ok_or_else(|| anyhow!("no positive loss to draw"))?;
        let least = heights().reduce(f32::min).unwrap_or(most);
        let mut chart = ChartBuilder::on(&panel)
            .margin(12)
            .caption(title, (FONT, 16))
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(0..losses.len(), (least * 0.9..most * 1.1).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc("step")
            .y_label_formatter(&|loss| format!("{loss:.3}"))
            .label_style((FONT, 12))
            .draw()
            .map_err(failed)?;
        chart.draw_series(LineSeries::new(points, RED.stroke_width(2))).map_err(failed)?;
    }
    area.present().map_err(failed)
}

/// Returns points of steps, counted from 1, and mean losses around them.
fn means(losses: &[f32]) -> Vec<(usize, f32)> {
    let share = losses.len().div_ceil(POINTS).max(1);
    let point = |(at, part): (usize, &[f32])| {
        (at * share + part.len().div_ceil(2), part.iter().sum::<f32>() / part.len() as f32)
    };
    losses.chunks(share).enumerate().map(point).collect()
}

fn failed<E: std::error::Error>(error: E) -> anyhow::Error {
    anyhow!("cannot draw the curve: {error}")
}
