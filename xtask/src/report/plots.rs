//! The plots of a report, as SVG.
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::runs::{Joined, Merged, Rate, Row, Run};
use super::tables::{device_name, groups};

const WIDTH: u32 = 860;
const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(120, 120, 120);
const RED: RGBColor = RGBColor(200, 30, 40);
/// By device.
const COLOURS: [(&str, RGBColor); 3] =
    [("rocm", RED), ("cuda", RGBColor(70, 140, 50)), ("torch", RGBColor(40, 90, 180))];
/// The ratios that a plot names; what lies outside is drawn at its edge.
const RATIOS: [f64; 9] = [0.1, 0.2, 0.5, 1., 2., 5., 10., 20., 50.];

/// The height of a row, in the units that its dots are placed by.
const ROW: i32 = 1000;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws all plots into `folder`.
///
/// # Errors
/// If a file cannot be written.
pub fn draw(merged: &Merged, folder: &Path) -> Result<()> {
    let joined = merged.joined();
    let note = merged.note().unwrap_or_default();
    type Ratio = fn(&Joined<'_>) -> Option<f64>;
    let ratios: [(&Option<Run>, Ratio); 2] =
        [(&merged.torch, |case| case.to_torch()), (&merged.cuda, |case| case.to_cuda())];
    for (other, ratio) in ratios {
        let Some(other) = other else { continue };
        let (other, gpu) = (&other.meta.device, &merged.ours.meta.gpu);
        let title = format!("Our time over that of {}: a dot for each case, {gpu}", device_name(other));
        draw_ratios(&folder.join(format!("ratio-{other}.svg")), [&title, &note], &joined, ratio)?;
    }
    let title = format!("Bandwidth of an addition over size, {}", merged.ours.meta.gpu);
    draw_bandwidth(&folder.join("bandwidth.svg"), [&title, &note], merged)
}

/// A white area below a title and the note.
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
    anyhow!("a plot cannot be drawn: {error}")
}

/// A row for each group, its cases in their order from top to bottom.
fn draw_ratios(
    file: &Path,
    titles: [&str; 2],
    joined: &[Joined<'_>],
    ratio: impl Fn(&Joined<'_>) -> Option<f64>,
) -> Result<()> {
    let groups = groups(joined);
    let count = groups.len();
    let area = titled(file, 100 + 36 * count as u32, titles)?;
    // The names stand in the middles of the rows.
    let middles: Vec<i32> = (0..count as i32).map(|row| row * ROW + ROW / 2).collect();
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(130)
        .build_cartesian_2d(
            (right(0.)..right(f64::MAX)).with_key_points(RATIOS.map(right).to_vec()),
            (0..count as i32 * ROW).with_key_points(middles),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("time over time; right of 1 the other is quicker")
        .x_label_formatter(&|place| {
            RATIOS.iter().find(|ratio| right(**ratio) == *place).map_or(String::new(), f64::to_string)
        })
        .y_label_formatter(&|place| {
            let from_top = count.checked_sub(1 + (*place / ROW) as usize);
            from_top.and_then(|row| groups.get(row)).map_or(String::new(), |group| group.to_string())
        })
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    for (row, group) in groups.iter().enumerate() {
        let of_group: Vec<f64> =
            joined.iter().filter(|case| case.ours.group == *group).filter_map(&ratio).collect();
        let top = (count - row) as i32 * ROW;
        let dots = of_group.iter().enumerate().map(|(at, ratio)| {
            let down = ROW / 10 + ROW * 4 / 5 * (2 * at as i32 + 1) / (2 * of_group.len() as i32);
            Circle::new((right(*ratio), top - down), 3, RED.mix(0.6).filled())
        });
        chart.draw_series(dots).map_err(failed)?;
    }
    chart
        .draw_series(LineSeries::new([(right(1.), 0), (right(1.), count as i32 * ROW)], BLACK))
        .map_err(failed)?;
    area.present().map_err(failed)
}

/// Returns how far right a ratio is drawn: by its logarithm, in thousandths.
fn right(ratio: f64) -> i32 {
    (1000. * ratio.clamp(RATIOS[0], RATIOS[RATIOS.len() - 1]).log2()) as i32
}

/// A line of the plot of bandwidth over size: elements and GB/s.
struct Line {
    name: String,
    colour: RGBColor,
    is_filled: bool,
    points: Vec<(f64, f64)>,
}

/// A line for each run and dtype.
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

/// Elements and GB/s of the additions of a dtype, from small to large.
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

/// Parses counts like 64M, 1K or 16.
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
    fn sizes_are_read_as_they_are_named() {
        assert_eq!(elements("64M"), Some((64 << 20) as f64));
        assert_eq!(elements("1K"), Some(1024.));
        assert_eq!(elements("16"), Some(16.));
        assert_eq!(elements("4x4"), None);
    }

    #[test]
    fn bandwidths_go_from_small_to_large() {
        let mut run =
            run_of("rocm", &[("g", "add", 2., Some(4_000), None), ("g", "add", 1., Some(1_000), None)]);
        run.results[0].shape = "1M".to_string();
        run.results[1].shape = "1K".to_string();
        assert_eq!(bandwidths(&run, "f32"), [(1024., 1.), ((1 << 20) as f64, 2.)]);
        assert_eq!(bandwidths(&run, "f16"), []);
    }
}
