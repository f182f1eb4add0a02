//! The queue: positions, cancellation, disconnecting clients, limits and shutdown.
use std::time::Duration;

use futures_util::StreamExt;
use sd_worker::jobs::ABANDON_TIMEOUT;
use sd_worker::pipeline::Request;
use sd_worker::queue::Event;
use serde_json::{Value, json};

use crate::fixture::{Ask, Worker, form_body, form_request, get, json_request, read, with, worker};
use crate::images::png;

const GENERATIONS: &str = "/v1/images/generations";

fn job() -> Value {
    json!({"prompt": "a red circle", "steps": 6, "seed": 1})
}

fn error(events: &[(String, Value)]) -> &str {
    let (name, data) = events.last().unwrap();
    assert_eq!(name, "error", "{data}");
    assert!(data["message"].as_str().is_some_and(|message| !message.is_empty()));
    data["code"].as_str().unwrap()
}

fn positions(events: &[(String, Value)]) -> Vec<u64> {
    events
        .iter()
        .filter(|(name, _)| name == "queued")
        .map(|(_, data)| data["position"].as_u64().unwrap())
        .collect()
}

async fn started(worker: &Worker) -> (String, String) {
    let job = worker.begin(&job()).await;
    worker.until("the first step is blocked", |worker| worker.gate.is_holding()).await;
    job
}

#[tokio::test]
async fn waiting_jobs_receive_their_positions() {
    let worker = with(&["--batch-requests", "1"]);
    worker.gate.hold();
    let first = started(&worker).await;
    let mut jobs = vec![first];
    for _ in 0..3 {
        jobs.push(worker.begin(&job()).await);
    }
    // The second job is cancelled, and the following ones move up.
    assert_eq!(worker.delete(&jobs[1].0).await.json()["status"], "cancelled");
    worker.gate.open();
    let mut seen = Vec::new();
    for (_, sse_url) in &jobs {
        seen.push(worker.get(sse_url).await.events());
    }
    let seen_positions: Vec<Vec<u64>> = seen.iter().map(|events| positions(events)).collect();
    assert_eq!(seen_positions, [vec![0], vec![1], vec![2, 1, 0], vec![3, 2, 1, 0]]);
    assert_eq!(error(&seen[1]), "cancelled");
    assert_eq!(seen[1].len(), 2, "{:?}", seen[1]);
    for done in [0, 2, 3] {
        assert_eq!(seen[done].last().unwrap().0, "complete");
    }
    worker.idle().await;
}

/// A request whose model was loaded for it precedes those that came meanwhile.
#[tokio::test]
async fn a_request_takes_the_place_of_the_loading_of_its_model() {
    let worker = with(&["--batch-requests", "1", "--max-waiting", "2"]);
    worker.gate.hold();
    let first = started(&worker).await;
    let place = worker.served.queue.reserve().ok().unwrap();
    let loading = worker.served.queue.submit_to(0, None, Some(&place)).ok().unwrap();
    let jobs = [first, worker.begin(&job()).await];
    for loading in [Some(loading), None] {
        assert_eq!(worker.post("/v1/jobs", &job()).await.status, 429, "{}", loading.is_some());
    }
    let request = Request { seeds: vec![1], ..worker.served.info.defaults.clone() };
    let served = worker.served.at(place);
    assert!(worker.served.check_capacity().is_err() && served.check_capacity().is_ok());
    let mut own = served.submit(request).unwrap();
    let position = own.next().await;
    assert!(matches!(position, Some(Event::Queued { position: 1 })), "{position:?}");
    worker.gate.open();
    let mut seen = Vec::new();
    for (_, sse_url) in &jobs {
        seen.push(positions(&worker.get(sse_url).await.events()));
    }
    assert_eq!(seen, [vec![0], vec![2, 1, 2, 1, 0]]);
}

#[tokio::test]
async fn a_running_job_is_cancelled_after_its_step() {
    let worker = worker();
    worker.gate.hold();
    let (job_id, sse_url) = started(&worker).await;
    assert_eq!(worker.delete(&job_id).await.json()["status"], "cancelled");
    worker.gate.open();
    let events = worker.get(&sse_url).await.events();
    assert_eq!(error(&events), "cancelled");
    worker.idle().await;
    let status = worker.served.queue.status();
    assert_eq!((status.steps, status.cancelled, status.complete), (1, 1, 0));
    // A second cancellation has no effect. Unknown jobs are rejected.
    assert_eq!(worker.delete(&job_id).await.json()["status"], "ended");
    assert_eq!(worker.delete("no-such-job").await.error().1, "job_not_found");
    assert_eq!(worker.get("/v1/jobs/no-such-job/stream").await.error().0, 404);
}

