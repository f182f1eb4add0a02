//! Generates training images, each a coloured shape on a coloured background, and their captions.
use std::sync::LazyLock;

use rand::Rng;
use rand::seq::IndexedRandom;

/// Width and height of an image in pixels.
pub const SIDE: usize = 64;

/// Names and RGB levels of colours.
pub const COLOURS: [(&str, [u8; 3]); 8] = [
    ("red", [215, 40, 40]),
    ("green", [40, 165, 60]),
    ("blue", [45, 80, 215]),
    ("yellow", [245, 215, 45]),
    ("purple", [140, 55, 185]),
    ("cyan", [60, 200, 215]),
    ("white", [245, 245, 245]),
    ("black", [20, 20, 20]),
];
/// Maximum difference of a channel from the colour's level.
const TINT: i16 = 10;

/// Words for each size, of which the first is its name, and its minimum and maximum radius in pixels.
pub const SIZES: [(&[&str], [f32; 2]); 2] =
    [(&["small", "little", "tiny"], [9.5, 12.]), (&["big", "large", "huge"], [18.5, 22.])];

/// Words for each position, of which the first is its name, and its direction: right and down are positive.
pub const POSITIONS: [(&[&str], [f32; 2]); 5] = [
    (&["centre", "center", "middle"], [0., 0.]),
    (&["left"], [-1., 0.]),
    (&["right"], [1., 0.]),
    (&["top"], [0., -1.]),
    (&["bottom"], [0., 1.]),
];
/// Maximum offset of a shape from the centre line in pixels.
const JITTER: f32 = 1.5;
/// Minimum and maximum distance in pixels between a shape and the edge that it is placed at.
const MARGIN: [f32; 2] = [2., 4.];

/// Radius in pixels of the quarter discs that pictures of [`Subject::Corners`](super::batches::Subject) have.
pub const CORNER_RADIUS: f32 = 12.;

/// Outline of a shape in coordinates from -1 to 1, with y pointing down.
pub enum Outline {
    Disc,
    /// Disc with a hole of this radius.
    Ring(f32),
    Polygon(Vec<[f32; 2]>),
}

/// Names and outlines of shapes.
pub static SHAPES: LazyLock<[(&str, Outline); 8]> = LazyLock::new(|| {
    let around = |corners: usize, radius: &dyn Fn(usize) -> f32| {
        let corner = |at: usize| {
            let angle = at as f32 / corners as f32 * std::f32::consts::TAU;
            [radius(at) * angle.sin(), -radius(at) * angle.cos()]
        };
        fitted((0..corners).map(corner).collect())
    };
    let cross = [[1., 3.], [1., 1.], [3., 1.], [3., -1.], [1., -1.], [1., -3.]];
    let cross = cross.iter().copied().chain(cross.iter().map(|[x, y]| [-x, -y])).collect();
    let heart = (0..28).map(|at| {
        let angle = at as f32 / 28. * std::f32::consts::TAU;
        let cosines =
            [13., -5., -2., -1.].iter().zip(1..).map(|(factor, n)| factor * (angle * n as f32).cos());
        [16. * angle.sin().powi(3), -cosines.sum::<f32>()]
    });
    [
        ("circle", Outline::Disc),
        ("square", fitted(vec![[1., 1.], [1., -1.], [-1., -1.], [-1., 1.]])),
        ("triangle", around(3, &|_| 1.)),
        ("star", around(10, &|at| if at % 2 == 0 { 1. } else { 0.42 })),
        ("ring", Outline::Ring(0.6)),
        ("cross", fitted(cross)),
        ("diamond", fitted(vec![[0., 1.], [0.75, 0.], [0., -1.], [-0.75, 0.]])),
        ("heart", fitted(heart.collect())),
    ]
});

