//! A worker with several models, which are loaded on demand.
use std::os::unix::fs::symlink;
use std::path::Path;

use axum::Router;
use clap::Parser;
use llm_worker::arguments::Arguments;
use llm_worker::models::Api;
use llm_worker::{routes, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use worker_core::device::DeviceKind;
use worker_core::progress::Progress;
use worker_core::{Lifecycle, Metrics};
#[cfg(feature = "rocm-emulator")]
use worker_core::{LoadedModel, device::vram_bytes};

use crate::adapters::Folders;
use crate::embeddings;
use crate::fixture::{Ask, WORKER, worker_at};
use crate::tiny_llama;

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
    fn start(flags: &[&str]) -> anyhow::Result<Self> {
        Self::start_on(DeviceKind::Cpu, flags)
    }

    fn start_on(kind: DeviceKind, flags: &[&str]) -> anyhow::Result<Self> {
        let line = ["worker", "--streams-per-client", "0", "--cache-memory", "1MiB"];
        let arguments = Arguments::try_parse_from(line.iter().chain(flags))?;
        let (lifecycle, metrics) = (Lifecycle::new(), Metrics::new());
        let api = Api::new(lifecycle.clone());
        api.serve(run::load(&arguments, kind, &metrics, &Progress::new(&lifecycle))?);
        lifecycle.ready();
        let router = routes::app(&api, metrics, WORKER, kind).router(&arguments.server);
        Ok(Self { router, api })
    }

    async fn text(&self, model: &str, prompt: &str) -> String {
        let answer = self.post("/v1/completions", &completion(model, prompt)).await;
        assert_eq!(answer.status, 200, "{model}: {}", answer.text);
        assert_eq!(answer.json()["model"], model);
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Returns the states of the models by name.
    async fn states(&self) -> Vec<(String, String)> {
        let models = self.get("/v1/models").await.json();
        let state = |model: &Value| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&model["id"]), text(&model["status"]["value"]))
        };
        models["data"].as_array().unwrap().iter().map(state).collect()
    }
}

fn completion(model: &str, prompt: &str) -> Value {
    json!({"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true})
}

/// Returns a folder with two generators, an encoder, and a model without weights.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, chat) in [("chat", true), ("plain", false)] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        tiny_llama::write(&folder.path().join(name), chat);
    }
    symlink(embeddings::data("bert").canonicalize().unwrap(), folder.path().join("bert")).unwrap();
    std::fs::create_dir(folder.path().join("broken")).unwrap();
    std::fs::write(folder.path().join("broken/config.json"), "{}").unwrap();
    folder
}

