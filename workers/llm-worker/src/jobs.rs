//! Job API: a text is requested by one request and followed by another.
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use llm_engine::engine::Stream;
use llm_engine::request::{Event, Request, Sampling, StopReason};
use serde::Serialize;
use worker_core::body::{Limit, check, required};
use worker_core::jobs::{OnDisconnect, Options, Target, accepted};
use worker_core::{ApiError, Body, Client, Job, Jobs, blocking, device, fields};

use crate::api::{failure, tokenizing};
use crate::metrics::TextLatency;
use crate::models::Api;
use crate::served::ServedModel;

/// Number of tokens, and duration, between two metrics events.
const METRICS_TOKENS: usize = 32;
const METRICS_TIME: Duration = Duration::from_secs(1);

fields! {
    /// Fields of a text-generation job.
    pub struct JobRequest => {
        /// Text to continue.
        prompt: String,
        /// Maximum number of tokens to generate.
        max_tokens: usize,
        /// Sampler setting of the same name.
        temperature: f32,
        /// Sampler setting of the same name, but above 0.
        top_p: f32,
        /// Sampler setting of the same name; 0 means all.
        top_k: usize,
        /// If false, the text is sent as one event at the end.
        stream: bool,
    }
}

/// Event of a job's stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JobEvent {
    /// Computation of the prompt is about to start.
    Started {
        /// Job id.
        job_id: String,
        /// Model name.
        model: String,
        /// Start time in RFC 3339 format.
        started_at: String,
    },
    /// Generated text.
    Token {
        /// Text to append.
        t: String,
        /// Index of this event, counted from 0.
        i: usize,
    },
    /// Generation speed.
    Metrics {
        /// Tokens per second since the job's first token.
        tokens_per_sec: f64,
        /// GPU memory that the worker holds, in bytes.
        vram_bytes: u64,
    },
    /// The text is complete.
    End {
        /// Number of generated tokens.
        tokens_out: usize,
        /// Time from the first token to the last, in milliseconds.
        decode_time_ms: u64,
        /// Reason why generation ended.
        stop_reason: StopReason,
    },
    /// The job failed; no more events follow.
    Error {
        /// Machine-readable code.
        code: String,
        /// Error message.
        message: String,
    },
}

impl From<&ApiError> for JobEvent {
    fn from(error: &ApiError) -> Self {
        Self::Error { code: error.code().to_owned(), message: error.message().to_owned() }
    }
}

#[derive(Clone)]
struct JobsApi {
    api: Api,
    jobs: Jobs<JobEvent>,
    worker_id: Arc<str>,
}

/// Returns the routes of `POST /v1/jobs`, job streams and cancellation. `worker_id` is this worker's name.
pub fn router(api: Api, worker_id: String) -> Router {
    let jobs = Jobs::new(Options::new(&worker_id, |error| JobEvent::from(error)), &api.lifecycle);
    let state = JobsApi { api, jobs: jobs.clone(), worker_id: worker_id.into() };
    Router::new().route("/v1/jobs", post(create)).with_state(state).nest("/v1/jobs", jobs.routes())
}

/// Handles `POST /v1/jobs`.
async fn create(
    State(state): State<JobsApi>,
    client: Client,
    Body((target, body)): Body<(Target, JobRequest)>,
) -> Result<impl IntoResponse, ApiError> {
    let models = state.api.served()?;
    let hive = required(target.hive_id.as_deref(), "hive_id")?;
    required(target.model.as_deref(), "model")?;
    target.check(&*models, &state.worker_id)?;
    let served = models.model(target.model.as_deref()).await?;
    let model = served.requested(target.model.as_deref())?;
    let single_event = body.stream == Some(false);
    let place = client.acquire(1, "prompt")?;
    let start = Instant::now();
    let request = request(&served, body, &client).await?;
    let request = Request { adapter: model.adapter, ..request };
    let engine = served.engine.clone();
    let submitted = blocking(move || {
        engine.submit(request).map_err(|error| failure::request_error(error, "prompt", "prompt"))
    });
    let stream = submitted.await?;
    let job = state.jobs.create(OnDisconnect::Continue);
    job.hold(place);
    let job_id = job.id();
    tracing::debug!(hive, job_id, "job started");
    let latency = served.metrics.observe(start);
    tokio::spawn(write(job, stream, (served.clone(), model.name), latency, single_event));
    Ok(accepted(&job_id))
}

