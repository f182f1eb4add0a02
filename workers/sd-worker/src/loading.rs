//! From the command line to a model that is warm.
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::DType;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use worker_core::hub::Hub;
use worker_core::{Lifecycle, Metrics};

use crate::arguments::Arguments;
use crate::fetch;
use crate::model::Model;
use crate::picture::{Mask, Picture};
use crate::pipeline::{Pipeline, Request, Start};
use crate::queue::{Painter, Queue};
use crate::served::{About, Api, Served};
use worker_core::device::{self, DeviceKind};

/// Parts of the bar on the terminal.
const PARTS: u64 = 1000;
/// Progress is told at most so often.
const PAUSE: Duration = Duration::from_millis(100);
/// Side of the first picture on the CPU, which has no kernels to load and takes its time.
const SMALL: usize = 64;

/// Tells the terminal and `/ready` how far loading is.
struct Telling {
    lifecycle: Lifecycle,
    bar: ProgressBar,
    last: Mutex<Option<Instant>>,
}

impl Telling {
    fn new(lifecycle: &Lifecycle) -> Self {
        let bar = ProgressBar::new(PARTS);
        if let Ok(style) = ProgressStyle::with_template("{msg} [{wide_bar}] {percent}% ({eta})") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { lifecycle: lifecycle.clone(), bar, last: Mutex::default() }
    }

    fn tell(&self, share: f32, what: &str) {
        let mut last = self.last.lock();
        if share < 1.0 && self.bar.message() == what && last.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        *last = Some(Instant::now());
        self.lifecycle.loading(share, what);
        if self.bar.message() != what {
            tracing::info!("{what}");
            self.bar.set_message(what.to_owned());
        }
        self.bar.set_position((share * PARTS as f32) as u64);
    }
}

/// Fetches the model, loads it, warms it up, and gives it to `api`; the lifecycle tells how far it is. Takes its time: a
/// thread of its own is the place for it.
///
/// # Errors
/// Says which step failed and what to do.
pub fn bring_up(arguments: &Arguments, kind: DeviceKind, api: &Api, metrics: &Metrics) -> Result<()> {
    let telling = Arc::new(Telling::new(&api.lifecycle));
    let opened = device::open(kind, arguments.rocm_device).context("the device cannot be opened")?;
    telling.tell(0.0, "finding the model");
    let options = arguments.load();
    let half = options.dtype.map_or(!opened.device.is_cpu(), |dtype| dtype != DType::F32);
    let report = &mut |share: f32, what: &str| telling.tell(share, what);
    let given = &arguments.model_path;
    let path = fetch::model(&Hub::default(), given, arguments.model_ref.as_deref(), half, report)?;
    let reading = telling.clone();
    let progress = move |share| reading.tell(share, "reading the weights");
    let model =
        Model::load(&path, &opened.device, options, progress).context("the model cannot be loaded")?;
    ensure!(
        arguments.sd_version.is(&model),
        "{} is {:?}{}, not what --sd-version asks for; leave it out to take any",
        path.display(),
        model.version,
        if model.turbo { ", turbo" } else { "" }
    );
    let mut pipeline = Pipeline::new(model);
    pipeline.bounds = arguments.bounds();
    let about = About::of(&pipeline);
    let side = about.defaults.width;
    let bounds = about.bounds;
    ensure!(
        side <= bounds.side && side * side <= bounds.pixels,
        "the model's own pictures have {side} x {side} pixels: --max-side {} and --max-pixels {} are too few",
        bounds.side,
        bounds.pixels
    );
    telling.tell(1.0, "warming up");
    let warm = if opened.device.is_cpu() { side.min(SMALL) } else { side };
    warm_up(&mut pipeline, &about, warm).context("the first picture failed")?;
    telling.bar.finish_and_clear();

    let lifecycle = api.lifecycle.clone();
    let queue = Queue::start(Box::new(pipeline), arguments.queue(), move |why| lifecycle.lost(why))
        .context("the system has no thread to give")?;
    let (name, aliases) = names(given, &path);
    let (on, version) = (device::describe(&opened.device), about.version);
    let served = Served::new(queue, about, name, aliases, opened, metrics);
    tracing::info!(model = served.name, on, ?version, side, "loaded");
    api.serve(served);
    api.lifecycle.ready();
    Ok(())
}

/// The model's name: its name on the Hub, or its folder's. The other names that it answers to.
fn names(given: &str, path: &Path) -> (String, Vec<String>) {
    let folder = std::path::absolute(path).ok();
    let folder = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    match folder {
        Some(folder) if Path::new(given) == path => (folder, vec![given.to_owned()]),
        _ => (given.to_owned(), Vec::new()),
    }
}

/// Makes one step, so that kernels are loaded and buffers made before the first request.
fn warm_up(pipeline: &mut Pipeline, about: &About, side: usize) -> Result<()> {
    let side = side.next_multiple_of(about.multiple);
    let mut request = Request {
        prompt: "a picture".to_owned(),
        width: side,
        height: side,
        steps: 1,
        ..about.defaults.clone()
    };
    if about.paints_in {
        let picture = Picture::new(side, side, vec![128; side * side * 3])?;
        let mask = Some(Mask::new(side, side, vec![true; side * side])?);
        request.start = Some(Start { picture, strength: 1.0, mask });
    }
    let made = pipeline.paint(&request, &mut |_| std::ops::ControlFlow::Continue(()))?;
    ensure!(made.len() == 1, "one picture was asked for, {} came", made.len());
    Ok(())
}
