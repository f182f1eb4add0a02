//! Generation pipeline: text-to-image, image-to-image and inpainting.
mod control;
mod denoising;
mod hires;
mod interpolation;
mod pass;
mod refiner;
mod request;
mod shared;
mod tiles;

use std::ops::ControlFlow;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::model::{Model, Network, PreviewMap, Texts, Vae, available_bytes};
use crate::picture::{Fit, Mask, Picture};
use crate::schedulers::{Purpose, normal_batch};
use crate::{Check, Error, Result};
pub use control::Control;
use control::LoadedControl;
use denoising::{BatchInputs, Condition, Denoising, Refinement};
pub use hires::{Hires, Upscaler};
pub use interpolation::Interpolation;
use pass::Pass;
pub use refiner::Refiner;
pub use request::{Bounds, Request, Start};
pub use shared::{Generated, SharedRequests};
pub use tiles::Tiling;
use tiles::{Scale, tiled};

/// Default batch size in cells of latents: four images of 512 x 512 pixels, or one of 1024 x 1024.
const DEFAULT_BATCH_CELLS: usize = 4 * 64 * 64;
/// Default of [`Pipeline::batch_requests`].
pub const DEFAULT_BATCH_REQUESTS: usize = 4;

/// Aesthetic scores of the negative prompt and of the prompt that XL's refiner gets, as in diffusers.
const AESTHETIC_SCORES: [f64; 2] = [2.5, 6.0];

/// Progress of a request after a step.
pub struct Progress<'a> {
    /// Number of completed steps of all images.
    pub step: usize,
    /// Total number of steps of all images.
    pub total: usize,
    /// Index of the first image of the current batch.
    pub first: usize,
    /// Number of requests that shared the step.
    pub requests: usize,
    /// Current prediction of the final latents: f32 (images, channels, height, width).
    pub x0: &'a Tensor,
    map: Option<&'a PreviewMap>,
}

impl Progress<'_> {
    /// Returns low-resolution previews of [`Progress::x0`], or none if the model has no preview map.
    ///
    /// # Errors
    /// The device fails, or values are not finite.
    pub fn previews(&self) -> Result<Vec<Picture>> {
        self.map.map_or(Ok(Vec::new()), |map| map.pictures(self.x0))
    }
}

/// Callback after each step. [`ControlFlow::Break`] cancels the request.
pub type OnStep<'a> = dyn FnMut(&Progress) -> ControlFlow<()> + 'a;

/// A model with the limits and batch sizes of its requests.
#[derive(Debug)]
pub struct Pipeline {
    /// The model.
    pub model: Model,
    /// Refiner that may compute the last steps.
    pub refiner: Option<Refiner>,
    /// Limits of a request.
    pub bounds: Bounds,
    /// Tiling of the VAE.
    pub tiling: Tiling,
    /// Maximum size of a network's batch in cells of latents, before guidance doubles it; at least one image.
    pub batch_cells: usize,
    /// Maximum number of requests that share steps. With 1, requests are generated one at a time.
    pub batch_requests: usize,
}

impl Pipeline {
    /// Creates a pipeline with default limits, tiling and batch size.
    pub fn new(model: Model) -> Self {
        Self {
            model,
            refiner: None,
            bounds: Bounds::default(),
            tiling: Tiling::default(),
            batch_cells: DEFAULT_BATCH_CELLS,
            batch_requests: DEFAULT_BATCH_REQUESTS,
        }
    }

    /// Adds a refiner, which requests use by [`Request::refiner_switch_at`].
    ///
    /// # Errors
    /// `refiner` is no refiner, or the latents of the pipeline's model differ from its own.
    pub fn with_refiner(self, refiner: Refiner) -> Result<Self> {
        refiner.check_base(&self.model)?;
        Ok(Self { refiner: Some(refiner), ..self })
    }

    /// Generates one image per seed. Pixels outside a mask are bit-identical to the input image.
    ///
    /// # Errors
    /// Returns [`Error::Request`] before any work, [`Error::Cancelled`] if `on_step` breaks, or a device error.
    pub fn run(&self, request: &Request, on_step: &mut OnStep) -> Result<Vec<Picture>> {
        let latents = self.latents(request, on_step)?;
        self.pictures(request, &latents)
    }

    /// Decodes the latents of all images of a request, and restores the pixels outside its mask.
    fn pictures(&self, request: &Request, latents: &Tensor) -> Result<Vec<Picture>> {
        let total = request.total_steps(&self.model.scheduler)?;
        let check = || request.check_cancelled(total, total);
        let given = request.start.as_ref().and_then(|start| Some((&start.picture, start.mask.as_ref()?)));
        (0..request.seeds.len())
            .map(|i| {
                let picture = self.decode_checked(&latents.narrow(0, i, 1)?, &check)?;
                Ok(match given {
                    Some((given, mask)) => picture.composite(given, mask),
                    None => picture,
                })
            })
            .collect()
    }

