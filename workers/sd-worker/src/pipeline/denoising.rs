//! Denoising steps of batches of images, which requests may share.
use candle_core::{DType, Tensor};

use super::control::{self, ControlCondition, LoadedControl};
use super::pass::Pass;
use crate::model::{BlockCache, Model, Network};
use crate::schedulers::{Purpose, Scheduler, normal_batch};
use crate::{Error, Result};

/// Text embeddings, in the order of the batch.
pub(super) struct Condition {
    pub context: Tensor,
    /// Additional embedding of XL, or pooled embedding for a transformer.
    pub added: Option<Tensor>,
    /// Additional embedding of XL for each ControlNet.
    pub control_added: Vec<Option<Tensor>>,
}

/// Inputs of the network that are constant over the steps of a batch.
pub(super) struct BatchInputs<'a> {
    /// Text embeddings of the negative prompt and the prompt together, or of each if their lengths differ.
    pub conditions: Vec<Condition>,
    /// Scaled latents of the input image.
    pub start: Option<Tensor>,
    pub mask: Option<Tensor>,
    /// Mask and latents of the masked image, for UNets with nine channels.
    pub inpaint: Option<Tensor>,
    /// Scale of classifier-free guidance.
    pub guidance: Option<f64>,
    /// Guidance scale that is an input of the network.
    pub embedded_guidance: f64,
    pub controls: &'a [LoadedControl<'a>],
}

/// Continuation of a pass by a refiner.
pub(super) struct Refinement<'a> {
    pub model: &'a Model,
    /// Number of steps of the base model.
    pub first_step: usize,
    /// Scheduler of the remaining steps.
    pub scheduler: Scheduler,
    pub inputs: BatchInputs<'a>,
}

/// State of a pass over images of one request, from step to step.
pub(super) struct Denoising<'a> {
    /// Model that computes the next step.
    model: &'a Model,
    scheduler: Scheduler,
    /// Number of omitted steps of the schedule.
    skipped: usize,
    seeds: Vec<u64>,
    inputs: BatchInputs<'a>,
    /// Initial noise.
    noise: Tensor,
    cache: Option<BlockCache>,
    refinement: Option<Refinement<'a>>,
    /// Number of completed steps, and that of all steps.
    step: usize,
    total: usize,
    /// Number of steps that preceded the first one of the scheduler.
    first_step: usize,
    /// Samples at the current noise level: f32 (seeds, channels, height, width).
    pub latents: Tensor,
}

impl<'a> Denoising<'a> {
    /// Draws the noise, and adds it to the input image if there is one.
    pub fn new(
        model: &'a Model,
        pass: &Pass,
        seeds: &[u64],
        inputs: BatchInputs<'a>,
        refinement: Option<Refinement<'a>>,
    ) -> Result<Self> {
        let (request, scheduler) = (&*pass.request, pass.scheduler.clone());
        let config = &model.vae_config;
        let (height, width) = (request.height / config.factor(), request.width / config.factor());
        let shape = (config.latent_channels, height, width);
        let noise = normal_batch(seeds, Purpose::Start, shape, &model.device)?;
        // At full strength the part in a mask starts from pure noise. Without a mask it starts at the first noise level,
        // at which traces of the image remain, as in diffusers.
        let whole = request.start.as_ref().is_some_and(|start| start.strength >= 1.0 && start.mask.is_some());
        let latents = match &inputs.start {
            Some(start) if !whole => scheduler.add_noise(start, &noise, 0)?,
            _ => (&noise * scheduler.init_sigma())?,
        };
        let cache = Some(BlockCache::new(request.block_cache)).filter(|_| request.block_cache > 0.0);
        let (seeds, skipped) = (seeds.to_vec(), pass.skipped);
        let total = scheduler.steps();
        let mut denoising = Self {
            model,
            scheduler,
            skipped,
            seeds,
            inputs,
            noise,
            cache,
            refinement,
            step: 0,
            total,
            first_step: 0,
            latents,
        };
        denoising.refine();
        Ok(denoising)
    }

