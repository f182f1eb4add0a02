//! Bodies of `txt2img` and `img2img`.
use std::io::Cursor;

use image::imageops::{FilterType, resize};
use image::{GrayImage, ImageFormat};
use serde::Deserialize;
use worker_core::body::{Nested, Others, Table};
use worker_core::{ApiError, fields};

use super::controlnet::AlwaysOnScripts;
use crate::hires::HiresRequest;
use crate::images::Source;
use crate::parameters::{Canvas, Parameters};
use crate::picture::{Fit, Limits, Mask, Picture};
use crate::schedulers::Method;

/// Names of sampling methods in A1111.
pub const SAMPLERS: [(&str, Method); 13] = [
    ("DPM++ 2M", Method::DpmSolver2M),
    ("DPM++ SDE", Method::DpmSolverSde),
    ("DPM++ 2M SDE", Method::DpmSolver2MSde),
    ("Euler a", Method::EulerAncestral),
    ("Euler", Method::Euler),
    ("LMS", Method::Lms),
    ("Heun", Method::Heun),
    ("DPM2", Method::Dpm2),
    ("DPM2 a", Method::Dpm2Ancestral),
    ("DDIM", Method::Ddim),
    ("PLMS", Method::Pndm),
    ("UniPC", Method::UniPc),
    ("LCM", Method::Lcm),
];
/// Samplers for which A1111 selects Karras noise levels.
const AUTOMATICALLY_KARRAS: [Method; 4] =
    [Method::DpmSolver2M, Method::DpmSolverSde, Method::Dpm2, Method::Dpm2Ancestral];
/// Sampler for which A1111 selects exponential noise levels.
const AUTOMATICALLY_EXPONENTIAL: Method = Method::DpmSolver2MSde;
/// Suffix of the names of samplers with Karras noise levels, in older versions of A1111.
const KARRAS: &str = " karras";
/// Suffix of the names of samplers with exponential noise levels, in older versions of A1111.
const EXPONENTIAL: &str = " exponential";

/// Prefix of the values of A1111's page that reuse the first pass' model, sampler or noise levels.
const SAME: &str = "Use same ";
/// Default value of `refiner_switch_at` on A1111's page.
const REFINER_SWITCH_AT: f64 = 0.8;
/// Name of the noise levels that A1111 selects for a sampler.
const AUTOMATIC: &str = "automatic";

const ANY: &[&str] = &["*"];
const OFF: &[&str] = &["false"];
const NONE: &[&str] = &["0", "0.0", "-1"];

/// Fields of A1111 that the worker does not have, each with the values that do not change the images. Values that only
/// concern the edges of masks are accepted, because clients always send them.
const WITHOUT_EFFECT: Table = &[
    ("comments", &["{}"]),
    ("disable_extra_networks", OFF),
    ("do_not_save_grid", ANY),
    ("do_not_save_samples", ANY),
    ("eta", &["0", "0.0", "1", "1.0"]),
    ("firstphase_height", NONE),
    ("firstphase_width", NONE),
    ("force_task_id", ANY),
    ("image_cfg_scale", ANY),
    ("include_init_images", OFF),
    ("initial_noise_multiplier", &["1", "1.0"]),
    ("inpaint_full_res", ANY),
    ("inpaint_full_res_padding", ANY),
    ("inpainting_fill", ANY),
    ("inpainting_mask_invert", NONE),
    ("mask_blur", ANY),
    ("mask_blur_x", ANY),
    ("mask_blur_y", ANY),
    ("mask_round", ANY),
    ("override_settings_restore_afterwards", ANY),
    ("resize_mode", &["0"]),
    ("restore_faces", OFF),
    ("s_churn", NONE),
    ("s_min_uncond", NONE),
    ("s_noise", &["1", "1.0"]),
    ("s_tmax", NONE),
    ("s_tmin", NONE),
    ("save_images", OFF),
    ("script_args", &["[]"]),
    ("script_name", &[""]),
    ("seed_resize_from_h", NONE),
    ("seed_resize_from_w", NONE),
    ("styles", &["[]"]),
    ("subseed", ANY),
    ("subseed_strength", &["0", "0.0"]),
    ("tiling", OFF),
];

