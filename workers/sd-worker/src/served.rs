//! The loaded model, as used by handlers.
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use worker_core::device::OpenDevice;
use worker_core::{ApiError, Metrics, ModelName};

use crate::controlnets::ControlNetFolder;
use crate::loras::LoraFolder;
use crate::metrics;
use crate::model::Version;
use crate::pipeline::{Bounds, Pipeline, Request};
use crate::queue::{Event, Failure, ImageJob, Images, Queue, QueuePlace, SubmitError};
use crate::schedulers::SchedulerConfig;

/// Maximum number of images that are decoded concurrently, which bounds memory.
const MAX_CONCURRENT_DECODES: usize = 4;
/// Retry interval sent to clients when the queue is closed.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Description of the model, which itself is owned by the generator thread.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Model family.
    pub version: Version,
    /// True for models made for few steps without guidance.
    pub turbo: bool,
    /// True for inpainting models, which require an image and a mask.
    pub is_inpainting: bool,
    /// Width and height of images must be multiples of this.
    pub multiple: usize,
    /// Default values of a request.
    pub defaults: Request,
    /// Noise schedule of the training.
    pub scheduler: SchedulerConfig,
    /// Limits of a request.
    pub bounds: Bounds,
    /// Maximum value of `clip_skip`.
    pub max_clip_skip: usize,
    /// True if images are checked by the model's safety checker.
    pub has_safety_checker: bool,
    /// True if the model supports word weights in prompts, and ControlNets.
    pub has_adapters: bool,
    /// True if the network is a transformer, which supports the first-block cache.
    pub has_block_cache: bool,
    /// True if there is no negative prompt.
    pub is_distilled: bool,
    /// Names of embeddings of textual inversion.
    pub embeddings: Vec<String>,
    /// Name of the refiner, if there is one.
    pub refiner: Option<String>,
    /// Folder of LoRA files.
    pub loras: LoraFolder,
    /// Folder of ControlNets.
    pub controlnets: ControlNetFolder,
}

impl ModelInfo {
    /// Returns the description of the model of a pipeline.
    pub fn of(pipeline: &Pipeline, loras: LoraFolder, controlnets: ControlNetFolder) -> Self {
        let model = &pipeline.model;
        Self {
            version: model.version,
            turbo: model.turbo,
            is_inpainting: model.is_inpainting(),
            multiple: model.multiple(),
            defaults: Request::of(model, ""),
            scheduler: model.scheduler.clone(),
            bounds: Bounds {
                side: model.max_side().unwrap_or(usize::MAX).min(pipeline.bounds.side),
                ..pipeline.bounds
            },
            max_clip_skip: model.max_clip_skip(),
            has_safety_checker: model.safety_checker.is_some(),
            has_adapters: model.has_adapters(),
            has_block_cache: model.has_block_cache(),
            is_distilled: model.is_distilled(),
            embeddings: model.embeddings.clone(),
            refiner: pipeline.refiner.as_ref().map(|refiner| refiner.name.clone()),
            loras,
            controlnets,
        }
    }
}

/// A model that accepts requests. It may have been unloaded; its next request then loads it again.
#[derive(Clone)]
pub struct ServedModel {
    /// The queue of requests.
    pub queue: Queue,
    /// Index of the model among those of the queue.
    pub index: usize,
    /// Place that its requests take; `None` appends them.
    pub place: Option<QueuePlace>,
    /// Name and aliases.
    pub name: ModelName,
    /// Description.
    pub info: ModelInfo,
    /// Device of the model.
    pub device: OpenDevice,
    /// Permits for decoding images.
    pub decoders: Arc<Semaphore>,
}

impl ServedModel {
    /// Creates the handle and registers the metrics of the queue.
    pub fn new(
        queue: Queue,
        info: ModelInfo,
        name: ModelName,
        device: OpenDevice,
        metrics: &Metrics,
    ) -> Self {
        metrics::register(metrics, name.as_str(), queue.clone(), device.device.clone());
        Self { queue, index: 0, place: None, name, info, device, decoders: decoders() }
    }

