//! Scores how well images match their prompts or hints.
use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::detection::{Detected, detect};
use super::images::{COLOURS, POSITIONS, SHAPES, SIZES, Scene};

/// Prompts that name all that a prompt can name.
pub const PROMPTS: [&str; 20] = [
    "a small red circle at the top on blue",
    "a big green star at the left on white",
    "a small yellow square in the centre on black",
    "a large purple triangle at the right on a yellow background",
    "a tiny white ring at the bottom on red",
    "a big cyan cross in the middle on purple",
    "a little black diamond at the left on green",
    "a huge red heart at the top on white",
    "a small blue circle at the right on yellow",
    "a large cyan square at the bottom on black",
    "a tiny yellow star in the center on blue",
    "a big white triangle at the bottom on green",
    "a small green ring at the left on a purple background",
    "a tiny red cross at the right on cyan",
    "a large blue diamond at the top on white",
    "a little purple heart at the bottom on black",
    "a big black circle in the centre on red",
    "a small green square at the top on red",
    "a huge white star at the right on cyan",
    "a large purple ring at the left on white",
];

/// Parts of an image that are scored.
pub const PARTS: [&str; 4] = ["shape", "colours", "size", "position"];

/// Scene that a prompt describes, as indices into the tables of the module `images`; `None` if unspecified.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub shape: usize,
    pub colours: [Option<usize>; 2],
    pub size: Option<usize>,
    pub position: Option<usize>,
}

impl Expected {
    /// Parses a prompt in the form of captions.
    ///
    /// # Errors
    /// If it names no shape.
    pub fn of(prompt: &str) -> Result<Self> {
        let find = |words: &str, is: &dyn Fn(&str) -> Option<usize>| words.split(' ').find_map(is);
        let (front, background) = prompt.split_once(" on ").unwrap_or((prompt, ""));
        let colour = |word: &str| COLOURS.iter().position(|(name, _)| *name == word);
        Ok(Self {
            shape: find(front, &|word| SHAPES.iter().position(|(name, _)| *name == word))
                .with_context(|| format!("no shape in '{prompt}'"))?,
            colours: [find(front, &colour), find(background, &colour)],
            size: find(front, &|word| SIZES.iter().position(|(names, _)| names.contains(&word))),
            position: find(front, &|word| POSITIONS.iter().position(|(names, _)| names.contains(&word))),
        })
    }

    /// Returns true for each of [`PARTS`] that matches.
    pub fn matches(&self, found: &Detected) -> [bool; PARTS.len()] {
        let same = |(expected, found): (&Option<usize>, &usize)| expected.is_none_or(|at| at == *found);
        [
            self.shape == found.shape,
            self.colours.iter().zip(&found.colours).all(same),
            same((&self.size, &found.size)),
            same((&self.position, &found.position)),
        ]
    }
}

/// Expected and detected contents of the image of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    pub prompt: String,
    pub expected: Expected,
    pub detected: Option<Detected>,
}

impl Score {
    /// Returns true for each of [`PARTS`] that the image shows as its prompt names it.
    pub fn parts(&self) -> [bool; PARTS.len()] {
        self.detected.as_ref().map_or([false; PARTS.len()], |detected| self.expected.matches(detected))
    }
}

/// Counts the images that are right in each of [`PARTS`].
pub fn right(scores: &[Score]) -> [usize; PARTS.len()] {
    let count = |part: usize| scores.iter().filter(|score| score.parts()[part]).count();
    std::array::from_fn(count)
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let sign = if self.parts() == [true; PARTS.len()] { '+' } else { '-' };
        write!(f, "{sign} {:<57}", self.prompt)?;
        let Some(found) = &self.detected else { return write!(f, "no shape detected") };
        let [colour, background] = found.colours.map(|colour| COLOURS[colour].0);
        let (size, position) = (SIZES[found.size].0[0], POSITIONS[found.position].0[0]);
        let shape = SHAPES[found.shape].0;
        write!(f, "{size} {colour} {shape}, {position}, on {background} (overlap {:.2})", found.overlap)
    }
}

/// Scores the images of prompts.
///
/// # Errors
/// If a prompt names no shape.
pub fn scores(prompts: &[&str], images: &[Vec<u8>]) -> Result<Vec<Score>> {
    let score = |(prompt, image): (&&str, &Vec<u8>)| {
        Ok(Score { prompt: prompt.to_string(), expected: Expected::of(prompt)?, detected: detect(image) })
    };
    prompts.iter().zip(images).map(score).collect()
}

/// Parts of an image that are scored if a hint shows where the shape is.
pub const PLACED_PARTS: [&str; 4] = ["shape", "colours", "radius", "centre"];
/// Maximum distance in pixels between the centres of the shapes in the image and in the hint.
const MAX_DISTANCE: f32 = 3.;
/// Maximum difference in pixels between their radii.
const MAX_RADIUS_DIFFERENCE: f32 = 2.5;

/// Returns `count` scenes with shapes anywhere, whose [captions](Scene::short_caption) are prompts and whose
/// [silhouettes](Scene::silhouette) are hints.
pub fn placed_scenes(seed: u32, count: usize) -> Vec<Scene> {
    let mut rng = StdRng::seed_from_u64(u64::from(seed));
    (0..count).map(|_| Scene::anywhere(&mut rng)).collect()
}

/// Returns true for each of [`PLACED_PARTS`] in which an image matches the scene of its hint.
pub fn placed(scene: &Scene, found: &Detected) -> [bool; PLACED_PARTS.len()] {
    let distance = (found.centre[0] - scene.centre[0]).hypot(found.centre[1] - scene.centre[1]);
    [
        found.shape == scene.shape,
        found.colours == scene.colours,
        (found.radius - scene.radius).abs() <= MAX_RADIUS_DIFFERENCE,
        distance <= MAX_DISTANCE,
    ]
}
