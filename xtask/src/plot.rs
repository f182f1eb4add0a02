//! Line charts in SVG.
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Colours of the lines of a chart in their order.
const COLOURS: [RGBColor; 3] = [RGBColor(200, 30, 40), RGBColor(40, 90, 180), RGBColor(70, 140, 50)];
const WIDTH: u32 = 900;
const FONT: &str = "sans-serif";

/// A chart whose axes begin at 0.
pub struct Chart<'a> {
    pub title: &'a str,
    /// Label of the horizontal axis.
    pub x: &'a str,
    /// Name and points of each line.
    pub lines: Vec<(&'a str, Vec<(f64, f64)>)>,
}

/// Draws the charts below one another, each with this height in pixels.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(charts: &[Chart], height: u32, file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, (WIDTH, height * charts.len() as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    for (area, Chart { title, x, lines }) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let last = points().map(|point| point.0).fold(1.0, f64::max);
        let highest = points().map(|point| point.1).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .caption(title, (FONT, 14))
            .x_label_area_size(22)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..last, 0.0..1.05 * highest)
            .map_err(failed)?;
        let mesh = &mut chart.configure_mesh();
        mesh.light_line_style(WHITE).y_labels(4).x_desc(*x).label_style((FONT, 11)).draw().map_err(failed)?;
        for ((name, points), colour) in lines.iter().zip(COLOURS) {
            let series = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
            let series = chart.draw_series(series).map_err(failed)?;
            series.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
        }
        let labels = &mut chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.8)).label_font((FONT, 11)).draw().map_err(failed)?;
    }
    area.present().map_err(failed)
}

fn failed<E: std::error::Error>(error: E) -> anyhow::Error {
    anyhow!("the plot cannot be drawn: {error}")
}
