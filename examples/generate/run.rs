//! Runs one request: loads the model, follows the engine's events and collects statistics.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_core::rocm::RocmDevice;
use llm_engine::engine::{self, Engine, Stream};
use llm_engine::model::{LoadOptions, load_decoder, load_text};
use llm_engine::request::{Event, Request, StopReason};
use llm_engine::step::StepModel;
use llm_engine::text::TextCodec;
use serde_json::json;

use crate::device;
use crate::options::Options;

/// Result of a run.
pub struct Run {
    /// Tokens of the text, without the end token.
    pub tokens: Vec<u32>,
    /// Difference between the best and the second-best logit of each token; empty without `--report`.
    pub margins: Vec<f32>,
    /// Reason why the text ended.
    pub reason: StopReason,
    model: String,
    device: Device,
    prompt_tokens: usize,
    load_time: Duration,
    /// Time from the request to the first token.
    prompt_time: Duration,
    /// Time from the first token to the last.
    token_time: Duration,
    memory: Option<String>,
    kernels_launched: u64,
}

/// Generates the text and passes it to `on_text` piece by piece. Options and prompt, except the prompt's
/// length, are checked before weights are read.
///
/// # Errors
/// If an option or a file is invalid, or if the device fails.
pub fn run(
    options: &Options,
    interrupted: &AtomicBool,
    on_text: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Run> {
    let begun = Instant::now();
    let sampling = options.sampling();
    llm_engine::sampling::check(&sampling, usize::MAX)?;
    let text = load_text(&options.model)?;
    let prompt = prompt(options, &text)?;
    let device = choose_device(options.device.as_deref())?;

    let (prompt_tokens, tokens) = (prompt.len(), options.tokens as usize);
    let context = Some(prompt_tokens + tokens);
    let (dtype, max_contexts, decoded_bytes) = (options.dtype, Some(1), Some(0));
    let load = LoadOptions { dtype, context, max_contexts, decoded_bytes, ..LoadOptions::default() };
    let decoder = load_decoder(&options.model, &device, load, &mut |_| ())?;
    // At least 1, since the engine rejects a prompt that fills the context.
    let left = decoder.capacity().context.saturating_sub(prompt_tokens).max(1);
    let one = engine::Options { max_running: 1, max_waiting: 0, prefix_cache: false, ..Default::default() };
    let engine = Engine::start(Box::new(decoder), Arc::new(text), one)?;

    // Resolves paths such as `.` that do not contain the folder's name.
    let path = options.model.canonicalize().unwrap_or_else(|_| options.model.clone());
    let mut run = Run {
        tokens: Vec::new(),
        margins: Vec::new(),
        reason: StopReason::Cancelled,
        model: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        device,
        prompt_tokens,
        load_time: begun.elapsed(),
        prompt_time: Duration::ZERO,
        token_time: Duration::ZERO,
        memory: None,
        kernels_launched: 0,
    };
    let request = Request {
        prompt,
        max_tokens: Some(tokens.min(left)),
        sampling,
        stop: options.stops.clone(),
        logprobs: options.report.as_ref().map(|_| 2),
        ..Request::default()
    };
    let result = match engine.submit(request) {
        Ok(stream) => run.follow(stream, interrupted, on_text),
        Err(error) => Err(error.into()),
    };
    if let Device::Rocm(rocm) = &run.device {
        run.memory = Some(memory(rocm)?);
        run.kernels_launched = rocm.kernels_launched();
    }
    engine.stop();
    result.map(|()| run)
}

/// Returns the tokens of the prompt, formatted with the chat template if `--chat` is set.
fn prompt(options: &Options, text: &TextCodec) -> Result<Vec<u32>> {
    if !options.chat {
        return text.encode(&options.prompt, true);
    }
    let system = options.system.iter().map(|system| json!({"role": "system", "content": system}));
    let user = json!({"role": "user", "content": options.prompt});
    let chat = text.chat(&system.chain([user]).collect(), None).context("--chat")?;
    // The template contains the begin-of-text token.
    text.encode(&chat, false)
}

/// Opens a device by its name. Without a name, opens the first GPU; if that fails, prints the reason and uses the CPU.
fn choose_device(name: Option<&str>) -> Result<Device> {
    let cpu = |reason: anyhow::Error| {
        eprintln!("no ROCm device, using the CPU: {reason:#}");
        Device::Cpu
    };
    name.map_or_else(|| Ok(device::open("rocm").unwrap_or_else(cpu)), device::open)
}

fn memory(rocm: &RocmDevice) -> Result<String> {
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (stats, (_, total)) = (rocm.memory_stats(), rocm.memory_info()?);
    Ok(format!("{} in use, peak {}, of {}", mib(stats.live), mib(stats.peak), mib(total)))
}

impl Run {
    /// Processes the request's events until it ends.
    fn follow(
        &mut self,
        mut stream: Stream,
        interrupted: &AtomicBool,
        on_text: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            match stream.blocking_next().context("the engine stopped unexpectedly")? {
                Event::Started | Event::Prompt { .. } => {}
                Event::Token { token, text, top, .. } => {
                    match self.tokens.is_empty() {
                        true => self.prompt_time = begun.elapsed(),
                        false => self.token_time = begun.elapsed() - self.prompt_time,
                    }
                    self.tokens.push(token);
                    self.margins.extend(top.windows(2).map(|two| two[0].logprob - two[1].logprob));
                    on_text(&text)?;
                }
                Event::End { text, reason, .. } => {
                    self.reason = reason;
                    return on_text(&text);
                }
                Event::Error { code, message } => bail!("{code}: {message}"),
            }
            if interrupted.load(Ordering::Relaxed) {
                stream.cancel();
            }
        }
    }

    /// Returns tokens and statistics as JSON.
    pub fn report(&self) -> serde_json::Value {
        let mut report = json!({
            "model": self.model,
            "device": "cpu",
            "tokens": self.tokens,
            "margins": self.margins,
            "end": self.reason,
            "prompt_tokens": self.prompt_tokens,
            "load_seconds": self.load_time.as_secs_f64(),
            "prompt_seconds": self.prompt_time.as_secs_f64(),
            "token_seconds": self.token_time.as_secs_f64(),
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
        let rate = |count: usize, time: Duration| match count as f64 / time.as_secs_f64() {
            rate if rate.is_finite() => format!(", {rate:.1} per second"),
            _ => String::new(),
        };
        writeln!(f, "model   {}, loaded in {:.2} s", self.model, self.load_time.as_secs_f64())?;
        match &self.device {
            Device::Rocm(rocm) => {
                let driver = rocm.driver_name();
                let note = match driver {
                    "emulator" => "; the software GPU's speed does not predict hardware",
                    "nvidia" => "; for development, not an AMD GPU",
                    _ => "",
                };
                writeln!(f, "device  {}, arch {}, driver {driver}{note}", rocm.name(), rocm.arch())?;
            }
            _ => writeln!(f, "device  the CPU")?,
        }
        writeln!(f, "prompt  {} tokens{}", self.prompt_tokens, rate(self.prompt_tokens, self.prompt_time))?;
        let reason = match self.reason {
            StopReason::Stop => "the text is complete",
            StopReason::Length => "the token limit or the context length is reached",
            StopReason::Cancelled => "interrupted",
        };
        // The first token is part of the prompt time.
        let speed = rate(self.tokens.len().saturating_sub(1), self.token_time);
        writeln!(f, "text    {} tokens{speed}; ended: {reason}", self.tokens.len())?;
        self.memory.iter().try_for_each(|memory| writeln!(f, "memory  {memory}"))
    }
}