fields! {
    /// Fields of both requests.
    pub struct Payload, others: Others::Unsupported(&[WITHOUT_EFFECT]) => {
        /// Description of the images.
        prompt: String,
        /// Description of what the images should not show.
        negative_prompt: String,
        /// Seed of the first image; -1 selects a random one.
        seed: i64,
        /// Number of images at a time.
        batch_size: usize,
        /// Number of batches.
        n_iter: usize,
        /// Number of denoising steps.
        steps: usize,
        /// Classifier-free guidance scale.
        cfg_scale: f64,
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Sampling method.
        sampler_name: String,
        /// Older name of `sampler_name`.
        sampler_index: String,
        /// Noise levels: automatic, normal, karras or exponential.
        scheduler: String,
        /// Strength of the change of an input image, or of the second pass.
        denoising_strength: f64,
        /// If true, `txt2img` has a second pass at a larger size.
        enable_hr: bool,
        /// Scale of the second pass, if neither `hr_resize_x` nor `hr_resize_y` is above 0.
        hr_scale: f64,
        /// Width of the second pass in pixels.
        hr_resize_x: i64,
        /// Height of the second pass in pixels.
        hr_resize_y: i64,
        /// Number of steps of the second pass; 0 selects that of the first.
        hr_second_pass_steps: i64,
        /// Scaling between the passes.
        hr_upscaler: String,
        /// Model of the second pass, which must be that of the first.
        hr_checkpoint_name: String,
        /// Sampling method of the second pass, which must be that of the first.
        hr_sampler_name: String,
        /// Noise levels of the second pass, which must be those of the first.
        hr_scheduler: String,
        /// Prompt of the second pass, which must be that of the first.
        hr_prompt: String,
        /// Negative prompt of the second pass, which must be that of the first.
        hr_negative_prompt: String,
        /// Name of the refiner; empty or `None` for none.
        refiner_checkpoint: String,
        /// Fraction of the noise levels after which the refiner computes the remaining steps.
        refiner_switch_at: f64,
        /// Input image: a list of one.
        init_images: Vec<String>,
        /// Mask of the part to regenerate: its light pixels.
        mask: String,
        /// If false, the response has no images.
        send_images: bool,
        /// Options for this request.
        override_settings: Settings,
        /// Extensions.
        alwayson_scripts: Nested<AlwaysOnScripts>,
    }
}

/// Options of A1111 that the worker has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the model.
    pub sd_model_checkpoint: Option<String>,
    /// Number of the layer of the text encoder whose output is used, from the last one.
    #[serde(rename = "CLIP_stop_at_last_layers")]
    pub clip_skip: Option<usize>,
}

/// Sampling method and noise levels of a request.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// Name in A1111.
    pub name: &'static str,
    method: Method,
    karras: bool,
    exponential: bool,
}

impl Payload {
    /// Returns the sampling method and the noise levels, or `None` if the request has no sampler.
    ///
    /// # Errors
    /// 400 if the sampler or the noise levels are unknown.
    pub fn sampler(&self) -> Result<Option<Sampler>, ApiError> {
        let Some(name) = self.sampler_name.as_ref().or(self.sampler_index.as_ref()) else { return Ok(None) };
        let lower = name.trim().to_lowercase();
        let (mut karras, mut exponential) = (lower.ends_with(KARRAS), lower.ends_with(EXPONENTIAL));
        let plain = [KARRAS, EXPONENTIAL].iter().find_map(|end| lower.strip_suffix(end)).unwrap_or(&lower);
        let Some((name, method)) = SAMPLERS.into_iter().find(|(own, _)| own.to_lowercase() == plain) else {
            let names = SAMPLERS.map(|(name, _)| name).join(", ");
            return Err(ApiError::field("sampler_name", format!("must be one of {names}")));
        };
        match self.scheduler.as_deref().map(str::to_lowercase).as_deref() {
            None | Some("automatic" | "") if karras || exponential => {}
            None | Some("automatic" | "") => {
                karras = AUTOMATICALLY_KARRAS.contains(&method);
                exponential = method == AUTOMATICALLY_EXPONENTIAL;
            }
            Some("karras") => (karras, exponential) = (true, false),
            Some("exponential") => (karras, exponential) = (false, true),
            Some("normal" | "use same scheduler") => {}
            Some(_) => {
                return Err(ApiError::field("scheduler", "must be automatic, normal, karras or exponential"));
            }
        }
        Ok(Some(Sampler { name, method, karras, exponential }))
    }

