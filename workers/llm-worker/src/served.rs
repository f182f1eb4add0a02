//! State of a loaded model, shared by the request handlers.
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use llm_engine::engine::{Engine, Options};
use llm_engine::request::{RequestError, Sampling};
use llm_engine::step::BLOCK_SIZE;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use worker_core::device::OpenDevice;
use worker_core::{ApiError, Lifecycle, Metrics, ModelName};

use crate::adapters::{Adapters, RequestedModel};
use crate::api::failure;
use crate::api::parsers::{Formats, ParserOptions};
use crate::metrics::ModelMetrics;
use crate::picture_options::PictureOptions;

/// Maximum number of requests that fetch pictures at once, each of which may take as long and as much memory as
/// [`pictures::fetch`](crate::api::pictures::fetch) allows.
const MAX_FETCHING: usize = 8;

/// Maximum number of requests that decode pictures at once, each of which may take 64 MiB for the pixels of one.
const MAX_DECODING: usize = 4;

/// A loaded model.
pub struct ServedModel {
    /// Inference engine.
    pub engine: Engine,
    /// Name and aliases.
    pub name: ModelName,
    /// Device of the model.
    pub device: OpenDevice,
    /// Metrics.
    pub metrics: ModelMetrics,
    /// Adapters by name.
    pub adapters: Adapters,
    /// Defaults of the sampler settings.
    pub sampling: Sampling,
    /// If true, responses contain the number of prompt tokens found in the cache.
    pub prompt_tokens_details: bool,
    /// Limits of the pictures of requests.
    pub pictures: PictureOptions,
    /// Permits for tokenizing, one per processor.
    pub tokenizing: Arc<Semaphore>,
    /// Permits for requests that fetch pictures.
    pub fetching: Arc<Semaphore>,
    /// Permits for requests that decode and scale pictures.
    pub decoding: Arc<Semaphore>,
    /// Formats of tool calls and reasoning.
    pub formats: Formats,
    /// Maximum number of requests that run at once.
    pub max_running: usize,
    /// Maximum number of open requests.
    max_open: usize,
    /// Context length of the model's configuration.
    trained_context: usize,
}

impl ServedModel {
    /// Creates the state; `options` are the engine's. A failure of the engine fails the worker.
    pub fn new(
        engine: Engine,
        name: ModelName,
        options: &Options,
        device: OpenDevice,
        (metrics, lifecycle): (&Metrics, &Lifecycle),
    ) -> ServedModel {
        let lifecycle = lifecycle.clone();
        engine.on_failure(move |reason| lifecycle.fail(reason));
        let metrics = ModelMetrics::register(metrics, name.as_str(), engine.clone(), device.device.clone());
        let max_running = options.max_running.min(options.step_tokens);
        let max_open = max_running.saturating_add(options.max_waiting);
        let processors = available_parallelism().map_or(1, NonZero::get);
        let template = engine.text().template();
        let formats = Formats::detect(|sign| template.is_some_and(|template| template.contains(sign)));
        let trained_context = engine.capacity().context;
        ServedModel {
            engine,
            name,
            device,
            metrics,
            adapters: Adapters::default(),
            sampling: Sampling::default(),
            prompt_tokens_details: false,
            pictures: PictureOptions::default(),
            formats,
            tokenizing: Arc::new(Semaphore::new(processors)),
            fetching: Arc::new(Semaphore::new(MAX_FETCHING)),
            decoding: Arc::new(Semaphore::new(processors.div_ceil(2).min(MAX_DECODING))),
            max_running,
            max_open,
            trained_context,
        }
    }

    /// Sets the limits of the pictures of requests.
    pub fn with_pictures(self, pictures: PictureOptions) -> ServedModel {
        ServedModel { pictures, ..self }
    }

    /// Sets whether responses contain the number of prompt tokens found in the cache.
    pub fn with_prompt_tokens_details(self, prompt_tokens_details: bool) -> ServedModel {
        ServedModel { prompt_tokens_details, ..self }
    }

