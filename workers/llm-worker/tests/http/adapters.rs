//! Adapters: texts like those of merged weights, names, loading and unloading.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use llm_engine::engine::{DraftSource, Options, Speculation};
use llm_worker::adapters::Adapters;
use llm_worker::lora_modules::LoraModule;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::answers::{chat, completion, merged};
use crate::fixture::{Ask, MODEL, Worker, json_request, read, worker_at, worker_unloading, worker_with};
use crate::tiny_llama;

const RANK: usize = 2;
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

/// Folders of adapters named `one`, `two` and `three`, and of the models that are merged with them.
pub struct Folders(TempDir);

impl Folders {
    pub fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = Self(folder);
        for (seed, name) in ["one", "two", "three"].into_iter().enumerate() {
            std::fs::create_dir(own.path(name)).unwrap();
            std::fs::create_dir(own.merged(name)).unwrap();
            own.write_one(seed as u64, name);
        }
        own
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn merged(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}-merged"))
    }

    pub fn flag(&self, name: &str) -> String {
        format!("{name}={}", self.path(name).display())
    }

    fn write_one(&self, seed: u64, name: &str) {
        let (folder, whole) = (self.path(name), self.merged(name));
        tiny_llama::write(&whole, true);
        let file = whole.join("model.safetensors");
        let mut weights = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
        let (mut random, mut tensors) = (StdRng::seed_from_u64(seed), HashMap::new());
        let mut names: Vec<String> = weights.keys().filter(|name| name.contains("_proj.")).cloned().collect();
        names.sort();
        for name in names {
            let (rows, columns) = weights[&name].dims2().unwrap();
            let mut matrix = |rows: usize, columns: usize| {
                let values = (0..rows * columns).map(|_| random.random_range(-0.4..0.4f32)).collect();
                Tensor::from_vec::<_, f32>(values, (rows, columns), &Device::Cpu).unwrap()
            };
            let (a, b) = (matrix(RANK, columns), matrix(rows, RANK));
            // Alpha is twice the rank.
            let delta = (b.matmul(&a).unwrap() * 2.0).unwrap();
            let sum = (&weights[&name] + delta).unwrap();
            let module = name.trim_end_matches(".weight");
            tensors.insert(format!("base_model.model.{module}.lora_A.weight"), a);
            tensors.insert(format!("base_model.model.{module}.lora_B.weight"), b);
            weights.insert(name, sum);
        }
        candle_core::safetensors::save(&weights, &file).unwrap();
        write_files(&folder, RANK, &tensors);
    }

    /// Writes an adapter of this rank that changes nothing.
    #[cfg(feature = "rocm-emulator")]
    pub fn write_empty(&self, name: &str, rank: usize) {
        std::fs::create_dir(self.path(name)).unwrap();
        let zeros =
            |rows, columns| Tensor::zeros((rows, columns), candle_core::DType::F16, &Device::Cpu).unwrap();
        let of_module = |end| format!("base_model.model.model.layers.0.self_attn.o_proj.{end}.weight");
        let pair = [("lora_A", zeros(rank, 32)), ("lora_B", zeros(32, rank))];
        write_files(&self.path(name), rank, &pair.map(|(end, matrix)| (of_module(end), matrix)).into());
    }

    /// Returns a worker with the adapters `one` and `two`.
    fn worker(&self, options: Options, more: &[&str]) -> Worker {
        let [one, two] = ["one", "two"].map(|name| self.flag(name));
        worker_with(true, options, &[&["--lora-modules", &one, &two], more].concat())
    }
}

