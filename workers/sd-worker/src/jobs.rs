//! Job API: image generation that is started by one request and followed by others.
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::post;
use serde::Serialize;
use worker_core::jobs::{OnDisconnect, Options, Target, accepted};
use worker_core::lifecycle::WorkGuard;
use worker_core::{ApiError, Body, Client, Job, Jobs, blocking, fields};

use crate::callback::Callback;
use crate::images::{Format, Source};
use crate::models::Api;
use crate::parameters::{self, Canvas, Parameters, SizeNames};
use crate::pipeline::{Bounds, Request};
use crate::queue::{Event, Failure, ImageJob, Images};
use crate::served::{ServedModel, api_error};

/// Time after which a job without a callback is cancelled if no client follows it.
pub const ABANDON_TIMEOUT: Duration = Duration::from_secs(60);
const SIZE_FIELDS: SizeNames = ["width", "height"];
/// Maximum size in bytes of the JSON around an image, and of a progress event.
const JSON_BYTES: usize = 4 << 10;
const PROGRESS_EVENT_BYTES: usize = 256;
/// Number of logs of maximum size that are kept for finished jobs.
const MIN_LOGS: usize = 2;

fields! {
    /// Fields of a job, in addition to [`Parameters`].
    pub struct JobRequest => {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Input image: base64 or a data URL.
        image: String,
        /// Mask of the part to regenerate: its light or transparent pixels.
        mask: String,
        /// File format of the images: png, jpeg or webp.
        format: Format,
        /// If false, the result is not sent to the callback URL.
        callback: bool,
    }
}

/// Event of a job. The SSE name of the event identifies the variant.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum JobEvent {
    /// The model is not in memory. It is loaded before the first step.
    Loading {
        /// Name of the model.
        model: String,
    },
    /// The job waits, or starts if its position is 0.
    Queued {
        /// Number of jobs ahead of it.
        position: usize,
    },
    /// A step has been computed.
    Progress {
        /// Number of completed steps.
        step: usize,
        /// Total number of steps.
        total: usize,
        /// Completed percentage of the steps.
        percent: f64,
    },
    /// Preview of the first image of the current batch.
    Preview {
        /// Number of completed steps.
        step: usize,
        /// A small PNG as base64.
        image: String,
    },
    /// The job has completed.
    Complete(Complete),
    /// The job has failed.
    Error {
        /// Machine-readable code.
        code: String,
        /// Human-readable message.
        message: String,
    },
}

/// Result of a job.
#[derive(Debug, Serialize)]
pub struct Complete {
    /// The first image as base64.
    image: String,
    /// File format of the images.
    format: Format,
    /// All images if there are several; seeds increase by 1 from image to image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<String>,
    /// Seed of the first image.
    seed: u64,
    /// Width in pixels.
    width: usize,
    /// Height in pixels.
    height: usize,
    /// True if the prompt was longer than the model supports and has been truncated.
    truncated: bool,
    /// Holds true for each image that the safety checker flagged and replaced by a black one; empty without a checker.
    #[serde(rename = "nsfw_content_detected", skip_serializing_if = "Vec::is_empty")]
    flagged: Vec<bool>,
    /// Parts of the prompts that do not work as their writer may expect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

fn name(event: &JobEvent) -> Option<&'static str> {
    Some(match event {
        JobEvent::Loading { .. } => "loading",
        JobEvent::Queued { .. } => "queued",
        JobEvent::Progress { .. } => "progress",
        JobEvent::Preview { .. } => "preview",
        JobEvent::Complete(_) => "complete",
        JobEvent::Error { .. } => "error",
    })
}

impl From<&ApiError> for JobEvent {
    fn from(error: &ApiError) -> Self {
        Self::Error { code: error.code().to_owned(), message: error.message().to_owned() }
    }
}

/// Body of a callback.
#[derive(Serialize)]
struct Outcome<'a> {
    job_id: &'a str,
    worker_id: &'a str,
    status: &'static str,
    #[serde(flatten)]
    event: &'a JobEvent,
}

#[derive(Clone)]
struct JobsApi {
    api: Api,
    jobs: Jobs<JobEvent>,
    worker_id: Arc<str>,
    callback: Option<Callback>,
}

