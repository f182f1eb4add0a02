//! A whole run: files, device, model, text, and the figures of it.
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use candle_core::Device;

use crate::chat::Template;
use crate::devices;
use crate::families::Recognized;
use crate::generation::{Generated, Request, generate};
use crate::model_files::ModelFiles;
use crate::options::Options;
use crate::sampling::Sampler;
use crate::vocabulary::Vocabulary;

/// What a run did.
pub struct Run {
    pub generated: Generated,
    model: String,
    family: &'static str,
    device: Device,
    prompt_tokens: usize,
    load_time: Duration,
    memory: String,
    kernels_launched: u64,
}

/// Does what the options say. Everything that can be wrong with them is looked for before the weights are read.
pub fn run(
    options: &Options,
    interrupted: &AtomicBool,
    on_text: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Run> {
    let started = Instant::now();
    let model = Recognized::of(ModelFiles::open(&options.model)?)?;
    let (family, limits) = (model.family.name, model.limits);
    let vocabulary = Vocabulary::of(model.files(), options.tokenizer.as_deref())?;
    let prompt = match options.chat {
        true => {
            let template = Template::of(model.files(), &vocabulary.tokenizer)?;
            template.render(options.system.as_deref(), &options.prompt)?
        }
        false => options.prompt.clone(),
    };
    // A template writes the tokens that begin a text itself.
    let prompt = vocabulary.encode(&prompt, !options.chat, limits)?;
    let device = devices::choose(options.device.as_deref())?;
    let dtype = model.dtype(options.dtype, &device)?;
    let tokens = options.tokens as usize;
    let positions = limits.context.min(prompt.len() + tokens);
    let mut model = model.load(dtype, &device, positions)?;
    device.synchronize().context("loading the weights")?;
    let load_time = started.elapsed();

    let request = Request { prompt: &prompt, tokens, stops: &options.stops, context: limits.context };
    let mut sampler = Sampler::new(&options.sampling);
    let generated = generate(&mut model, &vocabulary, &mut sampler, &device, &request, interrupted, on_text)?;
    // A folder like `.` has its name elsewhere.
    let path = options.model.canonicalize().unwrap_or_else(|_| options.model.clone());
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(Run {
        generated,
        model: name.to_string_lossy().into_owned(),
        family,
        prompt_tokens: prompt.len(),
        load_time,
        memory: devices::memory(&device)?,
        kernels_launched: devices::kernels_launched(&device),
        device,
    })
}

impl Run {
    /// The tokens and figures, for programs.
    pub fn report(&self) -> serde_json::Value {
        let Generated { tokens, leads, end, prompt_time, token_time, steps } = &self.generated;
        let mut report = serde_json::json!({
            "model": self.model,
            "family": self.family,
            "device": "cpu",
            "tokens": tokens,
            "leads": leads,
            "end": format!("{end:?}"),
            "prompt_tokens": self.prompt_tokens,
            "steps": steps,
            "load_seconds": self.load_time.as_secs_f64(),
            "prompt_seconds": prompt_time.as_secs_f64(),
            "token_seconds": token_time.as_secs_f64(),
            "kernels_launched": self.kernels_launched,
        });
        if let Device::Rocm(rocm) = &self.device {
            report["device"] = "rocm".into();
            report["arch"] = rocm.arch().into();
            report["driver"] = rocm.driver_name().into();
        }
        report
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Generated { tokens, end, prompt_time, token_time, steps, .. } = &self.generated;
        let rate = |count: usize, time: &Duration| count as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
        writeln!(
            f,
            "model   {}, a {}, loaded in {:.2} s",
            self.model,
            self.family,
            self.load_time.as_secs_f64()
        )?;
        writeln!(f, "device  {}", devices::describe(&self.device))?;
        writeln!(
            f,
            "prompt  {} tokens, {:.1} per second",
            self.prompt_tokens,
            rate(self.prompt_tokens, prompt_time)
        )?;
        let speed = match steps {
            0 => String::new(),
            _ => format!(", {:.1} per second", rate(*steps, token_time)),
        };
        writeln!(f, "text    {} tokens{speed}; ended: {}", tokens.len(), end.reason())?;
        writeln!(f, "memory  {}", self.memory)
    }
}
