//! Scaling of pictures, their division into patches, and their positions in prompts, according to preprocessor_config.json.
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use pictures::{Filter, RgbPicture};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::config::VisionConfig;
use super::families::ProjectorKind;
use super::{grid, sizes};

/// Default of the maximum number of tokens of a picture.
pub const DEFAULT_IMAGE_TOKENS: usize = 4096;

/// Maximum ratio of the sides of a picture.
const MAX_ASPECT: usize = 200;

/// Default of the maximum number of tokens of a picture of Gemma 4.
const GEMMA_TOKENS: usize = 280;

/// Maximum width and height of a scaled picture in pixels.
const MAX_SIDE: usize = 8192;

/// Files that contain the options of the processor, and the field in which they are.
const FILES: [(&str, Option<&str>); 2] =
    [("preprocessor_config.json", None), ("processor_config.json", Some("image_processor"))];

/// Size to which pictures are scaled.
#[derive(Clone, Debug, PartialEq)]
enum Sizing {
    /// About its own size, between two numbers of pixels.
    Smart { min: usize, max: usize },
    /// A height and a width.
    Exact([usize; 2]),
    /// The largest size of its shape with at most this number of tokens.
    Tokens(usize),
    /// The picture's own size, with a limit of the longer side.
    Within { longest: usize },
    /// Squares of this side and the whole picture if `splits`, otherwise only the whole picture.
    Tiles { longest: usize, side: usize, splits: bool },
}

/// Reason why a picture cannot be part of a prompt.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PictureError {
    /// One side is much longer than the other.
    #[error(
        "picture of {width} x {height} pixels: the longer side may be at most {MAX_ASPECT} times the shorter one"
    )]
    Aspect {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
    },
    /// The chat template wrote other places than those of the pictures.
    #[error(
        "number of picture placeholders ({marker:?}) in the prompt is {found}, but that of pictures is {pictures}; the text \
         must not contain {marker:?}, and the chat template must be one for pictures"
    )]
    Places {
        /// Number of places in the prompt.
        found: usize,
        /// Number of pictures.
        pictures: usize,
        /// Text of a place.
        marker: String,
    },
}

/// A picture as the encoder reads it.
#[derive(PartialEq)]
pub struct ProcessedPicture {
    /// Hash of the pixels and of the size.
    pub(crate) hash: [u8; 32],
    /// Pixels of the patches in the encoder's order, (patches, 3, patch²).
    pub(super) patches: Vec<u8>,
    /// Rows and columns of patches of each part that is encoded alone.
    pub(super) grids: Vec<[usize; 2]>,
    /// Factors of the three channels, which normalize them.
    pub(super) scale: [f32; 3],
    /// Summands of the three channels.
    pub(super) shift: [f32; 3],
    /// Number of patches in a row that become a token.
    merge: usize,
    /// Rows and columns of the squares into which the picture was divided; 0 if it was not.
    tiles: [usize; 2],
    /// Number of features that follow each other in a prompt.
    run: usize,
}

impl std::fmt::Debug for ProcessedPicture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProcessedPicture({} tokens)", self.tokens())
    }
}

impl ProcessedPicture {
    /// Returns the number of features, each of which is a token of the prompt.
    pub fn tokens(&self) -> usize {
        let tokens = |[rows, columns]: &[usize; 2]| (rows / self.merge) * (columns / self.merge);
        self.grids.iter().map(tokens).sum()
    }

    /// Returns the hash of the pixels and of the size.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Returns the patches' pixels, (patches, 3, patch²), as they are after normalization.
    pub fn normalized(&self) -> Vec<f32> {
        let area =
            self.patches.len() / self.grids.iter().map(|grid| grid[0] * grid[1]).sum::<usize>().max(1) / 3;
        let channel = |place: usize| place / area.max(1) % 3;
        let pixels = self.patches.iter().enumerate();
        pixels
            .map(|(place, pixel)| f32::from(*pixel) * self.scale[channel(place)] + self.shift[channel(place)])
            .collect()
    }

    /// Returns the numbers of rows and columns of tokens of a picture that is encoded as a whole.
    pub(super) fn token_grid(&self) -> [usize; 2] {
        self.grids.first().map_or([0; 2], |grid| grid.map(|side| side / self.merge))
    }
}

/// A picture and the places of its features in a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The picture.
    pub picture: Arc<ProcessedPicture>,
    /// Ranges of the prompt's tokens that stand for the features, in their order.
    pub spans: Vec<Range<usize>>,
}

