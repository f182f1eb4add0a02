//! Jobs: a text asked for in one request and followed in another.
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

use crate::api::{failure, prompts};
use crate::metrics::Observed;
use crate::served::{Api, Served};

/// Tokens, and time, after which the speed is told.
const METRICS_TOKENS: usize = 32;
const METRICS_TIME: Duration = Duration::from_secs(1);

fields! {
    /// What a job is to write.
    pub struct JobRequest => {
        /// The text to continue.
        prompt: String,
        /// Maximum number of tokens to write.
        max_tokens: usize,
        /// As the sampler's setting.
        temperature: f32,
        /// As the sampler's setting, but above 0.
        top_p: f32,
        /// As the sampler's setting; 0 means all.
        top_k: usize,
        /// If false, the text is sent as one event at the end.
        stream: bool,
    }
}

/// What a job tells.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JobEvent {
    /// Its prompt is about to be read.
    Started {
        /// The job.
        job_id: String,
        /// The model.
        model: String,
        /// When, as RFC 3339 has it.
        started_at: String,
    },
    /// More of the text.
    Token {
        /// What it adds.
        t: String,
        /// Counts these events from 0.
        i: usize,
    },
    /// How fast it is.
    Metrics {
        /// Of this job, since its first.
        tokens_per_sec: f64,
        /// Memory of the card that the worker holds.
        vram_bytes: u64,
    },
    /// The text is whole.
    End {
        /// Tokens written.
        tokens_out: usize,
        /// From the first token to the last.
        decode_time_ms: u64,
        /// Why.
        stop_reason: StopReason,
    },
    /// Nothing more comes.
    Error {
        /// A short name.
        code: String,
        /// What happened.
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

/// `POST /v1/jobs`, and below it streams and their ends; `worker_id` is this worker's name.
pub fn router(api: Api, worker_id: String) -> Router {
    let jobs = Jobs::new(Options::new(|error| JobEvent::from(error)), &api.lifecycle);
    let state = JobsApi { api, jobs: jobs.clone(), worker_id: worker_id.into() };
    Router::new().route("/v1/jobs", post(create)).with_state(state).nest("/v1/jobs", jobs.routes())
}

/// Handles `POST /v1/jobs`.
async fn create(
    State(state): State<JobsApi>,
    client: Client,
    Body((target, asked)): Body<(Target, JobRequest)>,
) -> Result<impl IntoResponse, ApiError> {
    let served = state.api.served()?;
    let hive = required(target.hive_id.as_deref(), "hive_id")?;
    required(target.model.as_deref(), "model")?;
    target.check(&*served, &state.worker_id)?;
    let whole = asked.stream == Some(false);
    let place = client.begin(1, "prompt")?;
    let submitting = served.clone();
    let start = Instant::now();
    let stream = blocking(move || submit(&submitting, asked)).await?;
    let job = state.jobs.create(OnDisconnect::Continue);
    job.hold(place);
    let job_id = job.id();
    tracing::debug!(hive, job_id, "a job begins");
    let observed = served.metrics.observe(start);
    tokio::spawn(write(job, stream, served, observed, whole));
    Ok(accepted(&job_id))
}

fn submit(served: &Served, asked: JobRequest) -> Result<Stream, ApiError> {
    let max_tokens = required(asked.max_tokens, "max_tokens")?;
    let top_p = asked.top_p.unwrap_or(1.0);
    check(&[
        Limit("max_tokens", max_tokens as f64, 1.0..=f64::INFINITY, "tokens"),
        Limit("top_p", top_p.into(), f64::MIN_POSITIVE..=1.0, ""),
    ])?;
    let sampling = Sampling {
        temperature: required(asked.temperature, "temperature")?,
        top_p,
        top_k: asked.top_k.filter(|&top_k| top_k > 0),
        ..Sampling::default()
    };
    let prompt = served.engine.text().encode(&required(asked.prompt, "prompt")?, true);
    let request = Request {
        prompt: prompt.map_err(|error| prompts::refused("prompt", &error))?,
        max_tokens: Some(max_tokens),
        sampling,
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: None,
        constraint: None,
    };
    served.engine.submit(request).map_err(|refused| failure::refused(refused, "prompt", "prompt"))
}

/// Writes a job's log from its stream.
async fn write(
    job: Job<JobEvent>,
    mut stream: Stream,
    served: Arc<Served>,
    mut observed: Observed,
    whole: bool,
) {
    let mut log = Log { job, served, whole, held: String::new(), pieces: 0, speed: None };
    let mut cancelled = std::pin::pin!(log.job.cancelled());
    let mut told = false;
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = &mut cancelled, if !told => {
                // The stream still tells how it ended.
                stream.cancel();
                told = true;
                continue;
            }
        };
        let Some(event) = event else {
            return log
                .job
                .fail(&ApiError::internal("the engine stopped unexpectedly: see the worker's log"));
        };
        observed.event(&event);
        let goes_on = match event {
            Event::Started => log.started(),
            Event::Token { text, .. } => log.token(text),
            Event::End { text, reason, usage } => {
                log.end(text, reason, usage.completion_tokens);
                return log.job.end();
            }
            Event::Error { code, message } => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return log.job.fail(&ApiError::new(status, code, message));
            }
        };
        if !goes_on {
            return;
        }
    }
}

/// Speed is measured from the first token on.
struct Speed {
    first: Instant,
    told: Instant,
    tokens: usize,
    tokens_told: usize,
}

struct Log {
    job: Job<JobEvent>,
    served: Arc<Served>,
    whole: bool,
    held: String,
    pieces: usize,
    speed: Option<Speed>,
}

impl Log {
    fn started(&mut self) -> bool {
        let started_at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        self.job.push(&JobEvent::Started {
            job_id: self.job.id(),
            model: self.served.name.as_str().to_owned(),
            started_at,
        })
    }

    fn token(&mut self, text: String) -> bool {
        let now = Instant::now();
        let speed = self.speed.get_or_insert(Speed { first: now, told: now, tokens: 0, tokens_told: 0 });
        speed.tokens += 1;
        let due = speed.tokens - speed.tokens_told >= METRICS_TOKENS || now - speed.told >= METRICS_TIME;
        let mut goes_on = self.text(text, self.whole);
        if due {
            goes_on &= self.metrics(now);
        }
        goes_on
    }

    /// What was written so far, unless it is to be held.
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
        (speed.told, speed.tokens_told) = (now, speed.tokens);
        let seconds = (now - speed.first).as_secs_f64();
        // The first token's time went into reading the prompt.
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
