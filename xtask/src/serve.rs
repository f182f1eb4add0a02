//! `cargo xtask serve`: the workers on the software GPU, asked by clients that nobody here wrote, and loaded.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, cache, cargo, command, root, run as run_shown};
use crate::software_gpu::{self, SoftwareGpu};
use crate::{download, setup};

/// OpenAI's own client, and what drives a browser.
const CLIENT: &str = "openai==3.54.0";
const DRIVER: &str = "selenium==4.51.0";
const REQUESTS: &str = "workers/llm-worker/clients/openai_requests.py";
const PAGE: &str = "workers/llm-worker/clients/chat_page.py";
const MODEL: &str = "examples/tiny_llama/model";
/// How the load's last line begins if all is well.
const LOAD_OK: &str = "load: ok";
/// Until a worker is ready, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(clap::Args)]
pub struct Args {
    /// The architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// Use the page in Chromium too, and put pictures of it into this folder.
    #[arg(long, value_name = "FOLDER")]
    page: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

/// What a worker has to bear.
#[derive(Clone, Copy, clap::Args)]
pub struct Load {
    /// Streams at once.
    #[arg(long, default_value_t = 64)]
    pub streams: u64,
    /// How long streams join and leave.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
}

pub fn run(args: &Args) -> Result<()> {
    software_gpu::check(&args.arch)?;
    let selection = ["--package", "llm-worker", "--features", "rocm-emulator"];
    let page = args.page.as_deref().map(std::path::absolute).transpose()?;
    run_on(SoftwareGpu::of(&args.arch), &args.arch, &selection, args.load, page.as_deref())
}

/// As `run`, with the code objects of `archs` (comma-separated) built in; `selection` tells cargo of packages and features.
pub fn run_on(
    gpu: SoftwareGpu,
    archs: &str,
    selection: &[&str],
    bears: Load,
    page: Option<&Path>,
) -> Result<()> {
    setup::ensure(setup::SERVE)?;
    let packages = python(CLIENT)?;
    let mut build = cargo(&["build", "--quiet", "--bins", "--examples"]);
    let programs = process::built(build.args(selection).env("CANDLE_ROCM_ARCHS", archs))?;
    let program = |name: &str| -> Result<PathBuf> {
        let named = |program: &&serde_json::Value| program["target"]["name"] == name;
        let found = programs.iter().find(named).and_then(|program| program["executable"].as_str());
        found.map(PathBuf::from).with_context(|| format!("cargo built no {name}"))
    };
    let worker = Worker::start(&program("llm-worker-rocm")?, gpu)?;
    let mut requests = command("python3", &[REQUESTS]);
    let asked = counted(requests.arg(worker.url("")).env("PYTHONPATH", &packages), "openai_requests=")?;
    if let Some(folder) = page {
        setup::ensure(setup::PAGE)?;
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let mut browser = command("python3", &[PAGE, &worker.url("")]);
        counted(browser.arg(folder).env("PYTHONPATH", python(DRIVER)?), "chat_page=")?;
    }
    let jobs = worker.jobs()?;
    let mut load = command(program("load")?, &["--address", &worker.address]);
    load.args(["--streams", &bears.streams.to_string(), "--seconds", &bears.seconds.to_string()]);
    let loaded = process::tee(&mut load)?;
    ensure!(loaded.lines().last().is_some_and(|line| line.starts_with(LOAD_OK)), "the load was not borne");
    worker.end()?;
    println!("serve: ok llm_requests={}", asked + jobs);
    Ok(())
}

/// What a client counted in its last line.
fn counted(command: &mut Command, name: &str) -> Result<u64> {
    let said = process::tee(command)?;
    let last = said.lines().last().and_then(|line| line.strip_prefix(name));
    last.with_context(|| format!("the client did not end with {name}"))?.parse().context("the client's count")
}

/// The folder of a package of Python and what it needs.
fn python(package: &str) -> Result<PathBuf> {
    let place = cache().join(package.replace("==", "-"));
    let packages = place.join("packages");
    download::once(&place, package, || {
        let folder = packages.to_string_lossy().into_owned();
        run_shown(&mut command(
            "python3",
            &["-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--target", &folder, package],
        ))
        .with_context(|| format!("cannot fetch {package}: is there a network or a PyPI mirror?"))
    })?;
    Ok(packages)
}

/// A worker that is ready; killed if it is not ended.
struct Worker {
    child: Child,
    address: String,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    /// Of the tiny Llama. In f32, whose sums in another order change no greedy text.
    fn start(program: &Path, gpu: SoftwareGpu) -> Result<Self> {
        let file = cache().join("llm-worker.port");
        let _ = fs::remove_file(&file);
        fs::create_dir_all(cache()).with_context(|| format!("cannot create {}", cache().display()))?;
        let mut command = Command::new(program);
        command.arg("--model").arg(root().join(MODEL)).arg("--port-file").arg(&file);
        command.args(["--port", "0", "--dtype", "f32", "--cache-memory", "64MiB", "--log", "warn"]);
        // All clients of a load come from one address.
        command.args(["--streams-per-client", "0"]);
        gpu.choose_for(&mut command);
        eprintln!("+ {}", process::shown(&command));
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut worker = Self { child, address: String::new() };
        worker.until("ready", |worker| {
            if worker.address.is_empty() {
                let port = fs::read_to_string(&file).unwrap_or_default();
                worker.address = port
                    .trim()
                    .parse::<u16>()
                    .map_or_else(|_| String::new(), |port| format!("127.0.0.1:{port}"));
                return Ok(false);
            }
            Ok(worker.curl(&["--output", "/dev/null", "--write-out", "%{http_code}"], "/ready")? == "200")
        })?;
        Ok(worker)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What curl prints.
    fn curl(&self, arguments: &[&str], path: &str) -> Result<String> {
        let mut command = command("curl", &["--silent", "--no-buffer", "--max-time", "120"]);
        let output = command.args(arguments).arg(self.url(path)).stderr(Stdio::inherit()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits for what `is_so` says; an error if the worker ends before.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !is_so(self)? {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker ended before it was {what}: {status}");
            }
            ensure!(Instant::now() < end, "the worker is not {what} after {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Jobs by curl: one to its end, one cancelled. Gives back how many were as they should be.
    fn jobs(&self) -> Result<u64> {
        let models: serde_json::Value = serde_json::from_str(&self.curl(&[], "/v1/models")?)?;
        let model = &models["data"][0]["id"];
        let begin = |tokens: u64| -> Result<String> {
            let body = serde_json::json!({
                "hive_id": "xtask", "model": model, "prompt": "Once upon a time", "max_tokens": tokens,
                "temperature": 0.0, "stream": true,
            });
            let json = ["--header", "Content-Type: application/json", "--data", &body.to_string()];
            let answer = self.curl(&json, "/v1/jobs")?;
            let answer: serde_json::Value = serde_json::from_str(&answer).with_context(|| answer)?;
            Ok(answer["sse_url"].as_str().with_context(|| format!("no job: {answer}"))?.to_owned())
        };
        let whole = self.curl(&[], &begin(20)?)?;
        let told = |what: &str| whole.contains(&format!("\"type\":\"{what}\""));
        ensure!(["started", "token", "metrics", "end"].iter().all(|what| told(what)), "a job told: {whole}");
        ensure!(whole.trim_end().ends_with("data: [DONE]"), "a job ended with: {whole}");
        let stream = begin(400)?;
        let job = stream.trim_end_matches("/stream");
        self.curl(&["--request", "DELETE"], job)?;
        let cancelled = self.curl(&[], &stream)?;
        ensure!(cancelled.contains("\"stop_reason\":\"cancelled\""), "a cancelled job told: {cancelled}");
        Ok(2)
    }

    /// Asks it to end, as a service manager does; it must end well.
    fn end(mut self) -> Result<()> {
        let id = self.child.id().to_string();
        run_shown(&mut command("kill", &["-TERM", &id]))?;
        let end = Instant::now() + PATIENCE;
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < end, "the worker did not end after SIGTERM");
            thread::sleep(Duration::from_millis(100));
        };
        ensure!(status.success(), "the worker ended with {status}");
        Ok(())
    }
}
