//! Heartbeats to a hive that accepts them, rejects them, or is unreachable.

use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use worker_core::heartbeat::{Options, Report, start};

fn beat(running: usize) -> Report {
    Report {
        worker_id: "w".into(),
        kind: "llm-worker-cpu".into(),
        models: vec!["tiny".into()],
        address: "127.0.0.1:1".into(),
        ready: true,
        running,
        waiting: 2,
        vram_bytes: 3,
    }
}

/// Starts a hive that returns `statuses` in order, repeating the last, and forwards the received heartbeats.
async fn hive(statuses: &[u16]) -> (String, mpsc::UnboundedReceiver<(Option<String>, Value)>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let statuses = Arc::new(Mutex::new(statuses.to_vec()));
    let receive = move |headers: HeaderMap, Json(body): Json<Value>| async move {
        let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        // The receiver may be gone at the end of the test.
        let _ = sender.send((token, body));
        let mut statuses = statuses.lock();
        let next = if statuses.len() > 1 { statuses.remove(0) } else { statuses[0] };
        StatusCode::from_u16(next).unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/beat", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/beat", post(receive))).await });
    (url, receiver)
}

fn quick(url: String) -> Options {
    let (interval, max_interval) = (Duration::from_millis(5), Duration::from_millis(20));
    Options { interval, max_interval, timeout: Duration::from_secs(600), ..Options::new(url) }
}

#[tokio::test]
async fn sends_immediately_and_repeatedly_until_stopped() {
    let (url, mut beats) = hive(&[200]).await;
    let options = Options { token: Some("secret".parse().unwrap()), ..quick(url) };
    let mut count = 0;
    let heartbeat = start(options, move || {
        count += 1;
        beat(count)
    })
    .unwrap();
    for running in 1..=5 {
        let (token, body) = beats.recv().await.unwrap();
        assert_eq!(token.as_deref(), Some("Bearer secret"));
        let expected = json!({"worker_id": "w", "kind": "llm-worker-cpu", "models": ["tiny"],
            "address": "127.0.0.1:1", "ready": true, "running": running, "waiting": 2, "vram_bytes": 3});
        assert_eq!(body, expected);
    }
    tokio::task::spawn_blocking(move || heartbeat.stop()).await.unwrap();
}

#[tokio::test]
async fn continues_after_errors_and_redirects() {
    let (url, mut beats) = hive(&[500, 404, 302, 503, 204]).await;
    let heartbeat = start(quick(url), || beat(0)).unwrap();
    for _ in 0..8 {
        let (token, _) = beats.recv().await.unwrap();
        assert_eq!(token, None);
    }
    drop(heartbeat);
}

#[tokio::test]
async fn an_unreachable_hive_does_not_delay_stopping() {
    // A port that was just closed may already be in use by another test.
    let url = "http://127.0.0.1:1";
    let (called, mut calls) = mpsc::unbounded_channel();
    let hour = Duration::from_secs(3600);
    let options = Options { interval: hour, max_interval: hour, ..Options::new(url) };
    let heartbeat = start(options, move || {
        called.send(()).unwrap();
        beat(0)
    })
    .unwrap();
    calls.recv().await.unwrap();
    tokio::task::spawn_blocking(move || heartbeat.stop()).await.unwrap();
    assert!(calls.recv().await.is_none(), "the thread has dropped its closure");
}