async fn request(served: &Arc<ServedModel>, body: JobRequest, client: &Client) -> Result<Request, ApiError> {
    let max_tokens = required(body.max_tokens, "max_tokens")?;
    let defaults = served.sampling.clone();
    let top_p = body.top_p.unwrap_or(defaults.top_p);
    check(&[
        Limit("max_tokens", max_tokens as f64, 1.0..=f64::INFINITY, "tokens"),
        Limit("top_p", top_p.into(), f64::MIN_POSITIVE..=1.0, ""),
    ])?;
    let sampling = Sampling {
        temperature: required(body.temperature, "temperature")?,
        top_p,
        top_k: body.top_k.map_or(defaults.top_k, |top_k| Some(top_k).filter(|&top_k| top_k > 0)),
        ..defaults
    };
    let texts = vec![required(body.prompt, "prompt")?];
    let prompts = tokenizing::encode(served, texts, served.context(), "prompt").await?;
    Ok(Request {
        prompt: prompts.into_iter().next().unwrap_or_default(),
        max_tokens: Some(max_tokens),
        sampling,
        client: client.id(),
        cache_salt: client.cache_salt(None),
        ..Request::default()
    })
}

/// Forwards a stream's events to a job's event log.
async fn write(
    job: Job<JobEvent>,
    mut stream: Stream,
    (served, model): (Arc<ServedModel>, String),
    mut latency: TextLatency,
    single_event: bool,
) {
    let mut log = JobLog { job, served, model, single_event, held: String::new(), pieces: 0, speed: None };
    let mut cancelled = std::pin::pin!(log.job.cancelled());
    let mut cancel_sent = false;
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = &mut cancelled, if !cancel_sent => {
                // The stream still delivers its final event.
                stream.cancel();
                cancel_sent = true;
                continue;
            }
        };
        let Some(event) = event else {
            return log
                .job
                .fail(&ApiError::internal("the engine stopped unexpectedly; see the worker's log"));
        };
        latency.event(&event);
        let is_open = match event {
            Event::Started => log.started(),
            Event::Prompt { .. } => true,
            Event::Token { text, .. } => log.token(text),
            Event::End { text, reason, usage, .. } => {
                log.end(text, reason, usage.completion_tokens);
                return log.job.end();
            }
            Event::Error { code, message } => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return log.job.fail(&ApiError::new(status, code, message));
            }
        };
        if !is_open {
            return;
        }
    }
}

/// Progress since the first token.
struct Speed {
    first: Instant,
    reported: Instant,
    tokens: usize,
    reported_tokens: usize,
}

struct JobLog {
    job: Job<JobEvent>,
    served: Arc<ServedModel>,
    model: String,
    single_event: bool,
    held: String,
    pieces: usize,
    speed: Option<Speed>,
}

impl JobLog {
    fn started(&mut self) -> bool {
        let started_at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        self.job.push(&JobEvent::Started { job_id: self.job.id(), model: self.model.clone(), started_at })
    }

    fn token(&mut self, text: String) -> bool {
        let now = Instant::now();
        let speed =
            self.speed.get_or_insert(Speed { first: now, reported: now, tokens: 0, reported_tokens: 0 });
        speed.tokens += 1;
        let due =
            speed.tokens - speed.reported_tokens >= METRICS_TOKENS || now - speed.reported >= METRICS_TIME;
        let mut is_open = self.text(text, self.single_event);
        if due {
            is_open &= self.metrics(now);
        }
        is_open
    }

    /// Pushes the text so far, unless `hold` is set.
    fn text(&mut self, text: String, hold: bool) -> bool {
        self.held.push_str(&text);
        if hold || self.held.is_empty() {
            return true;
        }
        let i = self.pieces;
        self.pieces += 1;
        self.job.push(&JobEvent::Token { t: std::mem::take(&mut self.held), i })
    }

    fn metrics(&mut self, now: Instant) -> bool {
        let Some(speed) = &mut self.speed else { return true };
        (speed.reported, speed.reported_tokens) = (now, speed.tokens);
        let seconds = (now - speed.first).as_secs_f64();
        // The first token is not counted, since its time was spent on the prompt.
        let tokens_per_sec = if seconds > 0.0 { (speed.tokens - 1) as f64 / seconds } else { 0.0 };
        let vram_bytes = device::vram_bytes(&self.served.device.device);
        self.job.push(&JobEvent::Metrics { tokens_per_sec, vram_bytes })
    }

    fn end(&mut self, text: String, stop_reason: StopReason, tokens_out: usize) {
        let now = Instant::now();
        let decode_time_ms = self.speed.as_ref().map_or(0, |speed| (now - speed.first).as_millis() as u64);
        self.text(text, false);
        self.metrics(now);
        self.job.push(&JobEvent::End { tokens_out, decode_time_ms, stop_reason });
    }
}