    /// Checks that a request would be accepted now.
    ///
    /// # Errors
    /// 429 if the queue is full, 503 if it is closed.
    pub fn check_capacity(&self) -> Result<(), ApiError> {
        self.queue.check_capacity(self.place.as_ref()).map_err(submit_error)
    }

    /// Appends a request to the queue.
    ///
    /// # Errors
    /// 429 if the queue is full, 503 if it is closed.
    pub fn submit(&self, request: Request) -> Result<ImageJob, ApiError> {
        self.queue.submit_to(self.index, Some(request), self.place.as_ref()).map_err(submit_error)
    }

    /// Returns a handle whose requests take a reserved place, even if the queue is full.
    #[must_use]
    pub fn at(&self, place: QueuePlace) -> Arc<Self> {
        Arc::new(Self { place: Some(place), ..self.clone() })
    }
}

/// Returns the permits for decoding images.
pub fn decoders() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_CONCURRENT_DECODES))
}

/// Converts a rejection to an HTTP error.
pub fn submit_error(error: SubmitError) -> ApiError {
    match error {
        SubmitError::Full { waiting, limit, after } => {
            let message = format!(
                "the queue is full: {waiting} requests wait or run, the limit is {limit}; retry later or raise --max-waiting"
            );
            ApiError::too_many(message, after).with_code("queue_full")
        }
        SubmitError::Closed(cause) => {
            ApiError::unavailable(cause.message, RETRY_AFTER).with_code("not_ready")
        }
    }
}

/// Waits until the images of a job are complete, and passes its other events to `watch`.
///
/// # Errors
/// The error of a failure, or 500 if the queue stopped.
pub async fn wait_for_images(mut images: ImageJob, mut watch: impl FnMut(Event)) -> Result<Images, ApiError> {
    while let Some(event) = images.next().await {
        match event {
            Event::Done { images, .. } => return Ok(images),
            Event::Failed(failure) => return Err(api_error(failure)),
            event => watch(event),
        }
    }
    Err(ApiError::internal("the queue stopped unexpectedly; see the worker's log"))
}

/// Converts a failure to an HTTP error.
pub fn api_error(failure: Failure) -> ApiError {
    let Failure { code, message } = failure;
    let error = match code {
        "invalid_request" => ApiError::invalid(message),
        "cancelled" => ApiError::conflict(message),
        "device_lost" | "load_failed" | "worker_ended" => ApiError::unavailable(message, RETRY_AFTER),
        _ => ApiError::internal(message),
    };
    error.with_code(code)
}

impl ServedModel {
    /// Returns the fields of `GET /v1/models`. Lists the folders of LoRA files and ControlNets.
    pub fn card(&self) -> Value {
        let ModelInfo {
            version,
            turbo,
            is_inpainting,
            multiple,
            defaults,
            scheduler,
            bounds,
            max_clip_skip,
            has_safety_checker,
            has_adapters,
            has_block_cache,
            is_distilled,
            embeddings,
            refiner,
            loras,
            controlnets,
        } = &self.info;
        json!({
            "version": version.name(),
            "network": version.network(),
            "turbo": turbo,
            "is_inpainting": is_inpainting,
            "multiple": multiple,
            "max_side": bounds.side,
            "max_pixels": bounds.pixels,
            "max_steps": bounds.steps,
            "max_images": bounds.pictures,
            "max_clip_skip": max_clip_skip,
            "safety_checker": has_safety_checker,
            "adapters": has_adapters,
            "block_cache": has_block_cache,
            "negative_prompt": !is_distilled,
            "embeddings": embeddings,
            "refiner": refiner,
            "schedulers": scheduler.methods().iter().map(|method| method.name()).collect::<Vec<_>>(),
            "loras": loras.files().into_keys().collect::<Vec<String>>(),
            "controlnets": controlnets.models().into_keys().collect::<Vec<String>>(),
            "defaults": {
                "width": defaults.width,
                "height": defaults.height,
                "steps": defaults.steps.min(bounds.steps),
                "guidance": defaults.guidance,
                "scheduler": scheduler.method.name(),
                "karras": scheduler.karras,
                "exponential": scheduler.exponential,
            },
        })
    }
}
