//! Load test of a worker: streams start, end, disconnect and are cancelled at random.
//!
//! ```sh
//! cargo run --example load -- --address 127.0.0.1:8081 --streams 64 --seconds 60
//! ```
//!
//! Each prompt's greedy text is first generated alone. A stream with different text counts as `mixed`, and
//! one that ends early without being cut by the client as `lost`. Device memory held at the end in excess of
//! the start counts as leaked, if further rounds add more.
use std::io::{BufRead, BufReader};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Prompts that suit the tiny model of this repository.
const PROMPTS: [&str; 8] = [
    "Once upon a time",
    "Anna lives",
    "There is a brave queen near the mill.",
    "When the children",
    "The old man has a dog. The dog",
    "Tom and Anna like",
    "In the morning the king",
    "She",
];

/// Maximum number of rounds that are added to tell a leak from memory that is allocated once.
const MAX_FURTHER_ROUNDS: usize = 4;
/// Duration of such a round.
const FURTHER_ROUND: Duration = Duration::from_secs(5);

/// Runs a load test against a worker
#[derive(Parser)]
struct Arguments {
    /// Host and port of the worker
    #[arg(long)]
    address: String,
    /// Number of concurrent streams
    #[arg(long, default_value_t = 64)]
    streams: u64,
    /// Average number of requests started per second, at random times; if absent, each stream follows the last
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Duration in which new streams are started, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Maximum number of tokens per text
    #[arg(long, default_value_t = 24)]
    tokens: usize,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Default)]
struct Counts {
    whole: AtomicU64,
    left: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    mixed: AtomicU64,
    tokens: AtomicU64,
}

/// Behavior of a client.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// Reads the stream to its end.
    Reads,
    /// Disconnects after this many tokens.
    Disconnects(usize),
    /// Creates a job, and cancels it after this many tokens.
    Cancels(usize),
}

struct Load<'a> {
    arguments: &'a Arguments,
    model: String,
    expected: Vec<String>,
    counts: Counts,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    let models: Value = ureq::get(&format!("http://{}/v1/models", arguments.address)).call()?.into_json()?;
    let model = models["data"][0]["id"].as_str().context("the worker lists no model")?.to_owned();
    let mut load = Load { arguments, model, expected: Vec::new(), counts: Counts::default() };
    for prompt in PROMPTS {
        load.expected.push(load.expected_text(prompt)?);
    }
    // The first round fills the allocator's caches, which would otherwise count as a leak.
    load.round(arguments.streams, Duration::ZERO)?;
    let before = load.idle_memory()?;
    load.counts = Counts::default();
    let time = Duration::from_secs(arguments.seconds);
    match arguments.rate {
        Some(rate) => load.arrivals(rate, time)?,
        None => load.round(arguments.streams, time)?,
    }
    let mut held = load.idle_memory()?;
    let mut leaked = held.saturating_sub(before);
    // A batch size that occurs for the first time needs memory for its graph. A leak grows in every round.
    for _ in 0..MAX_FURTHER_ROUNDS {
        if leaked == 0 {
            break;
        }
        load.round(arguments.streams, FURTHER_ROUND)?;
        let after = load.idle_memory()?;
        leaked = after.saturating_sub(held);
        held = after;
    }
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let Counts { whole, left, cancelled, refused, lost, mixed, tokens } = &load.counts;
    let ok = of(lost) == 0 && of(mixed) == 0 && leaked == 0 && of(whole) > 0;
    println!(
        "load: {} streams={} lost={} mixed={} leaked_bytes={leaked} whole={} left={} cancelled={} refused={} tokens={}",
        if ok { "ok" } else { "failed" },
        arguments.streams,
        of(lost),
        of(mixed),
        of(whole),
        of(left),
        of(cancelled),
        of(refused),
        of(tokens),
    );
    Ok(ok)
}

/// Waits for all clients and returns the first failure.
fn join(clients: Vec<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    clients.into_iter().try_for_each(|client| match client.join() {
        Ok(outcome) => outcome,
        Err(_) => bail!("a client panicked"),
    })
}

