//! Router of a worker: its own routes, the routes shared by all workers, and the middleware.

use crate::admission::{Admission, ClientLimits, admit};
use crate::auth::{TokenPolicy, require_token};
use crate::device::{self, DeviceKind};
use crate::error::{
    ErrorFormat, ErrorFormats, format_errors, handler_panicked, method_not_allowed, normalize_errors,
    route_not_found,
};
use crate::lifecycle::State as Phase;
use crate::metrics::measure;
use crate::origin::{OriginPolicy, check_origin};
use crate::unread::close_unread;
use crate::{ApiError, Lifecycle, Metrics, ServerArguments, metrics};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::RETRY_AFTER;
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
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::trace::TraceLayer;
use tracing::Span;

type Doctor = Arc<dyn Fn() -> String + Send + Sync>;

/// Application of a worker: routes, state and metrics.
pub struct App {
    router: Router,
    doctor: Option<Doctor>,
    open: Vec<&'static str>,
    formats: ErrorFormats,
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
    /// Creates an application. `router` must not contain `/health`, `/ready`, `/metrics` and `/doctor`.
    pub fn new(router: Router, lifecycle: Lifecycle, metrics: Metrics) -> App {
        let open = vec!["/health", "/ready"];
        let formats = ErrorFormats::default();
        App { router, doctor: None, open, formats, lifecycle, metrics, bound: None, drain: None }
    }

    /// Sets the function that returns the report for `GET /doctor`. It may block.
    pub fn doctor(self, doctor: impl Fn() -> String + Send + Sync + 'static) -> App {
        App { doctor: Some(Arc::new(doctor)), ..self }
    }

    /// Enables `GET /doctor` with a report on this machine and device; `package` is the worker's Cargo package.
    pub fn doctor_of(self, kind: DeviceKind, package: &'static str) -> App {
        self.doctor(move || device::doctor(kind, &kind.binary(package)))
    }

    /// Exempts a path from authentication, such as a page that asks for the token.
    pub fn public_path(mut self, path: &'static str) -> App {
        self.open.push(path);
        self
    }

    /// Sets the format of the errors of `path` and of the paths below it, including those of the middleware.
    pub fn error_format(mut self, path: &'static str, format: ErrorFormat) -> App {
        self.formats.0.push((path, format));
        self
    }

    /// Sets a hook that is called with the address once the worker is listening.
    pub fn on_bound(self, hook: impl FnOnce(SocketAddr) + Send + 'static) -> App {
        App { bound: Some(Box::new(hook)), ..self }
    }

    /// Sets a hook that is called at the start of shutdown, before the worker waits for running requests.
    pub fn on_drain(self, hook: impl FnOnce() + Send + 'static) -> App {
        App { drain: Some(Box::new(hook)), ..self }
    }

    /// Returns the complete router that [`crate::serve`] uses. Tests can call it without a socket.
    pub fn router(&self, arguments: &ServerArguments) -> Router {
        let mut router = self
            .router
            .clone()
            .route("/health", get(health).with_state(self.lifecycle.clone()))
            .route("/ready", get(ready).with_state(self.lifecycle.clone()))
            .route("/metrics", get(metrics::get_metrics).with_state(self.metrics.clone()));
        if let Some(doctor) = &self.doctor {
            router = router.route("/doctor", get(get_doctor).with_state(doctor.clone()));
        }
        let guard =
            TokenPolicy { tokens: arguments.api_token.as_slice().into(), open: self.open.as_slice().into() };
        let admission = Admission {
            lifecycle: self.lifecycle.clone(),
            clients: ClientLimits::new(arguments.streams_per_client, &arguments.trusted_proxy),
            timeout: arguments.request_timeout(),
        };
        let mut router = router
            .fallback(route_not_found)
            .method_not_allowed_fallback(method_not_allowed)
            // The last layer is the outermost.
            .layer(DefaultBodyLimit::max(arguments.body_limit))
            .layer(from_fn_with_state(admission, admit))
            .layer(from_fn_with_state(guard, require_token));
        if let Some(policy) = OriginPolicy::of(arguments) {
            router = router.layer(from_fn_with_state(policy, check_origin));
        }
        let mut router = router
            .layer(CatchPanicLayer::custom(handler_panicked))
            .layer(from_fn(normalize_errors))
            .layer(from_fn_with_state(self.formats.clone(), format_errors))
            .layer(from_fn(close_unread));
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
        // Clients send additional headers, such as OpenAI's `x-stainless-os`. Access is restricted by origin instead.
        .allow_headers(AllowHeaders::mirror_request())
        .max_age(Duration::from_secs(600))
}

fn span(request: &Request) -> Span {
    // The query is omitted, because it may contain private data of clients.
    tracing::info_span!("http", method = %request.method(), path = request.uri().path())
}

fn log(response: &Response, latency: Duration, _span: &Span) {
    let (status, ms) = (response.status().as_u16(), latency.as_millis());
    match status {
        503 | ..=499 => tracing::debug!(status, ms, "request completed"),
        _ => tracing::warn!(status, ms, "request failed"),
    }
}

async fn health(State(lifecycle): State<Lifecycle>) -> Response {
    let body = json!({
        "status": "ok",
        "lifecycle": lifecycle.state(),
        "uptime_seconds": lifecycle.uptime().as_secs(),
    });
    Json(body).into_response()
}

async fn ready(State(lifecycle): State<Lifecycle>) -> Response {
    let state = lifecycle.state();
    let not_ready = state.not_ready();
    let body = Json(json!({
        "ready": state == Phase::Ready,
        "lifecycle": state,
        "why": not_ready.as_ref().map(|(why, _)| why),
    }));
    match not_ready {
        None => body.into_response(),
        Some((_, after)) => {
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, after.as_secs().to_string())], body)
                .into_response()
        }
    }
}

async fn get_doctor(State(doctor): State<Doctor>) -> Result<String, ApiError> {
    let report = tokio::task::spawn_blocking(move || doctor()).await;
    report.map_err(|error| ApiError::internal(format!("diagnostics failed: {error}; see the worker's log")))
}
