//! A worker without a socket, whose model can be held and broken.
#![allow(dead_code)]
use std::ops::ControlFlow;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use candle_core::Device;
use clap::Parser;
use sd_worker::arguments::{Arguments, DEFAULTS};
use sd_worker::callback::Callback;
use sd_worker::model::LoadOptions;
use sd_worker::picture::Picture;
use sd_worker::pipeline::{self, OnStep, Pipeline};
use sd_worker::queue::{Painter, Queue};
use sd_worker::routes;
use sd_worker::served::{About, Api, Served};
use sd_worker::{Error, Result};
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt;
use worker_core::device::{DeviceKind, Opened};
use worker_core::{Lifecycle, Metrics};

use crate::tiny_model::{self, Kind};

/// What the tests call the model.
pub const MODEL: &str = "tiny";
pub const WORKER: &str = "worker-1";
/// The model's own side.
pub const SIDE: usize = 32;
const PATIENCE: Duration = Duration::from_secs(120);

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

/// The door behind each step of the model.
#[derive(Clone)]
pub struct Gate(Arc<(Mutex<Way>, Condvar)>, Arc<AtomicUsize>);

impl Gate {
    pub fn set(&self, way: Way) {
        *self.0.0.lock().unwrap() = way;
        self.0.1.notify_all();
    }

    pub fn hold(&self) {
        self.set(Way::Held);
    }

    pub fn open(&self) {
        self.set(Way::Open);
    }

    /// Whether a step waits.
    pub fn is_holding(&self) -> bool {
        self.1.load(SeqCst) > 0
    }

    fn pass(&self) -> Way {
        let way = self.0.0.lock().unwrap();
        self.1.fetch_add(1, SeqCst);
        let way = *self.0.1.wait_while(way, |way| *way == Way::Held).unwrap();
        self.1.fetch_sub(1, SeqCst);
        way
    }
}

struct Gated {
    pipeline: Pipeline,
    gate: Gate,
}

fn device(message: &str) -> Error {
    Error::Device(candle_core::Error::Msg(message.to_owned()))
}

impl Painter for Gated {
    fn paint(&mut self, request: &pipeline::Request, on_step: &mut OnStep) -> Result<Vec<Picture>> {
        let mut failed = None;
        let gate = self.gate.clone();
        let painted = self.pipeline.paint(request, &mut |progress| {
            let error = match gate.pass() {
                Way::Gone => device("the device was pulled out"),
                Way::Short if progress.step > 1 => device("DriverError(CUDA_ERROR_OUT_OF_MEMORY)"),
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
        match self.gate.pass() {
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
    pub gate: Gate,
    _folder: TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The painter's thread may be waiting.
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
    let about = About::of(&pipeline);
    let gate = Gate(Arc::new((Mutex::new(Way::Open), Condvar::new())), Arc::default());
    let painter = Box::new(Gated { pipeline, gate: gate.clone() });
    let (lifecycle, metrics) = (Lifecycle::new(), Metrics::new());
    let failing = lifecycle.clone();
    let queue = Queue::start(painter, arguments.queue(), move |why| failing.lost(why)).unwrap();
    let api = Api::new(lifecycle.clone());
    let opened = Opened { device: Device::Cpu, ordinal: None };
    let served = Served::new(queue, about, MODEL.into(), vec!["org/tiny".into()], opened, &metrics);
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

/// An answer that was read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

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

    /// The error that it must be: status, code and param.
    pub fn error(&self) -> (u16, String, Option<String>) {
        let body = self.json();
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        assert!(error["type"].is_string() && error.get("param").is_some(), "{body}");
        let code = error["code"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
        (self.status.as_u16(), code, error["param"].as_str().map(str::to_owned))
    }
}

impl Worker {
    pub async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn read(&self, request: Request<Body>) -> Answer {
        read(self.send(request).await).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.read(get(path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.read(json_request(path, body.to_string().into_bytes())).await
    }

    /// Begins a job; gives its id and where it is followed.
    pub async fn begin(&self, body: &Value) -> (String, String) {
        let answer = self.post("/v1/jobs", body).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        let answer = answer.json();
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        (text("job_id"), text("sse_url"))
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
        self.read(Request::delete(format!("/v1/jobs/{job_id}")).body(Body::empty()).unwrap()).await
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        // By the system's clock: tokio's may be paused, and would run on while the queue's thread works.
        let begin = Instant::now();
        while !so(self) {
            assert!(begin.elapsed() < PATIENCE, "not {what}: {:?}", self.served.queue.status());
            let pause = || std::thread::sleep(Duration::from_millis(1));
            tokio::task::spawn_blocking(pause).await.unwrap();
        }
    }

    /// Waits until the queue has nothing to do, and nothing is being answered.
    pub async fn idle(&self) {
        let idle = |worker: &Self| {
            let status = worker.served.queue.status();
            status.running == 0 && status.waiting == 0 && worker.lifecycle.working() == 0
        };
        self.until("idle", idle).await;
    }
}

pub fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

pub fn json_request(path: &str, body: Vec<u8>) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").body(Body::from(body)).unwrap()
}

pub async fn read(response: Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
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
