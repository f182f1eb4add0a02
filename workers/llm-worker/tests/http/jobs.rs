//! The job API.
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, WORKER, Worker, worker, worker_with};

fn job(more: Value) -> Value {
    let mut body = json!({"hive_id": "hive-1", "model": MODEL, "prompt": "Once upon a time", "max_tokens": 70,
        "temperature": 0.0, "stream": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn create_job(worker: &Worker, more: Value) -> (String, String) {
    let answer = worker.post("/v1/jobs", &job(more)).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let answer = answer.json();
    let text = |name: &str| answer[name].as_str().unwrap().to_owned();
    (text("job_id"), text("sse_url"))
}

fn events_of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

#[tokio::test]
async fn a_job_sends_all_kinds_of_events() {
    let worker = worker();
    let (job_id, sse_url) = create_job(&worker, json!({"worker_id": WORKER, "top_k": 0, "top_p": 1.0})).await;
    assert_eq!(sse_url, format!("/v1/jobs/{job_id}/stream"));
    let events = worker.get(&sse_url).await.chunks();
    let (first, last) = (&events[0], events.last().unwrap());
    assert_eq!(
        (&first["type"], &first["job_id"], &first["model"]),
        (&json!("started"), &json!(job_id), &json!(MODEL))
    );
    assert!(first["started_at"].as_str().unwrap().ends_with('Z'));
    let tokens = events_of_type(&events, "token");
    for (i, token) in tokens.iter().enumerate() {
        assert_eq!(token["i"], i);
    }
    let text: String = tokens.iter().map(|token| token["t"].as_str().unwrap()).collect();
    let body = json!({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 70, "temperature": 0});
    let completion = worker.post("/v1/completions", &body).await.json();
    assert_eq!(text, completion["choices"][0]["text"].as_str().unwrap());
    assert_eq!(
        (&last["type"], &last["tokens_out"]),
        (&json!("end"), &completion["usage"]["completion_tokens"])
    );
    assert_eq!(last["stop_reason"], completion["choices"][0]["finish_reason"]);
    assert!(last["decode_time_ms"].is_u64());
    let metrics = events_of_type(&events, "metrics");
    let expected = 1 + last["tokens_out"].as_u64().unwrap() as usize / 32;
    assert!(metrics.len() >= expected, "{} of {expected}", metrics.len());
    assert!(metrics.iter().all(|event| event["tokens_per_sec"].is_number() && event["vram_bytes"] == 0));
    // A second reader receives all events.
    assert_eq!(worker.get(&sse_url).await.chunks(), events);
    // Without streaming, the text is a single event.
    let (_, sse_url) = create_job(&worker, json!({"stream": false})).await;
    let events = worker.get(&sse_url).await.chunks();
    let tokens = events_of_type(&events, "token");
    assert_eq!((tokens.len(), tokens[0]["t"].as_str().unwrap()), (1, text.as_str()));
}

#[tokio::test]
async fn a_cancelled_job_ends_with_that_reason() {
    let worker = worker();
    worker.gate.hold();
    let (job_id, sse_url) = create_job(&worker, json!({"max_tokens": 200})).await;
    let cancel = |id: &str| Request::delete(format!("/v1/jobs/{id}")).body(Body::empty()).unwrap();
    assert_eq!(worker.read(cancel(&job_id)).await.status, 200);
    worker.gate.open();
    let events = worker.get(&sse_url).await.chunks();
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["stop_reason"]), (&json!("end"), &json!("cancelled")), "{last}");
    worker.idle().await;
    assert_eq!(worker.read(cancel("no-such-job")).await.error().1, "job_not_found");
    assert_eq!(worker.get("/v1/jobs/no-such-job/stream").await.error().0, 404);
}

#[tokio::test]
async fn a_lost_device_sends_an_error_event() {
    let worker = worker();
    worker.gate.break_down();
    let (_, sse_url) = create_job(&worker, json!({})).await;
    let events = worker.get(&sse_url).await.chunks();
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("device_lost")), "{last}");
    assert_eq!(events_of_type(&events, "error").len(), 1);
    assert_eq!(worker.get("/ready").await.status, 503);
}

#[tokio::test]
async fn invalid_jobs_are_rejected_by_field() {
    let worker = worker();
    for (more, status, param) in [
        (json!({"max_tokens": 0}), 400, "max_tokens"),
        (json!({"max_tokens": -3}), 400, "max_tokens"),
        (json!({"max_tokens": 100_000}), 400, "prompt"),
        (json!({"temperature": 3}), 400, "temperature"),
        (json!({"top_p": 0}), 400, "top_p"),
        (json!({"top_k": -1}), 400, "top_k"),
        (json!({"prompt": ""}), 400, "prompt"),
        (json!({"prompt": 3}), 400, "prompt"),
        (json!({"hive_id": null}), 400, "hive_id"),
        (json!({"seed": 5}), 400, "seed"),
        (json!({"worker_id": "worker-2"}), 400, "worker_id"),
        (json!({"model": "other"}), 404, "model"),
    ] {
        let error = worker.post("/v1/jobs", &job(more.clone())).await.error();
        assert_eq!((error.0, error.2.as_deref()), (status, Some(param)), "{more}");
    }
}

/// The limit per client counts texts, whatever the endpoint. Running jobs can still be followed and cancelled
/// at the limit.
#[tokio::test]
async fn texts_count_toward_the_client_limit_until_they_end() {
    let worker = worker_with(true, Default::default(), &["--streams-per-client", "2"]);
    let completion = |more: Value| {
        let mut body = json!({"model": MODEL, "prompt": "x", "max_tokens": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "n": 2});
    for (body, param) in [(json!({"n": 3}), "n"), (json!({"prompt": ["a", "b", "c"]}), "prompt")] {
        let error = worker.post("/v1/completions", &completion(body)).await.error();
        assert_eq!(error, (400, "invalid_value".into(), Some(param.into())));
    }
    worker.gate.hold();
    let (one, other) = (create_job(&worker, json!({})).await, create_job(&worker, json!({})).await);
    for (path, body) in [
        ("/v1/jobs", job(json!({}))),
        ("/v1/completions", completion(json!({}))),
        ("/v1/chat/completions", chat.clone()),
    ] {
        assert_eq!(worker.post(path, &body).await.error().0, 429, "{path}");
    }
    let cancel = Request::delete(format!("/v1/jobs/{}", one.0)).body(Body::empty()).unwrap();
    assert_eq!(worker.read(cancel).await.status, 200);
    worker.gate.open();
    for (_, sse_url) in [one, other] {
        worker.get(&sse_url).await.chunks();
    }
    for (path, body) in [("/v1/completions", completion(json!({"n": 2}))), ("/v1/chat/completions", chat)] {
        assert_eq!(worker.post(path, &body).await.status, 200, "{path}");
    }
}