/// Returns the routes under `/v1/jobs`. `worker_id` is the name of this worker; `limits` are the limits of
/// requests and the number of steps between previews, which determine the maximum size of the log of a job.
pub fn router(api: Api, worker_id: &str, callback: Option<Callback>, limits: (Bounds, usize)) -> Router {
    let mut options = Options::new(worker_id, |error| JobEvent::from(error));
    options.name = Some(name);
    // Events are named, and `complete` and `error` already mark the end of the stream.
    options.done = false;
    options.max_log_bytes = max_log_bytes(limits);
    options.max_ended_bytes = options.max_ended_bytes.max(options.max_log_bytes.saturating_mul(MIN_LOGS));
    let jobs = Jobs::new(options, &api.lifecycle);
    let routes = jobs.routes();
    let state = JobsApi { api, jobs, worker_id: worker_id.into(), callback };
    Router::new().route("/v1/jobs", post(create)).with_state(state).nest("/v1/jobs", routes)
}

/// Returns the maximum log size of a job. PNG may not compress noise, and base64 encodes three bytes as four.
fn max_log_bytes((bounds, preview_every): (Bounds, usize)) -> usize {
    let picture = bounds.pixels.saturating_mul(4).saturating_add(bounds.pixels / 8 + JSON_BYTES);
    // A request may have two passes, and runs a second time if memory runs out while other models are loaded. A
    // request that shares steps has one pass, but may run again because another request of its batch failed.
    let steps = bounds.steps.saturating_mul(2 * 2 * bounds.pictures);
    // A preview has one pixel per cell of the latents, which covers at least 16 pixels.
    let previews =
        steps.checked_div(preview_every).unwrap_or_default().saturating_mul(picture / 16 + JSON_BYTES);
    // The first image is sent twice.
    let pictures = picture.saturating_mul(bounds.pictures + 1);
    pictures.saturating_add(previews).saturating_add(steps.saturating_mul(PROGRESS_EVENT_BYTES))
}

/// Handles `POST /v1/jobs`.
async fn create(
    State(state): State<JobsApi>,
    client: Client,
    Body((target, asked, parameters)): Body<(Target, JobRequest, Parameters)>,
) -> Result<impl IntoResponse, ApiError> {
    let models = state.api.served()?;
    target.check(&*models, &state.worker_id)?;
    let JobRequest { width, height, image, mask, format, callback } = asked;
    if callback == Some(true) && state.callback.is_none() {
        return Err(ApiError::field("callback", "requires --callback-url"));
    }
    // Invalid requests load no model.
    parameters.check_values()?;
    let canvas = Canvas {
        width,
        height,
        image: image.map(Source::Text),
        mask: mask.map(Source::Text),
        transparent_is_mask: false,
    };
    let warnings = parameters.warnings();
    let name = target.model.as_deref();
    // Values that a model does not support are refused at once if its description is known, and otherwise end the job.
    let (start, permit) = match models.described(name)? {
        Some(served) => {
            let request = parameters::check(&served, parameters, canvas, SIZE_FIELDS).await?;
            let permit = client.acquire(request.seeds.len(), "n")?;
            (Ok(Submitted::new(&served, request)?), permit)
        }
        None => {
            let place = models.reserve()?;
            let permit = client.acquire(parameters.n.unwrap_or(1), "n")?;
            (Err((place, parameters, canvas)), permit)
        }
    };
    let callback = state.callback.filter(|_| callback != Some(false));
    let job = state.jobs.create(match callback {
        Some(_) => OnDisconnect::Continue,
        None => OnDisconnect::CancelAfter(ABANDON_TIMEOUT),
    });
    job.hold(permit);
    if let Some(model) = models.unloaded(name) {
        job.push(&JobEvent::Loading { model });
    }
    let (job_id, cancelled) = (job.id(), job.cancelled());
    tracing::debug!(hive = target.hive_id, job_id, "job accepted");
    let callback = callback.map(|callback| (callback, state.api.lifecycle.start_work()));
    let reporter = Reporter { job, api: state.api, worker_id: state.worker_id, callback };
    if let Ok(submitted) = &start {
        submitted.cancel_with(&reporter.job);
    }
    tokio::spawn(async move {
        let submitted = match start {
            Ok(submitted) => Ok(submitted),
            Err((place, parameters, canvas)) => {
                // The client's permit for the job covers the loading, too.
                let load = async {
                    let served = models.described_after_load(target.model.as_deref(), place).await?;
                    Submitted::new(
                        &served,
                        parameters::check(&served, parameters, canvas, SIZE_FIELDS).await?,
                    )
                };
                let cancel =
                    || ApiError::conflict("cancelled before the model was loaded").with_code("cancelled");
                tokio::select! {
                    biased;
                    () = cancelled => Err(cancel()),
                    submitted = load => submitted,
                }
            }
        };
        match submitted {
            Ok(submitted) => {
                submitted.cancel_with(&reporter.job);
                follow(reporter, submitted, format.unwrap_or_default(), warnings).await;
            }
            Err(error) => reporter.end(Err(error)),
        }
    });
    Ok(accepted(&job_id))
}