    /// Returns the parameters of the worker. `is_edit` is true for `img2img`, where units of ControlNet without an image
    /// take the input image.
    ///
    /// # Errors
    /// Returns the errors of [`Self::sampler`] and of [`super::controlnet::Unit::request`].
    pub fn parameters(&mut self, is_edit: bool, settings: &Settings) -> Result<Parameters, ApiError> {
        let sampler = self.sampler()?;
        let scripts = self.alwayson_scripts.take().unwrap_or_default().0;
        let input = self.init_images.as_deref().filter(|_| is_edit).and_then(|images| images.first());
        let controlnets = scripts.units().map(|(path, unit)| unit.request(&path, input));
        let controlnets = controlnets.collect::<Result<_, _>>()?;
        Ok(Parameters {
            prompt: Some(self.prompt.clone().unwrap_or_default()),
            negative_prompt: self.negative_prompt.clone(),
            steps: self.steps,
            guidance: self.cfg_scale,
            seed: self.seed.and_then(|seed| u64::try_from(seed).ok()),
            n: Some(self.batch_size.unwrap_or(1).saturating_mul(self.n_iter.unwrap_or(1))),
            scheduler: sampler.map(|sampler| sampler.method.name().to_owned()),
            karras: sampler.map(|sampler| sampler.karras),
            exponential: sampler.map(|sampler| sampler.exponential),
            strength: self.denoising_strength.filter(|_| is_edit),
            clip_skip: self.override_settings.as_ref().and_then(|own| own.clip_skip).or(settings.clip_skip),
            loras: None,
            controlnets: Some(controlnets),
            hires: if is_edit { None } else { self.hires()? },
            block_cache: None,
            refiner_switch_at: self.refiner().map(|_| self.refiner_switch_at.unwrap_or(REFINER_SWITCH_AT)),
        })
    }

