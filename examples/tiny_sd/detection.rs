//! Detects shape, colours, size and position in an image from its pixels.
use std::sync::LazyLock;

use super::images::{COLOURS, CORNER_RADIUS, POSITIONS, SHAPES, SIDE, SIZES, corner_coverage, coverage};

/// Minimum number of pixels of a shape.
const MIN_PIXELS: usize = 48;
/// Minimum distance between colours of shape and background, in RGB levels.
const MIN_CONTRAST: f32 = 40.;
/// Minimum distance in pixels from the centre of the image to that of a shape at a side.
const MIN_OFFSET: f32 = 3.5;
/// Minimum share of the shape's colour in each corner of an image with [corners](Detected::corners).
const MIN_CORNER: f32 = 0.5;
/// Distance in pixels from a quarter disc in which a decoded image may still have its colour.
const CORNER_FRINGE: f32 = 2.;

/// Detected scene, as indices into the tables of the module `images`.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected {
    pub shape: usize,
    pub size: usize,
    pub position: usize,
    /// Colours of shape and background.
    pub colours: [usize; 2],
    /// Centre of the shape's bounding box in pixels, and half of its longer side.
    pub centre: [f32; 2],
    pub radius: f32,
    /// True if all four corners of the image have the colour of the shape.
    pub corners: bool,
    /// Intersection over union of the detected and the ideal shape.
    pub overlap: f32,
}

/// Area and centroid of a shape.
struct Moments {
    area: f32,
    middle: [f32; 2],
}

impl Moments {
    fn of(shares: &[f32]) -> Self {
        let area: f32 = shares.iter().sum();
        let mean = |position: &dyn Fn(usize) -> usize| {
            shares.iter().enumerate().map(|(at, share)| share * (position(at) as f32 + 0.5)).sum::<f32>()
                / area
        };
        Self { area, middle: [mean(&|at| at % SIDE), mean(&|at| at / SIDE)] }
    }
}

/// Moments of each shape with radius 1 around 0.
static SHAPE_MOMENTS: LazyLock<Vec<Moments>> = LazyLock::new(|| {
    let (centre, radius) = (SIDE as f32 / 2., SIDE as f32 / 2. - 2.);
    let moments = (0..SHAPES.len()).map(|shape| Moments::of(&coverage(shape, [centre; 2], radius)));
    let scale = |m: Moments| Moments {
        area: m.area / (radius * radius),
        middle: m.middle.map(|at| (at - centre) / radius),
    };
    moments.map(scale).collect()
});

/// Detects the scene in an image of [`SIDE`] by [`SIDE`] RGB pixels. Returns `None` if the image has a single
/// colour or another size.
pub fn detect(image: &[u8]) -> Option<Detected> {
    if image.len() != SIDE * SIDE * 3 {
        return None;
    }
    let pixels: Vec<[f32; 3]> = image.chunks(3).map(|p| [0, 1, 2].map(|i| f32::from(p[i]))).collect();
    let background = border(&pixels);
    let away: Vec<f32> = pixels.iter().map(|pixel| distance(pixel, &background)).collect();
    let mut sorted = away.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    // The most distant pixels may be outliers.
    let furthest = sorted[MIN_PIXELS];
    if furthest < MIN_CONTRAST {
        return None;
    }
    let front = mean(pixels.iter().zip(&away).filter(|(_, away)| **away > 0.8 * furthest).map(|(p, _)| p));
    let step = [0, 1, 2].map(|i| front[i] - background[i]);
    let length: f32 = step.iter().map(|x| x * x).sum();
    let share = |pixel: &[f32; 3]| (0..3).map(|i| (pixel[i] - background[i]) * step[i]).sum::<f32>() / length;
    // Coverage near 0 or 1 is treated as noise.
    let clear = |share: f32| ((share - 0.2) / 0.6).clamp(0., 1.);
    let mut shares: Vec<f32> = pixels.iter().map(|pixel| clear(share(pixel))).collect();
    let corners = has_corners(&shares);
    if corners {
        // The shape is detected as if the corners and their fringes were background.
        let hidden = corner_coverage(CORNER_RADIUS + CORNER_FRINGE);
        shares.iter_mut().zip(hidden).filter(|(_, hidden)| *hidden > 0.).for_each(|(share, _)| *share = 0.);
    }
    let (shape, overlap) = shape(&shares)?;
    let (middle, half) = extent(&shares)?;
    let off = middle.map(|at| at - SIDE as f32 / 2.);
    let toward = |position: [f32; 2]| position[0] * off[0] + position[1] * off[1];
    let aside =
        (1..POSITIONS.len()).max_by(|a, b| toward(POSITIONS[*a].1).total_cmp(&toward(POSITIONS[*b].1)))?;
    let position = if toward(POSITIONS[aside].1) > MIN_OFFSET { aside } else { 0 };
    let between = (SIZES[0].1[1] + SIZES[1].1[0]) / 2.;
    let colours = [nearest(&front), nearest(&background)];
    let size = usize::from(half > between);
    Some(Detected { shape, size, position, colours, centre: middle, radius: half, corners, overlap })
}

