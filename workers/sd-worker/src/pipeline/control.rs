//! ControlNets of a request: images that the generated ones follow.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;

use super::hires::Hires;
use crate::model::{ControlInputs, ControlNet, Features, Model};
use crate::picture::{Fit, Picture};
use crate::{Check, Error, Result};

/// A ControlNet of a request, and its image.
#[derive(Debug, Clone)]
pub struct Control {
    /// Folder in the layout of diffusers, or `.safetensors` file.
    pub path: PathBuf,
    /// Image of the size of the request.
    pub picture: Picture,
    /// Image of the size [`Hires::scaled`], for the second pass; `None` scales `picture`.
    pub hires_picture: Option<Picture>,
    /// Factor of the effect.
    pub weight: f64,
    /// Fraction of the steps after which the effect starts, 0 to 1.
    pub start: f64,
    /// Fraction of the steps after which the effect ends, above `start` and at most 1.
    pub end: f64,
}

impl Control {
    /// Maximum number of ControlNets of a request.
    pub const MAX_COUNT: usize = 4;
    /// Maximum absolute weight.
    pub const MAX_WEIGHT: f64 = 10.0;

    /// Validates the values for a request of this width and height, with a second pass `hires`.
    ///
    /// # Errors
    /// Returns [`Error::Request`] with the permitted values.
    pub(super) fn check(&self, size: (usize, usize), hires: Option<&Hires>) -> Result<()> {
        let Self { path, picture, hires_picture, weight, start, end } = self;
        let invalid = |what: String| Err(Error::request(format!("ControlNet {}: {what}", path.display())));
        let most = Self::MAX_WEIGHT;
        if !(-most..=most).contains(weight) {
            return invalid(format!("weight {weight}: must be -{most} to {most}"));
        }
        if !(*start >= 0.0 && start < end && *end <= 1.0) {
            return invalid(format!(
                "steps from {start} to {end}: must be 0 to 1, and start before they end"
            ));
        }
        let images = [(Some(picture), Some(size)), (hires_picture.as_ref(), hires.map(|hires| hires.scaled))];
        for (picture, size) in images {
            let (Some(picture), Some(size)) = (picture, size) else { continue };
            let own = (picture.width(), picture.height());
            if own != size {
                return invalid(format!("image of {} x {}: expected {} x {}", own.0, own.1, size.0, size.1));
            }
        }
        Ok(())
    }

    /// Returns the ControlNet with its image for the second pass, which is scaled and cut like the latents of the first. `factor`
    /// is the side of a cell of the latents in pixels.
    pub(super) fn second_pass(&self, hires: &Hires, factor: usize) -> Self {
        let own = self.hires_picture.as_ref().unwrap_or(&self.picture);
        let picture = own.resized(hires.scaled, Fit::Stretch);
        Self { picture: picture.part(hires.corner(factor), hires.size), hires_picture: None, ..self.clone() }
    }

    /// Returns true if the ControlNet has an effect in step `step` of `steps`, counted from 0.
    fn is_active(&self, step: usize, steps: usize) -> bool {
        let position = |step: usize| step as f64 / steps as f64;
        self.weight != 0.0 && position(step) >= self.start && position(step + 1) <= self.end
    }
}

/// A loaded ControlNet of a request, and the features of its image.
pub(super) struct LoadedControl<'a> {
    control: &'a Control,
    network: Arc<ControlNet>,
    hint: Tensor,
}

/// Loads the ControlNets of a request, frees others, and computes the features of the images.
///
/// # Errors
/// Returns the errors of [`Model::select_controlnets`].
pub(super) fn load<'a>(
    model: &Model,
    controls: &'a [Control],
    check: Check,
) -> Result<Vec<LoadedControl<'a>>> {
    let paths: Vec<&Path> = controls.iter().map(|control| control.path.as_path()).collect();
    let networks = model.select_controlnets(&paths, check)?;
    let mut loaded = Vec::new();
    for (control, network) in controls.iter().zip(networks) {
        check()?;
        let hint = network.hint(&control.picture, &model.device)?;
        loaded.push(LoadedControl { control, network, hint });
    }
    Ok(loaded)
}

/// Returns the additional embedding of XL for each ControlNet.
///
/// # Errors
/// The device fails.
pub(super) fn added(
    controls: &[LoadedControl],
    pooled: Option<&Tensor>,
    sizes: [usize; 6],
) -> Result<Vec<Option<Tensor>>> {
    let added = |loaded: &LoadedControl| Ok(pooled.map(|p| loaded.network.added(p, sizes)).transpose()?);
    controls.iter().map(added).collect()
}

/// Embeddings of a batch.
pub(super) struct ControlCondition<'a> {
    pub text: &'a Tensor,
    /// Result of [`added`].
    pub added: &'a [Option<Tensor>],
    /// Number of leading rows of the batch that belong to the negative prompt.
    pub negative_rows: usize,
}

