//! Full queues, disconnected clients, failing devices, and draining.
use clap::FromArgMatches;
use llm_engine::engine::Options;
use llm_worker::arguments::{Arguments, DEFAULTS};
use serde_json::{Value, json};
use tokio_stream::StreamExt;

use crate::fixture::{Ask, MODEL, Worker, json_request, read, worker, worker_unloading, worker_with};

const COMPLETIONS: &str = "/v1/completions";

fn long(stream: bool) -> Value {
    json!({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": true, "stream": stream})
}

fn small() -> Worker {
    worker_with(true, Options { max_running: 1, max_waiting: 1, ..Options::default() }, &[])
}

#[tokio::test]
async fn a_full_queue_returns_429_with_retry_after() {
    let worker = small();
    worker.gate.hold();
    let request = || json_request(COMPLETIONS, long(true).to_string().into_bytes());
    let streams = [worker.send(request()).await, worker.send(request()).await];
    let full = worker.post(COMPLETIONS, &long(false)).await;
    assert_eq!(full.error(), (429, "queue_full".into(), None));
    let seconds: u64 = full.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(seconds >= 1);
    // Several texts are accepted together or not at all.
    let mut two = long(false);
    two["n"] = 2.into();
    assert_eq!(worker.post(COMPLETIONS, &two).await.status, 429);
    worker.gate.open();
    for stream in streams {
        let chunks = read(stream).await.chunks();
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
    worker.idle().await;
    assert_eq!(worker.post(COMPLETIONS, &two).await.status, 200);
}

#[tokio::test]
async fn more_texts_than_the_queue_allows_return_400() {
    let worker = small();
    let mut three = long(false);
    three["n"] = 3.into();
    assert_eq!(worker.post(COMPLETIONS, &three).await.error().0, 400);
}

#[tokio::test]
async fn disconnecting_cancels_the_texts_of_a_client() {
    let worker = worker();
    worker.gate.hold();
    for n in [1, 3] {
        let mut body = long(true);
        body["n"] = n.into();
        let request = || json_request(COMPLETIONS, body.to_string().into_bytes());
        drop(worker.send(request()).await);
        // A client that waits for the whole response is cancelled, too.
        let mut whole = body.clone();
        whole["stream"] = false.into();
        let waits = worker.post(COMPLETIONS, &whole);
        tokio::select! {
            biased;
            answer = waits => panic!("answered while the model is paused: {}", answer.text),
            () = async { while worker.served.engine.status().waiting == 0 { tokio::task::yield_now().await } } => {}
        }
    }
    worker.gate.open();
    worker.idle().await;
    assert!(worker.served.engine.status().tokens_written < 8, "{:?}", worker.served.engine.status());
}

#[tokio::test]
async fn disconnecting_during_a_stream_cancels_its_text() {
    let worker = worker();
    let response = worker.send(json_request(COMPLETIONS, long(true).to_string().into_bytes())).await;
    let mut body = response.into_body().into_data_stream();
    assert!(body.next().await.unwrap().is_ok());
    drop(body);
    worker.idle().await;
}

#[tokio::test]
async fn a_lost_device_ends_streams_and_readiness() {
    let worker = worker();
    worker.gate.hold();
    let request = || json_request(COMPLETIONS, long(true).to_string().into_bytes());
    let streams = [worker.send(request()).await, worker.send(request()).await];
    assert_eq!(worker.get("/ready").await.status, 200);
    worker.gate.break_down();
    for stream in streams {
        let chunks = read(stream).await.chunks();
        let errors: Vec<&Value> = chunks.iter().filter(|chunk| chunk.get("error").is_some()).collect();
        assert_eq!(errors.len(), 1, "{chunks:?}");
        assert_eq!(errors[0]["error"]["code"], "device_lost");
    }
    let ready = worker.get("/ready").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text.contains("pulled out"), "{}", ready.text);
    assert_eq!(worker.get("/health").await.status, 200);
    // The failure that ends the process has a reason.
    assert!(worker.lifecycle.failure().is_some_and(|why| why.contains("pulled out")));
    assert_eq!(worker.post(COMPLETIONS, &long(false)).await.error().0, 503);
}

#[tokio::test]
async fn draining_finishes_running_texts_and_rejects_requests() {
    let worker = worker();
    worker.gate.hold();
    let stream = worker.send(json_request(COMPLETIONS, long(true).to_string().into_bytes())).await;
    worker.lifecycle.drain();
    assert_eq!(worker.get("/ready").await.status, 503);
    assert_eq!(worker.post(COMPLETIONS, &long(false)).await.error(), (503, "not_ready".into(), None));
    worker.gate.open();
    let chunks = read(stream).await.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn concurrent_streams_match_single_requests() {
    let worker = worker();
    let ask = |i: usize| json!({"model": MODEL, "prompt": format!("Number {i} is"), "max_tokens": 10 + i, "temperature": 0, "stream": true});
    let text = |chunks: Vec<Value>| -> String {
        chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    let mut alone = Vec::new();
    for i in 0..16 {
        alone.push(text(worker.post(COMPLETIONS, &ask(i)).await.chunks()));
    }
    let mut streams = Vec::new();
    for i in 0..16 {
        streams.push(worker.send(json_request(COMPLETIONS, ask(i).to_string().into_bytes())).await);
    }
    for (i, stream) in streams.into_iter().enumerate() {
        assert_eq!(text(read(stream).await.chunks()), alone[i], "stream {i}");
    }
}

/// An application's server is a single client, whose requests wait instead of being rejected.
#[test]
fn clients_have_no_limit_unless_it_is_set() {
    let limit = |more: &[&str]| {
        let command = worker_core::arguments::command::<Arguments>(&DEFAULTS);
        let matches = command.try_get_matches_from(["worker", "--model", "m"].iter().chain(more)).unwrap();
        Arguments::from_arg_matches(&matches).unwrap().server.streams_per_client
    };
    assert_eq!(limit(&[]), 0);
    assert_eq!(limit(&["--streams-per-client", "3"]), 3);
}

#[tokio::test]
async fn a_worker_whose_model_is_unloaded_stays_ready_and_loads_it_for_a_request() {
    let (worker, events) = worker_unloading(&[]);
    for _ in 0..2 {
        assert_eq!(events.recv().unwrap(), "released");
        for path in ["/health", "/ready"] {
            assert_eq!(worker.get(path).await.status, 200, "{path}");
        }
        assert_eq!(worker.get("/v1/models").await.json()["data"][0]["id"], MODEL);
        let metrics = worker.get("/metrics").await.text;
        let loaded = metrics.lines().find(|line| line.starts_with("llm_model_loaded{"));
        assert!(loaded.is_some_and(|line| line.ends_with(" 0")), "{metrics}");
        assert_eq!(worker.post(COMPLETIONS, &long(false)).await.status, 200);
        assert_eq!(events.recv().unwrap(), "loaded");
    }
}
