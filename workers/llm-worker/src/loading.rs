//! From the command line to a model that is warm.
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use llm_engine::engine::Engine;
use llm_engine::model::{Loaded, load};
use llm_engine::request::{Event, Request, Sampling};
use worker_core::Metrics;

use crate::api::Api;
use crate::arguments::Arguments;
use crate::fetch::{self, Hub};
use crate::served::Served;
use worker_core::device::{self, DeviceKind};

/// Parts of the bar on the terminal.
const PARTS: u64 = 1000;
/// Progress is told at most so often.
const PAUSE: Duration = Duration::from_millis(100);

/// Fetches the model, loads it, warms it up, and gives it to `api`; the lifecycle tells how far it is. Takes its time: a
/// thread of its own is the place for it.
///
/// # Errors
/// Says which step failed and what to do.
pub fn bring_up(
    arguments: &Arguments,
    kind: DeviceKind,
    api: &Api,
    metrics: &Metrics,
) -> Result<Arc<Served>> {
    let bar = ProgressBar::new(PARTS);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{wide_bar}] {percent}% ({eta})") {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut told: Option<Instant> = None;
    let mut report = |share: f32, what: &str| {
        if share < 1.0 && told.is_some_and(|told| told.elapsed() < PAUSE) {
            return;
        }
        told = Some(Instant::now());
        api.lifecycle.loading(share, what);
        if bar.message() != what {
            tracing::info!("{what}");
            bar.set_message(what.to_owned());
        }
        bar.set_position((share * PARTS as f32) as u64);
    };
    let opened = device::open(kind, arguments.rocm_device).context("the device cannot be opened")?;
    report(0.0, "finding the model");
    let path = fetch::model(&Hub::default(), &arguments.model, arguments.model_ref.as_deref(), &mut report)?;
    report(0.0, "reading the weights");
    let mut reading = |share| report(share, "reading the weights");
    let Loaded { model, text, name, bytes } =
        load(&path, &opened.device, arguments.load(), &mut reading).context("the model cannot be loaded")?;
    report(1.0, "warming up");
    let name = if path.as_os_str() == arguments.model.as_str() { name } else { arguments.model.clone() };
    let engine = Engine::start(model, Arc::new(text), arguments.engine())?;
    warm_up(&engine).context("the first text failed")?;
    bar.finish_and_clear();
    let mut aliases = vec![arguments.model.clone()];
    aliases.extend(path.file_name().map(|file| file.to_string_lossy().into_owned()));
    let on = device::describe(&opened.device);
    let shared = (metrics, &api.lifecycle);
    let served = Served::new(engine, name, aliases, &arguments.engine(), opened, shared);
    tracing::info!(model = served.name, on, bytes, context = served.context(), "loaded");
    let served = api.serve(served).clone();
    api.lifecycle.ready();
    Ok(served)
}

/// Writes two tokens, so that kernels are loaded and buffers made before the first request.
fn warm_up(engine: &Engine) -> Result<()> {
    let prompt = engine.text().encode("Hello", true)?;
    ensure!(!prompt.is_empty(), "the tokenizer has no tokens for \"Hello\"");
    let request = Request {
        prompt,
        max_tokens: Some(2),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stop: Vec::new(),
        ignore_eos: true,
        logprobs: None,
        constraint: None,
    };
    let mut stream = engine.submit(request)?;
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::Error { message, .. } => bail!(message),
            Event::End { .. } => return Ok(()),
            Event::Started | Event::Token { .. } => {}
        }
    }
    bail!("the engine ended without a word")
}
