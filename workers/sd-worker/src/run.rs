//! Main program: loads and warms up the model.
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use candle_core::DType;
use worker_core::device::{self, DeviceKind};
use worker_core::hub::Hub;
use worker_core::process::{self, Worker};
use worker_core::progress::{Completed, Progress};
use worker_core::{App, Metrics, ModelName, ServerArguments};

use crate::arguments::{Arguments, DEFAULTS};
use crate::callback::Callback;
use crate::controlnets::ControlNetFolder;
use crate::fetch::ImageModel;
use crate::loras::LoraFolder;
use crate::model::Model;
use crate::picture::{Mask, Picture};
use crate::pipeline::{Pipeline, Request, Start};
use crate::queue::{ImageGenerator, Queue};
use crate::routes;
use crate::served::{Api, ModelInfo, ServedModel};

/// Side in pixels of the warm-up image on the CPU, which is slow and has no kernels to load.
const CPU_WARM_UP_SIDE: usize = 64;

/// Parses the command line and runs the worker until it stops.
pub fn main(kind: DeviceKind) -> ExitCode {
    process::main::<SdWorker>(kind)
}

struct SdWorker;

impl Worker for SdWorker {
    type Arguments = Arguments;
    type Model = ServedModel;
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
    ) -> Result<ServedModel> {
        let device = device::open(kind, arguments.rocm_device).context("cannot open the device")?;
        progress.report(0.0, "finding the model");
        let options = arguments.load();
        let half = options.dtype.map_or(!device.device.is_cpu(), |dtype| dtype != DType::F32);
        let report = &mut |completed: Completed, activity: &str| progress.report(completed, activity);
        let requested = &arguments.model_path;
        let files = ImageModel { half, without_safety_checker: arguments.no_safety_checker };
        let path = Hub::default().model(requested, arguments.model_ref.as_deref(), &files, report)?;
        let reading = progress.clone();
        let model = Model::load(&path, &device.device, options, move |share| {
            reading.report(share, "reading the weights")
        })
        .context("cannot load the model")?;
        ensure!(
            arguments.sd_version.matches(&model),
            "{} has version {:?}{}, which does not match --sd-version; omit the option to accept any version",
            path.display(),
            model.version,
            if model.turbo { ", turbo" } else { "" }
        );
        if let Some(folder) = &arguments.embedding_dir {
            ensure!(folder.is_dir(), "--embedding-dir {} is not a folder", folder.display());
        }
        let mut pipeline = Pipeline::new(model);
        pipeline.bounds = arguments.bounds();
        let loras = LoraFolder(arguments.lora_dir.clone());
        if let Some(folder) = &loras.0 {
            ensure!(folder.is_dir(), "--lora-dir {} is not a folder", folder.display());
        }
        let controlnets = ControlNetFolder(arguments.controlnet_dir.clone());
        if let Some(folder) = &controlnets.0 {
            ensure!(folder.is_dir(), "--controlnet-dir {} is not a folder", folder.display());
        }
        let info = ModelInfo::of(&pipeline, loras, controlnets);
        let (side, bounds) = (info.defaults.width, info.bounds);
        ensure!(
            side <= bounds.side && side * side <= bounds.pixels,
            "the default image size of {side} x {side} exceeds --max-side {} or --max-pixels {}; raise them",
            bounds.side,
            bounds.pixels
        );
        progress.report(1.0, "warming up");
        let warm = if device.device.is_cpu() { side.min(CPU_WARM_UP_SIDE) } else { side };
        warm_up(&mut pipeline, &info, warm).context("the warm-up failed")?;
        let lifecycle = progress.lifecycle().clone();
        let queue = Queue::start(Box::new(pipeline), arguments.queue(), move |reason| lifecycle.fail(reason))
            .context("the operating system cannot start threads")?;
        let name = names(requested, &path);
        let safety_checker = info.has_safety_checker;
        tracing::info!(version = ?info.version, side, safety_checker, "model loaded");
        Ok(ServedModel::new(queue, info, name, device, metrics))
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
    let images = pipeline.generate(&request, &mut |_| ControlFlow::Continue(()))?;
    ensure!(images.len() == 1, "expected 1 image, got {}", images.len());
    Ok(())
}
