//! Request parameters and their validation against the model.
use std::sync::Arc;

use worker_core::body::{self, Limit};
use worker_core::{ApiError, blocking, fields};

use crate::controlnets::ControlNetRequest;
use crate::hires::HiresRequest;
use crate::images::Source;
use crate::loras::{self, LoraRequest};
use crate::model::{Version, parse_prompt};
use crate::picture::{Limits, Mask, Picture};
use crate::pipeline::{Request, Start};
use crate::schedulers::Method;
use crate::served::{ModelInfo, ServedModel};

/// Maximum size of an image file in bytes.
const MAX_FILE_BYTES: usize = 20 << 20;
/// Default strength without and with a mask. With a mask, nothing of the masked part needs to be preserved.
const DEFAULT_STRENGTHS: [f64; 2] = [0.8, 1.0];

fields! {
    /// Parameters of image generation. Missing ones have the defaults of the model.
    pub struct Parameters => {
        /// Description of the images.
        prompt: String,
        /// Description of what the images should not show.
        negative_prompt: String,
        /// Number of denoising steps.
        steps: usize,
        /// Classifier-free guidance scale.
        guidance: f64,
        /// Seed of the first image; seeds increase by 1 from image to image. Random by default.
        seed: u64,
        /// Number of images.
        n: usize,
        /// Name of the sampling method, such as `dpm++2m`.
        scheduler: String,
        /// If true, Karras noise levels are used, except by ddim, pndm and lcm.
        karras: bool,
        /// If true, exponential noise levels are used, except by ddim, pndm and lcm.
        exponential: bool,
        /// Strength of the change of an input image, above 0 and at most 1.
        strength: f64,
        /// Number of the layer of the text encoder whose output is used, from the last one: 1 by default.
        clip_skip: usize,
        /// LoRA files, in addition to the tags `<lora:name:weight>` of the prompt.
        loras: Vec<LoraRequest>,
        /// ControlNets, each with an image.
        controlnets: Vec<ControlNetRequest>,
        /// Second pass at a larger size.
        hires: HiresRequest,
        /// Threshold of the first-block cache of transformers; 0 disables it.
        block_cache: f64,
        /// Fraction of the training timesteps after which the refiner computes the remaining steps.
        refiner_switch_at: f64,
    }
}

/// The size and the images of a request.
#[derive(Debug, Default)]
pub struct Canvas {
    /// Width in pixels.
    pub width: Option<usize>,
    /// Height in pixels.
    pub height: Option<usize>,
    /// Input image.
    pub image: Option<Source>,
    /// Mask of the part to regenerate.
    pub mask: Option<Source>,
    /// If true and there is no mask, the transparent part of the image is regenerated.
    pub transparent_is_mask: bool,
}