fn flag(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn models_of_a_folder_are_loaded_when_they_are_requested() {
    let folder = folder();
    let worker = Several::start(&["--models-dir", &flag(folder.path())]).unwrap();
    let states = |expected: [&str; 4]| {
        let names = ["bert", "broken", "chat", "plain"].into_iter().zip(expected);
        names.map(|(name, state)| (name.to_owned(), state.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(worker.states().await, states(["unloaded"; 4]));
    let alone = worker_at(&folder.path().join("chat"));
    let expected = alone.post("/v1/completions", &completion("tiny", "Hello")).await.json();
    for _ in 0..2 {
        assert_eq!(worker.text("chat", "Hello").await, expected["choices"][0]["text"]);
        assert_eq!(worker.states().await, states(["unloaded", "unloaded", "loaded", "unloaded"]));
        let answer = worker.post("/v1/embeddings", &json!({"model": "bert", "input": "Hello"})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json()["model"], "bert");
        assert_eq!(worker.states().await, states(["loaded", "unloaded", "unloaded", "unloaded"]));
    }
    // A task that the model lacks.
    let answer = worker.post("/v1/completions", &completion("bert", "Hello")).await;
    assert_eq!(answer.error().1, "unsupported_task");
    // A model that cannot be loaded leaves the others as they are.
    for _ in 0..2 {
        let answer = worker.post("/v1/completions", &completion("broken", "Hello")).await;
        assert_eq!(answer.error(), (503, "load_failed".into(), None), "{}", answer.text);
        assert!(answer.text.contains("cannot load the model \\\"broken\\\""), "{}", answer.text);
    }
    assert_eq!(worker.text("chat", "Hello").await, expected["choices"][0]["text"]);
    let metrics = worker.get("/metrics").await.text;
    for line in ["llm_model_loaded{model=\"chat\"} 1", "llm_model_loaded{model=\"bert\"} 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert_eq!(metrics.matches("# TYPE llm_model_loaded gauge").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_more_models_than_fit_all_end() {
    let folder = folder();
    let [chat, plain] = ["chat", "plain"].map(|name| format!("{name}={}", flag(&folder.path().join(name))));
    let bert = format!("bert={}", flag(&embeddings::data("bert")));
    for most in ["1", "2"] {
        let flags = ["--models", &chat, &plain, "--models", &bert, "--models-max", most];
        let worker = std::sync::Arc::new(Several::start(&flags).unwrap());
        let expected = worker.text("chat", "Hi").await;
        let requests = (0..24).map(|index| {
            let worker = worker.clone();
            tokio::spawn(async move {
                match index % 3 {
                    0 => Some(worker.text("chat", "Hi").await),
                    1 => Some(worker.text("plain", "Hi").await),
                    _ => {
                        let body = json!({"model": "bert", "input": "Hi"});
                        assert_eq!(worker.post("/v1/embeddings", &body).await.status, 200);
                        None
                    }
                }
            })
        });
        let requests: Vec<_> = requests.collect();
        for request in requests {
            // Both generators have the same weights.
            let text = request.await.unwrap();
            assert!(text.is_none_or(|text| text == expected));
        }
        let loaded = worker.states().await.into_iter().filter(|(_, state)| state == "loaded").count();
        assert!(loaded <= most.parse().unwrap(), "{loaded}");
        assert_eq!(worker.api.served().unwrap().loaded().count(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_must_name_one_of_the_models() {
    let folder = folder();
    let flags = ["--models-dir", &flag(folder.path()), "--allow-runtime-lora-updating"];
    let worker = Several::start(&flags).unwrap();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "Hi"})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 3})),
        ("/v1/messages/count_tokens", json!({"messages": messages})),
        ("/v1/responses", json!({"input": "Hi"})),
        ("/v1/embeddings", json!({"input": "Hi"})),
        ("/v1/rerank", json!({"query": "Hi", "documents": ["Hi"]})),
        ("/v1/score", json!({"text_1": "Hi", "text_2": "Hi"})),
        ("/tokenize", json!({"prompt": "Hi"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/apply-template", json!({"messages": messages})),
        ("/v1/load_lora_adapter", json!({"lora_name": "a", "lora_path": "/a"})),
    ] {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains("several models: bert, broken, chat, plain"), "{path}: {}", answer.text);
        if path == "/v1/load_lora_adapter" {
            continue;
        }
        let mut body = body;
        body["model"] = json!("unknown");
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text);
        assert!(answer.text.contains("serves bert, broken, chat, plain"), "{path}: {}", answer.text);
    }
    assert_eq!(worker.get("/props").await.status, 400);
    assert_eq!(worker.get("/props?model=unknown").await.status, 404);
    assert_eq!(worker.get("/props?model=chat").await.json()["model_alias"], "chat");
    assert_eq!(worker.get("/v1/models/unknown").await.status, 404);
    assert_eq!(worker.get("/v1/models/plain").await.json()["status"]["value"], "unloaded");
    assert_eq!(worker.get("/ready").await.status, 200);
}

#[test]
fn contradictory_flags_are_refused() {
    let folder = folder();
    let path = flag(folder.path());
    for (flags, words) in [
        (&["--models-dir", &path, "--model", "m"][..], "cannot be used with"),
        (
            &["--models", "a=b", "--served-model-name", "m"],
            "each model needs other names; set it in the model's section",
        ),
        (
            &["--models", "a=b", "--chat-template", "chatml"],
            "--chat-template cannot be used for several models",
        ),
        (
            &["--models", "a=b", "--mmproj", "x"],
            "an encoder fits one model, and is found in the folder of its file",
        ),
        (&["--models", "a=b", "--kv-events", "tcp://*:1"], "each needs an endpoint"),
        (&["--models", "a=b", "--any-model-name"], "requests choose one by its name"),
        (
            &["--models", "a=b", "--speculative-config", "{\"model\": \"x\"}"],
            "not all models have the same draft model",
        ),
        (
            &["--models", "a=b", "--speculative-config", "{\"method\": \"mtp\"}"],
            "not all models have the same draft model or a head",
        ),
        (&["--models-dir", &path, "--lora-modules", "a=b"], "must be one of bert, broken, chat, plain"),
        (&["--models", "a"], "must be NAME=MODEL"),
        (&[], "required"),
        (&["--models-dir", "/missing"], "cannot read the folder /missing"),
        (&["--models-dir", &path, "--models", "chat=/x"], "two models are named \"chat\": /x and "),
    ] {
        let error = format!("{:#}", Several::start(flags).err().unwrap());
        assert!(error.contains(words), "{flags:?}: {error}");
    }
    let preset = folder.path().join("presets.ini");
    for (text, words) in [
        ("[none]\ncontext = 9", "a section [none], but there are only the models bert, broken, chat, plain"),
        ("[chat]\nport = 9", "settings of the model \"chat\": \"port\" is not a setting of a model"),
        ("[chat]\nmodel = /x", "two models are named \"chat\""),
        ("[chat]\nserved-model-name = plain", "two models or adapters are named \"plain\"; rename one"),
        ("[chat]\nlora-modules = plain=/x", "two models or adapters are named \"plain\""),
        (
            "[chat]\nlora-modules = {\"name\": \"one\", \"path\": \"/x\", \"base_model_name\": \"plain\"}",
            "the adapter \"one\" of lora-modules in [chat] has the base model \"plain\", but the section is that of chat",
        ),
    ] {
        std::fs::write(&preset, text).unwrap();
        let flags = ["--models-dir", &path, "--models-preset", &flag(&preset)];
        let error = format!("{:#}", Several::start(&flags).err().unwrap());
        assert!(error.contains(words), "{text}: {error}");
    }
}

/// Returns the flag of an adapter for a model.
fn module(name: &str, adapters: &Folders, base: &str) -> String {
    json!({"name": name, "path": adapters.path(name), "base_model_name": base}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_are_served_with_their_models() {
    let (folder, adapters) = (folder(), Folders::write());
    let [one, two] = [("one", "chat"), ("two", "plain")].map(|(name, base)| module(name, &adapters, base));
    let flags = ["--models-dir", &flag(folder.path()), "--lora-modules", &one, &two];
    let worker = Several::start(&[&flags[..], &["--allow-runtime-lora-updating"]].concat()).unwrap();
    let state = async |name: &str| {
        let states = worker.states().await;
        states.into_iter().find(|(known, _)| known == name).map(|(_, state)| state)
    };
    let names: Vec<_> = worker.states().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["bert", "broken", "chat", "one", "plain", "two"]);
    let model = worker.get("/v1/models/two").await.json();
    assert_eq!((&model["parent"], &model["root"]), (&json!("plain"), &json!(adapters.path("two"))));
    let expected = async |name: &str| {
        let merged = worker_at(&adapters.merged(name));
        let text = merged.post("/v1/completions", &completion("tiny", "Hello")).await.json();
        text["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let [first, second, third] = [expected("one").await, expected("two").await, expected("three").await];
    let plain = worker.text("plain", "Hello").await;
    assert_eq!(
        (state("two").await.unwrap(), state("one").await.unwrap()),
        ("loaded".into(), "unloaded".into())
    );
    // Both models are loaded in turn, and keep their adapters.
    for _ in 0..2 {
        assert_eq!(worker.text("one", "Hello").await, first);
        assert_eq!(
            (state("chat").await.unwrap(), state("plain").await.unwrap()),
            ("loaded".into(), "unloaded".into())
        );
        assert_eq!(worker.text("two", "Hello").await, second);
        assert_eq!(state("chat").await.unwrap(), "unloaded");
    }
    assert_eq!(worker.text("plain", "Hello").await, plain);

    let load = async |name: &str, base: &str| {
        let path = adapters.path("three");
        let body = json!({"lora_name": name, "lora_path": path, "base_model_name": base});
        worker.post("/v1/load_lora_adapter", &body).await
    };
    let unload = async |name: &str| worker.post("/v1/unload_lora_adapter", &json!({"lora_name": name})).await;
    for (name, base, param) in [
        ("three", "none", "base_model_name"),
        ("three", "one", "base_model_name"),
        ("one", "plain", "lora_name"),
    ] {
        assert_eq!(load(name, base).await.error().2.as_deref(), Some(param), "{name} {base}");
    }
    assert_eq!(load("three", "chat").await.status, 200);
    assert_eq!(worker.get("/v1/models/three").await.json()["parent"], "chat");
    assert_eq!(worker.text("two", "Hello").await, second);
    assert_eq!(worker.text("three", "Hello").await, third);
    assert_eq!(load("two", "chat").await.error().0, 400);
    assert_eq!(unload("four").await.error(), (404, "model_not_found".into(), Some("lora_name".into())));
    assert_eq!(unload("plain").await.error().0, 404);
    assert_eq!(unload("two").await.status, 200);
    assert_eq!(worker.post("/v1/completions", &completion("two", "Hello")).await.status, 404);
    assert_eq!(load("two", "chat").await.status, 200);
    assert_eq!(worker.text("two", "Hello").await, third);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_can_be_unloaded_before_its_model_is_loaded() {
    let (folder, adapters) = (folder(), Folders::write());
    let flags = ["--models-dir", &flag(folder.path()), "--lora-modules", &module("one", &adapters, "chat")];
    let worker = Several::start(&[&flags[..], &["--allow-runtime-lora-updating"]].concat()).unwrap();
    let answer = worker.post("/v1/unload_lora_adapter", &json!({"lora_name": "one"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let names: Vec<_> = worker.states().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["bert", "broken", "chat", "plain"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_updates_of_adapters_load_no_model() {
    let (folder, adapters) = (folder(), Folders::write());
    let flags = ["--models-dir", &flag(folder.path()), "--lora-modules", &module("one", &adapters, "chat")];
    let worker = Several::start(&flags).unwrap();
    let three =
        json!({"lora_name": "three", "lora_path": adapters.path("three"), "base_model_name": "plain"});
    for (path, body) in
        [("/v1/load_lora_adapter", three), ("/v1/unload_lora_adapter", json!({"lora_name": "one"}))]
    {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.error(), (403, "adapter_updates_disabled".into(), None), "{path}");
    }
    let states = worker.states().await;
    assert!(states.iter().all(|(_, state)| state == "unloaded"), "{states:?}");
}

/// Tests that observe the memory of the GPU run one at a time.
#[cfg(feature = "rocm-emulator")]
static GPU: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Restores the memory reserve of a GPU when it is dropped, also after a failed assertion.
#[cfg(feature = "rocm-emulator")]
struct RestoreReserve(candle_core::RocmDevice, usize);

#[cfg(feature = "rocm-emulator")]
impl Drop for RestoreReserve {
    fn drop(&mut self) {
        self.0.set_memory_reserve(self.1);
    }
}

/// An adapter that no longer fits leaves its model and the other adapters usable.
#[cfg(feature = "rocm-emulator")]
#[tokio::test(flavor = "multi_thread")]
async fn requests_for_an_adapter_that_does_not_fit_fail_alone() {
    let _gpu = GPU.lock().await;
    candle_core::rocm::rocm_loader::select("emulator:gfx1100").unwrap();
    let (folder, adapters) = (folder(), Folders::write());
    adapters.write_empty("large", 1 << 17);
    let modules = ["one", "large"].map(|name| module(name, &adapters, "chat"));
    let flags = ["--models-dir", &flag(folder.path()), "--max-lora-rank", "131072", "--lora-modules"];
    let worker =
        Several::start_on(DeviceKind::Rocm, &[&flags[..], &modules.each_ref().map(|m| &m[..])].concat());
    let worker = worker.unwrap();
    let expected = [worker.text("chat", "Hello").await, worker.text("one", "Hello").await];
    worker.text("plain", "Hello").await;
    let device = worker.api.served().unwrap().device().device.clone();
    let candle_core::Device::Rocm(gpu) = &device else { panic!("{device:?}") };
    let restored = RestoreReserve(gpu.clone(), gpu.memory_reserve());
    // The other model takes as much memory as that of the adapters.
    gpu.set_memory_reserve(gpu.memory_info().unwrap().0 - (4 << 20));
    for _ in 0..2 {
        let answer = worker.post("/v1/completions", &completion("large", "Hello")).await;
        assert_eq!(answer.error(), (503, "load_failed".into(), None), "{}", answer.text);
        for part in [&format!("{} of 32 MiB", adapters.path("large").display()), "smaller --cache-memory"] {
            assert!(answer.text.contains(part), "{}", answer.text);
        }
        let texts = [worker.text("chat", "Hello").await, worker.text("one", "Hello").await];
        assert_eq!(texts, expected);
    }
    drop(restored);
    assert_eq!(worker.text("large", "Hello").await, expected[0]);
}

/// Adapters of a model that is unloaded leave their memory to other models, and are copied back with it.
#[cfg(feature = "rocm-emulator")]
#[tokio::test(flavor = "multi_thread")]
async fn adapters_of_unloaded_models_take_no_memory_of_the_gpu() {
    let _gpu = GPU.lock().await;
    candle_core::rocm::rocm_loader::select("emulator:gfx1100").unwrap();
    let (folder, adapters) = (folder(), Folders::write());
    let flags = ["--models-dir", &flag(folder.path()), "--lora-modules", &module("one", &adapters, "chat")];
    let flags = [&flags[..], &["--allow-runtime-lora-updating"]].concat();
    let worker = Several::start_on(DeviceKind::Rocm, &flags).unwrap();
    let device = worker.api.served().unwrap().device().device.clone();
    let plain = worker.text("plain", "Hello").await;
    let before = vram_bytes(&device);
    let one = worker.text("one", "Hello").await;
    assert_ne!(one, plain);
    assert_eq!((worker.text("plain", "Hello").await, vram_bytes(&device)), (plain.clone(), before));
    // An adapter that is loaded for an unloaded model waits in the host's memory, too.
    let three = json!({"lora_name": "three", "lora_path": adapters.path("three"), "base_model_name": "chat"});
    assert_eq!(worker.post("/v1/load_lora_adapter", &three).await.status, 200);
    assert_eq!(vram_bytes(&device), before);
    assert_eq!(worker.text("one", "Hello").await, one);
    assert_ne!(worker.text("three", "Hello").await, one);
    assert_eq!((worker.text("plain", "Hello").await, vram_bytes(&device)), (plain, before));
}

/// Writes a hybrid model whose tokenizer knows one word.
fn write_hybrid(folder: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm-engine/tests/model/data/granite4");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    let model = json!({"type": "WordLevel", "vocab": {"Hello": 0}, "unk_token": "Hello"});
    std::fs::write(folder.join("tokenizer.json"), json!({"version": "1.0", "model": model}).to_string())
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn models_have_settings_of_their_own() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("hybrid")).unwrap();
    write_hybrid(&folder.path().join("hybrid"));
    let more = tempfile::tempdir().unwrap();
    tiny_llama::write(more.path(), true);
    let preset = more.path().join("presets.ini");
    let text = format!(
        "[plain]\nspeculative-config = none\ncontext = 40\nserved-model-name = plain,simple\n\
         [more]\nmodel = {0}\nspeculative-config = {{\"model\": \"{0}\"}}\nchat-template = chatml\n\
         kv-events = @tcp://127.0.0.1:0\n",
        more.path().display()
    );
    std::fs::write(&preset, text).unwrap();
    let flags =
        ["--models-dir", &flag(folder.path()), "--models-preset", &flag(&preset), "--models-max", "3"];
    let speculation = ["--speculative-config", "{\"method\": \"ngram\"}"];
    let worker = Several::start(&[flags.as_slice(), &speculation].concat()).unwrap();
    let drafted = async |model: &str| {
        let body = json!({"model": model, "prompt": "Hello", "max_tokens": 24, "temperature": 0, "ignore_eos": true,
                          "frequency_penalty": -0.5, "timings_per_token": true});
        let answer = worker.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{model}: {}", answer.text);
        answer.json()["timings"]["draft_n"].as_u64()
    };
    assert!(drafted("chat").await > Some(0));
    assert!(drafted("more").await > Some(0));
    assert!(drafted("hybrid").await > Some(0));
    assert_eq!([drafted("plain").await, drafted("simple").await], [None; 2]);
    let models = worker.get("/v1/models").await.json();
    let names: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["bert", "broken", "chat", "hybrid", "plain", "simple", "more"]);
    assert_eq!(worker.get("/v1/models/simple").await.json()["max_model_len"], 40);
    let template = worker.get("/props?model=more").await.json()["chat_template"].to_string();
    assert!(template.contains("<|im_start|>"), "{template}");
}
