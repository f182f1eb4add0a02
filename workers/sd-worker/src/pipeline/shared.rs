//! Requests that share steps: the network is evaluated once for the images of all of them.
//!
//! Each request keeps its own scheduler, noise, guidance scale and progress, and may join or leave between two steps, so that
//! the requests of a batch can be at different timesteps.
use std::ops::ControlFlow;
use std::sync::Arc;

use super::denoising::{Denoising, predict};
use super::pass::Pass;
use super::{Pipeline, Progress, Request};
use crate::model::{LoraChoice, available_bytes};
use crate::picture::Picture;
use crate::{Error, Result};

/// Share of the free memory that the activations of a batch may take.
const MEMORY_SHARE: usize = 2;

/// Images of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// One image per seed, in the order of the seeds.
    pub pictures: Vec<Picture>,
    /// Holds true for each image that the safety checker flagged; empty without a checker.
    pub flagged: Vec<bool>,
}

/// Source of requests that share steps, and receiver of their results.
pub trait SharedRequests {
    /// Returns the request that would join next, without removing it.
    fn waiting(&mut self) -> Option<Arc<Request>>;

    /// Removes the request that [`Self::waiting`] returned last from the queue, and adds it to the batch. Returns its
    /// number, or `None` if it is no longer waiting. `truncated` is true if a prompt is longer than the model
    /// supports.
    fn join(&mut self, truncated: bool) -> Option<usize>;

    /// Reports a completed step of a request. [`ControlFlow::Break`] cancels the request, which leaves the batch.
    fn on_step(&mut self, number: usize, progress: &Progress) -> ControlFlow<()>;

    /// Receives the result of a request, which has left the batch.
    fn finish(&mut self, number: usize, result: Result<Generated>);
}

/// Properties that requests must have in common to share steps.
#[derive(Debug, PartialEq)]
struct SharedProperties {
    size: (usize, usize),
    is_guided: bool,
    /// Number of chunks of the negative prompt and of the prompt.
    chunks: Vec<usize>,
    loras: Vec<LoraChoice>,
}

/// A request that can share steps.
struct Shareable {
    properties: SharedProperties,
    images: usize,
    /// Maximum number of images of the batch.
    max_images: usize,
    truncated: bool,
}

/// A request of the batch.
struct Member<'a> {
    number: usize,
    request: Arc<Request>,
    shareable: Arc<Shareable>,
    denoising: Denoising<'a>,
}

impl Pipeline {
    /// Generates the images of requests that share steps, as long as there are any. Only requests that are equal in size, use
    /// of guidance, number of prompt chunks and LoRA files share steps, and none with ControlNets, a second pass, a refiner or a
    /// first-block cache. Requests that cannot share steps with the others, or exceed [`Pipeline::batch_requests`],
    /// [`Pipeline::batch_cells`] or the free memory, stay in `requests` until the others are finished. Returns when
    /// no request joins an empty batch.
    ///
    /// # Errors
    /// A shared step fails. Requests that have joined and not been finished have no result.
    pub fn run_shared(&self, requests: &mut dyn SharedRequests) -> Result<()> {
        let mut members: Vec<Member> = Vec::new();
        let mut next = None;
        loop {
            self.admit(&mut members, &mut next, requests)?;
            if members.is_empty() {
                return Ok(());
            }
            let count = members.len();
            let mut batches: Vec<&mut Denoising> = members.iter_mut().map(|m| &mut m.denoising).collect();
            let outputs = predict(&mut batches)?;
            let predicted = batches.into_iter().zip(&outputs).map(|(batch, output)| batch.advance(output));
            let predicted = predicted.collect::<Result<Vec<_>>>()?;
            // Devices execute steps asynchronously. Without a wait, steps would be reported before they are complete.
            self.model.device.synchronize()?;
            let mut remaining = Vec::new();
            for (member, x0) in members.into_iter().zip(&predicted) {
                let (step, total) = member.denoising.position();
                let map = self.model.preview.as_ref();
                let progress = Progress { step, total, first: 0, requests: count, x0, map };
                if requests.on_step(member.number, &progress).is_break() {
                    requests.finish(member.number, Err(Error::Cancelled { step, total }));
                } else if step == total {
                    requests.finish(member.number, self.generated(&member));
                } else {
                    remaining.push(member);
                }
            }
            members = remaining;
        }
    }

