//! A worker without a socket, whose model can be blocked or made to fail.
#![allow(dead_code)]
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use candle_core::Device;
use clap::Parser;
use sd_worker::arguments::{Arguments, DEFAULTS};
use sd_worker::callback::Callback;
use sd_worker::controlnets::ControlNetFolder;
use sd_worker::loras::LoraFolder;
use sd_worker::model::{LoadOptions, Model};
use sd_worker::models::{Api, ServedModels};
use sd_worker::picture::Picture;
use sd_worker::pipeline::{self, Generated, OnStep, Pipeline, Progress, Refiner, SharedRequests};
use sd_worker::queue::{ImageGenerator, Queue};
use sd_worker::routes;
use sd_worker::served::{ModelInfo, ServedModel};
use sd_worker::{Error, Result};
use serde_json::Value;
use tempfile::TempDir;
use worker_core::device::{DeviceKind, OpenDevice};
use worker_core::{Lifecycle, Metrics, ModelName};

use crate::shared::delete;
#[allow(unused_imports, reason = "not every test uses every item")]
pub use crate::shared::{Answer, Ask, Gate, MODEL, WORKER, get, json_request, read};
use crate::tiny_model::{self, Kind};

/// Default side of the images in pixels.
pub const SIDE: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq)]
pub enum Behavior {
    Open,
    /// Steps are blocked.
    Held,
    /// Steps run out of memory from the second one on; the device works.
    OutOfMemory,
    /// The pipeline panics in the second step.
    Panics,
    /// Steps that requests share run out of memory.
    OutOfMemoryTogether,
    /// The pipeline panics in steps that requests share.
    PanicsTogether,
    /// The device has failed.
    DeviceFailed,
}

impl Gate<Behavior> {
    pub fn hold(&self) {
        self.set(Behavior::Held);
    }

    pub fn open(&self) {
        self.set(Behavior::Open);
    }
}

struct Gated {
    pipeline: Pipeline,
    gate: Gate<Behavior>,
}

impl Gated {
    /// Waits while steps are blocked. Returns the error of a step.
    fn pass(gate: &Gate<Behavior>, &Progress { step, requests, .. }: &Progress) -> Option<Error> {
        let out_of_memory = || Some(Error::Device(candle_core::Error::Io(ErrorKind::OutOfMemory.into())));
        match gate.pass(Behavior::Held) {
            Behavior::DeviceFailed => Some(device("the device was pulled out")),
            Behavior::OutOfMemory if step > 1 => out_of_memory(),
            Behavior::OutOfMemoryTogether if requests > 1 => out_of_memory(),
            Behavior::Panics if step > 1 => panic!("a bug"),
            Behavior::PanicsTogether if requests > 1 => panic!("a bug"),
            _ => None,
        }
    }
}

/// Requests whose steps can be blocked or made to fail.
struct GatedRequests<'a> {
    requests: &'a mut dyn SharedRequests,
    gate: Gate<Behavior>,
    failed: Option<Error>,
}

impl SharedRequests for GatedRequests<'_> {
    fn waiting(&mut self) -> Option<Arc<pipeline::Request>> {
        self.requests.waiting()
    }

    fn join(&mut self, truncated: bool) -> Option<usize> {
        self.requests.join(truncated)
    }

    fn on_step(&mut self, number: usize, progress: &Progress) -> ControlFlow<()> {
        self.failed = Gated::pass(&self.gate, progress);
        match self.failed {
            Some(_) => ControlFlow::Break(()),
            None => self.requests.on_step(number, progress),
        }
    }

    fn finish(&mut self, number: usize, result: Result<Generated>) {
        self.requests.finish(number, self.failed.take().map_or(result, Err));
    }
}

fn device(message: &str) -> Error {
    Error::Device(candle_core::Error::Msg(message.to_owned()))
}

