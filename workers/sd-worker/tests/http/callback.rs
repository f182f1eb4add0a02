//! Callbacks to a URL that accepts, rejects or fails.
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use sd_worker::callback::{Callback, Options};
use sd_worker::jobs::{self, ABANDON_TIMEOUT};
use sd_worker::pipeline::Bounds;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tower::ServiceExt;

use crate::fixture::{Ask, WORKER, Worker, get, json_request, read, worker_of};
use crate::tiny_model::Kind;

/// Starts a server that returns `statuses` in order and then 200, and forwards the received callbacks.
async fn callback_server(statuses: &[u16]) -> (String, UnboundedReceiver<(Option<String>, Value)>) {
    let (sender, receiver) = unbounded_channel();
    let statuses = std::sync::Arc::new(std::sync::Mutex::new(statuses.to_vec()));
    let receive = move |headers: HeaderMap, Json(body): Json<Value>| async move {
        let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        // The receiver may be gone at the end of the test.
        let _ = sender.send((token, body));
        let mut statuses = statuses.lock().unwrap();
        let next = if statuses.is_empty() { 200 } else { statuses.remove(0) };
        StatusCode::from_u16(next).unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/done", post(receive))).await });
    (url, receiver)
}

fn worker_with_callback(url: String) -> Worker {
    let token = Some("secret".parse().unwrap());
    // A timed-out callback would be repeated, so use a long timeout.
    let (pause, timeout) = (Duration::from_millis(1), Duration::from_secs(600));
    let options = Options { token, pause, timeout, ..Options::new(url) };
    worker_of(Kind::Plain, &[], Some(Callback::start(options).unwrap()))
}

fn job(more: Value) -> Value {
    let mut body = json!({"prompt": "a red circle", "steps": 2, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn results_are_sent() {
    let (url, mut received) = callback_server(&[]).await;
    let worker = worker_with_callback(url);
    let (job_id, sse_url) = worker.begin(&job(json!({"callback": true}))).await;
    let mut made = worker.get(&sse_url).await.events().pop().unwrap().1;
    let more = json!({"job_id": job_id, "worker_id": WORKER, "status": "complete"});
    made.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    assert_eq!(received.recv().await.unwrap(), (Some("Bearer secret".into()), made));
    // A job without callback, and a cancelled job.
    worker.complete(&job(json!({"callback": false}))).await;
    worker.gate.hold();
    let (job_id, sse_url) = worker.begin(&job(json!({}))).await;
    worker.delete(&job_id).await;
    worker.gate.open();
    worker.get(&sse_url).await.events();
    let outcome = received.recv().await.unwrap().1;
    assert_eq!(
        (&outcome["job_id"], &outcome["status"], &outcome["code"]),
        (&json!(job_id), &json!("error"), &json!("cancelled"))
    );
    // Shutdown waits until the callbacks have been sent.
    worker.idle().await;
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn temporary_errors_are_retried() {
    for (statuses, tries) in [(&[500, 503, 429][..], 4), (&[500; 9], 4), (&[400], 1), (&[302], 1)] {
        let (url, mut received) = callback_server(statuses).await;
        let worker = worker_with_callback(url);
        worker.complete(&job(json!({}))).await;
        worker.idle().await;
        let mut count = 0;
        while received.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, tries, "{statuses:?}");
    }
}

#[tokio::test]
async fn an_unreachable_server_does_not_affect_jobs() {
    let worker = worker_with_callback("http://127.0.0.1:1/done".to_owned());
    worker.complete(&job(json!({}))).await;
    worker.complete(&job(json!({}))).await;
    worker.idle().await;
}

#[tokio::test]
async fn shutdown_is_reported() {
    let (url, mut received) = callback_server(&[]).await;
    let worker = worker_with_callback(url);
    worker.gate.hold();
    let running = worker.begin(&job(json!({}))).await.0;
    worker.until("the first step is blocked", |worker| worker.gate.is_holding()).await;
    let waiting = worker.begin(&job(json!({}))).await.0;
    worker.lifecycle.abort();
    worker.gate.open();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let outcome = received.recv().await.unwrap().1;
        assert_eq!(
            (&outcome["status"], &outcome["code"]),
            (&json!("error"), &json!("worker_ended")),
            "{outcome}"
        );
        ids.push(outcome["job_id"].as_str().unwrap().to_owned());
    }
    ids.sort();
    let mut expected = vec![running, waiting];
    expected.sort();
    assert_eq!(ids, expected);
    worker.idle().await;
}

#[tokio::test]
async fn log_overflow_is_reported() {
    let (url, mut received) = callback_server(&[]).await;
    let worker = worker_of(Kind::Plain, &[], None);
    let callback = Callback::start(Options::new(url)).unwrap();
    // The log can hold one step of one pixel.
    let bounds = Bounds { side: 1, pixels: 1, steps: 1, pictures: 1, ..Bounds::default() };
    let router = jobs::router(worker.api.clone(), WORKER, Some(callback), (bounds, 0));
    let body = job(json!({"steps": 150})).to_string().into_bytes();
    let answer = read(router.clone().oneshot(json_request("/v1/jobs", body)).await.unwrap()).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let sse_url = answer.json()["sse_url"].as_str().unwrap().to_owned();
    let (name, data) = read(router.oneshot(get(&sse_url)).await.unwrap()).await.events().pop().unwrap();
    assert_eq!((name.as_str(), &data["code"]), ("error", &json!("log_full")));
    let outcome = received.recv().await.unwrap().1;
    assert_eq!(
        (&outcome["job_id"], &outcome["status"], &outcome["code"]),
        (&answer.json()["job_id"], &json!("error"), &json!("log_full"))
    );
    worker.idle().await;
}

#[tokio::test]
async fn unfollowed_jobs_without_callback_are_cancelled() {
    let (url, mut received) = callback_server(&[]).await;
    let worker = worker_with_callback(url);
    worker.gate.hold();
    let silent = job(json!({"callback": false}));
    let (_, running) = worker.begin(&silent).await;
    let _running = worker.send(get(&running)).await;
    worker.until("the first step is blocked", |worker| worker.gate.is_holding()).await;
    let (_, unfollowed) = worker.begin(&silent).await;
    let (_, followed) = worker.begin(&silent).await;
    let _followed = worker.send(get(&followed)).await;
    let (reported, dropped) = worker.begin(&job(json!({}))).await;
    drop(worker.send(get(&dropped)).await);
    let waiting = |worker: &Worker| worker.served.queue.status().waiting;
    tokio::time::pause();
    tokio::time::advance(ABANDON_TIMEOUT / 2).await;
    assert_eq!(waiting(&worker), 3);
    tokio::time::advance(ABANDON_TIMEOUT).await;
    worker.until("the unfollowed job is removed", |worker| waiting(worker) == 2).await;
    assert_eq!(worker.get(&unfollowed).await.events().pop().unwrap().1["code"], "cancelled");
    tokio::time::advance(ABANDON_TIMEOUT * 2).await;
    assert_eq!(waiting(&worker), 2);
    assert_eq!(worker.served.queue.status().cancelled, 1);
    tokio::time::resume();
    worker.gate.open();
    let outcome = received.recv().await.unwrap().1;
    assert_eq!((&outcome["job_id"], &outcome["status"]), (&json!(reported), &json!("complete")));
}
