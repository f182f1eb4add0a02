//! Streams of all kinds and all models that start, end, disconnect and are cancelled at random, each checked.
//!
//! The greedy text of each prompt is first generated alone by each model. Models that read pictures get one with each chat.
//! An answer that contains another text, or the label of another request, counts as `mixed`, one that violates its format
//! or schema as `invalid`, and one that ends early without being cut by the client as `lost`. Device memory held at the end in excess of the start counts as leaked, if
//! further rounds add more.
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::answer::{Answer, Fault, Format};
use crate::kinds::{Difference, KINDS, Kind, Request};
use crate::models;
use crate::sse::{self, Stream};
use crate::workload::Arrivals;

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
const MAX_FURTHER_ROUNDS: usize = 8;
/// Duration of such a round.
const FURTHER_ROUND: Duration = Duration::from_secs(5);
/// Maximum duration of a request.
const TIMEOUT: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub struct Arguments {
    /// Host and port of a worker; may be given several times
    #[arg(long, required = true)]
    address: Vec<String>,
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
    whole: [AtomicU64; KINDS.len()],
    left: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    mixed: AtomicU64,
    invalid: AtomicU64,
    tokens: AtomicU64,
    labels: AtomicU64,
}

/// Behavior of a client.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// Reads the stream to its end.
    Reads,
    /// Disconnects after this many pieces of text.
    Disconnects(usize),
    /// Cancels the job after this many pieces of text.
    Cancels(usize),
}

/// Greedy texts of a prompt.
struct Expected {
    completion: String,
    chat: String,
}

/// A model of a worker.
struct Target {
    address: String,
    model: String,
    /// Value of `logit_bias` that prevents white space.
    bias: Value,
    /// PNG files in base64, one for each prompt, if the model reads pictures.
    pictures: Vec<String>,
    expected: Vec<Expected>,
    /// Number of complete answers.
    whole: AtomicU64,
}

struct Load<'a> {
    arguments: &'a Arguments,
    targets: Vec<Target>,
    counts: Counts,
}

