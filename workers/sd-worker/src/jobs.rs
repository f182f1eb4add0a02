//! Jobs: pictures asked for in one request and followed in others.
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Serialize;
use worker_core::jobs::{OnDisconnect, Options, Target, accepted};
use worker_core::lifecycle::WorkGuard;
use worker_core::{ApiError, Body, Client, Job, Jobs, blocking, fields};

use crate::callback::Callback;
use crate::images::{Format, Source};
use crate::parameters::{self, Canvas, Parameters, SizeNames};
use crate::picture::Picture;
use crate::pipeline::Bounds;
use crate::queue::{Event, Failure, ImageJob};
use crate::served::{Api, failed};
use crate::unfollowed::Unfollowed;

/// What the fields of a size are called here.
const SIZE: SizeNames = ["width", "height"];
/// Bytes of what stands around a picture, and of an event about a step.
const OTHER: usize = 4 << 10;
const STEP: usize = 256;
/// Logs of ended jobs that are kept at least, be they as large as can be.
const KEPT: usize = 2;

fields! {
    /// Fields of a job besides [`Parameters`].
    pub struct JobRequest => {
        /// In pixels.
        width: usize,
        /// In pixels.
        height: usize,
        /// An image to begin with: base64 or a data URL.
        image: String,
        /// The part of it that is generated anew: what is light, or transparent.
        mask: String,
        /// png or jpeg.
        format: Format,
        /// If false, the end is not reported to the worker's callback URL.
        callback: bool,
    }
}

/// What a job tells; the event's name says which it is.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum JobEvent {
    /// It waits, or begins.
    Queued {
        /// Jobs that come first; 0 where it begins.
        position: usize,
    },
    /// A step is done.
    Progress {
        /// Steps done.
        step: usize,
        /// Steps to do.
        total: usize,
        /// Steps done of a hundred.
        percent: f64,
    },
    /// How it looks by now.
    Preview {
        /// Steps done.
        step: usize,
        /// A small PNG in base64.
        image: String,
    },
    /// The pictures.
    Complete(Complete),
    /// Nothing more comes.
    Error {
        /// A short name.
        code: String,
        /// What happened.
        message: String,
    },
}

/// What a job made.
#[derive(Debug, Serialize)]
pub struct Complete {
    /// The first picture in base64.
    image: String,
    /// png or jpeg.
    format: Format,
    /// All of them, where there are several; each has the seed behind the one before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<String>,
    /// Of the first.
    seed: u64,
    /// In pixels.
    width: usize,
    /// In pixels.
    height: usize,
    /// The prompt was longer than the model reads: its end did not count.
    truncated: bool,
}