impl ImageGenerator for Gated {
    fn is_flagged(&self, picture: &Picture) -> Result<Option<bool>> {
        self.pipeline.is_flagged(picture)
    }

    fn generate(&mut self, request: &pipeline::Request, on_step: &mut OnStep) -> Result<Vec<Picture>> {
        let mut failed = None;
        let gate = self.gate.clone();
        let images = self.pipeline.generate(request, &mut |progress| {
            let Some(error) = Self::pass(&gate, progress) else { return on_step(progress) };
            failed = Some(error);
            ControlFlow::Break(())
        });
        failed.map_or(images, Err)
    }

    fn generate_shared(&mut self, requests: &mut dyn SharedRequests) -> Result<()> {
        let mut requests = GatedRequests { requests, gate: self.gate.clone(), failed: None };
        self.pipeline.generate_shared(&mut requests)
    }

    fn truncates(&self, request: &pipeline::Request) -> bool {
        self.pipeline.truncates(request)
    }

    fn check(&self) -> candle_core::Result<()> {
        match self.gate.pass(Behavior::Held) {
            Behavior::DeviceFailed => candle_core::bail!("the device is nowhere"),
            _ => self.pipeline.check(),
        }
    }
}

/// A worker and its parts.
pub struct Worker {
    pub router: Router,
    pub api: Api,
    pub served: Arc<ServedModel>,
    pub lifecycle: Lifecycle,
    pub gate: Gate<Behavior>,
    /// Folder of the model, if it is temporary.
    folder: Option<TempDir>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The generator thread may be blocked.
        self.gate.open();
    }
}

/// Creates a worker with default arguments.
pub fn worker() -> Worker {
    worker_of(Kind::Plain, &[], None)
}

/// Creates a worker with additional arguments.
pub fn with(more: &[&str]) -> Worker {
    worker_of(Kind::Plain, more, None)
}

/// Creates a worker with a tiny model.
pub fn worker_of(kind: Kind, more: &[&str], callback: Option<Callback>) -> Worker {
    let folder = tempfile::tempdir().unwrap();
    tiny_model::write(folder.path(), kind).unwrap();
    worker_in(folder, more, callback)
}

/// Creates a worker with the model of a temporary folder, which is deleted with it.
pub fn worker_in(folder: TempDir, more: &[&str], callback: Option<Callback>) -> Worker {
    let mut worker = serve(folder.path(), more, callback);
    worker.folder = Some(folder);
    worker
}

/// Creates a worker for the model in a folder.
pub fn serve(folder: &Path, more: &[&str], callback: Option<Callback>) -> Worker {
    let limit = DEFAULTS.iter().find(|(name, _)| *name == "body_limit").unwrap().1;
    let mut line = vec!["worker", "--model-path", "tiny", "--body-limit", limit];
    if !more.contains(&"--streams-per-client") {
        line.extend(["--streams-per-client", "0"]);
    }
    let arguments = Arguments::try_parse_from(line.iter().chain(more)).unwrap();
    let mut pipeline = tiny_model::load(folder, LoadOptions::default()).unwrap();
    if let Some(path) = &arguments.refiner {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let model = Model::load(path, &Device::Cpu, arguments.load_refiner(path), |_| ()).unwrap();
        pipeline = pipeline.with_refiner(Refiner { name, model }).unwrap();
    }
    pipeline.bounds = arguments.bounds();
    pipeline.batch_requests = arguments.batch_requests;
    let info = ModelInfo::of(
        &pipeline,
        LoraFolder(arguments.lora_dir.clone()),
        ControlNetFolder(arguments.controlnet_dir.clone()),
    );
    let gate = Gate::new(Behavior::Open);
    let generator = Box::new(Gated { pipeline, gate: gate.clone() });
    let (lifecycle, metrics) = (Lifecycle::new(), Metrics::new());
    let failing = lifecycle.clone();
    let queue = Queue::start(generator, arguments.queue(), move |why| failing.fail(why)).unwrap();
    let api = Api::new(lifecycle.clone());
    let device = OpenDevice { device: Device::Cpu, ordinal: None };
    let name = ModelName::new(MODEL, vec!["org/tiny".into()]);
    let served = ServedModel::new(queue, info, name, device, &metrics);
    let served = api.serve(ServedModels::one(served)).known(None).unwrap();
    lifecycle.ready();
    let worker = routes::Worker {
        id: WORKER.to_owned(),
        kind: DeviceKind::Cpu,
        callback,
        bounds: arguments.bounds(),
        preview_every: arguments.preview_every,
    };
    let router = routes::app(&api, metrics, worker).router(&arguments.server);
    Worker { router, api, served, lifecycle, gate, folder: None }
}