    /// Lets the refiner continue if its first step is next.
    fn refine(&mut self) {
        let step = self.step;
        if let Some(next) = self.refinement.take_if(|next| next.first_step == step) {
            (self.model, self.first_step) = (next.model, step);
            (self.scheduler, self.inputs) = (next.scheduler, next.inputs);
        }
    }

    /// Returns the number of images.
    pub fn images(&self) -> usize {
        self.seeds.len()
    }

    /// Returns the number of completed steps, and that of all steps.
    pub fn position(&self) -> (usize, usize) {
        (self.step, self.total)
    }

    fn timestep(&self) -> f64 {
        self.scheduler.timestep(self.step - self.first_step).unwrap_or_default()
    }

    /// Completes a step with the prediction of the network, and returns the current prediction of the final latents.
    pub fn advance(&mut self, output: &Tensor) -> Result<Tensor> {
        let (_, channels, height, width) = self.latents.dims4()?;
        let (seeds, step) = (&self.seeds, self.step);
        let purpose = Purpose::Step(self.skipped + step);
        let mut fresh = || normal_batch(seeds, purpose, (channels, height, width), self.latents.device());
        let stepped = self.scheduler.step(output, &self.latents, &mut fresh)?;
        self.latents = stepped.sample;
        let mut x0 = stepped.x0;
        self.step += 1;
        // For UNets without mask input, restore the unmasked part of the input image after each step.
        let BatchInputs { mask, start, inpaint, .. } = &self.inputs;
        if let (Some(mask), Some(start), None) = (mask, start, inpaint) {
            // The final sample has no noise.
            let kept = match self.step == self.total {
                true => start.clone(),
                false => self.scheduler.add_noise(start, &self.noise, self.step - self.first_step)?,
            };
            self.latents = blend(&self.latents, &kept, mask)?;
            x0 = blend(&x0, start, mask)?;
        }
        self.refine();
        Ok(x0)
    }

    /// Returns the prediction with classifier-free guidance.
    fn guide(&self, without: &Tensor, with: &Tensor) -> Result<Tensor> {
        let scale = self.inputs.guidance.unwrap_or(1.0);
        Ok((without + ((with - without)? * scale)?)?)
    }

    /// Computes all steps, and returns the latents. `report` receives the number of completed steps and the current prediction
    /// of the latents.
    ///
    /// # Errors
    /// `report` returns an error, or the device fails.
    pub fn run(mut self, report: &mut dyn FnMut(usize, &Tensor) -> Result<()>) -> Result<Tensor> {
        for step in 1..=self.total {
            let outputs = predict(&mut [&mut self])?;
            let Some(output) = outputs.first() else { continue };
            report(step, &self.advance(output)?)?;
        }
        self.log_cache();
        Ok(self.latents)
    }

    /// Logs the effect of the first-block cache.
    fn log_cache(&self) {
        if let Some(cache) = &self.cache {
            let percent = (100.0 * cache.skipped_share()).round();
            tracing::info!(percent, "the first-block cache skipped blocks");
        }
    }
}

/// Returns the predictions of the network after guidance, in f32, for each of `batches`, whose model is the same and
/// whose images and embeddings have equal sizes. Only one that is alone may have ControlNets and a first-block cache.
pub(super) fn predict(batches: &mut [&mut Denoising]) -> Result<Vec<Tensor>> {
    // Prompts that are computed separately have no common cache.
    let mut cache = match batches {
        [only] if only.inputs.conditions.len() == 1 => only.cache.take(),
        _ => None,
    };
    let predicted = guided(batches, cache.as_mut());
    if let (Some(cache), [only, ..]) = (cache, batches) {
        only.cache = Some(cache);
    }
    predicted
}

