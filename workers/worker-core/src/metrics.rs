//! Metrics as Prometheus reads them.

use crate::device;
use crate::error::ApiError;
use crate::guarded::guard;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use candle_core::Device;
use parking_lot::Mutex;
pub use prometheus_client;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// What nginx counts as closed by the client: no answer was given.
const CLIENT_LEFT: u16 = 499;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Route {
    method: &'static str,
    route: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answer {
    method: &'static str,
    route: String,
    status: u16,
}

/// The worker's metrics; clones share them. They hold requests by route and status, how long they took, and
/// the streams open; a worker registers its own beside.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    requests: Family<Answer, Counter>,
    durations: Family<Route, Histogram, fn() -> Histogram>,
    streams: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("streams", &self.streams.get()).finish_non_exhaustive()
    }
}

impl Metrics {
    /// Those of HTTP alone.
    pub fn new() -> Metrics {
        // 5 ms to 3 minutes.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.005, 2.0, 16));
        let metrics = Metrics {
            registry: Arc::new(Mutex::new(Registry::default())),
            requests: Family::default(),
            durations: Family::new_with_constructor(histogram),
            streams: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "http_requests",
                "Requests answered, by route and status; 499 where the client left first",
                metrics.requests.clone(),
            );
            registry.register_with_unit(
                "http_request_duration",
                "Time until the last byte of an answer, by route",
                Unit::Seconds,
                metrics.durations.clone(),
            );
            registry.register("http_streams_open", "Event streams being sent", metrics.streams.clone());
        });
        metrics
    }

    /// Adds the worker's own: `metrics.register(|registry| registry.register("queue", "Waiting", gauge))`.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.registry.lock())
    }

    /// Adds a model's figures and more, under the label `model`.
    pub fn register_model(&self, model: &str, figures: impl Collector, more: impl FnOnce(&mut Registry)) {
        self.register(|registry| {
            let registry = registry.sub_registry_with_label(("model".into(), model.to_owned().into()));
            more(registry);
            registry.register_collector(Box::new(figures));
        });
    }

    /// All of them as OpenMetrics text.
    ///
    /// # Errors
    /// 500 where a collector of the worker fails.
    pub fn text(&self) -> Result<String, ApiError> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock())
            .map_err(|error| ApiError::internal(format!("the metrics cannot be written: {error}")))?;
        Ok(text)
    }

    /// Event streams being sent now.
    pub fn streams_open(&self) -> i64 {
        self.streams.get()
    }
}

/// A figure of a model: its name, its description, and how the number is read of the model's status.
pub type Figure<S, N> = (&'static str, &'static str, fn(&S) -> N);

/// The figures of a model, read when Prometheus asks for them.
pub struct Figures<S: 'static, N: 'static> {
    /// Reads the status.
    pub status: Box<dyn Fn() -> S + Send + Sync>,
    /// Figures that rise and fall.
    pub gauges: &'static [Figure<S, N>],
    /// Figures that only rise.
    pub counters: &'static [Figure<S, N>],
    /// Name of the figure for the memory that is held on the device.
    pub memory: &'static str,
    /// The device.
    pub device: Device,
}

impl<S, N> fmt::Debug for Figures<S, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}

impl<S: 'static, N: EncodeGaugeValue + EncodeCounterValue + 'static> Collector for Figures<S, N> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let status = (self.status)();
        let memory = [
            (self.memory, "Memory held on the device", device::vram_bytes(&self.device)),
            ("process_resident_memory_bytes", "Memory held on the host", device::resident_bytes()),
        ];
        for (name, help, bytes) in memory {
            let gauge = ConstGauge::new(bytes);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, value) in self.gauges {
            let gauge = ConstGauge::new(value(&status));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, value) in self.counters {
            let counter = ConstCounter::new(value(&status));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

pub(crate) async fn answer(State(metrics): State<Metrics>) -> Result<Response, ApiError> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], metrics.text()?).into_response())
}

/// One request being measured; dropped when its last byte is sent or its client has left.
struct Measured {
    metrics: Metrics,
    route: Route,
    start: Instant,
    status: u16,
    stream: bool,
}

impl Drop for Measured {
    fn drop(&mut self) {
        let Route { method, route } = self.route.clone();
        self.metrics.requests.get_or_create(&Answer { method, route, status: self.status }).inc();
        self.metrics.durations.get_or_create(&self.route).observe(self.start.elapsed().as_secs_f64());
        if self.stream {
            self.metrics.streams.dec();
        }
    }
}

/// Measures every request that passes.
pub(crate) async fn measure(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    // The route as it is declared: ids in paths must not become metrics of their own.
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let route = Route { method: method(request.method()), route };
    let start = Instant::now();
    let mut measured = Measured { metrics, route, start, status: CLIENT_LEFT, stream: false };
    let response = next.run(request).await;
    measured.status = response.status().as_u16();
    measured.stream = response.status() == StatusCode::OK
        && response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if measured.stream {
        measured.metrics.streams.inc();
    }
    guard(response, measured)
}

/// The method as a label; clients may invent any.
fn method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}