    /// Returns the name of the refiner, if the request has one, without the hash that A1111 adds.
    pub fn refiner(&self) -> Option<&str> {
        let name = self.refiner_checkpoint.as_deref()?;
        let name = name.split_once(" [").map_or(name, |(name, _)| name).trim();
        Some(name).filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("none"))
    }

    /// Checks that a refiner that the request names is `own`, the refiner of the model.
    ///
    /// # Errors
    /// 400 if the request has another one.
    pub fn check_refiner(&self, own: Option<&str>) -> Result<(), ApiError> {
        let Some(name) = self.refiner() else { return Ok(()) };
        let bare = name.strip_suffix(".safetensors").unwrap_or(name);
        match own {
            Some(own) if [name, bare].contains(&own) => Ok(()),
            Some(own) => Err(ApiError::field("refiner_checkpoint", format!("must be {own} or None"))),
            None => Err(ApiError::field("refiner_checkpoint", "requires --refiner; leave it empty")),
        }
    }

    /// Returns the second pass, if there is one.
    fn hires(&self) -> Result<Option<HiresRequest>, ApiError> {
        if self.enable_hr != Some(true) {
            return Ok(None);
        }
        for (name, own, first) in [
            ("hr_checkpoint_name", &self.hr_checkpoint_name, None),
            ("hr_sampler_name", &self.hr_sampler_name, self.sampler_name.as_ref()),
            ("hr_scheduler", &self.hr_scheduler, self.scheduler.as_ref()),
            ("hr_prompt", &self.hr_prompt, self.prompt.as_ref()),
            ("hr_negative_prompt", &self.hr_negative_prompt, self.negative_prompt.as_ref()),
        ] {
            let is_same = |own: &&String| {
                let is_automatic = |name: &str| name.is_empty() || name.eq_ignore_ascii_case(AUTOMATIC);
                let both_automatic = name == "hr_scheduler"
                    && is_automatic(own)
                    && first.is_none_or(|first| is_automatic(first));
                own.is_empty() || own.starts_with(SAME) || Some(*own) == first || both_automatic
            };
            if !own.as_ref().is_none_or(|own| is_same(&own)) {
                return Err(ApiError::field(name, "must be empty, or equal to that of the first pass"));
            }
        }
        let side =
            |side: Option<i64>| side.and_then(|side| usize::try_from(side).ok()).filter(|side| *side > 0);
        let own = HiresRequest::default();
        Ok(Some(HiresRequest {
            scale: self.hr_scale.unwrap_or(own.scale),
            width: side(self.hr_resize_x),
            height: side(self.hr_resize_y),
            steps: side(self.hr_second_pass_steps),
            strength: self.denoising_strength.unwrap_or(own.strength),
            upscaler: self.hr_upscaler.clone().filter(|name| !name.is_empty()).unwrap_or(own.upscaler),
        }))
    }

    /// Returns size and images of the request. An input image and a mask are resized to the size of the request.
    ///
    /// # Errors
    /// 400 if an image is missing, not expected, or invalid.
    pub fn canvas(&mut self, is_edit: bool) -> Result<Canvas, ApiError> {
        let size = self.width.zip(self.height);
        let images = self.init_images.take().unwrap_or_default();
        let mask = self.mask.take().filter(|mask| !mask.is_empty());
        let source = |name, text, is_mask| -> Result<Source, ApiError> {
            let file = Source::Text(text).file().map_err(|why| ApiError::field(name, why))?;
            resized(file, size, is_mask).map(Source::File).map_err(|why| ApiError::field(name, why))
        };
        let image = match (is_edit, <[String; 1]>::try_from(images)) {
            (true, Ok([text])) => Some(source("init_images", text, false)?),
            (true, Err(_)) => return Err(ApiError::field("init_images", "must have one image")),
            (false, Err(none)) if none.is_empty() => None,
            (false, _) => return Err(ApiError::field("init_images", "is supported by img2img only")),
        };
        let mask = mask.map(|text| source("mask", text, true)).transpose()?;
        Ok(Canvas { width: self.width, height: self.height, image, mask, transparent_is_mask: false })
    }
}

/// Resizes an image file or a mask file to `size`, unless it has this size.
fn resized(file: Vec<u8>, size: Option<(usize, usize)>, is_mask: bool) -> Result<Vec<u8>, String> {
    let limits = Limits::default();
    let Some((width, height)) =
        size.filter(|(width, height)| (1..=1 << 14).contains(width) && (1..=1 << 14).contains(height))
    else {
        return Ok(file);
    };
    let invalid = |error: crate::Error| format!("is invalid: {error}");
    if !is_mask {
        let picture = Picture::decode(&file, limits).map_err(invalid)?;
        return match (picture.width(), picture.height()) == (width, height) {
            true => Ok(file),
            false => picture.resized((width, height), Fit::Stretch).png().map_err(invalid),
        };
    }
    let mask = Mask::decode(&file, limits).map_err(invalid)?;
    if (mask.width(), mask.height()) == (width, height) {
        return Ok(file);
    }
    let pixels = mask.inpaint().iter().map(|inpaint| if *inpaint { 255 } else { 0 }).collect();
    let image = GrayImage::from_raw(mask.width() as u32, mask.height() as u32, pixels);
    let mut png = Cursor::new(Vec::new());
    let written = image.map(|image| {
        let resized = resize(&image, width as u32, height as u32, FilterType::Triangle);
        resized.write_to(&mut png, ImageFormat::Png)
    });
    match written {
        Some(Ok(())) => Ok(png.into_inner()),
        Some(Err(error)) => Err(format!("cannot be resized: {error}")),
        None => Err("cannot be resized".to_owned()),
    }
}
