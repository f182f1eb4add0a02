//! Process entry point; loading and warming up of the model.
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use candle_core::Device;
use llm_engine::engine::{Engine, ModelSlot, ModelSource, Unloading};
use llm_engine::model::cache_dtype::CacheDType;
use llm_engine::model::drafted::load_with_draft;
use llm_engine::model::{LoadOptions, Loaded, least_usable_memory, load_on};
use llm_engine::request::{Event, Request, Sampling};
use llm_engine::step::StepModel;
use worker_core::device::{self, DeviceKind, OpenDevice};
use worker_core::hub::{Hub, Report};
use worker_core::process::{self, Worker};
use worker_core::progress::{Completed, Progress};
use worker_core::{App, Lifecycle, Metrics, ModelName, ServerArguments};

use crate::adapters::Adapters;
use crate::arguments::{Arguments, DEFAULTS};
use crate::fetch::LanguageModel;
use crate::models::Api;
use crate::models::{ModelOnDemand, ServedModels};
use crate::served::ServedModel;
use crate::{identity, kv_events, ranks, routes};

/// Runs the worker until it ends.
pub fn main(kind: DeviceKind) -> ExitCode {
    process::main::<LlmWorker>(kind)
}

/// Language-model worker.
struct LlmWorker;

impl Worker for LlmWorker {
    type Arguments = Arguments;
    type Model = ServedModels;
    const PACKAGE: &'static str = env!("CARGO_PKG_NAME");
    const DEFAULTS: &'static [(&'static str, &'static str)] = &DEFAULTS;

    fn server(arguments: &Arguments) -> &ServerArguments {
        &arguments.server
    }

    fn app(arguments: &Arguments, kind: DeviceKind, api: &Api, metrics: Metrics) -> Result<App> {
        Ok(routes::app(api, metrics, &arguments.server.worker_id, kind))
    }

    fn load(
        arguments: &Arguments,
        kind: DeviceKind,
        metrics: &Metrics,
        progress: &Progress,
    ) -> Result<ServedModels> {
        load(arguments, kind, metrics, progress)
    }
}

/// Opens the device, and loads the model of `--model` or finds those that are loaded on demand. This function blocks.
///
/// # Errors
/// Names the step that failed and the remedy.
pub fn load(
    arguments: &Arguments,
    kind: DeviceKind,
    metrics: &Metrics,
    progress: &Progress,
) -> Result<ServedModels> {
    let opened = ranks::open(kind, arguments.rocm_device, arguments.tensor_parallel)?;
    let first = opened.first().cloned().context("the worker has no device")?;
    let worker = (metrics.clone(), progress.lifecycle().clone());
    if arguments.model.is_some() {
        let report = &mut |completed: Completed, activity: &str| progress.report(completed, activity);
        let served = ServedModels::one(load_model(arguments, opened, None, &worker, report)?);
        return Ok(served.with_adapter_updates(arguments.allow_runtime_lora_updating));
    }
    let free = |opened: &[OpenDevice]| least_usable_memory(opened.iter().map(|opened| &opened.device));
    let memory_bytes = free(&opened)?.map(|bytes| bytes / arguments.models_max);
    let model = |arguments: Arguments| {
        let (opened, worker) = (opened.clone(), worker.clone());
        let (first, others) = arguments.served_model_name.split_first().context("the model has no name")?;
        let name = ModelName::several(first, others.to_vec());
        let adapters = arguments.adapters().cloned().collect();
        let load = move |slot: ModelSlot| {
            tracing::info!(model = arguments.served_model_name[0], "loading");
            // Other programs may have taken memory since the worker started.
            let free = free(&opened)?;
            let memory_bytes = memory_bytes.map(|share| share.min(free.unwrap_or(share)));
            load_model(&arguments, opened.clone(), Some((slot, memory_bytes)), &worker, &mut |_, _| ())
        };
        Ok(ModelOnDemand { name, adapters, load: Arc::new(load) })
    };
    let models = arguments.models_on_demand()?.into_iter().map(model).collect::<Result<Vec<_>>>()?;
    let served = ServedModels::on_demand(models, arguments.models_max, first);
    Ok(served.with_adapter_updates(arguments.allow_runtime_lora_updating))
}

