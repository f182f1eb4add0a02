//! Prometheus metrics.

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

/// nginx's status for requests whose client disconnected before the response.
const CLIENT_CLOSED: u16 = 499;
const DRIVER_OBJECTS: &str =
    "Objects of the GPU driver that were created and not destroyed (software GPU only)";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResponseLabels {
    method: &'static str,
    route: String,
    status: u16,
}

/// Metrics of the worker; clones share them. They include requests by route and status, their durations and
/// the number of open streams. A worker can register further metrics.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    requests: Family<ResponseLabels, Counter>,
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
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
    /// Creates a registry with the HTTP metrics.
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
                "Completed requests by route and status; 499 if the client disconnected before the response",
                metrics.requests.clone(),
            );
            registry.register_with_unit(
                "http_request_duration",
                "Time until the last byte of the response, by route",
                Unit::Seconds,
                metrics.durations.clone(),
            );
            registry.register("http_streams_open", "Open event streams", metrics.streams.clone());
        });
        metrics
    }

    /// Registers further metrics: `metrics.register(|registry| registry.register("queue", "Waiting", gauge))`.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.registry.lock())
    }

    /// Registers the figures of a model, and further metrics added by `more`, with the label `model`.
    pub fn register_model(&self, model: &str, figures: impl Collector, more: impl FnOnce(&mut Registry)) {
        self.register(|registry| {
            let registry = registry.sub_registry_with_label(("model".into(), model.to_owned().into()));
            more(registry);
            registry.register_collector(Box::new(figures));
        });
    }

    /// Encodes all metrics as OpenMetrics text.
    ///
    /// # Errors
    /// 500 if a collector fails.
    pub fn text(&self) -> Result<String, ApiError> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock())
            .map_err(|error| ApiError::internal(format!("cannot encode the metrics: {error}")))?;
        Ok(joined_families(&text))
    }

    /// Returns the number of open event streams.
    pub fn streams_open(&self) -> i64 {
        self.streams.get()
    }
}

/// Joins the families of the same name, which each model of a worker has: OpenMetrics allows each name once.
fn joined_families(text: &str) -> String {
    let mut families: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut current = 0;
    for line in text.lines() {
        // "# TYPE name type", and also "# HELP" and "# UNIT"; "# EOF" has no name.
        let is_metadata = line.starts_with("# ");
        if let Some(name) = line.split(' ').nth(2).filter(|_| is_metadata) {
            current = families.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                families.push((name, Vec::new()));
                families.len() - 1
            });
        }
        if let Some((_, lines)) = families.get_mut(current)
            && line != END
            && !(is_metadata && lines.contains(&line))
        {
            lines.push(line);
        }
    }
    families.iter().flat_map(|(_, lines)| lines).chain([&END]).flat_map(|line| [line, "\n"]).collect()
}

/// Last line of OpenMetrics text.
const END: &str = "# EOF";

/// A metric of a model: its name, its help text, and a function that reads its value from the model's status.
pub type Figure<S, N> = (&'static str, &'static str, fn(&S) -> N);

/// Collector of the metrics of a model, which reads its status at each scrape.
pub struct Figures<S: 'static, N: 'static> {
    /// Returns the status of the model.
    pub status: Box<dyn Fn() -> S + Send + Sync>,
    /// Metrics that can increase and decrease.
    pub gauges: &'static [Figure<S, N>],
    /// Metrics that only increase.
    pub counters: &'static [Figure<S, N>],
    /// Name of the metric for allocated device memory.
    pub memory: &'static str,
    /// Device of the model.
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
            (self.memory, "Allocated device memory in bytes", device::vram_bytes(&self.device)),
            ("process_resident_memory_bytes", "Resident host memory in bytes", device::resident_bytes()),
        ];
        let objects = device::driver_objects().map(|count| ("rocm_driver_objects", DRIVER_OBJECTS, count));
        for (name, help, value) in memory.into_iter().chain(objects) {
            let gauge = ConstGauge::new(value);
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

pub(crate) async fn get_metrics(State(metrics): State<Metrics>) -> Result<Response, ApiError> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], metrics.text()?).into_response())
}

/// Measurement of one request. It is dropped after the last byte of the response or when the client disconnects.
struct RequestTimer {
    metrics: Metrics,
    route: RouteLabels,
    start: Instant,
    status: u16,
    stream: bool,
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        let RouteLabels { method, route } = self.route.clone();
        self.metrics.requests.get_or_create(&ResponseLabels { method, route, status: self.status }).inc();
        self.metrics.durations.get_or_create(&self.route).observe(self.start.elapsed().as_secs_f64());
        if self.stream {
            self.metrics.streams.dec();
        }
    }
}

/// Middleware that records metrics of every request.
pub(crate) async fn measure(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    // Use the route pattern as the label, because each id in a path would create another time series.
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let route = RouteLabels { method: method(request.method()), route };
    let start = Instant::now();
    let mut measured = RequestTimer { metrics, route, start, status: CLIENT_CLOSED, stream: false };
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

/// Returns the method as a label; unknown methods share one label.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_of_several_models_occurs_once() {
        let metrics = Metrics::new();
        for model in ["a", "b"] {
            metrics.register_model(model, Constant, |registry| {
                registry.register("more", "More", Counter::<u64>::default());
            });
        }
        let text = metrics.text().unwrap();
        for (line, count) in [
            ("# TYPE size gauge", 1),
            ("# HELP size Size", 1),
            ("# TYPE more counter", 1),
            ("size{model=\"a\"} 7", 1),
            ("size{model=\"b\"} 7", 1),
            ("more_total{model=\"b\"} 0", 1),
            ("# EOF", 1),
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), count, "{line}: {text}");
        }
        let kind = text.lines().position(|line| line == "# TYPE size gauge").unwrap();
        let sizes: Vec<_> = text.lines().skip(kind + 1).take(2).collect();
        assert_eq!(sizes, ["size{model=\"a\"} 7", "size{model=\"b\"} 7"]);
        assert!(text.ends_with("# EOF\n"));
    }

    #[derive(Debug)]
    struct Constant;

    impl Collector for Constant {
        fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
            let gauge = ConstGauge::new(7u64);
            gauge.encode(encoder.encode_descriptor("size", "Size", None, gauge.metric_type())?)
        }
    }
}
