//! Draws the plots of a report as SVG files.
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::runs::{ComparedCase, Merged, Rate, Row, Run};
use super::tables::{device_name, groups};

const WIDTH: u32 = 860;
const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(120, 120, 120);
const RED: RGBColor = RGBColor(200, 30, 40);
/// Colours of the devices.
const COLOURS: [(&str, RGBColor); 3] =
    [("rocm", RED), ("cuda", RGBColor(70, 140, 50)), ("torch", RGBColor(40, 90, 180))];
/// Ratios with a label on the axis; ratios outside this range are drawn at the edge.
const RATIOS: [f64; 9] = [0.1, 0.2, 0.5, 1., 2., 5., 10., 20., 50.];

/// Height of a row in the units of the vertical axis.
const ROW_HEIGHT: i32 = 1000;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws all plots into `folder`.
///
/// # Errors
/// If a file cannot be written.
pub fn draw(merged: &Merged, folder: &Path) -> Result<()> {
    let cases = merged.cases();
    let note = merged.note().unwrap_or_default();
    type Ratio = fn(&ComparedCase<'_>) -> Option<f64>;
    let ratios: [(&Option<Run>, Ratio); 2] =
        [(&merged.torch, |case| case.to_torch()), (&merged.cuda, |case| case.to_cuda())];
    for (other, ratio) in ratios {
        let Some(other) = other else { continue };
        let (other, gpu) = (&other.meta.device, &merged.ours.meta.gpu);
        let title = format!("Our time / time of {}, one dot per case, {gpu}", device_name(other));
        draw_ratios(&folder.join(format!("ratio-{other}.svg")), [&title, &note], &cases, ratio)?;
    }
    let title = format!("Bandwidth of an addition by size, {}", merged.ours.meta.gpu);
    draw_bandwidth(&folder.join("bandwidth.svg"), [&title, &note], merged)
}

/// Returns a white drawing area below a title and the note.
fn titled<'a>(file: &'a Path, height: u32, [title, note]: [&str; 2]) -> Result<Area<'a>> {
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let area = area.titled(title, (FONT, 16)).map_err(failed)?;
    match note {
        "" => Ok(area),
        note => area.titled(note, (FONT, 13).into_font().color(&RED)).map_err(failed),
    }
}

fn failed<E: std::error::Error>(error: E) -> anyhow::Error {
    anyhow!("cannot draw a plot: {error}")
}

