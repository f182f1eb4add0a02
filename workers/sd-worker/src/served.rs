//! The model as handlers know it.
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use worker_core::device::OpenDevice;
use worker_core::{ApiError, Metrics, ModelName};

use crate::metrics;
use crate::model::Version;
use crate::pipeline::{Bounds, Pipeline, Request};
use crate::queue::{Failure, ImageJob, Queue, Refused};
use crate::schedulers::{Method, SchedulerConfig};

/// Given pictures that are decoded at once: each may take as much memory as its limits allow.
const DECODERS: usize = 4;
/// When to come again where nothing is made.
const CLOSED: Duration = Duration::from_secs(10);

/// Describes a model that a thread owns.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The family.
    pub version: Version,
    /// Made for few steps without guidance.
    pub turbo: bool,
    /// Whether it is an inpainting model, which requires an image and a mask.
    pub is_inpainting: bool,
    /// Sides are multiples of it.
    pub multiple: usize,
    /// What a request is where it says nothing.
    pub defaults: Request,
    /// How it was trained.
    pub scheduler: SchedulerConfig,
    /// What a request may ask at most.
    pub bounds: Bounds,
}

impl ModelInfo {
    /// Describes the model of a pipeline.
    pub fn of(pipeline: &Pipeline) -> Self {
        let model = &pipeline.model;
        Self {
            version: model.version,
            turbo: model.turbo,
            is_inpainting: model.is_inpainting(),
            multiple: model.vae.config().factor().max(8),
            defaults: Request::of(model, ""),
            scheduler: model.scheduler.clone(),
            bounds: pipeline.bounds,
        }
    }
}

/// A model that takes requests.
pub struct Served {
    /// The queue of requests.
    pub queue: Queue,
    /// Its names.
    pub name: ModelName,
    /// Its description.
    pub info: ModelInfo,
    /// Where it runs.
    pub device: OpenDevice,
    /// Permits to decode images.
    pub decoders: Arc<Semaphore>,
}

impl Served {
    /// A model behind its queue.
    pub fn new(
        queue: Queue,
        info: ModelInfo,
        name: ModelName,
        device: OpenDevice,
        metrics: &Metrics,
    ) -> Self {
        metrics::register(metrics, name.as_str(), queue.clone(), device.device.clone());
        let decoders = Arc::new(Semaphore::new(DECODERS));
        Self { queue, name, info, device, decoders }
    }

    /// Whether a request would be taken now.
    ///
    /// # Errors
    /// 429 or 503.
    pub fn check_room(&self) -> Result<(), ApiError> {
        self.queue.has_room().map_err(refused)
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// 429 or 503.
    pub fn submit(&self, request: Request) -> Result<ImageJob, ApiError> {
        self.queue.submit(request).map_err(refused)
    }
}

fn refused(refused: Refused) -> ApiError {
    match refused {
        Refused::Full { waiting, after } => {
            ApiError::too_many(format!("{waiting} requests wait already"), after).with_code("queue_full")
        }
        Refused::Closed(failure) => ApiError::unavailable(failure.message, CLOSED).with_code("not_ready"),
    }
}

/// A failure as an error of HTTP.
pub fn failed(failure: Failure) -> ApiError {
    let Failure { code, message } = failure;
    let error = match code {
        "invalid_request" => ApiError::invalid(message),
        "cancelled" => ApiError::conflict(message),
        "device_lost" | "worker_ended" => ApiError::unavailable(message, CLOSED),
        _ => ApiError::internal(message),
    };
    error.with_code(code)
}

impl worker_core::Served for Served {
    fn name(&self) -> &ModelName {
        &self.name
    }

    fn card(&self) -> Value {
        let ModelInfo { version, turbo, is_inpainting, multiple, defaults, scheduler, bounds } = &self.info;
        let version = match version {
            Version::V1 => "1.5",
            Version::V2 => "2.1",
            Version::Xl => "xl",
            Version::Other => "other",
        };
        json!({
            "version": version,
            "turbo": turbo,
            "paints_in": is_inpainting,
            "multiple": multiple,
            "max_side": bounds.side,
            "max_pixels": bounds.pixels,
            "max_steps": bounds.steps,
            "max_images": bounds.pictures,
            "schedulers": Method::ALL.map(Method::name),
            "defaults": {
                "width": defaults.width,
                "height": defaults.height,
                "steps": defaults.steps.min(bounds.steps),
                "guidance": defaults.guidance,
                "scheduler": scheduler.method.name(),
            },
        })
    }

    fn device(&self) -> &OpenDevice {
        &self.device
    }

    fn requests(&self) -> [usize; 2] {
        let status = self.queue.status();
        [status.running, status.waiting]
    }

    fn stop_within(&self, limit: Duration) -> bool {
        self.queue.stop_within(limit)
    }
}

/// What handlers know: the model, once it is loaded.
pub type Api = worker_core::Api<Served>;