/// Names of the width and height fields in the API of the request.
pub type SizeNames = [&'static str; 2];

/// Validates parameters and decodes images on the blocking thread pool.
///
/// # Errors
/// Returns the errors of [`Parameters::request`], or 429 or 503 if the queue is full or closed.
pub async fn check(
    served: &Arc<ServedModel>,
    parameters: Parameters,
    canvas: Canvas,
    names: SizeNames,
) -> Result<Request, ApiError> {
    served.check_capacity()?;
    let has_controls = parameters.controlnets.as_ref().is_some_and(|list| !list.is_empty());
    // Acquiring cannot fail, because the semaphore is never closed.
    let permit = match canvas.image.is_some() || canvas.mask.is_some() || has_controls {
        true => served.decoders.clone().acquire_owned().await.ok(),
        false => None,
    };
    let served = served.clone();
    blocking(move || {
        let _permit = permit;
        parameters.request(canvas, &served.info, names)
    })
    .await
}

fn invalid<T>(name: &str, why: String) -> Result<T, ApiError> {
    Err(ApiError::field(name, why))
}

impl Parameters {
    /// Returns warnings about syntax that is encoded as plain text: the first LoRA tag of the negative prompt, and
    /// the first words of each prompt that A1111 would change from step to step.
    pub fn warnings(&self) -> Vec<String> {
        let negative = self.negative_prompt.as_deref();
        let schedules = [self.prompt.as_deref(), negative].into_iter().flatten().filter_map(schedule);
        negative.and_then(lora).into_iter().chain(schedules).collect()
    }

    /// Checks parameters whose valid values do not depend on the model, before it is loaded.
    ///
    /// # Errors
    /// 400 that names the invalid field.
    pub fn check_values(&self) -> Result<(), ApiError> {
        body::required(self.prompt.as_ref(), "prompt")?;
        body::check(&[
            Limit("guidance", self.guidance.unwrap_or(0.0), 0.0..=100.0, ""),
            Limit("n", self.n.unwrap_or(1) as f64, 1.0..=f64::INFINITY, "images"),
            Limit("block_cache", self.block_cache.unwrap_or(0.0), 0.0..=1.0, ""),
            Limit("refiner_switch_at", self.refiner_switch_at.unwrap_or(1.0), f64::MIN_POSITIVE..=1.0, ""),
            Limit("strength", self.strength.unwrap_or(1.0), f64::MIN_POSITIVE..=1.0, ""),
        ])?;
        self.hires.as_ref().map_or(Ok(()), |hires| hires.check_values().map(drop))
    }

    /// Validates the parameters and returns the request for the pipeline.
    ///
    /// # Errors
    /// 400 that names the invalid field.
    pub fn request(self, canvas: Canvas, info: &ModelInfo, names: SizeNames) -> Result<Request, ApiError> {
        let ModelInfo { bounds, defaults, .. } = info;
        let Canvas { width, height, image, mask, transparent_is_mask } = canvas;
        let prompt = body::required(self.prompt, "prompt")?;
        let (prompt, tags) = loras::take_tags(&prompt).or_else(|why| invalid("prompt", why))?;
        let mut loras =
            info.loras.choose(self.loras.unwrap_or_default()).or_else(|why| invalid("loras", why))?;
        loras.extend(info.loras.choose(tags).or_else(|why| invalid("prompt", why))?);
        let controlnets = info.controlnets.choose(self.controlnets.unwrap_or_default())?;
        let negative = self.negative_prompt.unwrap_or_default();
        for (name, given, is_supported) in [
            ("negative_prompt", !negative.is_empty(), !info.is_distilled),
            ("controlnets", !controlnets.is_empty(), info.has_adapters),
        ] {
            if given && !is_supported {
                return invalid(name, format!("is not supported for {}", info.version.network()));
            }
        }
        let steps = self.steps.unwrap_or(defaults.steps.min(bounds.steps));
        let guidance = self.guidance.unwrap_or(defaults.guidance);
        let n = self.n.unwrap_or(1);
        let clip_skip = self.clip_skip.unwrap_or(1);
        body::check(&[
            Limit("prompt", prompt.len() as f64, 0.0..=bounds.prompt as f64, "bytes"),
            Limit("negative_prompt", negative.len() as f64, 0.0..=bounds.prompt as f64, "bytes"),
            Limit("steps", steps as f64, 1.0..=bounds.steps as f64, "steps"),
            Limit("guidance", guidance, 0.0..=100.0, ""),
            Limit("n", n as f64, 1.0..=bounds.pictures as f64, "images"),
            Limit("clip_skip", clip_skip as f64, 1.0..=info.max_clip_skip as f64, "for this model"),
            Limit("block_cache", self.block_cache.unwrap_or(0.0), 0.0..=1.0, ""),
            Limit("strength", self.strength.unwrap_or(1.0), f64::MIN_POSITIVE..=1.0, ""),
        ])?;
        for (name, text) in [("prompt", &prompt), ("negative_prompt", &negative)] {
            if !info.has_adapters {
                continue;
            }
            parse_prompt(text).or_else(|error| invalid(name, format!("is invalid: {error}")))?;
        }
        let method = match &self.scheduler {
            None => None,
            Some(name) => match name.parse::<Method>() {
                Ok(method) if info.scheduler.methods().contains(&method) => Some(method),
                _ => {
                    let names: Vec<&str> = info.scheduler.methods().iter().map(|own| own.name()).collect();
                    return invalid("scheduler", format!("must be one of {}", names.join(", ")));
                }
            },
        };
        if self.karras == Some(true) && self.exponential == Some(true) {
            return invalid("exponential", "excludes `karras`: set one of them to false".to_owned());
        }
        for (name, given) in [("mask", mask.is_some()), ("strength", self.strength.is_some())] {
            if given && image.is_none() {
                return invalid(name, "requires an `image`".to_owned());
            }
        }
        let is_missing =
            |name| invalid(name, "is missing: an inpainting model requires an image and a mask".to_owned());
        if info.is_inpainting && image.is_none() {
            return is_missing("image");
        }
        if info.version == Version::XlRefiner && image.is_none() {
            return invalid("image", "is missing: XL's refiner requires an input image".to_owned());
        }
        if self.block_cache.is_some_and(|threshold| threshold > 0.0) && !info.has_block_cache {
            return invalid("block_cache", "is supported by models with a transformer only".to_owned());
        }
        if self.refiner_switch_at.is_some() {
            if info.refiner.is_none() {
                return invalid("refiner_switch_at", "requires --refiner".to_owned());
            }
            if self.hires.is_some() {
                return invalid("refiner_switch_at", "is not supported with `hires`".to_owned());
            }
            let method = method.unwrap_or(info.scheduler.method);
            if !method.is_divisible() {
                let name = method.name();
                return invalid(
                    "refiner_switch_at",
                    format!("is not supported with scheduler {name}; use euler"),
                );
            }
        }
        let seed = self.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
        let mut request = Request {
            prompt,
            negative,
            steps,
            guidance,
            seeds: (0..n as u64).map(|i| seed.wrapping_add(i)).collect(),
            method,
            karras: self.karras,
            exponential: self.exponential,
            clip_skip,
            loras,
            block_cache: self.block_cache.unwrap_or(defaults.block_cache),
            refiner_switch_at: self.refiner_switch_at,
            ..defaults.clone()
        };
        // Check the requested size before decoding images.
        check_sides(info, [(width, names[0]), (height, names[1])])?;
        if image.is_none() {
            request.width = width.unwrap_or(defaults.width);
            request.height = height.unwrap_or(defaults.height);
            if request.width.saturating_mul(request.height) > bounds.pixels {
                let (width, height, most) = (request.width, request.height, bounds.pixels);
                return invalid(names[0], format!("makes {width} x {height}: at most {most} pixels"));
            }
        }
        let limits = Limits { bytes: MAX_FILE_BYTES, side: bounds.side as u32, pixels: bounds.pixels as u64 };
        if let Some(source) = image {
            let file = source.file().or_else(|why| invalid("image", why))?;
            let picture =
                Picture::decode(&file, limits).or_else(|error| invalid("image", decode_error(&error)))?;
            let size = (picture.width(), picture.height());
            check_sides(info, [(Some(size.0), "image"), (Some(size.1), "image")])?;
            let wanted = (width.unwrap_or(size.0), height.unwrap_or(size.1));
            if wanted != size {
                let why =
                    format!("is {} x {}, but {} x {} was requested", size.0, size.1, wanted.0, wanted.1);
                return invalid("image", why);
            }
            (request.width, request.height) = size;
            let own_mask = match mask.is_none() && transparent_is_mask {
                true => Mask::decode_transparent(&file, limits),
                false => Ok(None),
            };
            let own_mask = own_mask.or_else(|error| invalid("image", decode_error(&error)))?;
            request.start = Some(Start { picture, strength: 1.0, mask: own_mask });
        }
        if let (Some(source), Some(start)) = (mask, &mut request.start) {
            let file = source.file().or_else(|why| invalid("mask", why))?;
            let mask = Mask::decode(&file, limits).or_else(|error| invalid("mask", decode_error(&error)))?;
            let (own, of) = ((mask.width(), mask.height()), (request.width, request.height));
            if own != of {
                return invalid(
                    "mask",
                    format!("is {} x {}, but the image is {} x {}", own.0, own.1, of.0, of.1),
                );
            }
            start.mask = Some(mask);
        }
        if let Some(start) = &mut request.start {
            if info.is_inpainting && start.mask.is_none() {
                return is_missing("mask");
            }
            start.strength = self.strength.unwrap_or(DEFAULT_STRENGTHS[usize::from(start.mask.is_some())]);
        }
        if let Some(hires) = &self.hires {
            if request.start.is_some() || info.is_inpainting {
                return invalid("hires", "is not supported with an input image".to_owned());
            }
            request.hires = Some(hires.pass((request.width, request.height), steps, info)?);
        }
        // These images are scaled, so that they may be larger than those of the request.
        let limits = Limits { bytes: MAX_FILE_BYTES, ..Limits::default() };
        let size = (request.width, request.height);
        for chosen in controlnets {
            request.controls.push(chosen.control(size, request.hires.as_ref(), limits)?);
        }
        if let Err(error) = request.total_steps(&info.scheduler) {
            let field = if request.scheduler(&info.scheduler).is_ok() { "hires.steps" } else { "steps" };
            return invalid(field, format!("are not supported: {error}"));
        }
        Ok(request)
    }
}

/// Returns a warning about the first `<lora:name:weight>` in a prompt, if there is one.
fn lora(prompt: &str) -> Option<String> {
    let (_, rest) = prompt.split_once("<lora:")?;
    let (name, _) = rest.split_once('>')?;
    Some(format!("<lora:{name}> is read as text; tags of LoRA files have an effect in the prompt only"))
}

/// Returns a warning about the first `[words:number]` in a prompt, if there is one.
fn schedule(prompt: &str) -> Option<String> {
    prompt.match_indices(']').find_map(|(end, _)| {
        let (_, part) = prompt[..end].rsplit_once('[')?;
        let (_, number) = part.rsplit_once(':')?;
        number.trim().parse::<f64>().ok()?;
        Some(format!("[{part}] is read as text; this worker does not support words that change at a step"))
    })
}

fn decode_error(error: &crate::Error) -> String {
    format!("is invalid: {error}")
}

fn check_sides(info: &ModelInfo, sides: [(Option<usize>, &'static str); 2]) -> Result<(), ApiError> {
    let most = info.bounds.side;
    for (side, name) in sides {
        let Some(side) = side else { continue };
        if side == 0 || side > most {
            return invalid(name, format!("has a side of {side}, but must be 1 to {most} pixels"));
        }
        if side % info.multiple != 0 {
            let near = side.div_ceil(info.multiple) * info.multiple;
            let why =
                format!("has a side of {side}, but must be a multiple of {}, such as {near}", info.multiple);
            return invalid(name, why);
        }
    }
    Ok(())
}