fn name(event: &JobEvent) -> Option<&'static str> {
    Some(match event {
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

/// What the callback URL is told.
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
    unfollowed: Unfollowed,
}

/// `POST /v1/jobs`, and below it streams and their ends. `worker_id` is this worker's name; `limits` are what a
/// request may ask, and the steps from one preview to the next: they say how large a job's log may be.
pub fn router(api: Api, worker_id: &str, callback: Option<Callback>, limits: (Bounds, usize)) -> Router {
    let mut options = Options::new(|error| JobEvent::from(error));
    options.name = Some(name);
    // One who listens by name has no use for it, and the last event says that it is.
    options.done = false;
    options.max_log_bytes = max_log_bytes(limits);
    options.max_ended_bytes = options.max_ended_bytes.max(options.max_log_bytes.saturating_mul(KEPT));
    let jobs = Jobs::new(options, &api.lifecycle);
    let unfollowed = Unfollowed::default();
    let routes = jobs.routes().route_layer(from_fn_with_state(unfollowed.clone(), come));
    let state = JobsApi { api, jobs, worker_id: worker_id.into(), callback, unfollowed };
    Router::new().route("/v1/jobs", post(create)).with_state(state).nest("/v1/jobs", routes)
}

/// Somebody knows the job: follows it, or ends it.
async fn come(
    State(unfollowed): State<Unfollowed>,
    Path(job_id): Path<String>,
    request: Request,
    next: Next,
) -> Response {
    unfollowed.forget(&job_id);
    next.run(request).await
}

/// As much as the largest job writes: noise does not get smaller as PNG, and base64 makes four bytes of three.
fn max_log_bytes((bounds, preview_every): (Bounds, usize)) -> usize {
    let picture = bounds.pixels.saturating_mul(4).saturating_add(bounds.pixels / 8 + OTHER);
    let steps = bounds.steps.saturating_mul(bounds.pictures);
    // A preview has a pixel for each cell of latents, which is of 16 pixels at least.
    let previews = steps.checked_div(preview_every).unwrap_or_default().saturating_mul(picture / 16 + OTHER);
    // The first picture is there twice.
    let pictures = picture.saturating_mul(bounds.pictures + 1);
    pictures.saturating_add(previews).saturating_add(steps.saturating_mul(STEP))
}

/// Handles `POST /v1/jobs`.
async fn create(
    State(state): State<JobsApi>,
    client: Client,
    Body((target, asked, parameters)): Body<(Target, JobRequest, Parameters)>,
) -> Result<impl IntoResponse, ApiError> {
    let served = state.api.served()?;
    target.check(&*served, &state.worker_id)?;
    let JobRequest { width, height, image, mask, format, callback } = asked;
    if callback == Some(true) && state.callback.is_none() {
        return Err(ApiError::field("callback", "requires --callback-url"));
    }
    let canvas = Canvas { width, height, image: image.map(Source::Text), mask: mask.map(Source::Text) };
    let request = parameters::check(&served, parameters, canvas, SIZE).await?;
    let place = client.begin(request.seeds.len(), "n")?;
    let seed = request.seeds.first().copied().unwrap_or_default();
    let images = served.submit(request)?;
    let job = state.jobs.create(OnDisconnect::Cancel);
    job.hold(place);
    let job_id = job.id();
    // The queue's last event still reaches the log.
    let canceller = images.canceller();
    job.on_cancel(move || canceller.cancel());
    tracing::debug!(hive = target.hive_id, job_id, "a job is queued");
    let callback = state.callback.filter(|_| callback != Some(false));
    if callback.is_none() {
        // A job that is not known any more needs no end.
        state.unfollowed.watch(&job_id, move |job_id| drop(state.jobs.cancel(job_id)));
    }
    let callback = callback.map(|callback| (callback, state.api.lifecycle.start_work()));
    let reporter =
        Reporter { job, api: state.api, worker_id: state.worker_id, callback, unfollowed: state.unfollowed };
    tokio::spawn(follow(reporter, images, format.unwrap_or_default(), seed));
    Ok(accepted(&job_id))
}

/// Writes a job's log while its pictures are made.
async fn follow(reporter: Reporter, mut images: ImageJob, format: Format, seed: u64) {
    while let Some(event) = images.next().await {
        let event = match event {
            Event::Queued { before } => JobEvent::Queued { position: before },
            Event::Progress { step, total } => {
                let percent = (1000 * step / total.max(1)) as f64 / 10.0;
                JobEvent::Progress { step, total, percent }
            }
            Event::Preview { step, picture } => match Format::Png.base64(&picture) {
                Ok(image) => JobEvent::Preview { step, image },
                Err(_) => continue,
            },
            Event::Done { pictures, truncated } => {
                let made = blocking(move || complete(&pictures, format, seed, truncated)).await;
                return reporter.end(made.map(JobEvent::Complete));
            }
            Event::Failed(failure) => return reporter.end(Err(failed(failure))),
        };
        if !reporter.job.push(&event) {
            let failure =
                Failure { code: "log_full", message: "the job wrote more than its log may hold".to_owned() };
            return reporter.end(Err(failed(failure)));
        }
    }
    reporter.end(Err(ApiError::internal("the queue stopped unexpectedly: see the worker's log")));
}

fn complete(pictures: &[Picture], format: Format, seed: u64, truncated: bool) -> Result<Complete, ApiError> {
    let failed = |error: crate::Error| ApiError::internal(error.to_string());
    let mut images: Vec<String> =
        pictures.iter().map(|picture| format.base64(picture)).collect::<Result<_, _>>().map_err(failed)?;
    let (image, size) = match (images.first(), pictures.first()) {
        (Some(image), Some(picture)) => (image.clone(), (picture.width(), picture.height())),
        _ => return Err(ApiError::internal("the model made no picture")),
    };
    if images.len() == 1 {
        images.clear();
    }
    Ok(Complete { image, format, images, seed, width: size.0, height: size.1, truncated })
}

/// A job's log, and who else hears of its end.
struct Reporter {
    job: Job<JobEvent>,
    api: Api,
    worker_id: Arc<str>,
    /// The worker's end waits until it is told.
    callback: Option<(Callback, WorkGuard)>,
    unfollowed: Unfollowed,
}

impl Reporter {
    fn end(self, outcome: Result<JobEvent, ApiError>) {
        let (status, event) = match outcome {
            Ok(event) => ("complete", event),
            // Whatever came of the cut: its log says so already.
            Err(_) if self.api.lifecycle.is_aborted() => {
                let message = "the worker stopped before the job was done".to_owned();
                ("error", JobEvent::Error { code: "worker_ended".to_owned(), message })
            }
            Err(error) => ("error", JobEvent::from(&error)),
        };
        let job_id = self.job.id();
        self.unfollowed.forget(&job_id);
        if let Some((callback, work)) = self.callback {
            let outcome = Outcome { job_id: &job_id, worker_id: &self.worker_id, status, event: &event };
            callback.send(&job_id, &outcome, work);
        }
        if self.job.push(&event) {
            self.job.end();
        }
    }
}
