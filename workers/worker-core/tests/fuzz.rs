//! Fuzz tests: the worker responds to every request, and never with 5xx.

mod support;

use axum::body::{Body as Bytes, to_bytes};
use axum::http::{Request, Uri};
use axum::routing::post;
use axum::{Json, Router};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use support::arguments;
use tokio::runtime::Runtime;
use tower::ServiceExt;
use worker_core::jobs::{Jobs, Options};
use worker_core::{App, Body, Lifecycle, Metrics};

worker_core::fields! {
    struct ChatRequest => {
        model: String,
        messages: Vec<Message>,
        max_tokens: u32,
        temperature: f32,
        logit_bias: HashMap<u32, f32>,
        stop: Stop,
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
#[expect(dead_code, reason = "read by serde alone")]
enum Message {
    User { content: String },
    Tool { content: Value, id: (u8, Option<i64>) },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "read by serde alone")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

const VALID: &str = r#"{"model": "tiny", "messages": [{"role": "user", "content": "a\u00e9"}, {"role": "tool",
    "content": null, "id": [1, -2]}], "max_tokens": 7, "temperature": 0.5, "logit_bias": {"3": -1e3}, "stop": ["x"]}"#;

const PIECES: [&str; 18] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\u",
    "\\ud800",
    "null",
    "-1",
    "1e999",
    "99999999999999999999",
    "\"role\"",
    "\"model\"",
    "\"messages\"",
    "\u{0}",
    " ",
];

fn worker() -> (Runtime, Router) {
    let lifecycle = Lifecycle::new();
    lifecycle.ready();
    let jobs = Jobs::<u8>::new(Options::new("w", |_| 0), &lifecycle);
    let router = Router::new()
        .route("/ask", post(async |Body(_): Body<ChatRequest>| Json("fine")))
        .nest("/jobs", jobs.routes());
    let router = App::new(router, lifecycle, Metrics::new()).router(&arguments(&["--body-limit=4096"]));
    (tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(), router)
}

/// Sends a request, checks that it succeeds or fails with a 4xx in OpenAI's format, and returns its status.
fn check((runtime, router): &(Runtime, Router), request: Request<Bytes>) -> Result<u16, TestCaseError> {
    runtime.block_on(async {
        let head = request.method() == "HEAD";
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        prop_assert!(status < 500, "{status}: {body:?}");
        if status >= 400 && !head {
            let body: Value =
                serde_json::from_slice(&body).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string());
        }
        Ok(status)
    })
}

fn json(body: Vec<u8>) -> Request<Bytes> {
    Request::post("/ask").header("content-type", "application/json").body(body.into()).unwrap()
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn the_valid_body_is_accepted() {
    assert_eq!(check(&worker(), json(VALID.into())).unwrap(), 200);
}

#[test]
fn arbitrary_bytes_do_not_cause_5xx() {
    let worker = worker();
    proptest!(cases(4000), |(body in vec(any::<u8>(), 0..5000))| {
        check(&worker, json(body))?;
    });
}

#[test]
fn mutated_bodies_do_not_cause_5xx() {
    let worker = worker();
    let cut = (0..VALID.len(), 0..40usize, vec(prop::sample::select(&PIECES[..]), 0..4));
    proptest!(cases(20_000), |(cuts in vec(cut, 1..4))| {
        let mut body = VALID.as_bytes().to_vec();
        for (at, length, pieces) in cuts {
            let at = at.min(body.len());
            let end = (at + length).min(body.len());
            body.splice(at..end, pieces.concat().into_bytes());
        }
        check(&worker, json(body))?;
    });
}

#[test]
fn arbitrary_methods_paths_and_headers_do_not_cause_5xx() {
    let worker = worker();
    let methods =
        prop::sample::select(&["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X"][..]);
    let pieces =
        ["/", "ask", "jobs", "stream", "health", "..", "%", "%ff", "%00", "{id}", "?", "a=b", "é", "//"];
    let path =
        vec(prop::sample::select(pieces.to_vec()), 0..6).prop_map(|pieces| format!("/{}", pieces.concat()));
    let header =
        (prop::sample::select(&["content-type", "authorization", "last-event-id", "origin"][..]), ".{0,20}");
    let requests = (methods, path, vec(header, 0..3));
    proptest!(cases(4000), |((method, path, headers) in requests)| {
        let Ok(uri) = path.parse::<Uri>() else { return Ok(()) };
        let request = headers.iter().fold(Request::builder().method(method).uri(uri), |request, (name, value)| {
            request.header(*name, value.replace(|c: char| c.is_control(), "~").into_bytes())
        });
        check(&worker, request.body(Bytes::empty()).unwrap())?;
    });
}