/// Returns a polygon centred and scaled to fit into -1 to 1.
fn fitted(corners: Vec<[f32; 2]>) -> Outline {
    let range = |axis: usize| {
        let values = corners.iter().map(|corner| corner[axis]);
        (values.clone().fold(f32::MAX, f32::min), values.fold(f32::MIN, f32::max))
    };
    let ranges = [range(0), range(1)];
    let half = ranges.iter().map(|(least, most)| (most - least) / 2.).fold(0., f32::max);
    let position =
        |corner: &[f32; 2]| [0, 1].map(|axis| (corner[axis] - (ranges[axis].0 + ranges[axis].1) / 2.) / half);
    Outline::Polygon(corners.iter().map(position).collect())
}

impl Outline {
    /// Returns the distance of a point from the outline; negative inside.
    fn distance(&self, [x, y]: [f32; 2]) -> f32 {
        let from_middle = x.hypot(y);
        match self {
            Self::Disc => from_middle - 1.,
            Self::Ring(hole) => (from_middle - 1.).max(hole - from_middle),
            Self::Polygon(corners) => {
                let (mut nearest, mut inside) = (f32::MAX, false);
                let mut from = corners[corners.len() - 1];
                for &to in corners {
                    let (edge, point) = ([to[0] - from[0], to[1] - from[1]], [x - from[0], y - from[1]]);
                    let along =
                        (edge[0] * point[0] + edge[1] * point[1]) / (edge[0] * edge[0] + edge[1] * edge[1]);
                    let along = along.clamp(0., 1.);
                    let off = [point[0] - edge[0] * along, point[1] - edge[1] * along];
                    nearest = nearest.min(off[0] * off[0] + off[1] * off[1]);
                    // A ray to the right crosses the edge.
                    if (from[1] > y) != (to[1] > y) && point[0] < edge[0] * point[1] / edge[1] {
                        inside = !inside;
                    }
                    from = to;
                }
                if inside { -nearest.sqrt() } else { nearest.sqrt() }
            }
        }
    }
}

/// Returns the fraction of each pixel that a shape covers, in row-major order.
pub fn coverage(shape: usize, centre: [f32; 2], radius: f32) -> Vec<f32> {
    let outline = &SHAPES[shape].1;
    let reach = radius + 1.;
    let range = |middle: f32| {
        let pixel = |at: f32| at.clamp(0., SIDE as f32) as usize;
        pixel((middle - reach).floor())..pixel((middle + reach).ceil())
    };
    let mut shares = vec![0.; SIDE * SIDE];
    for row in range(centre[1]) {
        for column in range(centre[0]) {
            let point = [(column as f32 + 0.5 - centre[0]) / radius, (row as f32 + 0.5 - centre[1]) / radius];
            shares[row * SIDE + column] = (0.5 - outline.distance(point) * radius).clamp(0., 1.);
        }
    }
    shares
}

/// Returns the fraction of each pixel that is within `radius` pixels of a corner of the image, in row-major order.
pub fn corner_coverage(radius: f32) -> Vec<f32> {
    let from_edge = |at: usize| at.min(SIDE - 1 - at) as f32 + 0.5;
    let share = |at: usize| (radius + 0.5 - from_edge(at % SIDE).hypot(from_edge(at / SIDE))).clamp(0., 1.);
    (0..SIDE * SIDE).map(share).collect()
}

/// Contents of an image: indices into the tables above, and the exact values.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    pub shape: usize,
    pub size: usize,
    pub position: usize,
    /// Colours of shape and background.
    pub colours: [usize; 2],
    pub centre: [f32; 2],
    pub radius: f32,
    pub tints: [[u8; 3]; 2],
}

impl Scene {
    /// Returns a random scene with two different colours.
    pub fn random(rng: &mut impl Rng) -> Self {
        let (size, position) = (rng.random_range(0..SIZES.len()), rng.random_range(0..POSITIONS.len()));
        let background = rng.random_range(0..COLOURS.len());
        let colour = (background + rng.random_range(1..COLOURS.len())) % COLOURS.len();
        let [least, most] = SIZES[size].1;
        let radius = rng.random_range(least..most);
        let middle = SIDE as f32 / 2.;
        let away = middle - radius - rng.random_range(MARGIN[0]..MARGIN[1]);
        let centre = POSITIONS[position].1.map(|side| match side {
            0. => middle + rng.random_range(-JITTER..JITTER),
            side => middle + side * away,
        });
        let colours = [colour, background];
        let tints = colours.map(|colour| {
            COLOURS[colour].1.map(|level| {
                (i16::from(level) + rng.random_range(-TINT..=TINT)).clamp(0, i16::from(u8::MAX)) as u8
            })
        });
        Self { shape: rng.random_range(0..SHAPES.len()), size, position, colours, centre, radius, tints }
    }