impl Answer {
    /// Returns names and data of the events. Panics unless exactly the last one is `complete` or `error`.
    pub fn events(&self) -> Vec<(String, Value)> {
        assert_eq!(self.status, 200, "{}", self.text);
        let blocks = self.text.split("\n\n").filter(|block| !block.trim().is_empty());
        let field = |block: &str, name: &str| {
            let found = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            found.unwrap_or_else(|| panic!("no {name}: {block}")).to_owned()
        };
        let events: Vec<(String, Value)> = blocks
            .map(|block| (field(block, "event"), serde_json::from_str(&field(block, "data")).unwrap()))
            .collect();
        let ends = events.iter().filter(|(name, _)| name == "complete" || name == "error").count();
        let last = events.last().map(|(name, _)| name.as_str());
        assert!(ends == 1 && matches!(last, Some("complete" | "error")), "{ends} ends, {last:?} is the last");
        events
    }
}

impl Ask for Worker {
    fn router(&self) -> &Router {
        &self.router
    }
}

impl Worker {
    /// Starts a job and returns its id and stream path.
    pub async fn begin(&self, body: &Value) -> (String, String) {
        self.post("/v1/jobs", body).await.job()
    }

    /// Runs a job and returns its events.
    pub async fn job(&self, body: &Value) -> Vec<(String, Value)> {
        let (_, sse_url) = self.begin(body).await;
        self.get(&sse_url).await.events()
    }

    /// Runs a job that must complete and returns its result.
    pub async fn complete(&self, body: &Value) -> Value {
        let (name, data) = self.job(body).await.pop().unwrap();
        assert_eq!(name, "complete", "{data}");
        data
    }

    pub async fn delete(&self, job_id: &str) -> Answer {
        self.read(delete(job_id)).await
    }

    /// Waits until `condition` is true.
    pub async fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        // Use the system clock, because tokio's clock may be paused and would auto-advance.
        let begin = Instant::now();
        while !condition(self) {
            assert!(begin.elapsed() < TIMEOUT, "not {what}: {:?}", self.served.queue.status());
            let pause = || std::thread::sleep(Duration::from_millis(1));
            tokio::task::spawn_blocking(pause).await.unwrap();
        }
    }

    /// Waits until the queue is empty and no request is open.
    pub async fn idle(&self) {
        let idle = |worker: &Self| {
            let status = worker.served.queue.status();
            status.running == 0 && status.waiting == 0 && worker.lifecycle.active_work() == 0
        };
        self.until("idle", idle).await;
    }
}

const BOUNDARY: &str = "between-the-parts";

/// A part of a form: name, optional file name, and content.
pub type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

/// Returns the body of a form.
pub fn form_body(parts: &[Part]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, bytes) in parts {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\""));
        body.extend(
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").bytes(),
        );
        body.extend_from_slice(bytes);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{BOUNDARY}--\r\n").bytes());
    body
}

/// Returns a request with a form body, which may be malformed.
pub fn form_request(body: Vec<u8>) -> Request<Body> {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    Request::post("/v1/images/edits").header("content-type", kind).body(Body::from(body)).unwrap()
}
