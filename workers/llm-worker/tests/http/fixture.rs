//! A worker without a socket, whose model can be paused and made to fail.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use axum::Router;
use candle_core::{Device, Result, Tensor};
use clap::Parser;
use llm_engine::engine::{Engine, ModelSource, Options, Unloading};
use llm_engine::model::adapter::{AdapterLimits, AdapterTargets};
use llm_engine::model::cache_dtype::CacheDType;
use llm_engine::model::vision::ImageProcessor;
use llm_engine::model::{LoadOptions, Loaded, load};
use llm_engine::request::Sampling;
use llm_engine::step::{Capacity, Step, StepModel, Tasks};
use llm_engine::text::TextCodec;
use llm_worker::adapters::Adapters;
use llm_worker::arguments::Arguments;
use llm_worker::models::{Api, ServedModels};
use llm_worker::served::ServedModel;
use llm_worker::{identity, routes};
use serde_json::Value;
use tempfile::TempDir;
use worker_core::device::{DeviceKind, OpenDevice};
use worker_core::{Lifecycle, Metrics, ModelName};

pub use crate::shared::{Answer, Ask, Gate, MODEL, WORKER, json_request, read};
use crate::tiny_llama;

#[derive(Clone, Copy, PartialEq)]
pub enum GateState {
    Open,
    Held,
    Broken,
}

impl Gate<GateState> {
    /// Pauses all further steps.
    pub fn hold(&self) {
        self.set(GateState::Held);
    }

    /// Resumes steps.
    pub fn open(&self) {
        self.set(GateState::Open);
    }

    /// Makes all further steps fail.
    pub fn break_down(&self) {
        self.set(GateState::Broken);
    }

    fn step(&self) -> Result<()> {
        match self.pass(GateState::Held) {
            GateState::Broken => candle_core::bail!("the device was pulled out"),
            _ => Ok(()),
        }
    }
}

struct Gated {
    model: Box<dyn StepModel>,
    gate: Gate<GateState>,
}

impl StepModel for Gated {
    fn adapter_targets(&self) -> Option<&AdapterTargets> {
        self.model.adapter_targets()
    }

    fn image_processor(&self) -> std::result::Result<Arc<ImageProcessor>, &'static str> {
        self.model.image_processor()
    }

    fn capacity(&self) -> Capacity {
        self.model.capacity()
    }

    fn cache_dtype(&self) -> Option<CacheDType> {
        self.model.cache_dtype()
    }

    fn step(&mut self, step: &Step) -> Result<Tensor> {
        self.gate.step()?;
        self.model.step(step)
    }

    fn check(&mut self) -> Result<()> {
        self.gate.step()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.model.copy_blocks(pairs)
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> Result<Tensor> {
        self.gate.step()?;
        self.model.embed(prompts)
    }

    fn tasks(&self) -> Tasks {
        self.model.tasks()
    }

    fn classify(&mut self, prompts: &[Vec<u32>], seconds: &[usize]) -> Result<Tensor> {
        self.gate.step()?;
        self.model.classify(prompts, seconds)
    }
}

/// A worker and its parts.
pub struct Worker {
    pub router: Router,
    pub served: Arc<ServedModel>,
    pub lifecycle: Lifecycle,
    pub gate: Gate<GateState>,
    _folder: Option<TempDir>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The engine's thread may be waiting at the gate.
        self.gate.open();
    }
}

/// Creates a worker with default options.
pub fn worker() -> Worker {
    worker_with(true, Options::default(), &[])
}

/// Creates a worker whose model has these defaults of the sampler settings.
pub fn worker_of(sampling: Option<Sampling>) -> Worker {
    build(true, Options::default(), &[], sampling.unwrap_or_default())
}

/// Creates a worker with or without a chat template, with engine options and additional arguments.
pub fn worker_with(chat: bool, options: Options, more: &[&str]) -> Worker {
    build(chat, options, more, Sampling::default())
}

/// Creates a worker with this chat template and these arguments.
pub fn worker_with_template(template: &str, more: &[&str]) -> Worker {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), template).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    worker_with(false, Options::default(), &[more, &["--chat-template", &path]].concat())
}

fn build(chat: bool, options: Options, more: &[&str], sampling: Sampling) -> Worker {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), chat);
    let (model, text) = load_at(folder.path());
    serve(model, text, Some(folder), options, more, sampling)
}

/// Creates a worker that serves the model of a folder, with additional arguments.
pub fn worker_of_folder(folder: TempDir, more: &[&str]) -> Worker {
    let (model, text) = load_at(folder.path());
    serve(model, text, Some(folder), Options::default(), more, Sampling::default())
}

/// Creates a worker that serves the model at `path`.
pub fn worker_at(path: &Path) -> Worker {
    let (model, text) = load_at(path);
    serve(model, text, None, Options::default(), &[], Sampling::default())
}

