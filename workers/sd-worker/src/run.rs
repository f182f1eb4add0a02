//! Main program: loads and warms up the model.
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device};
use worker_core::device::{self, DeviceKind, OpenDevice};
use worker_core::hub::{Hub, Report};
use worker_core::process::{self, Worker};
use worker_core::progress::{Completed, Progress};
use worker_core::{App, Metrics, ModelLocation, ModelName, ServerArguments};

use crate::arguments::{Arguments, DEFAULTS};
use crate::callback::Callback;
use crate::controlnets::ControlNetFolder;
use crate::fetch::ImageModel;
use crate::loras::LoraFolder;
use crate::model::{LoadOptions, Model, RequiredBytes, Version, available_bytes};
use crate::models::{Api, LoadModel, PipelinePool, ServedModels};
use crate::picture::{Mask, Picture};
use crate::pipeline::{Pipeline, Refiner, Request, Start};
use crate::queue::{ImageGenerator, Queue};
use crate::served::{ModelInfo, ServedModel};
use crate::{metrics, routes};

/// Side in pixels of the warm-up image on the CPU, which is slow and has no kernels to load.
const CPU_WARM_UP_SIDE: usize = 64;
/// Label of metrics of a worker with several models.
const ALL_MODELS: &str = "all";

/// Parses the command line and runs the worker until it stops.
pub fn main(kind: DeviceKind) -> ExitCode {
    process::main::<SdWorker>(kind)
}

struct SdWorker;

impl Worker for SdWorker {
    type Arguments = Arguments;
    type Model = ServedModels;
    const PACKAGE: &'static str = env!("CARGO_PKG_NAME");
    const DEFAULTS: &'static [(&'static str, &'static str)] = &DEFAULTS;

    fn server(arguments: &Arguments) -> &ServerArguments {
        &arguments.server
    }