/// Runs the load. Returns false if an answer is lost, mixed or invalid, or memory is leaked.
///
/// # Errors
/// If a worker refuses a request, or does not become idle.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let targets =
        arguments.address.iter().map(|address| Target::all_of(address)).collect::<Result<Vec<_>>>()?;
    let targets = targets.into_iter().flatten().collect();
    let mut load = Load { arguments, targets, counts: Counts::default() };
    for target in 0..load.targets.len() {
        for prompt in 0..PROMPTS.len() {
            let completion = load.generate_alone(Kind::Completion, target, prompt)?;
            let chat = load.generate_alone(Kind::Chat, target, prompt)?;
            load.targets[target].expected.push(Expected { completion, chat });
        }
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
    // A step whose shape occurs for the first time needs memory for its graph. A leak grows in every round.
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
    let Counts { whole, left, cancelled, refused, lost, mixed, invalid, tokens, .. } = &load.counts;
    let kinds = KINDS.iter().zip(whole).map(|(kind, count)| format!("{kind:?}={}", of(count)));
    println!("complete answers: {}", kinds.collect::<Vec<_>>().join(" "));
    let models = load.targets.iter().map(|target| format!("{}={}", target.model, of(&target.whole)));
    println!("complete answers by model: {}", models.collect::<Vec<_>>().join(" "));
    let whole: u64 = whole.iter().map(of).sum();
    let ok = [lost, mixed, invalid].map(of) == [0; 3] && leaked == 0 && whole > 0;
    println!(
        "load: {} streams={} lost={} mixed={} invalid={} leaked_bytes={leaked} whole={whole} left={} cancelled={} refused={} \
         tokens={}",
        if ok { "ok" } else { "failed" },
        arguments.streams,
        of(lost),
        of(mixed),
        of(invalid),
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

impl Target {
    /// Returns the models of a worker. A worker with several models loads them.
    fn all_of(address: &str) -> Result<Vec<Self>> {
        let url = |path: &str| format!("http://{address}{path}");
        let list = || -> Result<Vec<Value>> {
            let models: Value = ureq::get(&url("/v1/models")).call()?.into_json()?;
            Ok(models["data"].as_array().context("the worker lists no models")?.clone())
        };
        let mut targets = Vec::new();
        for model in list()? {
            let model = model["id"].as_str().context("a model without a name")?.to_owned();
            let body = json!({"model": model, "content": " "});
            let space: Value = ureq::post(&url("/tokenize")).send_json(body)?.into_json()?;
            let space = space["tokens"].as_array().context("the worker does not tokenize")?;
            let bias = Value::Object(space.iter().map(|token| (token.to_string(), json!(-100))).collect());
            let (pictures, expected, whole) = (Vec::new(), Vec::new(), AtomicU64::default());
            targets.push(Self { address: address.to_owned(), model, bias, pictures, expected, whole });
        }
        for (target, model) in targets.iter_mut().zip(list()?) {
            let kinds = model["architecture"]["input_modalities"].as_array();
            if kinds.is_some_and(|kinds| kinds.contains(&json!("image"))) {
                target.pictures = (0..PROMPTS.len()).map(models::picture).collect::<Result<_>>()?;
            }
        }
        Ok(targets)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Load<'_> {
    fn request(&self, kind: Kind, target: usize, prompt: usize, tokens: usize) -> Request<'_> {
        let label = format!("r{}", self.counts.labels.fetch_add(1, Ordering::Relaxed));
        let Target { model, bias, pictures, .. } = &self.targets[target];
        let picture = pictures.get(prompt).map(String::as_str);
        Request { kind, model, prompt: PROMPTS[prompt], picture, tokens, label, bias }
    }

    /// Generates a prompt's greedy text while nothing else runs.
    fn generate_alone(&self, kind: Kind, target: usize, prompt: usize) -> Result<String> {
        let mut body = self.request(kind, target, prompt, self.arguments.tokens).body();
        body["stream"] = false.into();
        let url = self.targets[target].url(kind.path());
        let answer: Value = ureq::post(&url).send_json(body)?.into_json()?;
        let choice = &answer["choices"][0];
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str());
        Ok(text.with_context(|| format!("no text: {answer}"))?.to_owned())
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
        let mut random = StdRng::seed_from_u64(self.arguments.seed);
        let begin = Instant::now();
        thread::scope(|scope| {
            let mut clients = Vec::new();
            for arrival in Arrivals::new(rate, self.arguments.seed)?.take_while(|arrival| *arrival < time) {
                thread::sleep(arrival.saturating_sub(begin.elapsed()));
                let mut client = StdRng::seed_from_u64(random.random());
                clients.push(scope.spawn(move || self.stream(&mut client)));
            }
            join(clients)
        })
    }

    fn stream(&self, random: &mut StdRng) -> Result<()> {
        let prompt = random.random_range(0..PROMPTS.len());
        let tokens = random.random_range(1..=self.arguments.tokens);
        let index = random.random_range(0..KINDS.len());
        let target = random.random_range(0..self.targets.len());
        let (request, target) = (self.request(KINDS[index], target, prompt, tokens), &self.targets[target]);
        let mode = match random.random_range(0..10) {
            0 => Mode::Disconnects(random.random_range(0..=tokens)),
            1..=4 if request.kind == Kind::Job => Mode::Cancels(random.random_range(0..=tokens)),
            _ => Mode::Reads,
        };
        let (stream, job) = match target.start(&request) {
            Ok(started) => started,
            Err(error) => match *error {
                ureq::Error::Status(429, answer) => {
                    ensure!(answer.header("retry-after").is_some(), "429 without Retry-After");
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                ureq::Error::Status(status, answer) => {
                    bail!("{:?} was refused: {status} {}", request.kind, answer.into_string()?)
                }
                other => return Err(other).context("cannot start a stream"),
            },
        };
        let mut answer = Answer::default();
        let ended = target.read(&mut answer, request.kind.format(), mode, stream, job.as_deref())?;
        let Expected { completion, chat } = &target.expected[prompt];
        let expected = if request.kind.is_chat() { chat } else { completion };
        self.counts.tokens.fetch_add(answer.pieces as u64, Ordering::Relaxed);
        let counted = match ended {
            End::Left => return self.add(&self.counts.left),
            End::Cancelled if expected.starts_with(&answer.text) => &self.counts.cancelled,
            End::Cancelled => &self.counts.mixed,
            End::Lost => &self.counts.lost,
            End::Malformed => &self.counts.invalid,
            End::Whole => match request.check(&answer, expected) {
                Ok(()) => {
                    target.whole.fetch_add(1, Ordering::Relaxed);
                    &self.counts.whole[index]
                }
                Err(Difference::Mixed) => &self.counts.mixed,
                Err(Difference::Invalid) => &self.counts.invalid,
            },
        };
        if [&self.counts.lost, &self.counts.mixed, &self.counts.invalid]
            .iter()
            .any(|bad| std::ptr::eq(*bad, counted))
        {
            eprintln!(
                "{} {} {:?} {:?}: {answer:?}, expected {expected:?}",
                request.label, request.model, request.kind, request.prompt
            );
        }
        self.add(counted)
    }

    fn add(&self, count: &AtomicU64) -> Result<()> {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until all workers are idle. Returns the device memory that they hold, in bytes.
    fn idle_memory(&self) -> Result<u64> {
        self.arguments.address.iter().map(|address| idle_memory(address)).sum()
    }
}

impl Target {
    /// Starts a stream, and returns the id of its job if it has one.
    fn start(&self, request: &Request<'_>) -> Result<(Stream, Option<String>), Box<ureq::Error>> {
        let url = self.url(request.kind.path());
        if request.kind != Kind::Job {
            return Ok((sse::post(&url, None, &request.body(), TIMEOUT)?, None));
        }
        let answer = ureq::post(&url).send_json(request.body())?;
        let answer: Value = answer.into_json().map_err(ureq::Error::from)?;
        let id = answer["job_id"].as_str().unwrap_or_default().to_owned();
        let stream = ureq::get(&self.url(&format!("/v1/jobs/{id}/stream"))).call()?;
        Ok((sse::events(stream), Some(id)))
    }

    /// Reads a stream as a client of this mode does.
    fn read(
        &self,
        answer: &mut Answer,
        format: Format,
        mode: Mode,
        stream: Stream,
        job: Option<&str>,
    ) -> Result<End> {
        let mut cancelled = false;
        for event in stream {
            let Ok(event) = event else { return Ok(End::Lost) };
            match answer.add(format, &event) {
                Ok(()) => {}
                Err(Fault::Failed(error)) => {
                    eprintln!("a stream failed: {error}");
                    return Ok(End::Lost);
                }
                Err(Fault::Malformed(why)) => {
                    eprintln!("a stream is malformed: {why}");
                    return Ok(End::Malformed);
                }
            }
            match mode {
                _ if answer.is_done => break,
                Mode::Disconnects(after) if answer.pieces >= after => return Ok(End::Left),
                Mode::Cancels(after) if answer.pieces >= after && !cancelled => {
                    cancelled = true;
                    let id = job.context("a job id")?;
                    ureq::delete(&self.url(&format!("/v1/jobs/{id}"))).call()?;
                }
                _ => {}
            }
        }
        Ok(match (answer.is_done, cancelled) {
            (false, _) => End::Lost,
            (true, true) => End::Cancelled,
            (true, false) => End::Whole,
        })
    }
}

/// Waits until a worker is idle. Returns the device memory that it holds, in bytes.
fn idle_memory(address: &str) -> Result<u64> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let metrics = ureq::get(&format!("http://{address}/metrics")).call()?.into_string()?;
        // A worker with several models has a line for each.
        let sum = |name: &str| {
            let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
            let lines = lines.filter(|rest| rest.starts_with(['{', ' ']));
            lines
                .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
                .reduce(|one, other| one + other)
        };
        let names =
            ["llm_requests_running", "llm_requests_waiting", "llm_cache_blocks_used", "llm_vram_bytes"];
        match names.map(sum) {
            [Some(0.0), Some(0.0), Some(0.0), Some(held)] => return Ok(held as u64),
            [Some(_), Some(_), Some(_), Some(_)] => {}
            _ => bail!("the worker's metrics are incomplete:\n{metrics}"),
        }
        ensure!(Instant::now() < until, "the worker does not become idle:\n{metrics}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// How a client stopped reading a stream.
enum End {
    Whole,
    Left,
    Cancelled,
    Lost,
    Malformed,
}
