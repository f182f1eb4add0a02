//! Starts the processes of a run, and schedules their turns.
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::samples::{self, MetricNames, Sample};
use crate::process::{self, cargo, command, root};
use crate::serve::Worker;
use crate::software_gpu::SoftwareGpu;

const MINUTE: Duration = Duration::from_secs(60);
/// Polling interval of waiting threads.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Clients of the language-model worker that a turn warms up with.
const STREAMS: &str = "16";
/// Steps of a training that does not end by itself.
const ENDLESS_STEPS: &str = "100000000";

const TRAINER: &str = "trainer";
const LANGUAGE: &str = "llm-worker";
const IMAGES: &str = "sd-worker";
const TURNS: [&str; 3] = [TRAINER, LANGUAGE, IMAGES];

const LANGUAGE_METRICS: MetricNames = MetricNames {
    device_memory: "llm_vram_bytes",
    latency: ("llm_inter_token_seconds_sum", "llm_inter_token_seconds_count"),
};
const IMAGE_METRICS: MetricNames =
    MetricNames { device_memory: "sd_vram_bytes", latency: ("sd_step_seconds_total", "sd_steps_total") };

/// Paths of the programs of a run.
pub struct Programs {
    language: PathBuf,
    images: PathBuf,
    load: PathBuf,
    trainer: PathBuf,
}

impl Programs {
    /// Builds the programs, for this machine's GPU in release mode, otherwise with the software GPU, and copies them
    /// to a folder, so that later builds do not replace them.
    pub fn build(is_native: bool, arch: &str, folder: &Path) -> Result<Self> {
        let driver = if is_native { "rocm" } else { "rocm-emulator" };
        let features =
            ["candle-rocm", "llm-worker", "sd-worker"].map(|package| format!("{package}/{driver}"));
        let mut build =
            cargo(&["build", "--quiet", "--bins", "--examples", "--features", &features.join(",")]);
        build.args(["--package", "candle-rocm", "--package", "llm-worker", "--package", "sd-worker"]);
        if is_native {
            build.arg("--release");
        } else {
            build.env("CANDLE_ROCM_ARCHS", arch);
        }
        let built = process::build_programs(&mut build)?;
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let program = |name: &str| -> Result<PathBuf> {
            let (path, copy) = (built(name)?, folder.join(name));
            std::fs::copy(&path, &copy).with_context(|| format!("cannot copy {}", path.display()))?;
            Ok(copy)
        };
        Ok(Self {
            language: program("llm-worker-rocm")?,
            images: program("sd-worker-rocm")?,
            load: program("load")?,
            trainer: program("train_tiny_llama")?,
        })
    }
}

/// A run: its programs, its device and its times.
pub struct Soak<'a> {
    pub programs: Programs,
    /// Architecture of the software GPU; `None` is this machine's GPU.
    pub arch: Option<&'a str>,
    pub time: Duration,
    pub turn: Duration,
    /// Requests per second for the language model.
    pub rate: f64,
    pub folder: &'a Path,
}

/// Results of a run.
pub struct Outcome {
    pub samples: Vec<Sample>,
    pub leaked_bytes: u64,
    /// Requests that were neither completed, cancelled nor refused.
    pub lost: u64,
}

/// State that the sampling thread shares with the turns.
struct Shared {
    turn: Mutex<&'static str>,
    has_ended: Mutex<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Soak<'_> {
    /// Runs all turns until the time is over.
    ///
    /// # Errors
    /// If a process fails.
    pub fn run(&self) -> Result<Outcome> {
        std::fs::create_dir_all(self.folder).with_context(|| self.folder.display().to_string())?;
        // A small cache, so that all its pages have been touched when the warm-up ends.
        let language = self.worker(&self.programs.language, &|command| {
            command.arg("--model").arg(root().join("examples/tiny_llama/model"));
            command.args(["--dtype", "f32", "--cache-memory", "4MiB", "--streams-per-client", "0"]);
        })?;
        let images = self.worker(&self.programs.images, &|command| {
            command.arg("--model-path").arg(root().join("examples/tiny_sd/model"));
        })?;
        let mut trainer = self.trainer()?;
        let shared = Shared { turn: Mutex::new(TRAINER), has_ended: Mutex::new(false) };
        let (samples, counts) = thread::scope(|scope| -> Result<_> {
            let sampling = scope.spawn(|| self.sample(&shared, &trainer, &language, &images));
            let counts = self.take_turns(&shared, &trainer, &language, &images, &sampling);
            *lock(&shared.has_ended) = true;
            let samples = sampling.join().map_err(|_| anyhow::anyhow!("the sampling thread panicked"))?;
            Ok((samples?, counts?))
        })?;
        trainer.end()?;
        language.stop()?;
        images.stop()?;
        Ok(Outcome { samples, leaked_bytes: counts.0, lost: counts.1 })
    }

    fn worker(&self, program: &Path, arguments: &dyn Fn(&mut Command)) -> Result<Worker> {
        match self.arch {
            Some(arch) => Worker::start(program, SoftwareGpu::new(arch), arguments),
            None => Worker::start_native(program, arguments),
        }
    }