    fn app(arguments: &Arguments, kind: DeviceKind, api: &Api, metrics: Metrics) -> Result<App> {
        let callback = arguments.callback().map(Callback::start).transpose();
        let worker = routes::Worker {
            id: arguments.server.worker_id.clone(),
            kind,
            callback: callback.context("the operating system cannot start threads")?,
            bounds: arguments.bounds(),
            preview_every: arguments.preview_every,
        };
        Ok(routes::app(api, metrics, worker))
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

/// Opens the device, and loads the model of `--model-path` or finds those that are loaded on demand. This function blocks.
///
/// # Errors
/// Names the step that failed and the remedy.
pub fn load(
    arguments: &Arguments,
    kind: DeviceKind,
    metrics: &Metrics,
    progress: &Progress,
) -> Result<ServedModels> {
    let device = device::open(kind, arguments.rocm_device).context("cannot open the device")?;
    for (flag, folder) in [
        ("--embedding-dir", &arguments.embedding_dir),
        ("--lora-dir", &arguments.lora_dir),
        ("--controlnet-dir", &arguments.controlnet_dir),
    ] {
        if let Some(folder) = folder {
            ensure!(folder.is_dir(), "{flag} {} is not a folder", folder.display());
        }
    }
    let lifecycle = progress.lifecycle().clone();
    let on_failure = move |reason: &str| lifecycle.fail(reason);
    let threads = "the operating system cannot start threads";
    let report = &mut |completed: Completed, activity: &str| progress.report(completed, activity);
    let Some(requested) = &arguments.model_path else {
        let models = arguments.models_on_demand()?;
        let loader = Loader { arguments: arguments.clone(), device: device.clone() };
        let pool = PipelinePool::new(&models, arguments.models_max, device.device.clone(), Box::new(loader));
        let folders =
            (LoraFolder(arguments.lora_dir.clone()), ControlNetFolder(arguments.controlnet_dir.clone()));
        let own = device.device.clone();
        let served = ServedModels::several(pool, device, folders, |generators| {
            let queue = Queue::start_several(generators, arguments.queue(), on_failure)?;
            metrics::register(metrics, ALL_MODELS, queue.clone(), own);
            Ok(queue)
        });
        return served.context(threads);
    };
    let path = find(arguments, &device.device, report)?;
    let reading = progress.clone();
    let on_share = Arc::new(move |share: f32| reading.report(share, "reading the weights"));
    let (mut pipeline, info) = load_pipeline(arguments, &path, &device.device, 0, on_share)?;
    let side = info.defaults.width;
    progress.report(1.0, "warming up");
    let warm = if device.device.is_cpu() { side.min(CPU_WARM_UP_SIDE) } else { side };
    warm_up(&mut pipeline, &info, warm).context("the warm-up failed")?;
    let queue = Queue::start(Box::new(pipeline), arguments.queue(), on_failure).context(threads)?;
    let name = names(requested, &path);
    let safety_checker = info.has_safety_checker;
    tracing::info!(version = ?info.version, side, safety_checker, "model loaded");
    Ok(ServedModels::one(ServedModel::new(queue, info, name, device, metrics)))
}

/// Returns the path of the model of `--model-path`, which may be downloaded.
fn find(arguments: &Arguments, device: &Device, report: Report) -> Result<PathBuf> {
    report(0.0.into(), "finding the model");
    let half = arguments.load().dtype.map_or(!device.is_cpu(), |dtype| dtype != DType::F32);
    let files = ImageModel { half, without_safety_checker: arguments.no_safety_checker };
    let requested = arguments.model_path.as_deref().context("--model-path is required")?;
    Hub::default().model(requested, arguments.model_ref.as_deref(), &files, report)
}

/// Returns the options for loading the model. Its decoded copies leave memory for the refiner, and those of a requested size also
/// `reserved` bytes for other models.
///
/// # Errors
/// The refiner is missing or invalid.
pub fn load_options(arguments: &Arguments, device: &Device, reserved: usize) -> Result<LoadOptions> {
    let refiner_bytes = |path| Model::required_bytes(path, device, &arguments.load_refiner(path));
    let refiner = arguments.refiner.as_deref().map(refiner_bytes).transpose();
    let refiner_bytes = refiner.context("cannot load the refiner")?.map_or(0, |required| required.resident);
    Ok(LoadOptions { refiner_bytes, reserved_bytes: reserved, ..arguments.load() })
}

/// Loads the model at a path, with the options of [`load_options`].
fn load_pipeline(
    arguments: &Arguments,
    path: &Path,
    device: &Device,
    reserved: usize,
    on_share: Arc<dyn Fn(f32) + Send + Sync>,
) -> Result<(Pipeline, ModelInfo)> {
    let options = load_options(arguments, device, reserved)?;
    let model = Model::load(path, device, options, move |share| on_share(share));
    let model = model.context("cannot load the model")?;
    ensure!(
        arguments.sd_version.matches(&model),
        "{} has version {:?}{}, which does not match --sd-version; omit the option to accept any version",
        path.display(),
        model.version,
        if model.turbo { ", turbo" } else { "" }
    );
    let mut pipeline = Pipeline::new(model);
    if let Some(path) = &arguments.refiner {
        let model = Model::load(path, device, arguments.load_refiner(path), |_| ());
        let model = model.context("cannot load the refiner")?;
        let name = names(&path.to_string_lossy(), path).as_str().to_owned();
        pipeline = pipeline.with_refiner(Refiner { name, model })?;
    }
    pipeline.bounds = arguments.bounds();
    pipeline.batch_requests = arguments.batch_requests;
    let controlnets = ControlNetFolder(arguments.controlnet_dir.clone());
    let info = ModelInfo::of(&pipeline, LoraFolder(arguments.lora_dir.clone()), controlnets);
    let (side, bounds) = (info.defaults.width, info.bounds);
    ensure!(
        side <= bounds.side && side * side <= bounds.pixels,
        "the default image size of {side} x {side} exceeds --max-side {} or --max-pixels {}; raise them",
        bounds.side,
        bounds.pixels
    );
    Ok((pipeline, info))
}

/// Loads models on demand.
struct Loader {
    arguments: Arguments,
    device: OpenDevice,
}

impl LoadModel for Loader {
    fn required_bytes(&self, location: &ModelLocation) -> Result<RequiredBytes> {
        let arguments = self.arguments.for_model(location);
        let path = find(&arguments, &self.device.device, &mut |_, _| ())?;
        Ok(Model::required_bytes(&path, &self.device.device, &arguments.load())?)
    }

    fn available_bytes(&self) -> Result<Option<usize>> {
        Ok(available_bytes(&self.device.device)?)
    }

    fn load(&self, location: &ModelLocation, reserved: usize) -> Result<(Pipeline, ModelInfo)> {
        let arguments = self.arguments.for_model(location);
        let path = find(&arguments, &self.device.device, &mut |_, _| ())?;
        load_pipeline(&arguments, &path, &self.device.device, reserved, Arc::new(|_| ()))
    }
}

/// Returns the name of the model on the Hub, or of its folder or file.
fn names(requested: &str, path: &Path) -> ModelName {
    let folder = std::path::absolute(path).ok();
    let name = if path.is_file() { Path::file_stem } else { Path::file_name };
    let folder = folder.as_deref().and_then(name).map(|name| name.to_string_lossy().into_owned());
    match folder {
        Some(folder) if Path::new(requested) == path => ModelName::new(folder, vec![requested.to_owned()]),
        _ => ModelName::new(requested, Vec::new()),
    }
}

/// Computes one step, which loads kernels and allocates buffers before the first request.
fn warm_up(pipeline: &mut Pipeline, info: &ModelInfo, side: usize) -> Result<()> {
    let side = side.next_multiple_of(info.multiple);
    let mut request = Request {
        prompt: "a picture".to_owned(),
        width: side,
        height: side,
        steps: 1,
        ..info.defaults.clone()
    };
    if info.is_inpainting {
        let picture = Picture::new(side, side, vec![128; side * side * 3])?;
        let mask = Some(Mask::new(side, side, vec![true; side * side])?);
        request.start = Some(Start { picture, strength: 1.0, mask });
    }
    if info.version == Version::XlRefiner {
        let picture = Picture::new(side, side, vec![128; side * side * 3])?;
        request.start = Some(Start { picture, strength: 1.0, mask: None });
    }
    let images = pipeline.generate(&request, &mut |_| ControlFlow::Continue(()))?;
    ensure!(images.len() == 1, "expected 1 image, got {}", images.len());
    Ok(())
}
