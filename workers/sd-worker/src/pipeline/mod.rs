//! From a request to pictures: text to image, image to image, and inpainting.
mod request;
mod tiles;

use std::ops::ControlFlow;

use candle_core::{DType, Tensor};

use crate::model::{Model, PreviewMap, Texts};
use crate::picture::{Mask, Picture};
use crate::schedulers::{Purpose, Scheduler, normal_batch};
use crate::{Error, Result};
pub use request::{Bounds, Request, Start};
pub use tiles::Tiling;
use tiles::{Scale, tiled};

/// Four pictures of 512 x 512, one of 1024 x 1024.
const CELLS: usize = 4 * 64 * 64;

/// A step is done.
pub struct Progress<'a> {
    /// Steps done, of all pictures together.
    pub step: usize,
    /// Steps to do, of all pictures together.
    pub total: usize,
    /// The first of the pictures that this step is of.
    pub first: usize,
    /// How the UNet sees the pictures now: f32 (pictures, channels, height, width).
    pub x0: &'a Tensor,
    map: Option<&'a PreviewMap>,
}

impl Progress<'_> {
    /// Small pictures of [`Progress::x0`], cheap to make; none if it is not known what the channels mean.
    ///
    /// # Errors
    /// The device fails, or the numbers are none.
    pub fn previews(&self) -> Result<Vec<Picture>> {
        self.map.map_or(Ok(Vec::new()), |map| map.pictures(self.x0))
    }
}

/// Is told of each step; [`ControlFlow::Break`] cancels.
pub type OnStep<'a> = dyn FnMut(&Progress) -> ControlFlow<()> + 'a;

/// A model, and what may be asked of it.
#[derive(Debug)]
pub struct Pipeline {
    /// The model.
    pub model: Model,
    /// What a request may ask at most.
    pub bounds: Bounds,
    /// When the VAE works in tiles.
    pub tiling: Tiling,
    /// Cells of latents that go through the UNet at once, if there are several pictures; guidance doubles them.
    pub cells: usize,
}

/// What stays the same in all steps of a request.
struct Fixed {
    texts: Texts,
    /// XL's, in the order of the batch.
    added: Option<Tensor>,
    /// Latents of the given picture, scaled; the mask's cells.
    start: Option<Tensor>,
    mask: Option<Tensor>,
    /// Of a UNet with nine channels: mask and latents of the masked picture.
    inpaint: Option<Tensor>,
    guidance: Option<f64>,
}

impl Pipeline {
    /// A pipeline with the default bounds and tiling, four pictures of 512 x 512 at once.
    pub fn new(model: Model) -> Self {
        Self { model, bounds: Bounds::default(), tiling: Tiling::default(), cells: CELLS }
    }

    /// Makes the pictures, one a seed. Where a mask keeps pixels, they are the given picture's, bit for bit.
    ///
    /// # Errors
    /// [`Error::Request`] before any work, [`Error::Cancelled`] if `on_step` said so, or what the device says.
    pub fn run(&self, request: &Request, on_step: &mut OnStep) -> Result<Vec<Picture>> {
        let latents = self.latents(request, on_step)?;
        let given = request.start.as_ref().and_then(|start| Some((&start.picture, start.mask.as_ref()?)));
        (0..request.seeds.len())
            .map(|i| {
                let picture = self.decode(&latents.narrow(0, i, 1)?)?;
                Ok(match given {
                    Some((given, mask)) => picture.over(given, mask),
                    None => picture,
                })
            })
            .collect()
    }

