//! The model as handlers know it.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use worker_core::{ApiError, Metrics, unix_seconds};

use crate::metrics;
use crate::model::Version;
use crate::pipeline::{Bounds, Pipeline, Request};
use crate::queue::{Failure, Painting, Queue, Refused};
use crate::schedulers::SchedulerConfig;
use worker_core::device::Opened;

/// Given pictures that are decoded at once: each may take as much memory as its limits allow.
const DECODERS: usize = 4;
/// When to come again where nothing is made.
const CLOSED: Duration = Duration::from_secs(10);

/// What there is to know of a model, when a thread has taken it.
#[derive(Clone, Debug)]
pub struct About {
    /// The family.
    pub version: Version,
    /// Made for few steps without guidance.
    pub turbo: bool,
    /// It paints into pictures: picture and mask must be given.
    pub paints_in: bool,
    /// Sides are multiples of it.
    pub multiple: usize,
    /// What a request is where it says nothing.
    pub defaults: Request,
    /// How it was trained.
    pub scheduler: SchedulerConfig,
    /// What a request may ask at most.
    pub bounds: Bounds,
}

impl About {
    /// What a pipeline says of itself.
    pub fn of(pipeline: &Pipeline) -> Self {
        let model = &pipeline.model;
        Self {
            version: model.version,
            turbo: model.turbo,
            paints_in: model.paints_in(),
            multiple: model.vae.config().factor().max(8),
            defaults: Request::of(model, ""),
            scheduler: model.scheduler.clone(),
            bounds: pipeline.bounds,
        }
    }
}

/// A model that takes requests.
pub struct Served {
    /// What computes.
    pub queue: Queue,
    /// What clients call it.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// What it is.
    pub about: About,
    /// Where it runs.
    pub opened: Opened,
    /// Who may decode pictures.
    pub decoders: Arc<Semaphore>,
    aliases: Vec<String>,
}

impl Served {
    /// `aliases` are other names that it answers to.
    pub fn new(
        queue: Queue,
        about: About,
        name: String,
        aliases: Vec<String>,
        opened: Opened,
        metrics: &Metrics,
    ) -> Self {
        metrics::register(metrics, &name, queue.clone(), opened.device.clone());
        let decoders = Arc::new(Semaphore::new(DECODERS));
        Self { queue, name, created: unix_seconds(), about, opened, decoders, aliases }
    }

    /// Whether a request means this model; one without a name does.
    ///
    /// # Errors
    /// 404 for another name.
    pub fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.name && !self.aliases.iter().any(|alias| alias == name) => {
                let message = format!("there is no model {name:?} here, only {:?}", self.name);
                Err(ApiError::not_found(message).with_code("model_not_found").with_param("model"))
            }
            _ => Ok(()),
        }
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
    pub fn submit(&self, request: Request) -> Result<Painting, ApiError> {
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

/// What handlers know: the model, once it is loaded.
pub type Api = worker_core::Api<Served>;
