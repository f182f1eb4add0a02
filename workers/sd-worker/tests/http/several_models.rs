//! A worker with several models, which are loaded on demand.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use candle_core::Device;
use clap::Parser;
use sd_worker::arguments::Arguments;
use sd_worker::model::{LoadOptions, Model, RequiredBytes};
use sd_worker::models::{Api, LoadModel, PipelinePool, ServedModels};
use sd_worker::picture::Picture;
use sd_worker::pipeline::Pipeline;
use sd_worker::queue::Queue;
use sd_worker::served::ModelInfo;
use sd_worker::{routes, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;
use worker_core::device::{self, DeviceKind};
use worker_core::progress::Progress;
use worker_core::{Lifecycle, LoadedModel, Metrics, ModelLocation};

use crate::fixture::{Ask, WORKER, worker_of};
use crate::images::picture;
use crate::tiny_model::{self, Kind};

struct Several {
    router: Router,
    api: Api,
}

impl Ask for Several {
    fn router(&self) -> &Router {
        &self.router
    }
}

impl Several {
    fn start(folder: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let folder = folder.to_str().unwrap_or_default();
        let line = ["worker", "--streams-per-client", "0", "--models-dir", folder];
        let arguments = Arguments::try_parse_from(line.iter().chain(more))?;
        let metrics = Metrics::new();
        let own = metrics.clone();
        Self::serve(&arguments, metrics, |progress| run::load(&arguments, DeviceKind::Cpu, &own, progress))
    }

    /// Serves models of a card with little memory.
    fn of(loader: LittleMemory, more: &[&str]) -> anyhow::Result<Self> {
        let line = ["worker", "--models-dir", "none"];
        let arguments = Arguments::try_parse_from(line.iter().chain(more))?;
        let models = LittleMemory::MODELS
            .map(|(name, ..)| ModelLocation { name: name.to_owned(), model: name.to_owned() });
        let pool = PipelinePool::new(&models, 5, Device::Cpu, Box::new(loader));
        let device = device::open(DeviceKind::Cpu, None)?;
        Self::serve(&arguments, Metrics::new(), |_| {
            let start = |generators| Queue::start_several(generators, arguments.queue(), |_: &str| {});
            Ok(ServedModels::several(pool, device, Default::default(), start)?)
        })
    }

    fn serve(
        arguments: &Arguments,
        metrics: Metrics,
        load: impl FnOnce(&Progress) -> anyhow::Result<ServedModels>,
    ) -> anyhow::Result<Self> {
        let lifecycle = Lifecycle::new();
        let api = Api::new(lifecycle.clone());
        api.serve(load(&Progress::new(&lifecycle))?);
        lifecycle.ready();
        let worker = routes::Worker {
            id: WORKER.to_owned(),
            kind: DeviceKind::Cpu,
            callback: None,
            bounds: arguments.bounds(),
            preview_every: 0,
        };
        let router = routes::app(&api, metrics, worker).router(&arguments.server);
        Ok(Self { router, api })
    }

    async fn picture(&self, model: &str) -> Picture {
        let answer = self.post("/v1/images/generations", &body(Some(model))).await;
        assert_eq!(answer.status, 200, "{model}: {}", answer.text);
        picture(&answer.json()["data"][0]["b64_json"])
    }

    /// Returns the states of the models, in the order of their names.
    async fn states(&self) -> Vec<String> {
        let models = self.get("/v1/models").await.json();
        let state = |model: &Value| model["status"]["value"].as_str().unwrap_or_default().to_owned();
        models["data"].as_array().unwrap().iter().map(state).collect()
    }
}

/// Loader for a card with 5 GiB of free memory, whatever is loaded.
struct LittleMemory {
    folder: TempDir,
    /// Is locked while a model is loaded.
    gate: Arc<Mutex<()>>,
    /// Memory that the last model left to others, in bytes.
    reserved: Arc<AtomicUsize>,
}

impl Default for LittleMemory {
    fn default() -> Self {
        Self { folder: folder(), gate: Arc::default(), reserved: Arc::default() }
    }
}

impl LittleMemory {
    const FREE: usize = 5 << 30;
    /// Names and sizes in GiB.
    const MODELS: [(&str, usize); 5] = [("a", 1), ("b", 2), ("close", 4), ("huge", 100), ("panics", 1)];
}

/// Jobs are accepted before their model is loaded, and end with the error of a model that cannot be.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_accepted_before_their_model_is_loaded() {
    let gate = Arc::new(Mutex::new(()));
    let worker = Several::of(LittleMemory { gate: gate.clone(), ..LittleMemory::default() }, &[]).unwrap();
    let job = |model: &str, steps: usize| json!({"model": model, "prompt": "x", "steps": steps, "seed": 3});
    let names = |events: &[(String, Value)]| events.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let closed = gate.lock().await;
    let (id, stream) = worker.post("/v1/jobs", &job("a", 1)).await.job();
    let (other, other_stream) = worker.post("/v1/jobs", &job("a", 1)).await.job();
    for id in [&id, &other] {
        let state = worker.get(&format!("/v1/jobs/{id}")).await.json();
        assert_eq!((&state["status"], &state["event"]), (&json!("running"), &json!("loading")), "{state}");
        assert_eq!(state["data"], json!({"model": "a"}));
    }
    // A cancelled job does not wait for the model.
    let delete = Request::delete(format!("/v1/jobs/{other}")).body(Body::empty()).unwrap();
    assert_eq!(worker.read(delete).await.status, 200);
    let events = worker.get(&other_stream).await.events();
    assert_eq!(names(&events), ["loading", "error"]);
    assert_eq!(events[1].1["code"], "cancelled", "{events:?}");
    drop(closed);
    let events = worker.get(&stream).await.events();
    assert_eq!(names(&events), ["loading", "queued", "progress", "complete"]);
    // The model is in memory now, and its limits are known.
    let (_, stream) = worker.post("/v1/jobs", &job("a", 1)).await.job();
    assert_eq!(names(&worker.get(&stream).await.events()), ["queued", "progress", "complete"]);
    let answer = worker.post("/v1/jobs", &job("a", 1000)).await;
    assert_eq!(answer.error().2.as_deref(), Some("steps"), "{}", answer.text);
    for (model, steps, code, part) in
        [("panics", 1, "load_failed", "a damaged file"), ("b", 1000, "invalid_value", "steps")]
    {
        let (_, stream) = worker.post("/v1/jobs", &job(model, steps)).await.job();
        let events = worker.get(&stream).await.events();
        assert_eq!(names(&events), ["loading", "error"], "{model}");
        assert_eq!(events[1].1["code"], code, "{events:?}");
        assert!(events[1].1["message"].as_str().unwrap().contains(part), "{events:?}");
    }
}