    /// Sets the adapters.
    pub fn with_adapters(self, adapters: Adapters) -> ServedModel {
        ServedModel { adapters, ..self }
    }

    /// Returns the model that a request names; by default the model without an adapter.
    ///
    /// # Errors
    /// 404 if the name is unknown.
    pub fn requested(&self, name: Option<&str>) -> Result<RequestedModel, ApiError> {
        if let Some((name, adapter)) = name.and_then(|name| Some((name, self.adapters.get(name)?))) {
            return Ok(RequestedModel { name: name.to_owned(), adapter: Some(adapter) });
        }
        self.name.check(name)?;
        Ok(RequestedModel { name: self.name.as_str().to_owned(), adapter: None })
    }

    /// Checks that a request names the model without an adapter.
    ///
    /// # Errors
    /// 400 for the name of an adapter, 404 if the name is unknown.
    pub fn check_no_adapter(&self, name: Option<&str>) -> Result<(), ApiError> {
        match self.requested(name)?.adapter {
            Some(_) => Err(ApiError::field("model", "is an adapter, which only generates text")),
            None => Ok(()),
        }
    }

    /// Sets the defaults of the sampler settings.
    pub fn with_sampling(self, sampling: Sampling) -> ServedModel {
        ServedModel { sampling, ..self }
    }

    /// Sets the formats of tool calls and reasoning, which are otherwise detected from the chat template.
    pub fn with_formats(self, formats: Formats) -> ServedModel {
        ServedModel { formats, ..self }
    }

    /// Returns the special tokens whose text the parser of a request needs.
    pub fn shown_tokens(&self, options: &ParserOptions) -> Vec<u32> {
        let marks = self.formats.marks(options).into_iter();
        marks.filter_map(|mark| self.engine.text().special_token(mark)).collect()
    }

    /// Sets the context length of the model's configuration, if it is longer than the served one.
    pub fn with_trained_context(self, trained_context: usize) -> ServedModel {
        ServedModel { trained_context, ..self }
    }

    /// Checks that a prompt leaves space for one generated token, or for none if `max_tokens` is 0.
    ///
    /// # Errors
    /// Returns a 400 error that names the field `param`.
    pub fn check_prompt(
        &self,
        tokens: usize,
        max_tokens: Option<usize>,
        param: &str,
    ) -> Result<(), ApiError> {
        let (limit, wanted) = (self.context(), max_tokens.map_or(1, |most| most.min(1)));
        if tokens + wanted <= limit {
            return Ok(());
        }
        let error = RequestError::ContextLength { prompt: tokens, wanted, limit };
        Err(failure::request_error(error, param, param))
    }

    /// Returns the maximum number of tokens of prompt and text together.
    pub fn context(&self) -> usize {
        let capacity = self.engine.capacity();
        capacity.context.min(capacity.blocks.saturating_mul(BLOCK_SIZE))
    }

    /// Checks that the number of texts of one request does not exceed the engine's limits.
    ///
    /// # Errors
    /// Returns a 400 error that names the field `param`.
    pub fn check_count(&self, texts: usize, param: &str) -> Result<(), ApiError> {
        if texts <= self.max_open {
            return Ok(());
        }
        Err(ApiError::field(
            param,
            format!("requests {texts} texts, but at most {} can run or wait", self.max_open),
        ))
    }

    /// Returns the kinds of input that the model reads.
    fn modalities(&self) -> &'static [&'static str] {
        if self.engine.image_processor().is_ok() { &["text", "image"] } else { &["text"] }
    }

    /// Returns the fields of `GET /v1/models`.
    pub fn card(&self) -> Value {
        json!({
            "max_model_len": self.context(),
            "chat_template": self.engine.text().has_template(),
            "architecture": { "input_modalities": self.modalities(), "output_modalities": ["text"] },
            // As in llama.cpp.
            "meta": {
                "n_ctx": self.context(),
                "n_ctx_train": self.trained_context,
                "n_vocab": self.engine.capacity().vocabulary,
            },
        })
    }
}
