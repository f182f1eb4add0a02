//! Requests to a pipeline and their validation.
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::control::Control;
use super::hires::Hires;
use crate::model::{LoraChoice, Model, Version};
use crate::picture::{Mask, Picture};
use crate::schedulers::{Method, Scheduler, SchedulerConfig};
use crate::{Error, Result};

/// Limits of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum width and height in pixels.
    pub side: usize,
    /// Maximum number of pixels of an image.
    pub pixels: usize,
    /// Maximum number of steps of an image.
    pub steps: usize,
    /// Maximum number of images.
    pub pictures: usize,
    /// Maximum length of a prompt in bytes.
    pub prompt: usize,
}

impl Default for Bounds {
    /// Returns limits of 2048 per side, 1536 · 1536 pixels, 150 steps, 16 images and 10000 bytes per prompt.
    fn default() -> Self {
        Self { side: 2048, pixels: 1536 * 1536, steps: 150, pictures: 16, prompt: 10_000 }
    }
}

/// Input image of a request.
#[derive(Debug, Clone)]
pub struct Start {
    /// Image of the size of the request.
    pub picture: Picture,
    /// Fraction of the steps that are computed, in (0, 1]. At 1, nothing of the part in a mask is preserved.
    pub strength: f64,
    /// Mask of the part to regenerate, of the size of the request; `None` regenerates the whole image.
    pub mask: Option<Mask>,
}

/// Request for one or more images.
#[derive(Debug, Clone)]
pub struct Request {
    /// Description of the image.
    pub prompt: String,
    /// Negative prompt: description of what the image should not show.
    pub negative: String,
    /// Width in pixels, a multiple of [`Model::multiple`].
    pub width: usize,
    /// Height in pixels, a multiple of [`Model::multiple`].
    pub height: usize,
    /// Number of denoising steps.
    pub steps: usize,
    /// Classifier-free guidance scale. Up to 1, the negative prompt is ignored and the network's batch is halved. Flux dev
    /// takes it as an input, and has no negative prompt.
    pub guidance: f64,
    /// Seeds, one per image.
    pub seeds: Vec<u64>,
    /// Sampling method; `None` selects that of the model.
    pub method: Option<Method>,
    /// Use of Karras noise levels; `None` selects the setting of the model.
    pub karras: Option<bool>,
    /// Use of exponential noise levels; `None` selects the setting of the model. Excludes `karras`.
    pub exponential: Option<bool>,
    /// Input image; `None` starts from noise.
    pub start: Option<Start>,
    /// Number of the layer of the text encoder, from the last one, whose output is used: 1 for the last one. XL and
    /// Stable Diffusion 2 permit 1 only.
    pub clip_skip: usize,
    /// LoRA files that are in effect.
    pub loras: Vec<LoraChoice>,
    /// ControlNets, whose effects add.
    pub controls: Vec<Control>,
    /// Second pass at a larger size.
    pub hires: Option<Hires>,
    /// Threshold of the first-block cache of transformers ([`BlockCache`](crate::model::BlockCache)); 0 disables it. With a
    /// cache, images are generated one at a time, so that they do not depend on the others of the request.
    pub block_cache: f64,
    /// Fraction of the training timesteps after which [`Pipeline::refiner`](super::Pipeline::refiner) computes the remaining
    /// steps, above 0 and at most 1.
    pub refiner_switch_at: Option<f64>,
    /// Flag that cancels the request. It is checked between images, and between blocks of T5 and of the VAE and
    /// tiles.
    pub cancelled: Option<Arc<AtomicBool>>,
}

impl Request {
    /// Returns the defaults of `model`: 30 steps with guidance 7.5, or 4 steps without guidance for Turbo. Transformers have
    /// the defaults of their pipelines in diffusers.
    pub fn of(model: &Model, prompt: impl Into<String>) -> Self {
        let (steps, guidance) = match model.version {
            _ if model.turbo => (4, 0.0),
            Version::Flux => (28, 3.5),
            Version::Sd3 | Version::Sd35 => (28, 7.0),
            _ => (30, 7.5),
        };
        Self::sized(prompt, model.side(), steps, guidance)
    }

    /// Returns a request for a square image without anything optional.
    pub(crate) fn sized(prompt: impl Into<String>, side: usize, steps: usize, guidance: f64) -> Self {
        Self {
            prompt: prompt.into(),
            negative: String::new(),
            width: side,
            height: side,
            steps,
            guidance,
            seeds: vec![0],
            method: None,
            karras: None,
            exponential: None,
            start: None,
            clip_skip: 1,
            loras: Vec::new(),
            controls: Vec::new(),
            hires: None,
            block_cache: 0.0,
            refiner_switch_at: None,
            cancelled: None,
        }
    }