    /// Returns a random scene whose shape can be anywhere in the image, so that `position` has no meaning.
    pub fn anywhere(rng: &mut impl Rng) -> Self {
        let scene = Self::random(rng);
        let middle = SIDE as f32 / 2.;
        let away = middle - scene.radius - MARGIN[0];
        let centre = [(); 2].map(|()| middle + rng.random_range(-away..away));
        Self { centre, ..scene }
    }

    /// Draws the image: RGB of each pixel in row-major order.
    pub fn draw(&self) -> Vec<u8> {
        mix(self.tints, self.coverage())
    }

    /// Draws the image with a quarter disc in each corner, in the colour of the shape.
    pub fn draw_with_corners(&self) -> Vec<u8> {
        let corners = corner_coverage(CORNER_RADIUS);
        mix(self.tints, self.coverage().into_iter().zip(corners).map(|(shape, corner)| shape.max(corner)))
    }

    /// Draws the shape in white on black.
    pub fn silhouette(&self) -> Vec<u8> {
        mix([[u8::MAX; 3], [0; 3]], self.coverage())
    }

    fn coverage(&self) -> Vec<f32> {
        coverage(self.shape, self.centre, self.radius)
    }

    /// Returns a caption that names the shape and the colours.
    pub fn short_caption(&self) -> String {
        let [colour, background] = self.colours.map(|colour| COLOURS[colour].0);
        format!("a {colour} {} on {background}", SHAPES[self.shape].0)
    }

    /// Returns a random caption that describes part of the scene. One in ten is empty, for classifier-free guidance.
    pub fn caption(&self, rng: &mut impl Rng) -> String {
        if rng.random_bool(0.1) {
            return String::new();
        }
        let mut words = Vec::new();
        let mut any = |words: &[&'static str]| words.choose(&mut *rng).copied().unwrap_or_default();
        let (size, position) = (any(SIZES[self.size].0), any(POSITIONS[self.position].0));
        let [colour, background] = self.colours.map(|colour| COLOURS[colour].0);
        if rng.random_bool(0.9) {
            words.push("a");
        }
        if rng.random_bool(0.5) {
            words.push(size);
        }
        if rng.random_bool(0.95) {
            words.push(colour);
        }
        words.push(SHAPES[self.shape].0);
        if rng.random_bool(0.6) {
            words.extend([if self.position == 0 { "in" } else { "at" }, "the", position]);
        }
        match rng.random_range(0..10) {
            0..5 => words.extend(["on", background]),
            5..8 => words.extend(["on", "a", background, "background"]),
            _ => {}
        }
        words.join(" ")
    }
}

/// Returns RGB of each pixel from its shares of the first of two colours.
fn mix([front, background]: [[u8; 3]; 2], shares: impl IntoIterator<Item = f32>) -> Vec<u8> {
    let level = |share: f32, channel: usize| {
        (f32::from(background[channel]) * (1. - share) + f32::from(front[channel]) * share).round() as u8
    };
    shares.into_iter().flat_map(|share| [0, 1, 2].map(|channel| level(share, channel))).collect()
}

/// Returns all words of captions, without duplicates.
pub fn words() -> Vec<&'static str> {
    let mut words = vec!["a", "in", "at", "the", "on", "background"];
    words.extend(SIZES.iter().flat_map(|(names, _)| names.iter()));
    words.extend(POSITIONS.iter().flat_map(|(names, _)| names.iter()));
    words.extend(COLOURS.iter().map(|(name, _)| name));
    words.extend(SHAPES.iter().map(|(name, _)| name));
    words
}
