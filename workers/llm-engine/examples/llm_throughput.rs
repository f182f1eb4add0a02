//! Measures the engine's throughput for concurrent streams, the time to the first token when idle and under
//! load, and the engine's own overhead per step: host time between steps, while the device is idle.
//!
//! ```sh
//! python3 workers/llm-engine/benches/transformers_generate.py --write /tmp/billion        # a model of random weights
//! cargo run --release --package llm-engine --features rocm --example llm_throughput -- --model /tmp/billion --device rocm
//! ```
//!
//! Prints one line of JSON for each measurement.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, DeviceLocation};
use clap::Parser;
use llm_engine::engine::{DraftSource, Engine, Options, Speculation, Stream};
use llm_engine::model::cache_dtype::CacheDType;
use llm_engine::model::drafted::load_with_draft;
use llm_engine::model::files::ModelFiles;
use llm_engine::model::{LoadOptions, load_on};
use llm_engine::request::{Event, Request, Sampling};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Measures throughput, time to the first token, and the engine's overhead.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Folder of safetensors, or a .gguf file
    #[arg(long)]
    model: PathBuf,
    /// Device: cpu, rocm or rocm:N
    #[arg(long, default_value = "cpu", value_parser = device)]
    device: Device,
    /// Number of GPUs that the model is divided among, from the device on
    #[arg(long, default_value_t = 1)]
    tensor_parallel: usize,
    /// Data type of weights and cache
    #[arg(long, default_value = "f16")]
    dtype: DType,
    /// Data type of the cache, such as int8 or fp8 [default: that of the weights]
    #[arg(long, value_parser = cache_dtype)]
    cache_dtype: Option<CacheDType>,
    /// Size of the cache in GiB
    #[arg(long, default_value_t = 4)]
    cache_gib: usize,
    /// Number of tokens per prompt
    #[arg(long, default_value_t = 128)]
    prompt: usize,
    /// Number of tokens to generate per stream
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Give the second measurement of each number of streams the prompts of the first, which the prefix cache then holds, so
    /// that only decoding takes time
    #[arg(long)]
    repeat_prompts: bool,
    /// Maximum number of rows per step while no text is being generated; below 512 it has no effect
    #[arg(long, default_value_t = 0)]
    prompt_step_tokens: usize,
    /// Only load the model
    #[arg(long)]
    load_only: bool,
    /// Numbers of concurrent streams to measure
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    streams: Vec<usize>,
    /// Maximum number of draft tokens of a stream in a step, from prompt lookup, the draft model or the head; 0 for no speculation
    #[arg(long, default_value_t = 0)]
    draft_tokens: usize,
    /// Draft by the model's head that predicts further tokens (MTP)
    #[arg(long, requires = "draft_tokens", conflicts_with = "draft_model")]
    mtp: bool,
    /// Draft model: folder of safetensors, or a .gguf file
    #[arg(long, requires = "draft_tokens")]
    draft_model: Option<PathBuf>,
}

fn device(name: &str) -> Result<Device> {
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", _) => Ok(Device::Cpu),
        #[cfg(feature = "rocm")]
        ("rocm", ordinal) => Ok(Device::new_rocm(ordinal.parse()?)?),
        _ => bail!("unknown device {name:?}; use cpu, or rocm:N in a build with the feature rocm"),
    }
}

fn cache_dtype(name: &str) -> Result<CacheDType> {
    CacheDType::named(name)
        .with_context(|| format!("unknown data type {name:?}; use f32, f16, bf16, int8 or fp8"))
}

/// Opens the devices that the model is divided among.
fn devices(arguments: &Arguments) -> Result<Vec<Device>> {
    let first = match arguments.device.location() {
        DeviceLocation::Rocm { gpu_id } => gpu_id,
        _ => 0,
    };
    let others = first + 1..first + arguments.tensor_parallel;
    let others = others.map(|ordinal| device(&format!("rocm:{ordinal}")));
    std::iter::once(Ok(arguments.device.clone())).chain(others).collect()
}