    /// Checks that the request has not been cancelled.
    ///
    /// # Errors
    /// Returns [`Error::Cancelled`] with these numbers of steps if the request has been cancelled.
    pub(super) fn check_cancelled(&self, step: usize, total: usize) -> Result<()> {
        match &self.cancelled {
            Some(cancelled) if cancelled.load(Relaxed) => Err(Error::Cancelled { step, total }),
            _ => Ok(()),
        }
    }

    /// Validates the request.
    ///
    /// # Errors
    /// Returns [`Error::Request`] with the permitted values.
    pub fn check(&self, bounds: &Bounds, model: &Model) -> Result<()> {
        let invalid = |message: String| Err(Error::Request(message));
        let (width, height) = (self.width, self.height);
        let multiple = model.multiple();
        if width == 0 || height == 0 || width % multiple != 0 || height % multiple != 0 {
            return invalid(format!("size {width} x {height}: sides must be multiples of {multiple}"));
        }
        if let Some(most) = model.max_side().filter(|most| width.max(height) > *most) {
            return invalid(format!("size {width} x {height}: the network supports sides of at most {most}"));
        }
        let pixels = width.saturating_mul(height);
        if width.max(height) > bounds.side || pixels > bounds.pixels {
            let (side, pixels) = (bounds.side, bounds.pixels);
            return invalid(format!("size {width} x {height}: at most {side} per side, {pixels} in total"));
        }
        if self.steps == 0 || self.steps > bounds.steps {
            return invalid(format!("{} steps: must be 1 to {}", self.steps, bounds.steps));
        }
        if !(self.guidance.is_finite() && (0.0..=100.0).contains(&self.guidance)) {
            return invalid(format!("guidance {}: must be 0 to 100", self.guidance));
        }
        if self.seeds.is_empty() || self.seeds.len() > bounds.pictures {
            return invalid(format!("{} images: must be 1 to {}", self.seeds.len(), bounds.pictures));
        }
        let network = model.version.network();
        if !self.negative.is_empty() && model.is_distilled() {
            return invalid(format!("negative prompt: {network} does not support it; leave it empty"));
        }
        if !self.controls.is_empty() && !model.has_adapters() {
            return invalid(format!("ControlNets: not supported for {network}"));
        }
        if !(0.0..=1.0).contains(&self.block_cache) {
            return invalid(format!("block cache {}: must be 0 to 1", self.block_cache));
        }
        if self.block_cache > 0.0 && !model.has_block_cache() {
            return invalid(format!("block cache: not supported for {network}"));
        }
        if self.clip_skip == 0 || self.clip_skip > model.max_clip_skip() {
            let most = model.max_clip_skip();
            return invalid(format!("clip skip {}: must be 1 to {most} for {network}", self.clip_skip));
        }
        for (name, text) in [("prompt", &self.prompt), ("negative prompt", &self.negative)] {
            if text.len() > bounds.prompt {
                return invalid(format!("{name} of {} bytes: at most {} allowed", text.len(), bounds.prompt));
            }
        }
        if let Some(start) = &self.start {
            if !(start.strength > 0.0 && start.strength <= 1.0) {
                return invalid(format!("strength {}: must be above 0 and at most 1", start.strength));
            }
            let size = (start.picture.width(), start.picture.height());
            if size != (width, height) {
                return invalid(format!("image of {} x {}: expected {width} x {height}", size.0, size.1));
            }
            if let Some(mask) = start.mask.as_ref().filter(|m| (m.width(), m.height()) != (width, height)) {
                let (w, h) = (mask.width(), mask.height());
                return invalid(format!("mask of {w} x {h}: expected {width} x {height}"));
            }
        }
        if self.controls.len() > Control::MAX_COUNT {
            let most = Control::MAX_COUNT;
            return invalid(format!("{} ControlNets: at most {most} are supported", self.controls.len()));
        }
        for control in &self.controls {
            control.check((width, height), self.hires.as_ref())?;
        }
        let masked = self.start.as_ref().is_some_and(|start| start.mask.is_some());
        if model.is_inpainting() && !masked {
            return invalid("this is an inpainting model: an image and a mask are required".into());
        }
        self.check_refiner(self.method.unwrap_or(model.scheduler.method))?;
        if model.is_refiner() && self.start.is_none() {
            return invalid("this is XL's refiner, which changes images: an image is required".into());
        }
        self.hires.as_ref().map_or(Ok(()), |hires| self.check_second_pass(hires, bounds, model))
    }

    fn check_refiner(&self, method: Method) -> Result<()> {
        let invalid = |message: String| Err(Error::request(format!("refiner: {message}")));
        let Some(switch_at) = self.refiner_switch_at else { return Ok(()) };
        if !(switch_at > 0.0 && switch_at <= 1.0) {
            return invalid(format!("switch at {switch_at}: must be above 0 and at most 1"));
        }
        if self.hires.is_some() {
            return invalid("is not supported with a second pass".to_owned());
        }
        if !method.is_divisible() {
            return invalid(format!(
                "scheduler {} evaluates the network several times per step; use another one, such as euler",
                method.name()
            ));
        }
        Ok(())
    }

