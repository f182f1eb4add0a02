//! What Prometheus reads of a model.
use std::fmt;

use candle_core::Device;
use worker_core::metrics::prometheus_client::collector::Collector;
use worker_core::metrics::prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use worker_core::metrics::prometheus_client::metrics::counter::ConstCounter;
use worker_core::metrics::prometheus_client::metrics::gauge::ConstGauge;
use worker_core::{Metrics, device};

use crate::queue::{Queue, Status};

/// Adds a model's metrics to the worker's, under the label `model`.
pub fn register(metrics: &Metrics, model: &str, queue: Queue, device: Device) {
    metrics.register(|registry| {
        let registry = registry.sub_registry_with_label(("model".into(), model.to_owned().into()));
        registry.register_collector(Box::new(QueueStatus { queue, device }));
    });
}

/// The queue's own figures, read when they are asked for.
struct QueueStatus {
    queue: Queue,
    device: Device,
}

impl fmt::Debug for QueueStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueStatus").finish_non_exhaustive()
    }
}

type Figure<T> = (&'static str, &'static str, fn(&Status) -> T);

const GAUGES: [Figure<f64>; 3] = [
    ("sd_requests_waiting", "Requests that wait", |status| status.waiting as f64),
    ("sd_requests_running", "Requests being made: 0 or 1", |status| status.running as f64),
    ("sd_steps_per_second", "Speed of the last request that had two steps", |status| status.steps_per_second),
];

const COUNTERS: [Figure<f64>; 6] = [
    ("sd_requests_complete", "Requests that have their pictures", |status| status.complete as f64),
    ("sd_requests_cancelled", "Requests that were cancelled", |status| status.cancelled as f64),
    ("sd_requests_failed", "Requests that failed", |status| status.failed as f64),
    ("sd_pictures", "Pictures made", |status| status.pictures as f64),
    ("sd_steps", "Steps made", |status| status.steps as f64),
    ("sd_step_seconds", "Time from the first step of each request to its end", |status| {
        status.step_time.as_secs_f64()
    }),
];

impl Collector for QueueStatus {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = self.queue.status();
        let memory = [
            ("sd_vram_bytes", "Memory of the card held", device::vram_bytes(&self.device) as f64),
            ("process_resident_memory_bytes", "Memory of the host held", device::resident_bytes() as f64),
        ];
        let gauges = GAUGES.iter().map(|(name, help, value)| (*name, *help, value(&status)));
        for (name, help, value) in gauges.chain(memory) {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, value) in COUNTERS {
            let counter = ConstCounter::new(value(&status));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}