/// Jobs have their places in the queue before the tasks that load their models run.
#[tokio::test]
async fn no_more_jobs_are_accepted_than_may_wait() {
    let gate = Arc::new(Mutex::new(()));
    let loader = LittleMemory { gate: gate.clone(), ..LittleMemory::default() };
    let worker = Several::of(loader, &["--max-waiting", "1"]).unwrap();
    let _closed = gate.lock().await;
    let job = json!({"model": "a", "prompt": "x", "steps": 1, "seed": 3});
    let post = || worker.post("/v1/jobs", &job);
    let (first, second, third, fourth) = tokio::join!(post(), post(), post(), post());
    let statuses = [first, second, third, fourth].map(|answer| answer.status.as_u16());
    assert_eq!(statuses, [202, 202, 429, 429]);
}

impl LoadModel for LittleMemory {
    fn required_bytes(&self, location: &ModelLocation) -> anyhow::Result<RequiredBytes> {
        let found = Self::MODELS.into_iter().find(|(name, _)| *name == location.name);
        Ok(RequiredBytes::all(found.map_or(0, |(_, size)| size << 30)))
    }

    fn available_bytes(&self) -> anyhow::Result<Option<usize>> {
        Ok(Some(Self::FREE))
    }

    fn load(&self, location: &ModelLocation, reserved: usize) -> anyhow::Result<(Pipeline, ModelInfo)> {
        self.reserved.store(reserved, Relaxed);
        let _open = self.gate.blocking_lock();
        assert!(location.name != "panics", "a damaged file");
        let model =
            Model::load(&self.folder.path().join("plain"), &Device::Cpu, LoadOptions::default(), |_| ())?;
        let pipeline = Pipeline::new(model);
        let info = ModelInfo::of(&pipeline, Default::default(), Default::default());
        Ok((pipeline, info))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_that_do_not_fit_unload_no_other() {
    let loader = LittleMemory::default();
    let reserved = loader.reserved.clone();
    let worker = Several::of(loader, &[]).unwrap();
    // Each of the five models gets an equal part.
    worker.picture("a").await;
    assert_eq!(reserved.load(Relaxed), 4 << 30);
    worker.picture("b").await;
    assert_eq!(reserved.load(Relaxed), 15 << 28);
    let both = ["loaded", "loaded", "unloaded", "unloaded", "unloaded"];
    assert_eq!(worker.states().await, both);
    for (model, part) in [
        ("huge", "need 102400 MiB, but the device has 5120 MiB free and 3072 MiB in use"),
        ("panics", "a damaged file"),
    ] {
        let answer = worker.post("/v1/images/generations", &body(Some(model))).await;
        assert_eq!(answer.error(), (503, "load_failed".into(), None), "{}", answer.text);
        assert!(answer.text.contains(part), "{}", answer.text);
        assert_eq!(worker.states().await, both, "{model}");
    }
    // A model whose weights fit, but not its activations, unloads all others.
    worker.picture("close").await;
    assert_eq!(worker.states().await, ["unloaded", "unloaded", "loaded", "unloaded", "unloaded"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_load_no_model() {
    let folder = folder();
    let worker = Several::start(folder.path(), &[]).unwrap();
    let a1111 = |more: Value| {
        let mut body = json!({"prompt": "x", "override_settings": {"sd_model_checkpoint": "plain"}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (path, body, param) in [
        ("/v1/images/generations", json!({"model": "plain"}), "prompt"),
        ("/v1/images/generations", json!({"model": "plain", "prompt": "x", "n": 0}), "n"),
        ("/v1/images/generations", json!({"model": "plain", "prompt": "x", "size": "big"}), "size"),
        (
            "/v1/images/generations",
            json!({"model": "plain", "prompt": "x", "response_format": "url"}),
            "response_format",
        ),
        ("/v1/jobs", json!({"model": "plain", "prompt": "x", "callback": true}), "callback"),
        ("/v1/jobs", json!({"model": "plain", "prompt": "x", "guidance": -1}), "guidance"),
        ("/v1/jobs", json!({"model": "plain", "prompt": "x", "hires": {"scale": 0}}), "hires.scale"),
        ("/sdapi/v1/txt2img", a1111(json!({"init_images": ["x"]})), "init_images"),
        ("/sdapi/v1/txt2img", a1111(json!({"sampler_name": "none"})), "sampler_name"),
        ("/sdapi/v1/txt2img", a1111(json!({"batch_size": 0})), "n"),
        (
            "/sdapi/v1/options",
            json!({"sd_model_checkpoint": "plain", "CLIP_stop_at_last_layers": 0}),
            "CLIP_stop_at_last_layers",
        ),
    ] {
        let answer = worker.post(path, &body).await;
        let error = answer.error();
        assert_eq!((error.0, error.2.as_deref()), (400, Some(param)), "{path} {body}: {}", answer.text);
    }
    assert_eq!(worker.states().await, ["unloaded"; 3]);
    // Values out of the range of the model do not change the setting.
    let options = json!({"sd_model_checkpoint": "plain", "CLIP_stop_at_last_layers": 99});
    assert_eq!(worker.post("/sdapi/v1/options", &options).await.status, 400);
    let options = json!({"sd_model_checkpoint": "xl"});
    assert_eq!(worker.post("/sdapi/v1/options", &options).await.status, 200);
    assert_eq!(worker.get("/sdapi/v1/options").await.json()["sd_model_checkpoint"], "xl");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_name_use_the_only_or_a_loaded_model() {
    let folder = folder();
    let worker = Several::start(folder.path(), &[]).unwrap();
    worker.picture("xl").await;
    assert_eq!(worker.get("/sdapi/v1/options").await.json()["sd_model_checkpoint"], "xl");
    std::fs::remove_dir_all(folder.path().join("xl")).unwrap();
    std::fs::remove_file(folder.path().join("broken.safetensors")).unwrap();
    let worker = Several::start(folder.path(), &[]).unwrap();
    let mut body = body(None);
    body.as_object_mut().unwrap().remove("model");
    let answer = worker.post("/v1/images/generations", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    body["model"] = "other".into();
    assert_eq!(worker.post("/v1/images/generations", &body).await.status, 404);
}

fn body(model: Option<&str>) -> Value {
    json!({"model": model, "prompt": "a red circle", "steps": 2, "seed": 3, "size": "32x32"})
}

/// Returns a folder with two models, and a file that is none.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, kind) in [("plain", Kind::Plain), ("xl", Kind::Xl)] {
        tiny_model::write(&folder.path().join(name), kind).unwrap();
    }
    std::fs::write(folder.path().join("broken.safetensors"), [255; 40]).unwrap();
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_loaded_when_they_are_requested() {
    let folder = folder();
    let worker = Several::start(folder.path(), &[]).unwrap();
    assert_eq!(worker.api.served().unwrap().names(), ["broken", "plain", "xl"]);
    assert_eq!(worker.states().await, ["unloaded"; 3]);
    let mut pictures = Vec::new();
    for kind in [Kind::Plain, Kind::Xl] {
        let alone = worker_of(kind, &[], None);
        let mut body = body(None);
        body.as_object_mut().unwrap().remove("model");
        let answer = alone.post("/v1/images/generations", &body).await;
        pictures.push(picture(&answer.json()["data"][0]["b64_json"]));
    }
    for _ in 0..2 {
        assert!(worker.picture("plain").await == pictures[0]);
        assert_eq!(worker.states().await, ["unloaded", "loaded", "unloaded"]);
        assert!(worker.picture("xl").await == pictures[1]);
        assert_eq!(worker.states().await, ["unloaded", "unloaded", "loaded"]);
    }
    // A model that cannot be loaded leaves the others as they are.
    for _ in 0..2 {
        let answer = worker.post("/v1/images/generations", &body(Some("broken"))).await;
        assert_eq!(answer.error(), (503, "load_failed".into(), None), "{}", answer.text);
        assert!(answer.text.contains("broken.safetensors: not a safetensors file"), "{}", answer.text);
    }
    assert_eq!(worker.states().await, ["unloaded", "unloaded", "loaded"]);
    for (model, status, code) in [(Some("other"), 404, "model_not_found"), (None, 400, "invalid_request")] {
        for path in ["/v1/images/generations", "/v1/jobs"] {
            let mut body = body(model);
            if path == "/v1/jobs" {
                body.as_object_mut().unwrap().remove("size");
            }
            let answer = worker.post(path, &body).await;
            let error = answer.error();
            assert_eq!((error.0, error.2.as_deref()), (status, Some("model")), "{path}: {}", answer.text);
            assert!(status != 404 || error.1 == code, "{path}: {}", answer.text);
            assert!(answer.text.contains("broken, plain, xl"), "{path}: {}", answer.text);
        }
    }
    let model = worker.get("/v1/models/xl").await.json();
    assert_eq!((&model["version"], &model["status"]["value"]), (&json!("other"), &json!("loaded")));
    let metrics = worker.get("/metrics").await.text;
    assert!(metrics.contains("sd_pictures_total{model=\"all\"} 4"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a1111_choose_the_model() {
    let folder = folder();
    let worker = Several::start(folder.path(), &["--models-max", "2"]).unwrap();
    let listed = worker.get("/sdapi/v1/sd-models").await.json();
    let titles: Vec<&str> =
        listed.as_array().unwrap().iter().filter_map(|model| model["title"].as_str()).collect();
    assert_eq!(titles, ["broken", "plain", "xl"]);
    assert_eq!(worker.get("/sdapi/v1/options").await.json()["sd_model_checkpoint"], "broken");
    let choose = |name: &str| json!({"sd_model_checkpoint": name});
    let answer = worker.post("/sdapi/v1/options", &choose("broken")).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(worker.post("/sdapi/v1/options", &choose("other")).await.status, 404);
    let answer = worker.post("/sdapi/v1/options", &choose("plain")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(worker.get("/sdapi/v1/options").await.json()["sd_model_checkpoint"], "plain");
    assert_eq!(worker.states().await, ["unloaded", "loaded", "unloaded"]);
    let expected = [worker.picture("plain").await, worker.picture("xl").await];
    // Both stay loaded.
    assert_eq!(worker.states().await, ["unloaded", "loaded", "loaded"]);
    let plain = json!({"prompt": "a red circle", "steps": 2, "seed": 3, "width": 32, "height": 32, "sampler_name": "DDIM"});
    let mut names = Vec::new();
    for own in [None, Some("xl"), None] {
        let mut body = plain.clone();
        if let Some(own) = own {
            body["override_settings"] = choose(own);
        }
        let answer = worker.post("/sdapi/v1/txt2img", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let info: Value = serde_json::from_str(answer.json()["info"].as_str().unwrap()).unwrap();
        let text = info["infotexts"][0].as_str().unwrap().to_owned();
        names.push(text.contains("Model: xl"));
    }
    assert_eq!(names, [false, true, false]);
    assert!(expected[0] != expected[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_more_models_than_fit_all_end() {
    let folder = folder();
    let worker = Several::start(folder.path(), &[]).unwrap();
    let expected = [worker.picture("plain").await, worker.picture("xl").await];
    let [plain, xl] = ["plain", "xl"];
    let pictures = tokio::join!(
        worker.picture(plain),
        worker.picture(xl),
        worker.picture(xl),
        worker.picture(plain),
        worker.picture(xl),
    );
    assert!(pictures.0 == expected[0] && pictures.3 == expected[0]);
    assert!([pictures.1, pictures.2, pictures.4].iter().all(|picture| *picture == expected[1]));
    assert!(worker.api.served().unwrap().stop_within(std::time::Duration::from_secs(60)));
    let answer = worker.post("/v1/images/generations", &body(Some("xl"))).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
}

#[test]
fn arguments_for_one_model_exclude_others() {
    let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
    for wrong in [
        "worker",
        "worker --models-dir a --model-path b",
        "worker --models-dir a --t5xxl b",
        "worker --models a",
        "worker --models-dir a --models-max 0",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    let arguments = parse("worker --models a=b,c=d=e --models-max 3").unwrap();
    let models = arguments.models_on_demand().unwrap();
    let names: Vec<(&str, &str)> =
        models.iter().map(|model| (model.name.as_str(), model.model.as_str())).collect();
    assert_eq!(names, [("a", "b"), ("c", "d=e")]);
    let twice = parse("worker --models a=b,a=c").unwrap().models_on_demand().unwrap_err().to_string();
    assert!(twice.contains("two models are named \"a\": b and c"), "{twice}");
}