    fn check_second_pass(&self, hires: &Hires, bounds: &Bounds, model: &Model) -> Result<()> {
        let Hires { scaled, size, steps, strength, .. } = *hires;
        let invalid = |message: String| Err(Error::request(format!("second pass: {message}")));
        if self.start.is_some() || model.is_inpainting() || model.is_refiner() {
            return invalid("is not supported with an input image".to_owned());
        }
        if !(strength > 0.0 && strength <= 1.0) {
            return invalid(format!("strength {strength}: must be above 0 and at most 1"));
        }
        if steps == 0 || steps > bounds.steps {
            return invalid(format!("{steps} steps: must be 1 to {}", bounds.steps));
        }
        hires.check_schedule().or_else(|why| invalid(format!("strength {why}")))?;
        let (multiple, pixels) = (model.multiple(), bounds.pixels);
        let side = model.max_side().unwrap_or(bounds.side).min(bounds.side);
        for (width, height) in [size, scaled] {
            if width == 0 || height == 0 || width % multiple != 0 || height % multiple != 0 {
                return invalid(format!("size {width} x {height}: sides must be multiples of {multiple}"));
            }
            if width.max(height) > side || width.saturating_mul(height) > pixels {
                let limits = format!("at most {side} per side, {pixels} in total");
                return invalid(format!("size {width} x {height}: {limits}"));
            }
        }
        if size.0 > scaled.0 || size.1 > scaled.1 {
            let ((width, height), (most_width, most_height)) = (size, scaled);
            return invalid(format!(
                "size {width} x {height}: at most {most_width} x {most_height}, to which the image is scaled"
            ));
        }
        Ok(())
    }

    /// Returns the request of the second pass, without its input. `factor` is the side of a cell of the latents in pixels.
    pub(super) fn second_pass(&self, hires: &Hires, factor: usize) -> Self {
        let (width, height) = hires.size;
        let controls = self.controls.iter().map(|control| control.second_pass(hires, factor)).collect();
        Self { width, height, steps: hires.schedule_steps(), controls, hires: None, ..self.clone() }
    }

    /// Creates the scheduler of the second pass.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduler::new`].
    pub(super) fn second_scheduler(&self, hires: &Hires, config: &SchedulerConfig) -> Result<Scheduler> {
        let steps = hires.schedule_steps();
        self.scheduler_of(config, hires.size, steps, steps - hires.steps)
    }

    /// Creates the scheduler of the first pass; `config` provides the defaults.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduler::new`].
    pub fn scheduler(&self, config: &SchedulerConfig) -> Result<Scheduler> {
        self.scheduler_from(config, self.skipped())
    }

    /// Like [`Self::scheduler`], without the first `skip` steps.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduler::new`].
    pub(super) fn scheduler_from(&self, config: &SchedulerConfig, skip: usize) -> Result<Scheduler> {
        self.scheduler_of(config, (self.width, self.height), self.steps, skip)
    }

    /// Creates a scheduler with `steps` steps for images of this width and height, without the first `skip` of them.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduler::new`].
    fn scheduler_of(
        &self,
        config: &SchedulerConfig,
        (width, height): (usize, usize),
        steps: usize,
        skip: usize,
    ) -> Result<Scheduler> {
        let (karras, exponential) = self.noise_levels(config);
        let flow = config.flow.as_ref().map(|flow| flow.with_size(width, height));
        let config = SchedulerConfig { karras, exponential, flow, ..config.clone() };
        Scheduler::new(&config, self.method.unwrap_or(config.method), steps, skip)
    }

    /// Returns the number of steps of all passes of an image.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduler::new`].
    pub fn total_steps(&self, config: &SchedulerConfig) -> Result<usize> {
        let second = self.hires.as_ref().map(|hires| self.second_scheduler(hires, config)).transpose()?;
        Ok(self.scheduler(config)?.steps() + second.map_or(0, |scheduler| scheduler.steps()))
    }

    /// Returns true if Karras noise levels are used, and true if exponential ones are used; `config` provides the
    /// defaults.
    pub fn noise_levels(&self, config: &SchedulerConfig) -> (bool, bool) {
        let karras = self.karras.unwrap_or(config.karras && self.exponential != Some(true));
        (karras, self.exponential.unwrap_or(config.exponential && !karras))
    }

    /// Returns the number of steps that are skipped because of an input image.
    pub fn skipped(&self) -> usize {
        let strength = self.start.as_ref().map_or(1.0, |start| start.strength);
        let computed = (self.steps as f64 * strength) as usize;
        self.steps - computed.clamp(1, self.steps)
    }
}
