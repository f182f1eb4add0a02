//! The figures of a run over time, as SVG.
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::samples::{FIGURES, Sample};

/// Colours of the processes in their order.
const COLOURS: [RGBColor; 3] = [RGBColor(200, 30, 40), RGBColor(40, 90, 180), RGBColor(70, 140, 50)];
const SIZE: (u32, u32) = (900, 1080);
const FONT: &str = "sans-serif";

/// Draws one chart for each figure, a line for each process.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(samples: &[Sample], file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let last = samples.iter().map(|sample| sample.minute).fold(1.0, f64::max);
    let mut processes: Vec<&'static str> = samples.iter().map(|sample| sample.process).collect();
    processes.sort_unstable();
    processes.dedup();
    for (area, figure) in area.split_evenly((FIGURES.len(), 1)).iter().zip(FIGURES) {
        let values = samples.iter().filter_map(|sample| sample.figures.get(figure));
        let highest = values.fold(1.0, |highest: f64, value| highest.max(*value));
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .caption(figure, (FONT, 14))
            .x_label_area_size(22)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..last, 0.0..1.05 * highest)
            .map_err(failed)?;
        let mesh = &mut chart.configure_mesh();
        mesh.light_line_style(WHITE)
            .y_labels(4)
            .x_desc("minutes")
            .label_style((FONT, 11))
            .draw()
            .map_err(failed)?;
        for (process, colour) in processes.iter().zip(COLOURS) {
            let of_process = samples.iter().filter(|sample| sample.process == *process);
            let points: Vec<(f64, f64)> =
                of_process.filter_map(|sample| Some((sample.minute, *sample.figures.get(figure)?))).collect();
            if !points.is_empty() {
                let series =
                    chart.draw_series(LineSeries::new(points, colour.stroke_width(2))).map_err(failed)?;
                series.label(*process).legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
            }
        }
        let labels = &mut chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.8)).label_font((FONT, 11)).draw().map_err(failed)?;
    }
    area.present().map_err(failed)
}

fn failed<E: std::error::Error>(error: E) -> anyhow::Error {
    anyhow!("the plot cannot be drawn: {error}")
}