fn write_files(folder: &Path, rank: usize, tensors: &HashMap<String, Tensor>) {
    candle_core::safetensors::save(tensors, folder.join("adapter_model.safetensors")).unwrap();
    let config = json!({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"});
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

async fn ask(worker: &Worker, path: &str, body: &Value) -> Value {
    let answer = worker.post(path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn of_model(body: Value, model: &str) -> Value {
    merged(body, json!({"model": model, "max_tokens": 20, "ignore_eos": true, "temperature": 0}))
}

async fn text(worker: &Worker, model: &str, more: Value) -> String {
    let answer = ask(worker, "/v1/completions", &merged(of_model(completion(json!({})), model), more)).await;
    assert_eq!(answer["model"], model);
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

async fn names(worker: &Worker) -> Vec<String> {
    let list = worker.get("/v1/models").await.json();
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn texts_equal_those_of_merged_weights() {
    let adapters = Folders::write();
    let worker = adapters.worker(Options::default(), &[]);
    let plain = worker_with(true, Options::default(), &[]);
    let merged_workers = ["one", "two"].map(|name| worker_at(&adapters.merged(name)));
    let responses = json!({"input": "Once upon a time", "max_output_tokens": 20});
    let messages = json!({"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 20});
    for (path, body, pointer) in [
        ("/v1/completions", of_model(completion(json!({})), MODEL), "/choices/0/text"),
        ("/v1/chat/completions", of_model(chat(json!({})), MODEL), "/choices/0/message/content"),
        (
            "/v1/responses",
            merged(responses, json!({"temperature": 0, "ignore_eos": true})),
            "/output/0/content/0/text",
        ),
        ("/v1/messages", merged(messages, json!({"temperature": 0, "ignore_eos": true})), "/content/0/text"),
    ] {
        let named = |model: &str| merged(body.clone(), json!({"model": model}));
        let (base, one, two) = (named(MODEL), named("one"), named("two"));
        let (base, one, two) =
            tokio::join!(ask(&worker, path, &base), ask(&worker, path, &one), ask(&worker, path, &two));
        let expected = [
            ask(&plain, path, &named(MODEL)).await,
            ask(&merged_workers[0], path, &named(MODEL)).await,
            ask(&merged_workers[1], path, &named(MODEL)).await,
        ];
        let found = [(MODEL, base), ("one", one), ("two", two)];
        let mut texts: Vec<&str> = Vec::new();
        for ((name, answer), expected) in found.iter().zip(&expected) {
            let text = answer.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{answer}"));
            assert_eq!(Some(text), expected.pointer(pointer).and_then(Value::as_str), "{path} {name}");
            assert_eq!(answer["model"], *name);
            assert!(!texts.contains(&text), "{path}: {texts:?}");
            texts.push(text);
        }
    }
}

#[tokio::test]
async fn jobs_use_adapters() {
    let adapters = Folders::write();
    let worker = adapters.worker(Options::default(), &[]);
    let expected = text(&worker, "two", json!({"ignore_eos": false, "prompt": "Once upon a time"})).await;
    let job = json!({"hive_id": "h", "model": "two", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0,
        "stream": false});
    let answer = worker.post("/v1/jobs", &job).await;
    let (_, stream) = answer.job();
    let events = worker.get(&stream).await.events();
    let events: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let of_type = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
    assert_eq!((&of_type("token")["t"], &of_type("started")["model"]), (&json!(expected), &json!("two")));
}

#[tokio::test]
async fn adapters_are_listed_as_models() {
    let adapters = Folders::write();
    let list = json!([{"name": "three", "path": adapters.path("three"), "base_model_name": "org/tiny"}]);
    let flags = ["--lora-modules", &adapters.flag("one"), &list.to_string()];
    let worker = worker_with(true, Options::default(), &flags);
    assert_eq!(names(&worker).await, [MODEL, "one", "three"]);
    for (name, parent) in [("one", MODEL), ("three", "org/tiny")] {
        let model = worker.get(&format!("/v1/models/{name}")).await.json();
        assert_eq!((&model["id"], &model["parent"]), (&json!(name), &json!(parent)));
        assert_eq!((&model["root"], &model["object"]), (&json!(adapters.path(name)), &json!("model")));
        assert!(model["created"].is_u64() && model["max_model_len"].is_u64());
    }
    assert_eq!(worker.get("/v1/models/two").await.error().0, 404);
    assert_eq!(worker.get("/v1/models/tiny").await.json().get("parent"), None);
    let (code, param) = ("model_not_found", Some("model".to_owned()));
    let answer = worker.post("/v1/completions", &of_model(completion(json!({})), "two")).await;
    assert_eq!(answer.error(), (404, code.into(), param.clone()));
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "a"})),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/v1/score", json!({"text_1": "a", "text_2": "b"})),
    ] {
        let answer = worker.post(path, &merged(body, json!({"model": "one"}))).await;
        assert_eq!(answer.error(), (400, "invalid_value".into(), param.clone()), "{path}");
        assert!(answer.text.contains("is an adapter"), "{}", answer.text);
    }
    let tokenized = ask(&worker, "/tokenize", &json!({"model": "one", "content": "the end"})).await;
    assert!(tokenized["count"].is_u64());
}

#[tokio::test]
async fn wrong_modules_are_refused_at_start() {
    let adapters = Folders::write();
    let worker = worker_with(true, Options::default(), &[]);
    let module = |name: &str, folder: &str, base: Option<&str>| LoraModule {
        name: name.to_owned(),
        path: adapters.path(folder).display().to_string(),
        base_model_name: base.map(str::to_owned),
    };
    for (modules, words) in [
        (vec![module("one", "one", Some("other"))], "adapter \"one\": model \"other\" not found"),
        (vec![module("one", "one", None), module("one", "two", None)], "\"one\" is served already"),
        (vec![module(MODEL, "one", None)], "is served already; choose another name"),
        (vec![module("one", "none", None)], "adapter \"one\": cannot read"),
        (["one", "two", "three"].map(|name| module(name, name, None)).into(), "raise --max-loras"),
    ] {
        let loaded = Adapters::load(&worker.served.engine, &worker.served.name, modules.iter());
        let error = format!("{:#}", loaded.err().unwrap());
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[tokio::test]
async fn cached_prompts_are_not_shared_between_adapters() {
    let adapters = Folders::write();
    let worker = adapters.worker(Options::default(), &["--enable-prompt-tokens-details"]);
    let prompt = json!({"prompt": "a common beginning of many prompts that is long enough to be kept"});
    let cached = async |model: &str| {
        let body = merged(of_model(completion(json!({})), model), prompt.clone());
        let answer = ask(&worker, "/v1/completions", &body).await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    for model in [MODEL, "one", "two"] {
        assert_eq!(cached(model).await, 0, "{model}");
    }
    for model in [MODEL, "one", "two"] {
        assert!(cached(model).await >= 16, "{model}");
    }
}

#[tokio::test]
async fn speculation_changes_no_text_of_an_adapter() {
    let adapters = Folders::write();
    let speculation = Some(Speculation { source: DraftSource::Ngram(1..=3), max_tokens: 7 });
    let speculating = adapters.worker(Options { speculation, ..Options::default() }, &[]);
    let plain = adapters.worker(Options::default(), &[]);
    let more = json!({"max_tokens": 80, "frequency_penalty": -0.5});
    let own = text(&speculating, "one", more.clone()).await;
    assert_eq!(own, text(&plain, "one", more).await);
    assert!(speculating.served.engine.status().tokens_accepted > 0);
}

#[tokio::test]
async fn clients_load_and_unload_adapters() {
    let adapters = Folders::write();
    let worker = worker_with(true, Options::default(), &["--allow-runtime-lora-updating"]);
    let load = async |name: &str, path: &Path| {
        worker.post(LOAD, &json!({"lora_name": name, "lora_path": path})).await
    };
    let unload = async |name: &str| worker.post(UNLOAD, &json!({"lora_name": name})).await;
    let answer = load("one", &adapters.path("one")).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.text[..]),
        (200, "Success: LoRA adapter 'one' added successfully.")
    );
    assert_eq!(load("two", &adapters.path("two")).await.status, 200);
    assert_eq!(names(&worker).await, [MODEL, "one", "two"]);
    let first = text(&worker, "one", json!({})).await;
    let refused = |param: &str| (400, "invalid_value".to_owned(), Some(param.to_owned()));
    for (name, path, words) in [
        ("one", "three", "a model named \\\"one\\\" is served already"),
        ("tiny", "three", "a model named \\\"tiny\\\" is served already"),
        ("org/tiny", "three", "is served already"),
        ("three", "three", "2 adapters are loaded, which is the limit"),
        ("other", "none", "adapter_config.json"),
    ] {
        let answer = load(name, &adapters.path(path)).await;
        assert_eq!(answer.error(), refused("lora_path"), "{name}");
        assert!(answer.text.contains(words), "{name}: {}", answer.text);
    }
    for (path, body, param) in [
        (LOAD, json!({"lora_path": "/a"}), "lora_name"),
        (LOAD, json!({"lora_name": "a"}), "lora_path"),
        (LOAD, json!({"lora_name": "", "lora_path": "/a"}), "lora_name"),
        (UNLOAD, json!({}), "lora_name"),
    ] {
        assert_eq!(worker.post(path, &body).await.error(), refused(param), "{path} {body}");
    }
    let answer = worker.post(LOAD, &json!({"lora_name": "a", "lora_path": "/a", "load_inplace": true})).await;
    assert_eq!(answer.error(), (400, "unsupported_parameter".into(), Some("load_inplace".into())));
    assert_eq!(unload("three").await.error(), (404, "model_not_found".into(), Some("lora_name".into())));
    let answer = unload("one").await;
    assert_eq!(
        (answer.status.as_u16(), &answer.text[..]),
        (200, "Success: LoRA adapter 'one' removed successfully.")
    );
    assert_eq!(names(&worker).await, [MODEL, "two"]);
    assert_eq!(worker.post("/v1/completions", &of_model(completion(json!({})), "one")).await.status, 404);
    // The name may stand for another adapter, with which no prompt is shared.
    assert_eq!(load("one", &adapters.path("three")).await.status, 200);
    assert_ne!(text(&worker, "one", json!({})).await, first);
    assert_eq!(
        text(&worker_at(&adapters.merged("three")), MODEL, json!({})).await,
        text(&worker, "one", json!({})).await
    );
}

#[tokio::test]
async fn requests_continue_after_their_adapter_is_unloaded() {
    let adapters = Folders::write();
    let worker = adapters.worker(Options::default(), &["--allow-runtime-lora-updating"]);
    let expected = text(&worker, "one", json!({})).await;
    worker.gate.hold();
    let body = merged(of_model(completion(json!({})), "one"), json!({"stream": true}));
    let stream = worker.send(json_request("/v1/completions", body.to_string().into_bytes())).await;
    assert_eq!(worker.post(UNLOAD, &json!({"lora_name": "one"})).await.status, 200);
    worker.gate.open();
    let chunks = read(stream).await.chunks();
    let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
    assert_eq!(parts.collect::<String>(), expected);
    worker.idle().await;
    let three = json!({"lora_name": "three", "lora_path": adapters.path("three")});
    assert_eq!(worker.post(LOAD, &three).await.status, 200);
}

#[tokio::test]
async fn adapters_outlast_an_unloaded_model() {
    let adapters = Folders::write();
    let expected = text(&adapters.worker(Options::default(), &[]), "one", json!({})).await;
    let (worker, events) = worker_unloading(&["--lora-modules", &adapters.flag("one")]);
    for _ in 0..2 {
        assert_eq!(text(&worker, "one", json!({})).await, expected);
        while events.recv().unwrap() != "released" {}
    }
}

#[tokio::test]
async fn loading_requires_a_flag_and_the_token() {
    let adapters = Folders::write();
    let body = json!({"lora_name": "three", "lora_path": adapters.path("three")});
    let worker = adapters.worker(Options::default(), &[]);
    for path in [LOAD, UNLOAD] {
        let answer = worker.post(path, &body).await;
        let unknown = (400, "unsupported_parameter".to_owned(), Some("lora_path".to_owned()));
        let forbidden = (403, "adapter_updates_disabled".to_owned(), None);
        assert_eq!(answer.error(), if path == LOAD { forbidden } else { unknown });
    }
    assert_eq!(worker.post(UNLOAD, &json!({"lora_name": "one"})).await.status, 403);
    assert_eq!(names(&worker).await, [MODEL, "one", "two"]);
    let worker =
        adapters.worker(Options::default(), &["--allow-runtime-lora-updating", "--api-token", "secret"]);
    assert_eq!(worker.post(LOAD, &body).await.status, 401);
}