    /// The latents of the pictures: f32 (seeds, channels, height, width), scaled as the UNet knows them.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    pub fn latents(&self, request: &Request, on_step: &mut OnStep) -> Result<Tensor> {
        request.check(&self.bounds, &self.model)?;
        let scheduler = request.scheduler(&self.model.scheduler)?;
        let factor = self.model.vae.config().factor();
        let cells = request.width * request.height / (factor * factor);
        let group = (self.cells / cells.max(1)).max(1);
        let mut parts = Vec::new();
        for (i, seeds) in request.seeds.chunks(group).enumerate() {
            let fixed = self.fixed(request, seeds)?;
            let groups = request.seeds.len().div_ceil(group);
            let (before, total) = (i * scheduler.steps(), groups * scheduler.steps());
            let mut report = |step: usize, x0: &Tensor| {
                let map = self.model.preview.as_ref();
                let progress = Progress { step: before + step, total, first: i * group, x0, map };
                match on_step(&progress) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Cancelled { step: before + step, total }),
                }
            };
            parts.push(self.denoise(request, seeds, scheduler.clone(), &fixed, &mut report)?);
        }
        Ok(Tensor::cat(&parts, 0)?)
    }

    /// A picture of latents (1, channels, height, width), scaled as the UNet knows them.
    ///
    /// # Errors
    /// Another shape, numbers that are none, or what the device says.
    pub fn decode(&self, latents: &Tensor) -> Result<Picture> {
        let vae = &self.model.vae;
        let latents = (latents / vae.config().scaling_factor)?.to_dtype(self.model.vae_dtype)?;
        let scale = Scale { input: 1, output: vae.config().factor() };
        let rgb = tiled(&latents, self.tiling, scale, &|tile| vae.decode(tile))?;
        let mut pictures = Picture::from_tensor(&rgb)?;
        pictures.pop().ok_or_else(|| Error::model("the VAE made no picture"))
    }

    /// Latents of a picture as f32 (seeds, channels, height, width), scaled as the UNet knows them: for each seed
    /// another sample of what the VAE takes for possible.
    ///
    /// # Errors
    /// Sides that the VAE cannot halve, or what the device says.
    pub fn encode(&self, picture: &Picture, seeds: &[u64]) -> Result<Tensor> {
        self.encode_tensor(&picture.to_tensor(&self.model.device)?, seeds)
    }

    fn encode_tensor(&self, picture: &Tensor, seeds: &[u64]) -> Result<Tensor> {
        let Model { vae, device, vae_dtype, .. } = &self.model;
        let scale = Scale { input: vae.config().factor(), output: 1 };
        let moments = tiled(&picture.to_dtype(*vae_dtype)?, self.tiling, scale, &|tile| vae.encode(tile))?;
        let moments = moments.to_device(device)?;
        let channels = vae.config().latent_channels;
        let mean = moments.narrow(1, 0, channels)?;
        let deviation = (moments.narrow(1, channels, channels)?.clamp(-30f32, 20f32)? * 0.5)?.exp()?;
        let (_, _, height, width) = mean.dims4()?;
        let noise = normal_batch(seeds, Purpose::Encode, (channels, height, width), device)?;
        let sample = noise.broadcast_mul(&deviation)?.broadcast_add(&mean)?;
        Ok((sample * vae.config().scaling_factor)?)
    }

    fn fixed(&self, request: &Request, seeds: &[u64]) -> Result<Fixed> {
        let model = &self.model;
        let guidance = Some(request.guidance).filter(|guidance| *guidance > 1.0);
        let prompts: &[&str] = match guidance {
            Some(_) => &[&request.negative, &request.prompt],
            None => &[&request.prompt],
        };
        let mut texts = model.encode(prompts)?;
        if guidance.is_some() && request.negative.is_empty() && model.zeros_for_empty {
            texts.context = without_first(&texts.context)?;
            texts.pooled = texts.pooled.as_ref().map(without_first).transpose()?;
        }
        // The negative prompt's pictures come first.
        let each = |x: &Tensor| -> Result<Tensor> {
            let rows: Vec<Tensor> = (0..x.dim(0)?)
                .map(|i| {
                    let row = x.narrow(0, i, 1)?;
                    Tensor::cat(&vec![row; seeds.len()], 0)
                })
                .collect::<candle_core::Result<_>>()?;
            Ok(Tensor::cat(&rows, 0)?)
        };
        texts.context = each(&texts.context)?;
        let (width, height) = (request.width, request.height);
        let added = match &texts.pooled {
            Some(pooled) => Some(model.unet.added(&each(pooled)?, [height, width, 0, 0, height, width])?),
            None => None,
        };
        let mut fixed = Fixed { texts, added, start: None, mask: None, inpaint: None, guidance };
        let Some(start) = &request.start else { return Ok(fixed) };
        if start.strength < 1.0 || start.mask.is_some() {
            fixed.start = Some(self.encode(&start.picture, seeds)?);
        }
        if let Some(mask) = &start.mask {
            let cells = mask.cells(model.vae.config().factor(), &model.device)?;
            if model.is_inpainting() {
                fixed.inpaint = Some(self.inpaint(&start.picture, mask, &cells, seeds)?);
            }
            fixed.mask = Some(cells);
        }
        Ok(fixed)
    }

    /// What a UNet with nine channels sees beside the latents: (seeds, 5, height, width).
    fn inpaint(&self, picture: &Picture, mask: &Mask, cells: &Tensor, seeds: &[u64]) -> Result<Tensor> {
        let device = &self.model.device;
        let keep = (1.0 - mask.cells(1, device)?)?;
        let masked = picture.to_tensor(device)?.broadcast_mul(&keep)?;
        let latents = self.encode_tensor(&masked, seeds)?;
        let (n, _, height, width) = latents.dims4()?;
        Ok(Tensor::cat(&[&cells.broadcast_as((n, 1, height, width))?.contiguous()?, &latents], 1)?)
    }

    fn denoise(
        &self,
        request: &Request,
        seeds: &[u64],
        mut scheduler: Scheduler,
        fixed: &Fixed,
        report: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let device = &self.model.device;
        let factor = self.model.vae.config().factor();
        let channels = self.model.vae.config().latent_channels;
        let shape = (channels, request.height / factor, request.width / factor);
        let noise = normal_batch(seeds, Purpose::Start, shape, device)?;
        // At full strength there is nothing of the picture where it is painted anew, as without one.
        let whole = request.start.as_ref().is_none_or(|start| start.strength >= 1.0);
        let mut latents = match &fixed.start {
            Some(start) if !whole => scheduler.add_noise(start, &noise, 0)?,
            _ => (&noise * scheduler.init_sigma())?,
        };
        let skipped = request.skipped();
        for step in 0..scheduler.steps() {
            let timestep = scheduler.timestep(step).unwrap_or_default();
            let output = self.predict(&latents, timestep, fixed)?;
            let mut fresh = || normal_batch(seeds, Purpose::Step(skipped + step), shape, device);
            let stepped = scheduler.step(&output, &latents, &mut fresh)?;
            latents = stepped.sample;
            let mut x0 = stepped.x0;
            // A UNet that knows of masks needs no help; any other gets the picture back after each step.
            if let (Some(mask), Some(start), None) = (&fixed.mask, &fixed.start, &fixed.inpaint) {
                // What comes out last has no noise left.
                let kept = match step + 1 == scheduler.steps() {
                    true => start.clone(),
                    false => scheduler.add_noise(start, &noise, step + 1)?,
                };
                latents = blend(&latents, &kept, mask)?;
                x0 = blend(&x0, start, mask)?;
            }
            report(step + 1, &x0)?;
        }
        Ok(latents)
    }

    /// What the UNet predicts, guided, in f32.
    fn predict(&self, latents: &Tensor, timestep: f64, fixed: &Fixed) -> Result<Tensor> {
        let n = latents.dim(0)?;
        let mut input = latents.to_dtype(self.model.dtype)?;
        if let Some(inpaint) = &fixed.inpaint {
            input = Tensor::cat(&[&input, &inpaint.to_dtype(self.model.dtype)?], 1)?;
        }
        if fixed.guidance.is_some() {
            input = Tensor::cat(&[&input, &input], 0)?;
        }
        let output =
            self.model.unet.forward(&input, &[timestep], &fixed.texts.context, fixed.added.as_ref())?;
        let output = output.to_dtype(DType::F32)?;
        let Some(guidance) = fixed.guidance else { return Ok(output) };
        let (without, with) = (output.narrow(0, 0, n)?, output.narrow(0, n, n)?);
        Ok((&without + ((with - &without)? * guidance)?)?)
    }
}

/// `x` with zeros as its first row.
fn without_first(x: &Tensor) -> candle_core::Result<Tensor> {
    let rest = x.narrow(0, 1, x.dim(0)? - 1)?;
    Tensor::cat(&[&x.narrow(0, 0, 1)?.zeros_like()?, &rest], 0)
}

/// `x` where the mask is one, `kept` where it is zero.
fn blend(x: &Tensor, kept: &Tensor, mask: &Tensor) -> candle_core::Result<Tensor> {
    (x - kept)?.broadcast_mul(mask)? + kept
}