/// A request in the queue.
struct Submitted {
    images: ImageJob,
    /// Seed of the first image.
    seed: u64,
}

impl Submitted {
    /// Adds a request to the queue.
    fn new(served: &ServedModel, request: Request) -> Result<Self, ApiError> {
        let seed = request.seeds.first().copied().unwrap_or_default();
        Ok(Self { images: served.submit(request)?, seed })
    }

    /// Lets the cancellation of a job remove the request from the queue.
    fn cancel_with(&self, job: &Job<JobEvent>) {
        let canceller = self.images.canceller();
        job.on_cancel(move || canceller.cancel());
    }
}

/// Copies the events of the queue to the log of a job.
async fn follow(
    reporter: Reporter,
    Submitted { mut images, seed }: Submitted,
    format: Format,
    warnings: Vec<String>,
) {
    // After a cancellation, the last event of the queue is still written to the log.
    while let Some(event) = images.next().await {
        let event = match event {
            Event::Queued { position } => JobEvent::Queued { position },
            Event::Progress { step, total } => {
                let percent = (1000 * step / total.max(1)) as f64 / 10.0;
                JobEvent::Progress { step, total, percent }
            }
            Event::Preview { step, picture } => match Format::Png.base64(&picture) {
                Ok(image) => JobEvent::Preview { step, image },
                Err(_) => continue,
            },
            Event::Done { images, truncated } => {
                let made = blocking(move || complete(images, format, (seed, warnings), truncated)).await;
                return reporter.end(made.map(JobEvent::Complete));
            }
            Event::Failed(failure) => return reporter.end(Err(api_error(failure))),
        };
        if !reporter.job.push(&event) {
            let failure =
                Failure { code: "log_full", message: "the job exceeded its log size limit".to_owned() };
            return reporter.end(Err(api_error(failure)));
        }
    }
    reporter.end(Err(ApiError::internal("the queue stopped unexpectedly; see the worker's log")));
}

fn complete(
    Images { pictures, flagged }: Images,
    format: Format,
    (seed, warnings): (u64, Vec<String>),
    truncated: bool,
) -> Result<Complete, ApiError> {
    let failed = |error: crate::Error| ApiError::internal(error.to_string());
    let mut images: Vec<String> =
        pictures.iter().map(|picture| format.base64(picture)).collect::<Result<_, _>>().map_err(failed)?;
    let (image, size) = match (images.first(), pictures.first()) {
        (Some(image), Some(picture)) => (image.clone(), (picture.width(), picture.height())),
        _ => return Err(ApiError::internal("the model returned no image")),
    };
    if images.len() == 1 {
        images.clear();
    }
    Ok(Complete { image, format, images, seed, width: size.0, height: size.1, truncated, flagged, warnings })
}

/// Writes the result of a job to its log and sends it to the callback URL.
struct Reporter {
    job: Job<JobEvent>,
    api: Api,
    worker_id: Arc<str>,
    /// Delays shutdown of the worker until the callback has been sent.
    callback: Option<(Callback, WorkGuard)>,
}

impl Reporter {
    fn end(self, outcome: Result<JobEvent, ApiError>) {
        let (status, event) = match outcome {
            Ok(event) => ("complete", event),
            // After an abort the log already contains this error.
            Err(_) if self.api.lifecycle.is_aborted() => {
                let message = "the worker stopped before the job was completed".to_owned();
                ("error", JobEvent::Error { code: "worker_ended".to_owned(), message })
            }
            Err(error) => ("error", JobEvent::from(&error)),
        };
        let job_id = self.job.id();
        if let Some((callback, work)) = self.callback {
            let outcome = Outcome { job_id: &job_id, worker_id: &self.worker_id, status, event: &event };
            callback.send(&job_id, &outcome, work);
        }
        if self.job.push(&event) {
            self.job.end();
        }
    }
}