/// Processor of a model's pictures.
#[derive(Debug)]
pub struct ImageProcessor {
    sizing: Sizing,
    filter: Filter,
    scale: [f32; 3],
    shift: [f32; 3],
    patch: usize,
    merge: usize,
    window: Option<usize>,
    kind: ProjectorKind,
    /// Token that stands for a feature.
    token: u32,
    /// Tokens before and after the features, for models whose chat templates write only the first.
    boundary_tokens: Option<[u32; 2]>,
    has_axes: bool,
    is_bidirectional: bool,
}

impl ImageProcessor {
    /// Reads the options from a model's folder. Pictures are made smaller so that they have at most `max_tokens` tokens. Models
    /// that read pictures of a fixed size, or divide them into squares of one, need the tokens of one picture of that size.
    ///
    /// # Errors
    /// Returns an error that names the file and the missing or unsupported field.
    pub fn from_folder(
        folder: &Path,
        config: &Value,
        vision: &VisionConfig,
        max_tokens: usize,
    ) -> Result<Self> {
        for (name, field) in FILES {
            let path = folder.join(name);
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let read = || -> Result<Option<Self>> {
                let json: Value = serde_json::from_str(&text)?;
                let json = field.map_or(&json, |field| &json[field]);
                if json.is_null() {
                    return Ok(None);
                }
                Self::from_json(json, config, vision, max_tokens).map(Some)
            };
            if let Some(processor) = read().with_context(|| path.display().to_string())? {
                return Ok(processor);
            }
        }
        bail!("{} has no preprocessor_config.json, which the vision encoder needs", folder.display())
    }

