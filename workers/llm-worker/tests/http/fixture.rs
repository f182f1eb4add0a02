//! A worker without a socket, whose model can be held and broken.
use std::sync::{Arc, Condvar, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use candle_core::{Device, Result, Tensor};
use clap::Parser;
use llm_engine::engine::{Engine, Options};
use llm_engine::model::{LoadOptions, Loaded, load};
use llm_engine::step::{Capacity, Step, StepModel};
use llm_worker::api::Api;
use llm_worker::arguments::Arguments;
use llm_worker::routes;
use llm_worker::served::Served;
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt;
use worker_core::device::{DeviceKind, Opened};
use worker_core::{Lifecycle, Metrics};

use crate::tiny_llama;

/// What the tests call the model.
pub const MODEL: &str = "tiny";
pub const WORKER: &str = "worker-1";

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Open,
    Held,
    Broken,
}

/// The door before each step of the model.
#[derive(Clone)]
pub struct Gate(Arc<(Mutex<Way>, Condvar)>);

impl Gate {
    fn set(&self, way: Way) {
        *self.0.0.lock().unwrap() = way;
        self.0.1.notify_all();
    }

    /// Steps wait from now on.
    pub fn hold(&self) {
        self.set(Way::Held);
    }

    /// Steps go on.
    pub fn open(&self) {
        self.set(Way::Open);
    }

    /// Every step fails from now on.
    pub fn break_down(&self) {
        self.set(Way::Broken);
    }

    fn pass(&self) -> Result<()> {
        let way = self.0.1.wait_while(self.0.0.lock().unwrap(), |way| *way == Way::Held).unwrap();
        match *way {
            Way::Broken => candle_core::bail!("the device was pulled out"),
            _ => Ok(()),
        }
    }
}

struct Gated {
    model: Box<dyn StepModel>,
    gate: Gate,
}

impl StepModel for Gated {
    fn capacity(&self) -> Capacity {
        self.model.capacity()
    }

    fn step(&mut self, step: &Step) -> Result<Tensor> {
        self.gate.pass()?;
        self.model.step(step)
    }

    fn check(&mut self) -> Result<()> {
        self.gate.pass()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.model.copy_blocks(pairs)
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> Result<Tensor> {
        self.gate.pass()?;
        self.model.embed(prompts)
    }
}

/// A worker and its parts.
pub struct Worker {
    pub router: Router,
    pub served: Arc<Served>,
    pub lifecycle: Lifecycle,
    pub gate: Gate,
    _folder: TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The engine's thread may be waiting.
        self.gate.open();
    }
}

/// A worker as it is by default.
pub fn worker() -> Worker {
    built(true, Options::default(), &[])
}

/// A worker with or without a chat template, with options of the engine and more of the command line.
pub fn built(chat: bool, options: Options, more: &[&str]) -> Worker {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), chat);
    let limits = LoadOptions { cache_bytes: Some(4 << 20), ..LoadOptions::default() };
    let Loaded { model, text, .. } = load(folder.path(), &Device::Cpu, limits, &mut |_| ()).unwrap();
    let gate = Gate(Arc::new((Mutex::new(Way::Open), Condvar::new())));
    let model = Box::new(Gated { model, gate: gate.clone() });
    let engine = Engine::start(model, Arc::new(text), options.clone()).unwrap();
    let (lifecycle, metrics) = (Lifecycle::new(), Metrics::new());
    let api = Api::new(lifecycle.clone());
    let opened = Opened { device: Device::Cpu, ordinal: None };
    let served =
        Served::new(engine, MODEL.into(), vec!["org/tiny".into()], &options, opened, (&metrics, &lifecycle));
    let served = api.serve(served).clone();
    lifecycle.ready();
    let line = ["worker", "--model", "tiny"];
    let unlimited = ["--streams-per-client", "0"];
    let unlimited = unlimited.iter().filter(|_| !more.contains(&unlimited[0]));
    let arguments = Arguments::try_parse_from(line.iter().chain(unlimited).chain(more)).unwrap();
    let router = routes::app(&api, metrics, WORKER, DeviceKind::Cpu).router(&arguments.server);
    Worker { router, served, lifecycle, gate, _folder: folder }
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

    /// The data of each event.
    pub fn events(&self) -> Vec<String> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// The events as JSON; `[DONE]` must be the last and only once.
    pub fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text);
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.text);
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
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
        self.read(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.read(json_request(path, body.to_string().into_bytes())).await
    }

    /// Waits until the engine has nothing to do.
    pub async fn idle(&self) {
        let idle = async {
            loop {
                let status = self.served.engine.status();
                if status.running == 0 && status.waiting == 0 && status.blocks_used == 0 {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), idle).await;
        assert!(waited.is_ok(), "the engine keeps {:?}", self.served.engine.status());
    }
}

pub fn json_request(path: &str, body: Vec<u8>) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").body(Body::from(body)).unwrap()
}

pub async fn read(response: Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}
