//! Fields of a request for a second pass at a larger size ("hires fix"), and their validation.
use serde::Deserialize;
use worker_core::ApiError;

use crate::pipeline::{Hires, Upscaler};
use crate::served::ModelInfo;

/// Default scale and default strength, as in A1111.
const SCALE: f64 = 2.0;
const STRENGTH: f64 = 0.75;
/// Maximum scale.
const MAX_SCALE: f64 = 16.0;

/// Second pass of a request. The image is scaled by `scale`, unless a width or height is given.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HiresRequest {
    /// Scale of both sides.
    pub scale: f64,
    /// Width in pixels. Without a height, the proportions are kept.
    pub width: Option<usize>,
    /// Height in pixels. Without a width, the proportions are kept.
    pub height: Option<usize>,
    /// Number of steps; `None` and 0 select that of the first pass.
    pub steps: Option<usize>,
    /// Strength of the change, above 0 and at most 1.
    pub strength: f64,
    /// Name of the upscaler, as in A1111.
    pub upscaler: String,
}

impl Default for HiresRequest {
    /// Returns the defaults of A1111: a scale of 2, a strength of 0.75, and scaling of the latents.
    fn default() -> Self {
        Self {
            scale: SCALE,
            width: None,
            height: None,
            steps: None,
            strength: STRENGTH,
            upscaler: "Latent".to_owned(),
        }
    }
}

fn invalid<T>(field: &str, why: String) -> Result<T, ApiError> {
    Err(ApiError::field(format!("hires.{field}"), why))
}

impl HiresRequest {
    /// Checks fields whose valid values do not depend on the model, and returns the upscaler.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn check_values(&self) -> Result<Upscaler, ApiError> {
        let Self { scale, strength, .. } = *self;
        if !(scale > 0.0 && scale <= MAX_SCALE) {
            return invalid("scale", format!("is {scale}, but must be above 0 and at most {MAX_SCALE}"));
        }
        if !(strength > 0.0 && strength <= 1.0) {
            return invalid("strength", format!("is {strength}, but must be above 0 and at most 1"));
        }
        Upscaler::of(&self.upscaler).ok_or_else(|| {
            let names = Upscaler::NAMES.map(|(name, _)| name).join(", ");
            ApiError::field("hires.upscaler", format!("must be one of {names}"))
        })
    }

    /// Returns the second pass of a request of this width, height and number of steps. If both sides are given and have other
    /// proportions, the image is scaled to cover them, and its edges are cut off.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn pass(
        &self,
        (width, height): (usize, usize),
        steps: usize,
        info: &ModelInfo,
    ) -> Result<Hires, ApiError> {
        let Self { scale, strength, .. } = *self;
        let upscaler = self.check_values()?;
        let most = info.bounds.steps;
        let steps = self.steps.filter(|steps| *steps > 0).unwrap_or(steps);
        if steps > most {
            return invalid("steps", format!("is {steps}, but must be at most {most}"));
        }
        for (field, side) in [("width", self.width), ("height", self.height)] {
            let Some(side) = side else { continue };
            if side == 0 || side > info.bounds.side || side % info.multiple != 0 {
                let (most, multiple) = (info.bounds.side, info.multiple);
                return invalid(
                    field,
                    format!("is {side}, but must be a multiple of {multiple} and at most {most}"),
                );
            }
        }
        // Sides that do not result from a given one are rounded down.
        let cells = |side: usize| (side - side % info.multiple).max(info.multiple);
        let (wide, tall) =
            (|x: usize| (x, cells(x * height / width)), |y: usize| (cells(y * width / height), y));
        let scaled = match (self.width, self.height) {
            (None, None) => {
                let side = |side: usize| cells((side as f64 * scale) as usize);
                (side(width), side(height))
            }
            (Some(x), None) => wide(x),
            (None, Some(y)) => tall(y),
            (Some(x), Some(y)) if width * y < height * x => wide(x),
            (Some(_), Some(y)) => tall(y),
        };
        let size = match (self.width, self.height) {
            (Some(x), Some(y)) => (x, y),
            _ => scaled,
        };
        let (side, pixels) = (info.bounds.side, info.bounds.pixels);
        if scaled.0.max(scaled.1) > side || scaled.0 * scaled.1 > pixels {
            let why = format!("makes {} x {}: at most {side} per side, {pixels} pixels", scaled.0, scaled.1);
            let field = match (self.width, self.height) {
                (None, None) => "scale",
                (None, Some(_)) => "height",
                (Some(_), _) => "width",
            };
            return invalid(field, why);
        }
        let hires = Hires { scaled, size, steps, strength, upscaler };
        hires.check_schedule().or_else(|why| invalid("strength", format!("of {why}")))?;
        Ok(hires)
    }
}
