//! What is on a picture, measured in its pixels alone.
use std::sync::LazyLock;

use super::pictures::{COLOURS, PLACES, SHAPES, SIDE, SIZES, coverage};

/// Pixels that a shape has at least.
const FEWEST: usize = 48;
/// Colours that are nearer than this are one.
const SAME: f32 = 40.;
/// A shape whose middle is as many pixels away from the picture's lies at a side.
const ASIDE: f32 = 3.5;

/// What is to be seen: numbers of the tables of pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub shape: usize,
    pub size: usize,
    pub place: usize,
    /// Of the shape and of the ground.
    pub colours: [usize; 2],
    /// The share of what either covers that picture and the drawn shape both cover.
    pub likeness: f32,
}

/// Area and middle of a shape.
struct Moments {
    area: f32,
    middle: [f32; 2],
}

impl Moments {
    fn of(shares: &[f32]) -> Self {
        let area: f32 = shares.iter().sum();
        let mean = |place: &dyn Fn(usize) -> usize| {
            shares.iter().enumerate().map(|(at, share)| share * (place(at) as f32 + 0.5)).sum::<f32>() / area
        };
        Self { area, middle: [mean(&|at| at % SIDE), mean(&|at| at / SIDE)] }
    }
}

/// Of each shape with the radius 1 around 0.
static SHAPE_MOMENTS: LazyLock<Vec<Moments>> = LazyLock::new(|| {
    let (centre, radius) = (SIDE as f32 / 2., SIDE as f32 / 2. - 2.);
    let moments = (0..SHAPES.len()).map(|shape| Moments::of(&coverage(shape, [centre; 2], radius)));
    let scale = |m: Moments| Moments {
        area: m.area / (radius * radius),
        middle: m.middle.map(|at| (at - centre) / radius),
    };
    moments.map(scale).collect()
});

/// What is on a picture of [`SIDE`] by [`SIDE`] pixels, red, green, blue each; none if it is of one colour, or of another
/// size.
pub fn look(picture: &[u8]) -> Option<Seen> {
    if picture.len() != SIDE * SIDE * 3 {
        return None;
    }
    let pixels: Vec<[f32; 3]> = picture.chunks(3).map(|p| [0, 1, 2].map(|i| f32::from(p[i]))).collect();
    let ground = border(&pixels);
    let away: Vec<f32> = pixels.iter().map(|pixel| distance(pixel, &ground)).collect();
    let mut sorted = away.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    // A few odd pixels are none of the shape.
    let furthest = sorted[FEWEST];
    if furthest < SAME {
        return None;
    }
    let front = mean(pixels.iter().zip(&away).filter(|(_, away)| **away > 0.8 * furthest).map(|(p, _)| p));
    let step = [0, 1, 2].map(|i| front[i] - ground[i]);
    let length: f32 = step.iter().map(|x| x * x).sum();
    let share = |pixel: &[f32; 3]| (0..3).map(|i| (pixel[i] - ground[i]) * step[i]).sum::<f32>() / length;
    // What is nearly nothing or nearly all is noise.
    let clear = |share: f32| ((share - 0.2) / 0.6).clamp(0., 1.);
    let shares: Vec<f32> = pixels.iter().map(|pixel| clear(share(pixel))).collect();
    let (shape, likeness) = shape(&shares)?;
    let (middle, half) = extent(&shares)?;
    let off = middle.map(|at| at - SIDE as f32 / 2.);
    let toward = |place: [f32; 2]| place[0] * off[0] + place[1] * off[1];
    let aside = (1..PLACES.len()).max_by(|a, b| toward(PLACES[*a].1).total_cmp(&toward(PLACES[*b].1)))?;
    let place = if toward(PLACES[aside].1) > ASIDE { aside } else { 0 };
    let between = (SIZES[0].1[1] + SIZES[1].1[0]) / 2.;
    let colours = [nearest(&front), nearest(&ground)];
    Some(Seen { shape, size: usize::from(half > between), place, colours, likeness })
}

/// The median colour along the edges.
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

/// The number of the colour that is nearest.
fn nearest(colour: &[f32; 3]) -> usize {
    let far = |at: &usize| distance(&COLOURS[*at].1.map(f32::from), colour);
    (0..COLOURS.len()).min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or_default()
}

/// The shape that, with the same area and middle, covers most of the same, and how much that is.
fn shape(shares: &[f32]) -> Option<(usize, f32)> {
    let seen = Moments::of(shares);
    let likeness = |shape: usize| {
        let drawn = &SHAPE_MOMENTS[shape];
        let radius = (seen.area / drawn.area).sqrt();
        let centre = [0, 1].map(|axis| seen.middle[axis] - radius * drawn.middle[axis]);
        let drawn = coverage(shape, centre, radius);
        let (both, either) = shares
            .iter()
            .zip(&drawn)
            .fold((0., 0.), |(both, either), (a, b)| (both + a.min(*b), either + a.max(*b)));
        both / either
    };
    (0..SHAPES.len()).map(|shape| (shape, likeness(shape))).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The middle of what is mostly covered, and half of its longer side.
fn extent(shares: &[f32]) -> Option<([f32; 2], f32)> {
    let covered = shares.iter().enumerate().filter(|(_, share)| **share > 0.5).map(|(at, _)| at);
    let range = |places: Vec<usize>| Some((*places.iter().min()? as f32, *places.iter().max()? as f32 + 1.));
    let across = range(covered.clone().map(|at| at % SIDE).collect())?;
    let down = range(covered.map(|at| at / SIDE).collect())?;
    let half = (across.1 - across.0).max(down.1 - down.0) / 2.;
    Some(([(across.0 + across.1) / 2., (down.0 + down.1) / 2.], half))
}