/// Draws a row of dots per group, with the group's cases in their order from top to bottom.
fn draw_ratios(
    file: &Path,
    titles: [&str; 2],
    cases: &[ComparedCase<'_>],
    ratio: impl Fn(&ComparedCase<'_>) -> Option<f64>,
) -> Result<()> {
    let groups = groups(cases);
    let count = groups.len();
    let area = titled(file, 100 + 36 * count as u32, titles)?;
    // Group names are centred on the rows.
    let middles: Vec<i32> = (0..count as i32).map(|row| row * ROW_HEIGHT + ROW_HEIGHT / 2).collect();
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(130)
        .build_cartesian_2d(
            (x_of(0.)..x_of(f64::MAX)).with_key_points(RATIOS.map(x_of).to_vec()),
            (0..count as i32 * ROW_HEIGHT).with_key_points(middles),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("ratio of times; above 1 the other device is faster")
        .x_label_formatter(&|place| {
            RATIOS.iter().find(|ratio| x_of(**ratio) == *place).map_or(String::new(), f64::to_string)
        })
        .y_label_formatter(&|place| {
            let from_top = count.checked_sub(1 + (*place / ROW_HEIGHT) as usize);
            from_top.and_then(|row| groups.get(row)).map_or(String::new(), |group| group.to_string())
        })
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    for (row, group) in groups.iter().enumerate() {
        let of_group: Vec<f64> =
            cases.iter().filter(|case| case.ours.group == *group).filter_map(&ratio).collect();
        let top = (count - row) as i32 * ROW_HEIGHT;
        let dots = of_group.iter().enumerate().map(|(at, ratio)| {
            let down =
                ROW_HEIGHT / 10 + ROW_HEIGHT * 4 / 5 * (2 * at as i32 + 1) / (2 * of_group.len() as i32);
            Circle::new((x_of(*ratio), top - down), 3, RED.mix(0.6).filled())
        });
        chart.draw_series(dots).map_err(failed)?;
    }
    chart
        .draw_series(LineSeries::new([(x_of(1.), 0), (x_of(1.), count as i32 * ROW_HEIGHT)], BLACK))
        .map_err(failed)?;
    area.present().map_err(failed)
}

/// Returns the horizontal position of a ratio: its binary logarithm, in thousandths.
fn x_of(ratio: f64) -> i32 {
    (1000. * ratio.clamp(RATIOS[0], RATIOS[RATIOS.len() - 1]).log2()) as i32
}

/// Line of the plot of bandwidth over size; a point is a number of elements and GB/s.
struct Line {
    name: String,
    colour: RGBColor,
    is_filled: bool,
    points: Vec<(f64, f64)>,
}

/// Draws a line for each run and dtype.
fn draw_bandwidth(file: &Path, titles: [&str; 2], merged: &Merged) -> Result<()> {
    let mut lines: Vec<Line> = Vec::new();
    for run in merged.runs() {
        let Some((_, colour)) = COLOURS.iter().find(|(device, _)| *device == run.meta.device) else {
            continue;
        };
        for (dtype, is_filled) in [("f32", true), ("f16", false)] {
            let name = format!("{}, {dtype}", device_name(&run.meta.device));
            lines.push(Line { name, colour: *colour, is_filled, points: bandwidths(run, dtype) });
        }
    }
    lines.retain(|line| !line.points.is_empty());
    let points = || lines.iter().flat_map(|line| &line.points);
    let highest = points().map(|(_, rate)| *rate).fold(1., f64::max);
    let least = points().map(|(elements, _)| *elements).fold(f64::MAX, f64::min).min(1e3);
    let most = points().map(|(elements, _)| *elements).fold(1e4, f64::max) * 1.2;
    let area = titled(file, 420, titles)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d((least..most).log_scale(), 0f64..1.05 * highest)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("elements")
        .y_desc("GB/s")
        .x_label_formatter(&|elements| format!("{elements:e}"))
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    for Line { name, colour, is_filled, points } in lines {
        let style = ShapeStyle { color: colour.to_rgba(), filled: is_filled, stroke_width: 2 };
        let series = chart.draw_series(LineSeries::new(points, style).point_size(3)).map_err(failed)?;
        series.label(name).legend(move |(x, y)| Circle::new((x + 10, y), 3, style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(GREY)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 12))
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}

/// Returns elements and GB/s of the additions of a dtype, in increasing size.
fn bandwidths(run: &Run, dtype: &str) -> Vec<(f64, f64)> {
    let point = |row: &Row| match row.rate() {
        Some(Rate::GigaBytes(rate)) => Some((elements(&row.shape)?, rate)),
        _ => None,
    };
    let additions = run.results.iter().filter(|row| row.case == "add" && row.dtype == dtype);
    let mut points: Vec<(f64, f64)> = additions.filter_map(point).collect();
    points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    points
}

/// Parses element counts such as 64M, 1K or 16.
fn elements(shape: &str) -> Option<f64> {
    let (digits, unit) = match shape.strip_suffix('M') {
        Some(digits) => (digits, 1 << 20),
        None => shape.strip_suffix('K').map_or((shape, 1), |digits| (digits, 1 << 10)),
    };
    digits.parse::<u32>().ok().map(|digits| f64::from(digits) * f64::from(unit))
}

#[cfg(test)]
mod tests {
    use super::super::runs::tests::run_of;
    use super::*;

    #[test]
    fn element_counts_are_parsed() {
        assert_eq!(elements("64M"), Some((64 << 20) as f64));
        assert_eq!(elements("1K"), Some(1024.));
        assert_eq!(elements("16"), Some(16.));
        assert_eq!(elements("4x4"), None);
    }

    #[test]
    fn bandwidths_are_sorted_by_size() {
        let mut run =
            run_of("rocm", &[("g", "add", 2., Some(4_000), None), ("g", "add", 1., Some(1_000), None)]);
        run.results[0].shape = "1M".to_string();
        run.results[1].shape = "1K".to_string();
        assert_eq!(bandwidths(&run, "f32"), [(1024., 1.), ((1 << 20) as f64, 2.)]);
        assert_eq!(bandwidths(&run, "f16"), []);
    }
}
