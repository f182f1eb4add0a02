//! A worker without a socket, whose model can be held and broken.
#![allow(dead_code)]
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use candle_core::Device;
use clap::Parser;
use sd_worker::arguments::{Arguments, DEFAULTS};
use sd_worker::callback::Callback;
use sd_worker::model::LoadOptions;
use sd_worker::picture::Picture;
use sd_worker::pipeline::{self, OnStep, Pipeline};
use sd_worker::queue::{ImageGenerator, Queue};
use sd_worker::routes;
use sd_worker::served::{Api, ModelInfo, Served};
use sd_worker::{Error, Result};
use serde_json::Value;
use tempfile::TempDir;
use worker_core::device::{DeviceKind, OpenDevice};
use worker_core::{Lifecycle, Metrics, ModelName};

use crate::shared::delete;
#[allow(unused_imports, reason = "not every test that has the fixture uses all")]
pub use crate::shared::{Answer, Ask, Gate, MODEL, WORKER, get, json_request, read};
use crate::tiny_model::{self, Kind};

/// The model's own side.
pub const SIDE: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    Open,
    /// Steps wait.
    Held,
    /// Memory is short from the second step on; the device is well.
    Short,
    /// The pipeline panics in the second step.
    Panics,
    /// The device is gone.
    Gone,
}

impl Gate<Way> {
    pub fn hold(&self) {
        self.set(Way::Held);
    }

    pub fn open(&self) {
        self.set(Way::Open);
    }
}

struct Gated {
    pipeline: Pipeline,
    gate: Gate<Way>,
}

fn device(message: &str) -> Error {
    Error::Device(candle_core::Error::Msg(message.to_owned()))
}

impl ImageGenerator for Gated {
    fn generate(&mut self, request: &pipeline::Request, on_step: &mut OnStep) -> Result<Vec<Picture>> {
        let mut failed = None;
        let gate = self.gate.clone();
        let painted = self.pipeline.generate(request, &mut |progress| {
            let error = match gate.pass(Way::Held) {
                Way::Gone => device("the device was pulled out"),
                Way::Short if progress.step > 1 => {
                    Error::Device(candle_core::Error::Io(ErrorKind::OutOfMemory.into()))
                }
                Way::Panics if progress.step > 1 => panic!("a bug"),
                _ => return on_step(progress),
            };
            failed = Some(error);
            ControlFlow::Break(())
        });
        failed.map_or(painted, Err)
    }

    fn truncates(&self, request: &pipeline::Request) -> bool {
        self.pipeline.truncates(request)
    }

    fn check(&self) -> candle_core::Result<()> {
        match self.gate.pass(Way::Held) {
            Way::Gone => candle_core::bail!("the device is nowhere"),
            _ => self.pipeline.check(),
        }
    }
}

/// A worker and its parts.
pub struct Worker {
    pub router: Router,
    pub api: Api,
    pub served: Arc<Served>,
    pub lifecycle: Lifecycle,
    pub gate: Gate<Way>,
    _folder: TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The generator's thread may be waiting.
        self.gate.open();
    }
}

/// A worker as it is by default.
pub fn worker() -> Worker {
    built(Kind::Plain, &[], None)
}

/// A worker with more of the command line.
pub fn with(more: &[&str]) -> Worker {
    built(Kind::Plain, more, None)
}

pub fn built(kind: Kind, more: &[&str], callback: Option<Callback>) -> Worker {
    let folder = tempfile::tempdir().unwrap();
    tiny_model::write(folder.path(), kind).unwrap();
    let limit = DEFAULTS.iter().find(|(name, _)| *name == "body_limit").unwrap().1;
    let mut line = vec!["worker", "--model-path", "tiny", "--body-limit", limit];
    if !more.contains(&"--streams-per-client") {
        line.extend(["--streams-per-client", "0"]);
    }
    let arguments = Arguments::try_parse_from(line.iter().chain(more)).unwrap();
    let mut pipeline = tiny_model::load(folder.path(), LoadOptions::default()).unwrap();
    pipeline.bounds = arguments.bounds();
    let info = ModelInfo::of(&pipeline);
    let gate = Gate::new(Way::Open);
    let generator = Box::new(Gated { pipeline, gate: gate.clone() });
    let (lifecycle, metrics) = (Lifecycle::new(), Metrics::new());
    let failing = lifecycle.clone();
    let queue = Queue::start(generator, arguments.queue(), move |why| failing.fail(why)).unwrap();
    let api = Api::new(lifecycle.clone());
    let device = OpenDevice { device: Device::Cpu, ordinal: None };
    let name = ModelName::new(MODEL, vec!["org/tiny".into()]);
    let served = Served::new(queue, info, name, device, &metrics);
    let served = api.serve(served).clone();
    lifecycle.ready();
    let worker = routes::Worker {
        id: WORKER.to_owned(),
        kind: DeviceKind::Cpu,
        callback,
        bounds: arguments.bounds(),
        preview_every: arguments.preview_every,
    };
    let router = routes::app(&api, metrics, worker).router(&arguments.server);
    Worker { router, api, served, lifecycle, gate, _folder: folder }
}

impl Answer {
    /// Names and data of the events; a last event must be the last, and only once.
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
    /// Begins a job; gives its id and where it is followed.
    pub async fn begin(&self, body: &Value) -> (String, String) {
        self.post("/v1/jobs", body).await.job()
    }

    /// All events of a job.
    pub async fn job(&self, body: &Value) -> Vec<(String, Value)> {
        let (_, sse_url) = self.begin(body).await;
        self.get(&sse_url).await.events()
    }

    /// What a job made.
    pub async fn made(&self, body: &Value) -> Value {
        let (name, data) = self.job(body).await.pop().unwrap();
        assert_eq!(name, "complete", "{data}");
        data
    }

    pub async fn delete(&self, job_id: &str) -> Answer {
        self.read(delete(job_id)).await
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        // By the system's clock: tokio's may be paused, and would run on while the queue's thread works.
        let begin = Instant::now();
        while !so(self) {
            assert!(begin.elapsed() < TIMEOUT, "not {what}: {:?}", self.served.queue.status());
            let pause = || std::thread::sleep(Duration::from_millis(1));
            tokio::task::spawn_blocking(pause).await.unwrap();
        }
    }

    /// Waits until the queue has nothing to do, and nothing is being answered.
    pub async fn idle(&self) {
        let idle = |worker: &Self| {
            let status = worker.served.queue.status();
            status.running == 0 && status.waiting == 0 && worker.lifecycle.active_work() == 0
        };
        self.until("idle", idle).await;
    }
}

const BOUNDARY: &str = "between-the-parts";

/// A part of a form: its name, the name of its file if it is one, its bytes.
pub type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

/// The body of a form.
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

/// A request with the body of a form, or of what was one.
pub fn form_request(body: Vec<u8>) -> Request<Body> {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    Request::post("/v1/images/edits").header("content-type", kind).body(Body::from(body)).unwrap()
}