    /// Generates latents: f32 (seeds, channels, height, width), multiplied by the scaling factor.
    ///
    /// # Errors
    /// Returns the errors of [`Pipeline::run`].
    pub fn latents(&self, request: &Request, on_step: &mut OnStep) -> Result<Tensor> {
        request.check(&self.bounds, &self.model)?;
        if request.refiner_switch_at.is_some() && self.refiner.is_none() {
            return Err(Error::request("refiner: this model has none; start the worker with --refiner"));
        }
        let check = || request.check_cancelled(0, request.steps);
        self.model.apply_loras(&request.loras, &check)?;
        let passes = Pass::all(&Arc::new(request.clone()), &self.model)?;
        let steps = passes.iter().map(|pass| pass.scheduler.steps()).sum::<usize>();
        let factor = self.model.vae_config.factor();
        let (width, height) = request.hires.as_ref().map_or((request.width, request.height), |h| h.size);
        let cells = width * height / (factor * factor);
        // The first-block cache decides for a batch, so that images with a cache are computed one at a time.
        let batch_cells = if request.block_cache > 0.0 { 1 } else { self.batch_cells };
        let group = (batch_cells / cells.max(1)).max(1);
        let total = request.seeds.len().div_ceil(group) * steps;
        let check = || request.check_cancelled(0, total);
        let controls = passes.iter().map(|pass| control::load(&self.model, &pass.request.controls, &check));
        let controls = controls.collect::<Result<Vec<_>>>()?;
        let mut parts = Vec::new();
        for (i, seeds) in request.seeds.chunks(group).enumerate() {
            let before = i * steps;
            let check = || request.check_cancelled(before, total);
            let mut report = |step: usize, x0: &Tensor| {
                let map = self.model.preview.as_ref();
                let progress =
                    Progress { step: before + step, total, first: i * group, requests: 1, x0, map };
                match on_step(&progress) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Cancelled { step: before + step, total }),
                }
            };
            let mut latents = None;
            for (pass, controls) in passes.iter().zip(&controls) {
                let start = match (latents.take(), &request.hires) {
                    (Some(first), Some(hires)) => Some(self.scaled(&first, hires, seeds, &check)?),
                    _ => None,
                };
                let mut inputs = self.inputs(&pass.request, seeds, controls, &check)?;
                inputs.start = start.or(inputs.start);
                let mut report = |step: usize, x0: &Tensor| report(pass.first_step + step, x0);
                let refinement = self.refinement(pass, seeds, &inputs, &check)?;
                let denoising = Denoising::new(&self.model, pass, seeds, inputs, refinement)?;
                latents = Some(denoising.run(&mut report)?);
            }
            parts.extend(latents);
        }
        Ok(Tensor::cat(&parts, 0)?)
    }

    /// Returns the continuation of a pass by the refiner, if the request has one. `inputs` are those of the model.
    fn refinement<'a>(
        &'a self,
        pass: &Pass,
        seeds: &[u64],
        inputs: &BatchInputs,
        check: Check,
    ) -> Result<Option<Refinement<'a>>> {
        let (Some(switch_at), Some(refiner)) = (pass.request.refiner_switch_at, &self.refiner) else {
            return Ok(None);
        };
        let Some((first_step, scheduler)) = refiner.last_steps(pass, &self.model.scheduler, switch_at)?
        else {
            return Ok(None);
        };
        let inputs = BatchInputs {
            conditions: self.conditions(&refiner.model, &pass.request, seeds, &[], check)?,
            start: inputs.start.clone(),
            mask: inputs.mask.clone(),
            inpaint: None,
            controls: &[],
            ..*inputs
        };
        Ok(Some(Refinement { model: &refiner.model, first_step, scheduler, inputs }))
    }

    /// Scales latents between two passes, and cuts their middle. Each image is scaled by itself.
    fn scaled(&self, latents: &Tensor, hires: &Hires, seeds: &[u64], check: Check) -> Result<Tensor> {
        let factor = self.model.vae_config.factor();
        let (width, height) = (hires.scaled.0 / factor, hires.scaled.1 / factor);
        let by_pixels = |resize: &dyn Fn(&Picture) -> Picture| -> Result<Tensor> {
            let mut encoded = Vec::new();
            for (i, seed) in seeds.iter().enumerate() {
                let picture = resize(&self.decode_checked(&latents.narrow(0, i, 1)?, check)?);
                encoded.push(self.encode_tensor(&picture.to_tensor(&self.model.device)?, &[*seed], check)?);
            }
            Ok(Tensor::cat(&encoded, 0)?)
        };
        let scaled = match hires.upscaler {
            Upscaler::Latent { interpolation, antialias } => {
                interpolation.resize(latents, (height, width), antialias)?
            }
            Upscaler::Lanczos => by_pixels(&|picture| picture.resized(hires.scaled, Fit::Stretch))?,
            Upscaler::Nearest => by_pixels(&|picture| picture.repeated(hires.scaled))?,
        };
        let (own_width, own_height) = (hires.size.0 / factor, hires.size.1 / factor);
        let (left, top) = hires.corner(factor);
        let (left, top) = (left / factor, top / factor);
        Ok(scaled.narrow(2, top, own_height)?.narrow(3, left, own_width)?.contiguous()?)
    }

    /// Decodes latents (1, channels, height, width) that are multiplied by the scaling factor.
    ///
    /// # Errors
    /// The shape is wrong, values are not finite, or the device fails.
    pub fn decode(&self, latents: &Tensor) -> Result<Picture> {
        self.decode_checked(latents, &|| Ok(()))
    }

    fn decode_checked(&self, latents: &Tensor, check: Check) -> Result<Picture> {
        let config = &self.model.vae_config;
        let scale = Scale { input: 1, output: config.factor() };
        let latents = latents.affine(config.scaling_factor.recip(), config.shift_factor)?;
        let rgb = self.with_vae(&latents, scale, Vae::decode, check)?;
        let mut pictures = Picture::from_tensor(&rgb)?;
        pictures.pop().ok_or_else(|| Error::model("the VAE returned no image"))
    }

    /// Encodes an image to f32 latents (seeds, channels, height, width), multiplied by the scaling factor.
    /// Each seed yields a separate sample of the distribution that the VAE predicts.
    ///
    /// # Errors
    /// The sides are not multiples of the factor of the VAE, or the device fails.
    pub fn encode(&self, picture: &Picture, seeds: &[u64]) -> Result<Tensor> {
        self.encode_tensor(&picture.to_tensor(&self.model.device)?, seeds, &|| Ok(()))
    }

    fn encode_tensor(&self, picture: &Tensor, seeds: &[u64], check: Check) -> Result<Tensor> {
        let Model { vae_config: config, device, .. } = &self.model;
        let scale = Scale { input: config.factor(), output: 1 };
        let moments = self.with_vae(picture, scale, Vae::encode, check)?;
        let moments = moments.to_device(device)?;
        let channels = config.latent_channels;
        let mean = moments.narrow(1, 0, channels)?;
        let deviation = (moments.narrow(1, channels, channels)?.clamp(-30f32, 20f32)? * 0.5)?.exp()?;
        let (_, _, height, width) = mean.dims4()?;
        let noise = normal_batch(seeds, Purpose::Encode, (channels, height, width), device)?;
        let sample = noise.broadcast_mul(&deviation)?.broadcast_add(&mean)?;
        Ok(((sample - config.shift_factor)? * config.scaling_factor)?)
    }

    /// Applies the VAE. If f16 overflows, applies it again in a dtype with a wider range, which is used from then on.
    /// Returns f32.
    fn with_vae(
        &self,
        input: &Tensor,
        scale: Scale,
        apply: fn(&Vae, &Tensor, Check) -> Result<Tensor>,
        check: Check,
    ) -> Result<Tensor> {
        let free = available_bytes(&self.model.device)?;
        let run = |(vae, dtype): (&Vae, DType)| {
            let (config, bytes) = (vae.config(), dtype.size_in_bytes());
            let tiling = self.tiling.planned(free, config.bytes_per_cell(bytes), config.widest_bytes(bytes));
            tiled(&input.to_dtype(dtype)?, tiling, scale, &|tile| apply(vae, tile, check), check)
        };
        let (vae, dtype) = self.model.active_vae()?;
        let output = run((vae, dtype))?;
        if dtype != DType::F16 || is_finite(&output)? || !is_finite(input)? {
            return Ok(output);
        }
        self.model.widen_vae()?;
        run(self.model.active_vae()?)
    }

    /// Returns the scale of classifier-free guidance, if the request uses it.
    fn guidance(&self, request: &Request) -> Option<f64> {
        Some(request.guidance).filter(|guidance| *guidance > 1.0 && !self.model.is_distilled())
    }

    fn inputs<'a>(
        &self,
        request: &Request,
        seeds: &[u64],
        controls: &'a [LoadedControl<'a>],
        check: Check,
    ) -> Result<BatchInputs<'a>> {
        let model = &self.model;
        let mut inputs = BatchInputs {
            conditions: self.conditions(model, request, seeds, controls, check)?,
            start: None,
            mask: None,
            inpaint: None,
            guidance: self.guidance(request),
            embedded_guidance: request.guidance,
            controls,
        };
        let Some(start) = &request.start else { return Ok(inputs) };
        let picture = start.picture.to_tensor(&model.device)?;
        inputs.start = Some(self.encode_tensor(&picture, seeds, check)?);
        if let Some(mask) = &start.mask {
            let cells = mask.cells(model.vae_config.factor(), &model.device)?;
            if model.is_inpainting() {
                inputs.inpaint = Some(self.inpaint(&picture, mask, &cells, seeds, check)?);
            }
            inputs.mask = Some(cells);
        }
        Ok(inputs)
    }

    /// Returns the embeddings of the prompts of a request by the text encoders of `model`.
    fn conditions(
        &self,
        model: &Model,
        request: &Request,
        seeds: &[u64],
        controls: &[LoadedControl],
        check: Check,
    ) -> Result<Vec<Condition>> {
        let guidance = self.guidance(request);
        let prompts: &[&str] = match guidance {
            Some(_) => &[&request.negative, &request.prompt],
            None => &[&request.prompt],
        };
        let mut lengths = Vec::new();
        for prompt in prompts {
            lengths.push(model.chunks(prompt)?.0);
        }
        let groups: Vec<&[&str]> = match lengths.windows(2).all(|pair| pair[0] == pair[1]) {
            true => vec![prompts],
            false => prompts.chunks(1).collect(),
        };
        let (width, height) = (request.width, request.height);
        let mut conditions = Vec::new();
        for (i, group) in groups.into_iter().enumerate() {
            let Texts { mut context, mut pooled } = model.encode_checked(group, request.clip_skip, check)?;
            if i == 0 && guidance.is_some() && request.negative.is_empty() && model.zeros_for_empty {
                context = zero_first_row(&context)?;
                pooled = pooled.as_ref().map(zero_first_row).transpose()?;
            }
            let pooled = pooled.map(|pooled| repeat_rows(&pooled, seeds.len())).transpose()?;
            let sizes = [height, width, 0, 0, height, width];
            let added = match (&model.network, &pooled) {
                (Network::UNet(unet), Some(pooled)) if model.is_refiner() => {
                    let mut numbers = Vec::new();
                    for row in 0..group.len() {
                        let is_negative = guidance.is_some() && i == 0 && row == 0;
                        let score = AESTHETIC_SCORES[usize::from(!is_negative)];
                        let own = [height as f64, width as f64, 0.0, 0.0, score];
                        seeds.iter().for_each(|_| numbers.extend(own));
                    }
                    Some(unet.added_to_rows(pooled, &numbers)?)
                }
                (Network::UNet(unet), Some(pooled)) => Some(unet.added(pooled, sizes)?),
                _ => pooled.clone(),
            };
            let control_added = control::added(controls, pooled.as_ref(), sizes)?;
            conditions.push(Condition { context: repeat_rows(&context, seeds.len())?, added, control_added });
        }
        Ok(conditions)
    }

    /// Returns the additional input channels of inpainting UNets: (seeds, 5, height, width).
    fn inpaint(
        &self,
        picture: &Tensor,
        mask: &Mask,
        cells: &Tensor,
        seeds: &[u64],
        check: Check,
    ) -> Result<Tensor> {
        let device = &self.model.device;
        let keep = (1.0 - mask.cells(1, device)?)?;
        let latents = self.encode_tensor(&picture.broadcast_mul(&keep)?, seeds, check)?;
        let (n, _, height, width) = latents.dims4()?;
        Ok(Tensor::cat(&[&cells.broadcast_as((n, 1, height, width))?.contiguous()?, &latents], 1)?)
    }
}

/// Returns false if `x` contains NaN or an infinity, whose product with zero is NaN.
fn is_finite(x: &Tensor) -> candle_core::Result<bool> {
    Ok(x.to_dtype(DType::F32)?.affine(0.0, 0.0)?.sum_all()?.to_scalar::<f32>()? == 0.0)
}

/// Returns each row `count` times: the rows of the negative prompt precede those of the prompt.
fn repeat_rows(x: &Tensor, count: usize) -> candle_core::Result<Tensor> {
    let mut rows = Vec::new();
    for i in 0..x.dim(0)? {
        rows.extend(std::iter::repeat_n(x.narrow(0, i, 1)?, count));
    }
    Tensor::cat(&rows, 0)
}

/// Returns `x` with zeros in the first row.
fn zero_first_row(x: &Tensor) -> candle_core::Result<Tensor> {
    let rest = x.narrow(0, 1, x.dim(0)? - 1)?;
    Tensor::cat(&[&x.narrow(0, 0, 1)?.zeros_like()?, &rest], 0)
}
