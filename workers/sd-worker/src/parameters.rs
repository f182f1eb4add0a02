//! What a client asks for, checked field by field against the model.
use std::sync::Arc;

use worker_core::ApiError;

use crate::images::Source;
use crate::picture::{Limits, Mask, Picture};
use crate::pipeline::{Request, Start};
use crate::schedulers::Method;
use crate::served::{About, Served};

/// Bytes of a file that holds a picture.
const FILE: usize = 20 << 20;
/// Strength of a given picture's change, without and with a mask: behind a mask nothing need be kept.
const STRENGTHS: [f64; 2] = [0.8, 1.0];

/// What a client asks for; what it leaves out is as the model has it.
#[derive(Debug, Default)]
pub struct Parameters {
    /// What is to be seen.
    pub prompt: String,
    /// What is not.
    pub negative_prompt: Option<String>,
    /// In pixels.
    pub width: Option<usize>,
    /// In pixels.
    pub height: Option<usize>,
    /// From noise to picture.
    pub steps: Option<usize>,
    /// How strongly the prompt counts.
    pub guidance: Option<f64>,
    /// Of the first picture; the others' follow. None: any.
    pub seed: Option<u64>,
    /// How many pictures.
    pub n: Option<usize>,
    /// ddim, euler, euler-a, dpm++2m or unipc.
    pub scheduler: Option<String>,
    /// Karras' noise levels, for all schedulers but ddim.
    pub karras: Option<bool>,
    /// How much of a given picture is changed.
    pub strength: Option<f64>,
    /// A picture to begin with.
    pub image: Option<Source>,
    /// What of it is painted anew.
    pub mask: Option<Source>,
}

/// What width and height are called where the request came from.
#[derive(Clone, Copy, Debug)]
pub struct SizeNames {
    /// Of the width.
    pub width: &'static str,
    /// Of the height.
    pub height: &'static str,
}

/// Checks on a thread that may take its time: pictures are decoded.
///
/// # Errors
/// As [`Parameters::request`]; 429 or 503 before any work where there is no room.
pub async fn check(
    served: &Arc<Served>,
    parameters: Parameters,
    names: SizeNames,
) -> Result<Request, ApiError> {
    served.check_room()?;
    // Only the worker's end closes the semaphore, and nothing does that.
    let permit = match parameters.image.is_some() || parameters.mask.is_some() {
        true => served.decoders.clone().acquire_owned().await.ok(),
        false => None,
    };
    let served = served.clone();
    blocking(move || {
        let _permit = permit;
        parameters.request(&served.about, names)
    })
    .await
}

/// Runs what takes its time on a thread that may.
///
/// # Errors
/// Its own, and 500 where it panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::internal("the worker has a bug here: its log says more"))?
}

fn wrong<T>(name: &str, why: String) -> Result<T, ApiError> {
    Err(ApiError::field(name, why))
}

impl Parameters {
    /// The request, if the model can make it.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn request(self, about: &About, names: SizeNames) -> Result<Request, ApiError> {
        let About { bounds, defaults, .. } = about;
        let steps = self.steps.unwrap_or(defaults.steps.min(bounds.steps));
        if !(1..=bounds.steps).contains(&steps) {
            return wrong("steps", format!("must be 1 to {}", bounds.steps));
        }
        let guidance = self.guidance.unwrap_or(defaults.guidance);
        if !(0.0..=100.0).contains(&guidance) {
            return wrong("guidance", "must be 0 to 100".to_owned());
        }
        let n = self.n.unwrap_or(1);
        if !(1..=bounds.pictures).contains(&n) {
            return wrong("n", format!("must be 1 to {}", bounds.pictures));
        }
        let negative = self.negative_prompt.unwrap_or_default();
        for (name, text) in [("prompt", &self.prompt), ("negative_prompt", &negative)] {
            if text.len() > bounds.prompt {
                return wrong(name, format!("has {} bytes: {} are the most", text.len(), bounds.prompt));
            }
        }
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
        if self.mask.is_some() && self.image.is_none() {
            return wrong("mask", "needs an `image` that it is of".to_owned());
        }
        if self.strength.is_some() && self.image.is_none() {
            return wrong("strength", "needs an `image` that is changed".to_owned());
        }
        if about.paints_in && self.mask.is_none() {
            let name = if self.image.is_none() { "image" } else { "mask" };
            return wrong(
                name,
                "is missing: this model paints into pictures, and needs picture and mask".to_owned(),
            );
        }
        let strength = self.strength.unwrap_or(STRENGTHS[usize::from(self.mask.is_some())]);
        if !(strength > 0.0 && strength <= 1.0) {
            return wrong("strength", "must be above 0, 1 at most".to_owned());
        }

        let seed = self.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
        let mut request = Request {
            prompt: self.prompt,
            negative,
            steps,
            guidance,
            seeds: (0..n as u64).map(|i| seed.wrapping_add(i)).collect(),
            method,
            karras: self.karras,
            ..defaults.clone()
        };
        // What was asked for is checked before a picture costs anything.
        check_sides(about, [(self.width, names.width), (self.height, names.height)])?;
        if self.image.is_none() {
            request.width = self.width.unwrap_or(defaults.width);
            request.height = self.height.unwrap_or(defaults.height);
            if request.width.saturating_mul(request.height) > bounds.pixels {
                let (width, height, most) = (request.width, request.height, bounds.pixels);
                return wrong(names.width, format!("makes {width} x {height}: {most} pixels are the most"));
            }
        }
        let limits = Limits { bytes: FILE, side: bounds.side as u32, pixels: bounds.pixels as u64 };
        if let Some(source) = self.image {
            let file = source.file().or_else(|why| wrong("image", why))?;
            let picture =
                Picture::decode(&file, limits).or_else(|error| wrong("image", unreadable(&error)))?;
            let size = (picture.width(), picture.height());
            check_sides(about, [(Some(size.0), "image"), (Some(size.1), "image")])?;
            let wanted = (self.width.unwrap_or(size.0), self.height.unwrap_or(size.1));
            if wanted != size {
                let why = format!("is {} x {}, asked for are {} x {}", size.0, size.1, wanted.0, wanted.1);
                return wrong("image", why);
            }
            (request.width, request.height) = size;
            request.start = Some(Start { picture, strength, mask: None });
        }
        if let (Some(source), Some(start)) = (self.mask, &mut request.start) {
            let file = source.file().or_else(|why| wrong("mask", why))?;
            let mask = Mask::decode(&file, limits).or_else(|error| wrong("mask", unreadable(&error)))?;
            let (own, of) = ((mask.width(), mask.height()), (request.width, request.height));
            if own != of {
                return wrong("mask", format!("is {} x {}, the picture {} x {}", own.0, own.1, of.0, of.1));
            }
            start.mask = Some(mask);
        }
        if let Err(error) = request.scheduler(&about.scheduler) {
            return wrong("steps", format!("cannot be made: {error}"));
        }
        Ok(request)
    }
}

fn unreadable(error: &crate::Error) -> String {
    format!("cannot be taken: {error}")
}

fn check_sides(about: &About, sides: [(Option<usize>, &'static str); 2]) -> Result<(), ApiError> {
    let most = about.bounds.side;
    for (side, name) in sides {
        let Some(side) = side else { continue };
        if side == 0 || side > most {
            return wrong(name, format!("has a side of {side}: 1 to {most} can be made"));
        }
        if side % about.multiple != 0 {
            let near = side.div_ceil(about.multiple) * about.multiple;
            let why = format!("has a side of {side}: sides are multiples of {}, as {near}", about.multiple);
            return wrong(name, why);
        }
    }
    Ok(())
}
