//! What a client asks for, checked field by field against the model.
use std::sync::Arc;

use worker_core::body::{self, Limit};
use worker_core::{ApiError, blocking, fields};

use crate::images::Source;
use crate::picture::{Limits, Mask, Picture};
use crate::pipeline::{Request, Start};
use crate::schedulers::Method;
use crate::served::{ModelInfo, Served};

/// Bytes of a file that holds a picture.
const FILE: usize = 20 << 20;
/// Strength of a given picture's change, without and with a mask: behind a mask nothing need be kept.
const STRENGTHS: [f64; 2] = [0.8, 1.0];

fields! {
    /// What a client asks of the images; what it leaves out is as the model has it.
    pub struct Parameters => {
        /// What the images show.
        prompt: String,
        /// What the images must not show.
        negative_prompt: String,
        /// Number of steps from noise to image.
        steps: usize,
        /// How strongly the prompt counts.
        guidance: f64,
        /// Seed of the first image; those of the others follow it. `None` draws one.
        seed: u64,
        /// Number of images.
        n: usize,
        /// ddim, euler, euler-a, dpm++2m or unipc.
        scheduler: String,
        /// Use Karras' noise levels, with all schedulers except ddim; as the model has it unless given.
        karras: bool,
        /// How much of a given image is changed, above 0 to 1.
        strength: f64,
    }
}

/// The size and the images of a request.
#[derive(Debug, Default)]
pub struct Canvas {
    /// In pixels.
    pub width: Option<usize>,
    /// In pixels.
    pub height: Option<usize>,
    /// An image to begin with.
    pub image: Option<Source>,
    /// The part of it that is generated anew.
    pub mask: Option<Source>,
}

/// What the API that a request came by calls width and height.
pub type SizeNames = [&'static str; 2];

/// Checks on a thread that may take its time: images are decoded.
///
/// # Errors
/// As [`Parameters::request`]; 429 or 503 before any work where the queue is full or closed.
pub async fn check(
    served: &Arc<Served>,
    parameters: Parameters,
    canvas: Canvas,
    names: SizeNames,
) -> Result<Request, ApiError> {
    served.check_room()?;
    // Only the worker's end closes the semaphore, and nothing does that.
    let permit = match canvas.image.is_some() || canvas.mask.is_some() {
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

fn wrong<T>(name: &str, why: String) -> Result<T, ApiError> {
    Err(ApiError::field(name, why))
}

impl Parameters {
    /// The request, if the model can make it.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn request(self, canvas: Canvas, info: &ModelInfo, names: SizeNames) -> Result<Request, ApiError> {
        let ModelInfo { bounds, defaults, .. } = info;
        let Canvas { width, height, image, mask } = canvas;
        let prompt = body::required(self.prompt, "prompt")?;
        let negative = self.negative_prompt.unwrap_or_default();
        let steps = self.steps.unwrap_or(defaults.steps.min(bounds.steps));
        let guidance = self.guidance.unwrap_or(defaults.guidance);
        let n = self.n.unwrap_or(1);
        let strength = self.strength.unwrap_or(STRENGTHS[usize::from(mask.is_some())]);
        body::check(&[
            Limit("prompt", prompt.len() as f64, 0.0..=bounds.prompt as f64, "bytes"),
            Limit("negative_prompt", negative.len() as f64, 0.0..=bounds.prompt as f64, "bytes"),
            Limit("steps", steps as f64, 1.0..=bounds.steps as f64, "steps"),
            Limit("guidance", guidance, 0.0..=100.0, ""),
            Limit("n", n as f64, 1.0..=bounds.pictures as f64, "images"),
            Limit("strength", strength, f64::MIN_POSITIVE..=1.0, ""),
        ])?;
        let method = match &self.scheduler {
            None => None,
            Some(name) => match name.parse::<Method>() {
                Ok(method) => Some(method),
                Err(_) => {
                    let names = Method::ALL.map(Method::name).join(", ");
                    return wrong("scheduler", format!("must be one of {names}"));
                }
            },
        };
        for (name, given) in [("mask", mask.is_some()), ("strength", self.strength.is_some())] {
            if given && image.is_none() {
                return wrong(name, "requires an `image`".to_owned());
            }
        }
        if info.is_inpainting && mask.is_none() {
            let name = if image.is_none() { "image" } else { "mask" };
            return wrong(name, "is missing: an inpainting model requires an image and a mask".to_owned());
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
            ..defaults.clone()
        };
        // What was asked for is checked before a picture costs anything.
        check_sides(info, [(width, names[0]), (height, names[1])])?;
        if image.is_none() {
            request.width = width.unwrap_or(defaults.width);
            request.height = height.unwrap_or(defaults.height);
            if request.width.saturating_mul(request.height) > bounds.pixels {
                let (width, height, most) = (request.width, request.height, bounds.pixels);
                return wrong(names[0], format!("makes {width} x {height}: the maximum is {most} pixels"));
            }
        }
        let limits = Limits { bytes: FILE, side: bounds.side as u32, pixels: bounds.pixels as u64 };
        if let Some(source) = image {
            let file = source.file().or_else(|why| wrong("image", why))?;
            let picture =
                Picture::decode(&file, limits).or_else(|error| wrong("image", unreadable(&error)))?;
            let size = (picture.width(), picture.height());
            check_sides(info, [(Some(size.0), "image"), (Some(size.1), "image")])?;
            let wanted = (width.unwrap_or(size.0), height.unwrap_or(size.1));
            if wanted != size {
                let why =
                    format!("is {} x {}, but {} x {} was requested", size.0, size.1, wanted.0, wanted.1);
                return wrong("image", why);
            }
            (request.width, request.height) = size;
            request.start = Some(Start { picture, strength, mask: None });
        }
        if let (Some(source), Some(start)) = (mask, &mut request.start) {
            let file = source.file().or_else(|why| wrong("mask", why))?;
            let mask = Mask::decode(&file, limits).or_else(|error| wrong("mask", unreadable(&error)))?;
            let (own, of) = ((mask.width(), mask.height()), (request.width, request.height));
            if own != of {
                return wrong(
                    "mask",
                    format!("is {} x {}, but the image is {} x {}", own.0, own.1, of.0, of.1),
                );
            }
            start.mask = Some(mask);
        }
        if let Err(error) = request.scheduler(&info.scheduler) {
            return wrong("steps", format!("cannot be made: {error}"));
        }
        Ok(request)
    }
}

fn unreadable(error: &crate::Error) -> String {
    format!("cannot be read: {error}")
}

fn check_sides(info: &ModelInfo, sides: [(Option<usize>, &'static str); 2]) -> Result<(), ApiError> {
    let most = info.bounds.side;
    for (side, name) in sides {
        let Some(side) = side else { continue };
        if side == 0 || side > most {
            return wrong(name, format!("has a side of {side}, but must be 1 to {most} pixels"));
        }
        if side % info.multiple != 0 {
            let near = side.div_ceil(info.multiple) * info.multiple;
            let why =
                format!("has a side of {side}, but must be a multiple of {}, such as {near}", info.multiple);
            return wrong(name, why);
        }
    }
    Ok(())
}
