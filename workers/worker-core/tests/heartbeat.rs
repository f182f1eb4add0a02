//! Beats against a hive that takes them, refuses them, or is not there.

use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use worker_core::heartbeat::{Beat, Options, start};

fn beat(running: usize) -> Beat {
    Beat {
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

/// A hive that answers with `statuses` in turn, the last one for ever, and tells what it got.
async fn hive(statuses: &[u16]) -> (String, mpsc::UnboundedReceiver<(Option<String>, Value)>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let statuses = Arc::new(Mutex::new(statuses.to_vec()));
    let take = move |headers: HeaderMap, Json(body): Json<Value>| async move {
        let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        // Nobody listens any more when the test is over.
        let _ = sender.send((token, body));
        let mut statuses = statuses.lock();
        let next = if statuses.len() > 1 { statuses.remove(0) } else { statuses[0] };
        StatusCode::from_u16(next).unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/beat", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/beat", post(take))).await });
    (url, receiver)
}

fn quick(url: String) -> Options {
    let (interval, longest) = (Duration::from_millis(5), Duration::from_millis(20));
    Options { interval, longest, timeout: Duration::from_secs(600), ..Options::new(url) }
}

#[tokio::test]
async fn tells_at_once_and_again_until_stopped() {
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
async fn goes_on_after_refusals_and_redirects() {
    let (url, mut beats) = hive(&[500, 404, 302, 503, 204]).await;
    let heartbeat = start(quick(url), || beat(0)).unwrap();
    for _ in 0..8 {
        let (token, _) = beats.recv().await.unwrap();
        assert_eq!(token, None);
    }
    drop(heartbeat);
}

#[tokio::test]
async fn a_hive_that_is_away_does_no_harm_and_stopping_does_not_wait_for_the_pause() {
    // A port that was just closed could be another test's by now.
    let url = "http://127.0.0.1:1";
    let (asked, mut asks) = mpsc::unbounded_channel();
    let hour = Duration::from_secs(3600);
    let options = Options { interval: hour, longest: hour, ..Options::new(url) };
    let heartbeat = start(options, move || {
        asked.send(()).unwrap();
        beat(0)
    })
    .unwrap();
    asks.recv().await.unwrap();
    tokio::task::spawn_blocking(move || heartbeat.stop()).await.unwrap();
    assert!(asks.recv().await.is_none(), "the thread has let go of everything");
}
