//! The worker's routes among those that every worker has, and the layers around them.

use crate::admission::{Admission, Clients, admit};
use crate::auth::{Guard, require};
use crate::device::{self, DeviceKind};
use crate::error::{no_method, no_route, panicked, shape};
use crate::lifecycle::State as Phase;
use crate::metrics::measure;
use crate::{ApiError, Lifecycle, Metrics, ServerArguments, metrics};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use axum::http::{Method, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::trace::TraceLayer;
use tracing::Span;

type Doctor = Arc<dyn Fn() -> String + Send + Sync>;

/// A worker as it is served: its routes, its state, its metrics.
pub struct App {
    router: Router,
    doctor: Option<Doctor>,
    open: Vec<&'static str>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) metrics: Metrics,
    pub(crate) bound: Option<Box<dyn FnOnce(SocketAddr) + Send>>,
    pub(crate) drain: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("router", &self.router).field("open", &self.open).finish_non_exhaustive()
    }
}

impl App {
    /// `router` has the worker's own routes; it must have no `/health`, `/ready`, `/metrics` and `/doctor`.
    pub fn new(router: Router, lifecycle: Lifecycle, metrics: Metrics) -> App {
        let open = vec!["/health", "/ready"];
        App { router, doctor: None, open, lifecycle, metrics, bound: None, drain: None }
    }

    /// Answers `GET /doctor` with what `doctor` writes. It may take its time: it runs on a thread of its own.
    pub fn doctor(self, doctor: impl Fn() -> String + Send + Sync + 'static) -> App {
        App { doctor: Some(Arc::new(doctor)), ..self }
    }

    /// Answers `GET /doctor` with a report about this machine and the device of this worker, whose package is `package`.
    pub fn doctor_of(self, kind: DeviceKind, package: &'static str) -> App {
        self.doctor(move || device::doctor(kind, &kind.binary(package)))
    }

    /// A path that needs no token, beside `/health` and `/ready`: a page that asks for it.
    pub fn open(mut self, path: &'static str) -> App {
        self.open.push(path);
        self
    }

    /// Called with the address once the worker listens.
    pub fn on_bound(self, hook: impl FnOnce(SocketAddr) + Send + 'static) -> App {
        App { bound: Some(Box::new(hook)), ..self }
    }

    /// Called when the worker begins to end, before it waits for what runs.
    pub fn on_drain(self, hook: impl FnOnce() + Send + 'static) -> App {
        App { drain: Some(Box::new(hook)), ..self }
    }

    /// All routes with all layers, as [`crate::serve`] serves them; for tests without a socket.
    pub fn router(&self, arguments: &ServerArguments) -> Router {
        let mut router = self
            .router
            .clone()
            .route("/health", get(health).with_state(self.lifecycle.clone()))
            .route("/ready", get(ready).with_state(self.lifecycle.clone()))
            .route("/metrics", get(metrics::answer).with_state(self.metrics.clone()));
        if let Some(doctor) = &self.doctor {
            router = router.route("/doctor", get(examine).with_state(doctor.clone()));
        }
        let guard = Guard { token: arguments.api_token.clone(), open: self.open.as_slice().into() };
        let admission = Admission {
            lifecycle: self.lifecycle.clone(),
            clients: Clients::new(arguments.streams_per_client, &arguments.trusted_proxy),
            timeout: arguments.request_timeout(),
        };
        let mut router = router
            .fallback(no_route)
            .method_not_allowed_fallback(no_method)
            // The last one is the outermost.
            .layer(DefaultBodyLimit::max(arguments.body_limit))
            .layer(from_fn_with_state(admission, admit))
            .layer(from_fn_with_state(guard, require))
            .layer(CatchPanicLayer::custom(panicked))
            .layer(from_fn(shape));
        if !arguments.cors_origin.is_empty() {
            router = router.layer(cors(arguments));
        }
        let trace = TraceLayer::new_for_http().make_span_with(span).on_failure(()).on_response(log);
        router.layer(from_fn_with_state(self.metrics.clone(), measure)).layer(trace)
    }
}

fn cors(arguments: &ServerArguments) -> CorsLayer {
    let origins = &arguments.cors_origin;
    let origins = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().cloned()),
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([AUTHORIZATION, CONTENT_TYPE, HeaderName::from_static("last-event-id")])
        .max_age(Duration::from_secs(600))
}

fn span(request: &Request) -> Span {
    // Without the query: it is for clients to choose what they put there.
    tracing::info_span!("http", method = %request.method(), path = request.uri().path())
}

fn log(response: &Response, latency: Duration, _span: &Span) {
    let (status, ms) = (response.status().as_u16(), latency.as_millis());
    match status {
        503 | ..=499 => tracing::debug!(status, ms, "answered"),
        _ => tracing::warn!(status, ms, "answered"),
    }
}

async fn health(State(lifecycle): State<Lifecycle>) -> Response {
    let body = json!({
        "status": "ok",
        "lifecycle": lifecycle.state(),
        "uptime_seconds": lifecycle.age().as_secs(),
    });
    Json(body).into_response()
}

async fn ready(State(lifecycle): State<Lifecycle>) -> Response {
    let state = lifecycle.state();
    let refusal = state.refusal();
    let body = Json(json!({
        "ready": state == Phase::Ready,
        "lifecycle": state,
        "why": refusal.as_ref().map(|(why, _)| why),
    }));
    match refusal {
        None => body.into_response(),
        Some((_, after)) => {
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, after.as_secs().to_string())], body)
                .into_response()
        }
    }
}

async fn examine(State(doctor): State<Doctor>) -> Result<String, ApiError> {
    let report = tokio::task::spawn_blocking(move || doctor()).await;
    report.map_err(|error| ApiError::internal(format!("diagnostics failed: {error}; see the worker's log")))
}