impl Load<'_> {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.arguments.address)
    }

    /// Generates a prompt's greedy text while nothing else runs.
    fn expected_text(&self, prompt: &str) -> Result<String> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": self.arguments.tokens, "temperature": 0,
        });
        let answer: Value = ureq::post(&self.url("/v1/completions")).send_json(body)?.into_json()?;
        Ok(answer["choices"][0]["text"].as_str().context("no text")?.to_owned())
    }

    /// Runs `streams` clients, each of which starts one stream after another for `time`, and at least one.
    fn round(&self, streams: u64, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        thread::scope(|scope| {
            let clients = (0..streams).map(|client| {
                scope.spawn(move || -> Result<()> {
                    let mut random = StdRng::seed_from_u64(self.arguments.seed << 32 | client);
                    loop {
                        self.stream(&mut random)?;
                        if Instant::now() >= until {
                            return Ok(());
                        }
                    }
                })
            });
            join(clients.collect())
        })
    }

    /// Starts requests at the times of a Poisson process, and waits until all have ended.
    fn arrivals(&self, rate: f64, time: Duration) -> Result<()> {
        ensure!(rate > 0.0, "--rate must be above 0");
        let mut random = StdRng::seed_from_u64(self.arguments.seed);
        let (begin, mut next) = (Instant::now(), Duration::ZERO);
        thread::scope(|scope| {
            let mut clients = Vec::new();
            while next < time {
                thread::sleep(next.saturating_sub(begin.elapsed()));
                let mut client = StdRng::seed_from_u64(random.random());
                clients.push(scope.spawn(move || self.stream(&mut client)));
                next += Duration::from_secs_f64(-(1.0 - random.random::<f64>()).ln() / rate);
            }
            join(clients)
        })
    }

    fn stream(&self, random: &mut StdRng) -> Result<()> {
        let prompt = random.random_range(0..PROMPTS.len());
        let tokens = random.random_range(1..=self.arguments.tokens);
        let mode = match random.random_range(0..10) {
            0 => Mode::Disconnects(random.random_range(0..=tokens)),
            1 => Mode::Cancels(random.random_range(0..=tokens)),
            _ => Mode::Reads,
        };
        let started = match mode {
            Mode::Cancels(_) => self.start_job(prompt, tokens),
            _ => self.start_completion(prompt, tokens),
        };
        let (reader, job) = match started {
            Ok(started) => started,
            Err(error) => match *error {
                ureq::Error::Status(429, answer) => {
                    ensure!(answer.header("retry-after").is_some(), "429 without Retry-After");
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                other => return Err(other).context("cannot start a stream"),
            },
        };
        self.read(prompt, mode, reader, job)
    }

    fn start_completion(&self, prompt: usize, tokens: usize) -> StartedStream {
        let body = json!({
            "model": self.model, "prompt": PROMPTS[prompt], "max_tokens": tokens, "temperature": 0, "stream": true,
        });
        let answer = ureq::post(&self.url("/v1/completions")).send_json(body)?;
        Ok((Box::new(BufReader::new(answer.into_reader())), None))
    }

    fn start_job(&self, prompt: usize, tokens: usize) -> StartedStream {
        let body = json!({
            "hive_id": "load", "model": self.model, "prompt": PROMPTS[prompt], "max_tokens": tokens,
            "temperature": 0, "stream": true,
        });
        let answer = ureq::post(&self.url("/v1/jobs")).send_json(body)?;
        let answer: Value = answer.into_json().map_err(ureq::Error::from)?;
        let id = answer["job_id"].as_str().unwrap_or_default().to_owned();
        let stream = ureq::get(&self.url(&format!("/v1/jobs/{id}/stream"))).call()?;
        Ok((Box::new(BufReader::new(stream.into_reader())), Some(id)))
    }

    /// Reads a stream according to the client's client. Its text must be a prefix of the expected one.
    fn read(&self, prompt: usize, mode: Mode, reader: Box<dyn BufRead>, job: Option<String>) -> Result<()> {
        let (mut text, mut seen, mut done, mut cancelled) = (String::new(), 0, false, false);
        for line in reader.lines() {
            let Ok(line) = line else { break };
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                done = true;
                break;
            }
            let event: Value = serde_json::from_str(data).with_context(|| format!("no JSON: {data}"))?;
            if event.get("error").is_some() || event["type"] == "error" {
                eprintln!("a stream failed: {data}");
                break;
            }
            let piece = event["choices"][0]["text"].as_str().or(event["t"].as_str());
            text.push_str(piece.unwrap_or_default());
            seen += usize::from(piece.is_some());
            match mode {
                Mode::Disconnects(after) if seen >= after => {
                    self.counts.left.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Mode::Cancels(after) if seen >= after && !cancelled => {
                    cancelled = true;
                    let id = job.as_deref().context("a job id")?;
                    ureq::delete(&self.url(&format!("/v1/jobs/{id}"))).call()?;
                }
                _ => {}
            }
        }
        self.counts.tokens.fetch_add(seen as u64, Ordering::Relaxed);
        let counted = match (done, cancelled) {
            (false, _) => &self.counts.lost,
            (true, true) => &self.counts.cancelled,
            (true, false) => &self.counts.whole,
        };
        counted.fetch_add(1, Ordering::Relaxed);
        if !self.expected[prompt].starts_with(&text) {
            eprintln!("{:?} generated {text:?}, expected {:?}", PROMPTS[prompt], self.expected[prompt]);
            self.counts.mixed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until the worker is idle. Returns the device memory that it holds, in bytes.
    fn idle_memory(&self) -> Result<u64> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let metrics = ureq::get(&self.url("/metrics")).call()?.into_string()?;
            let value = |name: &str| {
                let line = metrics.lines().find(|line| line.starts_with(name))?;
                line.rsplit(' ').next()?.parse::<f64>().ok()
            };
            let [running, waiting, held] =
                ["llm_requests_running", "llm_requests_waiting", "llm_vram_bytes"].map(value);
            match (running, waiting, held) {
                (Some(0.0), Some(0.0), Some(held)) => return Ok(held as u64),
                (Some(_), Some(_), Some(_)) => {}
                _ => bail!("the worker's metrics are incomplete:\n{metrics}"),
            }
            ensure!(Instant::now() < until, "the worker does not become idle:\n{metrics}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

type StartedStream = std::result::Result<(Box<dyn BufRead>, Option<String>), Box<ureq::Error>>;
