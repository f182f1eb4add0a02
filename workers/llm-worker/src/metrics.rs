//! Prometheus metrics of a model.
use std::time::Instant;

use candle_core::Device;
use llm_engine::engine::{Engine, ModelState, Status};
use llm_engine::request::Event;
use worker_core::Metrics;
use worker_core::metrics::prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use worker_core::metrics::prometheus_client::registry::Unit;
use worker_core::metrics::{Figure, Figures};

/// Latency histograms.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    first_token: Histogram,
    inter_token: Histogram,
}

impl ModelMetrics {
    /// Registers a model's metrics under the label `model`.
    pub fn register(metrics: &Metrics, model: &str, engine: Engine, device: Device) -> Self {
        // Ranges: 1 ms to about a minute, and 0.25 ms to about 8 s.
        let first_token = Histogram::new(exponential_buckets(1e-3, 2.0, 17));
        let inter_token = Histogram::new(exponential_buckets(2.5e-4, 2.0, 16));
        let figures = Figures {
            status: Box::new(move || engine.status()),
            gauges: &GAUGES,
            counters: &COUNTERS,
            memory: "llm_vram_bytes",
            device,
        };
        metrics.register_model(model, figures, |registry| {
            registry.register_with_unit(
                "llm_time_to_first_token",
                "Time from a request to its first token",
                Unit::Seconds,
                first_token.clone(),
            );
            registry.register_with_unit(
                "llm_inter_token",
                "Time from one token of a text to the next",
                Unit::Seconds,
                inter_token.clone(),
            );
        });
        Self { first_token, inter_token }
    }

    /// Starts measuring a text that was requested at `requested`.
    pub fn observe(&self, requested: Instant) -> TextLatency {
        TextLatency { metrics: self.clone(), last: requested, has_token: false }
    }
}

/// Latency measurement of one text.
#[derive(Debug)]
pub struct TextLatency {
    metrics: ModelMetrics,
    last: Instant,
    has_token: bool,
}

impl TextLatency {
    /// Records the latency of a token event.
    pub fn event(&mut self, event: &Event) {
        if !matches!(event, Event::Token { .. }) {
            return;
        }
        let histogram = if self.has_token { &self.metrics.inter_token } else { &self.metrics.first_token };
        let now = Instant::now();
        histogram.observe((now - self.last).as_secs_f64());
        self.last = now;
        self.has_token = true;
    }
}

const GAUGES: [Figure<Status, u64>; 5] = [
    ("llm_requests_running", "Requests that hold cache blocks", |status| status.running as u64),
    ("llm_requests_waiting", "Waiting requests", |status| status.waiting as u64),
    ("llm_cache_blocks", "Blocks in the cache", |status| status.blocks as u64),
    ("llm_cache_blocks_used", "Cache blocks held by requests", |status| status.blocks_used as u64),
    ("llm_model_loaded", "1 if the weights are in memory", |status| {
        (status.model == ModelState::Loaded).into()
    }),
];

const COUNTERS: [Figure<Status, u64>; 9] = [
    ("llm_steps", "Computed steps", |status| status.steps),
    ("llm_tokens_read", "Computed prompt tokens", |status| status.tokens_read),
    ("llm_tokens_cached", "Prompt tokens found in the cache", |status| status.tokens_cached),
    ("llm_tokens_written", "Generated tokens", |status| status.tokens_written),
    ("llm_spec_decode_num_drafts", "Verified drafts, each of one or more tokens", |status| status.drafts),
    ("llm_spec_decode_num_draft_tokens", "Verified draft tokens", |status| status.tokens_drafted),
    ("llm_spec_decode_num_accepted_tokens", "Draft tokens that became part of a text", |status| {
        status.tokens_accepted
    }),
    ("llm_preempted", "Preemptions", |status| status.preempted),
    ("llm_overhead_microseconds", "Host time of steps outside of the model", |status| status.overhead_us),
];