fn load_at(path: &Path) -> (Box<dyn StepModel>, TextCodec) {
    let adapters = AdapterLimits { count: 2, rank: 4 };
    let limits = LoadOptions { cache_bytes: Some(4 << 20), adapters, ..LoadOptions::default() };
    let Loaded { model, text, .. } = load(path, &Device::Cpu, limits, &mut |_| ()).unwrap();
    (model, text)
}

/// Creates a worker from a model and its tokenizer. `folder` contains their files and is deleted with the worker.
pub fn serve(
    model: Box<dyn StepModel>,
    text: TextCodec,
    folder: Option<TempDir>,
    options: Options,
    more: &[&str],
    sampling: Sampling,
) -> Worker {
    serve_unloading(model, text, folder, (options, None), more, sampling)
}

/// Creates a worker with additional arguments whose model is unloaded as soon as it is idle, and the events of its source.
pub fn worker_unloading(more: &[&str]) -> (Worker, Receiver<&'static str>) {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let (model, text) = load_at(folder.path());
    let (events, received) = channel();
    let source = Box::new(Source { path: folder.path().to_owned(), events });
    let unloading = Some(Unloading { after_idle: Some(Duration::ZERO), slot: None, source });
    let options = (Options::default(), unloading);
    (serve_unloading(model, text, Some(folder), options, more, Sampling::default()), received)
}

/// Loads a model again, and reports when its memory is released.
struct Source {
    path: PathBuf,
    events: Sender<&'static str>,
}

impl ModelSource for Source {
    fn load(&mut self) -> anyhow::Result<Box<dyn StepModel>> {
        self.events.send("loaded")?;
        Ok(load_at(&self.path).0)
    }

    fn release_memory(&mut self) {
        let _ = self.events.send("released");
    }
}

fn serve_unloading(
    model: Box<dyn StepModel>,
    text: TextCodec,
    folder: Option<TempDir>,
    (options, unloading): (Options, Option<Unloading>),
    more: &[&str],
    sampling: Sampling,
) -> Worker {
    let gate = Gate::new(GateState::Open);
    let model = Box::new(Gated { model, gate: gate.clone() });
    let line = ["worker", "--model", "tiny"];
    let unlimited = ["--streams-per-client", "0"];
    let unlimited = unlimited.iter().filter(|_| !more.contains(&unlimited[0]));
    let arguments = Arguments::try_parse_from(line.iter().chain(unlimited).chain(more)).unwrap();
    let text = match arguments.chat_template {
        Some(_) => identity::with_template(&arguments, text).unwrap(),
        None => text,
    };
    let engine = Engine::start_unloading(model, Arc::new(text), options.clone(), unloading).unwrap();
    let (lifecycle, metrics) = (Lifecycle::new(), Metrics::new());
    let api = Api::new(lifecycle.clone());
    let device = OpenDevice { device: Device::Cpu, ordinal: None };
    let path = folder.as_ref().map_or(Path::new(MODEL), TempDir::path);
    let name = match (&arguments.served_model_name[..], arguments.any_model_name) {
        ([], false) => ModelName::new(MODEL, vec!["org/tiny".into()]),
        _ => identity::names(&arguments, MODEL.into(), path),
    };
    let adapters = Adapters::load(&engine, &name, arguments.adapters()).unwrap();
    let served = ServedModel::new(engine, name, &options, device, (&metrics, &lifecycle));
    let served = served.with_adapters(adapters).with_pictures(arguments.pictures());
    let formats = arguments.formats(served.formats);
    let served = served.with_prompt_tokens_details(arguments.enable_prompt_tokens_details);
    let served = served.with_sampling(sampling).with_formats(formats);
    let served = ServedModels::one(served).with_adapter_updates(arguments.allow_runtime_lora_updating);
    let served = api.serve(served).loaded().next().unwrap().clone();
    lifecycle.ready();
    let router = routes::app(&api, metrics, WORKER, DeviceKind::Cpu).router(&arguments.server);
    Worker { router, served, lifecycle, gate, _folder: folder }
}

impl Answer {
    /// Returns the data of each event.
    pub fn events(&self) -> Vec<String> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// Returns the events of a stream whose events have names. Checks that the names are their types.
    pub fn typed_events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text);
        let names: Vec<&str> = self.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        let events: Vec<Value> =
            self.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(names, types);
        events
    }

    /// Returns the events as JSON. Checks that `[DONE]` occurs once, at the end.
    pub fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text);
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.text);
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

impl Ask for Worker {
    fn router(&self) -> &Router {
        &self.router
    }
}

impl Worker {
    /// Waits until the engine is idle.
    pub async fn idle(&self) {
        let idle = async {
            loop {
                let status = self.served.engine.status();
                if status.running == 0 && status.waiting == 0 && status.blocks_used == 0 {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), idle).await;
        assert!(waited.is_ok(), "the engine is not idle: {:?}", self.served.engine.status());
    }
}