    /// Reads the options from a preprocessor_config.json.
    pub(super) fn from_json(
        json: &Value,
        config: &Value,
        vision: &VisionConfig,
        max_tokens: usize,
    ) -> Result<Self> {
        let (patch, merge, kind) = (vision.patch, vision.merge, vision.family.projector);
        for field in ["do_resize", "do_rescale", "do_normalize"] {
            // The encoder of Gemma 4 normalizes pictures.
            if field == "do_normalize" && kind == ProjectorKind::Gemma4 {
                continue;
            }
            ensure!(json[field] != false, "{field:?} is false, which is not supported");
        }
        ensure!(
            json["do_pan_and_scan"] != true,
            "\"do_pan_and_scan\" is true, which is not supported; set it to false"
        );
        let size = |json: &Value, field: &str| -> Result<Option<usize>> {
            let value = &json[field];
            match value.as_u64().and_then(|size| usize::try_from(size).ok()) {
                Some(size) if (1..=1 << 30).contains(&size) => Ok(Some(size)),
                None if value.is_null() => Ok(None),
                _ => bail!("{field:?} is {value}, but must be a number from 1 to 2^30"),
            }
        };
        let filter = match json["resample"].as_u64() {
            Some(1) => Filter::Lanczos,
            Some(2) => Filter::Bilinear,
            Some(3) | None => Filter::Bicubic,
            Some(other) => bail!("\"resample\" is {other}; use 1 (Lanczos), 2 (bilinear) or 3 (bicubic)"),
        };
        let unit = patch * merge;
        // Pixels that do not fill a patch are not read.
        let is_size_of_encoder = |side: usize| side <= MAX_SIDE && side / patch == vision.table_side;
        let size_of_encoder = format!("of {0} x {0} patches of {patch} pixels", vision.table_side);
        let required = |size: Option<usize>, name: &str| size.with_context(|| format!("{name:?} is missing"));
        let sizing = match kind {
            ProjectorKind::Qwen2 | ProjectorKind::Qwen3 => {
                for (field, expected) in [("patch_size", patch), ("merge_size", merge)] {
                    let own = size(json, field)?.unwrap_or(expected);
                    ensure!(own == expected, "{field:?} is {own}, but config.json has {expected}");
                }
                let bound = |old: &str, field: &str, default: usize| -> Result<usize> {
                    Ok(size(json, old)?.or(size(&json["size"], field)?).unwrap_or(default))
                };
                let max = bound("max_pixels", "longest_edge", 28 * 28 * 1280)?;
                let max = max.min(max_tokens.saturating_mul(unit * unit)).max(unit * unit);
                Sizing::Smart { min: bound("min_pixels", "shortest_edge", 56 * 56)?.min(max), max }
            }
            ProjectorKind::Gemma3 => {
                let side = |field| required(size(&json["size"], field)?, field);
                let exact = [side("height")?, side("width")?];
                ensure!(
                    exact.iter().all(|side| is_size_of_encoder(*side)),
                    "\"size\" is {} x {}, but the encoder reads pictures {size_of_encoder}, at most {MAX_SIDE} per side",
                    exact[1],
                    exact[0]
                );
                Sizing::Exact(exact)
            }
            ProjectorKind::Gemma4 => {
                for (field, expected) in [("patch_size", patch), ("pooling_kernel_size", merge)] {
                    let own = size(json, field)?.unwrap_or(expected);
                    ensure!(own == expected, "{field:?} is {own}, but config.json has {expected}");
                }
                let of_pixels = size(json, "max_pixels")?.map(|pixels| pixels / (unit * unit));
                let most = size(json, "max_soft_tokens")?.or(of_pixels).unwrap_or(GEMMA_TOKENS);
                // The tables of positions have a row for each patch of the longest picture.
                let most = most.min(max_tokens).min(vision.table_side / merge).max(1);
                Sizing::Tokens(most)
            }
            ProjectorKind::Pixtral | ProjectorKind::Mistral3 => {
                let longest = required(size(&json["size"], "longest_edge")?, "size.longest_edge")?;
                let most = max_tokens.isqrt().saturating_mul(unit).max(unit);
                Sizing::Within { longest: longest.min(most).min(MAX_SIDE) }
            }
            ProjectorKind::Idefics3 => {
                let longest = required(size(&json["size"], "longest_edge")?, "size.longest_edge")?;
                let side =
                    required(size(&json["max_image_size"], "longest_edge")?, "max_image_size.longest_edge")?;
                ensure!(
                    is_size_of_encoder(side),
                    "\"max_image_size\" is {side}, but the encoder reads pictures {size_of_encoder}, at most {MAX_SIDE} per \
                     side"
                );
                let splits = json["do_image_splitting"] != false;
                let longest = longest.min(MAX_SIDE / 2);
                let most = max_tokens / (side / unit).pow(2);
                let longest = if splits { sizes::longest_of_tiles(longest, side, most) } else { longest };
                Sizing::Tiles { longest, side, splits }
            }
        };
        let channels = |field: &str, default: [f64; 3]| -> Result<[f64; 3]> {
            match &json[field] {
                Value::Null => Ok(default),
                list => serde_json::from_value(list.clone())
                    .with_context(|| format!("{field:?} is {list}, but must be a list of three numbers")),
            }
        };
        let (mean, deviation) = match kind {
            ProjectorKind::Gemma4 => ([0.5; 3], [0.5; 3]),
            _ => (channels("image_mean", [0.5; 3])?, channels("image_std", [0.5; 3])?),
        };
        ensure!(
            deviation.iter().all(|own| *own > 0.0),
            "\"image_std\" is {deviation:?}, but must be above 0"
        );
        let rescale = json["rescale_factor"].as_f64().unwrap_or(1.0 / 255.0);
        let index = |field: &str| -> Result<u32> {
            let token = config[field].as_u64().and_then(|token| u32::try_from(token).ok());
            token.with_context(|| format!("config.json: {field:?} is missing"))
        };
        let boundary_tokens = match kind {
            ProjectorKind::Gemma3 => Some([index("boi_token_index")?, index("eoi_token_index")?]),
            ProjectorKind::Gemma4 => Some([index("boi_token_id")?, index("eoi_token_id")?]),
            _ => None,
        };
        Ok(Self {
            sizing,
            filter,
            scale: std::array::from_fn(|channel| (rescale / deviation[channel]) as f32),
            shift: std::array::from_fn(|channel| (-mean[channel] / deviation[channel]) as f32),
            patch,
            merge,
            window: vision.window,
            kind,
            token: vision.token,
            boundary_tokens,
            has_axes: matches!(kind, ProjectorKind::Qwen2 | ProjectorKind::Qwen3),
            is_bidirectional: vision.is_bidirectional(),
        })
    }

    /// Returns the maximum number of tokens of a picture.
    pub fn max_tokens(&self) -> usize {
        let unit = self.patch * self.merge;
        match self.sizing {
            Sizing::Smart { max, .. } => max / (unit * unit),
            Sizing::Exact([height, width]) => (height / unit) * (width / unit),
            Sizing::Tokens(most) => most,
            Sizing::Within { longest } => longest.div_ceil(unit).pow(2),
            Sizing::Tiles { longest, side, splits } => {
                let tiles = if splits { sizes::max_tiles(longest, side) } else { 1 };
                tiles * (side / unit).pow(2)
            }
        }
    }

    /// Returns true if the tokens of pictures have positions of three axes.
    pub(crate) fn has_axes(&self) -> bool {
        self.has_axes
    }

    /// Returns true if the tokens of a picture see each other, so that a step computes all of them.
    pub(crate) fn is_bidirectional(&self) -> bool {
        self.is_bidirectional
    }

