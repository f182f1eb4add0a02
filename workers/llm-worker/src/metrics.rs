//! What Prometheus reads of a model.
use std::time::Instant;

use candle_core::Device;
use llm_engine::engine::{Engine, Status};
use llm_engine::request::Event;
use worker_core::Metrics;
use worker_core::metrics::prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use worker_core::metrics::prometheus_client::registry::Unit;
use worker_core::metrics::{Figure, Figures};

/// Times that requests measure.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    first: Histogram,
    between: Histogram,
}

impl ModelMetrics {
    /// Adds a model's metrics to the worker's, under the label `model`.
    pub fn register(metrics: &Metrics, model: &str, engine: Engine, device: Device) -> Self {
        // 1 ms to about a minute, and 0.25 ms to about 8 s.
        let first = Histogram::new(exponential_buckets(1e-3, 2.0, 17));
        let between = Histogram::new(exponential_buckets(2.5e-4, 2.0, 16));
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
                "From a request to its first token",
                Unit::Seconds,
                first.clone(),
            );
            registry.register_with_unit(
                "llm_inter_token",
                "From one token of a text to the next",
                Unit::Seconds,
                between.clone(),
            );
        });
        Self { first, between }
    }

    /// Measures one text that was asked for at `asked`.
    pub fn observe(&self, asked: Instant) -> Observed {
        Observed { metrics: self.clone(), last: asked, begun: false }
    }
}

/// One text being measured.
#[derive(Debug)]
pub struct Observed {
    metrics: ModelMetrics,
    last: Instant,
    begun: bool,
}

impl Observed {
    /// Takes note of a token.
    pub fn event(&mut self, event: &Event) {
        if !matches!(event, Event::Token { .. }) {
            return;
        }
        let histogram = if self.begun { &self.metrics.between } else { &self.metrics.first };
        let now = Instant::now();
        histogram.observe((now - self.last).as_secs_f64());
        self.last = now;
        self.begun = true;
    }
}

const GAUGES: [Figure<Status, u64>; 4] = [
    ("llm_requests_running", "Requests that hold blocks of the cache", |status| status.running as u64),
    ("llm_requests_waiting", "Requests that wait", |status| status.waiting as u64),
    ("llm_cache_blocks", "Blocks of the cache", |status| status.blocks as u64),
    ("llm_cache_blocks_used", "Blocks that requests hold", |status| status.blocks_used as u64),
];

const COUNTERS: [Figure<Status, u64>; 6] = [
    ("llm_steps", "Steps computed", |status| status.steps),
    ("llm_tokens_read", "Tokens of prompts computed", |status| status.tokens_read),
    ("llm_tokens_cached", "Tokens of prompts found in the cache", |status| status.tokens_cached),
    ("llm_tokens_written", "Tokens written", |status| status.tokens_written),
    ("llm_preempted", "How often a request's blocks were taken from it", |status| status.preempted),
    ("llm_overhead_microseconds", "Time of steps beside model and sampler", |status| status.overhead_us),
];
