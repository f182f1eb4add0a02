//! Prometheus metrics of a model.
use std::fmt;
use std::time::Instant;

use candle_core::Device;
use llm_engine::engine::{Engine, ModelState, Status};
use llm_engine::model::cache_dtype::CacheDType;
use llm_engine::request::Event;
use llm_engine::step::BLOCK_SIZE;
use worker_core::Metrics;
use worker_core::metrics::prometheus_client::collector::Collector;
use worker_core::metrics::prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use worker_core::metrics::prometheus_client::metrics::gauge::ConstGauge;
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
        let cache = CacheFigures(engine.clone());
        let figures = Figures {
            status: Box::new(move || engine.status()),
            gauges: &GAUGES,
            counters: &COUNTERS,
            memory: "llm_vram_bytes",
            device,
        };
        metrics.register_model(model, figures, |registry| {
            registry.register_collector(Box::new(cache));
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

/// Figures of the cache in the form that the Gateway API inference extension and llm-d read.
struct CacheFigures(Engine);

impl fmt::Debug for CacheFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheFigures").finish_non_exhaustive()
    }
}

impl Collector for CacheFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let status = self.0.status();
        let usage = ConstGauge::new(status.blocks_used as f64 / status.blocks.max(1) as f64);
        let (name, help) = ("llm_cache_usage_ratio", "Share of cache blocks held by requests, 0 to 1");
        usage.encode(encoder.encode_descriptor(name, help, None, usage.metric_type())?)?;
        // A gauge, because gateways read Prometheus' text format, which has no type for information.
        let config = ConstGauge::new(1u64);
        let help = "Size of a cache block in tokens, number of blocks, and data type";
        let name = "llm_cache_config_info";
        let mut family = encoder.encode_descriptor(name, help, None, config.metric_type())?;
        let labels = [
            ("block_size", BLOCK_SIZE.to_string()),
            ("num_gpu_blocks", status.blocks.to_string()),
            ("cache_dtype", self.0.cache_dtype().map_or("none", CacheDType::name).to_owned()),
        ];
        config.encode(family.encode_family(&labels)?)
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

const GAUGES: [Figure<Status, u64>; 7] = [
    ("llm_requests_running", "Requests that hold cache blocks", |status| status.running as u64),
    ("llm_requests_waiting", "Waiting requests", |status| status.waiting as u64),
    ("llm_cache_blocks", "Blocks in the cache", |status| status.blocks as u64),
    ("llm_cache_blocks_used", "Cache blocks held by requests", |status| status.blocks_used as u64),
    ("llm_recurrent_states", "Slots of recurrent states, if the model has any", |status| {
        status.states as u64
    }),
    ("llm_recurrent_states_used", "Recurrent states held by requests", |status| status.states_used as u64),
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
    ("llm_overhead_microseconds", "Host time between steps", |status| status.overhead_us),
];