/// Timings that a client measured of its stream, since the request.
struct Timings {
    first: Duration,
    last: Duration,
    tokens: Vec<u32>,
}

struct Bench {
    arguments: Arguments,
    engine: Engine,
    random: StdRng,
    /// Runtime of the clients.
    clients: Runtime,
}

type Client = JoinHandle<Result<Timings>>;

impl Bench {
    /// Submits a request with a random prompt.
    fn submit(&mut self, tokens: usize) -> Result<Stream> {
        let vocabulary = self.engine.capacity().vocabulary as u32;
        let prompt = (0..self.arguments.prompt).map(|_| self.random.random_range(3..vocabulary)).collect();
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        Ok(self.engine.submit(Request {
            prompt,
            max_tokens: Some(tokens),
            sampling,
            ignore_eos: true,
            ..Request::default()
        })?)
    }

    /// Reads a stream to its end on the client runtime.
    fn follow(&self, mut stream: Stream, begin: Instant) -> Client {
        self.clients.spawn(async move {
            let mut seen = Timings { first: Duration::ZERO, last: Duration::ZERO, tokens: Vec::new() };
            while let Some(event) = stream.next().await {
                match event {
                    Event::Token { token, .. } => {
                        seen.last = begin.elapsed();
                        if seen.tokens.is_empty() {
                            seen.first = seen.last;
                        }
                        seen.tokens.push(token);
                    }
                    Event::Error { code, message } => bail!("{code}: {message}"),
                    Event::Started | Event::Prompt { .. } | Event::End { .. } => {}
                }
            }
            Ok(seen)
        })
    }

    fn join_all(&self, clients: Vec<Client>) -> Result<Vec<Timings>> {
        clients.into_iter().map(|client| self.clients.block_on(client)?).collect()
    }

    /// Measures streams that start together.
    fn measure_streams(&mut self, streams: usize) -> Result<()> {
        let tokens = self.arguments.tokens;
        let before = self.engine.status();
        let begin = Instant::now();
        let streams_of = (0..streams).map(|_| self.submit(tokens)).collect::<Result<Vec<_>>>()?;
        let clients = streams_of.into_iter().map(|stream| self.follow(stream, begin)).collect();
        let seen = self.join_all(clients)?;
        let after = self.engine.status();
        let wall = begin.elapsed();
        ensure!(seen.iter().all(|seen| seen.tokens.len() == tokens), "a stream ended early");
        // Only the time in which all streams generate counts: last first token to first last token.
        let from = seen.iter().map(|seen| seen.first).max().unwrap_or_default();
        let to = seen.iter().map(|seen| seen.last).min().unwrap_or_default();
        let steps = after.steps - before.steps;
        let mut hasher = DefaultHasher::new();
        seen.iter().for_each(|seen| seen.tokens.hash(&mut hasher));
        println!(
            "{}",
            json!({
                "streams": streams,
                "tokens_per_second": (streams * tokens) as f64 / wall.as_secs_f64(),
                "step_ms": (to.saturating_sub(from)).as_secs_f64() * 1e3 / (tokens - 1).max(1) as f64,
                "first_token_ms": from.as_secs_f64() * 1e3,
                "overhead_us_per_step": (after.overhead_us - before.overhead_us) as f64 / steps.max(1) as f64,
                "steps": steps,
                // Equal for equal texts.
                "hash_of_tokens": format!("{:016x}", hasher.finish()),
                "draft_tokens": after.tokens_drafted - before.tokens_drafted,
                "accepted_tokens": after.tokens_accepted - before.tokens_accepted,
            })
        );
        Ok(())
    }