/// Returns the sum of the residuals of all ControlNets that have an effect in step `step` of `steps`, if there are any.
/// `condition` has the embeddings of the batch.
///
/// # Errors
/// The device fails.
pub(super) fn residuals(
    controls: &[LoadedControl],
    latents: &Tensor,
    timestep: f64,
    (step, steps): (usize, usize),
    condition: ControlCondition,
) -> Result<Option<Features>> {
    let ControlCondition { text, added, negative_rows } = condition;
    let mut total: Option<Features> = None;
    for (loaded, added) in controls.iter().zip(added) {
        if !loaded.control.is_active(step, steps) {
            continue;
        }
        let inputs = ControlInputs { text, added: added.as_ref(), hint: &loaded.hint, negative_rows };
        let own = loaded.network.forward(latents, &[timestep], inputs, loaded.control.weight)?;
        total = Some(match total {
            Some(total) => total.plus(&own)?,
            None => own,
        });
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Upscaler;

    fn control(picture: Picture) -> Control {
        Control { path: PathBuf::from("a"), picture, hires_picture: None, weight: 1.0, start: 0.0, end: 1.0 }
    }

    fn hires(scaled: (usize, usize), size: (usize, usize)) -> Hires {
        Hires { scaled, size, steps: 1, strength: 0.5, upscaler: Upscaler::Lanczos }
    }

    #[test]
    fn images_of_the_second_pass_are_cut_like_the_latents() {
        // The red channel is the row, and the green one the column.
        let rows_and_columns = |size: usize| {
            let rgb = (0..size * size).flat_map(|i| [(i / size) as u8, (i % size) as u8, 0]).collect();
            Picture::new(size, size, rgb).unwrap()
        };
        let own = Control { hires_picture: Some(rows_and_columns(24)), ..control(Picture::black(8, 8)) };
        // With 3 and 2 cells of 8 pixels, the latents lose half a cell on each side, rounded down on the left.
        for (size, factor, corner) in
            [((24, 24), 8, [0, 0]), ((16, 8), 8, [8, 0]), ((16, 8), 4, [8, 4]), ((20, 24), 2, [0, 2])]
        {
            let control = own.second_pass(&hires((24, 24), size), factor);
            assert_eq!((control.picture.width(), control.picture.height()), size);
            assert_eq!(control.picture.rgb()[..2], corner, "{size:?}");
            assert!(control.hires_picture.is_none());
        }
        // Without a separate image, the second pass scales that of the first.
        let small = control(rows_and_columns(8)).second_pass(&hires((16, 16), (16, 8)), 4);
        let expected = rows_and_columns(8).resized((16, 16), Fit::Stretch).part((0, 4), (16, 8));
        assert!(small.picture == expected);
    }

    #[test]
    fn fractions_of_the_steps_are_exact() {
        let picture = Picture::black(8, 8);
        let control = control(picture);
        let active = |start: f64, end: f64, steps: usize| -> Vec<usize> {
            let control = Control { start, end, ..control.clone() };
            (0..steps).filter(|step| control.is_active(*step, steps)).collect()
        };
        assert_eq!(active(0.0, 1.0, 4), [0, 1, 2, 3]);
        assert_eq!(active(0.25, 1.0, 4), [1, 2, 3]);
        assert_eq!(active(0.3, 1.0, 4), [2, 3]);
        assert_eq!(active(0.0, 0.5, 4), [0, 1]);
        assert_eq!(active(0.0, 0.49, 4), [0]);
        assert_eq!(active(0.5, 0.51, 4), [0; 0]);
        assert!(!Control { weight: 0.0, ..control }.is_active(0, 1));
    }

    #[test]
    fn invalid_values_are_refused() {
        let picture = Picture::black(8, 16);
        let control = control(picture);
        assert!(control.check((8, 16), None).is_ok());
        for (size, weight, start, end, part) in [
            ((16, 8), 1.0, 0.0, 1.0, "image of 8 x 16: expected 16 x 8"),
            ((8, 16), f64::NAN, 0.0, 1.0, "weight NaN"),
            ((8, 16), f64::INFINITY, 0.0, 1.0, "weight inf"),
            ((8, 16), 10.5, 0.0, 1.0, "weight 10.5: must be -10 to 10"),
            ((8, 16), 1.0, 0.5, 0.5, "steps from 0.5 to 0.5"),
            ((8, 16), 1.0, -0.1, 0.5, "steps from -0.1"),
            ((8, 16), 1.0, 0.1, 1.5, "to 1.5"),
            ((8, 16), 1.0, f64::NAN, 1.0, "steps from NaN"),
            ((8, 16), 1.0, 0.0, f64::NAN, "to NaN"),
        ] {
            let error =
                Control { weight, start, end, ..control.clone() }.check(size, None).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
        let hires = hires((16, 32), (16, 16));
        assert!(control.check((8, 16), Some(&hires)).is_ok());
        let control = Control { hires_picture: Some(Picture::black(16, 16)), ..control };
        let error = control.check((8, 16), Some(&hires)).unwrap_err().to_string();
        assert!(error.contains("image of 16 x 16: expected 16 x 32"), "{error}");
    }
}