    /// Returns true if they see each other only in layers with a window.
    pub(crate) fn is_bidirectional_in_windows(&self) -> bool {
        self.is_bidirectional && self.kind == ProjectorKind::Gemma4
    }

    /// Returns the height and width to which a picture is scaled before it is divided into patches or squares.
    ///
    /// # Errors
    /// Returns an error if one side is much longer than the other.
    fn scaled_size(&self, (width, height): (usize, usize)) -> Result<[usize; 2], PictureError> {
        let (short, long) = (width.min(height), width.max(height));
        if short == 0 || long > short.saturating_mul(MAX_ASPECT) {
            return Err(PictureError::Aspect { width, height });
        }
        let (own, unit) = ([height, width], self.patch * self.merge);
        Ok(match self.sizing {
            Sizing::Smart { min, max } => {
                sizes::size_below(sizes::smart_size(own, unit, min, max), unit, max)
            }
            Sizing::Exact(size) => size,
            Sizing::Tokens(most) => sizes::size_of_tokens(own, unit, most),
            Sizing::Within { longest } => sizes::size_within(own, longest, unit),
            Sizing::Tiles { longest, side, splits: true } => {
                sizes::size_of_tiles(sizes::size_of_longest(own, longest), side)
            }
            Sizing::Tiles { side, splits: false, .. } => [side; 2],
        })
    }

    /// Returns the number of tokens of a picture of (width, height) pixels.
    ///
    /// # Errors
    /// Returns an error if one side is much longer than the other.
    pub fn tokens_of_size(&self, size: (usize, usize)) -> Result<usize, PictureError> {
        let [height, width] = self.scaled_size(size)?;
        let (side, parts) = match self.sizing {
            Sizing::Tiles { side, .. } => match (height / side) * (width / side) {
                0 | 1 => (Some(side), 1),
                squares => (Some(side), squares + 1),
            },
            _ => (None, 1),
        };
        let tokens = |pixels: usize| side.unwrap_or(pixels) / self.patch / self.merge;
        Ok(parts * tokens(height) * tokens(width))
    }

    /// Scales a picture and divides it into patches.
    ///
    /// # Errors
    /// Returns an error if one side is much longer than the other.
    pub fn process(&self, picture: &RgbPicture) -> Result<ProcessedPicture, PictureError> {
        let &RgbPicture { width, height, .. } = picture;
        let size = self.scaled_size((width, height))?;
        let scaled =
            |picture: &RgbPicture, [height, width]: [usize; 2]| picture.resized((width, height), self.filter);
        let (parts, tiles) = match self.sizing {
            Sizing::Tiles { longest, side, splits } => {
                let whole = scaled(picture, sizes::size_of_longest([height, width], longest));
                let scaled = scaled(&whole, size);
                if splits { self.tiles(&scaled, side) } else { (vec![scaled], [0; 2]) }
            }
            _ => (vec![scaled(picture, size)], [0; 2]),
        };
        let grids: Vec<[usize; 2]> =
            parts.iter().map(|part| [part.height / self.patch, part.width / self.patch]).collect();
        let patches = parts.iter().zip(&grids).flat_map(|(part, grid)| self.patches(part, *grid)).collect();
        let hash = Sha256::new()
            .chain_update((width as u64).to_be_bytes())
            .chain_update((height as u64).to_be_bytes())
            .chain_update(&picture.rgb);
        let mut processed = ProcessedPicture {
            hash: hash.finalize().into(),
            patches,
            grids,
            scale: self.scale,
            shift: self.shift,
            merge: self.merge,
            tiles,
            run: 0,
        };
        let [_, columns] = processed.token_grid();
        processed.run = match self.kind {
            ProjectorKind::Pixtral | ProjectorKind::Mistral3 => columns,
            _ => processed.tokens() / processed.grids.len().max(1),
        };
        Ok(processed)
    }