/// Returns true if the shares of the shape's colour are large enough in all four corners.
fn has_corners(shares: &[f32]) -> bool {
    let mut sums = [[0.; 2]; 4];
    for (at, (share, corner)) in shares.iter().zip(corner_coverage(CORNER_RADIUS)).enumerate() {
        let quarter = 2 * usize::from(at / SIDE >= SIDE / 2) + usize::from(at % SIDE >= SIDE / 2);
        sums[quarter][0] += share * corner;
        sums[quarter][1] += corner;
    }
    sums.iter().all(|[share, corner]| share / corner > MIN_CORNER)
}

/// Returns the median colour of the border pixels.
fn border(pixels: &[[f32; 3]]) -> [f32; 3] {
    let last = SIDE - 1;
    let along = (0..SIDE).flat_map(|i| [i, last * SIDE + i, i * SIDE, i * SIDE + last]);
    let edge: Vec<[f32; 3]> = along.map(|at| pixels[at]).collect();
    [0, 1, 2].map(|channel| {
        let mut levels: Vec<f32> = edge.iter().map(|pixel| pixel[channel]).collect();
        levels.sort_by(f32::total_cmp);
        levels[levels.len() / 2]
    })
}

fn mean<'a>(pixels: impl Iterator<Item = &'a [f32; 3]>) -> [f32; 3] {
    let (mut sum, mut count) = ([0.; 3], 0.);
    for pixel in pixels {
        (0..3).for_each(|i| sum[i] += pixel[i]);
        count += 1.;
    }
    sum.map(|sum| sum / count)
}

fn distance(a: &[f32; 3], b: &[f32; 3]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
}

/// Returns the index of the nearest colour.
fn nearest(colour: &[f32; 3]) -> usize {
    let far = |at: &usize| distance(&COLOURS[*at].1.map(f32::from), colour);
    (0..COLOURS.len()).min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or_default()
}

/// Returns the shape of the same area and centroid with the largest overlap, and the overlap.
fn shape(shares: &[f32]) -> Option<(usize, f32)> {
    let detected = Moments::of(shares);
    if detected.area < 1. {
        return None;
    }
    let overlap = |shape: usize| {
        let drawn = &SHAPE_MOMENTS[shape];
        let radius = (detected.area / drawn.area).sqrt();
        let centre = [0, 1].map(|axis| detected.middle[axis] - radius * drawn.middle[axis]);
        let drawn = coverage(shape, centre, radius);
        let (both, either) = shares
            .iter()
            .zip(&drawn)
            .fold((0., 0.), |(both, either), (a, b)| (both + a.min(*b), either + a.max(*b)));
        both / either
    };
    (0..SHAPES.len()).map(|shape| (shape, overlap(shape))).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Returns the centre of the bounding box of the covered pixels, and half of its longer side.
fn extent(shares: &[f32]) -> Option<([f32; 2], f32)> {
    let covered = shares.iter().enumerate().filter(|(_, share)| **share > 0.5).map(|(at, _)| at);
    let range = |places: Vec<usize>| Some((*places.iter().min()? as f32, *places.iter().max()? as f32 + 1.));
    let across = range(covered.clone().map(|at| at % SIDE).collect())?;
    let down = range(covered.map(|at| at / SIDE).collect())?;
    let half = (across.1 - across.0).max(down.1 - down.0) / 2.;
    Some(([(across.0 + across.1) / 2., (down.0 + down.1) / 2.], half))
}