/// Finds, loads and warms up the model of `--model`. `shared` is its slot and the part of the device's memory that it may
/// use, if it shares the memory with others.
fn load_model(
    arguments: &Arguments,
    opened: Vec<OpenDevice>,
    shared: Option<(ModelSlot, Option<usize>)>,
    (metrics, lifecycle): &(Metrics, Lifecycle),
    report: Report,
) -> Result<ServedModel> {
    let model = arguments.model.as_deref().context("--model is required")?;
    let (slot, memory_bytes) = shared.map_or((None, None), |(slot, bytes)| (Some(slot), bytes));
    let options = LoadOptions { memory_bytes, ..arguments.load() };
    let devices: Vec<Device> = opened.iter().map(|opened| opened.device.clone()).collect();
    report(0.0.into(), "finding the model");
    let path = Hub::default().model(model, arguments.model_ref.as_deref(), &LanguageModel, report)?;
    let draft = arguments.speculative_config.as_ref().and_then(|config| config.draft_model.as_ref());
    let draft = draft.map(|name| {
        let found = Hub::default().model(name, None, &LanguageModel, report);
        found.context("cannot find the draft model")
    });
    let draft = draft.transpose()?;
    let reading = &mut |share: f32| report(share.into(), "reading the weights");
    let Loaded { model, text, sampling, name, bytes, cache_bytes, trained_context } =
        load_pair(&path, draft.as_deref(), &devices, options.clone(), reading)
            .context("cannot load the model")?;
    report(1.0.into(), "warming up");
    let text = identity::with_template(arguments, text)?;
    // Free memory may differ later, but the number of cache blocks must not.
    let options = LoadOptions { cache_bytes: Some(cache_bytes), ..options };
    let after_idle = arguments.idle_unload.map(|seconds| Duration::from_secs(seconds as u64));
    let source = Box::new(ModelFolder { path: path.clone(), draft, devices: devices.clone(), options });
    let unloading =
        (after_idle.is_some() || slot.is_some()).then_some(Unloading { after_idle, slot, source });
    let engine = Engine::start_unloading(model, Arc::new(text), arguments.engine(), unloading)?;
    if let Some(options) = arguments.kv_events() {
        let (sink, bound) = kv_events::start(options)?;
        tracing::info!(?bound, "publishing events of the cache");
        engine.record_cache_events(sink);
    }
    warm_up(&engine).context("warm-up failed")?;
    let name = identity::names(arguments, name, &path);
    let adapters = Adapters::load(&engine, &name, arguments.adapters())?;
    ranks::register(metrics, name.as_str(), engine.clone(), devices);
    let first = opened.into_iter().next().context("the model has no device")?;
    let served = ServedModel::new(engine, name, &arguments.engine(), first, (metrics, lifecycle));
    let sampling = if arguments.ignore_generation_config { Sampling::default() } else { sampling };
    let formats = arguments.formats(served.formats);
    let served = served.with_pictures(arguments.pictures());
    let served = served.with_sampling(sampling).with_formats(formats).with_trained_context(trained_context);
    let served =
        served.with_adapters(adapters).with_prompt_tokens_details(arguments.enable_prompt_tokens_details);
    let cache_dtype = served.engine.cache_dtype().map_or("none", CacheDType::name);
    tracing::info!(bytes, context = served.context(), cache_dtype, "model loaded");
    Ok(served)
}

/// Loads a model, and its draft model if it has one.
fn load_pair(
    path: &Path,
    draft: Option<&Path>,
    devices: &[Device],
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Loaded> {
    match draft {
        Some(draft) => load_with_draft(path, draft, devices, options, progress),
        None => load_on(path, devices, options, progress),
    }
}

/// Files from which an unloaded model is loaded again.
struct ModelFolder {
    path: PathBuf,
    draft: Option<PathBuf>,
    devices: Vec<Device>,
    options: LoadOptions,
}

impl ModelSource for ModelFolder {
    fn load(&mut self) -> Result<Box<dyn StepModel>> {
        let Self { path, draft, devices, options } = self;
        Ok(load_pair(path, draft.as_deref(), devices, options.clone(), &mut |_| ())?.model)
    }

    fn release_memory(&mut self) {
        if let Err(error) = self.devices.iter().try_for_each(device::release_memory) {
            tracing::warn!("cannot return the memory of the unloaded model to the system: {error}");
        }
    }
}

/// Computes an embedding or a score, or generates two tokens, so that kernels are loaded and buffers allocated before
/// the first request.
fn warm_up(engine: &Engine) -> Result<()> {
    let prompt = engine.text().encode("Hello", true)?;
    ensure!(!prompt.is_empty(), "the tokenizer returned no tokens for \"Hello\"");
    let tasks = engine.tasks();
    if !tasks.generate {
        let job = match tasks.classify {
            true => engine.classify(vec![prompt.clone()], vec![prompt.len()])?,
            false => engine.embed(vec![prompt])?,
        };
        return match job.blocking_recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(why)) => bail!(why),
            Err(_) => bail!("the engine stopped unexpectedly"),
        };
    }
    let request = Request {
        prompt,
        max_tokens: Some(2),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ignore_eos: true,
        ..Request::default()
    };
    let mut stream = engine.submit(request)?;
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::Error { message, .. } => bail!(message),
            Event::End { .. } => return Ok(()),
            Event::Started | Event::Prompt { .. } | Event::Token { .. } => {}
        }
    }
    bail!("the engine stopped unexpectedly")
}
