//! Downloads from a mock Hub: requested files, caching, and use without the Hub.
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::extract::{Path as UrlPath, State};
use axum::http::header::{CONTENT_RANGE, ETAG, RANGE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use llm_worker::fetch::LanguageModel;
use serde_json::json;
use worker_core::hub::Hub;
use worker_core::progress::Completed;

const COMMIT: &str = "0123456789abcdef";

/// Files of org/name on the mock Hub, and the names of those that were sent.
#[derive(Clone)]
struct MockHub {
    files: Arc<BTreeMap<&'static str, Vec<u8>>>,
    sent: Arc<Mutex<Vec<String>>>,
}

impl MockHub {
    fn new(files: &[(&'static str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| (*name, bytes.to_vec())).collect();
        Self { files: Arc::new(files), sent: Arc::default() }
    }

    /// Returns the files sent since the last call.
    fn take_sent(&self) -> Vec<String> {
        let mut sent = std::mem::take(&mut *self.sent.lock().unwrap());
        sent.sort();
        sent
    }
}

async fn info(
    State(mock_hub): State<MockHub>,
    UrlPath((name, revision)): UrlPath<(String, String)>,
) -> Response {
    match (name.as_str(), revision.as_str()) {
        ("gated", _) => StatusCode::FORBIDDEN.into_response(),
        ("name", "main" | "v1") => {
            let siblings: Vec<_> = mock_hub.files.keys().map(|name| json!({"rfilename": name})).collect();
            Json(json!({"sha": COMMIT, "siblings": siblings})).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn file(
    State(mock_hub): State<MockHub>,
    UrlPath((revision, name)): UrlPath<(String, String)>,
    headers: HeaderMap,
) -> Response {
    assert_eq!(revision, COMMIT, "files must be requested by commit");
    let Some(bytes) = mock_hub.files.get(name.as_str()) else { return StatusCode::NOT_FOUND.into_response() };
    let range = headers[RANGE].to_str().unwrap().strip_prefix("bytes=").unwrap();
    let (from, to) = range.split_once('-').unwrap();
    let (from, to) = (from.parse::<usize>().unwrap(), to.parse::<usize>().map_or(bytes.len(), |to| to + 1));
    if to == bytes.len() {
        mock_hub.sent.lock().unwrap().push(name.clone());
    }
    let headers = [
        (CONTENT_RANGE, format!("bytes {from}-{}/{}", to - 1, bytes.len())),
        (ETAG, format!("\"etag-{}\"", name.replace('/', "-"))),
        ("x-repo-commit".parse().unwrap(), COMMIT.to_owned()),
    ];
    (StatusCode::PARTIAL_CONTENT, headers, bytes[from..to].to_vec()).into_response()
}

/// Serves a mock Hub until the runtime is dropped.
fn serve(mock_hub: &MockHub) -> (tokio::runtime::Runtime, SocketAddr) {
    let router = Router::new()
        .route("/api/models/org/{name}/revision/{revision}", get(info))
        .route("/org/name/resolve/{revision}/{*file}", get(file))
        .with_state(mock_hub.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, router).await });
    (runtime, address)
}

fn hub(address: SocketAddr, cache: &Path) -> Hub {
    Hub { endpoint: Some(format!("http://{address}")), cache: Some(cache.to_owned()) }
}

const INDEX: &[u8] = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;

#[test]
fn a_folder_is_downloaded_once_and_then_found_offline() {
    let mock_hub = MockHub::new(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"t\": 1}"),
        ("chat_template.jinja", b"{{ x }}"),
        ("additional_chat_templates/tool_use.jinja", b"{{ tools }}"),
        ("additional_chat_templates/../../rag.jinja", b"out of the folder"),
        ("onnx/config.json", b"{}"),
        ("model.safetensors.index.json", INDEX),
        ("model-1.safetensors", b"first part"),
        ("model-2.safetensors", b"second part"),
        ("consolidated.safetensors", b"the same again"),
        ("README.md", b"words"),
    ]);
    let (runtime, address) = serve(&mock_hub);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(address, cache.path());
    let mut progress = Vec::new();
    let folder = hub
        .model("org/name", None, &LanguageModel, &mut |done, what| progress.push((done, what.to_owned())))
        .unwrap();
    let fetched = [
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(mock_hub.take_sent(), fetched);
    assert_eq!(std::fs::read(folder.join("model-2.safetensors")).unwrap(), b"second part");
    assert_eq!(std::fs::read(folder.join(fetched[0])).unwrap(), b"{{ tools }}");
    let last = Completed::Bytes { done: 11, total: 11, resumed: 0 };
    assert!(progress.contains(&(last, "fetching model-2.safetensors (2 of 2)".into())), "{progress:?}");
    assert!(progress.iter().all(|(done, _)| (0.0..=1.0).contains(&done.share())));
    // A second call, and a tag of the same commit, send no files.
    for revision in [None, Some("v1")] {
        assert_eq!(hub.model("org/name", revision, &LanguageModel, &mut |_, _| ()).unwrap(), folder);
        assert_eq!(mock_hub.take_sent(), [""; 0]);
    }
    drop(runtime);
    assert_eq!(hub.model("org/name", None, &LanguageModel, &mut |_, _| ()).unwrap(), folder);
}

#[test]
fn a_single_gguf_file_is_downloaded() {
    let mock_hub = MockHub::new(&[("small.gguf", b"GGUF small"), ("large.gguf", b"GGUF large")]);
    let (_runtime, address) = serve(&mock_hub);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(address, cache.path());
    let path = hub.model("org/name/small.gguf", None, &LanguageModel, &mut |_, _| ()).unwrap();
    assert_eq!(
        (std::fs::read(path).unwrap(), mock_hub.take_sent()),
        (b"GGUF small".to_vec(), vec!["small.gguf".into()])
    );
}

#[test]
fn an_interrupted_download_continues() {
    let mock_hub = MockHub::new(&[("small.gguf", b"GGUF small")]);
    let (_runtime, address) = serve(&mock_hub);
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join("etag-small.part"), "GGUF").unwrap();
    let mut progress = Vec::new();
    let report = &mut |done: Completed, _: &str| progress.push(done);
    let path = hub(address, cache.path()).model("org/name/small.gguf", None, &LanguageModel, report).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"GGUF small");
    let bytes = |done| Completed::Bytes { done, total: 10, resumed: 4 };
    assert_eq!((progress.first(), progress.last()), (Some(&bytes(4)), Some(&bytes(10))));
}

#[test]
fn missing_files_are_named() {
    let mock_hub = MockHub::new(&[("config.json", b"{}"), ("small.gguf", b"GGUF")]);
    let (_runtime, address) = serve(&mock_hub);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(address, cache.path());
    for (model, revision, says) in [
        ("org/gated", None, "HF_TOKEN"),
        ("org/other", None, "the Hub has no org/other"),
        ("org/name", Some("v2"), "the Hub has no org/name at v2"),
        ("org/name", None, "org/name/FILE.gguf"),
        ("org/name/other.gguf", None, "has no file other.gguf"),
    ] {
        let error = hub.model(model, revision, &LanguageModel, &mut |_, _| ()).unwrap_err();
        assert!(format!("{error:#}").contains(says), "{model}: {error:#}");
    }
}