    /// Returns the squares of a picture, row by row, then the whole picture as one of them; and their rows and columns.
    fn tiles(&self, picture: &RgbPicture, side: usize) -> (Vec<RgbPicture>, [usize; 2]) {
        let [rows, columns] = [picture.height / side, picture.width / side];
        if rows * columns <= 1 {
            return (vec![picture.clone()], [0; 2]);
        }
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (column * side, row * side)));
        let mut tiles: Vec<_> = places.map(|place| picture.part(place, (side, side))).collect();
        tiles.push(picture.resized((side, side), self.filter));
        (tiles, [rows, columns])
    }

    /// Returns the bytes of the patches of a picture in the encoder's order, channel by channel.
    fn patches(&self, picture: &RgbPicture, size: [usize; 2]) -> Vec<u8> {
        let side = self.patch;
        let mut bytes = Vec::with_capacity(picture.rgb.len());
        for [row, column] in grid::patch_order(size, self.merge, self.window) {
            for channel in 0..3 {
                for y in row * side..(row + 1) * side {
                    let first = 3 * (y * picture.width + column * side) + channel;
                    bytes.extend(picture.rgb[first..].iter().step_by(3).take(side));
                }
            }
        }
        bytes
    }

    /// Replaces the placeholders that a chat template wrote by the text of pictures, in which one placeholder represents a
    /// run of features. `text_of_token` returns the text of a token.
    ///
    /// # Errors
    /// Returns an error if there are not as many places as pictures.
    pub fn place(
        &self,
        text: &str,
        pictures: &[Arc<ProcessedPicture>],
        text_of_token: &dyn Fn(u32) -> String,
    ) -> Result<String, PictureError> {
        let token = text_of_token(self.token);
        // The templates of Gemma 4 write the token of features.
        let begin = self.boundary_tokens.filter(|_| self.kind != ProjectorKind::Gemma4);
        let marker = begin.map_or_else(|| token.clone(), |[begin, _]| text_of_token(begin));
        let mut parts = text.split(&marker);
        let found = text.matches(&marker).count();
        if found != pictures.len() || marker.is_empty() {
            return Err(PictureError::Places { found, pictures: pictures.len(), marker });
        }
        let mut placed = parts.next().unwrap_or_default().to_owned();
        for (picture, rest) in pictures.iter().zip(parts) {
            placed += &self.text_of(picture, &token, text_of_token);
            placed += rest;
        }
        Ok(placed)
    }

    fn text_of(
        &self,
        picture: &ProcessedPicture,
        token: &str,
        text_of_token: &dyn Fn(u32) -> String,
    ) -> String {
        match (self.kind, self.boundary_tokens) {
            (ProjectorKind::Gemma4, Some([begin, end])) => {
                format!("{}{token}{}", text_of_token(begin), text_of_token(end))
            }
            (_, Some([begin, end])) => {
                format!("\n\n{}{token}{}\n\n", text_of_token(begin), text_of_token(end))
            }
            (ProjectorKind::Pixtral | ProjectorKind::Mistral3, _) => {
                let [rows, _] = picture.token_grid();
                vec![token; rows].join("[IMG_BREAK]") + "[IMG_END]"
            }
            (ProjectorKind::Idefics3, _) => {
                let around = "<fake_token_around_image>";
                let [rows, columns] = picture.tiles;
                let mut text = String::new();
                for row in 1..=rows {
                    for column in 1..=columns {
                        text += &format!("{around}<row_{row}_col_{column}>{token}");
                    }
                    text += "\n";
                }
                if rows > 0 {
                    text += "\n";
                }
                text + &format!("{around}<global-img>{token}{around}")
            }
            (
                ProjectorKind::Qwen2 | ProjectorKind::Qwen3 | ProjectorKind::Gemma3 | ProjectorKind::Gemma4,
                None,
            ) => token.to_owned(),
        }
    }

    /// Repeats each placeholder in the tokens of a prompt as often as its picture has features. Returns the tokens and the
    /// places of the pictures.
    ///
    /// # Errors
    /// Returns an error if there are not as many placeholders as the pictures have.
    pub fn expand(
        &self,
        tokens: &[u32],
        pictures: &[Arc<ProcessedPicture>],
        text_of_token: &dyn Fn(u32) -> String,
    ) -> Result<(Vec<u32>, Vec<Placement>), PictureError> {
        let runs = |picture: &Arc<ProcessedPicture>| picture.tokens() / picture.run.max(1);
        let expected: usize = pictures.iter().map(runs).sum();
        let found = tokens.iter().filter(|token| **token == self.token).count();
        if found != expected {
            let marker = text_of_token(self.token);
            return Err(PictureError::Places { found, pictures: expected, marker });
        }
        let (mut expanded, mut places) =
            (Vec::with_capacity(tokens.len()), Vec::with_capacity(pictures.len()));
        let mut rest = tokens.iter().copied();
        for picture in pictures {
            let mut spans = Vec::new();
            while spans.len() < runs(picture)
                && let Some(token) = rest.next()
            {
                let first = expanded.len();
                if token == self.token {
                    expanded.resize(first + picture.run, token);
                    spans.push(first..expanded.len());
                } else {
                    expanded.push(token);
                }
            }
            places.push(Placement { picture: picture.clone(), spans });
        }
        expanded.extend(rest);
        Ok((expanded, places))
    }
}
