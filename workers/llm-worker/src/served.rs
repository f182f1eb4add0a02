//! The model as handlers know it.
use llm_engine::engine::{Engine, Options};
use llm_engine::request::Refused;
use llm_engine::step::BLOCK;
use worker_core::{ApiError, Lifecycle, Metrics, unix_seconds};

use crate::api;
use crate::metrics::ModelMetrics;
use worker_core::device::Opened;

/// A model that takes requests.
pub struct Served {
    /// What computes.
    pub engine: Engine,
    /// What clients call it.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Where it runs.
    pub opened: Opened,
    /// What is measured of it.
    pub metrics: ModelMetrics,
    /// Other names that clients may use.
    aliases: Vec<String>,
    /// Requests that may be open at once.
    most: usize,
    lifecycle: Lifecycle,
}

impl Served {
    /// `aliases` are other names that it answers to; `options` those of the engine.
    pub fn new(
        engine: Engine,
        name: String,
        aliases: Vec<String>,
        options: &Options,
        opened: Opened,
        (metrics, lifecycle): (&Metrics, &Lifecycle),
    ) -> Served {
        let measured = ModelMetrics::register(metrics, &name, engine.clone(), opened.device.clone());
        let most = options.max_running.min(options.step_tokens).saturating_add(options.max_waiting);
        let lifecycle = lifecycle.clone();
        Served { engine, name, created: unix_seconds(), opened, metrics: measured, aliases, most, lifecycle }
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
        Err(api::refused(refused, param, param))
    }

    /// Tokens that prompt and text may have together.
    pub fn context(&self) -> usize {
        let capacity = self.engine.capacity();
        capacity.context.min(capacity.blocks.saturating_mul(BLOCK))
    }

    /// Whether a request means this model; one without a name does.
    ///
    /// # Errors
    /// 404 for another name.
    pub fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.name && !self.aliases.iter().any(|alias| alias == name) => {
                let message = format!("there is no model {name:?} here, only {:?}", self.name);
                Err(ApiError::not_found(message).with_code("model_not_found").with_param("model"))
            }
            _ => Ok(()),
        }
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
            format!("asks for {texts} texts at once: {} are the most here", self.most),
        ))
    }

    /// Whether the engine has failed: the worker is lost then.
    pub fn note_failure(&self) -> bool {
        let why = self.engine.status().failed;
        let failed = why.is_some();
        why.into_iter().for_each(|why| self.lifecycle.lost(why));
        failed
    }
}
