//! The model as handlers know it.
use std::time::Duration;

use llm_engine::engine::{Engine, Options};
use llm_engine::request::Refused;
use llm_engine::step::BLOCK;
use serde_json::{Value, json};
use worker_core::device::OpenDevice;
use worker_core::{ApiError, Lifecycle, Metrics, ModelName};

use crate::api::failure;
use crate::metrics::ModelMetrics;

/// A model that takes requests.
pub struct Served {
    /// The engine that computes.
    pub engine: Engine,
    /// Its names.
    pub name: ModelName,
    /// Where it runs.
    pub device: OpenDevice,
    /// What is measured of it.
    pub metrics: ModelMetrics,
    /// Requests that may be open at once.
    most: usize,
}

impl Served {
    /// `options` are those of the engine. If the engine fails, the worker fails.
    pub fn new(
        engine: Engine,
        name: ModelName,
        options: &Options,
        device: OpenDevice,
        (metrics, lifecycle): (&Metrics, &Lifecycle),
    ) -> Served {
        let lifecycle = lifecycle.clone();
        engine.on_failure(move |reason| lifecycle.fail(reason));
        let metrics = ModelMetrics::register(metrics, name.as_str(), engine.clone(), device.device.clone());
        let most = options.max_running.min(options.step_tokens).saturating_add(options.max_waiting);
        Served { engine, name, device, metrics, most }
    }

    /// Whether a prompt leaves room for a text.
    ///
    /// # Errors
    /// 400 that names the field `param`.
    pub fn check_prompt(&self, tokens: usize, param: &str) -> Result<(), ApiError> {
        let limit = self.context();
        if tokens < limit {
            return Ok(());
        }
        let refused = Refused::ContextLength { prompt: tokens, wanted: 1, limit };
        Err(failure::refused(refused, param, param))
    }

    /// Tokens that prompt and text may have together.
    pub fn context(&self) -> usize {
        let capacity = self.engine.capacity();
        capacity.context.min(capacity.blocks.saturating_mul(BLOCK))
    }

    /// Whether so many texts of one request could ever run.
    ///
    /// # Errors
    /// 400 that names the field `param`.
    pub fn check_count(&self, texts: usize, param: &str) -> Result<(), ApiError> {
        if texts <= self.most {
            return Ok(());
        }
        Err(ApiError::field(
            param,
            format!("asks for {texts} texts at once; at most {} are possible", self.most),
        ))
    }
}

impl worker_core::Served for Served {
    fn name(&self) -> &ModelName {
        &self.name
    }

    fn card(&self) -> Value {
        json!({ "max_model_len": self.context(), "chat_template": self.engine.text().has_template() })
    }

    fn device(&self) -> &OpenDevice {
        &self.device
    }

    fn requests(&self) -> [usize; 2] {
        let status = self.engine.status();
        [status.running, status.waiting]
    }

    fn stop_within(&self, limit: Duration) -> bool {
        self.engine.stop_within(limit)
    }
}

/// What handlers know: the model, once it is loaded.
pub type Api = worker_core::Api<Served>;