    /// Lets requests join while they fit. `next` keeps the properties of the request that waits in front.
    fn admit<'a>(
        &'a self,
        members: &mut Vec<Member<'a>>,
        next: &mut Option<(Arc<Request>, Option<Arc<Shareable>>)>,
        requests: &mut dyn SharedRequests,
    ) -> Result<()> {
        while let Some(request) = requests.waiting() {
            let known = next.take().filter(|(known, _)| Arc::ptr_eq(known, &request));
            let shareable = match known {
                Some((_, shareable)) => shareable,
                None => self.shareable(&request)?.map(Arc::new),
            };
            *next = Some((request.clone(), shareable.clone()));
            let Some(shareable) = shareable.filter(|own| self.fits(members, own)) else { return Ok(()) };
            let Some(number) = requests.join(shareable.truncated) else { continue };
            match self.begin(&request) {
                Ok(denoising) => members.push(Member { number, request, shareable, denoising }),
                Err(error) => requests.finish(number, Err(error)),
            }
        }
        Ok(())
    }

    fn fits(&self, members: &[Member], own: &Shareable) -> bool {
        let Some(first) = members.first() else { return true };
        let images = members.iter().map(|member| member.denoising.images()).sum::<usize>();
        members.len() < self.batch_requests
            && first.shareable.properties == own.properties
            && images + own.images <= own.max_images
    }

    /// Returns `None` for requests that are generated alone, among them invalid ones.
    fn shareable(&self, request: &Request) -> Result<Option<Shareable>> {
        let is_alone = !request.controls.is_empty()
            || request.hires.is_some()
            || request.block_cache > 0.0
            || request.refiner_switch_at.is_some();
        if self.batch_requests < 2 || is_alone || request.check(&self.bounds, &self.model).is_err() {
            return Ok(None);
        }
        let mut chunks = Vec::new();
        let mut truncated = false;
        let is_guided = self.guidance(request).is_some();
        let prompts = [(&request.negative, is_guided), (&request.prompt, true)];
        for (prompt, is_used) in prompts {
            let Ok((count, is_truncated)) = self.model.chunks(prompt) else { return Ok(None) };
            truncated |= is_truncated;
            chunks.extend(is_used.then_some(count));
        }
        let (images, max_images) = (request.seeds.len(), self.max_images(request)?);
        let (size, loras) = ((request.width, request.height), request.loras.clone());
        let properties = SharedProperties { size, is_guided, chunks, loras };
        Ok(Some(Shareable { properties, images, max_images, truncated }).filter(|_| images <= max_images))
    }

    /// Returns the maximum number of images of a request's size for which the network is evaluated at once, at least 1.
    fn max_images(&self, request: &Request) -> Result<usize> {
        let factor = self.model.vae_config.factor();
        let (width, height) = (request.width / factor, request.height / factor);
        let by_size = self.batch_cells / (width * height).max(1);
        let copies = if self.guidance(request).is_some() { 2 } else { 1 };
        let by_memory = match available_bytes(&self.model.device)? {
            Some(free) => free / MEMORY_SHARE / (copies * self.model.activation_bytes(width, height)).max(1),
            None => usize::MAX,
        };
        Ok(by_size.min(by_memory).max(1))
    }

    /// Computes what precedes the first step.
    fn begin(&self, request: &Arc<Request>) -> Result<Denoising<'_>> {
        let passes = Pass::all(request, &self.model)?;
        let [pass] = &passes[..] else { return Err(Error::request("a second pass cannot share steps")) };
        let check = || request.check_cancelled(0, pass.scheduler.steps());
        check()?;
        // Frees the ControlNets of an earlier request.
        self.model.select_controlnets(&[], &check)?;
        self.model.apply_loras(&request.loras, &check)?;
        let inputs = self.inputs(request, &request.seeds, &[], &check)?;
        Denoising::new(&self.model, pass, &request.seeds, inputs, None)
    }

    fn generated(&self, member: &Member) -> Result<Generated> {
        let pictures = self.pictures(&member.request, &member.denoising.latents)?;
        let flagged = pictures.iter().filter_map(|picture| self.is_flagged(picture).transpose());
        Ok(Generated { flagged: flagged.collect::<Result<_>>()?, pictures })
    }

    /// Returns whether the safety checker flags an image; `None` if there is no checker.
    ///
    /// # Errors
    /// The device fails.
    pub fn is_flagged(&self, picture: &Picture) -> Result<Option<bool>> {
        let scores = self.model.safety_checker.as_ref().map(|checker| checker.scores(picture));
        Ok(scores.transpose()?.map(|scores| scores.is_flagged()))
    }
}