fn guided(batches: &[&mut Denoising], cache: Option<&mut BlockCache>) -> Result<Vec<Tensor>> {
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    match (first.inputs.guidance, first.inputs.conditions.len()) {
        (_, 0) => Err(Error::request("a request has no prompt")),
        (None, _) => evaluate(batches, 0, 1, cache),
        (Some(_), 1) => {
            let outputs = evaluate(batches, 0, 2, cache)?;
            let halves = batches.iter().zip(&outputs).map(|(batch, output)| {
                let n = batch.images();
                batch.guide(&output.narrow(0, 0, n)?, &output.narrow(0, n, n)?)
            });
            halves.collect()
        }
        (Some(_), _) => {
            let without = evaluate(batches, 0, 1, None)?;
            let with = evaluate(batches, 1, 1, None)?;
            let pairs = batches.iter().zip(without.iter().zip(&with));
            pairs.map(|(batch, (without, with))| batch.guide(without, with)).collect()
        }
    }
}

/// Evaluates the network once with a condition of each batch, of which `copies` of the images are computed.
fn evaluate(
    batches: &[&mut Denoising],
    condition: usize,
    copies: usize,
    cache: Option<&mut BlockCache>,
) -> Result<Vec<Tensor>> {
    let Some(model) = batches.first().map(|first| first.model) else { return Ok(Vec::new()) };
    let dtype = model.dtype;
    let (mut inputs, mut contexts, mut pooled) = (Vec::new(), Vec::new(), Vec::new());
    let (mut timesteps, mut guidance) = (Vec::new(), Vec::new());
    let mut residuals = None;
    for batch in batches {
        let Some(Condition { context, added, control_added }) = batch.inputs.conditions.get(condition) else {
            return Err(Error::request("requests that share steps have different numbers of prompts"));
        };
        let timestep = batch.timestep();
        let repeated = |x: &Tensor| cat(&vec![x.clone(); copies], 0);
        let latents = batch.latents.to_dtype(dtype)?;
        if !batch.inputs.controls.is_empty() {
            let is_negative = condition == 0 && batch.inputs.guidance.is_some();
            let negative_rows = if is_negative { batch.images() } else { 0 };
            let control = ControlCondition { text: context, added: control_added, negative_rows };
            residuals = control::residuals(
                batch.inputs.controls,
                &repeated(&latents)?,
                timestep,
                batch.position(),
                control,
            )?;
        }
        let input = match &batch.inputs.inpaint {
            Some(inpaint) => Tensor::cat(&[&latents, &inpaint.to_dtype(dtype)?], 1)?,
            None => latents,
        };
        inputs.push(repeated(&input)?);
        contexts.push(context.clone());
        pooled.extend(added.clone());
        let rows = copies * batch.images();
        timesteps.extend(std::iter::repeat_n(timestep, rows));
        guidance.extend(std::iter::repeat_n(batch.inputs.embedded_guidance, rows));
    }
    for values in [&mut timesteps, &mut guidance] {
        if values.windows(2).all(|pair| pair[0] == pair[1]) {
            values.truncate(1);
        }
    }
    let (input, context) = (cat(&inputs, 0)?, cat(&contexts, 0)?);
    let added = if pooled.is_empty() { None } else { Some(cat(&pooled, 0)?) };
    let output = match (&model.network, &added) {
        (Network::UNet(unet), added) => {
            unet.forward_controlled(&input, &timesteps, &context, added.as_ref(), residuals.as_ref())?
        }
        (Network::Dit(dit), Some(pooled)) => {
            dit.forward_cached(&input, &timesteps, &context, pooled, &guidance, cache)?
        }
        (Network::Dit(_), None) => return Err(Error::model("no pooled text embedding")),
    };
    let output = output.to_dtype(DType::F32)?;
    let mut first = 0;
    let own = |batch: &&mut Denoising| {
        let rows = copies * batch.images();
        first += rows;
        Ok(output.narrow(0, first - rows, rows)?)
    };
    batches.iter().map(own).collect()
}

/// Concatenates tensors, without a copy if there is only one.
fn cat(tensors: &[Tensor], dim: usize) -> candle_core::Result<Tensor> {
    match tensors {
        [only] => Ok(only.clone()),
        _ => Tensor::cat(tensors, dim),
    }
}

/// Returns `x` where the mask is 1 and `kept` where it is 0.
fn blend(x: &Tensor, kept: &Tensor, mask: &Tensor) -> candle_core::Result<Tensor> {
    (x - kept)?.broadcast_mul(mask)? + kept
}
