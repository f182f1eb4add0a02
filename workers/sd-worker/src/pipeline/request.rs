//! What is asked of a pipeline, and whether it can be.
use crate::model::Model;
use crate::picture::{Mask, Picture};
use crate::schedulers::{Method, Scheduler, SchedulerConfig};
use crate::{Error, Result};

/// What a request may ask at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of one side, in pixels.
    pub side: usize,
    /// Of one picture.
    pub pixels: usize,
    /// Of one picture.
    pub steps: usize,
    /// Of one request.
    pub pictures: usize,
    /// Of a prompt, in bytes.
    pub prompt: usize,
}

impl Default for Bounds {
    /// 2048 a side, 1536 · 1536 pixels, 150 steps, 16 pictures, 10000 bytes.
    fn default() -> Self {
        Self { side: 2048, pixels: 1536 * 1536, steps: 150, pictures: 16, prompt: 10_000 }
    }
}

/// A picture to begin with.
#[derive(Debug, Clone)]
pub struct Start {
    /// Of the request's size.
    pub picture: Picture,
    /// In (0, 1]: the part of the steps that is made; at 1 nothing is left of what is painted anew.
    pub strength: f64,
    /// What is painted anew, of the request's size; None: all.
    pub mask: Option<Mask>,
}

/// Pictures to make.
#[derive(Debug, Clone)]
pub struct Request {
    /// What is to be seen.
    pub prompt: String,
    /// What is not.
    pub negative: String,
    /// A multiple of 8.
    pub width: usize,
    /// A multiple of 8.
    pub height: usize,
    /// From noise to picture.
    pub steps: usize,
    /// How strongly the prompt counts; up to 1 the negative prompt does not count and the UNet has half the work.
    pub guidance: f64,
    /// One picture each.
    pub seeds: Vec<u64>,
    /// None: the model's.
    pub method: Option<Method>,
    /// Karras' noise levels; None: as the model has it.
    pub karras: Option<bool>,
    /// None: from noise.
    pub start: Option<Start>,
}

impl Request {
    /// A request as `model` is meant to be asked: its size, 30 steps and guidance 7.5, or 4 steps and none of a Turbo.
    pub fn of(model: &Model, prompt: impl Into<String>) -> Self {
        let side = model.side();
        let (steps, guidance) = if model.turbo { (4, 0.0) } else { (30, 7.5) };
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
            start: None,
        }
    }

    /// Says what cannot be about the request.
    ///
    /// # Errors
    /// [`Error::Request`], with what is allowed.
    pub fn check(&self, bounds: &Bounds, model: &Model) -> Result<()> {
        let no = |message: String| Err(Error::Request(message));
        let (width, height) = (self.width, self.height);
        let multiple = model.vae.config().factor().max(8);
        if width == 0 || height == 0 || width % multiple != 0 || height % multiple != 0 {
            return no(format!("size {width} x {height}: sides are multiples of {multiple}"));
        }
        let pixels = width.saturating_mul(height);
        if width.max(height) > bounds.side || pixels > bounds.pixels {
            let (side, pixels) = (bounds.side, bounds.pixels);
            return no(format!("size {width} x {height}: at most {side} a side and {pixels} pixels in all"));
        }
        if self.steps == 0 || self.steps > bounds.steps {
            return no(format!("{} steps: 1 to {}", self.steps, bounds.steps));
        }
        if !(self.guidance.is_finite() && (0.0..=100.0).contains(&self.guidance)) {
            return no(format!("guidance {}: 0 to 100", self.guidance));
        }
        if self.seeds.is_empty() || self.seeds.len() > bounds.pictures {
            return no(format!("{} pictures: 1 to {}", self.seeds.len(), bounds.pictures));
        }
        for (name, text) in [("prompt", &self.prompt), ("negative prompt", &self.negative)] {
            if text.len() > bounds.prompt {
                return no(format!("{name} of {} bytes: at most {}", text.len(), bounds.prompt));
            }
        }
        if let Some(start) = &self.start {
            if !(start.strength > 0.0 && start.strength <= 1.0) {
                return no(format!("strength {}: above 0, at most 1", start.strength));
            }
            let size = (start.picture.width(), start.picture.height());
            if size != (width, height) {
                return no(format!("picture of {} x {}, asked for {width} x {height}", size.0, size.1));
            }
            if let Some(mask) = start.mask.as_ref().filter(|m| (m.width(), m.height()) != (width, height)) {
                let (w, h) = (mask.width(), mask.height());
                return no(format!("mask of {w} x {h}, picture of {width} x {height}"));
            }
        }
        let masked = self.start.as_ref().is_some_and(|start| start.mask.is_some());
        if model.is_inpainting() && !masked {
            return no("this is an inpainting model: an image and a mask are required".into());
        }
        Ok(())
    }

    /// Its steps, as `config` has them where it does not say.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    pub fn scheduler(&self, config: &SchedulerConfig) -> Result<Scheduler> {
        let karras = self.karras.unwrap_or(config.karras);
        let config = SchedulerConfig { karras, ..config.clone() };
        Scheduler::new(&config, self.method.unwrap_or(config.method), self.steps, self.skipped())
    }

    /// How many of the steps a given picture leaves out.
    pub fn skipped(&self) -> usize {
        let strength = self.start.as_ref().map_or(1.0, |start| start.strength);
        let made = (self.steps as f64 * strength) as usize;
        self.steps - made.clamp(1, self.steps)
    }
}