#[tokio::test]
async fn disconnection_cancels_requests() {
    let worker = worker();
    worker.gate.hold();
    // Readers of a running and of a waiting job, and a client that waits for a response.
    let (_, running) = started(&worker).await;
    let (_, waiting) = worker.begin(&job()).await;
    for sse_url in [&running, &waiting] {
        let mut body = worker.send(get(sse_url)).await.into_body().into_data_stream();
        assert!(body.next().await.unwrap().is_ok());
    }
    // Clients may return within the timeout.
    tokio::time::pause();
    tokio::time::advance(ABANDON_TIMEOUT / 2).await;
    assert_eq!(worker.served.queue.status().waiting, 1);
    tokio::time::advance(ABANDON_TIMEOUT).await;
    worker.until("the waiting job is removed", |worker| worker.served.queue.status().waiting == 0).await;
    tokio::time::resume();
    let body = job();
    let response = worker.post(GENERATIONS, &body);
    tokio::select! {
        biased;
        answer = response => panic!("answered while the model is held: {}", answer.text),
        () = worker.until("the request is waiting", |worker| worker.served.queue.status().waiting > 0) => {}
    }
    worker.until("the request is removed", |worker| worker.served.queue.status().waiting == 0).await;
    worker.gate.open();
    worker.idle().await;
    let status = worker.served.queue.status();
    assert_eq!((status.cancelled, status.complete, status.steps), (3, 0, 1));
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let worker = with(&["--max-waiting", "1"]);
    worker.gate.hold();
    let (_, first) = started(&worker).await;
    let (second_id, second) = worker.begin(&job()).await;
    let form = form_body(&[("prompt", None, b"x"), ("image", Some("x.png"), &png(32, 32))]);
    for request in [
        json_request("/v1/jobs", job().to_string().into_bytes()),
        json_request(GENERATIONS, job().to_string().into_bytes()),
        form_request(form),
    ] {
        let full = worker.read(request).await;
        assert_eq!(full.error(), (429, "queue_full".into(), None));
        assert!(full.text.contains("2 requests wait or run, the limit is 1"), "{}", full.text);
        assert!(full.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    }
    // Cancelling a waiting job makes room in the queue.
    worker.delete(&second_id).await;
    let (_, third) = worker.begin(&job()).await;
    worker.gate.open();
    for (sse_url, last) in [(&first, "complete"), (&second, "error"), (&third, "complete")] {
        assert_eq!(worker.get(sse_url).await.events().last().unwrap().0, last);
    }
}

#[tokio::test]
async fn max_waiting_0_rejects_waiting_requests() {
    let worker = with(&["--max-waiting", "0"]);
    assert_eq!(worker.post(GENERATIONS, &job()).await.status, 200);
    worker.gate.hold();
    let (_, sse_url) = started(&worker).await;
    assert_eq!(worker.post("/v1/jobs", &job()).await.status, 429);
    worker.gate.open();
    assert_eq!(worker.get(&sse_url).await.events().last().unwrap().0, "complete");
}

#[tokio::test]
async fn a_draining_worker_finishes_jobs_and_rejects_new_ones() {
    let worker = worker();
    worker.gate.hold();
    let jobs = [started(&worker).await, worker.begin(&job()).await];
    worker.lifecycle.drain();
    assert_eq!(worker.get("/ready").await.status, 503);
    assert_eq!(worker.post("/v1/jobs", &job()).await.error(), (503, "not_ready".into(), None));
    worker.gate.open();
    for (_, sse_url) in &jobs {
        assert_eq!(worker.get(sse_url).await.events().last().unwrap().0, "complete");
    }
    worker.lifecycle.idle().await;
}

#[tokio::test]
async fn abort_sends_one_error_per_job() {
    let worker = worker();
    worker.gate.hold();
    let streams = [started(&worker).await, worker.begin(&job()).await];
    let mut open = Vec::new();
    for (_, sse_url) in &streams {
        open.push(worker.send(get(sse_url)).await);
    }
    worker.lifecycle.abort();
    worker.gate.open();
    for stream in open {
        assert_eq!(error(&read(stream).await.events()), "worker_ended");
    }
    worker.idle().await;
}

#[tokio::test]
async fn a_stopped_queue_fails_all_requests() {
    let worker = worker();
    worker.gate.hold();
    let jobs = [started(&worker).await, worker.begin(&job()).await];
    let (queue, gate) = (worker.served.queue.clone(), worker.gate.clone());
    let stop = tokio::task::spawn_blocking(move || queue.stop());
    worker.until("the waiting jobs have failed", |worker| worker.served.queue.status().waiting == 0).await;
    gate.open();
    stop.await.unwrap();
    for (_, sse_url) in &jobs {
        assert_eq!(error(&worker.get(sse_url).await.events()), "worker_ended");
    }
    assert_eq!(worker.post("/v1/jobs", &job()).await.error().0, 503);
}

#[tokio::test]
async fn the_client_limit_counts_images() {
    let worker = with(&["--streams-per-client", "2"]);
    worker.gate.hold();
    let mut jobs = vec![started(&worker).await];
    jobs.push(worker.begin(&job()).await);
    assert_eq!(worker.post("/v1/jobs", &job()).await.status, 429);
    let mut three = job();
    three["n"] = 3.into();
    let refused = worker.post("/v1/jobs", &three).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert_eq!(refused.json()["error"]["param"], "n");
    assert_eq!(worker.post(GENERATIONS, &job()).await.status, 429);
    worker.gate.open();
    for (_, sse_url) in &jobs {
        assert_eq!(worker.get(sse_url).await.events().last().unwrap().0, "complete");
    }
    worker.idle().await;
    assert_eq!(worker.post(GENERATIONS, &job()).await.status, 200);
}

#[tokio::test]
async fn stop_within_does_not_wait_for_a_hung_step() {
    let worker = worker();
    worker.gate.hold();
    let (_, sse_url) = started(&worker).await;
    assert!(!worker.served.queue.stop_within(Duration::from_millis(10)));
    worker.gate.open();
    assert_eq!(error(&worker.get(&sse_url).await.events()), "worker_ended");
}
