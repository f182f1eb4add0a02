//! Helpers for the HTTP tests of the workers: requests without a socket, a gate for the steps of a model, fuzzing.
#![allow(dead_code, reason = "not every worker uses every item")]
pub mod allocations;
pub mod fuzz;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use serde_json::Value;
use tower::ServiceExt;

/// Names of the worker and of its model.
pub const WORKER: &str = "worker-1";
pub const MODEL: &str = "tiny";

/// A gate that a test model passes at each step. Its state controls the behaviour of the step.
#[derive(Clone)]
pub struct Gate<W>(Arc<(Mutex<W>, Condvar, AtomicUsize)>);

impl<W: Copy + PartialEq> Gate<W> {
    pub fn new(state: W) -> Self {
        Self(Arc::new((Mutex::new(state), Condvar::new(), AtomicUsize::new(0))))
    }

    pub fn set(&self, state: W) {
        *self.0.0.lock().unwrap() = state;
        self.0.1.notify_all();
    }

    /// Returns true while a step is blocked.
    pub fn is_holding(&self) -> bool {
        self.0.2.load(SeqCst) > 0
    }

    /// Blocks while the state is `held`, then returns the state.
    pub fn pass(&self, held: W) -> W {
        let state = self.0.0.lock().unwrap();
        self.0.2.fetch_add(1, SeqCst);
        let state = *self.0.1.wait_while(state, |state| *state == held).unwrap();
        self.0.2.fetch_sub(1, SeqCst);
        state
    }
}

/// A completely read response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub async fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Self { status: parts.status, headers: parts.headers, text }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Returns status, code and param. Panics if the response is not an error.
    pub fn error(&self) -> (u16, String, Option<String>) {
        let body = self.json();
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        assert!(error["type"].is_string() && error.get("param").is_some(), "{body}");
        let code = error["code"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
        (self.status.as_u16(), code, error["param"].as_str().map(str::to_owned))
    }

    /// Returns the id and the stream path of the accepted job.
    pub fn job(&self) -> (String, String) {
        assert_eq!(self.status, 202, "{}", self.text);
        let answer = self.json();
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        (text("job_id"), text("sse_url"))
    }
}

pub async fn read(response: Response<Body>) -> Answer {
    Answer::of(response).await
}

pub fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

pub fn delete(job_id: &str) -> Request<Body> {
    Request::delete(format!("/v1/jobs/{job_id}")).body(Body::empty()).unwrap()
}

pub fn json_request(path: &str, body: Vec<u8>) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").body(Body::from(body)).unwrap()
}

/// Returns `body` extended by the members of `changes`.
pub fn with_members(mut body: Value, changes: &Value) -> Value {
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

/// Sends requests to a worker without a socket.
pub trait Ask {
    fn router(&self) -> &Router;

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router().clone().oneshot(request).await.unwrap()
    }

    async fn read(&self, request: Request<Body>) -> Answer {
        Answer::of(self.send(request).await).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.read(get(path)).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.read(json_request(path, body.to_string().into_bytes())).await
    }
}

/// Checks that the page is self-contained and that its script does not contain its own closing tag.
pub async fn check_page(worker: &impl Ask, script: &str) {
    let page = worker.get("/").await;
    assert_eq!(page.status, 200);
    let header = |name: &str| page.headers[name].to_str().unwrap();
    let policy = header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(policy.contains("connect-src 'self'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert!(page.text.contains("<title>") && page.text.contains("--accent:") && page.text.contains(script));
    // Browsers then refuse `innerHTML` and its like.
    assert!(policy.contains("require-trusted-types-for 'script'; trusted-types 'none'"), "{policy}");
    for tag in ["<!-- ", "<link rel=\"stylesheet", "src=\"http", "eval("] {
        assert!(!page.text.contains(tag), "{tag}");
    }
    let style = page.text.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next()).unwrap();
    assert!(!style.contains("@import") && !style.contains("url("));
    assert_eq!(page.text.matches("</script").count(), 1);
}
