//! The callback URL, which takes, refuses and fails.
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use sd_worker::callback::{Callback, Options};
use sd_worker::jobs;
use sd_worker::pipeline::Bounds;
use sd_worker::unfollowed::ABANDON_TIMEOUT;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tower::ServiceExt;

use crate::fixture::{Ask, WORKER, Worker, built, get, json_request, read};
use crate::tiny_model::Kind;

/// A hive that answers with `statuses` in turn and then with 200, and tells what it got.
async fn hive(statuses: &[u16]) -> (String, UnboundedReceiver<(Option<String>, Value)>) {
    let (sender, receiver) = unbounded_channel();
    let statuses = std::sync::Arc::new(std::sync::Mutex::new(statuses.to_vec()));
    let take = move |headers: HeaderMap, Json(body): Json<Value>| async move {
        let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        // Nobody listens any more when the test is over.
        let _ = sender.send((token, body));
        let mut statuses = statuses.lock().unwrap();
        let next = if statuses.is_empty() { 200 } else { statuses.remove(0) };
        StatusCode::from_u16(next).unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/done", post(take))).await });
    (url, receiver)
}

fn telling(url: String) -> Worker {
    let token = Some("secret".parse().unwrap());
    // No answer is late: a call that is given up would be made once more.
    let (pause, timeout) = (Duration::from_millis(1), Duration::from_secs(600));
    let options = Options { token, pause, timeout, ..Options::new(url) };
    built(Kind::Plain, &[], Some(Callback::start(options).unwrap()))
}

fn job(more: Value) -> Value {
    let mut body = json!({"prompt": "a red circle", "steps": 2, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn outcomes_are_told() {
    let (url, mut told) = hive(&[]).await;
    let worker = telling(url);
    let (job_id, sse_url) = worker.begin(&job(json!({"callback": true}))).await;
    let mut made = worker.get(&sse_url).await.events().pop().unwrap().1;
    let more = json!({"job_id": job_id, "worker_id": WORKER, "status": "complete"});
    made.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    assert_eq!(told.recv().await.unwrap(), (Some("Bearer secret".into()), made));
    // A job that nobody is to hear of, and one that is cancelled.
    worker.made(&job(json!({"callback": false}))).await;
    worker.gate.hold();
    let (job_id, sse_url) = worker.begin(&job(json!({}))).await;
    worker.delete(&job_id).await;
    worker.gate.open();
    worker.get(&sse_url).await.events();
    let outcome = told.recv().await.unwrap().1;
    assert_eq!(
        (&outcome["job_id"], &outcome["status"], &outcome["code"]),
        (&json!(job_id), &json!("error"), &json!("cancelled"))
    );
    // The worker's end waits for those that are told.
    worker.idle().await;
    assert!(told.try_recv().is_err());
}

#[tokio::test]
async fn it_is_tried_again_where_that_may_help() {
    for (statuses, tries) in [(&[500, 503, 429][..], 4), (&[500; 9], 4), (&[400], 1), (&[302], 1)] {
        let (url, mut told) = hive(statuses).await;
        let worker = telling(url);
        worker.made(&job(json!({}))).await;
        worker.idle().await;
        let mut count = 0;
        while told.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, tries, "{statuses:?}");
    }
}

#[tokio::test]
async fn nobody_there_is_no_harm() {
    let worker = telling("http://127.0.0.1:1/done".to_owned());
    worker.made(&job(json!({}))).await;
    worker.made(&job(json!({}))).await;
    worker.idle().await;
}

#[tokio::test]
async fn the_end_of_the_worker_is_told() {
    let (url, mut told) = hive(&[]).await;
    let worker = telling(url);
    worker.gate.hold();
    let running = worker.begin(&job(json!({}))).await.0;
    worker.until("its first step waits", |worker| worker.gate.is_holding()).await;
    let waiting = worker.begin(&job(json!({}))).await.0;
    worker.lifecycle.abort();
    worker.gate.open();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let outcome = told.recv().await.unwrap().1;
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
async fn an_end_that_the_log_cannot_hold_is_told() {
    let (url, mut told) = hive(&[]).await;
    let worker = built(Kind::Plain, &[], None);
    let callback = Callback::start(Options::new(url)).unwrap();
    // Room for one step of one pixel.
    let bounds = Bounds { side: 1, pixels: 1, steps: 1, pictures: 1, ..Bounds::default() };
    let router = jobs::router(worker.api.clone(), WORKER, Some(callback), (bounds, 0));
    let body = job(json!({"steps": 150})).to_string().into_bytes();
    let answer = read(router.clone().oneshot(json_request("/v1/jobs", body)).await.unwrap()).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let sse_url = answer.json()["sse_url"].as_str().unwrap().to_owned();
    let (name, data) = read(router.oneshot(get(&sse_url)).await.unwrap()).await.events().pop().unwrap();
    assert_eq!((name.as_str(), &data["code"]), ("error", &json!("log_full")));
    let outcome = told.recv().await.unwrap().1;
    assert_eq!(
        (&outcome["job_id"], &outcome["status"], &outcome["code"]),
        (&answer.json()["job_id"], &json!("error"), &json!("log_full"))
    );
    worker.idle().await;
}

#[tokio::test]
async fn jobs_that_nobody_follows_and_nobody_is_told_of_are_cancelled() {
    let (url, mut told) = hive(&[]).await;
    let worker = telling(url);
    worker.gate.hold();
    let silent = job(json!({"callback": false}));
    let (_, running) = worker.begin(&silent).await;
    let _running = worker.send(get(&running)).await;
    worker.until("its first step waits", |worker| worker.gate.is_holding()).await;
    let (_, alone) = worker.begin(&silent).await;
    let (_, followed) = worker.begin(&silent).await;
    let _followed = worker.send(get(&followed)).await;
    let (told_of, _) = worker.begin(&job(json!({}))).await;
    let waiting = |worker: &Worker| worker.served.queue.status().waiting;
    tokio::time::pause();
    tokio::time::advance(ABANDON_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(waiting(&worker), 3);
    tokio::time::advance(Duration::from_secs(2)).await;
    worker.until("who is alone is gone", |worker| waiting(worker) == 2).await;
    assert_eq!(worker.get(&alone).await.events().pop().unwrap().1["code"], "cancelled");
    tokio::time::advance(ABANDON_TIMEOUT * 2).await;
    assert_eq!(waiting(&worker), 2);
    assert_eq!(worker.served.queue.status().cancelled, 1);
    tokio::time::resume();
    worker.gate.open();
    let outcome = told.recv().await.unwrap().1;
    assert_eq!((&outcome["job_id"], &outcome["status"]), (&json!(told_of), &json!("complete")));
}
