//! Prometheus metrics of the model.
use candle_core::Device;
use worker_core::Metrics;
use worker_core::metrics::{Figure, Figures};

use crate::queue::{Queue, Status};

/// Registers the metrics of a model with the label `model`.
pub fn register(metrics: &Metrics, model: &str, queue: Queue, device: Device) {
    let status = Box::new(move || queue.status());
    let figures = Figures { status, gauges: &GAUGES, counters: &COUNTERS, memory: "sd_vram_bytes", device };
    metrics.register_model(model, figures, |_| ());
}

const GAUGES: [Figure<Status, f64>; 3] = [
    ("sd_requests_waiting", "Waiting requests", |status| status.waiting as f64),
    ("sd_requests_running", "Running requests, which share steps if there are several", |status| {
        status.running as f64
    }),
    ("sd_steps_per_second", "Steps per second of the last request", |status| status.steps_per_second),
];

const COUNTERS: [Figure<Status, f64>; 7] = [
    ("sd_requests_complete", "Completed requests", |status| status.complete as f64),
    ("sd_requests_cancelled", "Cancelled requests", |status| status.cancelled as f64),
    ("sd_requests_failed", "Failed requests", |status| status.failed as f64),
    ("sd_pictures", "Generated images", |status| status.pictures as f64),
    ("sd_steps", "Computed steps", |status| status.steps as f64),
    ("sd_shared_steps", "Computed steps that a request shared with others", |status| {
        status.shared_steps as f64
    }),
    ("sd_step_seconds", "Time from the end of the first step of each request to its end", |status| {
        status.step_time.as_secs_f64()
    }),
];