    /// Starts the training and pauses it.
    fn trainer(&self) -> Result<Trainer> {
        let folder = self.folder.join("training");
        let _ = std::fs::remove_dir_all(&folder);
        let mut command = Command::new(&self.programs.trainer);
        command.args(["train", "--rows", "2", "--length", "64", "--steps", ENDLESS_STEPS, "--folder"]);
        command.arg(&folder).stdin(Stdio::null()).stderr(Stdio::null());
        if let Some(arch) = self.arch {
            SoftwareGpu::new(arch).apply_to(&mut command);
        }
        eprintln!("+ {}", process::command_line(&command));
        let child = command.spawn().with_context(|| self.programs.trainer.display().to_string())?;
        let trainer = Trainer { child };
        trainer.signal("STOP")?;
        Ok(trainer)
    }

    /// Returns leaked bytes and lost requests.
    fn take_turns<T>(
        &self,
        shared: &Shared,
        trainer: &Trainer,
        language: &Worker,
        images: &Worker,
        sampling: &thread::ScopedJoinHandle<'_, T>,
    ) -> Result<(u64, u64)> {
        let begin = Instant::now();
        let (mut leaked, mut lost) = (0, 0);
        for (number, turn) in TURNS.iter().cycle().enumerate() {
            let left = self.time.saturating_sub(begin.elapsed());
            if left < POLL_INTERVAL || sampling.is_finished() {
                break;
            }
            *lock(&shared.turn) = turn;
            let time = self.turn.min(left);
            match *turn {
                TRAINER => {
                    trainer.signal("CONT")?;
                    thread::sleep(time);
                    trainer.signal("STOP")?;
                }
                LANGUAGE => {
                    let (bytes, requests) = self.load(language, time, number)?;
                    leaked += bytes;
                    lost += requests;
                }
                _ => lost += generate_images(images, time)?,
            }
        }
        Ok((leaked, lost))
    }

    /// Loads the language model at the rate; returns leaked bytes and lost requests.
    fn load(&self, worker: &Worker, time: Duration, seed: usize) -> Result<(u64, u64)> {
        let mut load =
            command(&self.programs.load, &["mixed", "--address", worker.address(), "--streams", STREAMS]);
        load.args(["--rate", &self.rate.to_string(), "--seconds", &time.as_secs().to_string()]);
        let output = process::tee(load.args(["--seed", &seed.to_string()]))?;
        let last = output.lines().last().unwrap_or_default();
        let count = |name: &str| -> Result<u64> {
            let value = last.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).with_context(|| format!("the load ended with: {last}"))
        };
        ensure!(count("mixed")? == 0, "a stream carried the text of another: {last}");
        ensure!(count("invalid")? == 0, "an answer violated its format: {last}");
        Ok((count("leaked_bytes")?, count("lost")?))
    }

    /// Takes samples each minute until the run has ended.
    fn sample(
        &self,
        shared: &Shared,
        trainer: &Trainer,
        language: &Worker,
        images: &Worker,
    ) -> Result<Vec<Sample>> {
        let path = self.folder.join("samples.csv");
        let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        writeln!(file, "{}", Sample::header())?;
        let begin = Instant::now();
        let mut totals = [(0.0, 0.0); 2];
        let mut samples = Vec::new();
        for minute in 1u32.. {
            while begin.elapsed() < MINUTE * minute {
                if *lock(&shared.has_ended) {
                    return Ok(samples);
                }
                thread::sleep(POLL_INTERVAL);
            }
            let turn = *lock(&shared.turn);
            let mut add = |process, figures| -> Result<()> {
                let sample = Sample { minute: begin.elapsed().as_secs_f64() / 60.0, turn, process, figures };
                writeln!(file, "{}", sample.line())?;
                samples.push(sample);
                Ok(())
            };
            add(TRAINER, samples::of_process(trainer.child.id())?)?;
            let workers = [(LANGUAGE, language, LANGUAGE_METRICS), (IMAGES, images, IMAGE_METRICS)];
            for ((name, worker, metrics), totals) in workers.into_iter().zip(&mut totals) {
                let mut figures = samples::of_process(worker.id())?;
                figures.extend(samples::of_metrics(&worker.curl(&[], "/metrics")?, metrics, totals));
                add(name, figures)?;
            }
        }
        Ok(samples)
    }
}

/// Requests images one after another; returns how many failed.
fn generate_images(worker: &Worker, time: Duration) -> Result<u64> {
    let (begin, mut lost, mut made) = (Instant::now(), 0, 0u32);
    while begin.elapsed() < time {
        let body = json!({"prompt": "a red circle on blue", "seed": made, "steps": 4, "size": "64x64"});
        let json = ["--header", "Content-Type: application/json", "--data", &body.to_string()];
        let answer: Value =
            serde_json::from_str(&worker.curl(&json, "/v1/images/generations")?).unwrap_or_default();
        if answer["data"][0].is_null() {
            eprintln!("no image: {answer:.500}");
            lost += 1;
        }
        made += 1;
    }
    Ok(lost)
}

/// The training process, which runs only in its turns.
struct Trainer {
    child: Child,
}

impl Trainer {
    fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.id().to_string();
        process::run(&mut command("kill", &[&format!("-{name}"), &id]))
    }

    /// Returns an error if the process has ended by itself.
    fn end(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the training ended by itself: {status}");
        }
        Ok(())
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