    /// Measures the time to the first token while `busy` other streams generate.
    fn measure_first_token(&mut self, busy: usize) -> Result<()> {
        let begin = Instant::now();
        let long = self.arguments.tokens * 4;
        let mut streams = (0..busy).map(|_| self.submit(long)).collect::<Result<Vec<_>>>()?;
        // Waits until all streams have their first token.
        for stream in &mut streams {
            while !matches!(stream.blocking_next(), None | Some(Event::Token { .. })) {}
        }
        let others: Vec<_> = streams.into_iter().map(|stream| self.follow(stream, begin)).collect();
        let mut times = Vec::new();
        for _ in 0..5 {
            let submitted = Instant::now();
            let stream = self.submit(2)?;
            let seen = self.join_all(vec![self.follow(stream, submitted)])?;
            times.push(seen[0].first.as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        println!("{}", json!({"busy": busy, "first_token_ms": times[times.len() / 2]}));
        self.join_all(others).map(drop)
    }
}

/// Times at which the first and the last weights were read.
#[derive(Default)]
struct Reading {
    times: Option<[Instant; 2]>,
    is_complete: bool,
}

impl Reading {
    /// Records that a fraction was read.
    fn record(&mut self, share: f32) {
        if !self.is_complete {
            let now = Instant::now();
            self.times = Some([self.times.map_or(now, |[begin, _]| begin), now]);
            self.is_complete = share >= 1.0;
        }
    }

    fn seconds(&self) -> f64 {
        self.times.map_or(0.0, |[begin, end]| (end - begin).as_secs_f64())
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let Arguments { dtype, cache_dtype, cache_gib, .. } = arguments;
    let (dtype, cache_bytes) = (Some(dtype), Some(cache_gib << 30));
    let Arguments { model, draft_model, draft_tokens, mtp, .. } = &arguments;
    let (draft_tokens, mtp) = (*draft_tokens, *mtp);
    let options =
        LoadOptions { dtype, cache_dtype, cache_bytes, draft_tokens, mtp, ..LoadOptions::default() };
    let devices = devices(&arguments)?;
    let began = Instant::now();
    let mut reading = Reading::default();
    let progress = &mut |share| reading.record(share);
    let (loaded, source) = match draft_model {
        Some(draft) => (load_with_draft(model, draft, &devices, options, progress)?, DraftSource::Model),
        None => {
            let source = if mtp { DraftSource::Mtp } else { DraftSource::Ngram(2..=4) };
            (load_on(model, &devices, options, progress)?, source)
        }
    };
    devices.iter().try_for_each(Device::synchronize)?;
    let load_seconds = began.elapsed().as_secs_f64();
    let speculation = (draft_tokens > 0).then_some(Speculation { source, max_tokens: draft_tokens });
    let prompt_step_tokens = arguments.prompt_step_tokens;
    let options = Options { speculation, prompt_step_tokens, ..Options::default() };
    let engine = Engine::start(loaded.model, Arc::new(loaded.text), options)?;
    println!(
        "{}",
        json!({
            "model": loaded.name, "bytes": loaded.bytes, "load_seconds": load_seconds,
            "prompt": arguments.prompt, "tokens": arguments.tokens,
        })
    );
    // Without opening the device, the tokenizer, the cache and the draft model.
    let (bytes, seconds) = (ModelFiles::open(&arguments.model)?.bytes(), reading.seconds());
    let rate = bytes as f64 / 1e9 / seconds;
    println!(
        "{}",
        json!({"weights_bytes": bytes, "weights_seconds": seconds, "weights_gb_per_second": rate})
    );
    if arguments.load_only {
        return Ok(());
    }
    let clients = tokio::runtime::Builder::new_multi_thread().build()?;
    let mut bench = Bench { arguments, engine, random: StdRng::seed_from_u64(1), clients };
    let streams = bench.arguments.streams.clone();
    for streams in streams {
        // The first run loads kernels and allocates memory for these shapes.
        let random = bench.random.clone();
        bench.measure_streams(streams)?;
        if bench.arguments.repeat_prompts {
            bench.random = random;
        }
        bench.measure_streams(streams)?;
    }
    bench.measure_first_token(0)?;
    bench.measure_first_token(16)?;
    bench.engine.stop();
    Ok(())
}
